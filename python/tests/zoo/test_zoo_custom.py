"""Models that keep state in odd places: each hops exactly or is refused by name, and touches no other trial."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from custom_torch import CASES
from law import check_case

pytestmark = pytest.mark.slow

HERE = Path(__file__).parent


@pytest.mark.filterwarnings("ignore:.*torch.ao.quantization is deprecated:DeprecationWarning")
@pytest.mark.parametrize("name", CASES)
def test_it_hops_exactly_or_is_refused_by_name(name: str) -> None:
    check_case(CASES[name])


@pytest.mark.parametrize("backend", ["tensorflow", "torch"])
def test_keras_models_hop_exactly_or_are_refused_by_name(backend: str) -> None:
    """In a process of its own, as a backend is for a whole process."""
    environment = {**os.environ, "KERAS_BACKEND": backend, "TF_CPP_MIN_LOG_LEVEL": "3"}
    environment["PYTHONPATH"] = os.pathsep.join(sys.path)
    command = [sys.executable, str(HERE / "law.py"), "custom_keras"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    outcomes = json.loads(done.stdout.splitlines()[-1])

    assert len(outcomes) >= 18
    assert not {name: wrong for name, wrong in outcomes.items() if wrong}
