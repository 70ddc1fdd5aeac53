"""Run one command that dies with whoever holds this process's standard input. It never restarts it.

`python guard.py command...` starts the command and waits. One byte on the standard input, or its end (the holder
is gone, however it went), kills the command at once; the command's own end is this process's end. The kernel kills
the command too when this process is killed.
"""

import ctypes
import os
import select
import signal
import sys

_PR_SET_PDEATHSIG = 1


def main(command: list[str]) -> int:
    guard = os.getpid()
    child = os.fork()
    if child == 0:
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != guard:
            os._exit(1)
        os.execvp(command[0], command)
    ended = os.pidfd_open(child)
    ready, _, _ = select.select([sys.stdin.fileno(), ended], [], [])
    if ended not in ready:
        os.kill(child, signal.SIGKILL)
    _, status = os.waitpid(child, 0)
    return os.waitstatus_to_exitcode(status)


if __name__ == "__main__":
    # A command killed by signal n ends this process with 128 + n, as shells say it.
    code = main(sys.argv[1:])
    sys.exit(code if code >= 0 else 128 - code)
