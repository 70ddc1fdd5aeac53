"""Start a Hadoop cluster by hand, until Enter or Ctrl-C: `python -m hadoop`. It leaves nothing running behind."""

from __future__ import annotations

import argparse
import contextlib
import signal
import sys
import tempfile
import time
from pathlib import Path

from hadoop import jars
from hadoop.cluster import HadoopCluster
from hadoop.yarn import YarnCluster


def main(arguments: list[str] | None = None) -> int:
    options = _options(arguments)
    reason = jars.missing()
    if reason is not None:
        print(reason, file=sys.stderr)
        return 1
    print(
        f"Hadoop {jars.hadoop_version()}: fetching its jars where they are not there yet, then starting ...", flush=True
    )
    jars.classpath()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    with contextlib.ExitStack() as stack, contextlib.suppress(KeyboardInterrupt):
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="hadoop-", ignore_cleanup_errors=True)))
        begun = time.monotonic()
        cluster = stack.enter_context(HadoopCluster(folder / "cluster", options.datanodes, options.replication))
        conf_dir = cluster.conf_dir
        if options.nodemanagers:
            conf_dir = stack.enter_context(YarnCluster(cluster, options.nodemanagers)).conf_dir
        print(f"up in {time.monotonic() - begun:.1f} s: {cluster.url} (pages and JMX at {cluster.http})")
        print(f"  export HADOOP_CONF_DIR={conf_dir}", flush=True)
        print("Enter or Ctrl-C stops it.", flush=True)
        if not sys.stdin.readline():
            signal.pause()  # no terminal to press Enter at: stay until a signal
    return 0


def _options(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m hadoop", description=__doc__)
    parser.add_argument("--datanodes", type=int, default=3)
    parser.add_argument("--replication", type=int, default=2)
    parser.add_argument("--nodemanagers", type=int, default=0, help="also start YARN with that many node managers")
    return parser.parse_args(arguments)


if __name__ == "__main__":
    sys.exit(main())
