"""Fill the bubbles of one iteration with the frozen part of the next one (DiffusionPipe §3.2, §5)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from services.trainer.pipeline.filling.one_bubble import FrozenWork, Option, Piece, Progress, best_option
from services.trainer.pipeline.schedule.bubbles import Bubble

MINIMUM_BUBBLE_S = 0.010
"""Shorter bubbles are left empty: setting up inputs and outputs takes about as long (§5, footnote 3)."""


@dataclass(frozen=True)
class FilledBubble:
    """A bubble and the pieces that its devices run, one after the other from its start."""

    bubble: Bubble
    pieces: tuple[Piece, ...]

    @property
    def seconds(self) -> float:
        return sum(piece.seconds for piece in self.pieces)


@dataclass(frozen=True)
class Filling:
    """The frozen part of the next iteration, in bubbles and after the pipeline."""

    bubbles: tuple[FilledBubble, ...]
    rest: tuple[Piece, ...]
    """What fits into no bubble; all devices run it after the pipeline."""
    rest_s: float

    @property
    def filled_device_s(self) -> float:
        """Return the seconds in bubbles, summed over devices."""
        return sum(one.seconds * len(one.bubble.devices) for one in self.bubbles)


@dataclass(frozen=True)
class _State:
    progress: Progress
    rest_s: float
    taken: tuple[tuple[Bubble, Option], ...]
    greedy: bool
    """All choices so far are those of Algorithm 1."""


def fill(
    bubbles: Sequence[Bubble], work: FrozenWork, *, minimum_bubble_s: float = MINIMUM_BUBBLE_S, beam_width: int = 1
) -> Filling:
    """Fill the bubbles in order of time.

    beam_width 1 is the paper's greedy algorithm: each bubble takes the option with the longest execution time. Beyond
    the paper, a larger width keeps that many states after each bubble: those with the least time left, and always the
    greedy one. A component may then begin in the bubble in which its inputs become complete. The result is never worse
    than the greedy one, since only the time that is left prolongs the iteration.
    """
    start = work.start()
    states = [_State(start, work.rest_s(start), (), True)]
    for bubble in bubbles:
        if bubble.seconds >= minimum_bubble_s and any(state.rest_s for state in states):
            states = _extended(states, bubble, work, beam_width)
    best = min(states, key=lambda one: one.rest_s)
    filled = tuple(FilledBubble(bubble, option.pieces) for bubble, option in best.taken if option.pieces)
    return Filling(filled, work.rest(best.progress), best.rest_s)


def _extended(states: Sequence[_State], bubble: Bubble, work: FrozenWork, width: int) -> list[_State]:
    """Return the states after one more bubble, at most `width`."""
    found: dict[Progress, _State] = {}
    seconds, devices = bubble.seconds, len(bubble.devices)
    for state in states:
        options = [] if width == 1 else list(work.options(state.progress, seconds, devices, within=True))
        if state.greedy:
            longest = best_option(work.options(state.progress, seconds, devices))
            options.append(longest or Option((), 0.0, state.progress))
        for option in options:
            greedy = state.greedy and option is options[-1]
            if greedy or option.after not in found:
                left = work.rest_s(option.after)
                found[option.after] = _State(option.after, left, (*state.taken, (bubble, option)), greedy)
    ordered = sorted(found.values(), key=lambda one: one.rest_s)
    kept = ordered[:width]
    if not any(one.greedy for one in kept):
        kept[-1] = next(one for one in ordered if one.greedy)
    return kept
