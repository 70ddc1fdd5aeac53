"""Finds random numbers of TensorFlow's own in a graph. Their state is inside its kernels, where nobody can read it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from cerebro_spark.errors import ConfigurationError

# Kernels that go on with a state of their own, or with that of a tf.random.Generator.
_NAMES = """
    RandomUniform RandomUniformInt RandomStandardNormal TruncatedNormal ParameterizedTruncatedNormal RandomShuffle
    RandomGamma RandomPoisson RandomPoissonV2 Multinomial RandomCrop NonDeterministicInts RngReadAndSkip RngSkip
    StatefulStandardNormal StatefulStandardNormalV2 StatefulTruncatedNormal StatefulUniform StatefulUniformInt
    StatefulUniformFullInt StatefulRandomBinomial FixedUnigramCandidateSampler LearnedUnigramCandidateSampler
    LogUniformCandidateSampler UniformCandidateSampler ThreadUnsafeUnigramCandidateSampler AllCandidateSampler
"""
_DRAWING = frozenset(_NAMES.split())


def refuse_hidden_randomness(graph: Any) -> None:
    """Raise ConfigurationError if a graph draws random numbers that no checkpoint carries.

    Args:
        graph: The traced graph; functions that it calls are looked at as well.
    """
    for node in _list_nodes(graph.as_graph_def()):
        if node.op in _DRAWING:
            raise ConfigurationError(
                f"the model draws random numbers by TensorFlow's own {node.op} (at {node.name}), as tf.random and"
                " tf.nn.dropout do. Their state is in no checkpoint, so that a trial would go on differently on another"
                " worker and in a replay: use keras.random.normal(shape, seed=self.seed_generator) and its like, with"
                " self.seed_generator = keras.random.SeedGenerator() in the layer, or a layer such as Dropout or"
                " GaussianNoise"
            )


def _list_nodes(definition: Any) -> Iterator[Any]:
    yield from definition.node
    for function in definition.library.function:
        yield from function.node_def
