"""The Hadoop settings of a live Spark session, else of HADOOP_CONF_DIR. It looks at pyspark and never imports it."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

from cerebro_spark.errors import ConfigurationError

# What a client needs to find name nodes and data nodes. It does not need the rest of a cluster's settings.
_CLIENT_PREFIXES = (
    "dfs.nameservices",
    "dfs.ha.namenodes.",
    "dfs.namenode.rpc-address",
    "dfs.client.",
    "dfs.data.transfer.protection",
    "hadoop.security.authentication",
)


def name_node() -> str:
    """Return the default file system, "hdfs://host:port" or "hdfs://service".

    Raises:
        ConfigurationError: If the default file system is not HDFS, or there are no settings.
    """
    found, place = _default_file_system()
    if not found.startswith("hdfs://"):
        raise ConfigurationError(
            f"'hdfs:///' needs the name node from fs.defaultFS, but {place} says {found!r}:"
            " write 'hdfs://namenode:8020/...', or set HADOOP_CONF_DIR or spark.hadoop.fs.defaultFS"
        )
    return found.rstrip("/")


def client_settings() -> dict[str, str]:
    """Return the settings that a client needs. A store takes them along to workers that lack HADOOP_CONF_DIR."""
    live = _spark_settings()
    if live is not None and (_names_hdfs(live) or not os.environ.get("HADOOP_CONF_DIR")):
        pairs = {str(entry.getKey()): str(entry.getValue()) for entry in live.iterator()}
    else:
        pairs = _site_settings()
    return {name: value for name, value in pairs.items() if name.startswith(_CLIENT_PREFIXES)}


def _default_file_system() -> tuple[str, str]:
    live = _spark_settings()
    folder = os.environ.get("HADOOP_CONF_DIR")
    if live is not None and (_names_hdfs(live) or not folder):
        return str(live.get("fs.defaultFS") or ""), "the Spark session's Hadoop configuration"
    if not folder:
        return "", "there is neither a Spark session nor HADOOP_CONF_DIR, which"
    return _site_settings().get("fs.defaultFS", ""), f"{folder}/core-site.xml"


def _spark_settings() -> Any | None:
    """Return the JVM's Configuration object of this process' active session, or None."""
    sql = sys.modules.get("pyspark.sql")
    session = sql.SparkSession.getActiveSession() if sql is not None else None
    # A Spark Connect session has no JVM on this side.
    context = getattr(session, "_sc", None)
    return context._jsc.hadoopConfiguration() if context is not None else None


def _names_hdfs(live: Any) -> bool:
    """Return whether the session knows an HDFS; one that was started without HADOOP_CONF_DIR does not."""
    return str(live.get("fs.defaultFS") or "").startswith("hdfs://")


def _site_settings() -> dict[str, str]:
    folder = os.environ.get("HADOOP_CONF_DIR")
    found: dict[str, str] = {}
    for site in ("core-site.xml", "hdfs-site.xml") if folder else ():
        path = Path(str(folder), site)
        if path.exists():
            found |= _read_site(path)
    return found


def _read_site(path: Path) -> dict[str, str]:
    try:
        rows = ElementTree.parse(path).getroot().iter("property")
    except ElementTree.ParseError as error:
        raise ConfigurationError(f"{path} is no Hadoop configuration file: {error}") from error
    return {row.findtext("name", "").strip(): row.findtext("value", "").strip() for row in rows}
