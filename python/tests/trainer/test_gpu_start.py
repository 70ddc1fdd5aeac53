"""What a process does with a GPU ahead of its job: slow things once, and nothing that a model could meet."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest
import torch

from cerebro_spark.trainer.torch.gpu_start import start_gpu

LOOK = """
import torch
from cerebro_spark.trainer.torch.gpu_start import start_gpu
host, threads = torch.get_rng_state(), torch.get_num_threads()
start_gpu({device!r})
assert torch.cuda.is_initialized()
assert torch.equal(host, torch.get_rng_state())
assert torch.get_num_threads() == threads
device = torch.cuda.current_device()
assert not torch.cuda.get_rng_state(device)[-8:].any()  # no number was drawn
print(torch.cuda.memory_allocated(device), torch.cuda.memory_reserved(device))
"""


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("device", ["auto", "cuda", "cuda:0"])
def test_a_gpu_is_started_and_nothing_is_left_on_it(device: str) -> None:
    code = LOOK.format(device=device)
    said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=300, check=True)
    allocated, reserved = map(int, said.stdout.split())
    assert allocated == 0
    assert reserved < 64 << 20


def test_without_a_gpu_nothing_is_started(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any) -> None:
        raise AssertionError("a GPU is claimed")

    monkeypatch.setattr("cerebro_spark.trainer.torch.gpu_start.claim_torch_device", refuse)
    start_gpu("cpu")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    start_gpu("auto")
    start_gpu("cuda")
