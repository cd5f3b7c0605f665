"""Sprites where a machine has them, and a training folder with everything untrained in it."""

from __future__ import annotations

import json
import os
import random
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch

from services.trainer.clip_pair import tokenizer_at
from services.trainer.export import export_denoiser
from services.trainer.rendering.renderer import LAYOUTS, Renderer
from services.trainer.rendering.sprites import sprites_cached
from services.trainer.text_to_image.autoencoder import new_autoencoder
from services.trainer.text_to_image.denoiser_training import DenoiserPlan, Run
from services.trainer.text_to_image.latents import Latents
from services.trainer.training import runs
from services.trainer.words import Words
from shared.models.scenes import held_out, random_scene

SPRITES = Path(os.environ.get("AFTERIMAGE_SPRITES", "out/train/sprites"))


@pytest.fixture(scope="session")
def renderer() -> Renderer:
    if not sprites_cached(SPRITES):
        pytest.skip(f"no sprites in {SPRITES}: they come from a package registry when training or judging runs")
    return Renderer(SPRITES)


@pytest.fixture(scope="session")
def _untrained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of `work`, made once."""
    folder = tmp_path_factory.mktemp("untrained")
    torch.manual_seed(0)
    tokenizer_at(folder)
    runs.save_checkpoint(folder / "vae.pt", {"average": runs.Average([new_autoencoder()]).state_dict()})
    rng, noise = random.Random(1), np.random.default_rng(1)
    (folder / "latents").mkdir()
    for width, height in ((64, 64), (96, 64)):
        stem = folder / "latents" / f"{width}x{height}-0"
        scenes = [scene for scene in (random_scene(rng) for _ in range(60)) if not held_out(scene)][:24]
        np.save(f"{stem}.npy", noise.standard_normal((24, 4, height // 4, width // 4)).astype(np.float16))
        rows = [[*scene.labels().values(), rng.randrange(LAYOUTS)] for scene in scenes]
        np.save(f"{stem}-labels.npy", np.array(rows, dtype=np.uint8))
        Path(f"{stem}.json").write_text(json.dumps({"width": width, "height": height, "count": 24}))
    return folder


@pytest.fixture(scope="session")
def _taught(_untrained: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of `work` with what `teacher` adds, made once."""
    folder = tmp_path_factory.mktemp("taught")
    shutil.copytree(_untrained, folder, dirs_exist_ok=True)
    words = Words(tokenizer_at(folder))
    Run("large", DenoiserPlan(), words, Latents(folder / "latents", words), folder).save()
    export_denoiser(folder, "large", folder / "exported" / "large")
    return folder


@pytest.fixture
def work(_untrained: Path, tmp_path: Path) -> Path:
    """A training folder: a tokenizer, an untrained autoencoder, and random latents of two sizes."""
    torch.manual_seed(0)
    return Path(shutil.copytree(_untrained, tmp_path, dirs_exist_ok=True))


@pytest.fixture
def teacher(_taught: Path, work: Path) -> Path:
    """An untrained `large`, exported; its checkpoint is in `work`."""
    shutil.copytree(_taught, work, dirs_exist_ok=True)
    return work / "exported" / "large"
