"""Models that keep state in odd places: each hops exactly or is refused by name, and touches no other trial."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from custom_torch import CASES
from law import check_case

pytestmark = pytest.mark.slow

HERE = Path(__file__).parent


@pytest.mark.filterwarnings("ignore:.*torch.ao.quantization is deprecated:DeprecationWarning")
@pytest.mark.parametrize("name", CASES)
def test_it_hops_exactly_or_is_refused_by_name(name: str) -> None:
    check_case(CASES[name])


KERAS_SHARES = {"tensorflow": [["hops"], ["refused"]], "torch": [["hops", "refused"]]}
"""What a process checks at a time: tracing takes long."""


def _share(backend: str, outcomes: list[str]) -> Any:
    name = f"{backend}-{'-'.join(outcomes)}"
    return pytest.param(backend, outcomes, id=name, marks=pytest.mark.xdist_group(f"Keras on {name}"))


@pytest.mark.parametrize(
    ("backend", "outcomes"), [_share(backend, share) for backend, shares in KERAS_SHARES.items() for share in shares]
)
def test_keras_models_hop_exactly_or_are_refused_by_name(backend: str, outcomes: list[str]) -> None:
    """In a process of its own, as a backend is for a whole process, and beside the other tests of this file."""
    environment = {**os.environ, "KERAS_BACKEND": backend, "TF_CPP_MIN_LOG_LEVEL": "3"}
    environment["PYTHONPATH"] = os.pathsep.join(sys.path)
    command = [sys.executable, str(HERE / "law.py"), "custom_keras", *outcomes]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    wrong_with = json.loads(done.stdout.splitlines()[-1])

    assert len(wrong_with) >= 12
    assert not {name: wrong for name, wrong in wrong_with.items() if wrong}
