"""A student begins with its teacher's upper levels and learns what the teacher says with guidance."""

from __future__ import annotations

import random
from dataclasses import replace
from pathlib import Path

import torch
from diffusers import UNet2DConditionModel

from services.trainer.clip_pair import tokenizer_at
from services.trainer.export import export_denoiser
from services.trainer.text_to_image.denoiser_training import DenoiserPlan, Run
from services.trainer.text_to_image.distillation import GuidedTeacher
from services.trainer.text_to_image.latents import Latents
from services.trainer.words import Words

PLAN = DenoiserPlan(seconds=1e9, steps=40, batch=4, average_every=1, other_sizes=0.0, warmup=5, rate=5e-3)


def student(work: Path, teacher: Path, plan: DenoiserPlan = PLAN) -> Run:
    words = Words(tokenizer_at(work))
    return Run("small", plan, words, Latents(work / "latents", words), work, teacher=GuidedTeacher(teacher, words))


def test_a_student_begins_with_what_it_shares(work: Path, teacher: Path) -> None:
    begun = student(work, teacher).model
    theirs = UNet2DConditionModel.from_pretrained(teacher / "unet", torch_dtype=torch.float32).state_dict()
    ours = begun.unet.state_dict()
    same = ("conv_in.weight", "down_blocks.1.resnets.0.conv1.weight", "add_embedding.proj.weight")
    for name in same:
        assert torch.equal(ours[name], theirs[name]), name
    # the student has two levels of three: its way up begins with the teacher's second block
    attention = "attentions.1.transformer_blocks.0.attn2.to_k.weight"
    assert torch.equal(ours[f"up_blocks.0.{attention}"], theirs[f"up_blocks.1.{attention}"])
    shape = ours["up_blocks.0.resnets.0.conv1.weight"].shape
    assert shape != theirs["up_blocks.1.resnets.0.conv1.weight"].shape  # what does not fit is not taken over
    assert not any(parameter.requires_grad for parameter in begun.text.parameters())


def test_a_student_that_learned_before_reads_with_its_new_teachers_text_encoder(
    work: Path, teacher: Path, tmp_path: Path
) -> None:
    first = student(work, teacher)
    first.save()
    before = tmp_path / "small"
    export_denoiser(work, "small", before)
    first.path.unlink()
    words = Words(tokenizer_at(work))
    other = GuidedTeacher(teacher, words)
    with torch.no_grad():
        next(other._text.parameters()).add_(1.0)  # another teacher's
    data = Latents(work / "latents", words)
    model = Run("small", PLAN, words, data, work, teacher=other, start=before).model
    assert torch.equal(next(model.text.parameters()), next(other._text.parameters()))
    learned, kept = first.model.unet.conv_out.weight, model.unet.conv_out.weight
    torch.testing.assert_close(kept, learned, atol=1e-3, rtol=1e-2)  # exported in half precision


def test_the_teacher_speaks_with_guidance(work: Path, teacher: Path) -> None:
    words = Words(tokenizer_at(work))
    noisy, timesteps = torch.randn(2, 4, 16, 16), torch.tensor([900, 300])
    tokens = torch.tensor([words.ids("a fox in the snow"), words.ids("two red hats")])
    model = student(work, teacher).model
    states = model.text(input_ids=tokens).last_hidden_state
    nothing = model.text(input_ids=torch.tensor([words.ids("")])).last_hidden_state.expand(2, -1, -1)
    unet = UNet2DConditionModel.from_pretrained(teacher / "unet", torch_dtype=torch.float32)
    with torch.no_grad():
        told = unet(noisy, timesteps, encoder_hidden_states=states).sample
        plain = unet(noisy, timesteps, encoder_hidden_states=nothing).sample
    found = GuidedTeacher(teacher, words, guidance=3.0).velocity(noisy, timesteps, states)
    torch.testing.assert_close(found, plain + 3.0 * (told - plain), atol=1e-4, rtol=1e-4)
    assert not torch.allclose(found, told, atol=1e-3)


def test_the_loss_is_measured_against_the_teacher(work: Path, teacher: Path) -> None:
    """One that is the teacher itself has nothing to learn from it, and much from the scenes."""
    words = Words(tokenizer_at(work))
    data = Latents(work / "latents", words)
    same = Run("large", PLAN, words, data, work).model  # the checkpoint that the teacher was exported from
    batch = data.batch((64, 64), 8, random.Random(0))
    alone = same.loss(batch, torch.Generator().manual_seed(0))[1]
    same.teacher = GuidedTeacher(teacher, words, guidance=1.0)
    taught = same.loss(batch, torch.Generator().manual_seed(0))[1]
    assert taught < 1e-3 < 0.5 < alone


def test_a_killed_lesson_goes_on(work: Path, teacher: Path) -> None:
    plan = replace(PLAN, steps=4)
    whole = student(work, teacher, plan)
    for _ in range(4):
        whole.advance()
    first = student(work, teacher, plan)
    first.advance()
    first.save()
    resumed = student(work, teacher, plan)
    assert resumed.step == 1
    for _ in range(3):
        resumed.advance()
    for name, tensor in whole.model.state_dict().items():
        assert torch.equal(tensor, resumed.model.state_dict()[name]), name
