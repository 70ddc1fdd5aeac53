"""The metric of a search, and its direction. It never guesses: a metric that it does not know needs a mode."""

from __future__ import annotations

import math
import re
from typing import cast, get_args

from cerebro_spark.errors import ConfigurationError
from cerebro_spark.types import Mode, Objective, Report

_LESS_IS_BETTER = (
    "loss logloss error err error_rate mae mse rmse mape msle rmsle wape smape crossentropy cross_entropy nll"
    " perplexity divergence hinge huber logcosh log_cosh poisson wer cer"
)
_MORE_IS_BETTER = (
    "accuracy acc auc auroc auprc roc_auc pr_auc precision recall f1 f1_score fbeta fbeta_score f_score r2 r2_score"
    " iou io_u miou dice dice_coefficient jaccard top_k specificity sensitivity average_precision mcc ndcg bleu rouge"
    " precision_at_recall recall_at_precision sensitivity_at_specificity specificity_at_sensitivity"
)
_MODES: dict[str, Mode] = {
    **dict.fromkeys(_LESS_IS_BETTER.split(), "min"),
    **dict.fromkeys(_MORE_IS_BETTER.split(), "max"),
}
# Words that reverse the direction of a metric: with one of them nothing is inferred.
_REVERSING = {"neg", "negative", "negated", "minus", "inverse", "inverted", "non", "not", "1"}


def objective_for(metric: str, mode: str | None = None) -> Objective:
    """Return the objective for a metric; the mode of a well-known one is inferred from the last words of its name.

    >>> objective_for("val_auc")
    Objective(metric='val_auc', mode='max')
    >>> objective_for("val_left_output_mean_squared_error").mode
    'min'
    >>> objective_for("profit", mode="max").mode
    'max'
    """
    if not isinstance(metric, str) or not metric:
        raise ConfigurationError(f"`metric` is {metric!r}, but must be the name of a metric, such as 'val_loss'")
    mode = inferred_mode(metric) if mode is None else mode
    if mode is None:
        raise ConfigurationError(
            f"`mode` is not given, and whether more or less of {metric!r} is better cannot be told from its name:"
            " say mode='max' or mode='min'"
        )
    if mode not in get_args(Mode):
        raise ConfigurationError(f"`mode` is {mode!r}, but must be 'min' or 'max'")
    return Objective(metric, cast(Mode, mode))


def value_of(report: Report, objective: Objective) -> float:
    """Return the metric of an epoch, NaN if it is not finite. Raises ConfigurationError if it was not measured.

    >>> value_of(Report("t0", 1, {"val_loss": 0.5}), Objective("val_loss", "min"))
    0.5
    """
    if objective.metric not in report.metrics:
        raise ConfigurationError(
            f"`metric` is {objective.metric!r}, but trial {report.trial} measured only"
            f" {', '.join(sorted(report.metrics)) or 'nothing'}: choose one of them, or have the model measure it"
        )
    value = float(report.metrics[objective.metric])
    return value if math.isfinite(value) else float("nan")


def inferred_mode(metric: str) -> Mode | None:
    """Return the mode of a metric, by the last words of its name; None for a name that is not well known.

    >>> inferred_mode("val_left_auc_1"), inferred_mode("profit")
    ('max', None)
    """
    # Keras numbers metrics (`auc_1`) and names them by output (`left_auc`); this package, by split (`val_auc`).
    words = re.sub(r"_\d+$", "", metric.lower().removeprefix("val_")).split("_")
    if _REVERSING & set(words[:-1]):
        return None
    for start in range(len(words)):
        tail = "_".join(words[start:])
        if tail in _MODES:
            return _MODES[tail]
        if re.fullmatch(r"(top_?\d*|f1|acc)(@\d+)?", tail):
            return "max"
    return None
