"""Generate the project's own session traces: users who refine prompts for the bundled models as real users do.

The numbers in `Structure` are fitted to a real text-to-image trace with `load.measure_trace`. Prompts are captions of
`shared.models.scenes` and contain nothing of real prompts. `python -m load.sessions` writes the trace that ships, and
`python -m load.sessions --clips` the one of clips, whose users also change motions.
"""

from __future__ import annotations

import argparse
import json
import math
import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, TypeVar

from load.arrivals import poisson
from load.edit_structure import relation
from shared.models.scenes import ATTRIBUTES, CLIP_EDITS, EDITS, MovingScene, Scene
from shared.models.scenes.modality import grammar_of

T = TypeVar("T")

SHIPPED = Path(__file__).parent / "traces" / "sessions_1200.jsonl"
SHIPPED_CLIPS = SHIPPED.with_name("clip_sessions_1200.jsonl")
SHIPPED_COUNT, SHIPPED_SEED = 1200, 65

MAIN_SIZE = (64, 64)
KINDS = ("first", "repeat", "return", *(kind for kind in EDITS if kind != "unrelated"), "several", "unrelated")
"""Relations of a prompt to the user's previous one; see `kind_of_edit`."""
CLIP_KINDS = (*KINDS[:3], *(kind for kind in CLIP_EDITS if kind != "unrelated"), *KINDS[-2:])
"""The same of clips: their size and position follow from the motion."""


@dataclass(frozen=True, slots=True)
class Structure:
    """Behaviour of users; numbers without `Chosen` are fitted to the results of `load.measure_trace`."""

    requests_per_h: float = 625.0
    """An eighth of the real trace's load; see load/README.md."""
    requests_per_user: float = 26.0
    session_length_median: float = 3.8
    session_length_sigma: float = 1.47
    """Standard deviation of the logarithm: a mean of 11.4 requests, and one request in a fifth of the sessions."""
    gap_median_s: float = 112.0
    gap_sigma: float = 1.0
    pause_median_s: float = 4500.0
    pause_sigma: float = 1.0
    """Pause between two sessions of a user, a lognormal of at least half an hour."""
    moves: Mapping[str, tuple[float, float, float]] = field(
        default_factory=lambda: {
            "equal": (0.45, 0.37, 0.18),
            "near": (0.087, 0.703, 0.21),
            "other": (0.047, 0.23, 0.723),
            "pause": (0.023, 0.135, 0.842),
        }
    )
    """Probabilities of (equal, near, other) after each move; `pause` starts a new session of the same user."""
    returns: float = 0.13
    """Share of near and other moves that return to an earlier prompt of the same user, if one fits."""
    sizes: Mapping[tuple[int, int], float] = field(
        default_factory=lambda: {MAIN_SIZE: 0.52, (64, 96): 0.25, (96, 64): 0.19, (96, 96): 0.04}
    )
    size_redrawn: Mapping[str, float] = field(default_factory=lambda: {"equal": 0.17, "near": 0.10, "other": 0.33})
    """Probability of choosing a size again after each move; the choice may give the same size."""
    near_edits: Mapping[str, float] = field(
        default_factory=lambda: {
            "paraphrase": 0.14, "style": 0.18, "light": 0.10, "colour": 0.15, "size": 0.08, "position": 0.07,
            "count": 0.06, "background": 0.12, "object": 0.10,
        }
    )  # fmt: skip
    """Shares of the changes in near-duplicates. Chosen: the real trace does not show the meaning of a changed word."""
    several: float = 0.45
    """Share of other moves that change two or three attributes at once; the rest are unrelated scenes."""
    fixed_seed: float = 0.5
    """Share of sessions with one seed, whose repeats are exact. Chosen: the real trace has no seeds."""
    steps: int = 50
    frames: int = 1
    """Frames of every request; more than one: moving scenes."""


CLIPS = Structure(
    frames=16,
    sizes={MAIN_SIZE: 1.0},
    near_edits={
        "paraphrase": 0.14, "style": 0.14, "light": 0.10, "colour": 0.14, "count": 0.06, "background_motion": 0.06,
        "motion": 0.14, "background": 0.12, "object": 0.10,
    },
)  # fmt: skip
"""Users of clips. Chosen: no trace of clips with users was at hand, so only the kinds of change differ from images."""


