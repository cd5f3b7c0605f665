"""What `bench.fuzz` draws: messages that parse, all of their fields, and more than one message only of a stream."""

from __future__ import annotations

import pytest
from google.protobuf import message_factory
from hypothesis import given, settings

from bench.fuzz import METHODS, Call, calls, messages


@settings(max_examples=30)
@given(calls())
def test_a_call_is_one_that_its_method_takes(call: Call) -> None:
    method = METHODS[call.method]
    assert method.client_streaming or len(call.messages) == 1


@pytest.mark.parametrize("name", ["ListJobs", "Erase"])
def test_messages_parse_and_have_all_fields_in_time(name: str) -> None:
    kind, seen = METHODS[name].input_type, set[str]()

    @settings(max_examples=100, database=None)
    @given(messages(kind))
    def drawn(message: object) -> None:
        read = message_factory.GetMessageClass(kind).FromString(message.SerializeToString())  # type: ignore[attr-defined]
        seen.update(field.name for field, _ in read.ListFields())

    drawn()
    assert seen == {field.name for field in kind.fields}
