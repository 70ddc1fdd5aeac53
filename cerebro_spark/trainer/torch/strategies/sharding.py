"""Has a built model lie in parts at the members of a group for the time of a unit, by PyTorch's FSDP.

The parameters of the module are replaced by those of FSDP, and afterwards put back: the model, its optimizer and its
checkpoint are then as if it had never been in parts. It takes no step.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch.distributed._composable_state import _module_state_mapping
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.distributed.fsdp._fully_shard._fully_shard import cls_to_fsdp_cls
from torch.distributed.tensor import DTensor

from cerebro_spark.trainer.group import GroupRefused
from cerebro_spark.trainer.torch.built_model import BuiltTorchModel
from cerebro_spark.trainer.torch.links import TorchLinks
from cerebro_spark.trainer.torch.strategies.shard_links import linked, require_agreement
from cerebro_spark.trainer.torch.strategies.shard_rules import find_parts

_NARROW = (torch.float16, torch.bfloat16)
_MIXED = "DTensor"
"""What PyTorch says, among other things, if somebody computes with a part of a parameter."""
_HOST = torch.device("cpu")


@contextmanager
def sharded(model: BuiltTorchModel, links: TorchLinks) -> Iterator[ShardedModel]:
    """Have a model lie in parts inside the block. All members do so at a time, with the same model.

    If the block ends well the model has all that was learned; else it is as it was before.

    Args:
        model: The built model, for which there is no obstacle.
        links: The links to the others.
    """
    with ExitStack() as stack:
        lending = [False]
        next_mesh = stack.enter_context(linked(links, model.parameters[0].device, lending))
        module = model.model.module
        before = _Structure(module)
        places = before.find(model.parameters)
        stack.callback(before.put_back)
        for _, part in find_parts(module):
            # Those of parts inside of it are in parts already.
            own = [each for each in part.parameters() if not isinstance(each, DTensor)]
            trained = next((each.dtype for each in own if each.requires_grad), None)
            policy = MixedPrecisionPolicy(reduce_dtype=torch.float32 if trained in _NARROW else None)
            made: Any = fully_shard(part, mesh=next_mesh(), mp_policy=policy)
            # Each member weighs its loss by its share of the batch: gradients are added up and divided by nothing.
            made.set_force_sum_reduction_for_comms(True)
            made.set_gradient_divide_factor(1.0)
        before.note_added()
        parts = ShardedModel(model, links, [getattr(owner, name) for owner, name in places], lending)
        stack.callback(parts.put_back)
        before.set_aside()
        yield parts
        parts.finish()


class ShardedModel:
    """A model that lies in parts.

    Args:
        model: The built model.
        links: The links to the other members.
        shards: For each parameter of the optimizer FSDP's one, of which this member has a part.
        lending: See `ShardLinks`.

    Attributes:
        lending: Its first item is to be True while this member computes with rows that are not in the batch.
        parts: The own part of each parameter, once gradients were taken: the same memory that FSDP gathers from.
    """

    def __init__(
        self, model: BuiltTorchModel, links: TorchLinks, shards: Sequence[torch.Tensor], lending: list[bool]
    ) -> None:
        self.lending = lending
        self.parts: list[torch.Tensor] = []
        self._model = model
        self._links = links
        self._shards = shards
        self._wholes = list(model.parameters)
        self._device = self._wholes[0].device
        self._states: dict[torch.Tensor, dict[str, Any]] = {}
        """The state of the optimizer from before the unit."""

    @torch.no_grad()
    def take_gradients(self) -> None:
        """Have the optimizer find the gradients of this member's parts. Raises GroupRefused for what has none."""
        self._require_same_gradients()
        if not self.parts:
            self._hand_over()
        for shard, part, whole in zip(self._shards, self.parts, self._wholes, strict=True):
            if shard.requires_grad != whole.requires_grad:
                raise GroupRefused("it freezes or thaws a parameter in the middle of a unit")
            if _part_of(shard).data_ptr() != part.data_ptr():
                raise AssertionError("FSDP has moved a part of a parameter")
            part.grad = _part_of(shard.grad) if shard.grad is not None and part.numel() else None

    @contextmanager
    def naming_readers(self) -> Iterator[None]:
        """Say of an error inside the block, which computes, that it comes of parameters that are elsewhere."""
        try:
            yield
        except (RuntimeError, NotImplementedError) as error:
            if _MIXED not in str(error):
                raise
            raise GroupRefused(
                "it reads parameters of a part of its model from outside of it, where they are not there: read them in"
                " the `forward` of the module that has them"
            ) from error

    def forget_gradients(self) -> None:
        """Have no parameter have a gradient."""
        self._model.model.module.zero_grad()
        for part in self.parts:
            part.grad = None

    def _require_same_gradients(self) -> None:
        """Raise GroupRefused, as all members do, if some have a gradient of a parameter and others have none."""
        require_agreement(self._links, "gradients")
        there = torch.tensor([shard.grad is not None for shard in self._shards], dtype=torch.int64)
        self._links.sum(there)
        if any(count not in (0, self._links.size) for count in there.tolist()):
            raise GroupRefused("some of its parameters have gradients by some rows only")

    # To parts and back

    def _hand_over(self) -> None:
        """Have the optimizer step parts of parameters from now on. Before the first step FSDP may still move them."""
        optimizer = self._model.model.optimizer
        self.parts = [
            torch.nn.Parameter(_part_of(shard).detach(), requires_grad=whole.requires_grad)
            for shard, whole in zip(self._shards, self._wholes, strict=True)
        ]
        for whole, part in zip(self._wholes, self.parts, strict=True):
            if whole in optimizer.state:
                self._states[whole] = optimizer.state.pop(whole)
                own = {key: self._cut(value, whole) for key, value in self._states[whole].items()}
                if part.numel():  # what has no number is never stepped, so that its counts would be old ones
                    optimizer.state[part] = own
        self._show(self.parts)

    def _cut(self, value: Any, whole: torch.Tensor) -> Any:
        """Return this member's part of something that the optimizer keeps of a parameter."""
        if not isinstance(value, torch.Tensor):
            return value
        if value.ndim == 0:
            return value.clone()
        if value.shape != whole.shape:
            raise GroupRefused(f"its optimizer keeps something of shape {tuple(value.shape)} for a parameter")
        rows = _rows_of_part(whole, self._links.size)
        part = value[self._links.rank * rows : (self._links.rank + 1) * rows]
        return part.to(self._device, copy=True)

    def _show(self, parameters: Sequence[torch.Tensor]) -> None:
        """Have the optimizer see these parameters, in its groups."""
        left = iter(parameters)
        for group in self._model.model.optimizer.param_groups:
            group["params"] = [next(left) for _ in group["params"]]

    def put_back(self) -> None:
        """Have the optimizer see whole parameters again, with the state that it had; unless it does already."""
        if not self.parts:
            return
        states = self._model.model.optimizer.state
        for part in self.parts:
            states.pop(part, None)
        states.update(self._states)
        self._show(self._wholes)
        self.parts, self._states = [], {}

    @torch.no_grad()
    def finish(self) -> None:
        """Give the model all that its members have learned."""
        if not self.parts:
            return  # no step was taken
        states = self._model.model.optimizer.state
        learned = [dict(states.get(part, {})) for part in self.parts]
        described = json.dumps([{key: _describe(value) for key, value in own.items()} for own in learned])
        # A member may have no number of a parameter with few rows. Rank 0 has some of every parameter.
        kinds = json.loads(self._links.gather(described.encode())[0])
        wholes = list(zip(self._wholes, self.parts, learned, kinds, strict=True))
        collected: list[dict[str, Any]] = []
        for whole, part, own, kind in wholes:
            whole.data.copy_(self._collect(part, whole))
            collected.append({key: self._collect_state(own.get(key), said, whole) for key, said in kind.items()})
        self.put_back()
        for whole, state in zip(self._wholes, collected, strict=True):
            if state or whole in states:
                states[whole] = state

    def _collect_state(self, own: Any, kind: Any, whole: torch.Tensor) -> Any:
        """Return what the optimizer keeps of a whole parameter.

        Args:
            own: What it keeps of this member's part; None if it has none.
            kind: What rank 0 has said of it.
            whole: The parameter.
        """
        match kind:
            case ["part", dtype]:
                empty = torch.empty(0, dtype=getattr(torch, dtype), device=self._device)
                found = self._collect(empty if own is None else own, whole)
                return found.to(_HOST) if self._model.keeps_state_on_host else found
            case ["number", dtype, value, device]:
                return torch.tensor(value, dtype=getattr(torch, dtype), device=device) if own is None else own
            case ["plain", value]:
                return value if own is None else own
        raise AssertionError(f"{kind} describes nothing")

    def _collect(self, part: torch.Tensor, whole: torch.Tensor) -> torch.Tensor:
        """Return a whole tensor of the shape of a parameter, of which members have parts."""
        rows = _rows_of_part(whole, self._links.size)
        padded = part.new_zeros((rows, *whole.shape[1:]))
        if len(part):
            padded[: len(part)] = part
        gathered = padded.new_empty((rows * self._links.size, *whole.shape[1:]))
        self._links.gather_parts(gathered, padded)
        return gathered[: len(whole)].clone()


