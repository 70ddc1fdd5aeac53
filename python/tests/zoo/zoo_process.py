"""A process that holds models of one framework. It is told by lines of JSON which part of the law to run on which.

Run as a script, it is that process. Nothing in it reaches the network: whoever tries is refused.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import subprocess
import sys
import traceback
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
OFFLINE = {"HF_HUB_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1", "HF_DATASETS_OFFLINE": "1"}


class ZooProcess:
    """The caller's side: `ask` sends off a part of the law, `answer` waits for what came of it."""

    def __init__(self, framework: str) -> None:
        quiet = {"TF_CPP_MIN_LOG_LEVEL": "3", "TOKENIZERS_PARALLELISM": "false"}
        environment = {**os.environ, **OFFLINE, **quiet, "PYTHONPATH": os.pathsep.join(sys.path)}
        if framework.startswith("keras-"):
            environment["KERAS_BACKEND"] = framework.removeprefix("keras-")
        self._process = subprocess.Popen(
            [sys.executable, __file__, framework],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=environment,
        )

    @property
    def alive(self) -> bool:
        return self._process.poll() is None

    def ask(self, part: str, name: str, folder: Path) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps([part, name, str(folder)]) + "\n")
        self._process.stdin.flush()

    def answer(self) -> Any:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        assert line, f"the process ended with {self._process.wait()}"
        return json.loads(line)

    def close(self) -> None:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.close()
        self._process.wait()
        self._process.stdout.close()


def serve(framework: str) -> None:
    """Answer calls until nobody calls any more; the answers have a channel of their own, apart from what is printed."""
    channel = os.dup(1)
    os.dup2(2, 1)
    with os.fdopen(channel, "w") as answers, contextlib.suppress(KeyboardInterrupt):
        keeper = importlib.import_module("zoo_keeper")
        keeper.start(framework)
        for line in sys.stdin:
            part, name, folder = json.loads(line)
            try:
                answer = keeper.run(part, name, Path(folder))
            except Exception:
                answer = {"error": traceback.format_exc()}
            answers.write(json.dumps(answer) + "\n")
            answers.flush()


if __name__ == "__main__":
    sys.path.insert(0, str(HERE))
    serve(sys.argv[1])
