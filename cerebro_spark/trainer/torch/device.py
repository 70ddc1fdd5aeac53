"""The device on which PyTorch computes, and its random generators. Keras on PyTorch uses it too."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from cerebro_spark.errors import ConfigurationError
from cerebro_spark.trainer.resources import Resources
from cerebro_spark.trainer.torch.settings import claim_settings


def claim_torch_device(resources: Resources) -> torch.device:
    """Make the device of these resources the default of this process, and set its threads; return the device.

    Raises ConfigurationError for a GPU where PyTorch sees none.

    >>> claim_torch_device(Resources(device="cpu"))
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
    claim_settings()
    return device


def capture_torch(device: torch.device | None = None) -> dict[str, Any]:
    """Return the states of PyTorch's default generators: that of the host, and that of `device` if it is a GPU."""
    tree: dict[str, Any] = {"torch": torch.get_rng_state().numpy()}
    if device is not None and device.type == "cuda":
        tree["cuda"] = torch.cuda.get_rng_state(device).numpy()
    return tree


def restore_torch(tree: Any, device: torch.device | None = None) -> None:
    """Put the generators into the states that `capture_torch` returned."""
    torch.set_rng_state(torch.from_numpy(np.array(tree["torch"])))
    if device is None or device.type != "cuda":
        return
    if "cuda" in tree:
        torch.cuda.set_rng_state(torch.from_numpy(np.array(tree["cuda"])), device)
    else:
        # The checkpoint was written by a worker without a GPU: continue from a state that follows from it.
        torch.cuda.manual_seed(int(np.array(tree["torch"]).view(np.uint64).sum() & 0x7FFFFFFF))