@dataclass(frozen=True, slots=True)
class _Before:
    """What a module was before it was sharded: its class, its parameters, and the names of its attributes."""

    kind: type
    parameters: dict[str, torch.Tensor | None]
    names: set[str]


class _Structure:
    """What the modules of a model were before they were sharded."""

    def __init__(self, module: torch.nn.Module) -> None:
        self._parts: dict[torch.nn.Module, _Before] = {
            part: _Before(type(part), dict(part._parameters), set(vars(part))) for part in module.modules()
        }
        self._added: dict[torch.nn.Module, set[str]] = {}
        self._homes: list[tuple[torch.Tensor, torch.device]] = []

    def find(self, parameters: Sequence[torch.Tensor]) -> list[tuple[torch.nn.Module, str]]:
        """Return where each parameter is: a module, and its name there."""
        places = {
            id(parameter): (part, name)
            for part, before in self._parts.items()
            for name, parameter in before.parameters.items()
        }
        return [places[id(parameter)] for parameter in parameters]

    def note_added(self) -> None:
        """Take notice of what FSDP has added; what is added from now on is the user's."""
        self._added = {part: set(vars(part)) - before.names for part, before in self._parts.items()}

    def set_aside(self) -> None:
        """Free the memory that whole parameters take on a GPU; they are on the host until they are put back."""
        for before in self._parts.values():
            for parameter in before.parameters.values():
                if parameter is not None and parameter.device.type == "cuda":
                    self._homes.append((parameter, parameter.device))
                    parameter.data = parameter.data.to(_HOST)

    def put_back(self) -> None:
        """Have all modules be as they were, but for the values of their parameters, and what others have changed."""
        for parameter, device in self._homes:
            parameter.data = parameter.data.to(device)
        for part, before in self._parts.items():
            part.__class__ = before.kind
            for name in self._added.get(part, set(vars(part)) - before.names):
                vars(part).pop(name, None)
            _remove_hooks(part)
            _module_state_mapping.pop(part, None)
            cls_to_fsdp_cls.pop(before.kind, None)  # it would keep a user's class for ever
            for name, own in before.parameters.items():
                if part._parameters.get(name) is not own:
                    _put_parameter(part, name, own)


