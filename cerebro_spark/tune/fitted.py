"""A result as a stage of a fitted Spark ML pipeline. It needs pyspark; it adds params, saving and loading, no more."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pyspark.ml import Model
from pyspark.ml.util import DefaultParamsReadable, DefaultParamsReader, DefaultParamsWriter, MLWritable, MLWriter

from cerebro_spark.result import Result, load_result
from cerebro_spark.result.frames import OutputNames
from cerebro_spark.store.base import Store
from cerebro_spark.tune.estimator_stage import OutputColumns, qualified, with_metadata

_COPY = "result"


class FittedSearch(Result, Model, OutputColumns, MLWritable, DefaultParamsReadable[Any]):
    """A Result that is a `pyspark.ml.Model`, so that it can be the last stage of a `PipelineModel`.

    The pipeline saves a whole copy of the result: it loads in another process, also when the run was deleted.
    """

    def __init__(self, store: Store | str, run_id: str) -> None:
        OutputColumns.__init__(self)
        Result.__init__(self, store, run_id)

    def _transform(self, dataset: Any) -> Any:
        return self.transform(dataset)

    @property
    def _usual_names(self) -> OutputNames:
        return OutputNames(self.getPredictionCol(), self.getProbabilityCol(), self.getRawPredictionCol())

    def _with_params(self, params: Any) -> FittedSearch:
        return OutputColumns._with_params(self, params)

    def copy(self, extra: Any = None) -> FittedSearch:
        """Return the same result with params of its own; models that were built are shared."""
        that = object.__new__(type(self))
        vars(that).update(vars(self))
        that._paramMap, that._defaultParamMap = {}, {}
        return self._copyValues(that, extra)

    def __reduce__(self) -> tuple[Any, ...]:
        given = {param.name: value for param, value in self._paramMap.items()}
        return _again, (type(self), self._store, self.run_id, self.uid, given)

    def write(self) -> MLWriter:
        return _ResultWriter(self)

    @classmethod
    def read(cls) -> DefaultParamsReader[Any]:
        return _ResultReader(cls)


def _again(kind: type[FittedSearch], store: Store, run_id: str, uid: str, given: Mapping[str, Any]) -> FittedSearch:
    """Return a pickled result, read from its store again."""
    result = kind(store, run_id)
    result._resetUid(uid)
    return result._set(**given)


class _ResultWriter(DefaultParamsWriter):
    instance: FittedSearch

    def saveImpl(self, path: str) -> None:
        super().saveImpl(path)
        self.instance.save(f"{qualified(path, self.sc)}/{_COPY}")


class _ResultReader(DefaultParamsReader[Any]):
    def load(self, path: str) -> Any:
        metadata = DefaultParamsReader.loadMetadata(path, self.sc)
        plain = load_result(f"{qualified(path, self.sc)}/{_COPY}")
        return with_metadata(FittedSearch(plain._store, plain.run_id), metadata)
