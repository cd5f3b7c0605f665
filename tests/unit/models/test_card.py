"""Cards are found by bundled name, folder, hub id or no-op, and say what is wrong when they are not."""

from __future__ import annotations

import json
import math
import shutil
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from shared.domain.errors import ConfigurationError, InvalidRequestError, ModelError
from shared.domain.exact_repeats import exact_key
from shared.domain.types import CompatKey, Request, Size, from_json, to_json
from shared.models import (
    FrameRule,
    ModelCard,
    SizeRule,
    find_card,
    noise_level,
    of_images,
    same_noise_level,
    served_cards,
    weights_hash,
)
from shared.models.card_lookup import BUNDLED, SHIPPED, bundled_cards, card_for, write_card
from shared.models.devices import placed
from shared.models.schedules import nearest_step
from shared.runtime.settings import Settings
from tests import tiny


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny.build(tmp_path_factory.mktemp("models"))


def test_a_bundled_name_a_folder_and_a_hub_id(folder: Path) -> None:
    by_name = find_card("bundled:large", root=folder)
    assert by_name == find_card(str(folder / "large"))
    assert by_name == find_card("large", root=folder)
    assert by_name.folder == folder / "large"
    assert set(bundled_cards(folder)) == {"large"}
    assert find_card("stable-diffusion-v1-5/stable-diffusion-v1-5").name == "sd-1.5"
    assert find_card("somebody/New-Model").path == "somebody/New-Model"


@pytest.mark.parametrize("path", ["@/", "a/@b", "a/b@", "a/b@..", "a/b@/etc/passwd", "a b/c"])
def test_what_is_neither_here_nor_a_hub_id_is_no_model(path: str) -> None:
    """The hub's client opens a revision as a path."""
    with pytest.raises(ModelError, match="not a hub id"):
        find_card(path)


def test_a_patch_that_the_levels_cannot_halve_is_refused_before_anything_is_loaded(folder: Path) -> None:
    def named(**changes: Any) -> str:
        given: dict[str, Any] = {"layout": "patches", "patch_px": 12} | changes
        return card_for(str(folder / "large"), Settings(**given)).name

    with pytest.raises(ModelError, match=r"patch_px: must be a multiple of 8 pixels for model 'large' \(got 12\)"):
        named()
    assert named(patch_px=16) == named(layout="groups") == named(batch_invariant=2) == "large"


def test_the_large_model_comes_first_and_the_small_ones_as_they_are_named(settings: Settings) -> None:
    smalls = "noop:?name=fast, noop:?name=faster"
    cards = served_cards(settings.model_copy(update={"large": "noop:", "small": smalls, "dtype": "float16"}))
    assert [(card.name, card.role, card.dtype) for card in cards.values()] == [
        ("noop", "large", "float16"),
        ("fast", "small", "float16"),
        ("faster", "small", "float16"),
    ]
    assert list(served_cards(settings.model_copy(update={"large": "noop:"}))) == ["noop"]
    with pytest.raises(ConfigurationError, match="noop"):
        served_cards(settings.model_copy(update={"large": "noop:", "small": "noop:?step_ms=1"}))


def test_the_video_model_comes_last_and_serves_no_images(settings: Settings) -> None:
    cards = served_cards(settings.model_copy(update={"large": "noop:", "video": "noop:?name=clips&frames=16"}))
    assert [(card.name, card.role, card.frames.default) for card in cards.values()] == [
        ("noop", "large", 1),
        ("clips", "video", 16),
    ]
    assert list(of_images(cards)) == ["noop"]
    with pytest.raises(ConfigurationError, match="generates images only; name a model of clips"):
        served_cards(settings.model_copy(update={"large": "noop:", "video": "sd-1.5"}))
    for fps in (0.0, 0.05, 121.0, float("nan")):
        with pytest.raises(ValueError, match=r"frames: fps must be from 0\.1 to 120"):
            ModelCard("clips", frames=FrameRule(fps=fps))


