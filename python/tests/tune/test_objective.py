"""Which direction is better: inferred for the usual metrics, asked for otherwise."""

from __future__ import annotations

import pytest

from cerebro_spark.errors import ConfigurationError
from cerebro_spark.tune.objective import objective_for, value_of
from cerebro_spark.types import Report

MAX = """accuracy acc auc AUC auc_1 binary_accuracy sparse_categorical_accuracy top_k_categorical_accuracy
    top_5_accuracy top5 precision recall f1 f1_score r2_score iou mean_io_u left_output_accuracy head_auc_2 roc_auc"""
MIN = "loss error mae mse rmse mean_squared_error log_loss left_loss binary_crossentropy kl_divergence accuracy_loss"
UNKNOWN = ["profit", "val_score", "neg_mean_squared_error", "negative_loss", "auc_ratio", "val_"]


@pytest.mark.parametrize("prefix", ["", "val_"])
@pytest.mark.parametrize(("names", "mode"), [(MAX.split(), "max"), (MIN.split(), "min")])
def test_the_usual_metrics(prefix: str, names: list[str], mode: str) -> None:
    assert {name: objective_for(prefix + name).mode for name in names} == dict.fromkeys(names, mode)


@pytest.mark.parametrize(
    "metric", ["profit", "val_score", "neg_mean_squared_error", "negative_loss", "auc_ratio", "val_"]
)
def test_others_are_never_guessed(metric: str) -> None:
    with pytest.raises(ConfigurationError, match=r"`mode` is not given.*say mode='max' or mode='min'"):
        objective_for(metric)
    assert objective_for(metric, "min").mode == "min"


def test_a_mode_that_is_said_stands() -> None:
    assert objective_for("val_loss", "max").mode == "max"
    with pytest.raises(ConfigurationError, match="`mode` is 'maximum', but must be 'min' or 'max'"):
        objective_for("val_loss", "maximum")
    with pytest.raises(ConfigurationError, match="`metric` is '', but must be the name"):
        objective_for("")


def test_infinity_is_no_value() -> None:
    objective = objective_for("val_loss")
    assert value_of(Report("t0", 1, {"val_loss": 0.25}), objective) == 0.25
    nothing = value_of(Report("t0", 1, {"val_loss": float("-inf")}), objective)
    assert nothing != nothing
