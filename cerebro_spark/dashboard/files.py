"""The files that browsers get: the pages' own, and the charts library's. Only files known at the start are served."""

from __future__ import annotations

from functools import cache
from importlib.util import find_spec
from pathlib import Path

from cerebro_spark.errors import MissingDependency

_STATIC = Path(__file__).parent / "static"
_TYPES = {
    ".html": "text/html; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".mjs": "text/javascript; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".svg": "image/svg+xml",
    ".png": "image/png",
    ".ico": "image/x-icon",
    ".woff2": "font/woff2",
    ".json": "application/json",
}


@cache
def static_files(folder: Path = _STATIC) -> dict[str, Path]:
    """The files of the pages by their names below `static/`. No other name leads to any file."""
    found = (path for path in folder.rglob("*") if path.is_file() and not path.is_symlink())
    return {path.relative_to(folder).as_posix(): path for path in found if path.suffix in _TYPES}


def media_type(path: Path) -> str:
    """What a browser is told that a file is."""
    return _TYPES.get(path.suffix, "application/octet-stream")


@cache
def charts_library() -> Path:
    """The file of the charts library in its installed package, which is not imported.

    Raises:
        MissingDependency: The package is not installed.
    """
    spec = find_spec("plotly")
    places = list(spec.submodule_search_locations or ()) if spec else []
    path = Path(places[0], "package_data", "plotly.min.js") if places else None
    if path is None or not path.is_file():
        raise MissingDependency("charts need plotly: pip install 'cerebro-spark[dashboard]'")
    return path
