"""What outputs mean: found from the loss or told, right in numbers, and never guessed."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
import pytest

from cerebro_spark.errors import ConfigurationError, DataError
from cerebro_spark.result.decoding import Meaning, OutputDecoder, choose_decoder, decode_outputs, find_meaning


def torch_losses() -> list[tuple[Any, Meaning | None]]:
    from torch import nn
    from torch.nn import functional as f

    class Focal(nn.CrossEntropyLoss):
        """Somebody's own, made of one that is known."""

    class Own(nn.Module):
        """Somebody's own, of which nothing is known."""

    return [
        (nn.BCEWithLogitsLoss(), Meaning("binary", "logits")),
        (nn.BCELoss(), Meaning("binary", "probabilities")),
        (nn.CrossEntropyLoss(label_smoothing=0.1), Meaning("multiclass", "logits")),
        (nn.NLLLoss(), Meaning("multiclass", "log_probabilities")),
        (nn.MultiMarginLoss(), Meaning("multiclass", "margins")),
        (Focal(), Meaning("multiclass", "logits")),
        (f.cross_entropy, Meaning("multiclass", "logits")),
        (partial(f.binary_cross_entropy_with_logits, reduction="none"), Meaning("binary", "logits")),
        (f.binary_cross_entropy, Meaning("binary", "probabilities")),
        (f.nll_loss, Meaning("multiclass", "log_probabilities")),
        (nn.MSELoss(), None),
        (f.mse_loss, None),
        (Own(), None),
        (lambda output, label: 0, None),
        (None, None),
    ]


def test_what_is_known_of_pytorchs_losses() -> None:
    for loss, expected in torch_losses():
        assert find_meaning(loss) == expected, loss


def keras_losses() -> list[tuple[Any, Meaning | None]]:
    import keras

    losses = keras.losses
    return [
        ("binary_crossentropy", Meaning("binary", "probabilities")),
        ("BinaryCrossentropy", Meaning("binary", "probabilities")),
        ("bce", Meaning("binary", "probabilities")),
        (["binary_focal_crossentropy"], Meaning("binary", "probabilities")),
        ({"out": "sparse_categorical_crossentropy"}, Meaning("multiclass", "probabilities")),
        (losses.BinaryCrossentropy(from_logits=True), Meaning("binary", "logits")),
        (losses.BinaryCrossentropy(), Meaning("binary", "probabilities")),
        (losses.SparseCategoricalCrossentropy(from_logits=True), Meaning("multiclass", "logits")),
        (losses.CategoricalCrossentropy(), Meaning("multiclass", "probabilities")),
        (losses.CategoricalFocalCrossentropy(from_logits=True), Meaning("multiclass", "logits")),
        (losses.binary_crossentropy, Meaning("binary", "probabilities")),
        (partial(losses.sparse_categorical_crossentropy, from_logits=True), Meaning("multiclass", "logits")),
        ("mse", None),
        (losses.Huber(), None),
        (["bce", "mse"], None),
    ]


@pytest.mark.slow
def test_what_is_known_of_keras_losses() -> None:
    for loss, expected in keras_losses():
        assert find_meaning(loss) == expected, loss


def test_a_loss_that_does_not_fit_the_output_says_nothing() -> None:
    """Several labels a row, a picture of classes: no class of the row."""
    assert choose_decoder(None, "binary_crossentropy", (4,)) is None
    assert choose_decoder(None, "categorical_crossentropy", (8, 8, 3)) is None
    assert choose_decoder(None, "categorical_crossentropy", ()) is None
    assert choose_decoder(None, "mse", ()) is None


@pytest.mark.parametrize(
    ("kind", "loss", "shape", "expected"),
    [
        ("regression", "bce", (), None),
        ("binary", "bce", (), OutputDecoder("binary", "probabilities")),
        ("binary", None, (), OutputDecoder("binary", "probabilities", told=True)),
        ("binary_logits", None, (), OutputDecoder("binary", "logits")),
        ("binary", None, (2,), OutputDecoder("multiclass", "probabilities", told=True)),
        ("binary", "categorical_crossentropy", (2,), OutputDecoder("multiclass", "probabilities")),
        ("binary", "categorical_crossentropy", (), OutputDecoder("binary", "probabilities", told=True)),
        ("multiclass", None, (3,), OutputDecoder("multiclass", "probabilities", told=True)),
        ("multiclass_logits", None, (3,), OutputDecoder("multiclass", "logits")),
        ("multiclass", "bce", (3,), OutputDecoder("multiclass", "margins")),
    ],
)
def test_what_is_told_comes_first(kind: str, loss: Any, shape: tuple[int, ...], expected: OutputDecoder | None) -> None:
    assert choose_decoder(kind, loss, shape) == expected


