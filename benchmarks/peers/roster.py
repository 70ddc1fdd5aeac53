"""Who takes part in which work. It starts nobody."""

from __future__ import annotations

from benchmarks.peers.contender import Contender

_PEERS = "benchmarks.peers"
# A process's first optimizer imports PyTorch's compiler, half as long as PyTorch itself.
_TORCH = ("torch", "torch._dynamo")
_LOADED = {"torch": _TORCH, "keras": ("tensorflow", "keras")}


def _limit(framework: str, title: str) -> Contender:
    name = f"limit-{framework}"
    return Contender(name, title, f"{_PEERS}.limit", framework, limit=name, imports=_LOADED[framework])


def _ours(how: str, framework: str, title: str) -> Contender:
    name = f"{how}-{framework}"
    loaded = ("cerebro_spark", "pyspark", *_LOADED[framework])
    return Contender(name, title, f"{_PEERS}.ours", framework, how=how, limit=f"limit-{framework}", imports=loaded)


LIMITS = (
    _limit("torch", "the limit, PyTorch: two processes, plain loops"),
    _limit("keras", "the limit, Keras: two processes, `model.fit`"),
)
OURS = (
    _ours("local", "torch", "cerebro_spark, PyTorch, LocalBackend"),
    _ours("spark", "torch", "cerebro_spark, PyTorch, Spark `local[2]`"),
    _ours("fresh", "torch", "cerebro_spark, PyTorch, Spark `local[2]`, a fresh session"),
    _ours("local", "keras", "cerebro_spark, Keras, LocalBackend"),
    _ours("spark", "keras", "cerebro_spark, Keras, Spark `local[2]`"),
)
PEERS = (
    Contender(
        "spark-trials",
        "Hyperopt SparkTrials, PyTorch, parallelism 2",
        f"{_PEERS}.spark_trials",
        environment="sparktrials",
        imports=(*_TORCH, "hyperopt", "pyspark"),
    ),
    Contender(
        "ray",
        "Ray Tune, PyTorch, 2 slots",
        f"{_PEERS}.ray_tune",
        environment="ray",
        imports=(*_TORCH, "ray.tune"),
    ),
    Contender(
        "ray-reuse",
        "Ray Tune, PyTorch, 2 slots, processes reused, rows shared",
        f"{_PEERS}.ray_tune",
        environment="ray",
        how="reuse",
        imports=(*_TORCH, "ray.tune"),
    ),
    Contender(
        "ddp",
        "PyTorch DDP, gloo, one trial at a time",
        f"{_PEERS}.ddp",
        environment="torch",
        imports=_TORCH,
    ),
    Contender(
        "averaging",
        "PyTorch, weights averaged once an epoch",
        f"{_PEERS}.averaging",
        environment="torch",
        imports=_TORCH,
    ),
)
CEREBRO_DL = Contender(
    "cerebro-dl",
    "cerebro-dl 1.1.1, Keras 2, Spark `local[2]`",
    f"{_PEERS}.cerebro_dl",
    "keras",
    environment="cerebro-dl",
    limit="limit-keras",
    imports=("tensorflow", "pyspark", "petastorm"),
)

ROSTER: dict[str, tuple[Contender, ...]] = {
    "reference": (*LIMITS, *OURS, *PEERS),
    "cnn": (*LIMITS, *OURS, *PEERS),
    "fifth": (LIMITS[1], *(each for each in OURS if each.framework == "keras"), CEREBRO_DL),
}
