"""Computes the blocks of a model again for their gradients, instead of keeping what they computed on the way.

The model shows nothing of it: for a while its blocks have another `forward`, and afterwards the one that they had.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial, wraps
from typing import Any

import torch
from torch.utils._pytree import tree_leaves
from torch.utils.checkpoint import checkpoint

from cerebro_spark.trainer.torch.strategies.blocks import Block
from cerebro_spark.trainer.torch.strategies.moment import DrawStates, Moment
from cerebro_spark.trainer.torch.strategies.refusal import StrategyRefused

_PLAIN = (torch.Tensor, torch.dtype, torch.device, bool, int, float, complex, str, type(None))


class Recomputing:
    """Has the blocks of a model computed again.

    Args:
        blocks: The blocks.
        device: The device of the model.
    """

    def __init__(self, blocks: Sequence[Block], device: torch.device) -> None:
        self._blocks = blocks
        self._draws = DrawStates(device)

    @contextmanager
    def in_force(self) -> Iterator[None]:
        """Give all blocks a `forward` that is computed again, for a while."""
        before: list[tuple[torch.nn.Module, Any]] = []
        try:
            for block in self._blocks:
                before.append((block.module, vars(block.module).get("forward")))
                vars(block.module)["forward"] = self._make_forward(block)
            yield
        finally:
            for module, forward in before:
                if forward is None:
                    del vars(module)["forward"]
                else:
                    vars(module)["forward"] = forward

    def _make_forward(self, block: Block) -> Callable[..., Any]:
        name = f"{type(block.module).__name__} {block.name!r}"
        own, modules = block.module.forward, list(block.module.modules())
        runs = [([part for layer in run for part in layer.modules()], partial(_run_layers, run)) for run in block.runs]

        @wraps(own)
        def forward(*args: Any, **kwargs: Any) -> Any:
            if not runs:
                return self._run(name, modules, own, *args, **kwargs)
            (value,) = args or kwargs.values()
            for parts, function in runs:
                value = self._run(name, parts, function, value)
            return value

        return forward

    def _run(
        self,
        name: str,
        modules: Sequence[torch.nn.Module],
        function: Callable[..., Any],
        *args: Any,
        **kwargs: Any,
    ) -> Any:
        """Call a function, and once more when its gradients are computed, from the same state of all it draws from."""
        if not torch.is_grad_enabled():
            return function(*args, **kwargs)
        given = _list_given(name, (args, kwargs))
        moment, versions = Moment(self._draws, modules), [tensor._version for tensor in given]

        def again() -> AbstractContextManager[None]:
            _check_unchanged(name, given, versions)
            return moment.again()

        # As positional arguments: PyTorch does not look for the device among the others.
        call = partial(_call, function, tuple(kwargs))
        contexts = partial(_give_contexts, again)
        result = checkpoint(
            call, *args, *kwargs.values(), use_reentrant=False, preserve_rng_state=False, context_fn=contexts
        )
        _check_unchanged(name, given, versions)
        moment.end()
        return result


def _give_contexts(again: Callable[[], AbstractContextManager[None]]) -> tuple[Any, Any]:
    return nullcontext(), _EachTime(again)


class _EachTime:
    """A context that can be entered several times: gradients of gradients compute a block again more than once.

    Args:
        enter: Returns a new context.
    """

    def __init__(self, enter: Callable[[], AbstractContextManager[None]]) -> None:
        self._enter = enter
        self._entered: list[AbstractContextManager[None]] = []

    def __enter__(self) -> None:
        context = self._enter()
        context.__enter__()
        self._entered.append(context)

    def __exit__(self, *error: Any) -> bool | None:
        return self._entered.pop().__exit__(*error)


def _call(function: Callable[..., Any], names: tuple[str, ...], *values: Any) -> Any:
    count = len(values) - len(names)
    return function(*values[:count], **dict(zip(names, values[count:], strict=True)))


def _run_layers(layers: Sequence[torch.nn.Module], value: Any) -> Any:
    for layer in layers:
        value = layer(value)
    return value


def _list_given(name: str, given: Any) -> list[torch.Tensor]:
    """Return the tensors that a block is given. Raises StrategyRefused for what may be another the next time."""
    args, kwargs = given
    for value in (*args, *kwargs.values()):
        if not _is_fixed(value):
            raise StrategyRefused(
                f"its {name} is given a {type(value).__name__}, which may have changed when it is computed again: give"
                " it tensors, numbers or tuples of these (and a model of transformers use_cache=False)"
            )
    return [leaf for leaf in tree_leaves(given) if isinstance(leaf, torch.Tensor)]


def _is_fixed(value: Any) -> bool:
    return all(map(_is_fixed, value)) if isinstance(value, tuple) else isinstance(value, _PLAIN)


def _check_unchanged(name: str, tensors: Sequence[torch.Tensor], versions: Sequence[int]) -> None:
    if [tensor._version for tensor in tensors] != list(versions):
        raise StrategyRefused(
            f"what its {name} is given is changed in place afterwards, so that it cannot be computed again: write"
            " `x = x + y` instead of `x += y`, and inplace=False for its first layer"
        )
