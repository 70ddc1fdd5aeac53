"""Links between the members of a group: collectives of PyTorch over gloo, or over NCCL between GPUs. It never trains.

A member that dies closes its connections, and gloo notices at once. One that is frozen closes nothing, and PyTorch has
no way to end a collective that waits for it. So a collective is waited for in slices, and left if this member is told
to. What is left of it ends once the frozen process does, or after a while, in a thread of its own.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any, Self

import torch
from torch import distributed

from cerebro_spark.trainer.group import Group, GroupBroken, Meeting

_SLICE = timedelta(milliseconds=5)
_LONG_SLICE = timedelta(seconds=1)
_SECONDS_TO_CONNECT = 30.0
_LONG = 1.0
"""Seconds after which a wait for others is told."""
_PATIENCE = 600.0
"""Seconds after which a member that does not answer is given up, if nobody else has done so: no step takes as long."""


class MeetingStore(distributed.Store):  # type: ignore[misc, name-defined]
    """A meeting as PyTorch wants it.

    Args:
        meeting: The meeting.

    Attributes:
        waits: Whether a value is waited for now, which takes as long as a member is busy with something else.
        asked: How often something was asked.
    """

    def __init__(self, meeting: Meeting) -> None:
        super().__init__()
        self._meeting = meeting
        self.waits = False
        self.asked = 0

    def set(self, key: str, value: str | bytes) -> None:
        self._meeting.set(key, value.encode() if isinstance(value, str) else bytes(value))

    def get(self, key: str) -> bytes:
        self.waits = True
        try:
            return self._meeting.get(key)
        finally:
            self.asked += 1
            self.waits = False

    def add(self, key: str, amount: int) -> int:
        return self._meeting.add(key, amount)

    def check(self, keys: Sequence[str]) -> bool:
        return self._meeting.has(keys)

    def wait(self, keys: Sequence[str], timeout: timedelta | None = None) -> None:
        """Wait without a limit: whoever waits for a member that does not come is told to leave."""
        for key in keys:
            self.get(key)


class _Wait:
    """A wait for other members. One that is long is told; if that is in vain, there is an end of it some time.

    Args:
        meeting: Where the members met.
        patience: Seconds after which it ends in any case; None for never.
    """

    def __init__(self, meeting: Meeting, patience: float | None = _PATIENCE) -> None:
        self._meeting = meeting
        self._patience = patience
        self._began = time.monotonic()
        self._told = False

    def go_on(self) -> None:
        """Look how long it has been. Raises GroupBroken if this member is to leave, or has waited long enough."""
        if self._meeting.left.is_set():
            raise GroupBroken("this member was told to leave")
        seconds = time.monotonic() - self._began
        if self._patience is not None and seconds > self._patience:
            raise GroupBroken(f"another member has not answered for {self._patience:g} s")
        if seconds > _LONG and not self._told:
            self._told = True
            self._meeting.tell_stalled(over=False)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        if self._told:
            self._meeting.tell_stalled(over=True)


class TorchLinks(Group):
    """Links by collectives of PyTorch.

    Args:
        process_group: What PyTorch calls a group.
        meeting: Where its members met.
        device: Where the tensors are that collectives take.
    """

    def __init__(self, process_group: Any, meeting: Meeting, device: torch.device) -> None:
        self.rank, self.size = meeting.rank, meeting.size
        self.exchanged = 0
        self._meeting = meeting
        self._device = device
        self._process_group: Any = process_group
        self._work: Any = None
        """The collective that is under way, or that never ended."""

    def sum(self, values: torch.Tensor) -> None:
        moved = values.to(self._device)
        self._run(lambda group: group.allreduce([moved]), 2 * moved.nbytes)
        if moved is not values:
            values.copy_(moved)

    def gather(self, data: bytes) -> list[bytes]:
        # Sums, in which each member has a place of its own: the only collective that is needed.
        sizes = torch.zeros(self.size, dtype=torch.int64)
        sizes[self.rank] = len(data)
        self.sum(sizes)
        longest = int(sizes.max())
        places = torch.zeros(self.size, longest, dtype=torch.uint8)
        places[self.rank, : len(data)] = torch.frombuffer(bytearray(data), dtype=torch.uint8)
        self.sum(places)
        return [place.numpy()[:size].tobytes() for place, size in zip(places, sizes.tolist(), strict=True)]

    def gather_parts(self, output: torch.Tensor, part: torch.Tensor) -> None:
        """Gather what each member has into one tensor, by rank.

        Args:
            output: Where it is written to, as many times as large as a part as there are members.
            part: What this member has. All have as much.
        """
        whole, own = output.to(self._device), part.to(self._device)
        if whole is output and own is part:
            own = part.clone()  # it may be a piece of the output
        self._run(lambda group: group._allgather_base(_as_bytes(whole), _as_bytes(own)), whole.nbytes)
        if whole is not output:
            output.copy_(whole)

    def sum_parts(self, output: torch.Tensor, values: torch.Tensor) -> None:
        """Add up a tensor over all members, each of which keeps a part of the sum.

        Args:
            output: Where this member's part is written to.
            values: What it adds, with a part for each member, by rank. Its content is lost.
        """
        if self._device.type == "cuda":
            self._run(lambda group: group._reduce_scatter_base(output, values), values.nbytes)
            return
        # Gloo sums everything up anyway, and its work of this kind never says that it is completed.
        self.sum(values)
        output.copy_(values.view(self.size, -1)[self.rank].view_as(output))

    def close(self) -> None:
        process_group, work = self._process_group, self._work
        self._process_group = self._work = None
        if work is not None:
            # A process group ends all of its work first, and keeps every thread of Python waiting meanwhile. So it must
            # not be freed before there is none: when its time is over, or the member that froze is gone.
            kept, on_gpu = [process_group, work], self._device.type == "cuda"
            threading.Thread(target=_outlive, args=(kept, on_gpu), name="old-group", daemon=True).start()

    def _run(self, collective: Callable[[Any], Any], passed: int) -> None:
        """Run a collective to its end. Raises GroupBroken if it has none.

        Args:
            collective: Starts it on what PyTorch calls a group.
            passed: The bytes that go around a ring of the members, in which all but one pass them on. What goes around
                twice counts twice.
        """
        if self._process_group is None or self._work is not None:
            raise GroupBroken("the links to the other members are broken")
        try:
            self._work = collective(self._process_group)
            self._wait(self._work)
        except RuntimeError as error:
            raise GroupBroken(f"another member is gone: {_first_line(error)}") from None
        self._work = None
        self.exchanged += (self.size - 1) * passed

    def _wait(self, work: Any) -> None:
        with _Wait(self._meeting) as wait:
            while not work.is_completed():
                wait.go_on()
                if self._device.type == "cuda":
                    time.sleep(0)  # work on a GPU is waited for by the GPU only
                    continue
                with contextlib.suppress(RuntimeError):  # the time is over, or it has failed: then it is completed
                    work.wait(_SLICE)
        work.wait()


def _as_bytes(tensor: torch.Tensor) -> torch.Tensor:
    """Return a tensor as it lies in memory: all that is gathered comes as it was, whatever its dtype."""
    return tensor.view(-1).view(torch.uint8)


def _outlive(kept: list[Any], on_gpu: bool) -> None:
    """Free a process group once its work has ended.

    Args:
        kept: The process group and its work. Nobody else may have the first of them.
        on_gpu: Whether it is NCCL's, whose kernels would wait on the GPU for ever.
    """
    work = kept[1]
    if on_gpu:
        kept[0].abort()
    while not work.is_completed():
        with contextlib.suppress(RuntimeError):  # the time is over
            work.wait(_LONG_SLICE)
    kept.clear()


def join_group(meeting: Meeting, device: torch.device) -> TorchLinks:
    """Return links to the other members, once all of them have come.

    Args:
        meeting: Where they meet.
        device: Where this member computes.

    Raises:
        GroupBroken: Others cannot be reached, or this member is to leave.
    """
    connecting = _Connecting(meeting, device)
    # In a thread of its own, since a member that freezes just now would keep it waiting.
    threading.Thread(target=connecting.run, name="join-group", daemon=True).start()
    found = connecting.wait()
    if isinstance(found, GroupBroken):
        raise found
    if isinstance(found, Exception):
        raise GroupBroken(
            f"the members of a group cannot reach each other ({_first_line(found)}): workers must be able to connect to"
            " each other, at any port of the addresses by which they reach the driver; with workers_per_trial=1 they"
            " need not"
        )
    return TorchLinks(found, meeting, device if connecting.uses_gpus else torch.device("cpu"))


class _Connecting:
    """An attempt to connect to all other members."""

    def __init__(self, meeting: Meeting, device: torch.device) -> None:
        self.uses_gpus = False
        self._meeting = meeting
        self._device = device
        self._store = MeetingStore(meeting)
        self._found: Any = None
        self._done = threading.Event()

    def run(self) -> None:
        try:
            self.uses_gpus = self._has_gpu_of_its_own()
            self._found = self._connect_gpus() if self.uses_gpus else self._connect_hosts()
        except Exception as error:
            self._found = error
        finally:
            self._done.set()

    def wait(self) -> Any:
        """Return what PyTorch calls a group, or what went wrong. Raises GroupBroken if this member is to leave."""
        asked, since = 0, time.monotonic()
        with _Wait(self._meeting, patience=None) as wait:
            while not self._done.wait(_SLICE.total_seconds()):
                wait.go_on()
                if self._store.waits or self._store.asked != asked:
                    asked, since = self._store.asked, time.monotonic()
                elif time.monotonic() > since + _SECONDS_TO_CONNECT:
                    return TimeoutError(f"no connection after {_SECONDS_TO_CONNECT:g} s")
        return self._found

    def _connect_hosts(self) -> Any:
        """Connect by gloo, at the address at which this machine talks to the driver and at no other."""
        gloo: Any = distributed.ProcessGroupGloo
        options = gloo._Options()
        options._timeout = timedelta(seconds=_PATIENCE)
        options._devices = [gloo.create_device(hostname=self._meeting.address)]
        return gloo(self._store, self._meeting.rank, self._meeting.size, options)

    def _connect_gpus(self) -> Any:
        """Connect by NCCL. Groups of one GPU are tested, those of several GPUs in one host could not be tried."""
        nccl: Any = distributed.ProcessGroupNCCL
        options = nccl.Options()
        options._timeout = timedelta(seconds=_PATIENCE)
        group = nccl(self._store, self._meeting.rank, self._meeting.size, options)
        group.allreduce([torch.zeros(1, device=self._device)]).wait()  # it connects at its first collective
        return group

    def _has_gpu_of_its_own(self) -> bool:
        """Whether all members compute on GPUs, each on another one, so that NCCL can link them."""
        rank, size, own = self._meeting.rank, self._meeting.size, ""
        if self._device.type == "cuda" and distributed.is_nccl_available():
            own = str(torch.cuda.get_device_properties(self._device).uuid)
        self._store.set(f"gpu/{rank}", own)
        if not own:
            return False
        gpus = [self._store.get(f"gpu/{other}") for other in range(size)]
        return b"" not in gpus and len(set(gpus)) == size


def _first_line(error: Exception) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0]
