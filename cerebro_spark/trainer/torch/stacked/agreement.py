"""Finds by trying whether a kernel leaves the bits of single members when it computes them stacked.

Reductions and products go through other code for other shapes. Where a stacked call and single ones disagree on random
numbers, members are computed one after another.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

import torch

_SEED, _TRIES = 13, 3
# A prime: the numbers of members that are longer than this do not begin at the same place.
_DRAWN = 1_048_573
_known: dict[Any, bool] = {}


def agree(
    key: Any,
    stacked: Callable[..., torch.Tensor],
    single: Callable[..., torch.Tensor],
    likes: Sequence[torch.Tensor],
    width: int,
) -> bool:
    """Whether both leave the same bits for random numbers. It is found once a process.

    Args:
        key: What is computed, and with which options.
        stacked: Computes all members, from tensors with a row a member.
        single: Computes one member.
        likes: Tensors of the shapes, layouts and dtypes of one member.
        width: The number of members.
    """
    layouts = tuple((like.shape, like.stride(), like.dtype) for like in likes)
    whole = key, layouts, width, torch.get_num_threads()
    if whole not in _known:
        numbers = _RandomNumbers()
        tries = ([numbers.like(each, width) for each in likes] for _ in range(_TRIES))
        _known[whole] = all(_is_same(stacked, single, parts, width) for parts in tries)
    return _known[whole]


def _is_same(stacked: Any, single: Any, parts: Sequence[torch.Tensor], width: int) -> bool:
    together = stacked(*parts)
    alone = [single(*(part[row].clone() for part in parts)) for row in range(width)]
    return all(torch.equal(own, one) for own, one in zip(together, alone, strict=True))


class _RandomNumbers:
    """Gives copies of random numbers that were drawn once: drawing takes much longer than what is tried with them."""

    def __init__(self) -> None:
        self._given = 0

    def like(self, like: torch.Tensor, width: int) -> torch.Tensor:
        """Return random numbers with a row a member, each in the layout of `like`."""
        sizes = [1 if step == 0 else size for size, step in zip(like.shape, like.stride(), strict=True)]
        length = 1 + sum((size - 1) * step for size, step in zip(sizes, like.stride(), strict=True))
        made = self._take(width * length, like.dtype)
        return made.as_strided((width, *sizes), (length, *like.stride())).expand(width, *like.shape)

    def _take(self, count: int, dtype: torch.dtype) -> torch.Tensor:
        first, drawn = self._given % _DRAWN, _draw(dtype)
        self._given += count
        times = -(-(first + count) // _DRAWN)
        source = drawn.repeat(times) if times > 1 else drawn
        return source[first : first + count].clone()


@cache
def _draw(dtype: torch.dtype) -> torch.Tensor:
    """Return the random numbers; all bits of each are random, whatever the dtype."""
    if not dtype.is_floating_point:
        raise ValueError(f"there are no random numbers of the kind {dtype}")
    drawn = torch.empty(_DRAWN, dtype=torch.float64, device="cpu")
    return drawn.normal_(generator=torch.Generator().manual_seed(_SEED)).to(dtype)
