"""Messages between the devices of a pipeline group, point to point over torch.distributed.

There is one process group per direction, from lower to higher ranks and back: the messages between two devices in one
group all go the same way. Sends never wait. A receiver takes the messages of a sender in the order in which the
sender's program has them, and posts a few receives ahead, while it computes.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta

import torch
import torch.distributed as dist

from services.trainer.pipeline.runtime.parcels import HEADER_BYTES, Header, decoded, header_of, packed, unpacked
from services.trainer.pipeline.runtime.program import Message, Program
from services.trainer.pipeline.runtime.splitting.chain import State

AHEAD = 2
"""Receives that are posted ahead for each sender."""


@dataclass
class _Posted:
    message: Message
    header: Header
    buffer: torch.Tensor
    work: dist.Work


class Transport:
    """The messages of one device; every rank of the world makes one, in the same order."""

    def __init__(
        self,
        ranks: Sequence[int],
        own: int,
        device: torch.device,
        *,
        member: bool = True,
        timeout: timedelta | None = None,
    ) -> None:
        """Prepare messages between `ranks`, the world's ranks of a pipeline group; `own` is the place in it.

        Ranks that are no `member` take part in making the process groups only. A message that does not come within
        the timeout is an error.
        """
        self._ranks, self._own, self._device = tuple(ranks), own, device
        self._down, self._up = (dist.new_group(list(ranks), timeout=timeout) for _ in range(2))
        self._sent_headers: dict[Hashable, Header] = {}
        self._headers: dict[Hashable, Header] = {}
        self._expected: dict[int, deque[Message]] = {}
        self._posted: dict[int, deque[_Posted]] = {}
        self._arrived: dict[Message, State] = {}
        self._sending: list[tuple[dist.Work, torch.Tensor]] = []
        self._sizes: tuple[Hashable, Hashable] = (None, None)
        self.waited_s = 0.0
        """Seconds in which this rank waited for messages, over all iterations; on a GPU those of its launches."""
        if member:
            self._connect()

    def _connect(self) -> None:
        """Exchange one byte between all pairs, one pair after the other.

        NCCL connects two ranks at their first message, and waits for both.
        """
        byte = torch.zeros(1, dtype=torch.uint8, device=self._device)
        for low in range(len(self._ranks)):
            for high in range(low + 1, len(self._ranks)):
                for source, target in ((low, high), (high, low)):
                    if self._own == source:
                        dist.send(byte, self._ranks[target], group=self._group(source, target))
                    elif self._own == target:
                        dist.recv(byte, self._ranks[source], group=self._group(source, target))

    def _group(self, source: int, target: int) -> dist.ProcessGroup:
        return self._down if source < target else self._up

    def begin(self, program: Program, size: Hashable, next_size: Hashable) -> None:
        """Expect the messages of a program; a header travels once for each size and kind of message.

        Tensors of batches of one size have equal shapes per row.
        """
        self._sizes = (size, next_size)
        for source in range(len(self._ranks)):
            if source != self._own and (messages := program.between(source, self._own)):
                self._expected[source], self._posted[source] = deque(messages), deque()
                self._post(source)

    def send(self, message: Message, state: Mapping[str, torch.Tensor], first_row: int) -> None:
        """Send the message's rows of a state whose tensors begin at `first_row`."""
        rows = len(next(iter(state.values()))) if state else 0
        made, key = header_of(state, rows), (message.target, self._key(message))
        header = self._sent_headers.setdefault(key, made)
        if header is made:
            self._isend(message, header.encoded().to(self._device))
        elif not header.matches(made):
            raise RuntimeError(f"the tensors of {message.kind} changed their shapes or names within one size of images")
        low = message.rows.start - first_row
        if state:
            self._isend(message, packed(state, header, slice(low, low + len(message.rows))))
        self._sending = [(work, buffer) for work, buffer in self._sending if not work.is_completed()]

    def _isend(self, message: Message, buffer: torch.Tensor) -> None:
        group = self._group(self._own, message.target)
        work = dist.isend(buffer, self._ranks[message.target], group=group)
        if work is not None:
            self._sending.append((work, buffer))

    def receive(self, message: Message) -> State:
        """Wait for a message and return its state; `waited_s` counts the time."""
        while message not in self._arrived:
            self._take(message.source)
        return self._arrived.pop(message)

    def _key(self, message: Message) -> Hashable:
        return (message.source, message.kind, self._sizes[message.ahead])

    def _post(self, source: int) -> None:
        """Post receives for the next messages of a sender, as far as their shapes are known."""
        expected, posted = self._expected[source], self._posted[source]
        while expected and len(posted) < AHEAD and (header := self._headers.get(self._key(expected[0]))):
            message = expected.popleft()
            buffer = torch.empty(header.bytes(len(message.rows)), dtype=torch.uint8, device=self._device)
            if header.tensors:
                posted.append(_Posted(message, header, buffer, self._irecv(source, buffer)))
            else:
                self._arrived[message] = {}

    def _irecv(self, source: int, buffer: torch.Tensor) -> dist.Work:
        work = dist.irecv(buffer, self._ranks[source], group=self._group(source, self._own))
        assert work is not None, "this rank is in the group"
        return work

    def _take(self, source: int) -> None:
        """Wait for the next message of a sender, or for its header if its shapes are not known yet."""
        begun = time.perf_counter()
        if not self._posted[source]:
            message = self._expected[source][0]
            header = torch.empty(HEADER_BYTES, dtype=torch.uint8, device=self._device)
            self._irecv(source, header).wait()
            self._headers[self._key(message)] = decoded(header)
        else:
            one = self._posted[source].popleft()
            one.work.wait()
            self._arrived[one.message] = unpacked(one.buffer, one.header, len(one.message.rows))
        self.waited_s += time.perf_counter() - begun
        self._post(source)

    def finish(self) -> None:
        """Wait until all messages have left and arrived."""
        for source in self._expected:
            while self._expected[source] or self._posted[source]:
                self._take(source)
        begun = time.perf_counter()
        for work, _ in self._sending:
            work.wait()
        self.waited_s += time.perf_counter() - begun
        self._sending.clear()
        self._arrived.clear()
