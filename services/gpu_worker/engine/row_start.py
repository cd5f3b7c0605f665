"""A task's row at its start: from noise, a state, an image or a checkpoint; latents on and off the device."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import torch

from services.gpu_worker.engine.family import Family
from services.gpu_worker.engine.held import Held, HeldCells, HeldRegion
from services.gpu_worker.engine.patches.layout import fits
from services.gpu_worker.engine.rows import (
    FromCheckpoint,
    FromNoise,
    FromPicture,
    FromState,
    Kept,
    Latent,
    Region,
    Row,
    Task,
    carried_noises,
    generator_of,
)
from services.gpu_worker.engine.samplers import Schedule
from shared.domain.errors import ModelError
from shared.domain.regions import reuses_in_a_row
from shared.runtime.telemetry import log


def make_row(family: Family, task: Task) -> Row:
    """Build a task's row: encoded prompt, schedule, generator, and the latent at its start.

    Raises ModelError when the model does not generate as many frames, or when the start does not fit the task (shape,
    K outside 0 … T−1).
    """
    if not family.card.frames.allows(task.frames):
        raise ModelError(f"task {task.id!r}: frames must be {family.card.frames} (got {task.frames})")
    generator = generator_of(task.seed)
    noise = family.initial_noise(task.size, generator, task.frames)
    sampler = family.sampler_named(task.sampler) if task.sampler else family.sampler
    schedule = sampler.schedule(task.steps, tuple(noise.shape[1:]))
    latent, done, renew, previous = noise, 0, 0.0, None
    region: Region | None = None
    anew: npt.NDArray[np.bool_] | None = None
    match task.start:
        case FromNoise():
            pass
        case FromState(latent=state, step=step, fresh_noise=fresh, noise_seed=seed, region=region):
            latent, done, renew = _on_device(state, family), step, fresh
            if fresh:
                generator = generator_of(seed)
        case FromPicture(pixels=pixels, step=step):
            clean, done = family.encode_picture(pixels, task.frames), step
            latent = schedule.add_noise(clean, noise, step) if clean.shape == noise.shape else clean
        case FromCheckpoint(latent=state, step=step, generator_state=saved, previous=history) as lost:
            latent, done = _on_device(state, family), step
            previous = None if history is None else _on_device(history, family)
            generator.set_state(torch.frombuffer(bytearray(saved), dtype=torch.uint8))
            region, anew = lost.region, lost.anew
    if latent.shape != noise.shape:
        asked = f"{task.size} task" if task.frames == 1 else f"{task.size} task of {task.frames} frames"
        rule = f"the latent of a {asked} must have shape {tuple(noise.shape)} (got {tuple(latent.shape)})"
        raise ModelError(f"task {task.id!r} cannot start from {type(task.start).__name__}: {rule}")
    if not 0 <= done < task.steps or not 0 <= renew <= 1:
        rule = f"start step must be from 0 to {task.steps - 1}, fresh noise from 0 to 1 (got {done}, {renew})"
        raise ModelError(f"task {task.id!r}: {rule}")
    if (held := _held(family, task, noise)) is not None:
        latent = held.put(latent, schedule, done)
    elif region is not None and not renew:
        held = _held_region(family, region, anew, latent, schedule, done)
    guided = task.guidance > 1 and not family.guidance_embedded
    return Row(
        task=task,
        sampler=sampler,
        schedule=schedule,
        latent=latent,
        done=done,
        started=done,
        encoding=family.encode_prompt(task.prompt, owner=task.text_owner),
        negative=family.encode_prompt(task.negative_prompt, negative=True, owner=task.text_owner) if guided else None,
        blank=family.encode_prompt("", negative=True) if done < task.prompted_from else None,
        generator=generator,
        renew=renew,
        noises=carried_noises(task, schedule),
        windows=family.card.frames.windows(task.frames),
        previous=previous,
        held=held,
    )


def _held(family: Family, task: Task, noise: torch.Tensor) -> Held | HeldCells | None:
    """Return the frames or cells that the task holds. Raises ModelError where frames do not fit in front of generated
    frames, or a mask does not fit the latent."""
    if task.kept is not None:
        return _held_cells(family, task.kept, task, noise)
    if task.held is None:
        return None
    clean = family.encode_picture(task.held, len(task.held))
    first = noise[:, : clean.shape[1]]
    if (
        task.frames <= len(task.held)
        or noise.ndim != 4
        or first.shape != clean.shape
        or clean.shape[1] == noise.shape[1]
    ):
        rule = f"held frames must be fewer than the {task.frames} of the task, and of size {task.size}"
        raise ModelError(f"task {task.id!r}: {rule} (got {task.held.shape})")
    return Held(clean, first)


def _held_cells(family: Family, kept: Kept, task: Task, noise: torch.Tensor) -> HeldCells:
    """A cell is generated anew if one of its pixels is."""
    clean = family.encode_picture(kept.pixels)
    (height, width), (rows, columns) = kept.anew.shape, noise.shape[-2:]
    if noise.ndim != 3 or clean.shape != noise.shape or height % rows or width % columns:
        rule = f"a mask must be of an image of size {task.size} (got {kept.anew.shape})"
        raise ModelError(f"task {task.id!r}: {rule}")
    cells = kept.anew.reshape(rows, height // rows, columns, width // columns).any(axis=(1, 3))
    return HeldCells(clean, noise, torch.from_numpy(cells).to(noise.device))


def _held_region(
    family: Family,
    region: Region,
    anew: npt.NDArray[np.bool_] | None,
    latent: torch.Tensor,
    schedule: Schedule,
    done: int,
) -> HeldRegion | None:
    """Return the region of a start from `latent`; None where the family cuts no such image into patches, where the
    image has another size, where noise is renewed along the run, or where the region ends here.

    anew: cells that change, as the lost run found them; None: the first step finds them.
    """
    side, most = family.region_side, reuses_in_a_row(schedule.steps)
    if not side or not most or not done < region.until < schedule.steps or schedule.renewed.any():
        return None
    if not fits((latent.shape[-2], latent.shape[-1]), side):
        return None
    try:
        clean = family.encode_picture(region.pixels)
    except Exception as error:  # all cells are computed, as without regions
        log("gpu_worker").warning("an image is not encoded for its region", model=family.card.name, error=repr(error))
        return None
    if clean.shape != latent.shape:
        return None
    cells = torch.from_numpy(np.ones(latent.shape[1:], bool) if anew is None else anew).to(latent.device)
    return HeldRegion(clean, schedule.noise_of(latent, clean, done), cells, region.until, side, most)


def _on_device(latent: Latent, family: Family) -> torch.Tensor:
    return torch.from_numpy(np.array(latent, dtype=np.float32)).to(family.device)


def off_device(latent: torch.Tensor) -> Latent:
    """Copy a latent off the device, so that later steps cannot change the copy."""
    return latent.float().cpu().numpy().copy()
