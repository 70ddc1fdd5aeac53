"""A traced step as one Python function that calls the same kernels with the same tensors. It keeps no state."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import torch
from torch.fx import GraphModule, Node

from cerebro_spark.trainer.torch.stacked.program import find_changed, find_last_uses, goes_by_data
from cerebro_spark.trainer.torch.stacked.rules import name_of

StepFunction = Callable[..., list[torch.Tensor]]


def make_function(graph: GraphModule) -> StepFunction:
    """Return the function of a traced step: from the inputs of the graph to its outputs.

    Random numbers come from PyTorch's default generator.

    Raises:
        ValueError: Repeating the step would not be the same as computing it anew.
    """
    return _FunctionWriter(graph).write()


class _FunctionWriter:
    """Writes the function line by line: kernels are its constants, so that a call costs no look-up."""

    def __init__(self, graph: GraphModule) -> None:
        self._graph = graph
        self._scope: dict[str, Any] = {}
        self._lines: list[str] = []
        self._names = {node: f"v{number}" for number, node in enumerate(graph.graph.nodes)}
        self._last_uses = find_last_uses(graph)

    def write(self) -> StepFunction:
        inputs = [node for node in self._graph.graph.nodes if node.op == "placeholder"]
        for node in self._graph.graph.nodes:
            self._write_node(node)
            gone = [self._names[own] for own in {node, *node.all_input_nodes} if self._last_uses.get(own) is node]
            if gone and node.op not in ("output", "placeholder"):
                self._lines.append(f"del {', '.join(gone)}")
        given = ", ".join(self._names[node] for node in inputs)
        source = "\n    ".join([f"def step({given}):", *self._lines])
        exec(compile(source, "<traced step>", "exec"), self._scope)
        function: StepFunction = self._scope["step"]
        return function

    def _write_node(self, node: Node) -> None:
        if node.op == "get_attr":
            self._names[node] = self._constant(getattr(self._graph, str(node.target)))
            del self._last_uses[node]  # constants stay
        elif node.op == "call_function":
            self._lines.append(f"{self._names[node]} = {self._render_call(node)}")
        elif node.op == "output":
            self._lines.append(f"return {self._render(node.args[0])}")

    def _render_call(self, node: Node) -> str:
        if node.target is operator.getitem:
            return f"{self._render(node.args[0])}[{node.args[1]}]"
        _check_call(node)
        parts = [self._render(value) for value in node.args]
        parts += [f"{name}={self._render(value)}" for name, value in node.kwargs.items()]
        # The kernel's own entry: its Python wrapper only passes the arguments on.
        return f"{self._constant(getattr(node.target, '_op', node.target))}({', '.join(parts)})"

    def _render(self, value: Any) -> str:
        if isinstance(value, Node):
            return self._names[value]
        if isinstance(value, list | tuple) and not isinstance(value, torch.Size):
            return f"[{', '.join(map(self._render, value))}]"
        return repr(value) if isinstance(value, bool | int | str | type(None)) else self._constant(value)

    def _constant(self, value: Any) -> str:
        name = f"c{len(self._scope)}"
        self._scope[name] = value
        return name


def _check_call(node: Node) -> None:
    """Raise ValueError for a call that must not be repeated."""
    if not isinstance(node.target, torch._ops.OpOverload):
        raise ValueError(f"{node.target} is no kernel of PyTorch")
    if goes_by_data(node):
        raise ValueError(f"the shape of what {name_of(node)} gives depends on the data")
    if any(_find_base(each).op == "get_attr" for each in find_changed(node)):
        raise ValueError(f"{name_of(node)} changes a tensor that is no parameter or buffer")


def _find_base(node: Node) -> Node:
    """Return what a value is a view of; itself if of nothing."""
    while isinstance(node.target, torch._ops.OpOverload) and node.args and isinstance(node.args[0], Node):
        if node.target._schema.arguments[0].alias_info is None:
            break
        node = node.args[0]
    return node
