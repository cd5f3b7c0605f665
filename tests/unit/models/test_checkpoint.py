"""What a checkpoint says of itself: family, shapes, parameters, what is missing; and names that people give."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from services.cli.model_sheet import latent_shape
from shared.domain.errors import ModelError
from shared.domain.types import Size
from shared.models import FrameRule, find_card, memory, weights_hash
from shared.models.added import add, added
from shared.models.card_lookup import KNOWN
from shared.models.checkpoint import faults, missing, parameters
from tests import tiny_families

SAYS = {
    "sdxl": ("unet", "ddim", 4, 2, Size(64, 64), 50, 5.0),
    "sd3": ("sd3", "flow_match_euler", 16, 2, Size(64, 64), 28, 7.0),
    "flux": ("flux", "flow_match_euler_even", 16, 2, Size(256, 256), 28, 3.5),
    "sana": ("sana", "flow_match_euler", 8, 4, Size(128, 128), 20, 4.5),
    "animatediff": ("animatediff", "ddim", 4, 2, Size(32, 32), 50, 7.5),
    "text_to_video": ("text_to_video", "ddim", 4, 2, Size(32, 32), 50, 9.0),
    "wan": ("wan", "flow_match_euler", 4, 4, Size(832, 480), 50, 5.0),
    "ltx": ("ltx", "flow_match_euler_even", 4, 8, Size(704, 512), 50, 3.0),
    "cogvideox": ("cogvideox", "ddim", 4, 4, Size(64, 32), 50, 6.0),
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("checkpoints")
    for name in SAYS:
        tiny_families.save(root / name, name)
    return root


@pytest.mark.parametrize("name", SAYS)
def test_a_checkpoint_without_a_card_says_what_it_is(folder: Path, name: str) -> None:
    card = find_card(str(folder / name))
    said = (card.family, card.sampler, card.latent_channels, card.vae_scale, card.default_size, card.default_steps)
    assert (*said, card.default_guidance) == SAYS[name]
    assert card.sampler_id.startswith(f"{card.sampler}:")
    assert missing(folder / name) == []


def test_a_checkpoint_says_how_many_frames_it_generates(folder: Path) -> None:
    rules = {
        "sana": (FrameRule(1, 1), "1"),
        "text_to_video": (FrameRule(16, 64), "from 1 to 64"),
        "animatediff": (FrameRule(12, 64, window=12), "from 1 to 64"),
        "wan": (FrameRule(81, 81, multiple_of=4, fps=16, per_latent=4), "from 1 to 81, 4k + 1"),
        "ltx": (FrameRule(161, 257, multiple_of=8, fps=25, per_latent=8), "from 1 to 257, 8k + 1"),
        "cogvideox": (FrameRule(17, 17, multiple_of=8, per_latent=4), "from 1 to 17, 8k + 1"),
    }
    for name, (rule, said) in rules.items():
        found = find_card(str(folder / name)).frames
        assert (found, str(found)) == (rule, said)


@pytest.mark.parametrize("name", SAYS)
def test_a_changed_weight_in_any_part_changes_the_hash(folder: Path, tmp_path: Path, name: str) -> None:
    copy = shutil.copytree(folder / name, tmp_path / "copy")
    parts = parameters(copy)
    assert {"vae", "text_encoder"} < set(parts)
    assert ("transformer" in parts) != ("unet" in parts)
    seen = {weights_hash(copy)}
    assert seen == {weights_hash(folder / name)}
    for part in parts:
        (path,) = (copy / part).glob("*.safetensors")
        data = bytearray(path.read_bytes())
        data[-1] ^= 1
        path.write_bytes(data)
        seen.add(weights_hash(copy))
    assert len(seen) == 1 + len(parts)


def test_what_is_not_loaded_does_not_change_the_hash(folder: Path, tmp_path: Path) -> None:
    copy = shutil.copytree(folder / "sd3", tmp_path / "copy")
    (copy / "vae" / "diffusion_pytorch_model.fp16.safetensors").write_bytes(b"a variant")
    (copy / "comfy").mkdir()
    (copy / "comfy" / "all.safetensors").write_bytes(b"no component")
    assert weights_hash(copy) == weights_hash(folder / "sd3")


def test_parameters_are_counted_from_headers(folder: Path) -> None:
    import diffusers

    transformer = diffusers.SanaTransformer2DModel.from_pretrained(folder / "sana", subfolder="transformer")
    assert parameters(folder / "sana")["transformer"] == sum(p.numel() for p in transformer.parameters())
    card = memory.counted(find_card(str(folder / "sana")), folder / "sana")
    need = memory.estimate(card, rows=4)
    assert need.weights == 4 * sum(parameters(folder / "sana").values())


def test_missing_files_are_named_one_by_one(folder: Path, tmp_path: Path) -> None:
    copy = shutil.copytree(folder / "sd3", tmp_path / "copy")
    (copy / "vae" / "diffusion_pytorch_model.safetensors").rename(copy / "vae" / "diffusion_pytorch_model.bin")
    (copy / "transformer" / "config.json").unlink()
    shutil.rmtree(copy / "tokenizer_3")
    index = {"weight_map": {"a": "model-00001-of-00002.safetensors", "b": "model-00002-of-00002.safetensors"}}
    (copy / "text_encoder_3" / "model.safetensors.index.json").write_text(json.dumps(index))
    (copy / "text_encoder_3" / "model.safetensors").rename(copy / "text_encoder_3" / "model-00001-of-00002.safetensors")
    lacking = [
        "text_encoder_3/model-00002-of-00002.safetensors",
        "tokenizer_3/",
        "transformer/config.json",
        "vae/*.safetensors (only pickles are there: never loaded)",
    ]
    assert sorted(missing(copy)) == lacking
    with pytest.raises(ModelError, match=r"model 'copy': path: .*copy is not whole: missing .*tokenizer_3/"):
        _ = find_card(str(copy)).folder


def test_known_cards_have_the_true_latent_shapes() -> None:
    shapes = {
        "sdxl": (4, 128, 128),
        "sd-3.5-large": (16, 128, 128),
        "sd-3.5-large-turbo": (16, 128, 128),
        "flux.1-dev": (16, 128, 128),
        "sana-1.6b": (32, 32, 32),
        "wan-2.1-1.3b": (16, 21, 60, 104),
        "ltx-video-2b": (128, 21, 16, 22),
        "cogvideox-2b": (16, 13, 60, 90),
        "cogvideox-5b": (16, 13, 60, 90),
    }
    cards = {card.name: card for card in KNOWN.values()}
    assert set(shapes) < set(cards)
    for name, shape in shapes.items():
        card = cards[name]
        assert latent_shape(card) == "×".join(map(str, shape))
        card.check(card.default_size, card.default_steps, card.default_guidance)
        assert find_card(name) == find_card(card.path) == card


def test_memory_follows_dtype_rows_and_offloading() -> None:
    card = find_card("sd-3.5-large")
    need, more = memory.estimate(card, rows=1), memory.estimate(card, rows=4)
    assert need.weights == 2 * (card.text_parameters + card.denoiser_parameters + card.vae_parameters)
    assert more.batch == 4 * need.batch > 0
    assert need.by_turns < need.total
    assert memory.said(need.weights) == "25.6 GiB"


def test_a_name_that_was_given_finds_its_path(folder: Path, tmp_path: Path) -> None:
    add(tmp_path, "mine", str(folder / "sana"))
    add(tmp_path, "theirs", "somebody/Model")
    add(tmp_path, "mine", str(folder / "sd3"))
    assert added(tmp_path) == {"mine": str(folder / "sd3"), "theirs": "somebody/Model"}
    card = find_card("mine", data_dir=tmp_path)
    assert (card.name, card.family, card.folder) == ("mine", "sd3", folder / "sd3")
    with pytest.raises(ModelError, match=r"'mine': not bundled:NAME, not a name of `afterimage models list`"):
        find_card("mine")
    for wrong in ("Mine", "a/b", "", "-x"):
        with pytest.raises(ModelError, match="name: must be lower-case letters"):
            add(tmp_path, wrong, "somebody/Model")


@pytest.mark.parametrize(
    ("content", "said"),
    [("[1]", "must be a JSON object \\(got list\\)"), ("7", "must be a JSON object"), ("{", "not a configuration")],
)
def test_a_configuration_that_is_none_is_named(tmp_path: Path, content: str, said: str) -> None:
    (tmp_path / "models.json").write_text(content)
    with pytest.raises(ModelError, match=rf"models\.json: .*{said}"):
        added(tmp_path)


def test_a_card_in_another_number_format_is_refused_by_name(folder: Path, tmp_path: Path) -> None:
    copy = shutil.copytree(folder / "sana", tmp_path / "copy")
    (copy / "card.json").write_text(json.dumps({"name": "mine", "dtype": "fp16"}))
    with pytest.raises(ModelError, match=r"(?s)card\.json: not a model card: .*dtype.*'bfloat16' or 'float16'"):
        find_card(str(copy))


@pytest.mark.parametrize("left", [b"", b"\x10", b"\x10\0\0\0\0\0\0\0{", b"\x02\0\0\0\0\0\0\0[]"])
def test_weights_that_were_cut_off_are_named(folder: Path, tmp_path: Path, left: bytes) -> None:
    copy = shutil.copytree(folder / "sana", tmp_path / "copy")
    (path,) = (copy / "vae").glob("*.safetensors")
    path.write_bytes(left)
    with pytest.raises(ModelError, match=rf"vae/{path.name}: not a whole safetensors file"):
        parameters(copy)
    assert f"vae/{path.name}: not a whole safetensors file" in faults(copy)


@pytest.mark.parametrize("name", SAYS)
@pytest.mark.parametrize("change", [-1, 1])
def test_weights_of_another_length_than_their_header_says_are_not_served(
    folder: Path, tmp_path: Path, name: str, change: int
) -> None:
    assert faults(folder / name) == ""
    copy = shutil.copytree(folder / name, tmp_path / "copy")
    path = max((copy / "vae").glob("*.safetensors"))
    data = path.read_bytes()
    path.write_bytes(data[:-1] if change < 0 else data + b"x")
    what = "cut short" if change < 0 else "too long"
    said = rf"vae/{path.name}: {what}: {len(data) + change} of {len(data)} bytes"
    with pytest.raises(ModelError, match=rf"model 'copy': path: .*copy is not whole: .*{said}"):
        _ = find_card(str(copy)).folder
