"""What the `afterimage` policy learns, and what it keeps and refuses for it."""

from __future__ import annotations

import random

import numpy as np
import pytest

from services.cache_maintainer.eviction.afterimage import ExpectedStateStore
from services.cache_maintainer.eviction.demand import Demand, silence, silences
from services.cache_maintainer.eviction.scored import Fifo, Offer, StateStore, Wish
from services.replay.policy import read_policy
from services.replay.simulated.simulation import Replay
from shared.domain.types import State
from tests.unit.replay.house import STATE, load_of, topics

LEVELS = (5, 15, 25)


def test_worth_is_what_would_be_lost_without_the_state() -> None:
    demand = Demand(LEVELS, ranks=1, kinds_per_rank=1)
    # 600 s under observation, all within the first two seconds of silence: 60 wishes for 25, of which the rest of the
    # cache had 15 half of the time
    demand.waited(np.array([0]), np.array([1.0]), 60_000.0)
    for otherwise in (0, 15):
        for _ in range(3000):
            demand.asked(0, 1.0, 25, otherwise)
    demand.fit()
    alone = demand.worth_of(0, 1.0, place=2, below=0, above=3)
    beside_15 = demand.worth_of(0, 1.0, place=2, below=2, above=3)
    assert alone == pytest.approx((3000 * 25 + 3000 * 10) / 60_000, rel=0.05)
    assert beside_15 == pytest.approx((3000 * 10 + 3000 * 10) / 60_000, rel=0.05)
    assert demand.worth_of(0, 1.0, place=1, below=0, above=2) < 0.1  # 25 is taken instead
    only_15 = demand.worth_of(0, 1.0, place=1, below=0, above=3)
    assert only_15 == pytest.approx(3000 * 15 / 60_000, rel=0.05)


def test_worth_looks_ahead_of_a_short_silence() -> None:
    demand = Demand(LEVELS, ranks=1, kinds_per_rank=1)
    edges = [1.0, 20.0, 120.0, 1000.0]
    demand.waited(np.zeros(4, np.int64), np.array(edges), 50_000.0)
    for _ in range(5000):
        demand.asked(0, 120.0, 25, 0)  # users come back after two minutes
    demand.fit()
    worths = [demand.worth_of(0, edge, place=2, below=0, above=3) for edge in edges]
    assert worths[2] > worths[1] > worths[0] > 5 * worths[3]
    vector = demand.worth(np.zeros(4, np.int64), np.array(edges), 2, np.zeros(4, np.int64), np.full(4, 3))
    assert vector.tolist() == pytest.approx(worths)


def test_silences_are_told_apart_alike_one_by_one_and_together() -> None:
    seconds = np.concatenate([np.linspace(0, 10, 50), np.geomspace(10, 1e6, 50)])
    assert silences(seconds).tolist() == [silence(one) for one in seconds.tolist()]
    assert silence(0) == 0
    assert silence(1e9) == 15


def offered(shelf: StateStore, name: str, user: str, at: float, *, room: int, start: int = 0) -> tuple[int, ...]:
    steps = tuple(k for k in LEVELS if k > start)
    kept = shelf.admit(Offer(name, user, start, steps, (STATE,) * len(steps), at), room)
    shelf.make_room(len(kept), len(kept) * STATE, room, at)
    for step in kept:
        shelf.insert(State(name, step, "", STATE, "fp16", "", 0, at, at))
    return kept


def test_it_learns_which_states_users_come_back_for() -> None:
    """Forty users in any order, who start from their own last picture at K = 25: one state of each fits."""
    room, rng = 60 * STATE, random.Random(3)
    shelf, fifo = ExpectedStateStore(LEVELS), StateStore(Fifo())
    last: dict[str, str] = {}
    found, had = [], []
    for request in range(12_000):
        user, at, name = f"u{rng.randrange(40)}", float(request), f"e{request:06d}"
        before = last.get(user, "")
        has = (before, 25) in shelf
        had.append((before, 25) in fifo)
        shelf.looked_up([Wish(before, 25, 25 if has else 0)] if shelf.alive(before) else [], at)
        shelf.use((before, 25), at)
        found.append(has)
        kept = offered(shelf, name, user, at, room=room)
        assert set(kept) <= set(LEVELS)
        assert shelf.bytes <= room
        offered(fifo, name, user, at, room=room)
        last[user] = name
    assert np.mean(found[-4000:]) > 0.65 > 1.5 * np.mean(had[-4000:]) > 0.1


def test_lookups_of_every_t_count_alike() -> None:
    learned = []
    for wishes, total in (
        ([Wish("a", 25, 25), Wish("b", 15, 15)], 50),
        ([Wish("a", 5, 5, 10), Wish("b", 15, 15, 50)], 10),
        ([Wish("a", 5, 5), Wish("b", 3, 3)], 10),
    ):
        store = ExpectedStateStore(LEVELS)
        for name in ("a", "b"):
            offered(store, name, "ada", 0.0, room=10 * STATE)
        store.looked_up(wishes, 1.0, total)
        learned.append({name: one.tolist() for name, one in vars(store.demand).items() if isinstance(one, np.ndarray)})
    assert learned[0] == learned[1] == learned[2]


