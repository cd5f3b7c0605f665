"""Inspection of a checkpoint in diffusers' layout without loading it: family, shapes, missing files."""

from __future__ import annotations

import json
import struct
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any

from shared.domain.errors import ModelError
from shared.domain.types import Size

INDEX = "model_index.json"


@dataclass(frozen=True, slots=True)
class Kind:
    """Properties that a pipeline class decides."""

    family: str
    """File of services/gpu_worker/families."""
    sampler: str
    denoiser: str
    """Folder of the denoiser."""
    default_steps: int
    default_guidance: float
    """Default steps and guidance of the pipeline itself."""
    cells_per_token: int = 1
    """Latent cells per side of a token: sizes are multiples of a token's pixels."""
    frames: tuple[int, int] = (1, 1)
    """Default and largest number of frames."""
    frames_multiple_of: int = 1
    """See FrameRule.multiple_of."""
    size: Size | None = None
    """Default size of the pipeline itself, where the denoiser's configuration states none."""
    fps: float = 8.0
    """See FrameRule.fps."""


KINDS = {
    "StableDiffusionPipeline": Kind("unet", "ddim", "unet", 50, 7.5),
    "StableDiffusionXLPipeline": Kind("unet", "ddim", "unet", 50, 5.0),
    "StableDiffusion3Pipeline": Kind("sd3", "flow_match_euler", "transformer", 28, 7.0, 2),
    "FluxPipeline": Kind("flux", "flow_match_euler_even", "transformer", 28, 3.5, 2),
    "SanaPipeline": Kind("sana", "flow_match_euler", "transformer", 20, 4.5),
    "AnimateDiffPipeline": Kind("animatediff", "ddim", "unet", 50, 7.5, frames=(16, 64)),
    "TextToVideoSDPipeline": Kind("text_to_video", "ddim", "unet", 50, 9.0, frames=(16, 64)),
    "WanPipeline": Kind("wan", "flow_match_euler", "transformer", 50, 5.0, 2, (81, 81), 4, Size(832, 480), 16),
    "LTXPipeline": Kind("ltx", "flow_match_euler_even", "transformer", 50, 3.0, 1, (161, 257), 8, Size(704, 512), 25),
    "CogVideoXPipeline": Kind("cogvideox", "ddim", "transformer", 50, 6.0, 2, (49, 49), 8, Size(720, 480)),
}
"""Kinds by diffusers' class name in a checkpoint's model_index.json."""

POSITIONS = "motion_max_seq_length"
"""Key of a configuration: frames that temporal attention tells apart."""
STRIDE = 4
"""Frames between the starts of two windows, as in diffusers' enable_free_noise."""

NOT_WEIGHTS = ("Scheduler", "Tokenizer", "TokenizerFast", "Processor", "FeatureExtractor", "ProcessorPil")
"""Suffixes of component classes that have a configuration and no weights."""


def kind_of(folder: Path) -> Kind | None:
    """Return the kind of a checkpoint; None if its model_index.json names no class.

    Raise ModelError for a class that no family runs.
    """
    name = read_json(folder / INDEX).get("_class_name")
    if name is None:
        return None
    if name not in KINDS:
        raise ModelError(f"{folder / INDEX}: _class_name must be one of {', '.join(KINDS)} (got {name!r})")
    return KINDS[name]


def said_by(folder: Path) -> dict[str, Any]:
    """Return the fields of a card that the configurations in `folder` decide."""
    found: dict[str, Any] = {}
    kind = kind_of(folder)
    vae = read_json(folder / "vae" / "config.json")
    if scale := _vae_scale(vae):
        found["vae_scale"] = scale
    if channels := vae.get("latent_channels") or vae.get("z_dim"):
        found["latent_channels"] = int(channels)
    if kind is None:
        return found
    found |= {"family": kind.family, "sampler": kind.sampler}
    found |= {"default_steps": kind.default_steps, "default_guidance": kind.default_guidance}
    if kind.frames != (1, 1):
        found["frames"] = _frames(folder, kind)
    # the denoiser's sample_size is in latent cells; FluxPipeline uses 128 if the configuration has none
    config = read_json(folder / kind.denoiser / "config.json")
    side = config.get("sample_size", 128 if kind.family == "flux" else None)
    width, height = config.get("sample_width", side), config.get("sample_height", side)
    if isinstance(width, int) and isinstance(height, int) and "vae_scale" in found:
        found["default_size"] = Size(width * found["vae_scale"], height * found["vae_scale"])
    elif kind.size:
        found["default_size"] = kind.size
    if {"default_size", "vae_scale"} <= found.keys() and kind.family != "unet":
        found["sizes"] = {"multiple_of": found["vae_scale"] * kind.cells_per_token}
    return found


def _vae_scale(vae: dict[str, Any]) -> int:
    """Return the VAE's pixels per latent cell, each way; 0 if its configuration does not state them."""
    if stated := vae.get("scale_factor_spatial") or vae.get("spatial_compression_ratio"):
        return int(stated)
    if halved := vae.get("spatio_temporal_scaling"):
        return int(vae.get("patch_size", 1)) * 2 ** sum(halved)
    # every block of a VAE but the last halves the image
    blocks = vae.get("block_out_channels") or vae.get("encoder_block_out_channels") or vae.get("dim_mult") or []
    return 2 ** (len(blocks) - 1) if blocks else 0


def _frames_per_latent(vae: dict[str, Any]) -> int:
    """Return the VAE's frames of pixels per latent frame after the first, as its configuration states them."""
    if stated := vae.get("scale_factor_temporal") or vae.get("temporal_compression_ratio"):
        return int(stated)
    return int(vae.get("patch_size_t") or 1) * 2 ** sum(vae.get("spatio_temporal_scaling") or [])


