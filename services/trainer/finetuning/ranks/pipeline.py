"""The parts of a run for a pipeline: its denoiser, and its encoders where their outputs are not kept on disk."""

from __future__ import annotations

from collections.abc import Mapping

import torch

from services.trainer.finetuning.batches import Batch
from services.trainer.finetuning.loss import Noised, loss_sum
from services.trainer.finetuning.model.encoders import CheckpointEncoders
from services.trainer.finetuning.model.loaded import Loaded
from services.trainer.pipeline.runtime.checkpoint_parts import Checkpoint
from services.trainer.pipeline.runtime.parts import Fed, TrainedPart, Training


def new_training(model: Loaded) -> Training:
    """Return the parts of a loaded checkpoint. With kept outputs of encoders nothing is frozen: stages read them.

    Raises ModelError for a denoiser or an encoder that cannot be cut.
    """
    model.denoiser.model.disable_gradient_checkpointing()  # the executor does it, layer by layer
    plain = CheckpointEncoders(model.base.pipeline, model.base.denoiser)
    checkpoint = Checkpoint(
        model.base.pipeline,
        model.denoiser.model,
        model.objective,
        loss_sum,
        sizes=lambda rows: plain.sizes(rows.rows, rows.size),
        self_conditioned=model.denoiser.self_conditioned,
    )
    training = checkpoint.training()
    return training if isinstance(model.encoders, CheckpointEncoders) else _reading(model, training.backbones[0])


def _reading(model: Loaded, trained: TrainedPart) -> Training:
    """Return the job whose stages get a batch's latents and conditions from `model.encoders`."""

    def feed(rows: Batch, _: Mapping[str, torch.Tensor]) -> Fed:
        latents, conditions = model.encoders.encode(rows)
        at = model.objective.noised(latents, [row.seed for row in rows.rows])
        return Fed({"sample": at.noisy, "timestep": at.timesteps, **conditions}, (at, rows.whole))

    def loss(prediction: torch.Tensor, target: tuple[Noised, int]) -> torch.Tensor:
        at, whole = target
        return loss_sum(prediction, at) / whole

    def estimate(prediction: torch.Tensor, target: tuple[Noised, int]) -> torch.Tensor:
        return model.objective.estimate(prediction, target[0])

    own = estimate if trained.self_conditioned else None
    return Training((TrainedPart(trained.chain, feed, loss, estimate=own),))