def test_both_entries_of_a_pair_are_used_and_the_best_whole_prompt_is_not() -> None:
    store = ExpectedStateStore(LEVELS)
    for name in ("object", "background", "whole"):
        offered(store, name, "ada", 0.0, room=100 * STATE)
    store.looked_up([Wish("whole", 10, 10)], 7.0, pair=[Wish("object", 25, 25), Wish("background", 25, 25)])
    silence = {name: 7.0 - store._entries.used_at[store._slot[name]] for name in ("object", "background", "whole")}
    assert silence == {"object": 0.0, "background": 0.0, "whole": 7.0}
    counted = store.demand._asked.sum(axis=(0, 1))
    place = store.demand.place
    # without either of both, K = 10; the whole prompt was of no use beside them
    assert counted[place(25), place(10)] == counted.sum() == 2


def test_it_learns_from_the_first_two_hundred_lookups_on_and_less_often_later() -> None:
    shelf, fitted_at = ExpectedStateStore(LEVELS), []
    for lookup in range(1, 8001):
        before = shelf.demand.fits
        shelf.looked_up([], float(lookup))
        if shelf.demand.fits > before:
            fitted_at.append(lookup)
    assert fitted_at == [200, 400, 800, 1600, 2000, 4000, 6000, 8000]


def test_what_is_seen_in_the_first_minutes_is_kept_for_in_the_first_minutes() -> None:
    """Of forty users half come back to their last picture, the others never."""
    room, rng = 60 * STATE, random.Random(7)
    shelf, last = ExpectedStateStore(LEVELS), dict[int, str]()
    found = []
    for request in range(1200):
        user, at = rng.randrange(40), float(request)
        before = last.get(user, "")
        has = (before, 25) in shelf
        if before and user % 2:
            found.append(has)
            shelf.looked_up([Wish(before, 25, 25 if has else 0)] if shelf.alive(before) else [], at)
        else:
            shelf.looked_up([], at)
        last[user] = f"e{request:06d}"
        offered(shelf, last[user], f"u{user}", at, room=room, start=15 if has and user % 2 else 0)
    assert np.mean(found[-300:]) > 0.5, np.mean(found[-300:])


def test_what_nobody_comes_for_any_more_leaves_though_its_user_is_there() -> None:
    """Twenty users who come back to an entry six times, then to another, and draw what they never come back to."""
    room, rng = 30 * STATE, random.Random(5)
    shelf, uses_left = ExpectedStateStore((25,)), dict.fromkeys(range(20), 0)
    favourite: dict[int, str] = {}
    found = []
    for request in range(8000):
        user, at = rng.randrange(20), float(request)
        passing = rng.random() < 0.3
        if uses_left[user] and not passing:
            uses_left[user] -= 1
            found.append((favourite[user], 25) in shelf)
            shelf.looked_up([Wish(favourite[user], 25, 25)] if found[-1] else [], at)
            continue
        shelf.looked_up([], at)
        name = f"e{request:06d}"
        if not passing:
            favourite[user], uses_left[user] = name, 6
        kept = shelf.admit(Offer(name, f"u{user}", 0, (25,), (STATE,), at), room)
        shelf.make_room(len(kept), len(kept) * STATE, room, at)
        for step in kept:
            shelf.insert(State(name, step, "", STATE, "fp16", "", 0, at, at))
    assert np.mean(found[-3000:]) > 0.5  # .39 where an entry counts as asked for while its user is there at all


def test_states_of_entries_nobody_announced_can_leave() -> None:
    states = [State(f"e{number}", 25, "", STATE, "fp16", "", 0, 0.0, 0.0) for number in range(20)]
    shelf = ExpectedStateStore(LEVELS, states)
    assert len(shelf.make_room(20, 20 * STATE, 20 * STATE, 9.0)) == 20
    assert shelf.bytes == 0


def state_of(name: str, step: int, at: float = 0.0) -> State:
    return State(name, step, "", STATE, "fp16", "", 0, at, at)


