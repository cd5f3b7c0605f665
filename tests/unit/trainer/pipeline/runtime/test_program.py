"""Programs of devices: every message that a step needs comes, no order of steps deadlocks, every row runs once."""

from __future__ import annotations

from collections import Counter
from functools import cache

from hypothesis import given, settings
from hypothesis import strategies as st

from services.trainer.pipeline.filling.one_bubble import FrozenWork
from services.trainer.pipeline.plans import Plan
from services.trainer.pipeline.runtime.linking import linked, read_values, runs_of, stage_values
from services.trainer.pipeline.runtime.parts import Training
from services.trainer.pipeline.runtime.program import (
    Device,
    FrozenStep,
    Layout,
    Message,
    PassStep,
    Program,
    Value,
    filled_program,
    frozen_program,
    pass_program,
)
from tests.unit.trainer.pipeline.runtime.tiny_jobs import Case, new_job, plan_of, profile_of

BATCH = 16


@cache
def job(name: str) -> Training:
    return new_job(Case(name))


@st.composite
def cases(draw: st.DrawFn) -> Case:
    name = draw(st.sampled_from(["unet", "controlnet twice", "cascade"]))
    return Case(
        name, ranks=(ranks := draw(st.sampled_from([2, 4]))), stages=draw(st.sampled_from([2, ranks])),
        micro_batches=draw(st.sampled_from([1, 2, 4])), batch=BATCH, frozen_s=draw(st.sampled_from([0.05, 0.5, 2.0])),
        self_conditioning=0.5 if name.endswith("twice") else 0.0,
    )  # fmt: skip


def planned(case: Case) -> tuple[Training, Plan, Layout]:
    training = job(case.job)
    plan = plan_of(training, case, profile_of(training, case))
    return training, plan, Layout(plan.cut, plan.batch, plan.micro_batches)


def needed(program: Device, at: int, training: Training) -> list[Message]:
    """Return the messages that a step waits for."""
    step = program.steps[at]
    if isinstance(step, PassStep):
        return program.needs[at]
    values = read_values(training, step.component, step.layer)
    found = [one for value in values for one in program.values.get(value, ()) if set(one.rows) & set(step.rows)]
    for value in values:
        here = {row for one in program.steps[:at] if isinstance(one, FrozenStep) and value in made(one, training)
                for row in one.rows}  # fmt: skip
        come = {row for one in found if value in one.kind for row in one.rows}  # type: ignore[operator]
        assert set(step.rows) <= here | come, (step, value)
    return found


def made(step: FrozenStep, training: Training) -> set[Value]:
    names = training.frozen[step.component].chain.layers[step.layer].makes
    return {Value(step.component, step.layer, name) for name in names}


def play(program: Program, training: Training) -> None:
    """Run all steps in any order that the messages allow; fail if none can run."""
    sent: set[Message] = set()
    at = [0] * len(program.devices)
    while True:
        moved = False
        for number, device in enumerate(program.devices):
            while at[number] < len(device.steps) and sent.issuperset(needed(device, at[number], training)):
                sent.update(device.sends[at[number]])
                at[number] += 1
                moved = True
        if not moved:
            break
    assert at == [len(device.steps) for device in program.devices], "a deadlock"
    assert sent == {one for device in program.devices for sends in device.sends for one in sends}


@settings(max_examples=25)
@given(case=cases())
def test_no_program_deadlocks_and_frozen_rows_run_once(case: Case) -> None:
    training, plan, layout = planned(case)
    for iteration in plan.iterations:
        play(linked(pass_program(layout, iteration.schedule), layout, training), training)
        filled = linked(filled_program(layout, iteration), layout, training)
        play(filled, training)
        runs: Counter[tuple[int, int, int]] = Counter()
        for device in filled.devices:
            for step in device.steps:
                if isinstance(step, FrozenStep):
                    runs.update((step.component, step.layer, row) for row in step.rows)
        layers = [(one, at) for one, part in enumerate(training.frozen) for at in range(len(part.chain.layers))]
        assert runs == Counter((one, at, row) for one, at in layers for row in range(BATCH))


@settings(max_examples=10)
@given(case=cases())
def test_every_stage_gets_the_rows_it_trains_on(case: Case) -> None:
    training, plan, layout = planned(case)
    program = linked(filled_program(layout, plan.iterations[0]), layout, training)
    for number, device in enumerate(program.devices):
        wanted = layout.all_rows(number)
        for value in stage_values(training, layout, number):
            own = {row for step in device.steps if isinstance(step, FrozenStep) and value in made(step, training)
                   for row in step.rows}  # fmt: skip
            come = [row for one in device.values.get(value, ()) for row in one.rows]
            assert own | set(come) >= wanted
            assert not own & set(come), "no row comes that is here already"
            assert len(come) == len(set(come)), "no row comes twice"


def test_a_frozen_part_alone_keeps_its_rows_on_one_device() -> None:
    training, plan, layout = planned(Case("unet", batch=BATCH))
    work = FrozenWork(profile_of(training, Case("unet")).frozen, plan.batch, plan.group)
    program = linked(frozen_program(work.rest(work.start()), plan.group), layout, training)
    kinds = {value.name for device in program.devices for sends in device.sends for one in sends for value in one.kind}  # type: ignore[attr-defined]
    assert kinds == {"latents", "states"}, "only what stages read is sent"


def test_a_batch_smaller_than_its_micro_batches_has_no_empty_passes() -> None:
    training, plan, layout = planned(Case("unet", micro_batches=4, batch=BATCH))
    few = Layout(layout.cut, 3, layout.micro_batches)
    steps = pass_program(few, plan.iterations[0].schedule)
    play(linked(steps, few, training), training)
    assert sum(len(step.rows) for step in steps[0]) == 2 * 3


def test_runs_of_rows() -> None:
    assert runs_of({5, 1, 2, 6, 9}) == (range(1, 3), range(5, 7), range(9, 10))
