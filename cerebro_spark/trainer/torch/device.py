"""Which device of PyTorch a worker computes on, and with how many threads. Keras on PyTorch asks here too."""

from __future__ import annotations

import torch

from cerebro_spark.errors import ConfigurationError
from cerebro_spark.trainer.resources import Resources


def claim_torch(resources: Resources) -> torch.device:
    """Make the device that these resources name this process's own, and set its threads.

    >>> claim_torch(Resources(device="cpu"))
    device(type='cpu')
    """
    name = resources.device
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    if name.startswith("cuda") and not torch.cuda.is_available():
        raise ConfigurationError(f"device is {name!r}, but PyTorch sees no GPU here: use device='cpu'")
    device = torch.device("cuda", torch.cuda.current_device()) if name == "cuda" else torch.device(name)
    if device.type == "cuda":
        torch.cuda.set_device(device)
    if resources.threads is not None and torch.get_num_threads() != resources.threads:
        torch.set_num_threads(resources.threads)
    return device
