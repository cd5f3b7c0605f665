"""What a replay decides, against the live index and against what each policy's file promises."""

from __future__ import annotations

from dataclasses import fields, replace

import numpy as np
import pytest

from services.match_predictor.svm import OneClassSvm
from services.replay.policy import read_policy, shipped
from services.replay.simulated.general import SHELVES
from services.replay.simulated.predicted import SKETCH_MARGIN, Gate
from services.replay.simulated.simulation import Replay
from services.replay.traces.load import Load
from services.retriever.selection import Ladder, Weighed, best, should_widen_search, weigh
from shared.domain.errors import ConfigurationError
from shared.domain.plan_rules import scale_steps
from shared.domain.types import IndexFilter, IndexItem
from shared.index.memory import MemoryIndex
from shared.models.k_table import MODM as PICTURES_TABLE
from tests.unit.replay.house import PICTURE, STATE, decided, load_of, own_steps, policy, topics

ROOM = 60 * STATE


@pytest.mark.parametrize(("candidates", "further"), [(1, 1), (8, 1), (1, 64), (3, 20)])
@pytest.mark.parametrize("width", [3, 64])
async def test_its_lookups_are_the_live_indexs(candidates: int, further: int, width: int) -> None:
    """Every request is also looked up in the index that serves, which holds what the replay holds."""
    said, rows = topics(250)
    load = load_of(said, rows, width=width)
    looks = {"candidates": candidates, "further_candidates": further}
    replay = Replay(load, policy(**looks, evict="lru", insert_on_hit=True), ROOM)
    index, ladder, held = MemoryIndex(), Ladder(load.table, 50), dict[str, list[int]]()

    async def weighed(vector: np.ndarray, limit: int) -> list[Weighed]:
        hits = await index.search("whole", vector, IndexFilter(), limit)
        return [weigh(ladder, hit.entry_id, hit.similarity, held[hit.entry_id]) for hit in hits]

    asked = went_on = 0
    ways = zip(decided(replay), load.neighbours.rows(), strict=True)
    for request, (made, _) in enumerate(ways):
        vector = rows[load.text_of[request]]
        found = await weighed(vector, candidates)
        if further > candidates and should_widen_search(found, candidates):
            found, went_on = await weighed(vector, further), went_on + 1
        chosen = best(found)
        assert made.start_step == (chosen.start_step if chosen else 0)
        if chosen is not None:
            assert made.similarity == pytest.approx(chosen.similarity, abs=1e-6)
            assert made.entry_id == chosen.entry_id
            asked += 1
        now = replay.held()
        await index.remove([name for name in held if name not in now])
        await index.add([IndexItem(name, {"whole": rows[load.text_of[int(name)]]}) for name in now if name not in held])
        held = now
    assert asked > 50
    assert (went_on > 10) == (further > 1)
    assert (replay.searched > 0) == (width == 3)


@pytest.mark.parametrize("evict", sorted(SHELVES))
def test_no_shelf_ever_holds_more_than_the_budget(evict: str) -> None:
    load = load_of(*topics(400))
    made = Replay(load, policy(evict=evict, insert_on_hit=True), ROOM).run()
    assert made.bytes.max() <= ROOM
    assert made.bytes.tolist() == (made.states * STATE).tolist()
    assert made.evicted.sum() > 20
    assert made.start_step.any()


@pytest.mark.parametrize("name", sorted(name for name in shipped() if name != "nirvana" and "video" not in name))
def test_every_shipped_policy_runs_and_gives_the_same_twice(name: str) -> None:
    load = load_of(*topics(300))
    once, again = (Replay(load, read_policy(name), ROOM).run() for _ in range(2))
    assert once.start_step.tolist() == again.start_step.tolist()
    assert once.start_step.any() == (name != "none")


def saved(load: Load, name: str, room: int = ROOM) -> np.ndarray:
    return Replay(load, read_policy(name), room).run().start_step


def test_the_infinite_cache_takes_the_best_state_there_ever_was() -> None:
    said, rows = topics(300)
    load = load_of(said, rows)
    made = Replay(load, read_policy("infinite"), STATE).run()
    assert made.evicted.sum() == 0
    assert saved(load, "infinite").sum() > saved(load, "lru-hits").sum()


def test_exact_repeats_hand_out_the_picture() -> None:
    said, rows = topics(200)
    starts = saved(load_of(said, rows), "exact", 1000 * PICTURE)
    before = [prompt in said[:request] for request, prompt in enumerate(said)]
    assert starts.tolist() == [50 if known else 0 for known in before]


