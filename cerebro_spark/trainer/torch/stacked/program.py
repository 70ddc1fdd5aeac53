"""The step of all members as one Python function, made from the traced step of one of them.

Each call of the trace becomes one call for all members if a rule says how, else one call a member. Between calls a
value is a tensor with a row a member, a list with a value a member, or one value that all of them share.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Collection, Mapping, Sequence
from itertools import count, islice
from typing import Any, Literal, NamedTuple

import torch
from torch.fx import GraphModule, Node

from cerebro_spark.trainer.torch.stacked.agreement import agree
from cerebro_spark.trainer.torch.stacked.calls import list_numbers
from cerebro_spark.trainer.torch.stacked.rules import Invocation, Lifted, Rule, find_rule, name_of, value_of

Form = Literal["stacked", "listed", "shared"]
Program = Callable[[Sequence[torch.Tensor], Sequence[torch.Generator], Mapping[int, Sequence[float]]], list[Any]]

# Larger values of looped calls are not copied into one tensor just to save calls.
_LARGE = 1 << 14
_aten = torch.ops.aten
# Kernels that get lengths as numbers, which their callers may have read from tensors.
_TAKES_LENGTHS = ("_ctc_loss", "_pack_padded_sequence")


def make_program(graph: GraphModule, width: int, varying: Collection[int] = ()) -> Program:
    """Return the function of a traced step for that many members.

    It takes the inputs of the graph, each with a row a member, the generator of each member, and for each of the
    `varying` fractions of the graph, as `list_numbers` finds them, that of each member. It returns the outputs:
    tensors with a row a member, or lists with one of each.

    Raises:
        ValueError: The step draws random numbers, or changes tensors, in a way that cannot be told by members.
    """
    return _Writer(graph, width, varying).write()


class _Writer:
    """Writes the function line by line."""

    def __init__(self, graph: GraphModule, width: int, varying: Collection[int]) -> None:
        self._graph, self._width = graph, width
        self._numbers = _find_varying(graph, varying)
        self._lines: list[str] = []
        self._scope: dict[str, Any] = {"stack": torch.stack, "tensor": torch.tensor, "zip": zip}
        self._forms: dict[Node, Form] = {}
        self._names: dict[tuple[Node, Form], str] = {}
        self._index = {node: number for number, node in enumerate(graph.graph.nodes)}
        self._last_uses = find_last_uses(graph)

    def write(self) -> Program:
        inputs = [node for node in self._graph.graph.nodes if node.op == "placeholder"]
        for number, node in enumerate(inputs):
            self._define(node, "stacked", f"inputs[{number}]")
        for node in self._graph.graph.nodes:
            if node.op == "get_attr":
                self._write_constant(node)
            elif node.op == "call_function":
                self._write_node(node)
            elif node.op == "output":
                self._lines.append(f"return [{', '.join(self._write_output(each) for each in node.args[0])}]")
            self._free(node)
        source = "\n    ".join(["def step(inputs, generators, numbers):", *self._lines])
        exec(compile(source, "<stacked step>", "exec"), self._scope)
        program: Program = self._scope["step"]
        return program

    # Values

    def _define(self, node: Node, form: Form, expression: str) -> None:
        self._forms[node] = form
        self._lines.append(f"{self._name(node, form)} = {expression}")

    def _name(self, node: Node, form: Form) -> str:
        return self._names.setdefault((node, form), f"{form[:2]}{self._index[node]}")

    def _constant(self, value: Any) -> str:
        name = f"c{len(self._scope)}"
        self._scope[name] = value
        return name

    def _as(self, node: Node, form: Form) -> str:
        """Return the name of a value in this form, made from the form that it has."""
        own = self._forms[node]
        if own == "shared" or (node, form) in self._names:
            return self._names[node, "shared" if own == "shared" else form]
        name, source = f"{form[:2]}{self._index[node]}", self._names[node, own]
        self._lines.append(f"{name} = {source}.unbind(0)" if form == "listed" else f"{name} = stack({source})")
        self._names[node, form] = name
        return name

    def _free(self, node: Node) -> None:
        """Let go of values that no later call needs."""
        gone = [name for (own, _), name in self._names.items() if self._last_uses.get(own) is node]
        if gone and node.op != "output":
            self._lines.append(f"del {', '.join(gone)}")

    def _write_constant(self, node: Node) -> None:
        """Take a tensor that the trace holds: the same for all members, or the number of each."""
        value = getattr(self._graph, str(node.target))
        if node not in self._numbers:
            self._define(node, "shared", self._constant(value))
            return
        if any(node in find_changed(user) for user in node.users):
            raise ValueError("a call changes a number that is no parameter or buffer")
        (place,) = self._numbers[node].values()
        self._define(node, "stacked", f"tensor(numbers[{place}], dtype={self._constant(value.dtype)})")

    # Calls

    def _write_node(self, node: Node) -> None:
        if node.target is operator.getitem:
            self._write_item(node)
            return
        if not isinstance(node.target, torch._ops.OpOverload):
            raise ValueError(f"{node.target} is no kernel of PyTorch")
        is_shared = node not in self._numbers and all(self._forms[each] == "shared" for each in node.all_input_nodes)
        if goes_by_data(node) and not is_shared:
            raise ValueError(f"the shape of what {name_of(node)} gives depends on the data")
        if _draws(node):
            self._write_loop(node, _draw_by(node))
        elif is_shared:
            self._write_shared(node)
        else:
            rule = None if node in self._numbers else self._choose_rule(node)
            self._write_loop(node, node.target) if rule is None else self._write_stacked(node, rule.call)
        self._note_change(node)

    def _write_item(self, node: Node) -> None:
        """Take one of the values of a call that gives several."""
        source, place = node.args
        if self._forms[source] == "shared":  # type: ignore[index]
            self._define(node, "shared", f"{self._as(source, 'shared')}[{place}]")  # type: ignore[arg-type]
        else:
            self._define(node, "listed", f"[each[{place}] for each in {self._as(source, 'listed')}]")  # type: ignore[arg-type]

    def _write_shared(self, node: Node) -> None:
        if find_changed(node):
            raise ValueError(f"{name_of(node)} changes a tensor that is no parameter or buffer")
        call = self._render(Invocation(node.target, node.args, node.kwargs), "shared")
        if any(node in find_changed(user) for user in node.users):
            self._define(node, "listed", f"[{call} for _ in range({self._width})]")
        else:
            self._define(node, "shared", call)

    def _write_stacked(self, node: Node, call: Invocation) -> None:
        self._define(node, "stacked", self._render(call, "stacked"))

    def _write_loop(self, node: Node, kernel: Any) -> None:
        """Call the kernel for each member."""
        varying = [each for each in node.all_input_nodes if self._forms[each] != "shared"]
        items = {each: f"x{number}" for number, each in enumerate(varying)}
        sources = [self._as(each, "listed") for each in varying]
        given, numbers = self._name_numbers(node)
        text = self._render_args(*given, "listed", items)
        variables = [*items.values(), *(f"n{number}" for number in numbers)]
        sources += [f"numbers[{number}]" for number in numbers]
        if isinstance(kernel, _Drawing):
            sources, variables = [*sources, "generators"], [*variables, "g"]
            text, kernel = f"{text}, generator=g", kernel.kernel
        source = f"zip({', '.join(sources)})" if len(sources) > 1 else sources[0]
        loop = f"[{self._constant(kernel)}({text}) for {', '.join(variables)} in {source}]"
        changed = find_changed(node)
        if any(self._forms[each] == "shared" for each in changed):
            raise ValueError(f"{name_of(node)} changes a tensor that is no parameter or buffer")
        if changed and changed[0] is node.args[0] and self._forms[changed[0]] == "stacked":
            # The members are views of one tensor, which is what changes.
            self._lines.append(loop)
            self._define(node, "stacked", self._as(changed[0], "stacked"))
        else:
            self._define(node, "listed", loop)

    def _name_numbers(self, node: Node) -> tuple[tuple[Any, Any], list[int]]:
        """Return the arguments of a node, with names for those numbers that differ by member, and which these are."""
        found = self._numbers.get(node, {})
        places = count()

        def rename(value: Any) -> Any:
            if isinstance(value, list | tuple):
                return [rename(each) for each in value]
            if not isinstance(value, float):
                return value
            place = next(places)
            return _Named(f"n{found[place]}") if place in found else value

        args = [rename(value) for value in node.args]
        return (args, {name: rename(value) for name, value in node.kwargs.items()}), list(found.values())

    def _note_change(self, node: Node) -> None:
        """Forget copies in another form once a call has changed something: they may be copies of views of it."""
        if find_changed(node):
            for own, form in list(self._names):
                if self._forms[own] == "listed" and form == "stacked":
                    del self._names[own, form]

    def _write_output(self, value: Any) -> str:
        if not isinstance(value, Node):
            raise ValueError("an output is no tensor")
        own = self._forms[value]
        if own != "shared":
            return self._names[value, own]
        return f"[{self._names[value, own]}] * {self._width}"

    # Rules

    def _choose_rule(self, node: Node) -> Rule | None:
        rule = find_rule(node, self._width)
        if rule is None:
            return None
        varying = [each for each in node.all_input_nodes if self._forms[each] != "shared"]
        listed = [each for each in varying if self._forms[each] == "listed"]
        aliased = rule.is_view or bool(find_changed(node))
        if listed and (aliased or any(value_of(each).numel() > _LARGE for each in listed)):
            return None
        if len(varying) < len(node.all_input_nodes) and not self._fits_shared(node):
            return None
        return None if rule.is_tried and not self._is_exact(node, rule.call) else rule

    def _fits_shared(self, node: Node) -> bool:
        """Whether what all members share broadcasts over them: it has fewer dimensions than a stacked value."""
        shared = [each for each in node.all_input_nodes if self._forms[each] == "shared"]
        return name_of(node) not in ("cat", "bmm", "mm", "addmm") and all(
            value_of(each).ndim <= value_of(node).ndim for each in shared
        )

    def _is_exact(self, node: Node, call: Invocation) -> bool:
        """Whether stacked members get the bits of single ones. Whole numbers always do."""
        likes = [value_of(each) for each in node.all_input_nodes]
        if not any(like.is_floating_point() for like in likes):
            return True
        if any(self._forms[each] == "shared" for each in node.all_input_nodes):
            return False
        places = {each: f"a[{number}]" for number, each in enumerate(node.all_input_nodes)}
        stacked = self._make_call(call, places)
        single = self._make_call(Invocation(node.target, node.args, node.kwargs), places)
        plain = repr(torch.fx.node.map_arg((node.args, dict(node.kwargs)), lambda each: places[each]))
        return agree((str(node.target), plain), stacked, single, likes, self._width)

    def _make_call(self, call: Invocation, places: dict[Node, str]) -> Any:
        arguments = self._render_args(call.args, call.kwargs, "stacked", places)
        return eval(f"lambda *a: {self._constant(call.kernel)}({arguments})", self._scope)

    # Text

    def _render(self, call: Invocation, form: Form) -> str:
        return f"{self._constant(call.kernel)}({self._render_args(call.args, call.kwargs, form, {})})"

    def _render_args(self, args: Any, kwargs: Any, form: Form, names: dict[Node, str]) -> str:
        parts = [self._render_value(value, form, names) for value in args]
        parts += [f"{name}={self._render_value(value, form, names)}" for name, value in kwargs.items()]
        return ", ".join(parts)

    def _render_value(self, value: Any, form: Form, names: dict[Node, str]) -> str:
        if isinstance(value, Node):
            return names[value] if value in names else self._as(value, form)
        if isinstance(value, _Named):
            return value.name
        if isinstance(value, Lifted):
            if self._forms.get(value.node) == "shared" and value.node not in names:
                return self._as(value.node, form)
            index = self._constant((slice(None), *[None] * value.missing))
            return f"{self._render_value(value.node, form, names)}[{index}]"
        if isinstance(value, list | tuple) and not isinstance(value, torch.Size):
            inner = ", ".join(self._render_value(each, form, names) for each in value)
            return f"[{inner}]"
        return repr(value) if isinstance(value, bool | int | str | type(None)) else self._constant(value)


class _Named(NamedTuple):
    """A variable of the function."""

    name: str


def _find_varying(graph: GraphModule, varying: Collection[int]) -> dict[Node, dict[int, int]]:
    """Return for the calls with varying numbers which of their own numbers these are, and their places among all."""
    found: dict[Node, dict[int, int]] = {}
    places = count()
    for node in graph.graph.nodes:
        own = list_numbers(graph, node)
        named = {place: number for place, number in enumerate(islice(places, len(own))) if number in varying}
        if named:
            found[node] = named
    return found


class _Drawing:
    """A kernel that is called with the generator of each member."""

    def __init__(self, kernel: Any) -> None:
        self.kernel = kernel


def goes_by_data(node: Node) -> bool:
    """Whether a call takes values of tensors as lengths or shapes; `index` does only with masks."""
    kernel: Any = node.target
    if torch.Tag.data_dependent_output in kernel.tags or name_of(node) in _TAKES_LENGTHS:
        return True
    masked = any(value_of(each).dtype in (torch.bool, torch.uint8) for each in node.all_input_nodes[1:])
    return torch.Tag.dynamic_output_shape in kernel.tags and (masked or not name_of(node).startswith("index"))


def _draws(node: Node) -> bool:
    """Whether a call draws random numbers. Attention does only with dropout."""
    kernel: Any = node.target
    if torch.Tag.nondeterministic_seeded not in kernel.tags:
        return False
    given = dict(zip((argument.name for argument in kernel._schema.arguments), node.args, strict=False))
    return not ("attention" in name_of(node) and {**given, **node.kwargs}.get("dropout_p", 0.0) == 0.0)


def _draw_by(node: Node) -> _Drawing:
    """Return the kernel that draws by a generator. Raises ValueError if there is none."""
    kernel: Any = node.target
    if any(argument.name == "generator" for argument in kernel._schema.arguments):
        return _Drawing(kernel)
    if name_of(node) in _LIKE:
        return _Drawing(_LIKE[name_of(node)])
    raise ValueError(f"{name_of(node)} draws random numbers in a way that cannot be told by members")


def _randn_like(like: torch.Tensor, *, generator: torch.Generator, **options: Any) -> torch.Tensor:
    return torch.empty_like(like, **options).normal_(generator=generator)


def _rand_like(like: torch.Tensor, *, generator: torch.Generator, **options: Any) -> torch.Tensor:
    return torch.empty_like(like, **options).uniform_(generator=generator)


_LIKE = {"randn_like": _randn_like, "rand_like": _rand_like}


def find_changed(node: Node) -> list[Node]:
    """Return the arguments that a call changes in place."""
    if not isinstance(node.target, torch._ops.OpOverload):
        return []
    arguments = zip(node.target._schema.arguments, node.args, strict=False)
    return [value for argument, value in arguments if argument.is_write and isinstance(value, Node)]


def find_last_uses(graph: GraphModule) -> dict[Node, Node]:
    """Return for each node the last one that needs it: itself if there is none."""
    uses = {node: node for node in graph.graph.nodes}
    for node in graph.graph.nodes:
        for each in node.all_input_nodes:
            uses[each] = node
    return uses