@dataclass(frozen=True, slots=True)
class Prompt:
    """One row of the trace; with `seed` None the server chooses the seed."""

    prompt: str
    user: int
    arrival_s: float
    width: int
    height: int
    steps: int
    seed: int | None
    kind_of_edit: str
    scene: Any
    """A Scene; a MovingScene of clips."""
    frames: int = 1


def make_trace(count: int, seed: int, structure: Structure | None = None) -> list[Prompt]:
    """Generate `count` consecutive requests of a day, from the afternoon on; equal seeds give equal traces."""
    how = structure or Structure()
    rng = random.Random(seed)
    day_s = 86_400.0 + count / how.requests_per_h * 3600
    starts = poisson(how.requests_per_h / how.requests_per_user / 3600, int(day_s), seed)
    rows: list[Prompt] = []
    for user, start_s in enumerate(start_s for start_s in starts if start_s < day_s):
        rows.extend(_user(user, start_s, how, rng))
    rows.sort(key=lambda row: row.arrival_s)
    first = next(i for i, row in enumerate(rows) if row.arrival_s >= 57_600)
    return label(_renumbered(rows[first : first + count]))


def kind_of_edit(before: Scene | MovingScene, after: Scene | MovingScene) -> str:
    """Return the change between two prompts of different text: one of EDITS (of CLIP_EDITS for clips), or `several`
    (two or three attributes)."""
    one, other = _attributes(before), _attributes(after)
    changed = [name for name in one if one[name] != other[name]]
    if not changed:
        return "paraphrase"
    if len(changed) == 1:
        return changed[0]
    return "unrelated" if len(changed) > 3 or {"object", "background"} <= set(changed) else "several"


def _attributes(scene: Scene | MovingScene) -> dict[str, Any]:
    """Return the values that a prompt names. A clip's motion decides most sizes and positions, so they do not count."""
    if isinstance(scene, Scene):
        return {name: getattr(scene, name) for name in ATTRIBUTES}
    own = {name: getattr(scene.scene, name) for name in ATTRIBUTES if name not in ("size", "position")}
    return own | {"motion": scene.motion, "background_motion": scene.background_motion}


def label(rows: Sequence[Prompt]) -> list[Prompt]:
    """Return the rows with `kind_of_edit`, from each user's earlier prompts in these rows."""
    asked: dict[int, list[Prompt]] = {}
    labelled = []
    for row in rows:
        earlier = asked.setdefault(row.user, [])
        if not earlier:
            kind = "first"
        elif earlier[-1].prompt == row.prompt:
            kind = "repeat"
        elif any(old.prompt == row.prompt for old in earlier):
            kind = "return"
        else:
            kind = kind_of_edit(earlier[-1].scene, row.scene)
        earlier.append(row)
        labelled.append(replace(row, kind_of_edit=kind))
    return labelled


