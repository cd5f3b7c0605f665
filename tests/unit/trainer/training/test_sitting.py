"""A run is taken up from its checkpoint, else from exported weights, else from scratch; all sittings share its time."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import structlog
import torch
from torch import nn

from services.trainer.export import export_denoiser, trained_denoiser
from services.trainer.text_to_image.denoiser_training import DenoiserPlan, Run
from services.trainer.text_to_image.latents import Latents
from services.trainer.training.runs import Progress, plot_losses
from services.trainer.training.sitting import Sitting
from services.trainer.words import Words
from shared.runtime import progress as remaining


def sitting(
    work: Path, model: nn.Linear, *, steps: int = 10**9, seconds: float = 1e6, shipped: float | None = None
) -> Sitting:
    def exported() -> dict[str, torch.Tensor]:
        return {"weight": torch.full((1, 2), shipped or 0.0), "bias": torch.zeros(1)}

    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    start = None if shipped is None else exported
    return Sitting("line", work, {"model": model}, [optimizer], steps=steps, seconds=seconds, rate=0.1, start=start)


def a_step(run: Sitting, model: nn.Linear) -> None:
    begun = run.begin_step(seed=4)
    assert begun is not None
    _, rng = begun
    run.end_step((model(torch.full((1, 2), rng.random())) - 1).square().sum())


def test_a_resumed_run_ends_where_an_uninterrupted_one_ends(tmp_path: Path) -> None:
    torch.manual_seed(0)
    whole, again = nn.Linear(2, 1), nn.Linear(2, 1)
    again.load_state_dict(whole.state_dict())
    run = sitting(tmp_path / "whole", whole)
    for _ in range(6):
        a_step(run, whole)
    first = sitting(tmp_path / "pieces", again)
    for _ in range(2):
        a_step(first, again)
    spent = first.used_s
    first.save()
    other = nn.Linear(2, 1)
    second = sitting(tmp_path / "pieces", other, shipped=5.0)  # the checkpoint wins over exported weights
    assert second.step == 2
    assert second.used_s >= spent
    for _ in range(4):
        a_step(second, other)
    # rates follow the clock, which differs by microseconds of a million seconds
    torch.testing.assert_close(other.weight, whole.weight, atol=1e-6, rtol=0)
    torch.testing.assert_close(second.average.tensors[0], run.average.tensors[0], atol=1e-6, rtol=0)


def test_exported_weights_are_where_a_run_without_a_checkpoint_begins(tmp_path: Path) -> None:
    model = nn.Linear(2, 1)
    run = sitting(tmp_path, model, shipped=5.0)
    assert (model.weight == 5.0).all()
    a_step(run, model)
    assert (run.average.tensors[0] - 5.0).abs().max() < 0.01 * (model.weight - 5.0).abs().max() + 1e-6


def test_the_time_ends_a_run(tmp_path: Path) -> None:
    assert sitting(tmp_path, nn.Linear(2, 1), seconds=1e-9).begin_step(seed=0) is None


def test_the_steps_end_a_run(tmp_path: Path) -> None:
    model = nn.Linear(2, 1)
    run = sitting(tmp_path, model, steps=2)
    a_step(run, model)
    assert (run.begin_step(seed=4) or (None,))[0] == 0.5
    run.step += 1
    assert run.begin_step(seed=4) is None


def test_a_denoiser_goes_on_from_exported_weights(work: Path, teacher: Path, words: Words, tmp_path: Path) -> None:
    data = Latents(work / "latents", words)
    (work / "large.pt").unlink()
    run = Run("large", DenoiserPlan(), words, data, work, start=teacher)
    run.save()
    again = trained_denoiser(work, "large").unet.state_dict()
    fresh = Run("large", DenoiserPlan(seed=9), words, data, tmp_path / "fresh").model.unet.state_dict()
    name = "conv_in.weight"
    export_denoiser(work, "large", tmp_path / "again")
    assert torch.equal(run.model.unet.state_dict()[name], again[name])
    assert not torch.equal(again[name], fresh[name])
    assert run.step == 0


def test_losses_that_end_leave_their_column_empty(tmp_path: Path) -> None:
    progress = Progress(tmp_path, "pair", every=1)
    progress.add(1, 4, contrast=1.0, order=0.5)
    Progress(tmp_path, "pair", every=1).add(2, 8, contrast=0.5)
    lines = (tmp_path / "pair-losses.csv").read_text().splitlines()
    assert lines[0].split(",")[3:] == ["contrast", "order"]
    assert lines[2].split(",")[3:] == ["0.5", ""]
    plot_losses(tmp_path / "pair-losses.csv", tmp_path / "pair.png")
    assert (tmp_path / "pair.png").exists()


def test_steps_that_are_done_again_after_a_kill_are_written_once(tmp_path: Path) -> None:
    killed = Progress(tmp_path, "pair", every=1)
    for step in (1, 2, 3):
        killed.add(step, 4 * step, contrast=1.0)
    Progress(tmp_path, "pair", every=1).add(2, 8, contrast=0.5)  # its checkpoint was after step 1
    lines = (tmp_path / "pair-losses.csv").read_text().splitlines()
    assert [line.split(",")[0] for line in lines] == ["step", "1", "2"]
    assert lines[2].endswith(",0.5")
    assert not list(tmp_path.glob("*.partial"))


@pytest.fixture
def words(work: Path) -> Words:
    from services.trainer.clip_pair import tokenizer_at

    return Words(tokenizer_at(work))


def test_a_training_says_every_half_minute_how_far_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(remaining, "EVERY_S", 0.0)
    model = nn.Linear(2, 1)
    run = sitting(tmp_path, model, steps=40)
    with structlog.testing.capture_logs() as logs:
        for step in range(4):
            a_step(run, model)
            run.report(8 * step, error=0.25)
    said = [entry["event"] for entry in logs]
    assert len(said) == 4
    assert re.fullmatch(
        r"training line, steps: 4 of 40 \(10\.0%\), [\d,.e+]+ a (second|minute), [\d:]+ left; error 0\.25", said[-1]
    )
    run._began -= 60.0  # long beside what loading takes on a busy machine
    used_s = run.used_s
    run.save()
    again = sitting(tmp_path, model, seconds=used_s * 2)  # half of its time is over, whatever its steps are
    with structlog.testing.capture_logs() as logs:
        a_step(again, model)
        again.report(40, error=0.25)
    share = re.search(r"\(([\d.]+)%\)", logs[0]["event"])
    assert share is not None
    assert float(share[1]) >= 50
