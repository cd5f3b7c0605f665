"""Replays of clips: pairs as in serving, measured bytes, masks, and states that need others."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from services.replay.policy import PolicySettings, read_policy
from services.replay.simulated.pairs import NearPart, best_pair
from services.replay.simulated.simulation import Replay
from services.replay.traces.clip_bytes import STEPS, read_clip_bytes
from services.replay.traces.load import Load
from services.replay.traces.neighbours import find_neighbours
from services.replay.traces.parts import groups_of, parts_of
from services.retriever.pairs import SIDE
from services.retriever.selection import Ladder, largest_present
from shared.domain.errors import ConfigurationError
from shared.domain.types import PlanSource
from shared.index.nearest import cosines
from shared.models.k_table import FIG_10
from tests.unit.replay.house import STATE, load_of, policy, topics
from tests.unit.retriever.test_pairs import KS, entry, plan

COUNT = 250


def clip_load(width: int = 64, seed: int = 0) -> Load:
    """A load of clips; every seventh prompt names no parts."""
    load = load_of(*topics(COUNT, seed), width=width)
    load = replace(load, trace=replace(load.trace, frames=16), state_bytes=load.state_bytes * 100)
    groups = np.zeros(COUNT, np.int64)
    groups[::7] = -1 - np.arange(0, COUNT, 7)
    parts = []
    for part in (1, 2):
        prompts, vectors = topics(COUNT, seed + 10 * part, spread=0.2)
        texts = {text: row for row, text in enumerate(dict.fromkeys(prompts))}
        text_of = np.array([texts[prompt] for prompt in prompts])
        near = find_neighbours(vectors, text_of, groups, floor=FIG_10.lowest_similarity, width=width)
        parts.append(replace(load, vectors=vectors, text_of=text_of, neighbours=near, group_of=groups))
    return replace(load, parts=(parts[0], parts[1]))


ROOM = 60 * 100 * STATE


def clips(**fields: object) -> PolicySettings:
    return policy(pairs=True, insert_on_hit=True, evict="lrbu", **fields)


def test_the_chosen_pair_is_the_one_of_serving() -> None:
    rng = np.random.default_rng(0)
    ladder, chosen = Ladder(FIG_10, 50), 0
    for _ in range(150):
        entries = [
            entry(f"{number}", sorted(rng.choice(KS, rng.integers(1, 6), replace=False).tolist()))
            for number in range(7)
        ]
        sides = []
        for _ in range(2):
            near = np.sort(rng.choice([0.6, 0.7, 0.8, 0.88, 0.93, 0.97, 1.0], 4) - 0.01 * rng.integers(0, 3, 4))[::-1]
            sides.append(list(zip(near.tolist(), rng.choice(7, 4, replace=False).tolist(), strict=True)))
        made = plan(*([(near, entries[number]) for near, number in side] for side in sides))
        objects, backgrounds = (
            [NearPart(n, near, frozenset(state.step for state in entries[n].states)) for near, n in side]
            for side in sides
        )
        found = best_pair(ladder, objects, backgrounds)
        if found is None:
            assert made.source is PlanSource.NOISE
            continue
        chosen += 1
        assert made.source is PlanSource.STITCHED
        assert (made.start_step, made.similarity) == found[:2]
        assert [one.entry_id for one in made.sources] == [str(found.object), str(found.background)]
    assert chosen > 75


@pytest.mark.parametrize(("width", "candidates", "further"), [(64, 1, 1), (64, 8, 1), (8, 4, 1), (8, 4, 24)])
def test_pairs_come_from_the_nearest_live_entries_of_both_parts(width: int, candidates: int, further: int) -> None:
    load = clip_load(width)
    assert load.parts is not None
    replay = Replay(load, clips(candidates=candidates, further_candidates=further), ROOM // 2)
    ladder, of_pairs, evicted = Ladder(FIG_10, 50), 0, 0
    for request, row in enumerate(replay.rows()):
        now = float(request)
        live = {int(name): frozenset(steps) for name, steps in replay.held().items()}
        whole, _, _ = replay._start(request, row)
        sides = []
        for part in load.parts:
            others = [other for other in live if other % 7 and request % 7]
            near = cosines(part.vectors[part.text_of[others]], part.vectors[part.text_of[request]]).tolist()
            order = sorted(zip(near, others, strict=True), reverse=True)[: max(candidates, further)]
            able = [one for one in order if largest_present(live[one[1]], ladder.wished(one[0]))]
            sides.append([NearPart(other, near, live[other]) for near, other in able[:SIDE]])
        wanted = best_pair(ladder, sides[0], sides[1], whole.start_step if whole else 0)
        looked = replay.look(request, row, now)
        if wanted is None:
            assert looked.second == ""
            assert looked.start_step == (whole.start_step if whole else 0)
        else:
            of_pairs += 1
            assert (looked.start_step, looked.similarity) == wanted[:2]
            assert (int(looked.entry_id), int(looked.second)) == wanted[2:]
        evicted += replay.keep(request, looked, now)
    assert of_pairs > 15
    assert evicted > 50


@pytest.mark.parametrize("name", ["flexcache-video", "afterimage-video", "afterimage-video-residual"])
def test_the_budget_holds_the_measured_bytes_of_states_and_masks(name: str) -> None:
    load, settings = clip_load(), read_policy(name)
    replay, of_clips = Replay(load, settings, ROOM // 10), read_clip_bytes()
    for request, row in enumerate(replay.rows()):
        looked = replay.look(request, row, float(request))
        replay.keep(request, looked, float(request))
        held, total = replay.held(), 0
        assert replay.holds[1] <= ROOM // 10
        if request % 50 == 49:
            states = {(state.entry_id, state.step): state for state in replay._shelf}
            assert {(name, step) for name, steps in held.items() for step in steps} == states.keys()
            for state in states.values():
                assert not state.needs or (state.entry_id, state.needs) in states
                total += state.bytes
            total += sum(round(100 * STATE * of_clips.mask(int(one))) for one in held if int(one) % 7)
            assert replay.holds[1] == total


def test_a_hit_keeps_the_states_after_its_start_and_codes_them_together() -> None:
    load, of_clips = clip_load(), read_clip_bytes()
    settings = clips(state_codec="keyframes", keyframe_least=0, unlimited=True)
    replay, starts = Replay(load, settings, ROOM), set()
    for request, row in enumerate(replay.rows()):
        looked = replay.look(request, row, float(request))
        replay.keep(request, looked, float(request))
        starts.add(looked.start_step)
        stored = replay._shelf._states.of(f"{request:09d}")
        later = [k for k in STEPS if k > looked.start_step]
        shares = of_clips.states("keyframes-paper", request, later) if later else {}
        assert {one.step: (one.bytes, one.needs) for one in stored} == {
            k: (round(100 * STATE * share), needs) for k, (share, needs) in shares.items()
        }
    assert {0, 25} < starts


def test_decisions_name_both_sources_of_a_pair() -> None:
    made = Replay(clip_load(), clips(), ROOM).run()
    pairs = np.flatnonzero(made.second >= 0)
    assert len(pairs) > 20
    assert (made.start_step[pairs] > 0).all()
    assert (made.source[pairs] >= 0).all()
    assert (made.source[pairs] != made.second[pairs]).all()
    without = Replay(clip_load(), policy(insert_on_hit=True, evict="lrbu"), ROOM).run()
    assert (without.second < 0).all()


def test_a_load_without_parts_and_a_codec_that_was_not_measured_are_refused() -> None:
    load = clip_load()
    with pytest.raises(ConfigurationError, match="no parts"):
        Replay(replace(load, parts=None), clips(), ROOM)
    with pytest.raises(ConfigurationError, match=r"state_codec: .*'fp8'"):
        Replay(load, clips(state_codec="fp8"), ROOM).run()
    for codec in ("residual", "keyframes"):
        with pytest.raises(ConfigurationError, match=r"^capture_steps: .* clip_bytes.json has; .* \(got 12, 30\)$"):
            Replay(load, clips(state_codec=codec, capture_steps=(5, 12, 20, 30)), ROOM).run()
    with pytest.raises(ConfigurationError, match=r"^capture_steps: keyframes-paper .* \(got 5, 25\)$"):
        Replay(load, clips(state_codec="keyframes", keyframe_least=0, capture_steps=(5, 25)), ROOM).run()
    for codec, ks in (("residual", (5, 25)), ("fp16", (5, 12))):
        assert set(Replay(load, clips(state_codec=codec, capture_steps=ks), ROOM).run().start_step) > {ks[0]}
    images = replace(load, trace=replace(load.trace, frames=1))
    with pytest.raises(ConfigurationError, match="state_codec: 'keyframes'"):
        Replay(images, policy(state_codec="keyframes"), ROOM).run()


def test_only_prompts_that_name_both_parts_can_be_paired() -> None:
    prompts = ["a red fox runs to the left in the snow at night", "a red fox", "in the snow"]
    parts = parts_of(prompts)
    assert (parts[0].object, parts[0].background) == ("a red fox runs to the left", "in the snow at night")
    assert not parts[1].both
    assert not parts[2].both
    assert groups_of(parts, None).tolist() == [0, -2, -3]
    assert groups_of(parts, np.array([4, 4, 4])).tolist() == [4, -2, -3]
