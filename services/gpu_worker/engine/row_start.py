"""A task's row at its start: from noise, a state, an image or a checkpoint; latents on and off the device."""

from __future__ import annotations

import numpy as np
import torch

from services.gpu_worker.engine.family import Family
from services.gpu_worker.engine.rows import (
    FromCheckpoint,
    FromNoise,
    FromPicture,
    FromState,
    Latent,
    Row,
    Task,
    carried_noises,
    generator_of,
)
from shared.domain.errors import ModelError


def make_row(family: Family, task: Task) -> Row:
    """Build a task's row: encoded prompt, schedule, generator, and the latent at its start.

    Raises ModelError when the start does not fit the task (shape, K outside 0 … T−1).
    """
    generator = generator_of(task.seed)
    noise = family.initial_noise(task.size, generator)
    sampler = family.sampler_named(task.sampler) if task.sampler else family.sampler
    schedule = sampler.schedule(task.steps, (noise.shape[-2], noise.shape[-1]))
    latent, done, renew, previous = noise, 0, 0.0, None
    match task.start:
        case FromNoise():
            pass
        case FromState(latent=state, step=step, fresh_noise=fresh, noise_seed=seed):
            latent, done, renew = _on_device(state, family), step, fresh
            if fresh:
                generator = generator_of(seed)
        case FromPicture(pixels=pixels, step=step):
            latent, done = schedule.add_noise(family.encode_picture(pixels), noise, step), step
        case FromCheckpoint(latent=state, step=step, generator_state=saved, previous=history):
            latent, done = _on_device(state, family), step
            previous = None if history is None else _on_device(history, family)
            generator.set_state(torch.frombuffer(bytearray(saved), dtype=torch.uint8))
    if latent.shape != noise.shape:
        rule = f"the latent of a {task.size} task must have shape {tuple(noise.shape)} (got {tuple(latent.shape)})"
        raise ModelError(f"task {task.id!r} cannot start from {type(task.start).__name__}: {rule}")
    if not 0 <= done < task.steps or not 0 <= renew <= 1:
        rule = f"start step must be from 0 to {task.steps - 1}, fresh noise from 0 to 1 (got {done}, {renew})"
        raise ModelError(f"task {task.id!r}: {rule}")
    guided = task.guidance > 1 and not family.guidance_embedded
    return Row(
        task=task,
        sampler=sampler,
        schedule=schedule,
        latent=latent,
        done=done,
        started=done,
        encoding=family.encode_prompt(task.prompt),
        negative=family.encode_prompt(task.negative_prompt, negative=True) if guided else None,
        blank=family.encode_prompt("", negative=True) if done < task.prompted_from else None,
        generator=generator,
        renew=renew,
        noises=carried_noises(task, schedule),
        previous=previous,
    )


def _on_device(latent: Latent, family: Family) -> torch.Tensor:
    return torch.from_numpy(np.array(latent, dtype=np.float32)).to(family.device)


def off_device(latent: torch.Tensor) -> Latent:
    """Copy a latent off the device, so that later steps cannot change the copy."""
    return latent.float().cpu().numpy().copy()