def _put_parameter(part: torch.nn.Module, name: str, parameter: Any) -> None:
    """Put a parameter where it was; modules that note their parameters elsewhere, such as an LSTM, do so again."""
    if type(part).__setattr__ is torch.nn.Module.__setattr__:
        part._parameters[name] = parameter
    else:
        setattr(part, name, parameter)


def _remove_hooks(part: torch.nn.Module) -> None:
    """Remove what FSDP has registered with a module. It takes back only some of that itself."""
    kept = [hooks for name, hooks in vars(part).items() if "hooks" in name and isinstance(hooks, dict)]
    numbers = {number for hooks in kept for number, hook in hooks.items() if _is_of_fsdp(hook)}
    for hooks in kept:
        for number in numbers & hooks.keys():
            del hooks[number]


def _is_of_fsdp(hook: Any) -> bool:
    return str(getattr(hook, "__module__", "")).startswith("torch.distributed.")


def _part_of(tensor: Any) -> torch.Tensor:
    """Return the part of a tensor that this process has."""
    with torch.no_grad():
        part: torch.Tensor = tensor.to_local()
    return part


def _rows_of_part(whole: torch.Tensor, size: int) -> int:
    """Return how many rows of a parameter each member has, but for the last ones, as FSDP cuts it."""
    return -(-len(whole) // size)


def _describe(value: Any) -> list[Any]:
    """Describe something that an optimizer keeps, so that it can be made where there is none."""
    if not isinstance(value, torch.Tensor):
        return ["plain", value]
    dtype = str(value.dtype).removeprefix("torch.")
    return ["number", dtype, value.item(), value.device.type] if value.ndim == 0 else ["part", dtype]
