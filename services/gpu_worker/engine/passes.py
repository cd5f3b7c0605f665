"""Forward passes and resolution of a task, as step times depend on them."""

from __future__ import annotations

from services.gpu_worker.engine.family import Family
from services.gpu_worker.engine.rows import Task
from shared.models.step_regression import Resolution


def resolution_of(task: Task) -> Resolution:
    """Return width, height and frames of the task's image or clip."""
    return task.size.width, task.size.height, task.frames


def passes_of(family: Family, task: Task) -> int:
    """Return the forward passes of one of the task's steps: 2 with guidance, unless it is an input of the denoiser."""
    return 2 if task.guidance > 1 and not family.guidance_embedded else 1
