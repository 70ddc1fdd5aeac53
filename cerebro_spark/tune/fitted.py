"""A result as a stage of a fitted Spark ML pipeline. It needs pyspark; it adds saving and loading, nothing else."""

from __future__ import annotations

from typing import Any

from pyspark.ml import Model
from pyspark.ml.util import DefaultParamsReader, DefaultParamsWriter, MLReadable, MLReader, MLWritable, MLWriter

from cerebro_spark.result import Result, load_result
from cerebro_spark.store.base import Store

_COPY = "result"


class FittedSearch(Result, Model, MLWritable, MLReadable[Any]):  # type: ignore[misc]
    """A Result that is a `pyspark.ml.Model`, so that it can be the last stage of a `PipelineModel`.

    What the pipeline saves is a whole copy of the result: it loads in another process, long after the run is gone.
    """

    def __init__(self, store: Store | str, run_id: str) -> None:
        Model.__init__(self)
        Result.__init__(self, store, run_id)

    def _transform(self, dataset: Any) -> Any:
        return self.transform(dataset)

    def copy(self, extra: Any = None) -> FittedSearch:
        """A result never changes, so it is its own copy."""
        return self

    def write(self) -> MLWriter:
        return _Writer(self)

    @classmethod
    def read(cls) -> MLReader[Any]:
        return _Reader()


class _Writer(MLWriter):
    def __init__(self, result: FittedSearch) -> None:
        super().__init__()
        self._result = result

    def saveImpl(self, path: str) -> None:
        DefaultParamsWriter.saveMetadata(self._result, path, self.sc)
        self._result.save(f"{_qualified(path, self.sc)}/{_COPY}")


class _Reader(MLReader[Any]):
    def load(self, path: str) -> FittedSearch:
        metadata = DefaultParamsReader.loadMetadata(path, self.sc)
        plain = load_result(f"{_qualified(path, self.sc)}/{_COPY}")
        loaded = FittedSearch(plain._store, plain.run_id)
        loaded._resetUid(metadata["uid"])
        return loaded


def _qualified(path: str, context: Any) -> str:
    """The path with its scheme: what has none lies where Spark's default file system is, as for Spark's own models."""
    place = context._jvm.org.apache.hadoop.fs.Path(path)
    url = place.getFileSystem(context._jsc.hadoopConfiguration()).makeQualified(place).toString()
    return str(url).replace("file:/", "file:///", 1) if not str(url).startswith("file://") else str(url)
