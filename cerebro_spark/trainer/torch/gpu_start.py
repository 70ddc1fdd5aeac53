"""What a process does once with a GPU before its first step there. It leaves nothing that a model could meet."""

from __future__ import annotations

import gc

import torch
from torch.nn import functional

from cerebro_spark.trainer.resources import Resources
from cerebro_spark.trainer.torch.device import claim_torch_device

_SIZE = 8


def start_gpu(name: str) -> None:
    """Make the context of a GPU, and load the libraries of matrices and convolutions, if PyTorch sees a GPU here.

    No generator is used, and all memory is given back but for the context's own.

    Args:
        name: The device of the process, as Resources has it.
    """
    if name == "cpu" or not torch.cuda.is_available():
        return
    device = claim_torch_device(Resources(device=name))
    _take_step(device)
    torch.zeros(1).pin_memory().to(device, non_blocking=True)
    torch.cuda.synchronize(device)
    gc.collect()  # an optimizer refers to itself
    torch._C._cuda_clearCublasWorkspaces()
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats(device)


def _take_step(device: torch.device) -> None:
    """Take a step of a model as small as can be, whose numbers are all constants."""
    images = torch.ones(2, _SIZE, _SIZE, _SIZE, device=device)
    kernel = torch.ones(_SIZE, _SIZE, 3, 3, device=device, requires_grad=True)
    matrix = torch.ones(_SIZE, _SIZE, device=device, requires_grad=True)
    optimizer = torch.optim.Adam([kernel, matrix], fused=True)
    hidden = functional.relu(functional.conv2d(images, kernel, padding=1))
    hidden = functional.batch_norm(hidden, None, None, training=True)
    functional.mse_loss(hidden.mean((2, 3)) @ matrix, torch.zeros(2, _SIZE, device=device)).backward()
    optimizer.step()
