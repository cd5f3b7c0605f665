"""The motion model: its tokens, its clips, its first weights, a training that resumes, and the exported folder."""

from __future__ import annotations

import random
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from diffusers import AnimateDiffPipeline, UNet2DConditionModel
from transformers import CLIPTokenizer

from services.gpu_worker.engine.engine import Engine
from services.gpu_worker.engine.events import Finished
from services.gpu_worker.engine.rows import Task
from services.gpu_worker.families import load_family
from services.trainer.export import shipped_autoencoder, through
from services.trainer.judging.classifier import load_reader
from services.trainer.judging.motion import judged_clip, moving_scenes, nearest_rendering
from services.trainer.rendering.clips import clip_boxes, render_clip
from services.trainer.rendering.renderer import Renderer
from services.trainer.text_to_video import latents
from services.trainer.text_to_video.denoiser import clip_words, sample_clips
from services.trainer.text_to_video.export import CARD, export_motion, trained_motion
from services.trainer.text_to_video.latents import COUNT, ClipLatents, clips_in, moving_of
from services.trainer.text_to_video.training import MotionPlan, train_motion
from services.trainer.training import runs
from services.trainer.words import Words
from shared.domain.errors import NotFoundError
from shared.models.card_lookup import BUNDLED, find_card, read_card
from shared.models.motion_unet import TextMotionUNet
from shared.models.scenes import (
    BACKGROUND_MOTIONS,
    CLIP_WORDINGS,
    MOTIONS,
    WORDINGS,
    Scene,
    caption,
    clip_caption,
    motion_words,
    random_moving_scene,
    random_scene,
    with_motion,
)
from shared.runtime.settings import Settings

SMALL = BUNDLED / "small"


def test_new_words_are_single_tokens_and_old_captions_keep_theirs() -> None:
    before, after = CLIPTokenizer.from_pretrained(SMALL / "tokenizer"), clip_words(SMALL)
    assert all(len(after.tokenize(word)) == 1 for word in motion_words())
    rng = random.Random(1)
    for _ in range(200):
        text = caption(random_scene(rng), rng.randrange(WORDINGS))
        assert before(text).input_ids == after(text).input_ids


def test_a_caption_names_motion_and_drift_and_nothing_that_the_motion_decides() -> None:
    foxes = with_motion(Scene("fox", count=2, colour="red", size="large", position="right"), "left", "drift")
    assert clip_caption(foxes) == "two red foxes move to the left in a meadow over a drifting background"
    for wording in range(CLIP_WORDINGS):
        assert "left" in clip_caption(foxes, wording)
        assert "right" not in clip_caption(foxes, wording)


def test_motions_move_objects_and_drift_moves_the_background() -> None:
    def boxes(motion: str) -> list[tuple[int, int, int]]:
        found = clip_boxes(with_motion(Scene("fox"), motion), 64, 64)
        return [(x0, y0, x1 - x0) for ((x0, y0, x1, _),) in found]

    ways = {motion: boxes(motion) for motion in MOTIONS}
    assert len(set(ways["stay"])) == 1
    assert ways["left"] == ways["right"][::-1]
    assert ways["left"][0][0] > ways["left"][-1][0]
    assert ways["up"][0][1] > ways["up"][-1][1]
    assert ways["down"][0][1] < ways["down"][-1][1]
    assert ways["grow"][0][2] < ways["grow"][-1][2]
    assert ways["shrink"][0][2] > ways["shrink"][-1][2]
    assert ways["hop"][0] == ways["hop"][-1]
    assert min(y for _, y, _ in ways["hop"]) < ways["hop"][0][1]


@pytest.mark.parametrize(("motion", "drift"), list(zip(MOTIONS, BACKGROUND_MOTIONS * 4, strict=True)))
def test_the_judge_reads_real_clips(motion: str, drift: str, renderer: Renderer) -> None:
    moving = with_motion(replace(moving_scenes(8)[1].scene, style="3d"), motion, drift)
    clip = through(shipped_autoencoder())(render_clip(renderer, moving).pixels)
    verdict = judged_clip(clip, moving, renderer, load_reader(BUNDLED / "clip-judge"))
    assert verdict.right == dict.fromkeys(verdict.right, True)
    if motion in ("left", "up", "grow"):
        backwards, _ = nearest_rendering(clip[::-1], moving, renderer)
        assert backwards.motion == {"left": "right", "up": "down", "grow": "shrink"}[motion]