def test_of_a_shorter_run_only_the_state_of_a_level_leaves_with_it() -> None:
    """Of 20 steps, 10 stand at the level of 25, and there is a level of 10 whose state is the fourth."""
    levels = (5, 10, 15, 20, 25)
    shelf, steps = ExpectedStateStore(levels), (2, 4, 6, 8, 10)
    shelf.admit(Offer("a", "u", 0, steps, (STATE,) * 5, 0.0, 20), 99 * STATE)
    for step in steps:
        shelf.insert(state_of("a", step))
    for at in (1.0, 2.0, 3.0):  # what users come back for are the highest states
        shelf.looked_up([Wish("a", 25, 25)], at)
    first = shelf.make_room(1, STATE, 5 * STATE, 4.0)
    assert [one.step for one in first] != [10]
    alike = ExpectedStateStore(levels)  # the same with 50 steps
    alike.admit(Offer("a", "u", 0, levels, (STATE,) * 5, 0.0), 99 * STATE)
    for step in levels:
        alike.insert(state_of("a", step))
    for at in (1.0, 2.0, 3.0):
        alike.looked_up([Wish("a", 25, 25)], at)
    longer = [*alike.make_room(1, STATE, 5 * STATE, 4.0), *alike.make_room(4, 4 * STATE, 4 * STATE, 4.0)]
    shorter = [*first, *shelf.make_room(4, 4 * STATE, 4 * STATE, 4.0)]
    assert [one.step * 5 // 2 for one in shorter] == [one.step for one in longer]


def test_a_batch_is_looked_at_before_any_of_its_states_is_there() -> None:
    """As the maintainer does at its first start: all jobs of a batch, then their states."""
    shelf = ExpectedStateStore(LEVELS)
    for number in range(100):
        shelf.looked_up([], float(number))
        offer = Offer(f"e{number}", "u", 0, LEVELS, (STATE,) * len(LEVELS), float(number))
        assert shelf.admit(offer, 1000 * STATE) == LEVELS


def test_who_asked_is_forgotten_with_what_they_left(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody in particular with the entry, a user when many others asked since."""
    monkeypatch.setattr("services.cache_maintainer.eviction.users.REMEMBERED", 100)
    shelf, most = ExpectedStateStore(LEVELS), 0
    for number in range(3000):
        user = "" if number % 2 else f"u{number}"
        shelf.looked_up([], float(number))
        offered(shelf, f"e{number}", user, float(number), room=30 * STATE)
        most = max(most, len(shelf._users))
    assert most <= 100 + 30
    anonymous, at = ExpectedStateStore(LEVELS), 0.0
    for number in range(200):
        offered(anonymous, f"e{number}", "", at, room=30 * STATE)
    assert len(anonymous._users) <= 30


def test_a_user_who_comes_back_is_known_though_nothing_of_theirs_is_left() -> None:
    shelf = ExpectedStateStore(LEVELS)
    for number in range(10):
        offered(shelf, f"e{number}", "ada", float(number), room=30 * STATE, start=0)
    row = shelf._users.of("ada")
    start_ema = float(shelf._users.start_ema[row])
    for number in range(10):
        for level in LEVELS:
            shelf.remove((f"e{number}", level))
    assert (shelf._users.of("ada"), float(shelf._users.start_ema[row])) == (row, start_ema)


def test_smaller_states_multiply_the_budget() -> None:
    load = load_of(*topics(400))
    fp16, int8 = (Replay(load, read_policy(name), 60 * STATE).run() for name in ("afterimage", "afterimage-int8"))
    assert fp16.states.max() == 60
    assert 120 < int8.states.max() <= 60 / 0.455
    assert max(fp16.bytes.max(), int8.bytes.max()) <= 60 * STATE


def test_its_score_is_the_worth_by_which_states_leave() -> None:
    shelf, rng = ExpectedStateStore(LEVELS), random.Random(2)
    for number in range(250):  # the first fit comes after 200 lookups
        at = float(number)
        before = f"e{number - rng.randrange(1, 4)}"
        held = [level for level in LEVELS if (before, level) in shelf]
        shelf.looked_up([Wish(before, 25, max(held))] if held else [], at)
        offered(shelf, f"e{number}", f"u{number % 7}", at, room=60 * STATE, start=rng.choice((0, 0, 5)))
    shelf.use(("e249", 25), 249.0)  # the scores are those of the last use
    shelf._line = iter(())  # what was put in line before is not asked about
    scores = {(state.entry_id, state.step): shelf.score((state.entry_id, state.step)) for state in shelf}
    victims = shelf.make_room(9, 9 * STATE, shelf.bytes, 249.0)
    assert [scores[one.entry_id, one.step] for one in victims] == sorted(scores.values())[: len(victims)]
    assert len(victims) == 9
    assert len(set(scores.values())) > 5


def test_a_small_new_cache_is_as_good_as_recency_before_anything_is_learned() -> None:
    """190 requests end before the first fit of 200 lookups; the budgets hold 1, 4 and 12 entries of five states."""
    saved = dict.fromkeys(("afterimage", "lru-hits", "lcbfu-hits"), 0)
    for seed in range(3):
        load = load_of(*topics(190, seed=seed))
        for states in (5, 20, 60):
            for name in saved:
                saved[name] += int(Replay(load, read_policy(name), states * STATE).run().start_step.sum())
    assert saved["afterimage"] > saved["lru-hits"]
    assert saved["afterimage"] > 0.9 * saved["lcbfu-hits"]
