"""Parcels: named tensors through one buffer and back."""

from __future__ import annotations

import pytest
import torch

from services.trainer.pipeline.runtime.parcels import decoded, first_names, header_of, joined, packed, unpacked

ROWS = 3


def test_a_parcel_comes_out_as_it_went_in() -> None:
    hidden = torch.randn(ROWS, 4, 5, 6).to(memory_format=torch.channels_last).requires_grad_()
    state = {
        "hidden": hidden,
        "skip.0": hidden,
        "emb": torch.randn(ROWS, 7, dtype=torch.bfloat16),
        "ids": torch.randint(0, 9, (ROWS, 5)),
        "level": torch.randn(ROWS),
    }
    header = decoded(header_of(state, ROWS).encoded())
    found = unpacked(packed(state, header, slice(None)), header, ROWS)
    assert found["skip.0"] is found["hidden"]
    for name, tensor in state.items():
        assert torch.equal(found[name], tensor)
        assert found[name].stride() == tensor.stride()
        assert found[name].dtype == tensor.dtype
        assert found[name].requires_grad == tensor.requires_grad
        assert found[name].is_leaf
    assert list(first_names(found)) == ["hidden"]


def test_some_rows_and_rows_of_several_replicas() -> None:
    state = {"a": torch.randn(ROWS, 2, requires_grad=True), "b": torch.randn(ROWS, 1)}
    state["c"] = state["a"]
    header = header_of(state, ROWS)
    parts = [
        unpacked(packed(state, header, rows), header, count) for rows, count in ((slice(0, 2), 2), (slice(2, 3), 1))
    ]
    whole = joined(parts)
    assert torch.equal(whole["a"], state["a"])
    assert torch.equal(whole["b"], state["b"])
    assert whole["c"] is whole["a"]
    assert whole["a"].requires_grad


def test_another_order_in_memory_travels_in_the_header_s() -> None:
    plain = {"a": torch.randn(ROWS, 4, 5, 6)}
    header = header_of(plain, ROWS)
    other = {"a": plain["a"].to(memory_format=torch.channels_last)}
    assert header.matches(header_of(other, ROWS))
    assert torch.equal(unpacked(packed(other, header, slice(None)), header, ROWS)["a"], plain["a"])
    assert not header.matches(header_of({"a": plain["a"][:, :2]}, ROWS))


def test_a_tensor_without_samples_is_named() -> None:
    with pytest.raises(ValueError, match=r"bias must have a first dimension of 3 samples \(got \(1, 8\)\)"):
        header_of({"bias": torch.zeros(1, 8)}, ROWS)
