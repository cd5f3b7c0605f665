"""What counts as the same request."""

from __future__ import annotations

import pytest

from protos import common_pb2 as pb
from services.gateway.caller import check_key
from services.gateway.intake import body_hash
from shared.domain.errors import InvalidRequestError


def test_every_field_of_the_body_counts() -> None:
    base = pb.Request(prompt="a fox", seed=1)
    assert body_hash(base) == body_hash(pb.Request(seed=1, prompt="a fox"))
    for other in (pb.Request(prompt="a fox"), pb.Request(prompt="a fox", seed=1, steps=50), pb.Request(seed=1)):
        assert body_hash(other) != body_hash(base)
    assert len({body_hash(base), body_hash(base, 2), body_hash(base, 3)}) == 3
    assert body_hash(base, 1) == body_hash(base)  # as stored before requests had a number of images


def test_keys_are_printable_and_short() -> None:
    assert check_key("") == ""
    assert check_key("0b3c/retry-1") == "0b3c/retry-1"
    for wrong in ("x" * 201, "a b", "ü", "a\n"):
        with pytest.raises(InvalidRequestError, match="idempotency-key"):
            check_key(wrong)
