"""The user's own modules, sent along with the functions that use them. It never sends an installed package.

A module that lies beside the script or notebook exists on the driver's machine alone. Its source travels with the
functions, so that workers, executors and later drivers import what the run was started with.
"""

from __future__ import annotations

import ast
import functools
import importlib.machinery
import importlib.metadata
import importlib.util
import logging
import sys
import types
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from pathlib import Path
from typing import Any

_log = logging.getLogger(__name__)
_INSTALLED = {"site-packages", "dist-packages"}
# spark-submit brings these along outside of site-packages, on every host.
_EVERYWHERE = {"__main__", "__mp_main__", "builtins", "cerebro_spark", "pyspark", "py4j"}


@dataclass(frozen=True, slots=True)
class ModuleSource:
    """One module as text.

    Args:
        text: The source code; empty for a package without an `__init__.py`.
        path: Where the file was. It is shown in tracebacks and need not exist any more.
        is_package: Whether the module can have submodules.
    """

    text: str
    path: str
    is_package: bool = False


@dataclass(frozen=True, slots=True)
class UserModules:
    """The sources of the user's own modules that some functions need. Unpickling them installs them.

    Args:
        sources: The modules by their full name, for example `"models.resnet"`.
    """

    sources: Mapping[str, ModuleSource] = field(default_factory=dict)

    def __reduce__(self) -> tuple[Any, ...]:
        return _receive_modules, (dict(self.sources),)

    def install(self) -> None:
        """Make the modules importable in this process, in place of any that were installed before.

        A module that this process has imported from elsewhere stays as it is. A warning says so if its source differs.
        """
        if self.sources:
            _finder().replace(self.sources)


def _receive_modules(sources: Mapping[str, ModuleSource]) -> UserModules:
    modules = UserModules(sources)
    modules.install()  # at once: what follows in the same pickle may be of these modules
    return modules


def import_sent_modules_first() -> None:
    """Let sent modules go before files of the same name: for processes that run nothing but the user's functions.

    In any other process they come last: what a user imports there is what lies there now.
    """
    finder = _finder()
    sys.meta_path.remove(finder)
    sys.meta_path.insert(0, finder)
    finder.comes_first = True


def collect_modules(functions: Iterable[Any]) -> UserModules:
    """Find the user's own modules that functions need, directly or through other modules of the user's.

    Nothing is imported or called for it.

    Args:
        functions: Functions or callable objects. Other values are ignored.

    Returns:
        The sources of the modules.
    """
    waiting = [name for function in functions for name in _named_by(function, set())]
    found: dict[str, ModuleSource] = {}
    while waiting:
        name = waiting.pop()
        source = None if name in found else _own_source(name)
        if source is None:
            continue
        found[name] = source
        parent = name.rpartition(".")[0]
        waiting += [parent] if parent else []
        waiting += _imported_by(source.text, source.path, name if source.is_package else parent)
    return UserModules(dict(sorted(found.items())))


# -- which modules a function names


def _named_by(value: Any, seen: set[int]) -> Iterator[str]:
    """Names of modules that a value comes from or refers to, and of such as its code imports. Some may not exist."""
    if id(value) in seen:
        return
    seen.add(id(value))
    if isinstance(value, types.ModuleType):
        yield value.__name__
        return
    if isinstance(value, types.FunctionType | type):
        if not _is_written_here(value.__module__):
            return
        yield value.__module__ or ""
    if isinstance(value, types.FunctionType):
        yield from _imported_by_code(value.__code__, str(value.__globals__.get("__package__") or ""))
    for part in _parts(value):
        yield from _named_by(part, seen)


