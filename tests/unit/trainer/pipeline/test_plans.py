"""Plans reproduce Fig. 4, filling shortens them, and the search returns the fastest one that fits."""

from __future__ import annotations

import json

import pytest

from services.trainer.pipeline.baselines import ddp, fsdp
from services.trainer.pipeline.comparison import as_json, compare
from services.trainer.pipeline.costs.profile import Backbone, Link, Profile
from services.trainer.pipeline.costs.stage_costs import Conditions
from services.trainer.pipeline.costs.uniform import uniform_batch, uniform_profile
from services.trainer.pipeline.cuts.partition import partition, partition_each
from services.trainer.pipeline.drawing import draw
from services.trainer.pipeline.plans import Plan, filled, make_plan
from services.trainer.pipeline.search import best_plan, directions, plans
from services.trainer.pipeline.settings import PlanSettings
from tests.unit.trainer.pipeline.profiles import backbone, frozen, profile

FIG_4 = {
    0.4384: {
        4: ((67.6, 51.0, 41.0, 34.3), (684.3, 342.2, 228.1, 171.1)),
        3: ((58.2, 41.0, 31.7, 25.8), (456.2, 228.1, 152.1, 114.1)),
        2: ((41.0, 25.8, 18.8, 14.8), (228.1, 114.1, 76.0, 57.0)),
    },
    0.8944: {
        4: ((61.3, 44.2, 34.5, 28.4), (335.4, 167.7, 111.8, 83.9)),
        3: ((51.4, 34.5, 26.0, 20.9), (223.6, 111.8, 74.5, 55.9)),
        2: ((34.5, 20.9, 15.0, 11.7), (111.8, 55.9, 37.3, 28.0)),
    },
}
"""Frozen share (SD 2.1, ControlNet) → S → for M = 1 … 4 the bubbles of the iteration and of the frozen part, in %."""


def uniform_plan(share: float, stages: int, micro_batches: int, **more: float) -> tuple[Plan, Profile, PlanSettings]:
    batch = uniform_batch(stages, micro_batches)
    model = uniform_profile(share, stages, batch)
    settings = PlanSettings(batch=batch, devices=stages, **more)
    plan = make_plan(model, model.backbones, settings, stages=stages, micro_batches=micro_batches, group=stages)
    assert plan is not None
    return plan, model, settings


@pytest.mark.parametrize("share", FIG_4)
@pytest.mark.parametrize("stages", [2, 3, 4])
def test_all_48_figures_of_fig_4_follow_from_the_frozen_share(share: float, stages: int) -> None:
    for at, (upper, lower) in enumerate(zip(*FIG_4[share][stages], strict=True)):
        plan, _, _ = uniform_plan(share, stages, at + 1)
        one = plan.iterations[0]
        idle = one.idle_device_s / plan.group
        assert 100 * plan.bubble_share == pytest.approx(upper, abs=0.1)
        assert 100 * idle / one.frozen_s == pytest.approx(lower, abs=0.1)


@pytest.mark.parametrize(
    ("share", "stages", "micro_batches"), [(0.4384, 2, 4), (0.8944, 2, 4), (0.8944, 4, 4), (0.4384, 4, 6)]
)
def test_filled_bubbles_fall_below_5_percent_where_the_frozen_part_is_long_enough(
    share: float, stages: int, micro_batches: int
) -> None:
    plan, model, settings = uniform_plan(share, stages, micro_batches)
    better = filled(plan, model, settings)
    assert better.bubble_share_unfilled == plan.bubble_share > 0.1
    assert better.bubble_share < 0.05
    assert better.seconds < plan.seconds


def test_what_no_frozen_work_can_fill_stays_idle() -> None:
    """S = 4, M = 4 for SD 2.1: perfect filling leaves (b − f) / (1 + b) = 17.8 %; ⌈B/d⌉ makes the work a bit longer."""
    plan, model, settings = uniform_plan(0.4384, 4, 4)
    better = filled(plan, model, settings)
    assert better.bubble_share == pytest.approx((0.75 - 0.4384) / 1.75, abs=0.005)
    assert better.seconds == better.pipeline_s
    assert filled(*uniform_plan(0.0, 4, 4)).seconds == plan.pipeline_s


def test_self_conditioning_plans_both_kinds_of_iterations() -> None:
    plan, model, settings = uniform_plan(0.4384, 2, 4, self_conditioning=0.25)
    plain, twice = plan.iterations
    assert (plain.probability, twice.probability) == (0.75, 0.25)
    assert twice.schedule.self_conditioning
    assert twice.timeline.end_s > plain.timeline.end_s
    assert plan.seconds == pytest.approx(0.75 * plain.seconds + 0.25 * twice.seconds)
    assert plan.pipeline_s <= plan.cut.bound_s
    assert filled(plan, model, settings).seconds < plan.seconds