@pytest.mark.parametrize("name", ["sd-1.5", "sd-2.1", "sdxl", "sana-1.6b"])
def test_on_a_cpu_auto_is_float32(settings: Settings, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def dtype(**changes: str) -> str:
        return card_for(name, settings.model_copy(update=changes)).dtype

    half = {"sana-1.6b": "bfloat16"}.get(name, "float16")
    assert [dtype(), dtype(device="cuda"), dtype(device="cpu")] == [half, half, "float32"]
    assert dtype(device="cpu", dtype="bfloat16") == "bfloat16"  # whoever says so gets it
    for gpu, device in ((False, "cpu"), (True, "cuda")):
        monkeypatch.setattr("torch.cuda.is_available", lambda gpu=gpu: gpu)
        monkeypatch.setattr("torch.cuda.device_count", lambda: 1)
        assert placed(settings).device == device


def test_a_folder_without_a_card_takes_the_defaults(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "model_index.json").write_text("{}")
    assert find_card(str(tmp_path / "mine")) == ModelCard(name="mine", path=str(tmp_path / "mine"))


def test_a_folder_without_a_card_says_by_its_configurations_what_its_latents_are(folder: Path, tmp_path: Path) -> None:
    copy = tmp_path / "copied"
    shutil.copytree(folder / "large", copy, ignore=shutil.ignore_patterns("card.json"))
    card = find_card(str(copy))
    assert (card.name, card.vae_scale, card.default_size) == ("copied", 4, Size(64, 64))
    (copy / "vae" / "config.json").write_text("{")
    with pytest.raises(ModelError, match=r"vae/config\.json: not a configuration"):
        find_card(str(copy))


def test_a_card_need_not_say_what_its_vae_does(folder: Path, tmp_path: Path) -> None:
    copy = tmp_path / "copied"
    shutil.copytree(folder / "large", copy)
    (copy / "card.json").write_text('{"name": "mine"}')
    assert find_card(str(copy)).vae_scale == 4


@pytest.mark.parametrize("name", sorted(SHIPPED))
def test_a_copy_of_a_bundled_folder_is_the_bundled_model(name: str, tmp_path: Path) -> None:
    copy = shutil.copytree(BUNDLED / name, tmp_path / "elsewhere")
    card, bundled = find_card(str(copy)), find_card(f"bundled:{name}")
    assert card == replace(bundled, path=str(copy))
    assert bundled == replace(SHIPPED[name], path=str(BUNDLED / name))
    assert card.weights_hash == bundled.weights_hash


def test_a_card_is_read_as_it_was_written_wherever_the_folder_is(tmp_path: Path) -> None:
    card = ModelCard(name="m", path="/elsewhere", sizes=SizeRule(sizes=(Size(64, 96),)), preview_factors=((0, 1, 2),))
    write_card(card, tmp_path)
    assert find_card(str(tmp_path)) == replace(card, path=str(tmp_path))


def test_bundled_weights_without_a_card_of_their_own_take_the_shipped_one(folder: Path, tmp_path: Path) -> None:
    shutil.copytree(folder / "large", tmp_path / "small", ignore=shutil.ignore_patterns("card.json"))
    card = find_card("bundled:small", root=tmp_path)
    assert (card.role, card.folder, card.sizes.allows(Size(96, 64))) == ("small", tmp_path / "small", True)
    assert card.weights_hash == find_card("bundled:large", root=folder).weights_hash


def test_missing_weights_and_models_are_named(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"bundled:huge: no weights in .*huge; there are: none"):
        find_card("bundled:huge", root=tmp_path)
    with pytest.raises(ModelError, match="nowhere"):
        find_card(str(tmp_path / "nowhere"))
    (tmp_path / "card.json").write_text('{"name": "bare"}')
    with pytest.raises(ModelError, match=f"model 'bare': no weights in {tmp_path}"):
        _ = find_card(str(tmp_path)).weights_hash
    (tmp_path / "card.json").write_text('{"name": "bad", "default_steps": "many"}')
    with pytest.raises(ModelError, match="default_steps"):
        find_card(str(tmp_path))


def test_a_card_may_say_more_to_people(tmp_path: Path) -> None:
    sizes = {"sizes": [{"width": 64, "height": 96}]}
    (tmp_path / "card.json").write_text(json.dumps({"name": "m", "licence": "MIT", "sizes": sizes}))
    card = find_card(str(tmp_path))
    assert card.sizes.allows(Size(64, 96))
    assert not card.sizes.allows(Size(96, 64))


@pytest.mark.parametrize(
    ("size", "steps", "guidance", "field"),
    [
        (Size(60, 64), 50, 2.0, "size"),
        (Size(64, 4096), 50, 2.0, "size"),
        (Size(64, 64), 0, 2.0, "steps"),
        (Size(64, 64), 201, 2.0, "steps"),
        (Size(64, 64), 50, 0.5, "guidance"),
        (Size(64, 64), 50, math.nan, "guidance"),
    ],
)
def test_what_a_model_cannot_draw_names_field_and_rule(size: Size, steps: int, guidance: float, field: str) -> None:
    card = ModelCard(name="m", sizes=SizeRule(multiple_of=8, min_px=32, max_px=128))
    card.check(Size(64, 64), 50, 2.0)
    with pytest.raises(InvalidRequestError, match="model 'm'") as caught:
        card.check(size, steps, guidance)
    assert caught.value.field == field


def test_the_weights_hash_follows_what_draws_and_nothing_else(folder: Path, tmp_path: Path) -> None:
    same = tiny.build(tmp_path / "same", clip=False) / "large"
    first = weights_hash(folder / "large")
    assert first == weights_hash(same)
    assert len(first) == 16
    assert first != weights_hash(tiny.build(tmp_path / "other", seed=1, clip=False) / "large")
    (same / "card.json").write_text('{"name": "renamed"}')
    (same / "k_table.json").write_text("[]")
    assert weights_hash(same) == first
    changed = same / "scheduler" / "scheduler_config.json"
    changed.write_text(changed.read_text().replace("v_prediction", "epsilon"))
    assert weights_hash(same) != first
    with pytest.raises(ModelError, match=r"no \.safetensors"):
        weights_hash(tmp_path / "nothing")


@pytest.mark.parametrize("part", ["unet", "vae", "text_encoder"])
def test_a_changed_weight_anywhere_changes_the_hash(tmp_path: Path, part: str) -> None:
    copy = tiny.build(tmp_path, clip=False) / "large"
    before = weights_hash(copy)
    (path,) = (copy / part).glob("*.safetensors")
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)
    assert weights_hash(copy) != before