@pytest.mark.parametrize("name", ["retrieval", "gpt-cache", "crs"])
def test_a_baseline_hands_out_the_nearest_picture_above_its_threshold_and_keeps_what_it_draws(name: str) -> None:
    load, settings = load_of(*topics(300)), read_policy(name)
    made = Replay(load, settings, 1000 * PICTURE).run()
    near = load.pictures.neighbours if settings.is_surrogate and load.pictures else load.neighbours
    live: set[int] = set()
    for request, (others, cosines, _) in enumerate(near.rows()):
        found = next(((other, one) for other, one in zip(others, cosines, strict=True) if other in live), (-1, 0.0))
        if found[1] <= settings.min_similarity:
            found = (-1, 0.0)
            live.add(request)
        assert (made.source[request], made.similarity[request]) == (found[0], pytest.approx(found[1]))
        assert made.start_step[request] == (50 if found[0] >= 0 else 0)
    assert 10 < len(live) < 290


def test_pictures_found_by_pictures_are_handed_out_in_one_size_only() -> None:
    with pytest.raises(ConfigurationError, match="leave out honour_sizes"):
        Replay(load_of(*topics(40), groups=2), read_policy("crs"), ROOM)


@pytest.mark.parametrize("name", ["exact", "retrieval", "crs", "modm"])
def test_a_picture_takes_a_pictures_bytes_whether_handed_out_or_refined(name: str) -> None:
    made = Replay(load_of(*topics(200)), read_policy(name), 10 * PICTURE).run()
    assert made.states.max() == 10
    assert made.bytes.tolist() == (made.states * PICTURE).tolist()


def test_a_state_never_starts_what_it_does_not_fit() -> None:
    made = Replay(load_of(*topics(200), groups=4), read_policy("lru-hits"), ROOM).run()
    hits = np.flatnonzero(made.source >= 0)
    assert len(hits) > 20
    assert (hits % 4 == made.source[hits] % 4).all()


def test_a_picture_starts_any_size_also_where_all_live_ones_are_compared() -> None:
    load = load_of(*topics(200), width=3)
    alike, unlike = (
        Replay(replace(load, group_of=groups), read_policy("modm"), 30 * PICTURE)
        for groups in (None, np.arange(200) % 4)
    )
    assert alike.run().source.tolist() == unlike.run().source.tolist()
    assert unlike.searched > 20


def test_the_svm_stands_in_front_of_the_lookup() -> None:
    load = load_of(*topics(300))
    gated = Replay(load, policy(predictor="svm", evict="lcbfu"), ROOM).run()
    assert not gated.predicted[0]  # nothing is there yet
    assert gated.predicted[1:50].any()
    assert not gated.predicted.all()
    assert (gated.start_step[~gated.predicted] == 0).all()


def test_the_svm_is_fitted_when_it_is_while_serving_unless_a_setting_says_seldomer() -> None:
    _, rows = topics(200)
    served = OneClassSvm()
    replayed, seldom = (Gate(rows.__getitem__, OneClassSvm, every) for every in (0, 60))
    fitted_at, fits = [], 0

    def fitted() -> int:  # the service hears of each fact, and then asks for a fit
        work = served.refit()
        if work is not None:
            work()
        return work is not None

    for row in range(120):
        before = seldom.fits
        if row >= 20:
            served.update({}, (str(row - 20),))
            fits += fitted()
        served.update({str(row): rows[row]}, ())
        fits += fitted()
        for gate in (replayed, seldom):
            if row >= 20:
                gate.left([(-1, str(row - 20))])
            gate.came(-1, str(row), row)
        if seldom.fits > before:
            fitted_at.append(row)
        assert replayed.fits == fits
        assert replayed.opens(-1, 150) == served.predict(rows[150])
        seldom.opens(-1, 150)
    assert fits > 100  # of twenty entries one is the twentieth part: each that comes after one that left
    assert fitted_at == [0, 60]


def test_pictures_of_every_size_have_an_svm_of_their_own_that_goes_with_the_last_of_them() -> None:
    _, rows = topics(50)
    gate = Gate(rows.__getitem__, OneClassSvm)
    gate.came(0, "a", 0)
    assert gate.opens(0, 0)[0]
    assert not gate.opens(1, 0)[0]
    gate.left([(0, "a")])
    assert not gate.opens(0, 0)[0]
    gate.came(0, "b", 1)
    assert gate.opens(0, 1)[0]
    assert gate.fits == 2


