"""Write a fine-tuned model as a diffusers folder with a card: the base's files, and the trained denoiser."""

from __future__ import annotations

import json
import os
import shutil
import struct
from dataclasses import replace
from pathlib import Path

import torch

from services.trainer.finetuning.model.checkpoint import Base
from services.trainer.finetuning.model.denoiser import CheckpointDenoiser
from shared.models.card import ModelCard
from shared.models.card_lookup import write_card
from shared.models.checkpoint import INDEX, components, weights_of

FORMATS = {"F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}


def export_model(base: Base, denoiser: CheckpointDenoiser, out: Path, about: str) -> ModelCard:
    """Write the model into `out` beside the run's folder, and return its card. Adapters are merged.

    The denoiser's weights have the number format of the base's file; every other component is a copy of the base's.
    model_index.json comes last, so a folder that was cut short is not taken for a model.
    """
    fresh = out / "export.partial"
    shutil.rmtree(fresh, ignore_errors=True)
    fresh.mkdir(parents=True)
    index = json.loads((base.folder / INDEX).read_bytes()) | {"_name_or_path": base.card.name}
    model = denoiser.merge(_original(base, denoiser)).to("cpu", _format(base.folder / base.denoiser_name))
    model.save_pretrained(fresh / base.denoiser_name, safe_serialization=True)
    for part in components(base.folder):
        if part != base.denoiser_name:
            _copy(base.folder / part, fresh / part)
    (out / INDEX).unlink(missing_ok=True)
    for folder in sorted(fresh.iterdir()):
        shutil.rmtree(out / folder.name, ignore_errors=True)
        os.replace(folder, out / folder.name)
    fresh.rmdir()
    for weights in out.glob("*/*.safetensors"):
        weights.chmod(0o644)  # safetensors writes files that only their owner can read
    card = _card(base.card, out, about)
    write_card(card, out)
    partial = out / "model_index.partial"
    partial.write_text(json.dumps(index, indent=2) + "\n", encoding="utf-8")
    os.replace(partial, out / INDEX)
    return card


def _original(base: Base, denoiser: CheckpointDenoiser) -> torch.nn.Module | None:
    """Return the checkpoint's denoiser in float32 where training holds rounded weights of it; else None."""
    if not denoiser.rounded:
        return None
    folder = base.folder / base.denoiser_name
    found: torch.nn.Module = type(denoiser.model).from_pretrained(
        folder, torch_dtype=torch.float32, use_safetensors=True, local_files_only=True
    )
    return found


def write_adapter(base: Base, denoiser: CheckpointDenoiser, folder: Path) -> None:
    """Write the adapters alone, as diffusers' `load_lora_weights` reads them."""
    from peft import get_peft_model_state_dict

    layers = {f"{base.denoiser_name}_lora_layers": get_peft_model_state_dict(denoiser.model)}
    base.pipeline.save_lora_weights(folder, safe_serialization=True, **layers)


def _card(base: ModelCard, out: Path, about: str) -> ModelCard:
    """Return the base's card under the folder's name, without what was measured on the base's weights."""
    return replace(base, name=out.resolve().name.lower(), path=str(out), about=about, auto_steps=(), k_table="")


def _copy(source: Path, target: Path) -> None:
    """Copy a component's files, without variants of its weights."""
    kept = {path.name for path in weights_of(source)}

    def left_out(folder: str, names: list[str]) -> list[str]:
        weights = (".safetensors", ".bin", ".ckpt", ".msgpack")
        return [name for name in names if name.endswith(weights) and name not in kept]

    shutil.copytree(source, target, ignore=left_out)


def _format(part: Path) -> torch.dtype:
    """Return the number format of most weights of a component, from the header of its first file."""
    path = weights_of(part)[0]
    with path.open("rb") as file:
        (length,) = struct.unpack("<Q", file.read(8))
        header = json.loads(file.read(length))
    formats = [entry["dtype"] for name, entry in header.items() if name != "__metadata__"]
    return FORMATS.get(max(set(formats), key=formats.count), torch.float32)
