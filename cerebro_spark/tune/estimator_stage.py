"""A search as a stage of a Spark ML pipeline: its params, and how it is saved before it is fitted. It needs pyspark.

The arguments of the search are saved as a pickle, with the user's functions: loading it runs code, so the folder must
be trusted. Of a store, also of one that a function uses, only the address is saved, never its credentials; backend and
trackers are not saved.
"""

from __future__ import annotations

import hashlib
from typing import Any, TypeVar

from pyspark.ml import Estimator
from pyspark.ml.param import Param
from pyspark.ml.param.shared import HasPredictionCol, HasProbabilityCol, HasRawPredictionCol
from pyspark.ml.util import DefaultParamsReadable, DefaultParamsReader, DefaultParamsWriter, MLWritable, MLWriter

from cerebro_spark.errors import ConfigurationError, EventLogError
from cerebro_spark.recipe import check_functions
from cerebro_spark.store import open_store
from cerebro_spark.trainer.base import Hooks
from cerebro_spark.tune.saving import pickled, saved_arguments, unpickled

_FOLDER, _ARGUMENTS, _DIGEST = "search", "arguments.pickle", "argumentsDigest"
Self = TypeVar("Self", bound="OutputColumns")


class OutputColumns(HasPredictionCol, HasProbabilityCol, HasRawPredictionCol):
    """The names of the columns that a model adds, as Spark's own classifiers have them; "" leaves one out."""

    @property
    def params(self) -> list[Param[Any]]:
        """The params, listed. Spark would look for them in all attributes, and compute every table of a result."""
        return [self.predictionCol, self.probabilityCol, self.rawPredictionCol]

    def setPredictionCol(self: Self, value: str) -> Self:
        """Name the column of predictions."""
        return self._set(predictionCol=value)

    def setProbabilityCol(self: Self, value: str) -> Self:
        """Name the column of a classifier's probabilities."""
        return self._set(probabilityCol=value)

    def setRawPredictionCol(self: Self, value: str) -> Self:
        """Name the column of a classifier's logits."""
        return self._set(rawPredictionCol=value)

    def _with_params(self: Self, params: Any) -> Self:
        """Return a copy with other values. Spark passes the params of all stages; those of others change nothing."""
        odd = [name for name in params if not isinstance(name, Param)] if isinstance(params, dict) else [params]
        if odd:
            raise ConfigurationError(
                f"`params` has {odd[0]!r}, but takes a dict from Spark's params, such as {{search.predictionCol:"
                " 'mine'}: what a search tries is in its `space`"
            )
        return self.copy(params)


class SearchStage(Estimator[Any], OutputColumns, MLWritable, DefaultParamsReadable[Any]):
    """The parts of Spark ML that a search has beside `fit`."""

    def _handed_over(self, result: Any) -> Any:
        """Return the result with the uid and the params of this search, so that the same param maps fit both."""
        result._resetUid(self.uid)
        return self._copyValues(result)

    def write(self) -> MLWriter:
        return _SearchWriter(self)

    @classmethod
    def read(cls) -> DefaultParamsReader[Any]:
        return _SearchReader(cls)


class _SearchWriter(DefaultParamsWriter):
    def saveImpl(self, path: str) -> None:
        data = pickled(arguments_of(self.instance))
        about = {_DIGEST: hashlib.sha256(data).hexdigest()}
        DefaultParamsWriter.saveMetadata(self.instance, path, self.sc, extraMetadata=about)
        open_store(f"{qualified(path, self.sc)}/{_FOLDER}").write(_ARGUMENTS, data)


class _SearchReader(DefaultParamsReader[Any]):
    def load(self, path: str) -> Any:
        metadata = DefaultParamsReader.loadMetadata(path, self.sc)
        data = open_store(f"{qualified(path, self.sc)}/{_FOLDER}").read(_ARGUMENTS)
        if hashlib.sha256(data).hexdigest() != metadata.get(_DIGEST):
            raise EventLogError(
                f"{_FOLDER}/{_ARGUMENTS} in {path} is not what was saved with this search: its digest differs from the"
                " one in the metadata; save it again"
            )
        return with_metadata(_make_search(self.cls, data), metadata)


def with_metadata(stage: Any, metadata: dict[str, Any]) -> Any:
    """Return a stage that was loaded, with the uid and the params that it was saved with."""
    stage._resetUid(metadata["uid"])
    DefaultParamsReader.getAndSetParams(stage, metadata)
    return stage


def _make_search(kind: type[Any], data: bytes) -> Any:
    try:
        given = unpickled(data)
    except Exception as error:
        raise ConfigurationError(
            f"the functions of the search cannot be unpickled here: {type(error).__name__}: {error}. Use the Python"
            " version that saved it, with the modules that its functions come from"
        ) from error
    return kind(**given)


def arguments_of(search: Any) -> dict[str, Any]:
    """Return the arguments to make such a search again. Raises ConfigurationError if one of them cannot be saved."""
    check_functions(Hooks(search.model_fn, search.input_fn, search.train_fn, search.eval_fn))
    validation = search.validation
    if validation is not None and not isinstance(validation, bool | int | float | str):
        raise ConfigurationError(
            f"`validation` is a {type(validation).__name__}, which is data and not saved with a search: give a share"
            " such as 0.2, or the name of a boolean column"
        )
    return saved_arguments(search, type(search))


def qualified(path: str, context: Any) -> str:
    """Return the path with its scheme. Without one it is in Spark's default file system, as for Spark's own models."""
    place = context._jvm.org.apache.hadoop.fs.Path(path)
    url = place.getFileSystem(context._jsc.hadoopConfiguration()).makeQualified(place).toString()
    return str(url).replace("file:/", "file:///", 1) if not str(url).startswith("file://") else str(url)