@pytest.mark.parametrize("groups", [0, 3])
def test_the_sketch_lets_through_what_lies_above_the_tables_lowest_similarity(groups: int) -> None:
    said, rows = topics(400, spread=0.8)
    load = load_of(said, rows, groups=groups)
    replay = Replay(load, policy(predictor="sketch", evict="lru"), 200 * STATE)
    shut = 0
    for request, row in enumerate(replay.rows()):
        live = [int(name) for name in replay.held() if not groups or int(name) % groups == request % groups]
        cosines = rows[load.text_of[live]] @ rows[load.text_of[request]] if live else np.array([-1.0])
        looked = replay.look(request, row, float(request))
        assert looked.score == pytest.approx(cosines.max(), abs=1e-5)
        assert looked.predicted == (looked.score > load.table.lowest_similarity - SKETCH_MARGIN)
        assert looked.predicted or not looked.found  # of so few entries it knows each exactly
        shut += not looked.predicted
        replay.keep(request, looked, float(request))
    assert shut > 20


def test_a_predicted_miss_is_not_looked_up_and_nobody_hears_of_candidates() -> None:
    load = load_of(*topics(300))
    replay = Replay(load, policy(predictor="svm", evict="afterimage", insert_on_hit=True), ROOM)
    shut = 0
    for request, row in enumerate(replay.rows()):
        looked = replay.look(request, row, float(request))
        if not looked.predicted:
            shut += looked.found
            assert (looked.start_step, looked.thought_of) == (0, ())
        replay.keep(request, looked, float(request))
    assert shut > 5


@pytest.mark.parametrize("name", ["afterimage", "flexcache", "lru-hits", "modm"])
def test_an_entry_counts_as_one_with_all_that_was_kept_of_it(name: str) -> None:
    load = load_of(*topics(300))
    replay = Replay(load, read_policy(name), 6, entries=True)
    for _ in decided(replay):
        assert replay.holds[0] == replay.holds[1] == len(replay.held()) <= 6
    made = Replay(load, read_policy(name), 6, entries=True).run()
    assert made.evicted.any()
    assert made.start_step.any()
    if name != "modm":
        assert all(steps[-1] == 25 for steps in replay.held().values())


@pytest.mark.parametrize("name", ["afterimage", "flexcache", "modm", "exact"])
def test_where_all_name_the_same_t_nothing_is_decided_otherwise(name: str) -> None:
    load = load_of(*topics(300), width=8)
    alike, own = (Replay(one, read_policy(name), ROOM).run() for one in (load, own_steps(load, np.full(300, 50))))
    assert all(np.array_equal(getattr(alike, field.name), getattr(own, field.name)) for field in fields(alike))


MIXED = (10, 25, 50, 1)


@pytest.mark.parametrize("name", ["afterimage", "lru-hits", "lcbfu-hits"])
def test_a_state_starts_a_run_of_another_t_only_at_its_own_noise_level(name: str) -> None:
    steps = np.random.default_rng(1).choice(MIXED, 300)
    made = Replay(own_steps(load_of(*topics(300)), steps), read_policy(name), ROOM).run()
    hits = np.flatnonzero(made.source >= 0)
    others = hits[steps[hits] != steps[made.source[hits]]]
    assert len(others) > 20
    for request in others.tolist():  # K/T of the request is exactly K'/T' of a state that the source has kept
        kept, rest = divmod(int(made.start_step[request] * steps[made.source[request]]), int(steps[request]))
        assert kept in scale_steps((5, 10, 15, 20, 25), int(steps[made.source[request]]))
        assert rest == 0
    assert (made.start_step[hits] <= steps[hits] // 2).all()
    assert not made.start_step[steps == 1].any()
    assert made.evicted.sum() > 20


def test_a_picture_is_brought_to_the_t_that_is_asked_for() -> None:
    steps = np.random.default_rng(1).choice(MIXED, 200)
    load = own_steps(load_of(*topics(200)), steps)
    made = Replay(load, read_policy("modm"), 30 * PICTURE).run()
    ladder = Ladder(PICTURES_TABLE, 50)
    hits = np.flatnonzero(made.source >= 0)
    wished = [ladder.wished(float(similarity)) for similarity in made.similarity[hits]]
    assert made.start_step[hits].tolist() == [k * t // 50 for k, t in zip(wished, steps[hits].tolist(), strict=True)]
    assert (steps[made.source[hits]] == 1).any()  # a picture of one step starts others, too


def test_a_repeat_of_another_t_is_no_repeat() -> None:
    said, rows = topics(200)
    steps = np.arange(200) % 2 * 30 + 20
    starts = Replay(own_steps(load_of(said, rows), steps), read_policy("exact"), 1000 * PICTURE).run().start_step
    before = [(said[request], steps[request]) for request in range(200)]
    known = [one in before[:request] for request, one in enumerate(before)]
    assert starts.tolist() == [int(steps[request]) if there else 0 for request, there in enumerate(known)]
    assert 0 < sum(known) < sum(said[request] in said[:request] for request in range(200))