def _parts(value: Any) -> Iterable[Any]:
    """What a value of the user's holds on to. Objects of libraries are not looked into."""
    if isinstance(value, types.FunctionType):
        names = {name for code in _codes(value.__code__) for name in code.co_names}
        used = [value.__globals__.get(name) for name in names]
        used += [part for module in used for part in _submodules(module, names)]
        # A cell without contents equals no cell but another such one.
        cells = [cell.cell_contents for cell in value.__closure__ or () if cell != types.CellType()]
        defaults = [*(value.__defaults__ or ()), *(value.__kwdefaults__ or {}).values()]
        return [*used, *cells, *defaults, *vars(value).values()]
    if isinstance(value, type):
        return [*value.__bases__, *vars(value).values()]
    if isinstance(value, functools.partial):
        return [value.func, *value.args, *value.keywords.values()]
    if isinstance(value, types.MethodType):
        return [value.__func__, value.__self__]
    if isinstance(value, property):
        return [value.fget, value.fset]
    if isinstance(value, Mapping):
        return list(value.values())
    if isinstance(value, list | tuple | set | frozenset):
        return list(value)
    if hasattr(value, "__wrapped__"):  # what functools.cache, staticmethod and others make of a function
        return [value.__wrapped__]
    kind = type(value)
    return [kind, *getattr(value, "__dict__", {}).values()] if _is_written_here(kind.__module__) else []


def _submodules(module: Any, names: set[str]) -> list[types.ModuleType]:
    """The loaded submodules that code names: after `import a.b.c` a function has `a` alone, and names all three."""
    if not isinstance(module, types.ModuleType):
        return []
    loaded = [sys.modules.get(f"{module.__name__}.{name}") for name in names]
    below = [part for part in loaded if part is not None]
    return [*below, *(part for submodule in below for part in _submodules(submodule, names))]


def _is_written_here(module: str | None) -> bool:
    """Whether a function or class is the user's: of a script, a notebook, or a module of the user's own."""
    return module in (None, "__main__") or module not in sys.modules or _is_own(str(module))


def _codes(code: types.CodeType) -> Iterator[types.CodeType]:
    """The code of a function, and of all that is defined in it."""
    yield code
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from _codes(constant)


def _imported_by_code(code: types.CodeType, package: str) -> Iterator[str]:
    """Modules that a function imports when it runs. Whether a name of a `from` import is one is seen later."""
    import dis

    for part in _codes(code):
        steps = [step for step in dis.get_instructions(part) if step.opname != "EXTENDED_ARG"]
        for level, names, step in zip(steps, steps[1:], steps[2:], strict=False):
            if step.opname == "IMPORT_NAME":
                yield from _full_names(str(step.argval or ""), names.argval or (), int(level.argval or 0), package)


# -- which modules a module imports


@functools.lru_cache(maxsize=4096)
def _imported_by(text: str, path: str, package: str) -> tuple[str, ...]:
    """Modules that a source imports, anywhere in it."""
    try:
        tree = ast.parse(text, path)
    except SyntaxError:
        return ()  # importing it will say so
    found: list[str] = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            found += _full_names(node.module or "", [alias.name for alias in node.names], node.level, package)
    return tuple(found)


def _full_names(module: str, names: Sequence[str], level: int, package: str) -> Iterator[str]:
    """The full names of a module and of what may be its submodules, from the parts of an import statement."""
    if level:
        parents = package.split(".")
        if level > len(parents):
            return
        module = ".".join([*parents[: len(parents) - level + 1], *([module] if module else [])])
    yield module
    yield from (f"{module}.{name}" for name in names if name != "*")


# -- where a module lies


def _own_source(name: str) -> ModuleSource | None:
    """The source of a module, if it is the user's own and is written in Python."""
    spec = _finder().spec_of(name) or _spec(name) if _is_own(name) else None
    if spec is None or spec.origin in ("built-in", "frozen"):
        return None
    is_package = spec.submodule_search_locations is not None
    if not spec.has_location:
        return ModuleSource("", "", True) if is_package else None
    text = _text(spec)
    return None if text is None else ModuleSource(text, spec.origin or "", is_package)


def _text(spec: ModuleSpec) -> str | None:
    """The source code that a spec stands for; None for compiled modules."""
    get_source = getattr(spec.loader, "get_source", None)
    if get_source is not None:
        text: str | None = get_source(spec.name)
        return text
    path = Path(spec.origin or "")
    # Loaders of test tools and import hooks read such files too, and do not say what they read.
    return importlib.util.decode_source(path.read_bytes()) if path.suffix == ".py" and path.exists() else None


