"""Every exception a user can see. A message says the value, the rule and the fix; nothing here imports anything."""


class CerebroError(Exception):
    """The base class of all errors that this package raises on purpose.

    >>> issubclass(ConfigurationError, CerebroError)
    True
    """


class ConfigurationError(CerebroError, ValueError):
    """An argument, option or space that cannot work, seen before any cluster time was spent."""


class DataError(CerebroError, ValueError):
    """Rows or columns that cannot be trained on: it names the column, how many rows, and the remedy."""


class StoreError(CerebroError, OSError):
    """A store refused an operation for another reason than those below."""


class NotFoundInStore(StoreError):
    """The name is not in the store."""


class AlreadyInStore(StoreError):
    """The name is taken: what a store holds is written once and never changed."""


class StoreForbidden(StoreError):
    """The store says that this user may not do that."""


class StoreFull(StoreError):
    """The store, or the disk under it, has no room left."""


class StoreUnavailable(StoreError):
    """The store failed for longer than anybody waits for it. A run that ends with this can be resumed."""


class UntrustedCache(CerebroError, OSError):
    """The folder for cached training data, or something in it, is another user's or open to others: it is not used."""


class EventLogError(CerebroError):
    """An event log that is damaged before its end, foreign, or of another format version."""


class SchedulingError(CerebroError):
    """The scheduler was told something that contradicts what it knows; a bug in a backend or a search."""


class BackendError(CerebroError):
    """The place where units run cannot be started, or is gone for good."""


class RunStalled(BackendError):
    """Work is left, but no worker can ever do it."""


class PreflightFailed(BackendError):
    """One batch of the first trials was tried before the run, and none went well: most likely `model_fn` is broken."""


class TrialFailed(CerebroError):
    """One trial failed (its own exception, NaN, out of memory); the others go on."""


class ReplayDiverged(CerebroError):
    """A replay did not come to the same weights or values as the run it repeats; it names the first difference."""


class CheckpointError(CerebroError):
    """A trial's state that no checkpoint can hold, or a checkpoint that does not fit the model; see also below."""


class CheckpointUnreadable(CheckpointError):
    """A checkpoint file that is missing, truncated, damaged, foreign or of another format version."""


class MissingDependency(CerebroError, ImportError):
    """An optional library is needed for this and is not installed; the message names the extra to install."""
