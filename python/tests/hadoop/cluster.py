"""A name node and data nodes, on loopback addresses of this machine or on hosts of a test, and nowhere else."""

from __future__ import annotations

import getpass
import json
import shutil
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from hadoop.daemon import Daemon, Here, Place, free_ports, wait_for, write_settings

_HDFS = "org.apache.hadoop.hdfs.server"
_USUAL_HTTP_PORT = 9870


class HadoopCluster:
    """Real HDFS daemons, each a process with its own address: the name node on 127.0.0.1, data nodes on .2, .3, ...

    With `places` they are there instead: the name node at the first, data nodes at the others. What a data node stores
    is in the folder of `disks` for its address, or beside all else.

    >>> with HadoopCluster(tmp_path) as cluster:      # doctest: +SKIP
    ...     cluster.url                               # "hdfs://127.0.0.1:20321"
    ...     cluster.datanodes[0].kill()
    ...     cluster.wait_live(2)
    ...     cluster.revive(cluster.datanodes[0])
    """

    def __init__(
        self,
        folder: Path,
        datanodes: int = 3,
        replication: int = 2,
        block_size: int = 16 << 20,
        places: Sequence[Place] = (),
        disks: Mapping[str, Path] | None = None,
    ) -> None:
        self.folder = folder
        self._disks = disks or {}
        self._master, *others = places or [Here(f"127.0.0.{number + 1}") for number in range(datanodes + 1)]
        self.conf_dir = folder / "client-conf"
        self._ports: set[int] = set()
        self.data_ports: dict[str, int] = {}
        self._datanode_http: dict[str, str] = {}
        master = self._master.address
        rpc, http = self._master.call(free_ports, master, 2, self._ports)
        if places:
            http = _USUAL_HTTP_PORT  # nobody else is at that address, and clients find it without a setting
        self.url = f"hdfs://{master}:{rpc}"
        self.http = f"http://{master}:{http}"
        self.settings = _client_settings(self.url, replication, block_size, f"{master}:{http}")
        self.namenode = Daemon(
            "namenode", f"{_HDFS}.namenode.NameNode", folder, self._master, self._namenode_settings()
        )
        self.datanodes = [self._datanode(number, place) for number, place in enumerate(others)]

    def start(self, timeout: float = 300) -> Self:
        """Format, start everything, and wait until all data nodes are live and the name node takes writes."""
        write_settings(self.conf_dir, self.settings)
        self.namenode.run_once("-format", "-nonInteractive", "-force")
        try:
            self.namenode.start()
            for datanode in self.datanodes:
                datanode.start()
            self.wait_live(len(self.datanodes), timeout)
            self.wait_writable(timeout)
        except BaseException:
            self.stop()
            raise
        return self

    def stop(self) -> None:
        """Kill every daemon; what they stored stays in the folder."""
        for daemon in (*self.datanodes, self.namenode):
            daemon.kill()

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()
        shutil.rmtree(self.folder, ignore_errors=True)

    def wait_live(self, count: int, timeout: float = 300) -> None:
        """Wait until the name node counts exactly `count` live data nodes; a killed one is given up after some 11 s.

        Until then it counts one that is down, or is just being started: see `revive`.
        """

        def ready() -> bool:
            return bool(self._namenode_bean("FSNamesystemState").get("NumLiveDataNodes") == count)

        self.namenode.await_(ready, f"count {count} live data nodes", timeout)

    def revive(self, datanode: Daemon, timeout: float = 300) -> None:
        """Start a killed data node, and wait until it says itself that the name node has it, and all others are live.

        The name node's count alone would not do: a data node that was killed a moment ago still counts.
        """
        datanode.start()
        datanode.await_(lambda: self._is_registered(datanode), "register with the name node", timeout)
        self.wait_live(sum(node.running for node in self.datanodes), timeout)

    def wait_writable(self, timeout: float = 300) -> None:
        """Wait until the name node has heard of all blocks and takes writes, as after a restart."""
        self.namenode.await_(
            lambda: not self._namenode_bean("NameNodeInfo").get("Safemode", "?"), "leave safe mode", timeout
        )

    def wait_for(self, ready: Callable[[], bool], what: str, timeout: float = 300) -> None:
        """Wait for another state of the cluster that can only be asked for; without an answer it is asked again."""
        unanswered: list[OSError] = []

        def answered() -> bool:
            try:
                return ready()
            except urllib.error.HTTPError:
                raise
            except OSError as error:  # no connection, or none in time
                unanswered.append(error)
                return False

        wait_for(answered, what, timeout, hint=lambda: f"questions without an answer: {unanswered[-3:]}")

    def block_hosts(self, path: str) -> list[list[str]]:
        """The data nodes' addresses of each block of the file at the absolute `path`, block by block."""
        found = self.webhdfs("GET", path, op="GETFILEBLOCKLOCATIONS")
        blocks = found["BlockLocations"]["BlockLocation"]
        return [sorted(block["hosts"]) for block in sorted(blocks, key=lambda block: int(block["offset"]))]

    def wait_replicated(self, path: str, count: int, timeout: float = 300) -> list[list[str]]:
        """Wait until every block of a file is known on `count` data nodes; a writer waits for the first one only."""
        blocks: list[list[str]] = []

        def ready() -> bool:
            blocks[:] = self.block_hosts(path)
            return all(len(set(hosts)) >= count for hosts in blocks)

        self.wait_for(ready, f"{count} replicas of {path}", timeout)
        return blocks

    def staged(self, folder: str) -> list[str]:
        """What lies in the staging folder of the store at the absolute path `folder`."""
        try:
            found = self.webhdfs("GET", f"{folder}/.staging", op="LISTSTATUS")
        except urllib.error.HTTPError as error:
            error.close()
            if error.code == 404:
                return []
            raise
        return sorted(entry["pathSuffix"] for entry in found["FileStatuses"]["FileStatus"])

    def set_space_quota(self, path: str, quota: int) -> None:
        """Let everything under the folder `path`, all replicas counted, take at most `quota` bytes."""
        self.webhdfs("PUT", path, op="SETQUOTA", storagespacequota=str(quota))

    def webhdfs(self, method: str, path: str, **query: str) -> Any:
        """Call the name node's REST interface as the superuser; the answer's JSON, or None where it is empty."""
        query = {"user.name": getpass.getuser(), **query}
        url = f"{self.http}/webhdfs/v1{urllib.parse.quote(path)}?{urllib.parse.urlencode(query)}"
        body = self._master.call(_answer, urllib.request.Request(url, method=method))
        return json.loads(body) if body else None

    def _namenode_bean(self, name: str) -> dict[str, Any]:
        return self._master.call(_bean, self.http, f"Hadoop:service=NameNode,name={name}")

    def _is_registered(self, datanode: Daemon) -> bool:
        server = self._datanode_http[datanode.host]
        information = self._master.call(_bean, server, "Hadoop:service=DataNode,name=DataNodeInfo")
        actors = json.loads(information.get("BPServiceActorInfo", "[]"))
        return bool(actors) and all(actor["ActorState"] == "RUNNING" for actor in actors)

    def _namenode_settings(self) -> dict[str, str]:
        return self.settings | {
            "dfs.namenode.name.dir": (self.folder / "name").as_uri(),
            "dfs.namenode.rpc-address": self.url.removeprefix("hdfs://"),
            "dfs.namenode.safemode.extension": "0",
            # All blocks, not 99.9 % of them, which is none at all of a few.
            "dfs.namenode.safemode.threshold-pct": "1.0",
            "dfs.namenode.fs-limits.min-block-size": "4096",
            "dfs.namenode.edits.noeditlogchannelflush": "true",
            # Loopback addresses have no names, and all data nodes call from 127.0.0.1.
            "dfs.namenode.datanode.registration.ip-hostname-check": "false",
            # A lost data node is given up after 2 x recheck + 10 x heartbeat, here 10.4 s instead of 10.5 minutes.
            "dfs.namenode.heartbeat.recheck-interval": "200",
            "dfs.namenode.stale.datanode.interval": "3000",
            "dfs.namenode.redundancy.interval.seconds": "1s",
            # Where blocks go must not depend on how busy a data node is just then.
            "dfs.namenode.redundancy.considerLoad": "false",
            "dfs.heartbeat.interval": "1s",
        }

    def _datanode(self, number: int, place: Place) -> Daemon:
        host = place.address
        data, http, ipc = place.call(free_ports, host, 3, self._ports)
        self.data_ports[host] = data
        self._datanode_http[host] = f"http://{host}:{http}"
        settings = self.settings | {
            "dfs.datanode.data.dir": (self._disks.get(host, self.folder) / f"data-{number}").as_uri(),
            # Of a disk of its own it may have all.
            "dfs.datanode.du.reserved": "0",
            # The name node knows a data node by the address it calls from, which is 127.0.0.1 for all of them: what
            # tells them apart, and what clients must dial, is this host name.
            "dfs.datanode.hostname": host,
            "dfs.datanode.address": f"{host}:{data}",
            "dfs.datanode.http.address": f"{host}:{http}",
            "dfs.datanode.ipc.address": f"{host}:{ipc}",
            "dfs.datanode.use.datanode.hostname": "true",
            "dfs.heartbeat.interval": "1s",
            "dfs.blockreport.initialDelay": "0",
            "dfs.block.scanner.volume.bytes.per.second": "0",
        }
        return Daemon(f"datanode-{number}", f"{_HDFS}.datanode.DataNode", self.folder, place, settings)


def _answer(request: urllib.request.Request) -> bytes:
    with urllib.request.urlopen(request, timeout=120) as answer:
        body: bytes = answer.read()
    return body


def _bean(server: str, name: str) -> dict[str, Any]:
    """One of a daemon's management beans, empty while its web server does not answer."""
    try:
        with urllib.request.urlopen(f"{server}/jmx?qry={name}", timeout=2) as answer:
            beans = json.load(answer)["beans"]
    except urllib.error.HTTPError as error:
        error.close()
        return {}
    except (urllib.error.URLError, TimeoutError, ConnectionError, json.JSONDecodeError):
        return {}
    return dict(beans[0]) if beans else {}


def _client_settings(url: str, replication: int, block_size: int, http: str) -> dict[str, str]:
    return {
        "fs.defaultFS": url,
        "dfs.replication": str(replication),
        "dfs.blocksize": str(block_size),
        "dfs.namenode.http-address": http,
        "dfs.client.use.datanode.hostname": "true",
        # With as many replicas as data nodes there is no other node to go to when one is killed: go on with fewer.
        "dfs.client.block.write.replace-datanode-on-failure.best-effort": "true",
    }
