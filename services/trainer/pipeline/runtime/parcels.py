"""Named tensors as one flat buffer: a cut takes one message for any number of skips that pass through it.

A tensor with two names travels once, and stays one tensor: its gradients then add up in the same order as in a model
that was never cut. The order of dimensions in memory (channels last, say) is that of the first parcel of its kind,
since kernels depend on it.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import torch

from services.trainer.pipeline.runtime.splitting.chain import State

ALIGNED = 16
"""Bytes at which each tensor begins."""
HEADER_BYTES = 16384


@dataclass(frozen=True)
class Packed:
    """One tensor of a parcel, without its number of rows."""

    dtype: str
    shape: tuple[int, ...]
    """After the first dimension."""
    order: tuple[int, ...]
    """Dimensions from the largest to the smallest stride."""
    requires_grad: bool

    def elements(self, rows: int) -> int:
        return rows * math.prod(self.shape)

    def bytes(self, rows: int) -> int:
        """Return the bytes in the buffer, with the gap to the next tensor."""
        return -(-self.elements(rows) * self.type.itemsize // ALIGNED) * ALIGNED

    @property
    def type(self) -> torch.dtype:
        found: torch.dtype = getattr(torch, self.dtype)
        return found


@dataclass(frozen=True)
class Header:
    """Contents of a parcel: names, and the tensor of each name."""

    names: tuple[tuple[str, int], ...]
    tensors: tuple[Packed, ...]

    def matches(self, other: Header) -> bool:
        """Return whether another parcel has the same names and shapes. Its tensors may have other orders of dimensions
        in memory: they travel in this header's."""
        plain = [[replace(one, order=()) for one in header.tensors] for header in (self, other)]
        return self.names == other.names and plain[0] == plain[1]

    def bytes(self, rows: int) -> int:
        return sum(one.bytes(rows) for one in self.tensors)

    def encoded(self) -> torch.Tensor:
        """Return the header as a tensor of HEADER_BYTES bytes."""
        tensors = [[one.dtype, one.shape, one.order, one.requires_grad] for one in self.tensors]
        text = json.dumps([self.names, tensors]).encode()
        if len(text) > HEADER_BYTES:
            raise ValueError(f"a cut may have {HEADER_BYTES} bytes of names and shapes at most (got {len(text)})")
        return torch.frombuffer(bytearray(text.ljust(HEADER_BYTES)), dtype=torch.uint8)


def decoded(header: torch.Tensor) -> Header:
    """Return the header that `Header.encoded` wrote."""
    names, tensors = json.loads(bytes(header.cpu().tolist()))
    return Header(
        tuple((name, at) for name, at in names),
        tuple(Packed(dtype, tuple(shape), tuple(order), grad) for dtype, shape, order, grad in tensors),
    )


def header_of(state: Mapping[str, torch.Tensor], rows: int) -> Header:
    """Return the header of a state. Raises ValueError for a tensor whose first dimension is not `rows`."""
    places: dict[int, int] = {}
    names: list[tuple[str, int]] = []
    tensors: list[Packed] = []
    for name, tensor in sorted(state.items()):
        if tensor.shape[:1] != (rows,):
            raise ValueError(f"{name} must have a first dimension of {rows} samples (got {tuple(tensor.shape)})")
        if id(tensor) not in places:
            places[id(tensor)] = len(tensors)
            order = _order(tensor.stride())
            dtype = str(tensor.dtype).removeprefix("torch.")
            tensors.append(Packed(dtype, tuple(tensor.shape[1:]), tuple(order), tensor.requires_grad))
        names.append((name, places[id(tensor)]))
    return Header(tuple(names), tuple(tensors))


def _order(strides: Sequence[int]) -> list[int]:
    """Return the dimensions from the largest to the smallest stride."""
    return sorted(range(len(strides)), key=lambda at: (-strides[at], at))


def packed(state: Mapping[str, torch.Tensor], header: Header, rows: slice) -> torch.Tensor:
    """Return some rows of a state as one buffer of bytes."""
    found = []
    by_place = {place: state[name] for name, place in header.names}
    for place, one in enumerate(header.tensors):
        tensor = by_place[place].detach()[rows]
        flat = tensor.permute(one.order).contiguous().view(-1).view(torch.uint8)
        found.append(flat)
        if gap := one.bytes(len(tensor)) - flat.numel():
            found.append(flat.new_zeros(gap))
    return torch.cat(found) if found else torch.empty(0, dtype=torch.uint8)


def unpacked(buffer: torch.Tensor, header: Header, rows: int) -> State:
    """Return the state in a buffer; its tensors are views of the buffer, and leaves that may require gradients."""
    tensors, at = [], 0
    for one in header.tensors:
        shape = (rows, *one.shape)
        flat = buffer[at : at + one.elements(rows) * one.type.itemsize].view(one.type)
        back = [one.order.index(dimension) for dimension in range(len(shape))]
        tensor = flat.view([shape[dimension] for dimension in one.order]).permute(back)
        tensors.append(tensor.requires_grad_(one.requires_grad))
        at += one.bytes(rows)
    return {name: tensors[place] for name, place in header.names}


def joined(parts: Sequence[Mapping[str, torch.Tensor]]) -> State:
    """Return parts of one state, in the order of their rows, as a whole; names of one tensor stay one tensor."""
    if len(parts) == 1:
        return dict(parts[0])
    found: dict[int, torch.Tensor] = {}
    for name, tensor in parts[0].items():
        if id(tensor) not in found:
            whole = torch.cat([part[name].detach() for part in parts])
            found[id(tensor)] = whole.requires_grad_(tensor.requires_grad)
    return {name: found[id(tensor)] for name, tensor in parts[0].items()}


def first_names(state: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Return each tensor that requires a gradient once, by its first name in alphabetic order."""
    found: dict[int, tuple[str, torch.Tensor]] = {}
    for name, tensor in sorted(state.items()):
        if tensor.requires_grad:
            found.setdefault(id(tensor), (name, tensor))
    return dict(found.values())
