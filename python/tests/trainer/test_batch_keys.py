"""Keys of a batch that are not there: the message says which are, wherever a user's function asked for one."""

from __future__ import annotations

from typing import Any

import pytest
from torch import nn, optim
from trainer_data import columns, feed

from cerebro_spark.errors import ConfigurationError, TrialFailed
from cerebro_spark.trainer import Hooks, Resources, TorchModel
from cerebro_spark.trainer.torch.trainer import TorchTrainer
from cerebro_spark.types import Unit

UNIT, EVAL = Unit("t", 1, "0"), Unit("t", 1, "v", "eval")
KEYS = r"KeyError: 'age'. A batch has the keys 'features', 'label'; params has 'lr'"


def model_fn(params: dict[str, Any]) -> TorchModel:
    module = nn.Linear(8, 1)
    return TorchModel(module, optim.SGD(module.parameters(), lr=params["lr"]), nn.BCEWithLogitsLoss())


def trainer_of(model: Any = model_fn, **hooks: Any) -> TorchTrainer:
    trainer = TorchTrainer(Hooks(model, **hooks), columns("tabular"), resources=Resources(device="cpu"))
    trainer.build("t", {"lr": 0.1})
    return trainer


def look_up(model: Any, batches: Any, params: Any) -> dict[str, float]:
    return {"loss": float(sum(batch["age"].sum() for batch in batches)), "rows": 1}


def test_a_wrong_key_is_answered_with_those_that_are_there() -> None:
    with pytest.raises(TrialFailed, match=KEYS):
        trainer_of(train_fn=look_up).train(UNIT, feed("tabular", 0))
    with pytest.raises(TrialFailed, match=KEYS):
        trainer_of(eval_fn=look_up).evaluate(EVAL, feed("tabular", 0))
    with pytest.raises(TrialFailed, match=KEYS):
        trainer_of(input_fn=lambda batch, params: {**batch, "features": batch["age"]}).train(UNIT, feed("tabular", 0))


def test_a_wrong_name_of_a_param_is_answered_too() -> None:
    with pytest.raises(TrialFailed, match=r"KeyError: 'rate'. .*params has 'lr'"):
        trainer_of(lambda params: model_fn({"lr": params["rate"]}))


def test_other_errors_are_left_alone() -> None:
    def broken(batch: Any, params: Any) -> Any:
        raise ValueError("too odd")

    with pytest.raises(TrialFailed, match="too odd") as caught:
        trainer_of(input_fn=broken).train(UNIT, feed("tabular", 0))
    assert "A batch has" not in str(caught.value)


@pytest.mark.parametrize(
    ("returned", "message"),
    [
        (lambda batch: {"features": batch["features"]}, r"without 'label': it has the keys 'features', but needs"),
        (
            lambda batch: {"x": batch["features"], "y": batch["label"]},
            r"without 'features', 'label': it has the keys 'x'",
        ),
        (lambda batch: (batch["features"], batch["label"]), "input_fn returned tuple, but must return a batch"),
        (lambda batch: None, "input_fn returned NoneType, but must return a batch"),
    ],
    ids=["no label", "renamed", "a tuple", "nothing"],
)
def test_what_input_fn_leaves_out_is_said(returned: Any, message: str) -> None:
    for act in ("train", "evaluate"):
        trainer = trainer_of(input_fn=lambda batch, params: returned(batch))
        with pytest.raises(ConfigurationError, match=message):
            getattr(trainer, act)(UNIT if act == "train" else EVAL, feed("tabular", 0))


def test_rows_are_scored_without_what_only_training_needs() -> None:
    trainer = trainer_of(input_fn=lambda batch, params: {"features": batch["features"]})
    whole = feed("tabular", 0)
    assert len(trainer.predict(whole)["prediction"]) == whole.rows
    trainer = trainer_of(input_fn=lambda batch, params: {"label": batch["label"]})
    with pytest.raises(ConfigurationError, match="without 'features'"):
        trainer.predict(whole)


def test_batches_are_plain_dicts() -> None:
    """To the tree functions of Keras and PyTorch anything else is no dict at all."""
    kinds: list[type] = []

    def seen(batch: Any, params: Any) -> Any:
        kinds.append(type(batch))
        return batch

    def trained(model: Any, batches: Any, params: Any) -> dict[str, float]:
        kinds.extend(map(type, batches))
        return {"loss": 0.0, "rows": 1}

    trainer = trainer_of(input_fn=seen, train_fn=trained)
    trainer.train(UNIT, feed("tabular", 0))
    assert set(kinds) == {dict}
