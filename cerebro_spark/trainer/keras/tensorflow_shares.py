"""Grouped steps on TensorFlow: one graph computes gradients, another uses them, and between them they are added up.

It is loaded with the first group: PyTorch, whose links groups use, is not loaded before.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf
import torch

from cerebro_spark.trainer.feed import Array, Batch
from cerebro_spark.trainer.group import Group, GroupRefused
from cerebro_spark.trainer.keras.backend import KerasBackend
from cerebro_spark.trainer.keras.built_model import BuiltKerasModel
from cerebro_spark.trainer.keras.gradient_layout import GradientLayout, Rows
from cerebro_spark.trainer.keras.grouped_steps import GroupedSteps, weighing
from cerebro_spark.trainer.keras.hidden_randomness import refuse_hidden_randomness


class ShareGraph(NamedTuple):
    """The graph that computes gradients.

    Attributes:
        run: Returns the dense gradients, the rows of the others, and what was seen of losses. It takes tensors by name
            and a weight.
        layout: Which is which; found out when the graph was traced.
    """

    run: Any
    layout: GradientLayout


class TensorFlowShares(GroupedSteps):
    """The training steps of one member on TensorFlow.

    Gradients of an embedding are rows of its table, some of them several times. Optimizers of Keras do something else
    with them than with the same gradient in one piece (Adam squares each by itself). So rows are not added up: each
    member gets those of all.

    Args:
        model: The built model.
        group: The other members.
        backend: Makes tensors of batches.
    """

    def __init__(self, model: BuiltKerasModel, group: Group, backend: KerasBackend) -> None:
        super().__init__(model, group)
        self._backend = backend
        # All members trace the same graph, also one that has no rows.
        self._layout = self._find_graph(backend.load(model.sample)).layout

    def _take(self, batch: Batch, weight: float) -> None:
        dense, sparse, seen = self._compute(batch, weight)
        self.loss_parts.count(seen)
        self._use([torch.from_numpy(np.array(part)) for part in dense], [Rows(*rows) for rows in sparse])

    def _take_nothing(self) -> None:
        layout = self._layout
        empty = [Rows.empty(*layout.describe(index)) for index in layout.sparse]
        zeros = [np.zeros(layout.size_of(kind), kind) for kind in layout.dense]
        self._use([torch.from_numpy(each) for each in zeros], empty)

    def _run(self, batch: Batch) -> None:
        self._compute(batch, 0.0)

    def _compute(
        self, batch: Batch, weight: float
    ) -> tuple[list[Array], list[tuple[Array, Array]], list[tuple[Array, Array]]]:
        """Return the dense gradients, the rows of the others, and what was seen of losses."""
        tensors = self._backend.load(batch)
        graph = self._find_graph(tensors)
        if graph.layout != self._layout:
            raise GroupRefused("which of its weights have gradients depends on the shape of a batch")
        dense, sparse, seen = graph.run(tensors, tf.constant(weight, tf.float64))
        rows, losses = ([(one.numpy(), other.numpy()) for one, other in pairs] for pairs in (sparse, seen))
        return [part.numpy() for part in dense], rows, losses

    def _use(self, dense: Sequence[torch.Tensor], sparse: Sequence[Rows]) -> None:
        """Add up what all members have, and have the optimizer use it."""
        for part in dense:
            self._group.sum(part)
        if sparse:
            sparse = self._layout.join_rows([*map(self._layout.unpack, self._group.gather(Rows.pack(sparse)))])
        if self._layout.trains:
            totals = [tf.convert_to_tensor(part.numpy()) for part in dense]
            self._find_optimizing()(totals, [tuple(map(tf.convert_to_tensor, rows)) for rows in sparse])

    # Graphs

    def _find_graph(self, tensors: Mapping[str, Any]) -> ShareGraph:
        """Return the graph for batches of these dtypes and row shapes, for any number of rows."""
        specs = {name: tf.TensorSpec([None, *array.shape[1:]], array.dtype) for name, array in tensors.items()}
        key = f"share {specs}"
        if key not in self._model.graphs:
            self._model.graphs[key] = self._trace(specs)
        graph: ShareGraph = self._model.graphs[key]
        return graph

    def _trace(self, specs: Mapping[str, Any]) -> ShareGraph:
        model, layouts = self._model, list[GradientLayout]()

        def compute(arrays: Mapping[str, Any], weight: Any) -> Any:
            self._backend.traces += 1
            with self.loss_parts.watching() as seen:
                gradients = _compute_gradients(model, arrays, weight)
            layouts.append(GradientLayout.of(gradients, model.model.trainable_variables))
            return *_split(gradients, layouts[-1]), [tuple(each) for each in seen]

        signature = [dict(specs), tf.TensorSpec([], tf.float64)]
        jit = bool(model.model.jit_compile)
        graph = tf.function(compute, input_signature=signature, autograph=False, jit_compile=jit)
        refuse_hidden_randomness(graph.get_concrete_function().graph)
        return ShareGraph(graph, layouts[-1])

    def _find_optimizing(self) -> Any:
        """Return the graph that uses gradients."""
        own, layout, key = self._model.model, self._layout, "use gradients"
        if key not in self._model.graphs:

            def use(dense: Sequence[Any], sparse: Sequence[Any]) -> None:
                variables = own.trainable_variables
                own.optimizer.apply_gradients(zip(_put_together(dense, sparse, layout), variables, strict=True))

            rows = [
                (tf.TensorSpec([None, *shape[1:]], dtype), tf.TensorSpec([None], places))
                for shape, dtype, places in map(layout.describe, layout.sparse)
            ]
            signature = [[tf.TensorSpec([layout.size_of(kind)], kind) for kind in layout.dense], rows]
            jit = bool(own.jit_compile)
            self._model.graphs[key] = tf.function(use, input_signature=signature, autograph=False, jit_compile=jit)
        return self._model.graphs[key]


def _compute_gradients(model: BuiltKerasModel, arrays: Mapping[str, Any], weight: Any) -> list[Any]:
    """Take a step of the model whose gradients are returned, and not used."""
    kept: list[Any] = []

    def keep(pairs: Any) -> None:
        kept.extend(gradient for gradient, _ in pairs)

    model.rows = tf.shape(next(iter(arrays.values())))[0]
    try:
        with weighing(model.model.optimizer, weight, apply_gradients=keep):
            model.steps.take("train", model.model.train_step, model.pack(arrays), model.rows)
    finally:
        model.rows = None
    return kept


def _split(gradients: Sequence[Any], layout: GradientLayout) -> tuple[list[Any], list[tuple[Any, Any]]]:
    """Return dense gradients in one piece a dtype, and those that are rows as values and places."""
    dense = [
        tf.concat([tf.reshape(tf.cast(gradients[index], kind), [-1]) for index in indexes], 0)
        for kind, indexes in layout.dense.items()
    ]
    return dense, [(gradients[index].values, gradients[index].indices) for index in layout.sparse]


def _put_together(dense: Sequence[Any], sparse: Sequence[Any], layout: GradientLayout) -> list[Any]:
    """Return a gradient for each variable, None where there is none."""
    gradients: list[Any] = [None] * len(layout.shapes)
    for (kind, indexes), whole in zip(layout.dense.items(), dense, strict=True):
        for index, part in zip(indexes, tf.split(whole, layout.sizes_of(kind)), strict=True):
            gradients[index] = tf.cast(tf.reshape(part, layout.shapes[index]), layout.dtypes[index])
    for index, (values, places) in zip(layout.sparse, sparse, strict=True):
        shape = tf.constant(layout.shapes[index], places.dtype)
        gradients[index] = tf.IndexedSlices(values, places, shape)
    return gradients
