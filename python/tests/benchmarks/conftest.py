"""The benchmarks are no part of the package: the repository's own folder must be on the path to import them."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[3]))
