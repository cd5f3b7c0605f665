"""What a training has reached is measured on its averaged weights, in pictures of held-out scenes."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch

from services.trainer.clip_pair import tokenizer_at
from services.trainer.evaluation.during_training import evaluate
from services.trainer.export import trained_autoencoder
from services.trainer.judging.classifier import Reading
from services.trainer.judging.scenes import balanced_scenes
from services.trainer.rendering.renderer import Renderer
from services.trainer.text_to_image.denoiser_training import DenoiserPlan, Run
from services.trainer.text_to_image.latents import Latents
from services.trainer.words import Words
from shared.models.scenes import VALUES


def test_the_averaged_weights_are_judged_and_the_live_ones_come_back(work: Path, renderer: Renderer) -> None:
    seen: list[npt.NDArray[np.uint8]] = []

    def all_first(pictures: npt.NDArray[np.uint8]) -> Reading:
        seen.append(pictures)
        words = {name: [str(values[0])] * len(pictures) for name, values in VALUES.items()}
        return Reading(words, [1.0] * len(pictures))

    words = Words(tokenizer_at(work))
    run = Run("small", DenoiserPlan(judged=2), words, Latents(work / "latents", words), work)
    vae = trained_autoencoder(work)
    found = evaluate(run, vae, renderer, all_first, 2, steps=2)
    assert found["pictures"] == 2
    assert found["object_by_net"] == np.mean([s.object == VALUES["object"][0] for s in balanced_scenes(2, seed=100)])
    assert seen[-1].shape == (2, 64, 64, 3)
    drawn = seen[-1]
    with torch.no_grad():
        for live in run.model.unet.parameters():
            live.mul_(1.5)  # away from what was averaged
    kept = [p.clone() for p in run.model.unet.parameters()]
    evaluate(run, vae, renderer, all_first, 2, steps=2)
    assert np.array_equal(seen[-1], drawn)
    assert all(torch.equal(a, b) for a, b in zip(run.model.unet.parameters(), kept, strict=True))