def write_trace(path: Path, rows: Sequence[Prompt]) -> None:
    """Write one JSON object a line; rows of images have no `frames`."""
    values = [{name: one for name, one in asdict(row).items() if (name, one) != ("frames", 1)} for row in rows]
    path.write_text("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in values), encoding="utf-8")


def read_trace(path: Path = SHIPPED) -> list[Prompt]:
    """Read a trace of `write_trace`; raises ValueError with the number of a wrong line."""
    rows = []
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
        try:
            values = json.loads(line)
            rows.append(Prompt(**{**values, "scene": _scene(values["scene"])}))
        except (KeyError, TypeError, ValueError) as error:
            raise ValueError(
                f"{path}:{number}: must be a row of a session trace, as load.sessions writes it: {error}"
            ) from error
    return rows


def _scene(values: dict[str, Any]) -> Scene | MovingScene:
    return MovingScene(**{**values, "scene": Scene(**values["scene"])}) if "motion" in values else Scene(**values)


def _user(user: int, now: float, how: Structure, rng: random.Random) -> Iterator[Prompt]:
    """Yield all requests of one user, in sessions whose number gives `requests_per_user` on average."""
    sessions_mean = how.requests_per_user / _lognormal_mean(how.session_length_median, how.session_length_sigma)
    size = _draw(how.sizes, rng)
    history: list[tuple[str, Any, int]] = []
    while True:
        move = "pause"
        seed = rng.randrange(2**31) if rng.random() < how.fixed_seed else None
        length = rng.lognormvariate(math.log(how.session_length_median), how.session_length_sigma)
        for i in range(max(1, round(length))):
            now += 0.0 if i == 0 else min(rng.lognormvariate(math.log(how.gap_median_s), how.gap_sigma), 1799.0)
            if history:
                move = rng.choices(("equal", "near", "other"), how.moves[move])[0]
                if rng.random() < how.size_redrawn[move]:
                    size = _draw(how.sizes, rng)
            history.append(_next(history, move, how, rng))
            text, scene, _ = history[-1]
            yield Prompt(text, user, round(now, 1), *size, how.steps, seed, "", scene, how.frames)
        if rng.random() < 1 / sessions_mean:
            return
        now += max(1801.0, rng.lognormvariate(math.log(how.pause_median_s), how.pause_sigma))


def _next(
    history: Sequence[tuple[str, Any, int]], move: str, how: Structure, rng: random.Random
) -> tuple[str, Any, int]:
    """Return the next (text, scene, wording) of a user; `move` is its relation to the last one."""
    grammar = grammar_of(how.frames)
    if not history:
        scene, wording = grammar.sample(rng, 0.4), rng.randrange(grammar.wordings)
        return grammar.caption(scene, wording), scene, wording
    last, scene, wording = history[-1]
    if move == "equal":
        return history[-1]
    if rng.random() < how.returns:
        fitting = [old for old in history if relation(last, old[0]) == move]
        if fitting:
            return rng.choice(fitting)
    for _ in range(50):
        changed, worded = _changed(scene, wording, move, how, rng)
        text = grammar.caption(changed, worded)
        if relation(last, text) == move:
            return text, changed, worded
    raise AssertionError(f"no {move} prompt after {last!r} in 50 tries")


def _changed(scene: Any, wording: int, move: str, how: Structure, rng: random.Random) -> tuple[Any, int]:
    grammar = grammar_of(how.frames)
    if move == "near":
        kind = _draw(how.near_edits, rng)
        return grammar.edit(scene, kind, rng), rng.randrange(grammar.wordings) if kind == "paraphrase" else wording
    if rng.random() < how.several:
        for kind in rng.sample(grammar.single_changes, rng.choice((2, 3))):
            scene = grammar.edit(scene, kind, rng)
        return scene, rng.randrange(grammar.wordings)
    return grammar.edit(scene, "unrelated", rng), rng.randrange(grammar.wordings)


def _renumbered(rows: Sequence[Prompt]) -> list[Prompt]:
    """Return the rows with users numbered from 0 in order of appearance, and seconds from the first arrival."""
    users: dict[int, int] = {}
    return [
        replace(row, user=users.setdefault(row.user, len(users)), arrival_s=round(row.arrival_s - rows[0].arrival_s, 1))
        for row in rows
    ]


def _draw(weights: Mapping[T, float], rng: random.Random) -> T:
    return rng.choices(list(weights), list(weights.values()))[0]


def _lognormal_mean(middle: float, sigma: float) -> float:
    return middle * math.exp(sigma**2 / 2)


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=SHIPPED_COUNT, help="number of requests")
    parser.add_argument("--seed", type=int, default=SHIPPED_SEED, help="seed of the random numbers")
    parser.add_argument("--clips", action="store_true", help="clips of 16 frames instead of images")
    parser.add_argument("--out", type=Path, help="default: the trace that ships")
    chosen = parser.parse_args(arguments)
    out = chosen.out or (SHIPPED_CLIPS if chosen.clips else SHIPPED)
    if out in (SHIPPED, SHIPPED_CLIPS) and (chosen.count, chosen.seed) != (SHIPPED_COUNT, SHIPPED_SEED):
        parser.error(
            f"--out: the trace that ships has --count {SHIPPED_COUNT} --seed {SHIPPED_SEED} "
            f"(got {chosen.count} and {chosen.seed}); name another file"
        )
    write_trace(out, make_trace(chosen.count, chosen.seed, CLIPS if chosen.clips else None))
    print(f"wrote {chosen.count} prompts to {out}")


if __name__ == "__main__":
    main()
