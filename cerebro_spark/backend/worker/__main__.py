"""The process of a worker, or of a parent of workers: `python -m cerebro_spark.backend.worker [FILE FRAMEWORK]`.

Its spec comes through standard input. With a FILE, which is a descriptor, it loads the framework first; a line on
standard input says that the spec is in that file.

Standard input stays open as long as the parent lives. When it closes, the parent is gone, and the worker ends too.
"""

from __future__ import annotations

import logging
import os
import sys
import threading

import cloudpickle

from cerebro_spark.backend.wire.channel import WireError
from cerebro_spark.backend.worker.parent import ParentSpec, ThisWorker, run_parent
from cerebro_spark.backend.worker.preloading import preload
from cerebro_spark.backend.worker.session import OutputRelay, WorkerSpec, serve
from cerebro_spark.user_modules import import_sent_modules_first


def main(arguments: list[str]) -> None:
    """Run one worker, or one parent of workers, to its end."""
    # Warnings, and what the package itself has to say, go to standard error, and from there into the driver's log.
    logging.basicConfig(level=logging.WARNING)
    logging.getLogger("cerebro_spark").setLevel(logging.INFO)
    import_sent_modules_first()
    process = os.getpid()
    spec = _wait_for_spec(int(arguments[0]), arguments[1]) if arguments else cloudpickle.load(sys.stdin.buffer)
    try:
        # In a forked child it returns too, with the worker that the child is.
        worker = run_parent(spec) if isinstance(spec, ParentSpec) else ThisWorker(spec)
        if worker is not None:
            _work(worker)
    except (OSError, WireError) as error:
        print(f"{spec.name} ends: {error}", file=sys.stderr)
    if os.getpid() == process:  # else it was forked, and the folder is its parent's
        _remove_folder_of_torch()
    # Threads of frameworks may not end by themselves; all of ours have.
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)


def _remove_folder_of_torch() -> None:
    """Remove the folder that PyTorch makes when it is imported: it would do so if the interpreter ended by itself."""
    folder = getattr(sys.modules.get("torch.distributed.nn.jit.instantiator"), "_TEMP_DIR", None)
    if folder is not None:
        folder.cleanup()


def _wait_for_spec(file: int, framework: str) -> WorkerSpec:
    preload(framework)
    if not sys.stdin.buffer.readline():
        os._exit(1)
    with os.fdopen(file, "r+b") as source:
        source.seek(0)  # its writer has the same place in it
        spec: WorkerSpec = cloudpickle.load(source)
        os.ftruncate(file, 0)
    return spec


def _work(worker: ThisWorker) -> None:
    spec = worker.spec
    relay = OutputRelay()
    threading.Thread(target=_end_with_parent, args=(relay,), daemon=True).start()
    try:
        serve(spec, relay, worker.accept)
    except (OSError, WireError) as error:
        print(f"worker {spec.name} ends: {error}", file=sys.stderr)


def _end_with_parent(relay: OutputRelay) -> None:
    for raw in sys.stdin.buffer:
        relay(raw)
    os._exit(1)


if __name__ == "__main__":
    main(sys.argv[1:])