def _spec(name: str) -> ModuleSpec | None:
    """Where a module lies: as it was imported, else as it would be. Parents are looked up and not imported."""
    loaded = sys.modules.get(name)
    if loaded is not None:
        spec: ModuleSpec | None = getattr(loaded, "__spec__", None)
        return spec
    parent, _, _ = name.rpartition(".")
    if not parent:
        return importlib.machinery.PathFinder.find_spec(name)
    above = _spec(parent)
    places = None if above is None else above.submodule_search_locations
    return None if places is None else importlib.machinery.PathFinder.find_spec(name, places)


def _is_own(name: str) -> bool:
    root = name.partition(".")[0]
    return bool(root) and root not in sys.stdlib_module_names and root not in _EVERYWHERE and _is_own_root(root)


def _is_own_root(root: str) -> bool:
    if _finder().spec_of(root) is not None:
        return True
    try:
        spec = _spec(root)
    except (ImportError, ValueError):
        return False
    if spec is None:
        return False
    places = [spec.origin or "", *(spec.submodule_search_locations or ())]
    return not any(_INSTALLED & set(Path(place).parts) for place in places) and root not in _distributed()


@functools.cache
def _distributed() -> frozenset[str]:
    """Packages that are installed from elsewhere: editable installs lie outside of site-packages."""
    return frozenset(importlib.metadata.packages_distributions())


# -- how sent modules are imported


class _SentModules(MetaPathFinder):
    """Finds and loads the modules that were sent to this process."""

    def __init__(self) -> None:
        self.comes_first = False
        self._sources: dict[str, ModuleSource] = {}

    def replace(self, sources: Mapping[str, ModuleSource]) -> None:
        """Serve these sources. Modules that were imported from sources sent before are forgotten if these changed."""
        stale = {name for name, source in sources.items() if self._sources.get(name, source) != source}
        if stale:
            for name in [name for name, module in sys.modules.items() if _is_sent(module)]:
                del sys.modules[name]
        for name, source in sources.items():
            self._sources[name] = source
            self._warn_of_another(name, source)

    def spec_of(self, name: str) -> ModuleSpec | None:
        """The spec of a module that this process imported from what it was sent."""
        module = sys.modules.get(name)
        return module.__spec__ if module is not None and _is_sent(module) else None

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: types.ModuleType | None = None
    ) -> ModuleSpec | None:
        source = self._sources.get(fullname)
        if source is None:
            return None
        spec = ModuleSpec(fullname, _SourceLoader(source), origin=source.path or None, is_package=source.is_package)
        spec.has_location = bool(source.path)
        return spec

    def _warn_of_another(self, name: str, source: ModuleSource) -> None:
        spec = getattr(sys.modules.get(name), "__spec__", None)
        if spec is None and not self.comes_first:
            spec = _spec(name)
        if spec is None or isinstance(spec.loader, _SourceLoader) or not spec.has_location:
            return
        if _text(spec) not in (None, source.text):
            _log.warning(
                "module %s is not the same here (%s) as where the run was started (%s): workers use the run's, this"
                " process its own",
                name,
                spec.origin,
                source.path,
            )


class _SourceLoader(Loader):
    """Runs a module's source."""

    def __init__(self, source: ModuleSource) -> None:
        self._source = source

    def get_source(self, fullname: str) -> str:
        """The source code: tracebacks show its lines, and it can be sent on."""
        return self._source.text

    def exec_module(self, module: types.ModuleType) -> None:
        exec(compile(self._source.text, self._source.path or f"<{module.__name__}>", "exec"), vars(module))


def _is_sent(module: Any) -> bool:
    return isinstance(getattr(getattr(module, "__spec__", None), "loader", None), _SourceLoader)


@functools.cache
def _finder() -> _SentModules:
    """The one finder of this process."""
    finder = _SentModules()
    sys.meta_path.append(finder)
    return finder
