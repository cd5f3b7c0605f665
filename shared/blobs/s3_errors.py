"""Conversion of an S3 client's errors; no error message contains an access key."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from minio.error import MinioException, S3Error
from urllib3.exceptions import HTTPError

from shared.domain.errors import BlobMissingError, BlobUnavailableError, ConfigurationError, StorageFullError

RETRY_AFTER_S = 5.0
TRIES, AGAIN_S = 4, 0.05
"""Attempts of a put that is denied, and the pause in seconds between them."""
_FULL = ("XMinioStorageFull", "XMinioAdminBucketQuotaExceeded", "QuotaExceeded", "InsufficientStorage")
_NO_SPACE = "no space left on device"
"""MinIO's message on a small full disk; SeaweedFS reports only a general error, which becomes BlobUnavailableError."""
_REFUSED = ("AccessDenied", "InvalidAccessKeyId", "SignatureDoesNotMatch")


def away(what: str, said: object) -> BlobUnavailableError:
    """Return the error for an unreachable store; `said` may name the server and goes only to the log."""
    outside = f"{what}: the blob store does not answer; ask again in a moment"
    return BlobUnavailableError(f"{what}: {said}", retry_after_s=RETRY_AFTER_S, outside=outside)


def unless_refused_again(work: Callable[[], object]) -> None:
    """Retry `work` on AccessDenied: MinIO on a disk also denies a put into a folder that is being emptied."""
    for left in reversed(range(TRIES)):
        try:
            work()
            return
        except S3Error as error:
            if error.code != "AccessDenied" or not left:
                raise
        time.sleep(AGAIN_S)


@contextmanager
def told(what: str) -> Iterator[None]:
    """Convert the client's errors; `what` describes the operation for the message."""
    try:
        yield
    except S3Error as error:
        said = f"{what}: {error.code} ({error.message})"
        if error.code == "NoSuchKey":
            raise BlobMissingError(f"{what}: not there") from error
        if error.code in _FULL or error.response.status == 507 or _NO_SPACE in (error.message or ""):
            raise StorageFullError(said, retry_after_s=RETRY_AFTER_S) from error
        raise BlobUnavailableError(said, retry_after_s=RETRY_AFTER_S) from error
    except (MinioException, HTTPError) as error:
        raise away(what, error) from error


@contextmanager
def told_at_open(bucket: str) -> Iterator[None]:
    """Convert errors when opening a bucket: ConfigurationError if the keys are rejected.

    A bucket that another process created at the same time is accepted.
    """
    try:
        with told(f"bucket {bucket!r}"):
            yield
    except BlobUnavailableError as error:
        code = getattr(error.__cause__, "code", "")
        if code in _REFUSED:
            said = f"blobs_url: bucket {bucket!r}: the server answered {code}; check the keys"
            raise ConfigurationError(said) from error
        if code != "BucketAlreadyOwnedByYou":
            raise
