"""A replay that was broken off goes on: what is decided stays, and what changed is decided again."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Callable
from dataclasses import fields, replace
from pathlib import Path

import numpy as np
import pytest

from services.replay import kept
from services.replay.kept import Kept, read
from services.replay.policy import PolicySettings, read_policy
from services.replay.results.figures import Run
from services.replay.run import Offered, replay
from services.replay.simulated.decisions import Decisions
from services.replay.simulated.pace import Profile
from services.replay.simulated.timed import Fleet
from services.replay.traces.load import Load
from shared.models.card_lookup import find_card
from shared.models.k_table import Level
from tests.unit.replay.house import STATE, load_of, own_steps, topics

POLICIES = [(name, read_policy(name)) for name in ("lru-hits", "afterimage", "flexcache")]
ROOM = 60 * STATE
FLEET = Fleet(Profile("toy", (1, 8), (0.1, 0.2), 0.1), 2, 8)


@pytest.fixture(scope="module")
def load() -> Load:
    return load_of(*topics(300))


class Said:
    """What began and what was taken over; breaks off where it is told to."""

    def __init__(self, broken_at: str = "") -> None:
        self.began: list[str] = []
        self.taken: list[tuple[str, int]] = []
        self._broken_at = broken_at

    def bar(self, stage: str, total: int | None, done: int = 0) -> Callable[[int], None]:
        self.began.append(stage)

        def advance(count: int) -> None:
            if stage == self._broken_at:
                raise KeyboardInterrupt

        return advance

    def took(self, policy: str, room: int) -> None:
        self.taken.append((policy, room))


def run(
    load: Load,
    folder: Path,
    said: Said,
    policies: list[tuple[str, PolicySettings]] | None = None,
    room: int = ROOM,
    *,
    fleet: Fleet | None = None,
    entries: bool = False,
    anew: bool = False,
) -> list[Run]:
    offered = Offered([room], entries, fleet, Kept(folder, load), anew)
    return list(replay(load, POLICIES if policies is None else policies, offered, said.bar, said.took))


def alike(one: Run, other: Run) -> bool:
    names = [field.name for field in fields(Decisions)]
    return all(np.array_equal(getattr(one.decisions, name), getattr(other.decisions, name)) for name in names)


def test_what_was_finished_before_the_break_is_not_decided_again(load: Load, tmp_path: Path) -> None:
    broken, again = Said("afterimage"), Said()
    with pytest.raises(KeyboardInterrupt):
        run(load, tmp_path, broken)
    assert broken.began == ["lru-hits", "afterimage"]
    runs = run(load, tmp_path, again)
    assert again.taken == [("lru-hits", ROOM)]
    assert again.began == ["afterimage", "flexcache"]
    for one, other in zip(runs, run(load, tmp_path / "elsewhere", Said()), strict=True):
        assert alike(one, other)
        assert (one.policy, one.title, one.bounded) == (other.policy, other.title, other.bounded)


@pytest.mark.parametrize("fleet", [None, FLEET])
def test_a_second_run_takes_over_everything_as_it_was(load: Load, tmp_path: Path, fleet: Fleet | None) -> None:
    first, said = run(load, tmp_path, Said(), fleet=fleet), Said()
    for one, other in zip(first, run(load, tmp_path, said, fleet=fleet), strict=True):
        assert alike(one, other)
        assert (one.seconds, one.processor_s) == (other.seconds, other.processor_s)
        if one.served is not None and other.served is not None:
            assert one.served.done_at.tolist() == other.served.done_at.tolist()
            assert one.served.longest_queue == other.served.longest_queue
        assert (one.served is None) == (other.served is None) == (fleet is None)
    assert said.began == []
    assert len(said.taken) == len(POLICIES)
    anew = Said()
    run(load, tmp_path, anew, fleet=fleet, anew=True)
    assert anew.taken == []


def test_whatever_changes_a_decision_is_decided_again(
    load: Load, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ((name, policy),) = only = POLICIES[:1]
    run(load, tmp_path, Said(), only)

    def runs_again(load: Load, policy: PolicySettings = policy, room: int = ROOM, **more: object) -> bool:
        said = Said()
        run(load, tmp_path, said, [(name, policy)], room, **more)  # type: ignore[arg-type]
        assert len(said.began) + len(said.taken) == 1
        return not said.taken

    assert not runs_again(load)
    assert not runs_again(load, policy.model_copy(update={"title": "by another name"}))
    assert runs_again(load, policy.model_copy(update={"candidates": 3}))
    assert runs_again(load, room=ROOM + 1)
    assert runs_again(load, entries=True)
    assert runs_again(load, fleet=FLEET)
    table = replace(load.table, levels=(*load.table.levels, Level(30, 0.99)))
    assert runs_again(replace(load, table=table))
    assert runs_again(replace(load, state_bytes=load.state_bytes + 1))
    assert runs_again(replace(load, trace=replace(load.trace, arrival_s=2 * load.trace.arrival_s)))
    assert runs_again(replace(load, trace=replace(load.trace, users=load.trace.users + np.arange(300) % 2)))
    assert runs_again(replace(load, group_of=np.arange(300) % 2))
    own = own_steps(load, np.full(300, 50))
    assert runs_again(own)
    assert not runs_again(own)
    assert runs_again(own_steps(load, np.full(300, 40)))
    assert runs_again(replace(own, card=replace(find_card("noop:"), eta=1.0)))
    monkeypatch.setattr(kept, "_code", lambda: ["another version"])
    assert runs_again(load)


def test_what_a_kill_left_half_written_is_decided_again(load: Load, tmp_path: Path) -> None:
    run(load, tmp_path, Said())
    (whole, *_) = sorted(tmp_path.glob("decided-*.npz"))
    assert read(whole) is not None
    whole.write_bytes(whole.read_bytes()[:-100])
    assert read(whole) is None
    assert read(tmp_path / "nothing.npz") is None
    said = Said()
    run(load, tmp_path, said)
    assert len(said.began) == 1
    assert read(whole) is not None


def test_every_source_that_decides_is_there() -> None:
    for pattern in kept.DECIDING:
        assert list(kept.ROOT.glob(pattern)), pattern


def test_every_domain_type_that_a_deciding_domain_source_imports_counts() -> None:
    counted = {path for pattern in kept.DECIDING for path in kept.ROOT.glob(pattern)}
    domain = kept.ROOT / "shared" / "domain"
    read = "".join(path.read_text() for path in counted if path.parent == domain)
    found = set(re.findall(r"^from shared\.domain\.(\w+) import", read, re.MULTILINE))
    carriers = {"errors", "ids", "json_values", "messages"}  # they carry decisions, and make none
    assert not {domain / f"{name}.py" for name in found - carriers} - counted


def test_every_source_that_a_simulated_replay_imports_from_a_service_counts() -> None:
    program = "import sys, services.replay.run; print(*(module.__file__ for module in list(sys.modules.values())"
    program += " if module.__name__.startswith('services.') and module.__file__), sep=chr(10))"
    command = [sys.executable, "-c", program]
    imported = subprocess.run(command, capture_output=True, text=True, check=True, cwd=kept.ROOT)
    counted = {path for pattern in kept.DECIDING for path in kept.ROOT.glob(pattern)}
    deciding = ("cache_maintainer", "retriever", "replay")
    found = {Path(line) for line in imported.stdout.splitlines()}
    missing = {path for path in found if path.relative_to(kept.ROOT).parts[1] in deciding} - counted
    assert not missing
