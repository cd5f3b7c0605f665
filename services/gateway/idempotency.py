"""What makes a retry the same request: the caller's key and a hash of what it asked for (design §8, Accept)."""

from __future__ import annotations

import hashlib
import re

from protos import common_pb2 as pb
from shared.errors import InvalidRequestError

METADATA_KEY = "idempotency-key"
_KEY = re.compile(r"[\x21-\x7e]{1,200}")


def check_key(key: str) -> str:
    """The key as it is, empty when there is none; raises InvalidRequestError for one that cannot be a key."""
    if key and not _KEY.fullmatch(key):
        raise InvalidRequestError(METADATA_KEY, "must be 1 to 200 printable ASCII characters without spaces", key)
    return key


def body_hash(message: pb.Request) -> str:
    """sha256 of the request as the client sent it, before defaults and a drawn seed."""
    return hashlib.sha256(message.SerializeToString(deterministic=True)).hexdigest()
