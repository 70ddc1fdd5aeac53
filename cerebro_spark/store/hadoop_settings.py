"""The Hadoop settings of a live Spark session, else of HADOOP_CONF_DIR. It looks at pyspark and never imports it."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

from cerebro_spark.errors import ConfigurationError
from cerebro_spark.spark_session import active_session

# What a client needs to find name nodes and data nodes. It does not need the rest of a cluster's settings.
_CLIENT_PREFIXES = (
    "dfs.nameservices",
    "dfs.ha.namenodes.",
    "dfs.namenode.rpc-address",
    "dfs.namenode.http-address",
    "dfs.http.policy",
    "dfs.webhdfs.enabled",
    "dfs.client.",
    "dfs.data.transfer.protection",
    "hadoop.security.authentication",
)


def name_node() -> str:
    """Return the default file system, "hdfs://host:port" or "hdfs://service".

    Raises:
        ConfigurationError: If the default file system is not HDFS, or there are no settings.
    """
    live, folder = _spark_settings(), os.environ.get("HADOOP_CONF_DIR")
    if live is not None:
        found, place = str(live.get("fs.defaultFS") or ""), "the Spark session's Hadoop configuration"
    elif folder:
        found, place = _site_settings(folder).get("fs.defaultFS", ""), f"{folder}/core-site.xml"
    else:
        found, place = "", "there is neither a Spark session nor HADOOP_CONF_DIR, which"
    if not found.startswith("hdfs://"):
        raise ConfigurationError(
            f"'hdfs:///' needs the name node from fs.defaultFS, but {place} says {found!r}:"
            " write 'hdfs://namenode:8020/...', or set HADOOP_CONF_DIR or spark.hadoop.fs.defaultFS"
        )
    return found.rstrip("/")


def client_settings() -> dict[str, str]:
    """Return the settings that a client needs. A store takes them along to workers that lack HADOOP_CONF_DIR."""
    live = _spark_settings()
    if live is None:
        pairs = site_settings()
    else:
        pairs = {str(entry.getKey()): str(entry.getValue()) for entry in live.iterator()}
    return {name: value for name, value in pairs.items() if name.startswith(_CLIENT_PREFIXES)}


def site_settings() -> dict[str, str]:
    """Return the settings in HADOOP_CONF_DIR; none if that is not set."""
    return _site_settings(os.environ.get("HADOOP_CONF_DIR"))


def _spark_settings() -> Any | None:
    """Return the JVM's Configuration object of this process' active session; None if HADOOP_CONF_DIR decides."""
    # A Spark Connect session has no JVM on this side.
    context = getattr(active_session(), "_sc", None)
    live = context._jsc.hadoopConfiguration() if context is not None else None
    if live is None or not os.environ.get("HADOOP_CONF_DIR"):
        return live
    # A session that was started without HADOOP_CONF_DIR knows no HDFS.
    return live if str(live.get("fs.defaultFS") or "").startswith("hdfs://") else None


def _site_settings(folder: str | None) -> dict[str, str]:
    sites = [Path(folder, site) for site in ("core-site.xml", "hdfs-site.xml")] if folder else []
    return {name: value for site in sites if site.exists() for name, value in _read_site(site).items()}


def _read_site(path: Path) -> dict[str, str]:
    try:
        rows = ElementTree.parse(path).getroot().iter("property")
    except ElementTree.ParseError as error:
        raise ConfigurationError(f"{path} is no Hadoop configuration file: {error}") from error
    return {row.findtext("name", "").strip(): row.findtext("value", "").strip() for row in rows}
