"""A worker with reuse between steps names it in plans and states, and resumes only runs with the same reuse."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np

from services.gpu_worker.engine.rows import generator_of
from services.gpu_worker.jobs.codecs import encode_checkpoint
from shared.models import find_card
from shared.models.step_reuse import FILE, StepReuse, reuse_to_json
from tests.unit.gpu_worker.worker import STEPS, running_worker


async def test_plan_and_compatibility_name_the_reuse_and_so_do_checkpoints(tiny_folder: Path, tmp_path: Path) -> None:
    folder = tmp_path / "model"
    shutil.copytree(tiny_folder / "large", folder)
    weights = find_card(str(folder)).weights_hash
    forest = StepReuse(weights, "groups", 0, 2, np.array([]), np.full((7, 1, 1), np.inf))
    (folder / FILE).write_text(json.dumps(reuse_to_json(forest)))
    changes = {"step_reuse": "auto", "checkpoint_every_steps": 3, "lease_s": 0.3}
    async with running_worker(tmp_path / "data", str(folder), **changes) as bench:
        done = await bench.draw()
        assert done.result is not None, done.error
        assert done.result.compat is not None
        assert done.plan.step_reuse == done.result.compat.step_reuse == forest.key

        latent, state = np.zeros((4, 16, 16), np.float32), generator_of(0).get_state().numpy().tobytes()
        for key, steps in (("other", STEPS), (forest.key, STEPS - 3)):
            job = await bench.accept()
            assert await bench.jobs.claim(job.id, "dead", 0.01)
            plan = replace(job.plan, weights_hash=weights, step_reuse=key)
            await bench.blobs.put(f"checkpoints/{job.id}", encode_checkpoint(latent, 3, state, plan))
            assert await bench.jobs.checkpoint(job.id, 1, f"checkpoints/{job.id}", 3)
            await bench.send(job)
            resumed = await bench.final(job.id)
            assert resumed.result is not None, resumed.error
            assert resumed.result.steps_run == steps
