"""The GPU benchmark's small form runs anywhere; without a GPU its true form measures nothing and says so."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
import torch

from bench.gpu import gpu_families, live_values
from bench.gpu.gpu_shapes import SHAPES, build, build_text_encoder


def run(monkeypatch: pytest.MonkeyPatch, *arguments: str) -> None:
    monkeypatch.setattr(sys, "argv", ["gpu_families", *arguments])
    monkeypatch.setattr(gpu_families, "quiet", lambda: None)  # for a process of its own
    gpu_families.main()


def test_the_small_form_measures_every_family(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    short = ["--batches", "1,2", "--measured", "2", "--rounds", "1", "--out", str(tmp_path)]
    run(monkeypatch, "--tiny", "--models", "sdxl,sd3,flux,sana", *short)
    figures = json.loads((tmp_path / "gpu_families.json").read_text())["figures"]
    assert set(figures) == {"sdxl", "sd3", "flux", "sana"}
    for found in figures.values():
        assert set(found["batches"]) == {"1", "2"}
        for rows, batch in found["batches"].items():
            assert len(batch["all_step_s"]) == 4
            assert batch["row_steps_per_s"] == pytest.approx(int(rows) / batch["step_s"])
            assert batch["decode_s"] > 0
        assert found["weights_bytes"] > 0
        assert found["text_encoder_bytes"] > 0
        assert found["switch"]["out_s"] > 0


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU here: it would be measured")
def test_without_a_gpu_nothing_is_measured(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    with pytest.raises(SystemExit, match="no CUDA device here: nothing was measured"):
        run(monkeypatch, "--out", str(tmp_path))
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("name", sorted(SHAPES))
def test_the_cards_say_what_the_true_shapes_count(name: str) -> None:
    shape, card = SHAPES[name], SHAPES[name].card
    assert card.name == name
    with torch.device("meta"):
        denoiser, vae = build(shape.denoiser), build(shape.vae)
        text = [build_text_encoder(encoder) for encoder in shape.text]
    counted = [sum(p.numel() for p in module.parameters()) for module in (denoiser, vae, *text)]
    assert (card.denoiser_parameters, card.vae_parameters) == tuple(counted[:2])
    assert card.text_parameters == sum(counted[2:])
    assert live_values.latent_shape(shape)[0] == shape.vae[1]["latent_channels"]


def test_the_cards_activations_are_what_is_counted() -> None:
    shape = SHAPES["sana-1.6b"]
    assert live_values.row_values(shape) == shape.card.row_values
