"""A local folder of a published checkpoint gets the published card, and one of equal shapes is asked for a name."""

from __future__ import annotations

import json
import struct
from pathlib import Path
from typing import Any

import pytest

from shared.domain.errors import ModelError
from shared.domain.types import Size
from shared.models import find_card
from shared.models.card_lookup import KNOWN
from tests import tiny_families

FOUR = {"block_out_channels": [1] * 4}
KINDS: dict[str, tuple[str, str, dict[str, Any], dict[str, Any]]] = {
    # pipeline, folder of the denoiser, its configuration as far as a card depends on it, the VAE's
    "sd-2.1": ("StableDiffusionPipeline", "unet", {"sample_size": 96}, FOUR),
    "sdxl": ("StableDiffusionXLPipeline", "unet", {"sample_size": 128}, FOUR),
    "sd-3.5-large": (
        "StableDiffusion3Pipeline", "transformer", {"sample_size": 128}, FOUR | {"latent_channels": 16}
    ),
    "flux.1-dev": ("FluxPipeline", "transformer", {}, FOUR | {"latent_channels": 16}),
    "sana-1.6b": (
        "SanaPipeline", "transformer", {"sample_size": 32},
        {"encoder_block_out_channels": [1] * 6, "latent_channels": 32},
    ),
    "wan-2.1-1.3b": ("WanPipeline", "transformer", {}, {"dim_mult": [1] * 4, "z_dim": 16}),
    "ltx-video-2b": (
        "LTXPipeline", "transformer", {},
        FOUR | {"patch_size": 4, "spatio_temporal_scaling": [True, True, True, False], "latent_channels": 128},
    ),
    "cogvideox-2b": (
        "CogVideoXPipeline", "transformer", {"sample_width": 90, "sample_height": 60, "sample_frames": 49},
        FOUR | {"latent_channels": 16},
    ),
}  # fmt: skip
CARDS = {card.name: card for card in KNOWN.values()}


def laid_out(folder: Path, name: str, *, more: int = 0, **index: Any) -> Path:
    """Configurations and headers of the published checkpoint `name`; `more`: numbers that its denoiser has beyond."""
    pipeline, part, config, vae = KINDS["sd-3.5-large" if name == "sd-3.5-large-turbo" else name]
    for sub, said in ((part, config), ("vae", vae)):
        (folder / sub).mkdir(parents=True)
        (folder / sub / "config.json").write_text(json.dumps(said))
    count = CARDS[name].denoiser_parameters + more
    header = json.dumps({"w": {"dtype": "F16", "shape": [count], "data_offsets": [0, 2 * count]}}).encode()
    (folder / part / "diffusion_pytorch_model.safetensors").write_bytes(struct.pack("<Q", len(header)) + header)
    parts = {part: ["diffusers", "Model2D"], "vae": ["diffusers", "AutoencoderKL"]}
    (folder / "model_index.json").write_text(json.dumps({"_class_name": pipeline, **parts, **index}))
    return folder


@pytest.mark.parametrize(
    "name", ["sd-2.1", "sdxl", "flux.1-dev", "sana-1.6b", "wan-2.1-1.3b", "ltx-video-2b", "cogvideox-2b"]
)
def test_a_folder_of_a_published_checkpoint_has_its_cards_defaults_whatever_it_is_called(
    tmp_path: Path, name: str
) -> None:
    card, known = find_card(str(laid_out(tmp_path / "mine", name))), CARDS[name]
    assert (card.name, card.path) == ("mine", str(tmp_path / "mine"))
    of_model = ("family", "sampler", "dtype", "default_steps", "default_guidance", "about")
    for field in (*of_model, "default_size", "sizes", "frames"):
        assert getattr(card, field) == getattr(known, field), field
    assert (card.latent_channels, card.vae_scale) == (known.latent_channels, known.vae_scale)
    other = find_card(str(laid_out(tmp_path / "other", name, more=1)))  # another architecture: its pipeline's defaults
    assert (other.dtype, other.about) == ("float32", "")


@pytest.mark.parametrize(
    ("where", "index", "name"),
    [
        ("stable-diffusion-3.5-large-turbo", {}, "sd-3.5-large-turbo"),
        ("Stable-Diffusion-3.5-Large", {}, "sd-3.5-large"),
        ("sd-3.5-large-turbo", {}, "sd-3.5-large-turbo"),
        ("models--stabilityai--stable-diffusion-3.5-large-turbo/snapshots/0123abc", {}, "sd-3.5-large-turbo"),
        ("mine", {"_name_or_path": "stabilityai/stable-diffusion-3.5-large-turbo"}, "sd-3.5-large-turbo"),
    ],
)
def test_of_equal_shapes_the_name_decides(tmp_path: Path, where: str, index: dict[str, Any], name: str) -> None:
    card = find_card(str(laid_out(tmp_path / where, name, **index)))
    assert (card.default_steps, card.default_guidance, card.guidance_max) == (
        CARDS[name].default_steps, CARDS[name].default_guidance, CARDS[name].guidance_max,
    )  # fmt: skip
    assert card.name == Path(where).name


def test_a_folder_that_may_be_either_says_so_and_its_card_json_may_say_which(tmp_path: Path) -> None:
    folder = laid_out(tmp_path / "mine", "sd-3.5-large-turbo")
    card = find_card(str(folder))
    assert (card.default_steps, card.default_guidance, card.dtype) == (28, 7.0, "float32")  # the pipeline's
    assert "sd-3.5-large or sd-3.5-large-turbo: set `like`" in card.about
    for like in ("sd-3.5-large-turbo", "stabilityai/stable-diffusion-3.5-large-turbo"):
        (folder / "card.json").write_text(json.dumps({"name": "fast", "like": like, "default_steps": 10}))
        card = find_card(str(folder))
        assert (card.name, card.default_steps, card.default_guidance, card.dtype) == ("fast", 10, 1.0, "bfloat16")
        assert card.path == str(folder)
    (folder / "card.json").write_text(json.dumps({"name": "fast", "like": "turbo"}))
    with pytest.raises(ModelError, match=r"card\.json: like must be one of sd-1\.5, .* \(got 'turbo'\)"):
        find_card(str(folder))


def test_a_fine_tune_may_name_the_card_that_it_is_like_and_keeps_its_own_shapes(tmp_path: Path) -> None:
    folder = tiny_families.save(tmp_path / "tuned", "sana")
    (folder / "card.json").write_text(json.dumps({"name": "tuned", "like": "sana-1.6b"}))
    card = find_card(str(folder))
    assert (card.default_steps, card.default_guidance, card.dtype) == (20, 4.5, "bfloat16")
    assert (card.latent_channels, card.vae_scale, card.default_size) == (8, 4, Size(128, 128))
    assert card.sizes.allows(card.default_size)
    assert card.folder == folder