def sized(forward: list[float], name: str = "unet") -> Backbone:
    return backbone(forward, name=name, sent=1.0, gradients=4.0, parameter_bytes=4.0, activation_bytes_per_sample=3.0)


def job(**more: object) -> tuple[Profile, PlanSettings]:
    """Return a job with slow gradients, so that a pipeline is worth it."""
    model = profile(
        sized([0.01, 0.02, 0.01, 0.02, 0.01, 0.01]), frozen=[frozen([0.005] * 6)],
        p2p=Link(bandwidth_bytes_per_s=1000), bandwidth=10.0,
    )  # fmt: skip
    return model, PlanSettings(batch=32, devices=4, **more)


def test_the_search_returns_the_fastest_of_all_plans() -> None:
    model, settings = job()
    everything = [filled(one, model, settings) for one in plans(model, settings)]
    best = best_plan(model, settings)
    assert best is not None
    assert len(everything) > 8
    assert best.seconds == min(one.seconds for one in everything)
    assert {(one.group, one.stages) for one in everything} == {(2, 2), (4, 2), (4, 4)}


def test_stages_of_any_replicas_divide_the_micro_batch() -> None:
    """One and three devices would be faster, but three do not divide a micro-batch of eight samples."""
    model = profile(backbone([1.0, 3.0]))
    settings = PlanSettings(batch=32, devices=4, equal_replicas=False)
    plan = make_plan(model, model.backbones, settings, stages=2, micro_batches=4, group=4)
    assert plan is not None
    assert plan.cut.replicas == (2, 2)
    other = settings.model_copy(update={"batch": 48})
    thirds = make_plan(model, model.backbones, other, stages=2, micro_batches=4, group=4)
    assert thirds is not None
    assert thirds.cut.replicas == (1, 3)


def test_memory_is_added_by_hand_and_limits_the_search() -> None:
    """S = D = 2: each stage has three layers; its first stage holds two micro-batches of eight samples."""
    model, settings = job(group_sizes=(2,), stages=(2,), micro_batches=(2,))
    plan = next(plans(model, settings))
    assert [one.stop - one.start for one in plan.cut.stages[0]] == [3, 3]
    kept = 3 * (4 * (1 + 2) + 4)
    assert list(plan.memory_bytes) == [kept + 2 * 3 * 3 * 8, kept + 1 * 3 * 3 * 8]
    limited = settings.model_copy(update={"device_memory_bytes": 191.0})
    assert best_plan(model, limited) is None
    slow = model.model_copy(update={"p2p": Link(bandwidth_bytes_per_s=30)})
    many = settings.model_copy(update={"micro_batches": (8,)})
    deep, shallow = next(plans(slow, many)), next(plans(slow, many.model_copy(update={"device_memory_bytes": 90.0})))
    assert deep.memory_bytes[0] == kept + 3 * 3 * 3 * 2  # covers long transfers with a third micro-batch
    assert shallow.memory_bytes[0] == kept + 2 * 3 * 3 * 2
    assert shallow.seconds > deep.seconds
    assert ddp(model, settings).memory_bytes == 6 * (4 * 3 + 4) + 8 * 6 * 3
    assert fsdp(model, settings).memory_bytes == 6 * (4 * 3 + 4) / 4 + 8 + 8 * 6 * 3


def test_ddp_hides_gradients_behind_the_backward_pass_and_fsdp_gathers_weights() -> None:
    """24 bytes of gradients at 10 bytes/s take 2.4 s; the passes of 8 samples take .64 and 1.28 s."""
    model, settings = job()
    assert ddp(model, settings).seconds == pytest.approx(8 * 0.03 + 0.64 + 1.28 + (2.4 - 1.28))
    assert fsdp(model, settings).seconds == pytest.approx(8 * 0.03 + 1.92 + (1.5 * 2.4 - 1.92))
    twice = settings.model_copy(update={"self_conditioning": 1.0})
    assert ddp(model, twice).computed_s == pytest.approx(2 * 0.64 + 1.28)
    assert fsdp(model, twice).exposed_s == pytest.approx(2 * 2.4 - 2.56)


