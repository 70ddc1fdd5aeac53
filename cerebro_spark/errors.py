"""Every exception that users see. A message names the value, the rule and the fix. This module imports nothing."""


class CerebroError(Exception):
    """The base class of all errors that this package raises on purpose.

    Examples:
        >>> issubclass(ConfigurationError, CerebroError)
        True
    """


class ConfigurationError(CerebroError, ValueError):
    """An argument, option or space that cannot work. It is raised before any cluster time is spent."""


class DataError(CerebroError, ValueError):
    """Rows or columns that cannot be trained on. The message names the column, the number of rows and the fix."""


class StoreError(CerebroError, OSError):
    """A store failed for a reason that none of its subclasses names."""


class NotFoundInStore(StoreError):
    """The name is not in the store."""


class AlreadyInStore(StoreError):
    """The name is taken. A blob in a store is written once and never changed."""


class StoreForbidden(StoreError):
    """The user has no permission for this operation."""


class StoreFull(StoreError):
    """The store, or the disk under it, has no space left."""


class StoreUnavailable(StoreError):
    """The store failed again and again until the time limit. A run that ends with this error can be resumed."""


class UntrustedCache(CerebroError, OSError):
    """The cache folder for training data, or a file in it, belongs to another user or is open to others."""


class EventLogError(CerebroError):
    """An event log that is damaged before its end, not one of this package, or of another format version."""


class SchedulingError(CerebroError):
    """The scheduler got an event that contradicts its state: a bug in a backend or a search."""


class BackendError(CerebroError):
    """A backend cannot be started, or is lost for good."""


class RunStalled(BackendError):
    """Work is left, but no worker can do it."""


class RunKilled(CerebroError):
    """A person killed the run: its driver stopped at once. It can be resumed."""


class PreflightFailed(BackendError):
    """One batch of each of the first trials was tried before the run, and all failed: check `model_fn`."""


class CommandRefused(CerebroError):
    """A command to a live run was not carried out. The message has the reason, and what would work."""


class NoAnswerYet(CerebroError, TimeoutError):
    """A live run did not answer, or did not end, in the time that was allowed. It goes on."""


class TrialFailed(CerebroError):
    """A trial failed (an exception, a loss that is not finite, out of memory). The other trials continue."""


class ReplayDiverged(CerebroError):
    """A replay computed other weights or values than the run it repeats. The message names the first difference."""


class CheckpointError(CerebroError):
    """A trial's state that no checkpoint can hold, or a checkpoint that does not fit the model."""


class CheckpointUnreadable(CheckpointError):
    """A checkpoint file that is missing, truncated, damaged, not one of this package, or of another format version."""


class MissingDependency(CerebroError, ImportError):
    """An optional library is needed and not installed. The message names the extra to install."""