def test_the_shipped_model_follows_left_and_right() -> None:
    card = find_card(Settings.model_fields["video"].default)
    assert (card.words, card.frames, card.role) == (CARD.words, CARD.frames, CARD.role)
    engine = Engine({card.name: load_family(card, device="cpu")}, max_rows=32)
    for way in ("left", "right"):
        prompt = f"a red fox moves to the {way} in the snow"
        engine.submit(Task(way, card.name, prompt, card.default_size, 4, card.default_guidance, 7, 16))
    clips: dict[str, np.ndarray] = {}
    while not engine.idle:
        clips |= {event.id: event.pixels for event in engine.step() if isinstance(event, Finished)}

    def place(frame: np.ndarray) -> float:
        red = np.clip(frame[..., 0].astype(float) - frame[..., 1:].max(axis=-1), 0, None).sum(axis=0)
        return float((red * np.arange(len(red))).sum() / red.sum())

    moved = {way: place(clip[-1]) - place(clip[0]) for way, clip in clips.items()}
    assert moved["left"] < -15 < 15 < moved["right"]


def test_the_first_weights_generate_what_the_image_model_generates() -> None:
    unet = UNet2DConditionModel.from_pretrained(SMALL / "unet", torch_dtype=torch.float32)
    motion = TextMotionUNet.around(unet)
    generator = torch.Generator().manual_seed(1)
    noise, states = torch.randn(2, 4, 3, 16, 16, generator=generator), torch.randn(2, 32, 128, generator=generator)
    timesteps = torch.tensor([300, 700])
    with torch.no_grad():
        found = motion(noise, timesteps, states.repeat_interleave(3, dim=0)).sample
        frames = [unet(noise[:, :, frame], timesteps, states).sample for frame in range(3)]
    assert torch.allclose(found, torch.stack(frames, dim=2), atol=1e-4)


@pytest.fixture
def clips(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A training folder with clips of random latents, of half the side."""
    monkeypatch.setattr(latents, "SIDE", 32)
    rng, noise, folder = random.Random(2), np.random.default_rng(2), tmp_path / "clips"
    folder.mkdir()
    np.save(folder / "clips-0.npy", noise.standard_normal((6, 16, 4, 8, 8)).astype(np.float16))
    rows = [[*random_moving_scene(rng).labels().values(), 3] for _ in range(6)]
    np.save(folder / "clips-0-labels.npy", np.array(rows, dtype=np.uint8))
    (folder / "clips-0.json").write_text('{"count": 6}')
    return tmp_path


def test_training_continues_and_its_export_generates_clips(clips: Path, tmp_path: Path) -> None:
    assert clips_in(clips / "clips", 0) == 6 < COUNT
    plan = MotionPlan(steps=2, batch=1)
    train_motion(plan, SMALL, clips)
    whole = runs.load_checkpoint(clips / "motion.pt")
    (clips / "motion.pt").unlink()
    train_motion(replace(plan, seconds=1e-9), SMALL, clips)  # no step: saves the first weights
    for steps in (1, 2):
        train_motion(replace(plan, steps=steps), SMALL, clips)
    parts = runs.load_checkpoint(clips / "motion.pt")
    assert whole is not None
    assert parts is not None
    assert parts["step"] == whole["step"] == 2
    assert all(torch.equal(one, whole["model"][name]) for name, one in parts["model"].items())
    target = tmp_path / "models" / "motion"
    export_motion(clips, SMALL, target)
    card = read_card(target / "card.json")
    assert (card.role, card.family, card.frames.default, card.frames.most) == ("video", "animatediff", 16, 64)
    pipeline = AnimateDiffPipeline.from_pretrained(target, torch_dtype=torch.float32)
    prompt, seed = "two red foxes move to the left", torch.Generator().manual_seed(7)
    found = pipeline(
        prompt, num_frames=16, width=32, height=32, num_inference_steps=2, guidance_scale=2.5, generator=seed,
        output_type="latent",
    ).frames  # fmt: skip
    words = Words(clip_words(SMALL))
    expected = sample_clips(trained_motion(clips, SMALL), words, [prompt], [7], steps=2, guidance=2.5, side=8)
    assert torch.allclose(found, expected, atol=0.05)  # the export is in fp16


def test_clips_are_needed_and_labels_name_their_scene(tmp_path: Path) -> None:
    with pytest.raises(NotFoundError, match=r"no clips in .*: make them first"):
        ClipLatents(tmp_path, words=None)  # type: ignore[arg-type]  # the folder is checked first
    for motion in MOTIONS:
        moving = with_motion(Scene("duck", count=3), motion, BACKGROUND_MOTIONS[1])
        assert moving_of([*moving.labels().values(), 5]) == (moving, 5)
