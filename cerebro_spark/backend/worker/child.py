"""A worker process as its parent of workers sees it: forked, or spawned and loading its framework. It never blocks."""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import subprocess
import sys
from collections import deque
from collections.abc import Callable
from functools import partial

import cloudpickle

from cerebro_spark.backend.wire.messages import OutputLine
from cerebro_spark.backend.worker.output import LineQuota, LineReader
from cerebro_spark.backend.worker.process import LAST_WORDS
from cerebro_spark.backend.worker.session import WorkerSpec

_PR_SET_PDEATHSIG = 1
_BYTES_AT_ONCE = 1 << 16
OnChildLine = Callable[[int, OutputLine], None]


class ChildStream:
    """The reading end of a pipe into which a child prints.

    Args:
        number: The file descriptor.
        reader: Makes lines of what comes.
    """

    def __init__(self, number: int, reader: LineReader) -> None:
        os.set_blocking(number, False)
        self.number = number
        self._reader = reader

    def read(self) -> bool:
        """Take in what is there; return whether more can come."""
        try:
            data = os.read(self.number, _BYTES_AT_ONCE)
        except BlockingIOError:
            return True
        self._reader.feed(data)
        return bool(data)

    def drain(self) -> None:
        """Take in all that is there, of a child that has ended; processes that it left behind are not waited for."""
        try:
            while data := os.read(self.number, _BYTES_AT_ONCE):
                self._reader.feed(data)
        except BlockingIOError:
            pass  # somebody else holds the other end
        self._reader.end()
        os.close(self.number)


class Child:
    """A child process.

    Args:
        number: The worker's number, as the driver counts.
        pid: Its process.
        poll: Returns its exit code; None while it runs.
        stdin: The writing end of its standard input. It stays open as long as this process lives.
        outputs: The reading ends of its standard output and its standard error.
        on_line: Called with the child's number and every line that it prints.
    """

    def __init__(
        self,
        number: int,
        pid: int,
        poll: Callable[[], int | None],
        stdin: int,
        outputs: tuple[int, int],
        on_line: OnChildLine,
    ) -> None:
        self.number = number
        self.words: deque[str] = deque(maxlen=LAST_WORDS)
        self._pid = pid
        self._poll = poll
        self._stdin = stdin
        quota = LineQuota()

        def pass_on(line: OutputLine) -> None:
            on_line(self.number, line)

        self.streams = [
            ChildStream(outputs[0], LineReader(False, quota, pass_on, lambda text: None)),
            ChildStream(outputs[1], LineReader(True, quota, pass_on, self.words.append)),
        ]
        self.untaken: WorkerSpec | None = None
        self.killed = False
        self._spec: int | None = None
        self._given = False

    def give_through(self, spec: int) -> Child:
        """Have `give` write into this file, which the child has open too, and empties when it has taken the spec."""
        self._spec = spec
        return self

    def give(self, spec: WorkerSpec) -> None:
        """Hand over what the worker is. Nothing waits for the child to read it."""
        assert self._spec is not None, "a forked child has its spec"
        with os.fdopen(self._spec, "wb", closefd=False) as file:
            cloudpickle.dump(spec, file)
        self._given = True
        try:
            os.write(self._stdin, b"\n")
        except BrokenPipeError:
            self.words.append("(it ended before it had its job)")

    def has_ended(self) -> bool:
        """Return whether the child has ended; then its last words are known, and its pipes are closed.

        `untaken` is what it was given and has not taken, if so.
        """
        code = self._poll()
        if code is None:
            return False
        for stream in self.streams:
            stream.drain()
        if code:
            self.words.append(f"(its process ended with code {code})")
        os.close(self._stdin)
        if self._spec is not None:
            left = os.pread(self._spec, os.fstat(self._spec).st_size, 0)
            self.untaken = cloudpickle.loads(left) if left and self._given else None
            os.close(self._spec)
        return True

    def disown(self) -> None:
        """Close, in another child of the parent, all that leads to this one."""
        for number in (*(stream.number for stream in self.streams), self._stdin, self._spec):
            if number is not None:
                os.close(number)

    def wait(self) -> None:
        """Wait until a child that was killed has ended: then it holds nothing any more."""
        with contextlib.suppress(ChildProcessError):  # it was waited for already
            os.waitpid(self._pid, 0)

    def kill(self) -> None:
        """End the child; it has not been waited for, so its number is still its own."""
        self.killed = True
        os.kill(self._pid, signal.SIGKILL)


def fork_child(number: int, on_line: OnChildLine) -> Child | None:
    """Fork this process; return the child, and in the child None, with standard streams of its own.

    Args:
        number: The worker's number.
        on_line: Called with the number and every line that the child prints.
    """
    sys.stdout.flush()
    sys.stderr.flush()
    pipes = [os.pipe(), os.pipe(), os.pipe()]
    (stdin, give), (hear, stdout), (hear_errors, stderr) = pipes
    parent = os.getpid()
    pid = os.fork()
    if pid:
        for theirs in (stdin, stdout, stderr):
            os.close(theirs)
        return Child(number, pid, partial(_exit_code, pid), give, (hear, hear_errors), on_line)
    for place, ours in enumerate((stdin, stdout, stderr)):
        os.dup2(ours, place)
    for end in (end for pipe in pipes for end in pipe):
        os.close(end)
    _begin_anew(parent)
    return None


def _begin_anew(parent: int) -> None:
    """Make a forked process one like any new one: with an input of its own, and random numbers of its own."""
    sys.stdin = os.fdopen(0, closefd=False)
    # Also if the worker is deep in a computation and would not notice that its input ends.
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(1)
    # Python's own generator does this by itself; PyTorch's begins with the same number in every process.
    if (numpy := sys.modules.get("numpy")) is not None:
        numpy.random.seed()


def _exit_code(pid: int) -> int | None:
    ended, status = os.waitpid(pid, os.WNOHANG)
    return os.waitstatus_to_exitcode(status) if ended else None


def spawn_child(framework: str | None, on_line: OnChildLine) -> Child:
    """Start a new process that loads a framework and then waits for its spec; return it, without a number yet.

    Args:
        framework: "torch" or "keras"; None loads none.
        on_line: Called with the child's number and every line that it prints.
    """
    spec = os.memfd_create("spec")
    process = subprocess.Popen(
        [sys.executable, "-m", "cerebro_spark.backend.worker", str(spec), framework or ""],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        pass_fds=(spec,),
    )
    assert process.stdin is not None
    assert process.stdout is not None
    assert process.stderr is not None
    # Copies, which the process's own objects do not close.
    stdin, stdout, stderr = (os.dup(stream.fileno()) for stream in (process.stdin, process.stdout, process.stderr))
    for stream in (process.stdin, process.stdout, process.stderr):
        stream.close()
    return Child(-1, process.pid, process.poll, stdin, (stdout, stderr), on_line).give_through(spec)
