"""What a client may ask for is typed, and what the wire cannot hold is said with its rule."""

from __future__ import annotations

from typing import Any

import pytest

from protos import common_pb2
from shared.client.request_fields import RequestFields, request_message
from shared.domain.errors import InvalidRequestError
from shared.domain.types import CacheMode


def test_the_typed_fields_are_those_of_the_wire() -> None:
    assert set(RequestFields.__annotations__) | {"prompt"} == set(common_pb2.Request.DESCRIPTOR.fields_by_name)


@pytest.mark.parametrize(
    ("field", "value", "rule"),
    [
        ("steps", -1, "from 0 to 4294967295"),
        ("seed", -1, "from 0 to 18446744073709551615"),
        ("seed", 2**64, "from 0 to 18446744073709551615"),
        ("width", 99_999_999_999, "from 0 to 4294967295"),
        ("priority", 2**31, "from -2147483648 to 2147483647"),
        ("steps", 2.5, "cannot be sent"),
        ("cache", "maybe", "'maybe' is not a valid CacheMode"),
        ("stepz", 2, "is not a field of a request"),
    ],
)
def test_what_cannot_be_sent_names_its_field_and_rule(field: str, value: object, rule: str) -> None:
    fields: Any = {field: value}
    with pytest.raises(InvalidRequestError) as refused:
        request_message("a fox", **fields)
    assert refused.value.field == field
    assert rule in str(refused.value)


def test_what_can_be_sent_is() -> None:
    message = request_message("a fox", seed=2**64 - 1, steps=50, cache="off", guidance=None)
    assert not request_message("a fox", steps="auto").HasField("steps")
    assert (message.seed, message.steps, message.cache) == (2**64 - 1, 50, common_pb2.CACHE_MODE_OFF)
    assert not message.HasField("guidance")
    assert request_message("a fox", cache=CacheMode.OFF).cache == message.cache
