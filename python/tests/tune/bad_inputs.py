"""The table of bad inputs and what each is told: the value, the rule and the fix. Nothing here may start a worker."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from hyperopt import hp as theirs
from sound_search import DATA, LEFT_OUT, ROWS, model_fn, search

import cerebro_spark as cs
from cerebro_spark import hp
from cerebro_spark.errors import (
    CerebroError,
    ConfigurationError,
    DataError,
    MissingDependency,
    NotFoundInStore,
)

LOCK = threading.Lock()


def locking_model_fn(lock: Any) -> Callable[[Any], Any]:
    """A function that takes something with it which cannot travel."""

    def locked_model_fn(params: dict[str, Any]) -> Any:
        with lock:
            return model_fn(params)

    return locked_model_fn


class Built:
    """What somebody passes who has built it already."""

    def parameters(self) -> list[Any]:
        return []

    def state_dict(self) -> dict[str, Any]:
        return {}

    def __call__(self, rows: Any) -> Any:
        return rows


class Network:
    """What somebody passes who takes the model itself for the function that makes it."""

    def __init__(self, params: dict[str, Any]) -> None:
        self.params = params


class Bad(NamedTuple):
    """`act` gets a folder of its own and is told `message`, a regular expression, by an error of that kind."""

    name: str
    act: Callable[[Path], Any]
    message: str
    kind: type[CerebroError] = ConfigurationError


def told(
    name: str, message: str, error: type[CerebroError] = ConfigurationError, kind: Any = None, **changes: Any
) -> Bad:
    """A search with these changes, fitted on good data."""
    return Bad(name, lambda folder: search(folder, kind, **changes).fit(DATA), message, error)


def spaced(name: str, message: str, kind: Any = None, **space: Any) -> Bad:
    """A search over such a space."""
    own: dict[str, Any] = {"num_trials": 2} if kind is cs.RandomSearch else {}
    return told(f"space: {name}", message, kind=kind, space=space, **own)


def fitted(name: str, message: str, data: Any, error: type[CerebroError] = ConfigurationError, **more: Any) -> Bad:
    """A good search, fitted on such data, or with such arguments of `fit`."""
    return Bad(name, lambda folder: search(folder).fit(data, **more), message, error)


def prepared(name: str, message: str, error: type[CerebroError] = ConfigurationError, **changes: Any) -> Bad:
    order: dict[str, Any] = {"features": ["age", "income"], "label": "churned", **changes}
    return Bad(name, lambda folder: cs.prepare(DATA, store=str(folder), **order), message, error)


def without_validation(folder: Path) -> Any:
    data = cs.prepare(DATA, store=str(folder), features="age", label="churned", partitions=2)
    return search(folder).fit(data)


FUNCTIONS = [
    told("model_fn: a number", "`model_fn` is 3, but must be a function of params that returns", model_fn=3),
    told("model_fn: a class", r"`model_fn` is the class Network, .*: write a function that makes", model_fn=Network),
    told("model_fn: a model", r"`model_fn` is a model, a Built, but must be a function", model_fn=Built()),
    told(
        "model_fn: no argument",
        r"`model_fn` is <lambda>\(\), but is called as model_fn\(params\)",
        model_fn=lambda: model_fn({}),
    ),
    told(
        "model_fn: a lock",
        r"cannot pickle '_thread.lock'.* make what they need .*inside",
        model_fn=locking_model_fn(LOCK),
    ),
    told(
        "model_fn: which framework", r"'<lambda>' .*Keras or a PyTorch.*: say framework='keras'", model_fn=lambda p: p
    ),
    told(
        "input_fn: a word",
        r"`input_fn` is 'scale', but must be a function, called as input_fn\(batch, params\)",
        input_fn="scale",
    ),
    told(
        "train_fn: too few arguments",
        r"`train_fn` is .*\(model\), but is called as train_fn\(model, batches, params\)",
        train_fn=lambda model: {},
    ),
    told("eval_fn: a number", r"`eval_fn` is 7, but must be a function, called as eval_fn\(", eval_fn=7),
    told("framework", "`framework` is 'jax', but must be 'auto', 'keras' or 'torch'", framework="jax"),
]

SPACES = [
    told("space: a list", "the space is a list, but must be a dict from names", space=[0.1, 0.2]),
    spaced(
        "bounds the wrong way round",
        r"`net.lr` is hp.uniform\(2, 1\), but `low` must be below `high`: swap",
        net={"lr": hp.uniform(2, 1)},
    ),
    spaced(
        "a bound that is no number",
        r"`lr` is hp.uniform\('a', 1\), but `low` must be a finite number",
        lr=hp.uniform("a", 1),  # type: ignore[arg-type]
    ),
    spaced(
        "exponents as bounds",
        r"`lr` is hp.loguniform\(-5, -1\), but `low` must be above 0.*not exponents",
        lr=hp.loguniform(-5, -1),
    ),
    spaced("no step", r"`lr` is hp.quniform\(0, 1, 0\), but `q` must be above 0: ", lr=hp.quniform(0, 1, 0)),
    spaced(
        "no multiple of the step",
        r"hp.quniform\(1, 2, 5\), but there must be a multiple of q=5",
        lr=hp.quniform(1, 2, 5),
    ),
    spaced(
        "from zero by magnitude", r"hp.qloguniform\(0, 8, 1\), but `low` must be above 0", lr=hp.qloguniform(0, 8, 1)
    ),
    spaced("half a layer", r"`n` is hp.randint\(0.5, 3\), but `low` must be a whole number", n=hp.randint(0.5, 3)),  # type: ignore[arg-type]
    spaced("no spread", r"hp.normal\(0, 0\), but `sigma` must be above 0: for a fixed number", lr=hp.normal(0, 0)),
    spaced(
        "another library's space", "`lr` is an expression of hyperopt's own hp.*cs.hp", lr=theirs.uniform("lr", 0, 1)
    ),
    spaced("no option", r"`lr` is hp.choice\(\(\)\), but there must be at least one option", lr=hp.choice([])),
    spaced("a number for options", r"`lr` is hp.choice\(5\), but the options must be a list", lr=hp.choice(5)),  # type: ignore[arg-type]
    spaced(
        "a word for options", r"`opt` is hp.choice\('adam'\), but the options must be a list", opt=hp.choice("adam")
    ),
    spaced(
        "a dict for options",
        r"`opt` is hp.choice\({'adam': 1}\), but the options must be a list",
        opt=hp.choice({"adam": 1}),  # type: ignore[arg-type]
    ),
    spaced(
        "a set of options",
        r"`opt` is hp.choice\({'adam'}\), but the options must be a list",
        opt=hp.choice({"adam"}),  # type: ignore[arg-type]
    ),
    spaced(
        "a bad one within an option",
        r"`net\[1\].k` is hp.randint\(5, 3\)",
        net=hp.choice(["mlp", {"k": hp.randint(5, 3)}]),
    ),
    spaced("an object", r"`opt` is a object, but params go into the log.*let `model_fn` turn a name", opt=object()),
    spaced(
        "a list instead of a choice",
        r"`lr` is \[0.1, 0.01\], a list: did you mean hp.choice\(\[0.1, 0.01\]\)\? .*hp.choice\(\[\[0.1, 0.01\]\]\)",
        lr=[0.1, 0.01],
    ),
    spaced("batch sizes instead of a choice", r"did you mean hp.choice\(\[32, 64\]\)", batch_size=[32, 64]),
    spaced("not a number", r"`lr` is nan, but .*: use None", lr=float("nan")),
    told("space: a name that is none", "the space has the name 3, but names are strings", space={3: 0.1}),
    spaced(
        "a grid without end",
        r"`lr` is hp.uniform\(0, 1\), which has infinitely many values: .*hp.choice",
        lr=hp.uniform(0, 1),
    ),
    *(
        spaced(
            f"batch_size {size!r}", rf"batch_size is {shown}, but must be a whole number of at least 1", batch_size=size
        )
        for size, shown in (
            (0, "0"),
            (-1, "-1"),
            ("32", "'32'"),
            (16.5, "16.5"),
            (True, "True"),
        )
    ),
    spaced("one bad batch_size of a choice", "batch_size is 0, but must be a whole", batch_size=hp.choice([32, 0])),
    spaced("a batch_size from a range", "batch_size is 0, but must be a whole", batch_size=hp.randint(0, 64)),
    spaced(
        "half a row",
        "batch_size is 16.5, .* randint or choice rather than uniform",
        cs.RandomSearch,
        batch_size=hp.uniform(16, 64),
    ),
    spaced("steps of half a row", "batch_size is 16.5, but must be a whole", batch_size=hp.quniform(16, 64, 0.5)),
]

OBJECTIVES = [
    told("metric: none", "`metric` is None, but must be the name of a metric, such as 'val_loss'", metric=None),
    told(
        "metric: an unusual one", "`mode` is not given, and .*'profit'.*: say mode='max' or mode='min'", metric="profit"
    ),
    told("mode", "`mode` is 'maximum', but must be 'min' or 'max'", mode="maximum"),
    told(
        "metric: no validation",
        "`metric` is 'val_loss', but there is no validation: give validation=0.2",
        validation=None,
    ),
    told("validation: 0", "`metric` is 'val_loss', but there is no validation: give validation=0.2", validation=0),
]

COUNTS = [
    told("epochs: 0", "`epochs` is 0, but must be at least 1", epochs=0),
    told("epochs: one and a half", "`epochs` is 1.5, but must be a whole number: .*float", epochs=1.5),
    # NumPy 2 shows its numbers with their type.
    told(
        "epochs: NumPy's",
        r"`epochs` is (5|np.int64\(5\)), but must be a whole number: an int, and this is a int64",
        epochs=np.int64(5),
    ),
    told("num_trials", "`num_trials` is 0, but must be at least 1", kind=cs.RandomSearch, num_trials=0),
    told("max_epochs", "`max_epochs` is 0, but must be at least 1", kind=cs.Hyperband, epochs=LEFT_OUT, max_epochs=0),
    told("eta", "`eta` is 1, but must be at least 2: with 1", kind=cs.Hyperband, epochs=LEFT_OUT, max_epochs=9, eta=1),
    told(
        "min_epochs",
        "`max_epochs` is 2, but must be at least 5: .*`min_epochs`",
        kind=cs.ASHA,
        epochs=LEFT_OUT,
        max_epochs=2,
        num_trials=4,
        min_epochs=5,
    ),
    told("population", "`population` is 1, but must be at least 2: one member alone", kind=cs.PBT, population=1),
    told("perturb_every", "`perturb_every` is 0, but must be at least 1", kind=cs.PBT, population=4, perturb_every=0),
    told("quantile", "`quantile` is 0.9, but must be above 0 and at most 0.5", kind=cs.PBT, population=4, quantile=0.9),
    told("quantile: a word", "`quantile` is 'half', but must be above 0", kind=cs.PBT, population=4, quantile="half"),
    told(
        "perturb: one name",
        r"`perturb` is 'lr', but must be a list of names: write \['lr'\]",
        kind=cs.PBT,
        population=4,
        perturb="lr",
    ),
    told(
        "perturb: an unknown name",
        r"`perturb` is \['lx'\], but must name hyperparameters of the space: \['lr'\]",
        kind=cs.PBT,
        population=4,
        perturb=["lx"],
    ),
    told("seed: below 0", "`seed` is -1, but must be at least 0", seed=-1),
    told("seed: a word", "`seed` is 'x', but must be a whole number: .*str", seed="x"),
    told("replicas: none", "`replicas` is 0, but must be at least 1", replicas=0),
    told("replicas: more than workers", "`replicas` is 9, but there are only 2 workers.*: use replicas=2", replicas=9),
    told("max_concurrent", "`max_concurrent` is 0, but must be at least 1", max_concurrent=0),
    told("patience", "`patience` is 0, but must be at least 1", patience=0),
    told("time_budget", "`time_budget` is -1, but must be above 0 seconds", time_budget=-1),
    told(
        "time_budget: a word",
        "`time_budget` is '1h', but must be above 0 seconds: .*3600",
        time_budget="1h",
    ),
    told("target", "`target` is '0.9', but must be a finite number", target="0.9"),
    told("target: not a number", "`target` is nan, but must be a finite number", target=float("nan")),
    told("partitions: none", "`partitions` is 0, but must be at least 1", partitions=0),
    told(
        "partitions: too many",
        "partitions is 99, but there are only 15 rows .*: use partitions=15",
        DataError,
        partitions=99,
    ),
]

COLUMNS = [
    told("features: not given", r"`features` is not given: name the columns, such as features=\[", features=None),
    told("label: not given", "`label` is not given: name the columns, such as label='churned'", label=None),
    told("features: a typo", "no column 'incom': did you mean 'income'", features=["age", "incom"]),
    told("features: missing", "no column 'zip': it has 'age', 'income'", features=["age", "zip"]),
    told("label: a typo", "no column 'churnd': did you mean 'churned'", label="churnd"),
    told(
        "label among the features",
        "'churned' is the label and one of the features.*: leave it out",
        features=["age", "churned"],
    ),
    told("features: an empty list", "features names no column for 'features': name at least one", features=[]),
    told("features: a number", "features is 3, but must be the name of a column, a list", features=3),
    told(
        "features: a number among names", "features has 3 where the name of a column is expected", features=["age", 3]
    ),
    told("features: words", "'town' is of type string .*: turn it into numbers", DataError, features=["age", "town"]),
    told("weight: missing", "no column 'wait': it has 'age'", weight="wait"),
    told("weight: a number", "weight has 3 where the name of a column is expected", weight=3),
    told("weight: words", "'town' is of type string .*: turn it into numbers", DataError, weight="town"),
    told(
        "validation: more than all", "validation is 1.5, but a fraction must be at least 0 and below 1", validation=1.5
    ),
    told("validation: missing", "no column 'held_ot': did you mean 'held_out'", validation="held_ot"),
    told("validation: not boolean", "'age', which is double .*, not boolean: cast it", DataError, validation="age"),
    told("validation: a list", r"validation is \[1, 2\], but must be a fraction, the name", validation=[1, 2]),
    told(
        "validation: a frame without the label",
        "validation frame: .*no column 'churned'",
        validation=pd.DataFrame({"age": [1.0], "income": [1.0]}),
    ),
    fitted("df: none", "there is no data: give fit a DataFrame", None),
    fitted("df: a list", "df is a list, but must be a Spark DataFrame, a pandas DataFrame or a dict", [1, 2]),
    fitted("df: no rows", "the data has 0 rows", pd.DataFrame({"age": [], "income": [], "churned": []}), DataError),
    fitted("df: null rows", "'age' has 1 null rows: fill them", {**DATA, "age": [None, *range(ROWS - 1)]}, DataError),
    Bad(
        "dataset: no validation", without_validation, "'val_loss', but the data set has no validation rows: prepare it"
    ),
    prepared("prepare: no partitions", "partitions is 0, but must be a whole number of at least 1", partitions=0),
    prepared(
        "prepare: more partitions than rows",
        "partitions is 99, .*only 20 rows.*use partitions=20",
        DataError,
        partitions=99,
    ),
]

PLACES = [
    told("store: none", "None is no address of a store: give a path, or a URL", store=None),
    told("store: a file", "'/etc/hostname' is a file, but a store is a folder", store="/etc/hostname"),
    told(
        "store: unwritable",
        "store file:///proc/x cannot be written.*: .*give `store` another",
        NotFoundInStore,
        store="/proc/x",
    ),
    told("store: unknown scheme", "'s4://me/x' cannot be opened: .*s4.*: give a path, or a URL", store="s4://me/x"),
    told("store: no client", r"pip install 'cerebro-spark\[gcs\]'", MissingDependency, store="gs://me/x"),
    told(
        "store: of this process", "memory://bad is in the memory of this process.*: use a folder", store="memory://bad"
    ),
    told(
        "backend: a word",
        "`backend` is a str, but must be a cs.SparkBackend.spark. or a cs.LocalBackend",
        backend="local",
    ),
    Bad("workers: 0", lambda _: cs.LocalBackend(0), "`num_workers` is 0, but must be a whole number of at least 1"),
    Bad("workers: a word", lambda _: cs.LocalBackend("2"), "`num_workers` is '2', but must be a whole number"),  # type: ignore[arg-type]
    Bad("workers: true", lambda _: cs.LocalBackend(True), "`num_workers` is True, but must be a whole number"),
    Bad("threads", lambda _: cs.LocalBackend(1, threads="2"), "`threads` is '2', but must be a whole number"),  # type: ignore[arg-type]
    Bad("heartbeat", lambda _: cs.LocalBackend(1, heartbeat="x"), "`heartbeat` is 'x', but must be .* seconds"),  # type: ignore[arg-type]
    Bad("endless", lambda _: cs.LocalBackend(1, start_timeout=float("inf")), "`start_timeout` is inf, .* seconds"),
    Bad("spark: none", lambda _: cs.SparkBackend(3), "`spark` is a int, but must be a SparkSession"),  # type: ignore[arg-type]
    told("resources: a dict", "`resources` is .*, but must be cs.Resources", resources={"threads": 2}),
    Bad("resources: threads", lambda _: cs.Resources(threads=0), "threads is 0, but must be a whole number"),
    Bad("resources: compile", lambda _: cs.Resources(compile="max"), "compile is 'max', but must be 'auto', True"),  # type: ignore[arg-type]
]

NAMES = [
    told(
        "an argument that is none",
        "GridSearch has no argument 'max_concurent': did you mean 'max_concurrent'",
        max_concurent=3,
    ),
    told(
        "an argument of its own",
        "RandomSearch has no argument 'num_trial': did you mean 'num_trials'",
        kind=cs.RandomSearch,
        num_trials=2,
        num_trial=2,
    ),
    told("trackers: names", "`trackers` has 'mlflow', but must be trackers, such as", trackers=["mlflow"]),
    told("trackers: no list", "`trackers` is 3, but must be a list of trackers", trackers=3),
    told("progress", "`progress` is 'yes', but must be True, False or None", progress="yes"),
    fitted("run_id: slashes", "the run id is 'a/b', but must be letters, digits", DATA, run_id="a/b"),
    fitted("run_id: a number", "the run id is 5, but must be letters, digits", DATA, run_id=5),
    Bad(
        "replay: of nothing",
        lambda f: cs.replay(str(f), "nope"),
        "has no run 'nope': there are none yet",
        NotFoundInStore,
    ),
    fitted("params of a pipeline", "`params` has 'lr', but takes a dict from Spark's params", DATA, params={"lr": 1}),
    fitted("params: no dict", "`params` has 3, but takes a dict from Spark's params", DATA, params=3),
    Bad(
        "kind",
        lambda f: cs.GridSearch(model_fn, space={"lr": 0.1}, store=str(f), metric="loss", epochs=1, kind="classes"),
        "`kind` is 'classes', but must be one of 'regression', 'binary'",
    ),
    Bad(
        "resume: of nothing",
        lambda f: cs.resume(str(f), "nope"),
        "has no run 'nope': there are none yet",
        NotFoundInStore,
    ),
    Bad(
        "result: of nothing", lambda f: cs.load_result(str(f)), "holds no saved result: give the path", NotFoundInStore
    ),
]

TABLE = [*FUNCTIONS, *SPACES, *OBJECTIVES, *COUNTS, *COLUMNS, *PLACES, *NAMES]
