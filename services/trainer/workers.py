"""One training run in several single-thread processes on this machine, connected over loopback."""

from __future__ import annotations

import multiprocessing
import os
import socket
from pathlib import Path

import torch

from services.trainer.clip_pair import tokenizer_at
from services.trainer.evaluation.during_training import report
from services.trainer.export import autoencoder_at
from services.trainer.text_to_image.architecture import SHAPES
from services.trainer.text_to_image.denoiser_training import DenoiserPlan, Run, train_denoiser
from services.trainer.text_to_image.distillation import GuidedTeacher
from services.trainer.text_to_image.latents import Latents, must_be_there
from services.trainer.words import Words
from shared.models.card_lookup import BUNDLED


def train_in_workers(
    name: str,
    plan: DenoiserPlan,
    work: Path,
    workers: int,
    teacher: Path,
    start: Path | None = None,
    device: torch.device | None = None,
) -> None:
    """Train denoiser `name` with `workers` processes; this process is the first, and all end when one ends. A GPU
    always gets one process.

    `teacher` is the exported denoiser of a guided one; other denoisers ignore it. `start` holds exported weights to
    begin with if there is no checkpoint. Raise NotFoundError if there are no latents to train on.
    """
    must_be_there(work / "latents")
    if device is not None and device.type != "cpu":
        workers = 1
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    context = multiprocessing.get_context("spawn")
    others = [
        context.Process(
            target=train_as, args=(name, plan, work, rank, workers, port, teacher, start, device), daemon=True
        )
        for rank in range(1, workers)
    ]
    for process in others:
        process.start()
    train_as(name, plan, work, 0, workers, port, teacher, start, device)
    for process in others:
        process.join(30)


def train_as(
    name: str,
    plan: DenoiserPlan,
    work: Path,
    rank: int,
    workers: int,
    port: int,
    teacher: Path,
    start: Path | None,
    device: torch.device | None = None,
) -> None:
    """Run worker `rank` of `workers`; the first worker logs the scores of its images at the end."""
    torch.set_num_threads(1)
    if rank > 0:
        os.setsid()  # Linux divides processor time between sessions first, so each worker gets its own
    if workers > 1:
        os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
        torch.distributed.init_process_group(
            "gloo", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=workers
        )
    words = Words(tokenizer_at(work))
    learns_from = GuidedTeacher(teacher, words, device=device) if SHAPES[name].guided else None
    run = Run(name, plan, words, Latents(work / "latents", words), work, rank, workers, learns_from, start, device)
    vae = autoencoder_at(work) if rank == 0 else None
    train_denoiser(run, vae)
    if vae is not None and plan.judged:
        report(run, vae, work / "sprites", BUNDLED / "judge")
    if workers > 1:
        torch.distributed.destroy_process_group()
