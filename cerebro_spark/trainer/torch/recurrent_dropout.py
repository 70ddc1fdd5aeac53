"""Dropout between the layers of an RNN, LSTM or GRU on a GPU. cuDNN draws for it from a state of its own.

That state goes on from batch to batch, and PyTorch begins it anew, by a number of its generator, once that was set. So
what is dropped would depend on when somebody looked at the generator last. Here it begins anew with every batch.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch


def find_dropping(module: torch.nn.Module, device: torch.device) -> list[torch.nn.Module]:
    """Return the recurrent layers of a module for whose dropout cuDNN draws; none on a CPU.

    >>> layers = torch.nn.ModuleList([torch.nn.LSTM(2, 2), torch.nn.GRU(2, 2, num_layers=2, dropout=0.5)])
    >>> find_dropping(layers, torch.device("cuda")), find_dropping(layers, torch.device("cpu"))
    ([GRU(2, 2, num_layers=2, dropout=0.5)], [])
    """
    if device.type != "cuda":
        return []
    recurrent = [part for part in module.modules() if isinstance(part, torch.nn.RNNBase)]
    return [part for part in recurrent if part.dropout > 0 and part.num_layers > 1]


def begin_anew(dropping: Sequence[torch.nn.Module]) -> None:
    """Have what these layers drop next depend on the generator of the GPU alone.

    Args:
        dropping: The layers, of which those count that are training.

    Raises:
        RuntimeError: A graph is being recorded, which would repeat the kernels, and draw nothing anew.
    """
    if not any(layer.training for layer in dropping):
        return
    if torch.cuda.is_current_stream_capturing():
        raise RuntimeError("dropout between the layers of an RNN, LSTM or GRU begins anew with every batch")
    generator = torch.cuda.default_generators[torch.cuda.current_device()]
    generator.set_state(generator.get_state())
