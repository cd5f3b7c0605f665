"""The errors Afterimage raises: each says what was wrong, which rule it broke, and what to do."""

from __future__ import annotations

from typing import ClassVar


class AfterimageError(Exception):
    """Base of every error Afterimage raises on purpose.

    `code` is the gRPC status name that `shared.runtime.rpc` answers with; `retry_after_s` tells clients when to come
    back. `outside` is what clients read where the message names hosts, users or databases, which are for the log.
    """

    code: ClassVar[str] = "INTERNAL"

    def __init__(self, message: str = "", *, retry_after_s: float | None = None, outside: str = "") -> None:
        super().__init__(message or (type(self).__doc__ or type(self).__name__).splitlines()[0])
        self.retry_after_s = retry_after_s
        self._outside = outside

    @property
    def outside(self) -> str:
        return self._outside or str(self)


class InvalidRequestError(AfterimageError):
    """A field of the request breaks a rule."""

    code = "INVALID_ARGUMENT"

    def __init__(self, field: str, rule: str, value: object = None) -> None:
        shown = "" if value is None else f" (got {str(value)[:120]!r})"
        super().__init__(f"{field}: {rule}{shown}")
        self.field = field
        self.rule = rule


class NotFoundError(AfterimageError):
    """Nothing is stored under this name."""

    code = "NOT_FOUND"


class ConflictError(AfterimageError):
    """The same idempotency key came with another request."""

    code = "ALREADY_EXISTS"


class OverloadedError(AfterimageError):
    """The service takes no more work now; come back after the stated delay."""

    code = "RESOURCE_EXHAUSTED"


class StorageFullError(OverloadedError):
    """The disk behind the data directory is full."""


class UnavailableError(AfterimageError):
    """A service this one needs does not answer."""

    code = "UNAVAILABLE"


class BlobUnavailableError(UnavailableError):
    """The blob store cannot read or write this blob now (for the cache: a miss)."""


class CancelledError(AfterimageError):
    """The job was cancelled."""

    code = "CANCELLED"


class JobFailedError(AfterimageError):
    """The job failed for good: asked again under its idempotency key, it gives the same answer."""


class DeadlineError(AfterimageError):
    """The deadline passed before the picture was done."""

    code = "DEADLINE_EXCEEDED"


class ConfigurationError(AfterimageError):
    """The settings cannot work together; the message names the setting."""

    code = "FAILED_PRECONDITION"


class CatalogVersionError(ConfigurationError):
    """The catalog was written by a newer Afterimage than this one."""


class StoreMismatchError(ConfigurationError):
    """The blob store and the catalog do not belong together."""


class DataDirectoryLockedError(ConfigurationError):
    """Another process works in this data directory."""


class UnreadableRowError(AfterimageError, ValueError):
    """A row of the catalog was written by another version of Afterimage, and this version cannot read it."""

    code = "FAILED_PRECONDITION"

    def __init__(self, row: str, why: str, tenant: str = "") -> None:
        """row: `job 'id'`; why: the field, and what is wrong with it; tenant: whose row it is."""
        super().__init__(f"{row} cannot be read by this version of Afterimage: {why}; a newer version can read it")
        self.tenant = tenant


class ModelError(AfterimageError):
    """A model cannot be loaded or cannot do what was asked."""

    code = "FAILED_PRECONDITION"


class BlobMissingError(NotFoundError):
    """The blob is not there (for the cache: a hole)."""


class BlobCorruptError(AfterimageError):
    """The blob's content does not have the hash it was stored under (for the cache: a hole)."""

    code = "DATA_LOSS"


def passes(error: BaseException) -> bool:
    """Whether waiting mends it: something is away or full, and the task itself is not to blame."""
    return isinstance(error, UnavailableError | OverloadedError) or getattr(error, "retry_after_s", None) is not None
