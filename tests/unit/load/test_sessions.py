"""The trace that ships: made by the generator, with the edit structure that was measured on a real one."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from load import sessions
from load.edit_structure import Asked, measure, relation
from load.sessions import (
    CLIP_KINDS,
    CLIPS,
    KINDS,
    SHIPPED,
    SHIPPED_CLIPS,
    SHIPPED_COUNT,
    SHIPPED_SEED,
    Structure,
    kind_of_edit,
    label,
    make_trace,
    read_trace,
    write_trace,
)
from shared.models.scenes import CLIP_WORDINGS, WORDINGS, Scene, clip_caption, with_motion
from shared.models.scenes.modality import IMAGES

MEASURED = {
    # statistic: (real trace, windows as long as ours with an eighth of its users; tolerance: 1.5 of their deviations)
    "users": (120, 22),
    "requests per hour": (642, 135),
    "users per hour": (84, 17),
    "requests per user, mean": (10.3, 1.7),
    "requests per user, median": (5.6, 1.3),
    "requests per user, 90th percentile": (24.7, 6.3),
    "share of users with one request": (0.169, 0.05),
    "pairs: equal text": (0.107, 0.02),
    "pairs: Jaccard > .5, equal included": (0.557, 0.04),
    "pairs: Jaccard > .75, not equal": (0.289, 0.072),
    "session length, mean": (8.87, 1.5),
    "session length, median": (4.2, 1.0),
    "share of sessions of one request": (0.218, 0.051),
    "gap inside a session, median s": (110, 15),
    "share of pairs across sessions": (0.0173, 0.0066),
    "after equal: equal": (0.424, 0.17),
    "after near: near": (0.694, 0.072),
    "after other: other": (0.721, 0.063),
    "share of prompts the user has asked before": (0.152, 0.062),
    "share of prompts that are unique texts": (0.847, 0.062),
    "size: main": (0.525, 0.04),
    "size: portrait": (0.253, 0.09),
    "size: landscape": (0.186, 0.065),
    "size: other square": (0.036, 0.033),
    "pairs: size class changes": (0.136, 0.038),
}


def test_the_file_is_what_the_generator_makes(tmp_path: Path) -> None:
    made = tmp_path / "made.jsonl"
    write_trace(made, make_trace(SHIPPED_COUNT, SHIPPED_SEED))
    assert made.read_bytes() == SHIPPED.read_bytes()


@pytest.fixture(scope="module")
def statistics() -> dict[str, float]:
    return measure(Asked(row.prompt, row.user, row.arrival_s, row.width, row.height) for row in read_trace())


@pytest.mark.parametrize("name", MEASURED)
def test_the_structure_is_the_real_one(statistics: dict[str, float], name: str) -> None:
    real, tolerance = MEASURED[name]
    assert statistics[name] == pytest.approx(real, abs=tolerance)


def test_every_prompt_says_its_scene_and_every_kind_is_there() -> None:
    rows = read_trace()
    assert {row.kind_of_edit for row in rows} == set(KINDS)
    assert all(row.prompt in {IMAGES.caption(row.scene, wording) for wording in range(WORDINGS)} for row in rows)
    assert {row.steps for row in rows} == {50}


def test_the_file_of_clips_is_what_the_generator_makes_and_its_prompts_say_their_scenes(tmp_path: Path) -> None:
    made = tmp_path / "made.jsonl"
    write_trace(made, make_trace(SHIPPED_COUNT, SHIPPED_SEED, CLIPS))
    assert made.read_bytes() == SHIPPED_CLIPS.read_bytes()
    rows = read_trace(SHIPPED_CLIPS)
    assert {row.kind_of_edit for row in rows} == set(CLIP_KINDS)
    wordings = range(CLIP_WORDINGS)
    assert all(row.prompt in {clip_caption(row.scene, one) for one in wordings} for row in rows)
    assert {(row.frames, row.width, row.height) for row in rows} == {(16, 64, 64)}


def test_the_size_that_a_motion_decides_is_no_change_of_its_own() -> None:
    before = with_motion(Scene("fox", size="large"), "stay")
    assert kind_of_edit(before, with_motion(before.scene, "left")) == "motion"
    assert kind_of_edit(before, with_motion(replace(before.scene, colour="red"), "left")) == "several"


def test_another_seed_makes_another_trace_with_users_numbered_by_appearance() -> None:
    one, other = make_trace(200, 1), make_trace(200, 2)
    assert one != other
    seen = list(dict.fromkeys(row.user for row in one))
    assert seen == list(range(len(seen)))
    assert [row.arrival_s for row in one] == sorted(row.arrival_s for row in one)
    assert one[0].arrival_s == 0


def test_moves_steer_how_prompts_relate() -> None:
    always_equal = Structure(moves=dict.fromkeys(("equal", "near", "other", "pause"), (1.0, 0.0, 0.0)))
    rows = make_trace(100, 3, always_equal)
    assert {row.kind_of_edit for row in rows} == {"first", "repeat"}


@pytest.mark.parametrize(
    ("change", "kind"),
    [
        ({}, "paraphrase"),
        ({"style": "sketch"}, "style"),
        ({"object": "dog"}, "object"),
        ({"style": "sketch", "light": "night"}, "several"),
        ({"object": "dog", "background": "city"}, "unrelated"),
        ({"style": "sketch", "light": "night", "count": 2, "size": "small"}, "unrelated"),
    ],
)
def test_a_change_has_a_name(change: dict[str, object], kind: str) -> None:
    before = Scene("fox")
    after = Scene(**{"object": "fox", **change})  # type: ignore[arg-type]  # a table of values
    assert kind_of_edit(before, after) == kind


def test_labels_look_at_the_users_own_prompts_only() -> None:
    base = make_trace(1, 0)[0]
    other = replace(base, prompt="a small red fox", scene=Scene("fox", colour="red", size="small"))
    rows = [base, replace(other, user=1), other, replace(other, user=1), base]
    assert [row.kind_of_edit for row in label(rows)][2:] == ["unrelated", "repeat", "return"]
    assert [row.kind_of_edit for row in label(rows)][:2] == ["first", "first"]


@pytest.mark.parametrize(
    ("before", "after", "named"),
    [
        ("a red fox", "a red fox", "equal"),
        ("a red fox", "a red, fox", "near"),
        ("a red fox", "a red dog", "other"),  # two of four words shared: .5 is not above .5
        ("a small red fox", "a small red dog", "near"),
    ],
)
def test_how_two_prompts_relate(before: str, after: str, named: str) -> None:
    assert relation(before, after) == named


def test_a_line_that_is_no_row_is_named(tmp_path: Path) -> None:
    broken = tmp_path / "trace.jsonl"
    broken.write_text(SHIPPED.read_text().splitlines()[0] + '\n{"prompt": "x"}\n')
    with pytest.raises(ValueError, match=":2: "):
        read_trace(broken)


def test_no_edit_structure_without_a_second_request() -> None:
    with pytest.raises(ValueError, match="at least two requests"):
        measure([Asked("a", 0, 0.0, 64, 64), Asked("b", 1, 1.0, 64, 64)])


def test_another_trace_is_not_written_over_the_one_that_ships(capsys: pytest.CaptureFixture[str]) -> None:
    before = sessions.SHIPPED.read_bytes()
    with pytest.raises(SystemExit):
        sessions.main(["--count", "30"])
    assert "--out: the trace that ships has --count 1200 --seed 65 (got 30 and 65)" in capsys.readouterr().err
    assert sessions.SHIPPED.read_bytes() == before