@pytest.mark.parametrize(
    ("kind", "shape", "message"),
    [
        ("binary", (3,), r"one value or two a row, but .* shape \(3,\): say kind='multiclass'"),
        ("multiclass_logits", (), "a value a class a row, but the model puts out one value: say kind='binary_logits'"),
        ("multiclass", (4, 4, 2), r"shape \(4, 4, 2\): say kind='regression', for the output as it is"),
        ("classes", (), "`kind` is 'classes', but must be one of"),
    ],
)
def test_what_is_told_must_fit(kind: str, shape: tuple[int, ...], message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        choose_decoder(kind, None, shape)


def test_logits_and_probabilities_say_the_same() -> None:
    logits = np.array([-800.0, -30.0, -1.5, 0.0, 2.0, 30.0, 800.0])
    found = OutputDecoder("binary", "logits").decode(logits)
    assert found["prediction"].tolist() == [0, 0, 0, 0, 1, 1, 1]
    assert found["rawPrediction"][:, 1].tolist() == logits.tolist()
    assert found["rawPrediction"][:, 0].tolist() == (-logits).tolist()
    np.testing.assert_allclose(found["probability"].sum(axis=1), 1)
    np.testing.assert_allclose(found["probability"][1:6, 1], 1 / (1 + np.exp(-logits[1:6])), rtol=1e-12)
    again = OutputDecoder("binary", "probabilities").decode(found["probability"][:, 1])
    assert again["prediction"].tolist() == found["prediction"].tolist()
    np.testing.assert_allclose(again["rawPrediction"][1:5, 1], logits[1:5], rtol=1e-6)
    assert np.isfinite(again["rawPrediction"]).all(), "a probability that was rounded to 0 or 1 has a logit too"


def test_several_classes() -> None:
    logits = np.array([[1.0, 2.0, 0.5], [900.0, 0.0, -900.0]], "float32")
    found = OutputDecoder("multiclass", "logits").decode(logits)
    expected = np.exp(logits[0].astype("float64")) / np.exp(logits[0].astype("float64")).sum()
    np.testing.assert_allclose(found["probability"][0], expected)
    assert found["prediction"].tolist() == [1, 0]
    np.testing.assert_array_equal(found["rawPrediction"], logits)
    logs = OutputDecoder("multiclass", "log_probabilities").decode(np.log(found["probability"][:1]))
    np.testing.assert_allclose(logs["probability"], found["probability"][:1])
    plain = OutputDecoder("multiclass", "probabilities").decode(found["probability"])
    np.testing.assert_allclose(plain["probability"], found["probability"])
    assert np.isfinite(plain["rawPrediction"]).all()
    assert set(OutputDecoder("multiclass", "margins").decode(logits)) == {"prediction", "rawPrediction"}


@pytest.mark.parametrize("scale", ["logits", "probabilities"])
def test_a_lost_model_is_in_no_class(scale: Any) -> None:
    """NaN is neither above 0.5 nor below: class 0 would be a lie."""
    two = OutputDecoder("binary", scale).decode(np.array([np.nan, 0.9]))
    assert np.isnan(two["prediction"]).tolist() == [True, False]
    many = OutputDecoder("multiclass", scale).decode(np.array([[0.2, np.nan], [0.1, 0.9]]))
    assert np.isnan(many["prediction"]).tolist() == [True, False]


def test_told_probabilities_must_be_some() -> None:
    two, many = (OutputDecoder(family, "probabilities", told=True) for family in ("binary", "multiclass"))
    two.decode(np.array([0.0, 1.0]))
    many.decode(np.array([[0.2, 0.8]]))
    with pytest.raises(DataError, match=r"it put out -1.5: say kind='binary_logits' if these are logits"):
        two.decode(np.array([0.2, -1.5]))
    with pytest.raises(DataError, match=r"add up to 0.5: say kind='multiclass_logits'"):
        many.decode(np.array([[0.2, 0.3]]))


def test_outputs_that_are_no_classes_stay_as_they_are() -> None:
    one = decode_outputs(None, {"out": np.array([1.5], "float32")})
    assert one["prediction"].dtype == np.float64
    assert one["prediction"].tolist() == [1.5]
    several = decode_outputs(None, {"out": np.ones((2, 3), "float32")})
    assert several["prediction"].dtype == np.float32
    both = {"a": np.ones(2), "probability": np.ones((2, 2))}
    assert decode_outputs(None, both) == both
