"""Arguments of `optimize` that cannot be right are refused by name, before anything is prepared or started."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import optuna
import pytest

from cerebro_spark.errors import ConfigurationError
from cerebro_spark.tune.optuna import optimize


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"space": {"lr": [0.1, 0.2]}}, r"`lr` of `space` is \[0.1, 0.2\], but must be a distribution of Optuna"),
        ({"space": {"lr": 0.1}}, "`lr` of `space` is 0.1"),
        ({"space": "lr"}, "`space` is 'lr', but must be a function of a trial"),
        ({"timeout": "9"}, "`timeout` is '9', but must be above 0 seconds"),
        ({"timeout": 0}, "`timeout` is 0"),
        ({"progress": "yes"}, "`progress` is 'yes', but must be True, False or None"),
        ({"allow_nan": "no", "framework": "torch"}, "allow_nan is 'no', but must be True or False"),
        ({"catch": (ValueError,)}, "argument 'catch': leave it out: a trial that fails is told to the study as failed"),
        ({"gc_after_trial": True}, "free their memory themselves"),
        ({"study": "mine"}, r"`study` is 'mine', but must be a study: make one with optuna.create_study\(\)"),
    ],
)
def test_wrong_arguments_are_refused_by_name(tmp_path: Path, arguments: dict[str, Any], said: str) -> None:
    given: dict[str, Any] = {"study": optuna.create_study(), "space": {}, "n_trials": 1, **arguments}
    study, space = given.pop("study"), given.pop("space")
    with pytest.raises(ConfigurationError, match=said):
        optimize(study, print, space, data={}, store=str(tmp_path), metric="val_loss", epochs=1, **given)
    assert not list(tmp_path.iterdir())
