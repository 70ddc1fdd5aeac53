"""Modules that lie beside a script travel with the functions that use them; installed packages do not."""

from __future__ import annotations

import importlib
import logging
import os
import pickle
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import cloudpickle
import pytest

from cerebro_spark import user_modules
from cerebro_spark.trainer.base import Hooks
from cerebro_spark.user_modules import ModuleSource, UserModules, collect_modules

FAMILY = ("family", "family.left", "family.right")
SOURCES = {
    "alone.py": "FACTOR = 3\ndef scale(x):\n    return FACTOR * x\n",
    "user.py": "import alone\ndef twice(x):\n    return 2 * alone.scale(x)\n",
    "lazily.py": "def scaled(x):\n    from alone import scale\n    return scale(x)\n",
    "family/__init__.py": "from family.left import LEFT\n",
    "family/left.py": "LEFT = 1\ndef add(x):\n    from . import right\n    return x + LEFT + right.RIGHT\n",
    "family/right.py": "import family.left\nRIGHT = 10\n",
    "open_space/inner.py": "INNER = 5\n",
    "layers.py": "from alone import scale\nclass Base:\n    def f(self, x):\n        return scale(x)\n",
    "broken.py": "def oops(:\n",
}


@pytest.fixture
def beside(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder with modules of a user, as if the script lay there."""
    for name, text in SOURCES.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    monkeypatch.syspath_prepend(str(tmp_path))
    yield tmp_path
    for name, module in list(sys.modules.items()):
        if str(tmp_path) in str(getattr(module, "__file__", "")) or name == "open_space":
            del sys.modules[name]


def make(code: str, name: str = "model_fn") -> Any:
    """A function as a script or notebook has it."""
    space: dict[str, Any] = {"__name__": "__main__"}
    exec(textwrap.dedent(code), space)
    return space[name]


@pytest.mark.usefixtures("beside")
@pytest.mark.parametrize(
    ("code", "needed"),
    [
        ("from alone import scale\ndef model_fn(p): return scale(p)", {"alone"}),
        ("import alone\ndef model_fn(p): return alone.scale(p)", {"alone"}),
        ("def model_fn(p):\n    import alone\n    return alone.scale(p)", {"alone"}),
        ("def model_fn(p):\n    def inner():\n        from alone import scale\n        return scale(p)", {"alone"}),
        ("from user import twice\ndef model_fn(p): return twice(p)", {"alone", "user"}),
        ("from lazily import scaled\ndef model_fn(p): return scaled(p)", {"alone", "lazily"}),
        ("from family.left import add\ndef model_fn(p): return add(p)", {*FAMILY}),
        ("import family.left\ndef model_fn(p): return family.left.add(p)", {*FAMILY}),
        ("import open_space.inner\ndef model_fn(p): return open_space.inner", {"open_space", "open_space.inner"}),
        ("import family.right\ndef model_fn(p): return family.right.family.left", {*FAMILY}),
        ("def model_fn(p):\n    from open_space import inner", {"open_space", "open_space.inner"}),
        ("def helper(p):\n    import alone\ndef model_fn(p): return helper(p)", {"alone"}),
        ("from layers import Base\nclass Own(Base): pass\ndef model_fn(p): return Own()", {"alone", "layers"}),
        ("from alone import scale\nTABLE = {'a': [scale]}\ndef model_fn(p): return TABLE", {"alone"}),
        ("import functools\nimport alone\nmodel_fn = functools.partial(alone.scale)", {"alone"}),
        ("import functools\nfrom alone import scale\nmodel_fn = functools.lru_cache(scale)", {"alone"}),
        ("import alone\ndef model_fn(p, f=alone.scale): return f(p)", {"alone"}),
        ("import alone\nclass Model:\n    def __call__(self, p): return alone\nmodel_fn = Model()", {"alone"}),
        ("def model_fn(p):\n    import broken", {"broken"}),
        ("def outer():\n    if not outer:\n        x = 1\n    return lambda p: x\nmodel_fn = outer()", set()),
        ("import numpy\nimport json\ndef model_fn(p): return numpy, json", set()),
        ("import numpy as np\ndef model_fn(p): return np.zeros(3)", set()),
        ("def model_fn(p):\n    import torch, not_there_at_all\n    return torch", set()),
        ("import cerebro_spark as cs\ndef model_fn(p): return cs.TorchModel", set()),
    ],
)
def test_what_functions_need_is_found(code: str, needed: set[str]) -> None:
    assert set(collect_modules([make(code)]).sources) == needed


@pytest.mark.usefixtures("beside")
@pytest.mark.parametrize("line", ["import alone", "from alone import scale", "from family import right"])
def test_the_imports_of_a_long_function_are_found(line: str) -> None:
    """With more than 256 names and constants, Python prefixes its instructions."""
    names = "".join(f"    name{n} = other{n}({n}.5)\n" for n in range(300))
    found = collect_modules([make(f"def model_fn(p):\n{names}    {line}\n    return {line.split()[-1]}\n")])
    assert line.split()[1] in found.sources


def test_nothing_is_imported_to_find_it(beside: Path) -> None:
    (beside / "alone.py").write_text("raise RuntimeError('imported')\n")
    modules = collect_modules([make("def model_fn(p):\n    import alone\n    import family.right")])
    assert set(modules.sources) == {"alone", "family", "family.left", "family.right"}
    assert not {"alone", "family"} & set(sys.modules)


def test_a_package_that_is_installed_to_be_edited_is_not_sent(beside: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    function = make("import alone\ndef model_fn(p): return alone")
    assert collect_modules([function]).sources
    monkeypatch.setattr(user_modules, "_distributed", lambda: frozenset({"alone"}))
    assert not collect_modules([function]).sources


def elsewhere(code: str, data: bytes, folder: Path) -> str:
    """What a process prints that has none of the modules, with `data` on its standard input."""
    environment = {**os.environ, "PYTHONPATH": str(Path(user_modules.__file__).parents[1])}
    done = subprocess.run(
        [sys.executable, "-c", code], input=data, cwd=folder, env=environment, capture_output=True, timeout=600
    )
    assert done.returncode == 0, done.stderr.decode()
    return done.stdout.decode().strip()


CALL = "import cloudpickle, sys; hooks = cloudpickle.load(sys.stdin.buffer); print(hooks.model_fn(7))"


@pytest.mark.usefixtures("beside")
@pytest.mark.parametrize(
    ("code", "answer"),
    [
        ("from user import twice as model_fn", "42"),
        ("import user\ndef model_fn(p): return user.twice(p)", "42"),
        ("def model_fn(p):\n    import lazily\n    return lazily.scaled(p)", "21"),
        ("from family.left import add\ndef model_fn(p): return add(p)", "18"),
        ("def model_fn(p):\n    from open_space.inner import INNER\n    return INNER", "5"),
        ("from layers import Base\nclass Own(Base): pass\ndef model_fn(p): return Own().f(p)", "21"),
    ],
)
def test_functions_run_where_the_modules_are_not(
    code: str, answer: str, tmp_path_factory: pytest.TempPathFactory
) -> None:
    data = cloudpickle.dumps(Hooks(make(code)))
    assert elsewhere(CALL, data, tmp_path_factory.mktemp("elsewhere")) == answer


def test_a_worker_uses_what_was_sent_although_the_file_has_changed(beside: Path) -> None:
    data = cloudpickle.dumps(Hooks(make("from alone import scale\ndef model_fn(p): return scale(p)")))
    (beside / "alone.py").write_text("def scale(x):\n    return -x\n")
    first = "from cerebro_spark.user_modules import import_sent_modules_first; import_sent_modules_first();"
    assert elsewhere(first + CALL, data, beside) == "21"


def test_a_traceback_shows_lines_of_what_was_sent(beside: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    (beside / "alone.py").write_text("def scale(x):\n    raise ValueError('too large')  # the line\n")
    data = cloudpickle.dumps(Hooks(make("from alone import scale\ndef model_fn(p): return scale(p)")))
    (beside / "alone.py").unlink()
    code = CALL.replace("print(", "import traceback\ntry: print(").replace("(7))", "(7))\nexcept ValueError: ")
    shown = elsewhere(code + "print(traceback.format_exc())", data, tmp_path_factory.mktemp("elsewhere"))
    assert "raise ValueError('too large')  # the line" in shown


def test_what_was_received_is_sent_on_as_it_came(beside: Path) -> None:
    data = cloudpickle.dumps(Hooks(make("from alone import scale\ndef model_fn(p): return scale(p)")))
    received = cloudpickle.loads(data)
    (beside / "alone.py").write_text("def scale(x):\n    return -x\n")
    again = cloudpickle.loads(cloudpickle.dumps(received))
    assert again.modules == received.modules
    assert "FACTOR" in again.modules.sources["alone"].text


def test_a_process_that_has_another_version_keeps_it_and_says_so(
    beside: Path, caplog: pytest.LogCaptureFixture
) -> None:
    importlib.import_module("alone")
    with caplog.at_level(logging.WARNING, "cerebro_spark.user_modules"):
        UserModules({"alone": ModuleSource(SOURCES["alone.py"], "/run/alone.py")}).install()
        assert not caplog.records
        UserModules({"alone": ModuleSource("FACTOR = 4\n", "/run/alone.py")}).install()
    assert "module alone is not the same here" in caplog.text
    assert importlib.import_module("alone").FACTOR == 3


def test_a_later_version_replaces_what_was_sent_before(tmp_path_factory: pytest.TempPathFactory) -> None:
    code = """
        import sys
        from cerebro_spark.user_modules import ModuleSource, UserModules
        for text in ("N = 1", "N = 2", "N = 2"):
            UserModules({"sent": ModuleSource(text, "/sent.py")}).install()
            import sent
            print(sent.N, end=" ")
    """
    assert elsewhere(textwrap.dedent(code), b"", tmp_path_factory.mktemp("elsewhere")) == "1 2 2"


def test_hooks_of_earlier_releases_are_read() -> None:
    old = Hooks.__new__(Hooks)
    old.__setstate__([len, None, None, None])
    assert old == Hooks(len)
    assert pickle.loads(pickle.dumps(Hooks(partial(len)))).model_fn([1, 2]) == 2
