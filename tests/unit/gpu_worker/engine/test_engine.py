"""The engine's promises on a tiny real model: pipeline's equal, batched = solo, resumed = uninterrupted."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from services.gpu_worker.engine import engine as engine_module
from services.gpu_worker.engine.engine import Engine
from services.gpu_worker.engine.events import (
    Advanced,
    BatchRan,
    Checkpointed,
    Event,
    Finished,
    Joined,
    LatentCaptured,
    Left,
)
from services.gpu_worker.engine.rows import FromPicture, FromState, Task
from services.gpu_worker.families import Family
from services.gpu_worker.families.unet import UNetFamily
from services.gpu_worker.jobs.codecs import decode_checkpoint, decode_state, encode_checkpoint, encode_state
from shared.domain.errors import CancelledError, DeadlineError, ModelError
from shared.domain.types import Plan, PlanSource, Size
from tests.unit.gpu_worker.conftest import LoadFamily

STEPS = 10
PLAN = Plan(source=PlanSource.NOISE, model="large")


def task(name: str = "a", **changes: object) -> Task:
    plain = Task(id=name, model="large", prompt="a red fox", size=Size(64, 64), steps=STEPS, guidance=2.5, seed=7)
    return replace(plain, **changes)  # type: ignore[arg-type]


def drive(
    family: Family, tasks: Iterable[tuple[int, Task]], max_rows: int = 8, tell_every_s: float = 0.0
) -> list[Event]:
    """Runs every task to its end; each is submitted before the given step."""
    engine = Engine({"large": family}, max_rows=max_rows, tell_every_s=tell_every_s)
    todo = sorted(tasks, key=lambda pair: pair[0])
    events: list[Event] = []
    step = 0
    while todo or not engine.idle:
        while todo and todo[0][0] <= step:
            engine.submit(todo.pop(0)[1])
        events += engine.step()
        step += 1
    return events


def finished(events: list[Event]) -> dict[str, Finished]:
    return {event.id: event for event in events if isinstance(event, Finished)}


def solo(family: Family, one: Task) -> Finished:
    return finished(drive(family, [(0, one)]))[one.id]


@pytest.mark.parametrize("guidance", [1.0, 2.5])
@pytest.mark.parametrize("size", [Size(64, 64), Size(96, 64)], ids=str)
def test_a_whole_run_equals_the_pipeline(family: UNetFamily, guidance: float, size: Size) -> None:
    noise = family.initial_noise(size, torch.Generator().manual_seed(7))
    pipeline = family.pipeline
    said = {
        "prompt": "a red fox",
        "negative_prompt": "blurry",
        "num_inference_steps": STEPS,
        "guidance_scale": guidance,
        "height": size.height,
        "width": size.width,
        "latents": noise[None],
    }
    latent = pipeline(**said, output_type="latent").images[0]
    picture = np.asarray(pipeline(**said, output_type="pil").images[0])
    ours = solo(family, task(guidance=guidance, size=size, negative_prompt="blurry"))
    np.testing.assert_allclose(ours.latent, latent.numpy(), atol=1e-4)
    assert ours.pixels.shape == (size.height, size.width, 3)
    assert np.abs(ours.pixels.astype(int) - picture.astype(int)).max() <= 1
    assert ours.steps_run == STEPS


@st.composite
def crowds(draw: st.DrawFn) -> list[tuple[int, Task]]:
    """Requests that join when they like, with any size, guidance, seed and T; some of them hits."""
    crowd = []
    for number in range(draw(st.integers(2, 6))):
        steps = draw(st.sampled_from([5, 8, 10]))
        size = draw(st.sampled_from([Size(64, 64), Size(96, 64), Size(64, 96)]))
        hit = draw(st.booleans())
        latent = np.random.default_rng(number).standard_normal((4, size.height // 4, size.width // 4))
        start_step = draw(st.integers(1, steps - 1))
        fresh = draw(st.sampled_from([0.0, 0.5]))
        start = FromState(latent.astype(np.float32), start_step, fresh, noise_seed=number)
        one = task(
            f"t{number}",
            prompt=draw(st.sampled_from(["a red fox", "two boats at night"])),
            steps=steps,
            size=size,
            guidance=draw(st.sampled_from([1.0, 2.5, 7.0])),
            seed=draw(st.integers(0, 2**63 - 1)),
            **({"start": start} if hit else {}),
        )
        crowd.append((draw(st.integers(0, 8)), one))
    return crowd


@settings(max_examples=10, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(crowd=crowds(), max_rows=st.integers(1, 4))
def test_batched_equals_solo(load: LoadFamily, crowd: list[tuple[int, Task]], max_rows: int) -> None:
    together = finished(drive(load(0), crowd, max_rows))
    for _, one in crowd:
        alone = solo(load(0), one)
        np.testing.assert_allclose(together[one.id].latent, alone.latent, atol=1e-4)
        assert np.abs(together[one.id].pixels.astype(int) - alone.pixels.astype(int)).max() <= 1


@settings(max_examples=10, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(crowd=crowds(), max_rows=st.integers(1, 4))
def test_batched_equals_solo_to_the_bit_when_batch_invariant(
    load: LoadFamily, crowd: list[tuple[int, Task]], max_rows: int
) -> None:
    together = finished(drive(load(4), crowd, max_rows))
    for _, one in crowd:
        alone = solo(load(4), one)
        assert np.array_equal(together[one.id].latent, alone.latent)
        assert np.array_equal(together[one.id].pixels, alone.pixels)


@pytest.mark.parametrize("step", [1, 4, 9])
def test_a_run_resumed_from_its_captured_state_equals_the_uninterrupted_one(load: LoadFamily, step: int) -> None:
    events = drive(load(4), [(0, task(capture_steps=(step,)))])
    whole = finished(events)["a"]
    (captured,) = [event for event in events if isinstance(event, LatentCaptured)]
    for codec, tolerance in (("fp32", 0.0), ("fp16", 2e-2), ("int8", 2e-1)):
        state = decode_state(encode_state(captured.latent, codec), codec)
        resumed = solo(load(4), task(start=FromState(state, step)))
        assert resumed.steps_run == STEPS - step
        np.testing.assert_allclose(resumed.latent, whole.latent, atol=tolerance, rtol=0)
    unpadded = solo(load(0), task(start=FromState(captured.latent, step)))
    np.testing.assert_allclose(unpadded.latent, solo(load(0), task()).latent, atol=1e-4)


def test_a_crash_resumes_from_its_checkpoint_to_the_bit(load: LoadFamily) -> None:
    start = FromState(np.random.default_rng(0).standard_normal((4, 16, 16)).astype(np.float32), 2, 0.5, noise_seed=3)
    events = drive(load(2), [(0, task(start=start, checkpoint_every=3))])
    whole = finished(events)["a"]
    checkpoints = [event for event in events if isinstance(event, Checkpointed)]
    assert [checkpoint.step for checkpoint in checkpoints] == [5, 8]
    for saved in checkpoints:
        again, _ = decode_checkpoint(encode_checkpoint(saved.latent, saved.step, saved.generator_state, PLAN))
        resumed = solo(load(2), task(start=again))
        assert np.array_equal(resumed.pixels, whole.pixels)
        assert np.array_equal(resumed.latent, whole.latent)


def test_checkpoints_are_as_far_apart_as_they_should_be(family: Family) -> None:
    """A step that takes .4 s by the engine's clock: of every two steps' checkpoints only those a second apart."""
    now = [0.0]
    engine = Engine({family.card.name: family}, clock=lambda: now[0])
    engine.submit(task(checkpoint_every=2, checkpoint_gap_s=1.0))
    saved = list[int]()
    while not engine.idle:
        saved += [event.step for event in engine.step() if isinstance(event, Checkpointed)]
        now[0] += 0.4
    assert saved == [4, 8]


def test_stochastic_runs_resume_from_checkpoints_with_their_generator(tiny_folder: object) -> None:
    from services.gpu_worker.families import load_family
    from shared.models import find_card

    card = replace(find_card(f"{tiny_folder}/large"), eta=0.8)
    family = load_family(card, batch_invariant=2)
    events = drive(family, [(0, task(checkpoint_every=4))])
    whole = finished(events)["a"]
    saved = next(event for event in events if isinstance(event, Checkpointed))
    again, _ = decode_checkpoint(encode_checkpoint(saved.latent, saved.step, saved.generator_state, PLAN))
    assert np.array_equal(solo(family, task(start=again)).latent, whole.latent)
    assert not np.array_equal(solo(family, task(seed=8)).latent, whole.latent)


def test_fresh_noise_makes_two_seeds_differ_and_one_seed_repeat(load: LoadFamily) -> None:
    events = drive(load(2), [(0, task(capture_steps=(2,)))])
    state = next(event for event in events if isinstance(event, LatentCaptured)).latent

    def drawn(share: float, seed: int) -> Finished:
        return solo(load(2), task(seed=seed, start=FromState(state, 2, share, noise_seed=seed)))

    assert np.array_equal(drawn(0.0, 1).latent, finished(events)["a"].latent)
    assert np.array_equal(drawn(0.0, 1).latent, drawn(0.0, 2).latent)
    assert np.array_equal(drawn(1.0, 1).latent, drawn(1.0, 1).latent)
    # different to the eye: tens of grey levels on average, more with a larger share
    apart = [
        np.abs(drawn(share, 1).pixels.astype(int) - drawn(share, 2).pixels.astype(int)).mean() for share in (0.2, 1.0)
    ]
    assert apart[0] > 2
    assert apart[1] > 2 * apart[0]


def test_from_a_picture_depends_on_it_the_seed_and_the_step(family: UNetFamily) -> None:
    picture = solo(family, task()).pixels
    drawn = {step: solo(family, task(seed=9, start=FromPicture(picture, step))) for step in (1, 9)}
    distance = {step: np.abs(d.pixels.astype(int) - picture.astype(int)).mean() for step, d in drawn.items()}
    assert drawn[9].steps_run == 1
    assert distance[9] < distance[1]
    again = solo(family, task(seed=9, start=FromPicture(picture, 1)))
    assert np.array_equal(again.latent, drawn[1].latent)


def test_cancel_leaves_the_others_untouched(load: LoadFamily) -> None:
    family = load(4)
    engine = Engine({"large": family}, max_rows=4, tell_every_s=0.0)
    for name, seed in (("a", 1), ("b", 2), ("c", 3)):
        engine.submit(task(name, seed=seed))
    events = engine.step() + engine.step()
    engine.cancel("b")
    engine.cancel("nobody")
    while not engine.idle:
        events += engine.step()
    (left,) = [event for event in events if isinstance(event, Left)]
    assert left.id == "b"
    assert isinstance(left.error, CancelledError)
    assert max(event.step for event in events if isinstance(event, Advanced) and event.id == "b") == 2
    for name, seed in (("a", 1), ("c", 3)):
        assert np.array_equal(finished(events)[name].latent, solo(family, task(seed=seed)).latent)


def test_a_waiting_task_is_cancelled_before_it_joins(family: UNetFamily) -> None:
    engine = Engine({"large": family}, max_rows=1)
    engine.submit(task("a"))
    engine.submit(task("b"))
    engine.step()
    engine.cancel("b")
    events = engine.step()
    assert [event.id for event in events if isinstance(event, Left)] == ["b"]
    assert engine.rows == 1


def test_the_late_are_dropped_only_when_they_asked_for_it(family: UNetFamily) -> None:
    now = [0.0]
    engine = Engine({"large": family}, max_rows=4, clock=lambda: now[0])
    engine.submit(task("dropped", deadline_at=5.0, drop_if_late=True))
    engine.submit(task("kept", deadline_at=5.0))
    engine.step()
    now[0] = 6.0
    (left,) = [event for event in engine.step() if isinstance(event, Left)]
    assert left.id == "dropped"
    assert isinstance(left.error, DeadlineError)
    assert engine.rows == 1


def test_a_task_that_cannot_start_fails_alone(family: UNetFamily) -> None:
    wrong_shape = FromState(np.zeros((4, 8, 8), np.float32), 3)
    too_far = FromState(np.zeros((4, 16, 16), np.float32), STEPS)
    tasks = [task("shape", start=wrong_shape), task("far", start=too_far), task("model", model="other"), task("fine")]
    events = drive(family, [(0, one) for one in tasks])
    reasons = {event.id: str(event.error) for event in events if isinstance(event, Left)}
    assert "(4, 8, 8)" in reasons["shape"]
    assert "10 of 10 steps" in reasons["far"]
    assert "'other' is not loaded" in reasons["model"]
    assert set(finished(events)) == {"fine"}


def test_a_row_that_breaks_the_forward_fails_alone(family: UNetFamily, monkeypatch: pytest.MonkeyPatch) -> None:
    step = type(family).step

    def breaks(self: UNetFamily, rows: list[object]) -> object:
        if any(row.task.id == "bad" for row in rows):  # type: ignore[attr-defined]
            raise RuntimeError("no memory")
        return step(self, rows)  # type: ignore[arg-type]

    monkeypatch.setattr(type(family), "step", breaks)
    events = drive(family, [(0, task("bad")), (0, task("good"))])
    (left,) = [event for event in events if isinstance(event, Left)]
    assert (left.id, str(left.error)) == ("bad", "no memory")
    assert set(finished(events)) == {"good"}


def test_a_preview_that_fails_costs_only_the_preview(family: UNetFamily, monkeypatch: pytest.MonkeyPatch) -> None:
    def breaks(self: UNetFamily, clean: object) -> object:
        raise RuntimeError("no memory for a preview")

    monkeypatch.setattr(type(family), "preview", breaks)
    events = drive(family, [(0, task("seen", preview=True)), (0, task("unseen"))])
    assert set(finished(events)) == {"seen", "unseen"}
    told = [event for event in events if isinstance(event, Advanced) and event.id == "seen"]
    assert len(told) == STEPS
    assert all(event.preview is None for event in told)


def test_a_latent_that_cannot_leave_the_device_is_its_rows_trouble_alone(
    family: UNetFamily, monkeypatch: pytest.MonkeyPatch
) -> None:
    def breaks(latent: object) -> object:
        raise RuntimeError("no memory to copy to")

    engine = Engine({"large": family}, tell_every_s=1e9)
    engine.submit(task("captured", capture_steps=(1,)))
    engine.submit(task("plain"))
    with monkeypatch.context() as broken:
        broken.setattr(engine_module, "off_device", breaks)
        (left,) = [event for event in engine.step() if isinstance(event, Left)]
    assert (left.id, str(left.error)) == ("captured", "no memory to copy to")
    assert engine.rows == 1


def test_numbers_that_are_not_finite_are_an_error_not_a_picture(family: UNetFamily) -> None:
    start = FromState(np.full((4, 16, 16), np.nan, np.float32), 5)
    (left,) = [event for event in drive(family, [(0, task(start=start))]) if isinstance(event, Left)]
    assert isinstance(left.error, ModelError)
    assert "not finite" in str(left.error)


def test_what_a_step_tells(family: UNetFamily) -> None:
    seen, unseen = task("a", capture_steps=(2, 10), preview=True), task("b", guidance=1.0)
    events = drive(family, [(0, seen), (3, unseen)])
    assert [event.step for event in events if isinstance(event, LatentCaptured)] == [2, 10]
    assert [event.step for event in events if isinstance(event, Advanced) and event.id == "a"] == list(range(1, 11))
    assert {event.rows for event in events if isinstance(event, BatchRan)} == {1, 2}
    assert [(event.id, event.step) for event in events if isinstance(event, Joined)] == [("a", 0), ("b", 0)]
    previews = [event.preview for event in events if isinstance(event, Advanced) and event.preview is not None]
    assert previews
    assert previews[0].shape == (16, 16, 3)
    assert not [event for event in events if isinstance(event, Advanced) and event.id == "b" and event.preview]


def test_previews_may_be_asked_for_before_and_while_a_row_rides(family: UNetFamily) -> None:
    engine = Engine({"large": family}, tell_every_s=0.0)
    for name in ("waiting", "riding", "unseen"):
        engine.submit(task(name))
    engine.preview("waiting")
    events = engine.step()
    engine.preview("riding")
    engine.preview("nobody's")
    while not engine.idle:
        events += engine.step()
    seen: dict[str, list[bool]] = {event.id: [] for event in events if isinstance(event, Advanced)}
    for event in events:
        if isinstance(event, Advanced):
            seen[event.id].append(event.preview is not None)
    assert seen == {"waiting": [True] * STEPS, "riding": [False] + [True] * (STEPS - 1), "unseen": [False] * STEPS}


def test_progress_is_told_at_its_pace(family: UNetFamily) -> None:
    now = [0.0]

    def clock() -> float:
        now[0] += 0.01
        return now[0]

    engine = Engine({"large": family}, tell_every_s=1e9, clock=clock)
    engine.submit(task("quiet", preview=True))
    events: list[Event] = []
    while not engine.idle:
        events += engine.step()
    assert not [event for event in events if isinstance(event, Advanced)]
    told = [event for event in drive(family, [(0, task())]) if isinstance(event, Advanced)]
    assert len(told) == STEPS


def test_a_prompt_the_encoder_cannot_take_in_is_a_warning(family: UNetFamily) -> None:
    joined = next(
        event for event in drive(family, [(0, task(prompt="word " * 30, steps=1))]) if isinstance(event, Joined)
    )
    assert joined.warnings == ("prompt: only the first 22 of 120 tokens were read",)


def test_a_negative_prompt_that_is_too_long_is_warned_of_by_its_own_name(family: UNetFamily) -> None:
    asked = task(negative_prompt="word " * 30, steps=1, guidance=2.0)
    joined = next(event for event in drive(family, [(0, asked)]) if isinstance(event, Joined))
    assert joined.warnings == ("negative_prompt: only the first 22 of 120 tokens were read",)


def test_one_id_cannot_ride_twice(family: UNetFamily) -> None:
    engine = Engine({"large": family})
    engine.submit(task("a"))
    with pytest.raises(ModelError, match="'a' is in the engine already"):
        engine.submit(task("a"))
