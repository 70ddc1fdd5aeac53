"""The environments of the contenders: made once from pinned requirements, made again when these change.

It installs nothing outside .bench, and names no registry: pip's own settings say where packages come from.
"""

from __future__ import annotations

import hashlib
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
REQUIREMENTS = Path(__file__).parent / "requirements"
PLACE = ROOT / ".bench"
_SECONDS = 3600.0


def python_of(environment: str | None) -> Path:
    """The Python to start a contender with, after its environment was made where it is missing."""
    if environment is None:
        return Path(sys.executable)
    wanted, folder = REQUIREMENTS / f"{environment}.txt", PLACE / environment
    if not wanted.exists():
        known = sorted(file.stem for file in REQUIREMENTS.glob("*.txt"))
        raise FileNotFoundError(f"there is no {wanted}: environments are {', '.join(known)}; add the file for another")
    ready, digest = folder / ".ready", digest_of(wanted)
    if not ready.exists() or ready.read_text() != digest:
        _make(folder, wanted)
        ready.write_text(digest)
    return folder / "bin" / "python"


def digest_of(wanted: Path) -> str:
    """What an environment depends on: its requirements, and the Python that it is made with."""
    return hashlib.sha256(wanted.read_bytes() + sys.version.encode()).hexdigest()


def _make(folder: Path, wanted: Path) -> None:
    print(f"making {folder} from {wanted.name}, once ...", file=sys.stderr, flush=True)
    shutil.rmtree(folder, ignore_errors=True)
    commands = [
        [sys.executable, "-m", "venv", str(folder)],
        [str(folder / "bin" / "python"), "-m", "pip", "install", "--quiet", "--requirement", str(wanted)],
    ]
    for command in commands:
        subprocess.run(command, check=True, timeout=_SECONDS, stdout=sys.stderr)