def _frames(folder: Path, kind: Kind) -> dict[str, float]:
    """Return a clip model's frame rule. Where temporal attention has a limited number of positions, longer clips run by
    windows."""
    default, most = kind.frames
    if (multiple := kind.frames_multiple_of) > 1:
        if trained := read_json(folder / kind.denoiser / "config.json").get("sample_frames"):
            default = most = (int(trained) - 1) // multiple * multiple + 1
        per_latent = _frames_per_latent(read_json(folder / "vae" / "config.json"))
        lengths = {"default": default, "most": most, "multiple_of": multiple}
        return {**lengths, "fps": kind.fps, "per_latent": per_latent}
    parts = (read_json(folder / part / "config.json") for part in (kind.denoiser, "motion_adapter"))
    positions = next((int(part[POSITIONS]) for part in parts if POSITIONS in part), 0)
    if not positions:
        return {"default": default, "most": most}
    window = min(default, positions)
    return {"default": window, "most": most, "window": window, "stride": min(STRIDE, window)}


def components(folder: Path) -> dict[str, str]:
    """Return the class of each component that is loaded, by folder."""
    index = read_json(folder / INDEX)
    named = {part: said for part, said in index.items() if not part.startswith("_") and isinstance(said, list)}
    return {part: str(said[1]) for part, said in named.items() if len(said) == 2 and said[0] and said[1]}


def left_out(folder: Path) -> list[str]:
    """Return the text encoders and tokenizers that the checkpoint omits on purpose (SD 3 without T5): null in its
    index."""
    index = read_json(folder / INDEX)
    return [part for part, said in index.items() if part.startswith(("text_", "tokenizer")) and said == [None, None]]


def faults(folder: Path) -> str:
    """Return the reasons why a checkpoint cannot be loaded, file by file: missing, truncated, or no safetensors file.

    Empty for a complete checkpoint. Only the headers of the weights are read."""
    absent = missing(folder)
    said = [f"missing {', '.join(absent)}"] if absent else []
    weights = [path for part in components(folder) for path in weights_of(folder / part)]
    return "; ".join([*said, *filter(None, (_fault(path) for path in weights))])


def missing(folder: Path) -> list[str]:
    """Return the missing files that loading needs, in words for users; empty for a complete checkpoint."""
    return [name for part, kind in components(folder).items() for name in _missing_of(folder / part, kind)]


def _missing_of(part: Path, kind: str) -> list[str]:
    if not part.is_dir():
        return [f"{part.name}/"]
    if kind.endswith(NOT_WEIGHTS):
        return [] if any(part.iterdir()) else [f"{part.name}/"]
    absent = [] if (part / "config.json").is_file() else [f"{part.name}/config.json"]
    shards = [name for index in part.glob("*.safetensors.index.json") for name in shards_of(index)]
    if shards:
        return [*absent, *(f"{part.name}/{name}" for name in shards if not (part / name).is_file())]
    if weights_of(part):
        return absent
    pickled = any(part.glob("*.bin"))
    return [*absent, f"{part.name}/*.safetensors" + (" (only pickles are there: never loaded)" if pickled else "")]


def shards_of(index: Path) -> list[str]:
    return sorted({str(name) for name in read_json(index).get("weight_map", {}).values()})


def weights_of(part: Path) -> list[Path]:
    """Return the safetensors files of a component, without variants (`model.fp16.safetensors`)."""
    return sorted(path for path in part.glob("*.safetensors") if "." not in path.name.removesuffix(".safetensors"))


def parameters(folder: Path) -> dict[str, int]:
    """Return the number of parameters of each component, from the headers of its files."""
    counted = {part: sum(_values(path) for path in weights_of(folder / part)) for part in components(folder)}
    return {part: count for part, count in counted.items() if count}


def _fault(path: Path) -> str:
    """Return why a file cannot be loaded; empty if its length matches its header."""
    try:
        _, ends_at = _header(path)
        size = path.stat().st_size
    except ModelError as error:
        return str(error)
    except OSError as error:
        return f"{path}: cannot be read: {error.strerror}"
    if size == ends_at:
        return ""
    return f"{path}: {'cut short' if size < ends_at else 'too long'}: {size} of {ends_at} bytes"


def _values(path: Path) -> int:
    """Return the number of values in a safetensors file. Raise ModelError for another format or a truncated header."""
    return _header(path)[0]


def _header(path: Path) -> tuple[int, int]:
    """Return the number of values in a safetensors file and the bytes it must have, both from its JSON header.

    Raise ModelError for another format or a truncated header.
    """
    try:
        with path.open("rb") as file:
            (length,) = struct.unpack("<Q", file.read(8))
            header = json.loads(file.read(length))
        tensors = [entry for name, entry in header.items() if name != "__metadata__"]
        end = max((int(entry["data_offsets"][1]) for entry in tensors), default=0)
        return sum(prod(entry["shape"]) for entry in tensors), 8 + length + end
    except (struct.error, ValueError, AttributeError, TypeError, LookupError, OverflowError) as error:
        raise ModelError(f"{path}: not a whole safetensors file: {error}") from error


def read_json(path: Path) -> dict[str, Any]:
    """Read a configuration; empty if there is none. Raise ModelError for an unreadable file or invalid JSON."""
    try:
        found = json.loads(path.read_bytes())
    except (FileNotFoundError, NotADirectoryError):
        return {}
    except (OSError, ValueError) as error:
        raise ModelError(f"{path}: not a configuration: {error}") from error
    if not isinstance(found, dict):
        raise ModelError(f"{path}: not a configuration: must be a JSON object (got {type(found).__name__})")
    return found