def test_the_comparison_says_whether_a_pipeline_is_worth_it() -> None:
    model, settings = job()
    slow = compare(model, settings)
    assert slow.worth_it
    assert slow.verdict.startswith("Plan the pipeline: ")
    assert [row.name for row in slow.rows] == ["DiffusionPipe", "SPP-like, without filling", "GPipe", "DDP", "FSDP"]
    assert slow.rows[0].seconds < slow.rows[1].seconds <= slow.rows[2].seconds
    free = compare(model.model_copy(update={"all_reduce": (), "frozen": ()}), settings)
    assert not free.worth_it
    assert free.verdict.startswith("A pipeline is not worth it: ")
    assert free.verdict.endswith("Plan DDP.")
    tight = compare(model, settings.model_copy(update={"device_memory_bytes": 1.0}))
    assert tight.plan is None
    assert tight.verdict == "Nothing fits: no pipeline does, and FSDP needs more memory than a device has."
    alone = compare(model, settings.model_copy(update={"stages": (9,)}))
    assert alone.plan is None
    assert alone.verdict.startswith("Plan DDP (3.28 s): no pipeline fits")
    between = compare(model, settings.model_copy(update={"device_memory_bytes": 150.0}))
    assert between.worth_it
    assert "needs more memory than a device has" in between.verdict


def test_the_plan_for_a_program_has_every_frozen_sample_once() -> None:
    model, settings = job()
    written = json.loads(json.dumps(as_json(compare(model, settings), model)))["plan"]
    assert written["bubble_of_iteration"] < written["bubble_of_iteration_unfilled"]
    iteration = written["iterations"][0]
    runs = [run for one in iteration["bubbles"] for run in one["runs"]] + iteration["after_the_pipeline"]
    for at in range(6):
        assert sum(run["samples"] for run in runs if run["layer"] == f"encoder {at}") == written["batch_of_group"]
    assert sum(stop - start for start, stop in written["backbones"]["unet"]) == 6


def test_two_backbones_run_in_both_directions_and_three_in_two_groups() -> None:
    two = profile(sized([0.01] * 4, "a"), sized([0.02] * 4, "b"))
    settings = PlanSettings(batch=16, devices=4, stages=(2,), micro_batches=(2, 4))
    plan = best_plan(two, settings)
    assert plan is not None
    assert plan.iterations[0].schedule.name == "bidirectional"
    assert [backbone.name for backbone in plan.backbones] == ["a", "b"]
    drawn = draw(plan, two.frozen)
    assert drawn.count("b, stage 1, backward of micro-batch") == plan.micro_batches * plan.cut.replicas[0]
    assert "GPipe" not in [row.name for row in compare(two, settings).rows]
    three = profile(sized([0.01] * 4, "a"), sized([0.02] * 4, "b"), sized([0.03] * 4, "c"))
    assert [[one.name for one in way] for way in directions(three, settings)] == [
        ["a", "b + c"], ["a + b", "c"], ["a + c", "b"],
    ]  # fmt: skip
    best = best_plan(three, settings)
    assert best is not None
    assert [one.name for one in best.backbones] == ["a + b", "c"]  # .12 s of forward passes in each direction


def test_the_faster_of_two_backbones_is_balanced_too() -> None:
    """Eq. 14 bounds the slower backbone alone; each cut for itself, the devices have equal work and end earlier."""
    two = profile(sized([0.01] * 8, "a"), sized([0.02] * 8, "b"))
    settings = PlanSettings(batch=16, devices=4)
    on = Conditions(micro_batch=4, cluster=4, transfer_factor=2)
    joint = partition(two, two.backbones, on, stages=4, devices=4, rounds=6)
    each = partition_each(two, two.backbones, on, stages=4, devices=4, rounds=6)
    assert joint is not None
    assert each is not None
    assert each.slowest_s == pytest.approx(joint.slowest_s)
    assert each.bound_s == pytest.approx(joint.bound_s)
    assert {len(layers) for layers in each.stages[0]} == {2}
    plan = make_plan(two, two.backbones, settings, stages=4, micro_batches=4, group=4)
    assert plan is not None
    assert plan.cut == each
    assert len({round(busy, 9) for busy in plan.iterations[0].timeline.busy_s}) == 1


def test_the_drawing_has_a_box_for_each_pass_piece_and_device() -> None:
    model, settings = job(group_sizes=(2,), stages=(2,), micro_batches=(4,))
    plan = filled(next(plans(model, settings)), model, settings)
    text = draw(plan, model.frozen)
    filling = plan.iterations[0].filling
    assert filling is not None
    pieces = sum(len(one.pieces) * len(one.bubble.devices) for one in filling.bubbles) + 2 * len(filling.rest)
    assert text.count("forward of micro-batch") == text.count("backward of micro-batch") == 2 * 4
    assert text.count("<title>encoder, encoder ") == pieces > 0
    assert text.count("gradients of stage") == 2
    assert text.startswith("<svg ")
    assert text.endswith("</svg>\n")
    before = draw(next(plans(model, settings)), model.frozen)
    assert before.count("frozen part, before the pipeline") == 2
