"""Puts a foreign module together with an optimizer and a loss. It is loaded only where models are made."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch.nn import functional

from cerebro_spark.trainer import TorchModel

LARGE = 20_000_000


def trained(
    module: Any,
    params: Mapping[str, Any],
    loss: Any = None,
    optimizer: Any = None,
    scheduler: Any = None,
    measured: bool = True,
) -> TorchModel:
    """A TorchModel, with accuracy where it is `measured`. Large ones get SGD, which keeps little beside the weights."""
    if optimizer is None:
        size = sum(p.numel() for p in module.parameters() if not torch.nn.parameter.is_lazy(p))
        kind = torch.optim.SGD if size > LARGE else torch.optim.AdamW
        optimizer = kind([p for p in module.parameters() if p.requires_grad], lr=params["lr"])
    loss = torch.nn.CrossEntropyLoss() if loss is None else loss
    metrics = {"accuracy": accuracy} if measured else {}
    return TorchModel(module, optimizer, loss, metrics, lr_scheduler=scheduler)


def logits(output: Any) -> torch.Tensor:
    """The classes' scores in whatever a foreign model returns: a tensor, a tuple of heads, or a mapping."""
    if isinstance(output, torch.Tensor):
        return output
    if isinstance(output, Mapping):
        scores: torch.Tensor = output["logits"]
        return scores
    first: torch.Tensor = output[0]
    return first


def accuracy(output: Any, label: torch.Tensor) -> torch.Tensor:
    return logits(output).argmax(-1) == label


def of_logits(output: Any, label: torch.Tensor) -> torch.Tensor:
    return functional.cross_entropy(logits(output), label)


def of_all_heads(output: Any, label: torch.Tensor) -> torch.Tensor:
    """Auxiliary heads count as well where there are any: in training, but not in evaluation."""
    heads = [output] if isinstance(output, torch.Tensor) else [head for head in output if head is not None]
    weights = [1.0, *[0.3] * (len(heads) - 1)]
    return torch.stack([w * functional.cross_entropy(h, label) for w, h in zip(weights, heads, strict=True)]).sum()


def told_inside(output: Any, label: torch.Tensor) -> torch.Tensor:
    """The loss that the model itself worked out from the labels it was given."""
    inside: torch.Tensor = output["loss"]
    return inside


class Scores(torch.nn.Module):
    """Calls a model and hands on one of its tensors, under whatever name its input goes."""

    def __init__(self, model: torch.nn.Module, takes: str, pick: Callable[[Any], torch.Tensor] = logits) -> None:
        super().__init__()
        self.model = model
        self.takes = takes
        self.pick = pick

    def forward(self, given: torch.Tensor) -> torch.Tensor:
        return self.pick(self.model(**{self.takes: given}))


class Headed(torch.nn.Module):
    """A body that gives features, with a linear head on their mean."""

    def __init__(self, model: torch.nn.Module, takes: str, width: int, classes: int) -> None:
        super().__init__()
        self.model = model
        self.takes = takes
        self.head = torch.nn.Linear(width, classes)

    def forward(self, given: torch.Tensor) -> torch.Tensor:
        features = self.model(**{self.takes: given})[0]
        scores: torch.Tensor = self.head(features.reshape(len(features), -1, features.shape[-1]).mean(1))
        return scores


def last_scores(output: Any) -> torch.Tensor:
    """Of a language model, the scores of the first few words at the last place."""
    return logits(output)[:, -1, :4]


class PairScores(torch.nn.Module):
    """A translator that is given both sides; what it keeps for generating is not asked for."""

    def __init__(self, model: torch.nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, input_ids: torch.Tensor, decoder_input_ids: torch.Tensor) -> torch.Tensor:
        return last_scores(self.model(input_ids=input_ids, decoder_input_ids=decoder_input_ids, use_cache=False))


class RecurrentHead(torch.nn.Module):
    """An LSTM with normalised weights over a body's features."""

    def __init__(self, model: torch.nn.Module, width: int, classes: int) -> None:
        super().__init__()
        self.model = model
        self.lstm = torch.nn.LSTM(width, 8, num_layers=2, dropout=0.2, batch_first=True, bidirectional=True)
        self.head = torch.nn.utils.parametrizations.weight_norm(torch.nn.Linear(16, classes))

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        features, _ = self.lstm(self.model(input_ids=tokens)[0])
        scores: torch.Tensor = self.head(features[:, -1])
        return scores


class Turned(torch.nn.Module):
    """Swaps the last two axes."""

    def forward(self, given: torch.Tensor) -> torch.Tensor:
        return given.transpose(1, 2)
