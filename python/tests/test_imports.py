"""Who may import whom, and what `import cerebro_spark` must not load."""

from __future__ import annotations

import ast
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "cerebro_spark"

# From the bottom up. A module may import its own layer's part (same name) and any layer below, never one above;
# parts of one layer do not import each other.
LAYERS = [
    {
        "_version",
        "types",
        "errors",
        "user_modules",
        "spark_session",
        "interruptible",
        "pickling",
        "rounding",
        "host_memory",
    },
    {"checks", "commands"},
    {"actions"},
    {"events", "relay", "search", "store", "trainer"},
    {"codec", "placement", "segments"},
    {"scheduling", "data", "turns", "inbox", "command_views", "worker_view"},
    {"logged_turns"},
    {"dispatch", "eventlog", "following", "hold", "mailbox", "timeline", "traffic"},
    {"scheduler", "gantt", "run_view"},
    {"backend", "outcomes"},
    {"engine", "recipe", "dashboard"},
    {"forecast", "progress", "replays", "simulation"},
    {"driver", "planning"},
    {"runs"},
    {"result"},
    {"live"},
    {"tune"},
    {"doctor", "cleaning"},
    {"cli_options"},
    {"cli_live", "cli_plan"},
    {"cli"},
]
HOMES = {
    "pyspark": {
        "backend.spark",
        "backend.driver.spark",
        "backend.worker.spark_task",
        "data.input.spark",
        "result",
        "spark_session",
        "tune.estimator",
        "tune.fitted",
        "tune.training",
        "doctor.spark",
    },
    "petastorm": {"data.formats.petastorm"},
    "tensorflow": {"trainer.keras"},
    "keras": {"trainer.keras"},
    "torch": {"trainer.torch", "trainer.keras"},
    "hyperopt": {"tune.hyperopt", "tune.plugins", "tune.algorithms.tpe"},
    "optuna": {"tune.optuna", "tune.plugins.study_arguments"},
    "hdfs_native": {"store.hdfs"},
    "fsspec": {"store.fsspec"},
    "s3fs": {"store.fsspec"},
    "ortools": set(),
    "matplotlib": {"gantt", "result"},
    "mlflow": {"tune.trackers"},
    "tensorboard": {"tune.trackers"},
    "starlette": {"dashboard"},
    "uvicorn": {"dashboard"},
    "plotly": {"dashboard"},
}
MODULES = sorted(PACKAGE.rglob("*.py"))


def dotted(path: Path) -> str:
    parts = path.relative_to(PACKAGE).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


@cache
def imports(path: Path) -> set[str]:
    """All modules a file imports, anywhere in it; what only type checkers see does not count."""
    nodes = list(ast.walk(ast.parse(path.read_text())))
    skipped: set[int] = set()
    for node in nodes:
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.dump(node.test):
            skipped |= {id(inner) for inner in ast.walk(node)}
    found: set[str] = set()
    for node in nodes:
        if id(node) in skipped:
            continue
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert not node.level, f"{path.name} imports by dots: say cerebro_spark.… so that this test sees it"
            found.add(str(node.module))
            found |= {f"{node.module}.{alias.name}" for alias in node.names}
    return found


def layer_of(name: str) -> int:
    top = name.split(".")[0]
    return next((level for level, names in enumerate(LAYERS) if top in names), -1)


def upward_imports(path: Path) -> list[str]:
    """What a module imports that is not below it."""
    name = dotted(path)
    level = layer_of(name)
    targets = [target.removeprefix("cerebro_spark.") for target in imports(path) if target.startswith("cerebro_spark.")]
    above = [
        target for target in targets if target.split(".")[0] != name.split(".")[0] and layer_of(target) >= max(level, 0)
    ]
    return [f"cerebro_spark.{name} imports cerebro_spark.{target}, which is not below it" for target in above]


def test_nothing_imports_upwards() -> None:
    modules = [path for path in MODULES if dotted(path)]
    without = [dotted(path) for path in modules if layer_of(dotted(path)) < 0]
    assert without == [], "these modules have no layer: give them one in docs/design.md and here"
    assert [problem for path in modules for problem in upward_imports(path)] == []


def test_the_layers_name_every_module() -> None:
    tops = {dotted(path).split(".")[0] for path in MODULES} - {""}
    assert tops <= set().union(*LAYERS)


@pytest.mark.parametrize("library", sorted(HOMES))
def test_heavy_libraries_have_one_home(library: str) -> None:
    for path in MODULES:
        if any(target.split(".")[0] == library for target in imports(path)):
            name = dotted(path)
            homes = HOMES[library]
            assert any(name == home or name.startswith((home + "_", home + ".")) for home in homes), (
                f"cerebro_spark.{name} imports {library}, whose home is {sorted(homes)}"
            )


def loaded_by(statement: str) -> set[str]:
    """The top-level modules that are loaded after a statement in a new process."""
    code = f"import sys; {statement}; print(*{{name.partition('.')[0] for name in sys.modules}})"
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, check=True, timeout=300, cwd=ROOT, stdout=subprocess.PIPE, text=True)
    return set(done.stdout.split())


def test_importing_the_package_is_light() -> None:
    loaded = loaded_by("import cerebro_spark as cs")
    assert "cerebro_spark" in loaded
    assert not loaded & {*HOMES, "pandas", "pyarrow", "numpy"}
    assert "cerebro_spark" in loaded_by("import cerebro_spark as cs; cs.SimulatedBackend")


@pytest.mark.parametrize("module", ["cli", "live", "tune", "dashboard.notebook", "dashboard.command_line"])
def test_the_extra_for_the_dashboard_is_not_loaded_before_one_is_served(module: str) -> None:
    loaded = loaded_by(f"import cerebro_spark.{module}")
    assert "cerebro_spark" in loaded
    assert not loaded & {"starlette", "uvicorn", "plotly"}


@pytest.mark.parametrize("name", ["GridSearch", "RandomSearch", "TPESearch", "Hyperband", "ASHA", "PBT"])
def test_searches_are_in_tune_as_well(name: str) -> None:
    import cerebro_spark
    from cerebro_spark import tune

    assert getattr(tune, name) is getattr(cerebro_spark, name)
    with pytest.raises(ImportError, match="cannot import name 'Nonsense'"):
        from cerebro_spark.tune import Nonsense  # noqa: F401


def test_every_public_name_is_there() -> None:
    import cerebro_spark

    for name in cerebro_spark.__all__:
        assert getattr(cerebro_spark, name) is not None
    with pytest.raises(AttributeError, match="no attribute 'Nonsense'"):
        _ = cerebro_spark.Nonsense
