"""With Keras too, a trial starts from the weights that `model_fn` gave it, or is refused."""

from __future__ import annotations

import io
from typing import Any

import pytest
from trainer_data import feed

from cerebro_spark.errors import ConfigurationError
from cerebro_spark.types import Unit

# Importing TensorFlow alone takes seconds.
pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def models() -> Any:
    import keras_owned_weights

    return keras_owned_weights


def first_digest(trainer: Any, trial: str) -> str:
    trainer.build(trial, {})
    return str(trainer.save(io.BytesIO()).digest)


def train(trainer: Any, trial: str) -> str:
    trainer.build(trial, {})
    trainer.train(Unit(trial, 1, "0"), feed("tabular", 0))
    return str(trainer.save(io.BytesIO()).digest)


def test_a_trained_layer_that_models_share_is_refused(models: Any) -> None:
    part = models.dense()
    trainer = models.trainer_of(lambda: models.with_head(part))
    train(trainer, "t1")
    with pytest.raises(ConfigurationError, match=r"the same `shared/kernel`, `shared/bias`, .*trained: .*clone_model"):
        trainer.build("t2", {})


def test_a_model_that_is_made_only_once_is_refused(models: Any) -> None:
    whole = models.with_head(models.dense())
    trainer = models.trainer_of(lambda: whole)
    train(trainer, "t1")
    with pytest.raises(ConfigurationError, match=r"and \d more, which are trained"):
        trainer.build("t2", {})


def test_a_shared_layer_that_draws_is_refused(models: Any) -> None:
    part = models.dropping()
    trainer = models.trainer_of(lambda: models.with_head(part))
    train(trainer, "t1")
    with pytest.raises(ConfigurationError, match=r"the same `seed_generator/seed_generator_state`, which has changed"):
        trainer.build("t2", {})


@pytest.mark.parametrize("kind", ["frozen", "adapted"])
def test_a_part_that_nothing_changes_may_be_shared(models: Any, kind: str) -> None:
    part = getattr(models, kind)()
    trainer = models.trainer_of(lambda: models.with_head(part))
    first = first_digest(trainer, "t2")
    assert train(trainer, "t1") != first
    assert first_digest(trainer, "t2") == first
