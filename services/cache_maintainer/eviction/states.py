"""The states of a store by (entry id, step)."""

from __future__ import annotations

from collections.abc import Iterator

from shared.domain.types import State

Key = tuple[str, int]
"""(entry id, step)."""


class States:
    """States by key, in one list for each entry: a dictionary item for each state takes as much memory again."""

    def __init__(self) -> None:
        self._of: dict[str, list[State]] = {}
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def __iter__(self) -> Iterator[State]:
        return (state for states in self._of.values() for state in states)

    def __contains__(self, key: Key) -> bool:
        return self.get(key) is not None

    def __getitem__(self, key: Key) -> State:
        if (state := self.get(key)) is None:
            raise KeyError(key)
        return state

    def get(self, key: Key) -> State | None:
        for state in self._of.get(key[0], ()):
            if state.step == key[1]:
                return state
        return None

    def of(self, entry_id: str) -> list[State]:
        """Return the entry's states."""
        return self._of.get(entry_id, [])

    def has(self, entry_id: str) -> bool:
        """Return whether the entry has any state."""
        return entry_id in self._of

    def put(self, state: State) -> None:
        """Add the state, or replace the one with its key."""
        states = self._of.setdefault(state.entry_id, [])
        for place, before in enumerate(states):
            if before.step == state.step:
                states[place] = state
                return
        states.append(state)
        self._count += 1

    def pop(self, key: Key) -> State | None:
        """Remove and return the state with this key; None if there is none."""
        if (state := self.get(key)) is not None:
            states = self._of[key[0]]
            states.remove(state)
            if not states:
                del self._of[key[0]]
            self._count -= 1
        return state
