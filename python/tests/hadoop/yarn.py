"""A resource manager and node managers beside an HDFS cluster. It never listens on any interface but loopback."""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from types import TracebackType
from typing import Any, Self

from hadoop.cluster import HadoopCluster
from hadoop.daemon import Daemon, Here, free_ports, write_settings

_YARN = "org.apache.hadoop.yarn.server"


class YarnCluster:
    """Real YARN daemons beside those of HDFS: the resource manager on 127.0.0.1, node managers on .2, .3, ...

    `conf_dir` serves clients of both. Each node manager offers `memory_mb` and `cores`; they are what it grants, not
    what it takes. With `limits_memory` a container that takes more than it was granted is killed, if only for a moment.

    >>> with HadoopCluster(folder) as hdfs, YarnCluster(hdfs) as yarn:      # doctest: +SKIP
    ...     yarn.nodemanagers[1].kill()
    ...     yarn.wait_active(1)
    """

    def __init__(
        self,
        hdfs: HadoopCluster,
        nodemanagers: int = 2,
        memory_mb: int = 4096,
        cores: int = 4,
        limits_memory: bool = False,
    ) -> None:
        self._limits_memory = limits_memory
        self.folder = hdfs.folder / ("limiting-yarn" if limits_memory else "yarn")
        self.conf_dir = self.folder / "client-conf"
        self._taken: set[int] = set()
        client, scheduler, tracker, admin, http = free_ports("127.0.0.1", 5, self._taken)
        self.http = f"http://127.0.0.1:{http}"
        self.settings = hdfs.settings | {
            "yarn.resourcemanager.hostname": "127.0.0.1",
            "yarn.resourcemanager.address": f"127.0.0.1:{client}",
            "yarn.resourcemanager.scheduler.address": f"127.0.0.1:{scheduler}",
            "yarn.resourcemanager.resource-tracker.address": f"127.0.0.1:{tracker}",
            "yarn.resourcemanager.admin.address": f"127.0.0.1:{admin}",
            "yarn.resourcemanager.webapp.address": f"127.0.0.1:{http}",
        }
        write_settings(self.conf_dir, self.settings)
        self.resourcemanager = Daemon(
            "resourcemanager",
            f"{_YARN}.resourcemanager.ResourceManager",
            self.folder,
            Here("127.0.0.1"),
            self._rm_settings(),
        )
        self.nodemanagers = [self._nodemanager(number, memory_mb, cores) for number in range(nodemanagers)]

    def start(self, timeout: float = 300) -> Self:
        """Start everything and wait until all node managers are active."""
        try:
            self.resourcemanager.start()
            for nodemanager in self.nodemanagers:
                nodemanager.start()
            self.wait_active(len(self.nodemanagers), timeout)
        except BaseException:
            self.stop()
            raise
        return self

    def stop(self) -> None:
        """Kill every daemon."""
        for daemon in (*self.nodemanagers, self.resourcemanager):
            daemon.kill()

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def wait_active(self, count: int, timeout: float = 300) -> None:
        """Wait until the resource manager counts exactly `count` active node managers."""
        self.resourcemanager.await_(
            lambda: self._metrics().get("activeNodes") == count, f"count {count} active node managers", timeout
        )

    def _metrics(self) -> dict[str, Any]:
        """The resource manager's counts, empty while its web server does not answer."""
        try:
            with urllib.request.urlopen(f"{self.http}/ws/v1/cluster/metrics", timeout=2) as answer:
                return dict(json.load(answer)["clusterMetrics"])
        except urllib.error.HTTPError as error:
            error.close()
            return {}
        except (urllib.error.URLError, TimeoutError, ConnectionError, json.JSONDecodeError):
            return {}

    def _rm_settings(self) -> dict[str, str]:
        return self.settings | {
            # The default scheduler wants a file of queues; first come, first served wants none.
            "yarn.resourcemanager.scheduler.class": f"{_YARN}.resourcemanager.scheduler.fifo.FifoScheduler",
            "yarn.scheduler.minimum-allocation-mb": "128",
            "yarn.nm.liveness-monitor.expiry-interval-ms": "5000",
            "yarn.resourcemanager.nodemanagers.heartbeat-interval-ms": "500",
            "yarn.webapp.ui2.enable": "false",
        }

    def _nodemanager(self, number: int, memory_mb: int, cores: int) -> Daemon:
        host = f"127.0.0.{number + 2}"
        ports = free_ports(host, 4, self._taken)
        names = ("address", "localizer.address", "webapp.address", "collector-service.address")
        settings = self.settings | {
            **{f"yarn.nodemanager.{name}": f"{host}:{port}" for name, port in zip(names, ports, strict=True)},
            "yarn.nodemanager.hostname": host,
            "yarn.nodemanager.local-dirs": str(self.folder / f"local-{number}"),
            "yarn.nodemanager.log-dirs": str(self.folder / f"logs-{number}"),
            "yarn.nodemanager.resource.memory-mb": str(memory_mb),
            "yarn.nodemanager.resource.cpu-vcores": str(cores),
            "yarn.nodemanager.vmem-check-enabled": "false",
            "yarn.nodemanager.pmem-check-enabled": str(self._limits_memory).lower(),
            "yarn.nodemanager.container-monitor.interval-ms": "50" if self._limits_memory else "500",
            "yarn.nodemanager.disk-health-checker.max-disk-utilization-per-disk-percentage": "99.5",
        }
        return Daemon(f"nodemanager-{number}", f"{_YARN}.nodemanager.NodeManager", self.folder, Here(host), settings)
