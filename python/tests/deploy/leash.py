"""Run one command whose whole process group dies with whoever holds this process's standard input.

`python leash.py command...`, started in a session of its own. A shell, what it starts and what that starts are all in
the group: none of it is left when the tests are killed. The command's own end is this process's end.
"""

import os
import select
import signal
import sys


def main(command: list[str]) -> int:
    child = os.fork()
    if child == 0:
        nothing = os.open(os.devnull, os.O_RDONLY)
        os.dup2(nothing, 0)  # the pipe is not the command's to read
        os.execvp(command[0], command)
    ended = os.pidfd_open(child)
    ready, _, _ = select.select([sys.stdin.fileno(), ended], [], [])
    if ended not in ready:
        os.killpg(0, signal.SIGKILL)
    _, status = os.waitpid(child, 0)
    return os.waitstatus_to_exitcode(status)


if __name__ == "__main__":
    code = main(sys.argv[1:])
    sys.exit(code if code >= 0 else 128 - code)