def test_compat_keys_tell_weights_sampler_dtype_and_size_apart(folder: Path) -> None:
    card = find_card(str(folder / "large"))
    key = card.compat(Size(64, 64), 50)
    assert key.sampler.startswith("ddim:")
    assert str(key) != str(card.compat(Size(96, 64), 50))
    assert str(key) == str(card.compat(Size(64, 64), 100))


def test_compat_keys_tell_the_lengths_of_clips_apart_and_keep_those_of_images(folder: Path) -> None:
    card = find_card(str(folder / "large"))
    image, clip = card.compat(Size(64, 64), 50), card.compat(Size(64, 64), 50, 16)
    assert str(image) == f"{card.weights_hash}/{image.sampler}/float32/64x64"
    assert str(clip) == f"{image}x16"
    windows = replace(card, frames=FrameRule(default=4, most=16, window=8))
    assert windows.compat(Size(64, 64), 50, 8).sampler == image.sampler
    assert windows.compat(Size(64, 64), 50, 9).sampler == f"{image.sampler}:8:4"  # FreeNoise: another noise process
    assert b"frames" not in to_json(image)  # as earlier versions wrote it
    assert [from_json(CompatKey, to_json(key)) for key in (image, clip)] == [image, clip]


@pytest.mark.parametrize("rule", [{"default": 0}, {"default": 17}, {"most": 0}])
def test_a_default_length_outside_the_rule_is_refused(rule: dict[str, int]) -> None:
    with pytest.raises(ValueError, match="frames: default must be"):
        ModelCard("clips", frames=FrameRule(**{"default": 16, "most": 16, **rule}))


def test_a_sampler_of_the_settings_keeps_the_noise_process_and_changes_exact_repeats(folder: Path) -> None:
    settings = Settings(large=str(folder / "large"))
    own, other = (
        card_for(settings.large, settings.model_copy(update={"sampler": name})) for name in ("auto", "dpm++2m")
    )
    assert (own.sampler, other.sampler) == ("ddim", "dpm++2m")
    key = own.compat(Size(64, 64), 50)
    assert other.compat(Size(64, 64), 50) == key  # states of one start runs of the other
    request = Request(prompt="a red fox", size=Size(64, 64), steps=50, guidance=2.5, seed=7)
    keys = [exact_key(request, key, card.sampler_id) for card in (own, other)]
    assert keys[0] == exact_key(request, key)  # as stored before there was another sampler
    assert keys[0] != keys[1]
    assert [other.step_in(10, 50, steps) for steps in (50, 25, 5, 4)] == [10, 5, 1, 0]


def test_where_a_latent_stands_in_another_run(folder: Path) -> None:
    card = find_card(str(folder / "large"))
    assert [card.step_in(10, 50, steps) for steps in (50, 100, 20, 30, 33)] == [10, 20, 4, 6, 0]
    assert card.step_in(2, 3, 30) == 0  # its noise level is not one of the new schedule's


def test_noop_cards_need_no_weights() -> None:
    card = find_card("noop:?step_ms=1")
    assert card.weights_hash != find_card("noop:?step_ms=2").weights_hash
    assert card.compat(Size(64, 64), 50).sampler.startswith("ddim:")


TRAILING = {"timestep_spacing": "trailing"}


