"""`afterimage train run` on two ranks against the loop that trained the bundled models, with the same batches.

    python -m bench.recipe_loop               # about ten minutes on two cores
    python -m bench.recipe_loop --tiny        # a check of the script: eight iterations

Both fine-tune the bundled `small` on rendered scenes, without its teacher: same images, captions and order, AdamW with
the same constant rate, bf16 passes, frozen text encoder, averaged weights. The recipe's loop runs in one process. It
draws noise and timesteps by its own rule, most of them near the middle of the schedule, where `train run` draws uniform
ones. Both averages are judged on the same held-out scenes, with the same noise and uniform timesteps.
"""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

from bench.measuring.quiet import quiet
from bench.measuring.recording import command_line, machine, record, settings_of, table

if TYPE_CHECKING:
    from services.trainer.finetuning.data.training_data import TrainingData
    from services.trainer.finetuning.model.loaded import Loaded
    from services.trainer.finetuning.settings import RunSettings
    from services.trainer.text_to_image.latents import Batch
    from services.trainer.words import Words

MODEL, BETAS, DECAY, DROPOUT = "small", (0.9, 0.99), 0.01, 0.1
RUN = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2", "-m", "services", "train", "run"]


def settings_for(out: Path, asked: Any) -> RunSettings:
    from services.trainer.finetuning.settings import RunSettings

    keys: dict[str, Any] = {
        "model": f"bundled:{MODEL}",
        "out": str(out),
        "iterations": asked.iterations,
        "batch": asked.batch,
        "device": "cpu",
        "precision": "bf16",
        "data": {
            "path": "scenes", "scenes": asked.scenes, "sprites": str(asked.sprites.absolute()), "resolution": 64,
            "longest_ratio": 1.0, "dropout": DROPOUT,
        },
        "optimizer": {
            "rate": asked.rate, "schedule": "constant", "warmup": asked.warmup, "betas": BETAS, "weight_decay": DECAY,
        },
        "validation": {"every": asked.every, "samples_every": asked.iterations},
        "checkpoints": {"every": asked.iterations},
    }  # fmt: skip
    return RunSettings.model_validate(keys)


def run_ours(settings: RunSettings, folder: Path) -> list[float]:
    """Train with `afterimage train run` on two ranks; return the validation losses."""
    subprocess.run([*RUN, str(written(settings, folder))], check=True, env=os.environ | {"OMP_NUM_THREADS": "1"})
    rows = map(json.loads, (settings.out / "training" / "metrics.jsonl").read_text().splitlines())
    return [row["validation_loss"] for row in rows if "validation_loss" in row]


class Batches:
    """The run's batches, in its order, as the recipe's loop reads them."""

    def __init__(self, data: TrainingData, model: Loaded, words: Words) -> None:
        self._data, self._encoders, self.words, self._next = data, model.encoders, words, 0

    def sizes(self) -> tuple[tuple[int, int], ...]:
        size = next(iter(self._data.buckets))
        return ((size.width, size.height),)

    def batch(self, size: tuple[int, int], count: int, rng: random.Random, dropout: float = 0.0) -> Batch:
        """Return the next batch; `train run` has drawn its rows and its empty captions."""
        import torch

        from services.trainer.text_to_image.latents import Batch

        drawn = self._data.batch(self._next)
        assert len(drawn) == count
        self._next += 1
        latents, _ = self._encoders.encode(drawn)
        tokens = torch.tensor([self.words.ids(row.caption) for row in drawn.rows])
        return Batch(latents, tokens, torch.ones_like(latents[:, :1]))


