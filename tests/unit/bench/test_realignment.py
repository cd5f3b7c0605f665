"""Ways of realignment on the bundled model, and the rule that decides whether one pays."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from bench.realigned.family import OFF, Prompts, RealignedFamily, Realignment, aligned, passes
from bench.realignment import main, pays
from services.gpu_worker.engine.row_start import make_row
from services.gpu_worker.engine.rows import Task
from services.gpu_worker.families import load_family
from shared.models.card_lookup import find_card

CARD = find_card("bundled:small")
OLD, NEW = "a red fox in the snow", "a blue fox in the snow"


def task(name: str) -> Task:
    return Task(name, CARD.name, NEW, CARD.default_size, 5, 2.5, seed=7)


@pytest.fixture(scope="module")
def family() -> RealignedFamily:
    return RealignedFamily(CARD)


def stepped(family: RealignedFamily, *settings: str) -> list[torch.Tensor]:
    with torch.inference_mode():
        rows = [make_row(family, task(setting)) for setting in settings]
        family.realigned = {setting: (Realignment.read(setting), OLD) for setting in settings}
        return [one.latent for one in family.step(rows)]


def test_without_realignment_a_step_is_the_stock_family_s(family: RealignedFamily) -> None:
    stock = load_family(CARD)
    with torch.inference_mode():
        (expected,) = stock.step([make_row(stock, task("off"))])
    torch.testing.assert_close(stepped(family, "off")[0], expected.latent, atol=1e-4, rtol=0)


def test_rows_of_different_settings_share_a_batch(family: RealignedFamily) -> None:
    settings = ("off", "old=1.5", "mixed=0.5", "added=1", "further=0.5", "logits=4", "values=2", "guidance=1.5")
    together = stepped(family, *settings)
    for setting, latent in zip(settings, together, strict=True):
        torch.testing.assert_close(stepped(family, setting)[0], latent, atol=1e-4, rtol=0)
        assert setting == "off" or (latent - together[0]).abs().max() > 1e-4


def test_changed_words_and_their_partners() -> None:
    changed, partners = aligned([5, 6, 7, 8], [5, 9, 8], length=8)
    assert changed == (2, 3)
    assert partners == (0, 1, 2, -1, 3, 4, 5, 6)


def test_the_weights_of_every_setting_sum_to_one() -> None:
    hidden = torch.eye(3)
    prompts = Prompts(hidden, hidden * 2, hidden * 0, (1,), (0, 1, -1))
    for setting in ("off", "old=1.5", "mixed=0.5", "added=2", "further=1", "logits=4", "guidance=2"):
        assert sum(one.weight for one in passes(Realignment.read(setting), prompts, 2.5)) == pytest.approx(1)
    moved = passes(Realignment.read("further=1"), prompts, 2.5)[0].hidden
    assert moved.tolist() == [[0, 0, 0], [0, 0, 0], [0, 0, 1]]


def test_a_setting_that_ends_costs_rows_of_its_first_steps_only() -> None:
    setting = Realignment.read("added=1,first=2")
    assert [setting.active(step) for step in (1, 2)] == [setting, OFF]
    assert (setting.rows(4), setting.rows(1), OFF.rows(4)) == (10, 3, 8)
    with pytest.raises(ValueError, match="got strength"):
        Realignment.read("strength=2")


def row(**changed: Any) -> dict[str, Any]:
    good = {
        "steps": 5, "k": 3, "setting": "own", "rows": 4, "contrast": (1.0, 0.95), "saturation": (1.0, 0.95),
        "sharpness": (1.0, 0.95), "all_more": (-0.01, -0.03, 0.01), "paraphrases_clip_ratio": (1.0, 0.97),
    }  # fmt: skip
    return good | changed


def test_the_rule() -> None:
    later = {"off": {"edits": [(1, 0.4), (2, 0.8)]}, "own": {"edits": [(1, 0.4), (2, 0.8), (3, 0.9)]}}
    assert pays([row()], later, "own") == ""
    assert "no later level" in pays([row()], {**later, "own": later["off"]}, "own")
    lower = {"off": {"edits": [(3, 0.9)]}, "own": {"edits": [(3, 0.84)]}}
    assert pays([row()], lower, "own") == ""
    assert "saturation" in pays([row(saturation=(0.9, 0.88))], later, "own")
    assert "all attributes" in pays([row(all_more=(-0.05, -0.08, -0.02))], later, "own")
    assert "paraphrases" in pays([row(paraphrases_clip_ratio=(0.9, 0.8))], later, "own")
    assert "rows" in pays([row(rows=6)], later, "own")


def test_a_run_goes_on_from_what_is_stored(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    given = ["--model", "bundled:small", "--count", "2", "--steps", "5", "--ks", "3", "--work", str(tmp_path / "work")]
    main([*given, "--out", str(tmp_path)])
    stored = {path: path.stat().st_mtime_ns for path in (tmp_path / "work").rglob("*.png")}
    assert len(stored) == 2 * 3
    main([*given, "--settings", "old=1.5", "--out", str(tmp_path)])
    assert {path: path.stat().st_mtime_ns for path in stored} == stored
    assert "| 5 | 3 | old=1.5 | 4 |" in capsys.readouterr().out
    assert (tmp_path / "realignment_t5.json").exists()
