"""The errors that Afterimage raises. Each message has the value, the broken rule, and what to do.

A docstring's first paragraph says what happened; its first line is the default message. The second paragraph says what
to do. docs/reference/errors.md is generated from both.
"""

from __future__ import annotations

from typing import ClassVar


class AfterimageError(Exception):
    """An error that Afterimage raises on purpose.

    Read the message, which says what to do. If it calls the error internal, report it with the service's log.

    `code` is the name of the gRPC status in replies. `retry_after_s` is the delay in seconds after which a client may
    try again. `outside` replaces the message for clients if the message names hosts, users or databases, which belong
    in the log only.
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
    """A field of the request breaks a rule.

    Change the field as the message says, and send the request again.
    """

    code = "INVALID_ARGUMENT"

    def __init__(self, field: str, rule: str, value: object = None) -> None:
        shown = "" if value is None else f" (got {str(value)[:120]!r})"
        super().__init__(f"{field}: {rule}{shown}")
        self.field = field
        self.rule = rule


class NotFoundError(AfterimageError):
    """Nothing is stored under this name.

    Check the name or id. Jobs and images expire after `results_keep_s`, and beyond `kept_jobs` of their tenant.
    """

    code = "NOT_FOUND"


class UnauthenticatedError(AfterimageError):
    """The call has no valid API key.

    Set AFTERIMAGE_API_KEY, or give the client `api_key`. `afterimage keys create` makes a key.
    """

    code = "UNAUTHENTICATED"


class PermissionDeniedError(AfterimageError):
    """The API key does not permit this call.

    Use a key with the role, or of the tenant, that the message names.
    """

    code = "PERMISSION_DENIED"


class ConflictError(AfterimageError):
    """The idempotency key was used before, for another request.

    Send a new key for a new request. To get the first job's image, send the first request unchanged.
    """

    code = "ALREADY_EXISTS"


class OverloadedError(AfterimageError):
    """The queue is full, or the tenant or the gateway has as much work at once as it may have.

    Send the request again after the retry delay. Without a retry delay a message was too large: send less, or raise
    `max_message_bytes` at both ends.
    """

    code = "RESOURCE_EXHAUSTED"


class StorageFullError(OverloadedError):
    """The disk of the data directory, the catalog or the blob store is full.

    Free disk space. The gateway then accepts jobs again, without a restart.
    """


class LateError(OverloadedError):
    """By the predicted step times, the request cannot finish before its deadline (setting `refuse_late`).

    Send the request again after the retry delay, or with the later deadline that the message names.
    """


class RateLimitError(OverloadedError):
    """This API key or its tenant sends more calls, or has more open, than its limit allows.

    Send the request again after the retry delay. An operator makes keys with another rate (`afterimage keys create`),
    and sets the limits of tenants (`tenant_limits`).
    """


class UnavailableError(AfterimageError):
    """A service or server that this one needs does not answer.

    Try again after a few seconds. If the error stays, start the server that the message names.
    """

    code = "UNAVAILABLE"


class BlobUnavailableError(UnavailableError):
    """The blob store cannot read or write this blob now. The cache counts a miss.

    Start the blob store that the message names, or check its address and keys.
    """


class CancelledError(AfterimageError):
    """The job was cancelled.

    Nothing is wrong. Send the request again to get its image.
    """

    code = "CANCELLED"


class JobFailedError(AfterimageError):
    """The job failed for good. The same idempotency key returns the same error.

    Read the reason in the message, then send the request again under a new idempotency key.
    """


class DeadlineError(AfterimageError):
    """The deadline passed before the image was finished.

    Send the request again with a longer deadline or timeout, or with fewer steps.
    """

    code = "DEADLINE_EXCEEDED"


class ConfigurationError(AfterimageError):
    """The settings are wrong or do not fit together.

    Change the setting that the message names, then start the process again.
    """

    code = "FAILED_PRECONDITION"


class CatalogVersionError(ConfigurationError):
    """The catalog was written by a newer version of Afterimage.

    Start that version or a newer one, or restore a backup of the catalog from before the upgrade.
    """


class StoreMismatchError(ConfigurationError):
    """The blob store and the catalog do not belong together.

    Correct `catalog_url` or `blobs_url`. If the two should belong together, run `afterimage cache adopt`.
    """


class DataDirectoryLockedError(ConfigurationError):
    """Another process works in this data directory.

    Use or stop the process that the message names, or choose another `data_dir`.
    """


class UnreadableRowError(AfterimageError, ValueError):
    """A row of the catalog was written by another version of Afterimage, and this version cannot read it.

    Read the row with a newer version. This version leaves the row as it is.
    """

    code = "FAILED_PRECONDITION"

    def __init__(self, row: str, why: str, tenant: str = "") -> None:
        """row: a noun and an id, as in `job 'id'`; why: the field and its fault; tenant: the row's owner."""
        super().__init__(f"{row} cannot be read by this version of Afterimage: {why}; a newer version can read it")
        self.tenant = tenant


class ModelError(AfterimageError):
    """A model cannot be loaded, or cannot do what the request asks.

    Run `afterimage models check NAME`, which lists what is missing or unsupported.
    """

    code = "FAILED_PRECONDITION"


class BlobMissingError(NotFoundError):
    """The blob is not in the store. The cache counts a hole.

    A lost image cannot be read again: send its request again. After restoring a backup, restore the blobs as well.
    """


class BlobCorruptError(AfterimageError):
    """The blob's content does not match the hash that it was stored with. The cache counts a hole.

    Send the image's request again, and check the disk of the blob store.
    """

    code = "DATA_LOSS"


def passes(error: BaseException) -> bool:
    """Return whether waiting may help: a server is away or full, and the task itself is not the cause."""
    return isinstance(error, UnavailableError | OverloadedError) or getattr(error, "retry_after_s", None) is not None
