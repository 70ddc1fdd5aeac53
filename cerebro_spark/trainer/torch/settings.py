"""Settings of PyTorch that hold for a whole process. A trial may have its own, which hop with it and reach no other."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
from torch.backends import cudnn

Settings = dict[str, Any]
"""What a trial has set otherwise than the process: the default dtype, and other settings by name."""


class _Setting(NamedTuple):
    """How a setting is read and written."""

    read: Callable[[], Any]
    write: Callable[[Any], Any]


def _attribute(owner: Any, name: str) -> _Setting:
    return _Setting(lambda: getattr(owner, name), lambda value: setattr(owner, name, value))


def _read_determinism() -> list[bool]:
    return [torch.are_deterministic_algorithms_enabled(), torch.is_deterministic_algorithms_warn_only_enabled()]


def _read_anomaly_detection() -> list[bool]:
    return [torch.is_anomaly_enabled(), torch.is_anomaly_check_nan_enabled()]


def _read_autocast() -> list[Any]:
    return [
        [torch.is_autocast_enabled(kind), str(torch.get_autocast_dtype(kind)).removeprefix("torch.")]
        for kind in ("cpu", "cuda")
    ]


def _write_autocast(modes: list[Any]) -> None:
    for kind, (enabled, dtype) in zip(("cpu", "cuda"), modes, strict=True):
        torch.set_autocast_enabled(kind, enabled)
        torch.set_autocast_dtype(kind, getattr(torch, dtype))


def _flushes_denormals() -> bool:
    """Return whether numbers below 1e-38 count as zero, which nobody but the processor knows."""
    return float(torch.tensor(1e-39, device="cpu", dtype=torch.float32) * 1) == 0.0


def _read_default_device() -> str:
    """Return the kind of the default device; the number of a GPU is another on each worker."""
    return torch.empty(0).device.type


def _write_default_device(kind: str) -> None:
    torch.set_default_device(None if kind == "cpu" else kind)
    context: Any = getattr(torch, "_GLOBAL_DEVICE_CONTEXT", None)
    if kind == "cpu" and getattr(context, "device_context", context) is None:
        del context.device_context  # with None there `torch.get_default_device` fails, as of PyTorch 2.8


_SETTINGS = {
    "threads": _Setting(torch.get_num_threads, torch.set_num_threads),
    "float32_matmul_precision": _Setting(torch.get_float32_matmul_precision, torch.set_float32_matmul_precision),
    "deterministic_algorithms": _Setting(
        _read_determinism, lambda value: torch.use_deterministic_algorithms(value[0], warn_only=value[1])
    ),
    "detect_anomaly": _Setting(
        _read_anomaly_detection, lambda value: torch.autograd.set_detect_anomaly(value[0], check_nan=value[1])
    ),
    "cudnn.benchmark": _attribute(cudnn, "benchmark"),
    "cudnn.deterministic": _attribute(cudnn, "deterministic"),
    "cudnn.enabled": _attribute(cudnn, "enabled"),
    "default_device": _Setting(_read_default_device, _write_default_device),
    "flush_denormal": _Setting(_flushes_denormals, torch.set_flush_denormal),
}
if hasattr(torch, "set_autocast_dtype"):  # since PyTorch 2.4
    _SETTINGS["autocast"] = _Setting(_read_autocast, _write_autocast)


class _Own:
    """The settings of the process itself."""

    default_dtype = torch.get_default_dtype()
    values: Mapping[str, Any] = {}


def claim_settings() -> None:
    """Note the settings as they are now: they are the process's own."""
    _Own.default_dtype = torch.get_default_dtype()
    _Own.values = {name: setting.read() for name, setting in _SETTINGS.items()}


def capture_settings() -> Settings:
    """Return what is set otherwise than the process's own, in a form that a checkpoint can hold; mostly nothing."""
    found: Settings = {}
    dtype = torch.get_default_dtype()
    if dtype != _Own.default_dtype:
        found["default_dtype"] = str(dtype).removeprefix("torch.")
    changed = {name: value for name, own in _Own.values.items() if (value := _SETTINGS[name].read()) != own}
    return {**found, "settings": changed} if changed else found


def restore_settings(settings: Mapping[str, Any]) -> None:
    """Set what `capture_settings` returned, and all else to the process's own.

    Args:
        settings: That, or anything that has its entries.
    """
    dtype = getattr(torch, settings["default_dtype"]) if "default_dtype" in settings else _Own.default_dtype
    if dtype != torch.get_default_dtype():
        torch.set_default_dtype(dtype)
    changed = settings.get("settings", {})
    for name, own in _Own.values.items():
        value = changed.get(name, own)
        if _SETTINGS[name].read() != value:
            _SETTINGS[name].write(value)


@contextmanager
def using_settings(settings: Settings) -> Iterator[None]:
    """Have these settings for a block."""
    outer = capture_settings()
    restore_settings(settings)
    try:
        yield
    finally:
        restore_settings(outer)
