"""A long-lived process with one framework in it, to which tests send calls. Run as a script, it is that process."""

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
FRAMEWORKS = ("torch", "keras-tensorflow", "keras-torch")


class FrameworkProcess:
    """The caller's side: `call("scenario", ...)` runs that function of trainer_scenarios.py there.

    `call("module.scenario", ...)` runs one of another module.
    """

    def __init__(self, framework: str) -> None:
        self.framework = framework
        environment = {**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3", "PYTHONPATH": os.pathsep.join(sys.path)}
        if framework.startswith("keras-"):
            environment["KERAS_BACKEND"] = framework.removeprefix("keras-")
        self._process = subprocess.Popen(
            [sys.executable, __file__, framework],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=environment,
        )

    def call(self, scenario: str, **arguments: Any) -> Any:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps([scenario, arguments]) + "\n")
        self._process.stdin.flush()
        line = self._process.stdout.readline()
        assert line, f"the process ended with {self._process.wait()}"
        answer = json.loads(line)
        if "error" in answer:
            raise AssertionError(f"{scenario}({arguments}) raised in the other process:\n{answer['error']}")
        return answer["result"]

    def close(self) -> None:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        self._process.wait()
        self._process.stdout.close()


def serve(framework: str) -> None:
    channel = os.dup(1)
    os.dup2(2, 1)
    with os.fdopen(channel, "w") as answers, contextlib.suppress(KeyboardInterrupt):
        scenarios = importlib.import_module("trainer_scenarios")
        scenarios.start(framework)
        for line in sys.stdin:
            scenario, arguments = json.loads(line)
            try:
                module, _, name = scenario.rpartition(".")
                home = importlib.import_module(module) if module else scenarios
                answer = {"result": getattr(home, name)(**arguments)}
            except Exception:
                answer = {"error": traceback.format_exc()}
            answers.write(json.dumps(answer) + "\n")
            answers.flush()


if __name__ == "__main__":
    sys.path.insert(0, str(HERE))
    serve(sys.argv[1])