def run_recipe(settings: RunSettings, folder: Path, every: int) -> list[float]:
    """Train with the recipe's loop in this process; return the validation losses, the first one before training."""
    import torch
    from transformers import CLIPTokenizer

    from services.trainer.finetuning.data.index import read_index, source_of
    from services.trainer.finetuning.data.training_data import TrainingData
    from services.trainer.finetuning.model.loaded import load
    from services.trainer.finetuning.stepper import SingleProcess
    from services.trainer.text_to_image.denoiser_training import DenoiserPlan, Run
    from services.trainer.words import Words

    model = load(settings, torch.device("cpu"), folder / "encoded")
    index = read_index(settings.out / "training")  # the images of the other run
    data = TrainingData(source_of(settings.data, settings.seed), index, settings, model.base.card)
    own = settings.optimizer
    plan = DenoiserPlan(
        steps=settings.iterations, rate=own.rate, optimizer="adamw", batch=settings.batch, average_every=1,
        other_sizes=0.0, decay_from=0.9999, warmup=own.warmup,
    )  # fmt: skip
    start = Path(model.base.card.folder)
    words = Words(CLIPTokenizer.from_pretrained(start / "tokenizer"))
    run = Run(MODEL, plan, words, Batches(data, model, words), folder, start=start)  # type: ignore[arg-type]  # what it reads of Latents
    run.model.text.requires_grad_(False)
    for optimizer in run.optimizers:
        for group in optimizer.param_groups:
            group["betas"] = BETAS
    run.average.updates, run.average.decay = 0, own.ema_decay
    judge = SingleProcess(model.denoiser, model.encoders, model.objective, autocast=model.autocast)
    held_out = data.validation()

    def judged() -> float:
        run.average.swap()
        model.denoiser.model.load_state_dict(run.model.unet.state_dict())
        run.average.swap()
        return sum(judge.evaluate(batch) * len(batch) for batch in held_out) / sum(map(len, held_out))

    losses = [judged()]
    for step in range(1, settings.iterations + 1):
        run.advance()
        if step % every == 0:
            losses.append(judged())
            print(f"recipe: {step} of {settings.iterations} iterations, validation loss {losses[-1]:.4g}", flush=True)
    return losses


def written(settings: RunSettings, folder: Path) -> Path:
    """Write the file that `train run` reads; JSON's numbers, texts and lists are TOML's."""
    keys = settings.model_dump(mode="json", exclude_unset=True)
    lines = [f"{name} = {json.dumps(value)}" for name, value in keys.items() if not isinstance(value, dict)]
    for name, inner in keys.items():
        if isinstance(inner, dict):
            lines += [f"[{name}]", *(f"{key} = {json.dumps(value)}" for key, value in inner.items())]
    path = folder / "job.toml"
    path.write_text("\n".join(lines) + "\n")
    return path


def main(given: Sequence[str] | None = None) -> None:
    parser = command_line(__doc__)
    parser.add_argument("--iterations", type=int, default=200)
    parser.add_argument("--every", type=int, default=50, help="iterations between two validation losses")
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--scenes", type=int, default=1000)
    parser.add_argument("--rate", type=float, default=5e-5)
    parser.add_argument("--warmup", type=int, default=20)
    parser.add_argument("--sprites", type=Path, default=Path("out/train/sprites"), help="folder of the objects")
    parser.add_argument("--tiny", action="store_true", help="eight iterations of four scenes")
    asked = parser.parse_args(given)
    if asked.tiny:
        asked.iterations, asked.every, asked.batch, asked.scenes, asked.warmup = 8, 4, 4, 40, 1
    quiet()
    on = machine()
    import torch

    with TemporaryDirectory() as work:
        settings = settings_for(Path(work, "tuned"), asked)
        ours = run_ours(settings, Path(work))
        torch.set_num_threads(2)
        before, *recipe = run_recipe(settings, Path(work), asked.every)
    steps = [asked.every * (number + 1) for number in range(len(recipe))]
    rows = [[0, before, before, 0.0], *([at, a, b, a / b - 1] for at, a, b in zip(steps, ours, recipe, strict=True))]
    print(table(["iterations", "train run, two ranks", "recipe's loop", "difference"], rows))
    figures = {"iterations": [0, *steps], "ours": [before, *ours], "recipe": [before, *recipe]}
    record("recipe_loop", figures, settings_of(asked), on=on, folder=asked.out)


if __name__ == "__main__":
    main()
