"""The arguments of `cerebro-spark dashboard`. It imports nothing that the command line does not need anyway."""

from __future__ import annotations

from typing import Any

ARGUMENTS: dict[str, dict[str, Any]] = {
    "store": {"metavar": "STORE", "help": "a folder, hdfs://..., s3://..."},
    "--port": {
        "metavar": "N",
        "type": int,
        "help": "port to listen on, 0 for any (default: 8787 or the next free one)",
    },
    "--host": {
        "metavar": "HOST",
        "default": "127.0.0.1",
        "help": "address to listen on (default: %(default)s: this machine only)",
    },
    "--base-path": {
        "metavar": "PATH",
        "help": "path under which a proxy shows it, such as /user/ann/proxy/8787",
    },
    "--allow-host": {
        "metavar": "NAME",
        "action": "append",
        "default": [],
        "help": "a further name by which browsers reach it, such as that of a proxy; may be repeated",
    },
    "--read-only": {"action": "store_true", "help": "only show: there is no way to send a command"},
}
