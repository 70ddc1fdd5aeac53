"""The keys of a batch, said where somebody asked for one that is not there. A batch itself stays a plain dict.

One that knew how to answer would be a leaf to the tree functions of Keras and PyTorch, which take dicts alone.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from cerebro_spark.errors import ConfigurationError
from cerebro_spark.trainer.feed import Batch, Columns


def explained(error: BaseException, columns: Columns, params: Mapping[str, Any]) -> str:
    """A line for whoever reads of a key that was not there, beginning with a line end; nothing for other errors.

    >>> explained(KeyError("age"), Columns({"features": None}, {"label": None}), {"lr": 0.1}).strip()
    "KeyError: 'age'. A batch has the keys 'features', 'label'; params has 'lr'"
    """
    if not isinstance(error, KeyError):
        return ""
    there = f"A batch has the keys {_listed(columns.names)}; params has {_listed(params) or 'none'}"
    return f"\nKeyError: {', '.join(map(repr, error.args))}. {there}"


def complete(batches: Iterable[Batch], names: Iterable[str]) -> Iterator[Batch]:
    """The batches that `input_fn` returned. Raises ConfigurationError for one that lacks what the model is given."""
    wanted = list(names)
    for batch in batches:
        if not isinstance(batch, Mapping):
            raise ConfigurationError(
                f"input_fn returned {type(batch).__name__}, but must return a batch, a dict of arrays, such as"
                " {**batch, 'features': batch['features'] / 255}"
            )
        missing = [name for name in wanted if name not in batch]
        if missing:
            raise ConfigurationError(
                f"input_fn returned a batch without {_listed(missing)}: it has the keys {_listed(batch)}, but needs"
                f" {_listed(wanted)}; return {{**batch, ...}}, with all that came in"
            )
        yield batch


def _listed(names: Iterable[str]) -> str:
    return ", ".join(map(repr, names))
