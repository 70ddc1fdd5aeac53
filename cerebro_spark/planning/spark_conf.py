"""What to tell Spark, so that it gives a plan its workers."""

from __future__ import annotations

from cerebro_spark.planning.values import Option

# The JVM of an executor does little beside our workers, which are Python processes: they live in the overhead.
_JVM = 1 << 30
_MEGA = 1 << 20
_LEAST_OVERHEAD = 384


class SparkConf(dict[str, str]):
    """Settings of Spark by name. As text they are options of spark-submit.

    >>> conf = spark_conf(Option(workers=4, threads=2, hosts=2, partitions=4, memory=3 << 30))
    >>> conf["spark.executor.instances"], conf["spark.executor.cores"], conf["spark.task.cpus"]
    ('2', '4', '2')
    >>> print(conf)
    --num-executors 2 --executor-cores 4 --executor-memory 1024m --conf spark.task.cpus=2 \
--conf spark.executor.memoryOverhead=6144m
    """

    _FLAGS = {  # noqa: RUF012 (it is never changed)
        "spark.executor.instances": "--num-executors",
        "spark.executor.cores": "--executor-cores",
        "spark.executor.memory": "--executor-memory",
    }

    def __str__(self) -> str:
        flags = [f"{self._FLAGS[name]} {value}" for name, value in self.items() if name in self._FLAGS]
        others = [f"--conf {name}={value}" for name, value in self.items() if name not in self._FLAGS]
        return " ".join([*flags, *others])


def spark_conf(option: Option) -> SparkConf:
    """Return the settings with which a cluster has room for the workers of an option: an executor a host.

    Args:
        option: The option.
    """
    conf = SparkConf()
    conf["spark.executor.instances"] = str(option.hosts)
    conf["spark.executor.cores"] = str(option.at_once * option.threads)
    if option.memory is not None:
        conf["spark.executor.memory"] = f"{_JVM // _MEGA}m"
    conf["spark.task.cpus"] = str(option.threads)
    if option.memory is not None:
        overhead = max(_LEAST_OVERHEAD, -(-option.at_once * option.memory // _MEGA))
        conf["spark.executor.memoryOverhead"] = f"{overhead}m"
    return conf