def test_a_latent_fits_another_schedule_only_at_exactly_its_noise_level() -> None:
    assert same_noise_level("ddim", TRAILING, (10, 50), (10, 50))
    assert not same_noise_level("ddim", TRAILING, (10, 50), (11, 50))
    assert same_noise_level("ddim", TRAILING, (10, 50), (20, 100))
    assert same_noise_level("ddim", TRAILING, (10, 50), (4, 20))
    assert same_noise_level("ddim", TRAILING, (10, 50), (6, 30))
    assert not same_noise_level("ddim", TRAILING, (10, 50), (7, 30))
    assert not same_noise_level("ddim", TRAILING, (2, 3), (20, 30))  # 333 + 333 is not 667
    # leading spacing shifts with T: the same share of the steps is another level
    assert not same_noise_level("ddim", {"timestep_spacing": "leading"}, (10, 50), (20, 100))
    assert noise_level("ddim", TRAILING, 50, 50) == -1
    assert same_noise_level("flow_match_euler", {}, (0, 50), (0, 28))
    assert not same_noise_level("flow_match_euler", {}, (10, 50), (20, 100))


@pytest.mark.parametrize(
    ("sampler", "config", "steps", "starts"),
    [  # of k = 5, 10, 15, 20, 25, 30 of 50
        ("flow_match_euler", {}, 10, [1, 2, 3, 4, 5, 6]),
        ("flow_match_euler_even", {}, 10, [1, 2, 3, 4, 5, 6]),
        ("ddim", TRAILING, 10, [1, 2, 3, 4, 5, 6]),
        ("ddim", {"timestep_spacing": "leading"}, 10, [0, 1, 2, 3, 4, 5]),  # begins at 900 where 50 steps begin at 980
        ("flow_match_euler", {}, 4, [0, 1, 1, 1, 2, 2]),
        ("flow_match_euler", {}, 50, [5, 10, 15, 20, 25, 30]),
    ],
)
def test_the_step_of_another_schedule_at_the_nearest_noise_level(
    sampler: str, config: dict[str, Any], steps: int, starts: list[int]
) -> None:
    assert [nearest_step(sampler, config, (k, 50), steps) for k in (5, 10, 15, 20, 25, 30)] == starts


def test_of_two_equally_near_levels_the_noisier_one_counts() -> None:
    assert nearest_step("flow_match_euler_even", {}, (1, 4), 2) == 0  # .75 lies between 1 and .5


def test_a_model_runs_its_default_for_a_default_and_never_more_steps_than_are_named() -> None:
    large, turbo = ModelCard("large", default_steps=50), ModelCard("turbo", default_steps=10)
    assert [turbo.steps_for(steps, large) for steps in (50, 20, 10, 4, 100)] == [10, 10, 10, 4, 10]
    assert [large.steps_for(steps, turbo) for steps in (10, 4, 60)] == [50, 4, 50]
    assert [ModelCard("small").steps_for(steps, large) for steps in (50, 12, 100)] == [50, 12, 100]


def test_cards_are_read_without_torch() -> None:
    import subprocess

    code = "import sys; import shared.models; assert 'torch' not in sys.modules and 'diffusers' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.mark.parametrize(
    ("rule", "frames", "finished", "held"),
    [
        ({}, 16, 16, 4),
        ({}, 16, 3, 3),
        ({}, 16, 1, 1),
        ({}, 2, 16, 1),
        ({"overlap": 8}, 16, 28, 8),
        ({"overlap": 8}, 5, 28, 4),
        ({"multiple_of": 4, "default": 81, "most": 81}, 81, 81, 17),
        ({"multiple_of": 4, "default": 81, "most": 81}, 5, 81, 1),
    ],
)
def test_a_continued_clip_holds_a_quarter_of_its_run_or_the_cards_overlap(
    rule: dict[str, int], frames: int, finished: int, held: int
) -> None:
    card = ModelCard("clips", frames=FrameRule(**{"default": 16, "most": 64, **rule}))
    assert card.frames.held(frames, finished) == held


def test_a_negative_overlap_is_refused() -> None:
    with pytest.raises(ValueError, match=r"frames: overlap must be 0 or more \(got -1\)"):
        ModelCard("clips", frames=FrameRule(overlap=-1))


def test_what_a_request_steers_away_from_is_part_of_its_key() -> None:
    card = find_card("bundled:large")
    plain = Request("a fox", Size(64, 64), 50, card.default_guidance, 1)
    own = card.compat(plain.size, plain.steps)
    assert card.compat_for(plain) == own
    assert card.compat_for(replace(plain, guidance=card.default_guidance * 1.1)) == own
    away = card.compat_for(replace(plain, negative_prompt="a wolf"))
    assert away.steered
    assert away == card.compat_for(replace(plain, negative_prompt="  A   Wolf "))
    stronger = card.compat_for(replace(plain, guidance=2 * card.default_guidance))
    alone = card.compat_for(replace(plain, guidance=1.0))
    assert len({str(one) for one in (own, away, stronger, alone)}) == 4
    assert alone == card.compat_for(replace(plain, guidance=1.0, negative_prompt="a wolf"))
    assert card.compat_for(plain, guidance=2 * card.default_guidance) == stronger
