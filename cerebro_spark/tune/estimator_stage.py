"""A search as a stage of a Spark ML pipeline: its params, and how it is saved before it was fitted. It needs pyspark.

What is saved are the arguments of the search, pickled, with the user's functions: who may write that folder may run
code where it is loaded. Of a store only the address goes with it, never what opens it; backend and trackers stay
behind.
"""

from __future__ import annotations

import hashlib
import inspect
import logging
from typing import Any, TypeVar

import cloudpickle
from pyspark.ml import Estimator
from pyspark.ml.param import Param
from pyspark.ml.param.shared import HasPredictionCol, HasProbabilityCol, HasRawPredictionCol
from pyspark.ml.util import DefaultParamsReader, DefaultParamsWriter, MLReadable, MLReader, MLWritable, MLWriter

from cerebro_spark.errors import ConfigurationError, EventLogError
from cerebro_spark.recipe import check_functions
from cerebro_spark.store import moved, open_store
from cerebro_spark.tune.address import address_of

_log = logging.getLogger("cerebro_spark")
_FOLDER, _ARGUMENTS, _DIGEST = "search", "arguments.pickle", "argumentsDigest"
_LEFT_BEHIND = ("backend", "trackers")
Self = TypeVar("Self", bound="OutputColumns")


class OutputColumns(HasPredictionCol, HasProbabilityCol, HasRawPredictionCol):
    """The names of the columns that a model adds, as Spark's own classifiers have them; "" leaves one out."""

    @property
    def params(self) -> list[Param[Any]]:
        """Said, and not looked for as Spark does, who would work out every table of a result on the way."""
        return [self.predictionCol, self.probabilityCol, self.rawPredictionCol]

    def setPredictionCol(self: Self, value: str) -> Self:
        """Name the column of predictions."""
        self._set(predictionCol=value)
        return self

    def setProbabilityCol(self: Self, value: str) -> Self:
        """Name the column of a classifier's probabilities."""
        self._set(probabilityCol=value)
        return self

    def setRawPredictionCol(self: Self, value: str) -> Self:
        """Name the column of a classifier's logits."""
        self._set(rawPredictionCol=value)
        return self

    def _with_params(self: Self, params: Any) -> Self:
        """A copy with other values; params of other stages, of which Spark hands over all, change nothing."""
        odd = [name for name in params if not isinstance(name, Param)] if isinstance(params, dict) else [params]
        if odd:
            raise ConfigurationError(
                f"`params` has {odd[0]!r}, but takes a dict from Spark's params, such as {{search.predictionCol:"
                " 'mine'}: what a search tries is in its `space`"
            )
        return self.copy(params)


class SearchStage(Estimator[Any], OutputColumns, MLWritable, MLReadable[Any]):
    """What a search has of Spark ML beside `fit`."""

    def _handed_over(self, result: Any) -> Any:
        """A model has the uid and the params of who fitted it, so that both answer to the same param maps."""
        result._resetUid(self.uid)
        return self._copyValues(result)

    def write(self) -> MLWriter:
        return _Writer(self)

    @classmethod
    def read(cls) -> MLReader[Any]:
        return _Reader(cls)


class _Writer(MLWriter):
    def __init__(self, search: Any) -> None:
        super().__init__()
        self._search = search

    def saveImpl(self, path: str) -> None:
        data: bytes = cloudpickle.dumps(arguments_of(self._search))
        about = {_DIGEST: hashlib.sha256(data).hexdigest()}
        DefaultParamsWriter.saveMetadata(self._search, path, self.sc, extraMetadata=about)
        open_store(f"{qualified(path, self.sc)}/{_FOLDER}").write(_ARGUMENTS, data)


class _Reader(MLReader[Any]):
    def __init__(self, kind: type[Any]) -> None:
        super().__init__()
        self._kind = kind

    def load(self, path: str) -> Any:
        metadata = DefaultParamsReader.loadMetadata(path, self.sc)
        data = open_store(f"{qualified(path, self.sc)}/{_FOLDER}").read(_ARGUMENTS)
        if hashlib.sha256(data).hexdigest() != metadata.get(_DIGEST):
            raise EventLogError(
                f"{_FOLDER}/{_ARGUMENTS} in {path} is not what was saved with this search: its digest differs from the"
                " one in the metadata; save it again"
            )
        search = _made(self._kind, data)
        search._resetUid(metadata["uid"])
        DefaultParamsReader.getAndSetParams(search, metadata)
        return search


def _made(kind: type[Any], data: bytes) -> Any:
    try:
        given = moved.loads(data)
    except Exception as error:
        raise ConfigurationError(
            f"the functions of the search cannot be unpickled here: {type(error).__name__}: {error}. Use the Python"
            " version that saved it, with the modules that its functions come from"
        ) from error
    return kind(**given)


def arguments_of(search: Any) -> dict[str, Any]:
    """What makes another search like this one. Raises ConfigurationError for what cannot be kept."""
    check_functions(search.hooks)
    options = {name: value for name, value in search._options.items() if name not in _LEFT_BEHIND}
    validation = options.get("validation")
    if validation is not None and not isinstance(validation, bool | int | float | str):
        raise ConfigurationError(
            f"`validation` is a {type(validation).__name__}, which is data and not saved with a search: give a share"
            " such as 0.2, or the name of a boolean column"
        )
    if search._options.get("trackers"):
        _log.warning("the search is saved without its trackers: give them again to one that is loaded")
    own = set(inspect.signature(type(search).__init__).parameters)
    own -= {"self", "options", "model_fn", "space", "store", "metric"}
    said = {"model_fn": search.hooks.model_fn, "space": search.space, "metric": search.objective.metric}
    return {**said, "store": address_of(search._store), **options, **{name: getattr(search, name) for name in own}}


def qualified(path: str, context: Any) -> str:
    """The path with its scheme: what has none lies where Spark's default file system is, as for Spark's own models."""
    place = context._jvm.org.apache.hadoop.fs.Path(path)
    url = place.getFileSystem(context._jsc.hadoopConfiguration()).makeQualified(place).toString()
    return str(url).replace("file:/", "file:///", 1) if not str(url).startswith("file://") else str(url)
