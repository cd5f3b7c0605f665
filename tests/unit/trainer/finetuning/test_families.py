"""Checkpoints of each kind: passes against diffusers' own models, adapters, exports, and what is refused."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from services.trainer.finetuning.batches import Batch, Row
from services.trainer.finetuning.loss import objective_of
from services.trainer.finetuning.model.checkpoint import Base, load_base
from services.trainer.finetuning.model.denoiser import CheckpointDenoiser
from services.trainer.finetuning.model.encoders import CheckpointEncoders
from services.trainer.finetuning.model.export import export_model, write_adapter
from services.trainer.finetuning.model.kept import KeptEncoders
from services.trainer.finetuning.model.loaded import Loaded, load
from services.trainer.finetuning.ranks.group import Place
from services.trainer.finetuning.ranks.pipeline import new_training
from services.trainer.finetuning.ranks.steppers import encoder_bytes, new_stepper
from services.trainer.finetuning.saving.run_folder import RunFolder
from services.trainer.finetuning.settings import LoraSettings
from services.trainer.finetuning.stepper import Encoders, SingleProcess
from shared.domain.errors import ModelError
from shared.domain.types import Size
from shared.models.card_lookup import find_card
from tests import tiny_families
from tests.unit.trainer.finetuning.conftest import settings_of

SIZE = Size(32, 32)


@pytest.fixture(scope="module")
def folders(base: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    made = tmp_path_factory.mktemp("families")
    return {"sd": base} | {name: tiny_families.save(made / name, name) for name in ("sdxl", "sd3")}


def batch(*seeds: int) -> Batch:
    rows = tuple(Row(seed, f"a square {seed}", seed, Size(48, 40), (2, 4)) for seed in seeds)
    return Batch(0, SIZE, rows, len(rows), pixels)


def pixels(row: Row, size: Size) -> torch.Tensor:
    generator = torch.Generator().manual_seed(row.index)
    return torch.rand(3, size.height, size.width, generator=generator) * 2 - 1


def stepper(base: Base, denoiser: CheckpointDenoiser, micro_batch: int = 0) -> SingleProcess:
    encoders = CheckpointEncoders(base.pipeline, base.denoiser)
    return SingleProcess(denoiser, encoders, objective_of(base.scheduler_config), micro_batch=micro_batch)


@pytest.mark.parametrize("family", ["sd", "sdxl", "sd3"])
def test_micro_batches_have_the_loss_and_the_gradients_of_the_whole(folders: dict[str, Path], family: str) -> None:
    base = load_base(str(folders[family]))
    denoiser = CheckpointDenoiser(base.denoiser)
    whole, parts = stepper(base, denoiser), stepper(base, denoiser, micro_batch=2)
    loss = whole.step(batch(1, 2, 3))
    gradients = {name: value.grad.clone() for name, value in whole.parameters().items() if value.grad is not None}
    norm = whole.gradient_norm()
    assert loss == pytest.approx(whole.evaluate(batch(1, 2, 3)), rel=1e-5)
    for value in whole.parameters().values():
        value.grad = None
    assert parts.step(batch(1, 2, 3)) == pytest.approx(loss, rel=1e-5)
    assert parts.gradient_norm() == pytest.approx(norm, rel=1e-4)
    for name, value in parts.parameters().items():
        if value.grad is not None:
            assert torch.allclose(value.grad, gradients[name], atol=1e-5), name
    assert norm > 0


@pytest.mark.parametrize("kept", [False, True])
@pytest.mark.parametrize("family", ["sd", "sdxl", "sd3"])
def test_the_parts_of_a_pipeline_have_the_loss_of_the_whole(
    folders: dict[str, Path], family: str, kept: bool, tmp_path: Path
) -> None:
    base = load_base(str(folders[family]))
    denoiser = CheckpointDenoiser(base.denoiser, self_conditioned=True)
    with torch.no_grad():
        next(iter(denoiser.trainable().values())).add_(0.01)
    encoders: Encoders = CheckpointEncoders(base.pipeline, base.denoiser)
    objective, twice = objective_of(base.scheduler_config), replace(batch(1, 2, 3), second_pass=True)
    expected = SingleProcess(denoiser, encoders, objective).evaluate(twice)
    if kept:
        encoders = KeptEncoders(CheckpointEncoders(base.pipeline, base.denoiser), tmp_path, torch.device("cpu"))
    training = new_training(Loaded(base, denoiser, encoders, objective, torch.device("cpu"), torch.float32))
    assert bool(training.frozen) != kept
    encoded: dict[str, torch.Tensor] = {}
    with torch.no_grad():
        for part in training.frozen:
            given = part.feed(twice, encoded)
            encoded |= part.chain({name: given[name] for name in part.chain.inputs})
        [trained] = training.backbones
        fed = trained.feed(twice, encoded)
        state = {name: value for name, value in fed.state.items() if name in trained.chain.inputs}
        assert trained.estimate is not None
        first = trained.chain(state | {"estimate": torch.zeros_like(fed.state["sample"])})["prediction"]
        second = trained.chain(state | {"estimate": trained.estimate(first, fed.target)})["prediction"]
    assert float(trained.loss(second, fed.target)) == pytest.approx(expected, rel=1e-5)
    names = {name for layer in trained.chain.layers for name in layer.parameters()}
    assert set(denoiser.trainable()) <= names


def test_the_prediction_of_sdxl_is_that_of_its_pipeline(folders: dict[str, Path]) -> None:
    base = load_base(str(folders["sdxl"]))
    encoders = CheckpointEncoders(base.pipeline, base.denoiser)
    latents, conditions = encoders.encode(batch(1))
    assert latents.shape == (1, 4, 16, 16)
    assert conditions["time_ids"].tolist() == [[40, 48, 2, 4, 32, 32]]
    embeds, _, pooled, _ = base.pipeline.encode_prompt("a square 1", do_classifier_free_guidance=False)
    assert torch.equal(conditions["encoder_hidden_states"], embeds)
    assert torch.equal(conditions["text_embeds"], pooled)
    expected = base.pipeline.vae.encode(pixels(batch(1).rows[0], SIZE)[None]).latent_dist.mode() * 0.13025
    assert torch.allclose(latents, expected)


def test_kept_outputs_are_those_of_the_encoders_and_are_read_again(folders: dict[str, Path], tmp_path: Path) -> None:
    base = load_base(str(folders["sdxl"]))
    encoders = CheckpointEncoders(base.pipeline, base.denoiser)
    kept = KeptEncoders(encoders, tmp_path, torch.device("cpu"))
    first = kept.encode(batch(1, 2))
    plain = encoders.encode(batch(1, 2))
    files = sorted(tmp_path.rglob("*.safetensors"))
    assert len(files) == 4
    base.pipeline.vae = base.pipeline.text_encoder = None  # nothing is encoded again
    encoders.sizes = lambda rows, size: {"time_ids": plain[1]["time_ids"]}  # type: ignore[method-assign]
    again = kept.encode(batch(1, 2))
    half = KeptEncoders(encoders, tmp_path, torch.device("cpu"), torch.bfloat16).encode(batch(1, 2))[1]
    assert half["encoder_hidden_states"].dtype == torch.bfloat16  # another precision than that of the files
    for found in (first, again):
        assert torch.allclose(found[0], plain[0], atol=1e-6)
        assert found[1].keys() == plain[1].keys()
        assert all(torch.allclose(found[1][name], plain[1][name], atol=1e-5) for name in plain[1])


def test_a_second_pass_sees_the_estimate_and_an_export_has_none(folders: dict[str, Path], tmp_path: Path) -> None:
    """Chen et al. 2022, §2.3: with zeros for the estimate, the widened model is the checkpoint."""
    base = load_base(str(folders["sd"]))
    narrow = stepper(base, CheckpointDenoiser(base.denoiser)).evaluate(batch(1, 2))
    base = load_base(str(folders["sd"]))
    denoiser = CheckpointDenoiser(base.denoiser, self_conditioned=True)
    wide = stepper(base, denoiser)
    assert wide.evaluate(batch(1, 2)) == pytest.approx(narrow, rel=1e-5)
    with torch.no_grad():
        denoiser.trainable()["conv_in.weight"].add_(0.01)
    once, twice = batch(1, 2), Batch(0, SIZE, batch(1, 2).rows, 2, pixels, second_pass=True)
    assert wide.evaluate(once) != pytest.approx(wide.evaluate(twice), rel=1e-3)
    expected = wide.evaluate(once)
    export_model(base, denoiser, tmp_path / "out", "about")
    served = load_base(str(tmp_path / "out"))
    assert served.denoiser.config.in_channels == 4
    assert stepper(served, CheckpointDenoiser(served.denoiser)).evaluate(once) == pytest.approx(expected, rel=1e-4)


@pytest.mark.parametrize("family", ["sd", "sdxl", "sd3"])
def test_adapters_are_merged_into_a_folder_that_loads(folders: dict[str, Path], family: str, tmp_path: Path) -> None:
    pytest.importorskip("peft")
    base = load_base(str(folders[family]))
    denoiser = CheckpointDenoiser(base.denoiser, lora=LoraSettings(rank=2), seed=1)
    made = stepper(base, denoiser)
    before = made.evaluate(batch(1, 2))
    assert all("lora_" in name for name in made.parameters())
    with torch.no_grad():
        for value in made.parameters().values():
            value.add_(0.1)
    expected = made.evaluate(batch(1, 2))
    assert abs(expected - before) > 1e-5
    write_adapter(base, denoiser, tmp_path / "adapter")
    card = export_model(base, denoiser, tmp_path / "Mine", "two squares")
    assert not list((tmp_path / "Mine").glob("export.partial"))
    served = load_base(str(tmp_path / "Mine"))
    whole = CheckpointDenoiser(served.denoiser)
    assert stepper(served, whole).evaluate(batch(1, 2)) == pytest.approx(expected, rel=1e-4)
    found = find_card(str(tmp_path / "Mine"))
    assert (found.name, found.about, found.family) == ("mine", "two squares", find_card(str(folders[family])).family)
    assert found.weights_hash == card.weights_hash != find_card(str(folders[family])).weights_hash
    fresh = load_base(str(folders[family]))
    fresh.pipeline.load_lora_weights(tmp_path / "adapter")  # as other programs read adapters
    fresh.denoiser.fuse_lora()
    fresh.denoiser.unload_lora()
    alone = stepper(fresh, CheckpointDenoiser(fresh.denoiser)).evaluate(batch(1, 2))
    assert alone == pytest.approx(expected, rel=1e-4)


def test_adapters_are_merged_into_the_weights_of_the_checkpoint_not_into_rounded_ones(
    folders: dict[str, Path], tmp_path: Path
) -> None:
    """On a GPU the frozen weights are bfloat16 by default; every exported weight was."""
    pytest.importorskip("peft")
    base = load_base(str(folders["sd"]))
    before = {name: value.clone() for name, value in base.denoiser.state_dict().items()}
    export_model(base, CheckpointDenoiser(base.denoiser, lora=LoraSettings(rank=2), dtype=torch.bfloat16), tmp_path, "")
    after = load_base(str(tmp_path)).denoiser.state_dict()
    assert before.keys() == after.keys()  # adapters start as no change
    assert all(torch.allclose(after[name], value, rtol=1e-6, atol=1e-8) for name, value in before.items())


def test_an_export_has_the_number_format_of_its_base(folders: dict[str, Path], tmp_path: Path) -> None:
    base = load_base(str(folders["sd"]))
    base.pipeline.to(torch.float16).save_pretrained(tmp_path / "half")
    base = load_base(str(tmp_path / "half"))
    assert base.denoiser.dtype == torch.float32
    export_model(base, CheckpointDenoiser(base.denoiser), tmp_path / "out", "")
    for name in ("unet", "text_encoder"):
        file, other = next((tmp_path / "half" / name).glob("*.safetensors")), tmp_path / "out" / name
        assert (other / file.name).stat().st_size == file.stat().st_size


@pytest.mark.parametrize(
    ("model", "said"),
    [
        ("noop:", "has no weights to train"),
        ("nowhere", "model 'nowhere': not bundled:NAME"),
        ("bundled:motion", "must be a checkpoint of StableDiffusionPipeline, StableDiffusionXL"),
    ],
)
def test_other_models_are_refused(model: str, said: str) -> None:
    with pytest.raises(ModelError, match="model") as raised:
        load_base(model)
    assert said in str(raised.value)


def test_targets_that_name_no_layer_are_refused(folders: dict[str, Path]) -> None:
    pytest.importorskip("peft")
    base = load_base(str(folders["sd"]))
    with pytest.raises(ModelError, match=r"lora\.targets: no layer of the model has such a name"):
        CheckpointDenoiser(base.denoiser, lora=LoraSettings(targets=("nothing",)))


def test_layers_of_t5_that_overflow_stay_in_fp32(folders: dict[str, Path], photos: Path, tmp_path: Path) -> None:
    settings = settings_of(folders["sd3"], photos, tmp_path, precision="fp16")
    model = load(settings, torch.device("cpu"), tmp_path)
    layers = model.base.pipeline.text_encoder_3.named_parameters()
    formats = {name.rsplit(".", 2)[-2]: value.dtype for name, value in layers}
    assert (formats["wo"], formats["wi"]) == (torch.float32, torch.float16)
    assert model.encoders.encode(batch(1))[1]["encoder_hidden_states"].isfinite().all()


def test_one_rank_runs_no_pipeline_and_says_so(folders: dict[str, Path], photos: Path, tmp_path: Path) -> None:
    settings = settings_of(folders["sd"], photos, tmp_path, ranks={"parallel": "pipeline"})
    model, said = load(settings, torch.device("cpu"), tmp_path), list[str]()
    made = new_stepper(settings, model, batch(1, 2, 3, 4), RunFolder(tmp_path), Place(), said.append)
    assert isinstance(made, SingleProcess)
    assert said == ["one rank: a pipeline needs several, and ranks.parallel has no effect"]


def test_encoders_that_stay_on_a_gpu_are_counted(folders: dict[str, Path], photos: Path, tmp_path: Path) -> None:
    model = load(settings_of(folders["sdxl"], photos, tmp_path), torch.device("cpu"), tmp_path)
    pipeline = model.base.pipeline
    counts = [one.num_parameters() for one in (pipeline.vae, pipeline.text_encoder, pipeline.text_encoder_2)]
    assert encoder_bytes(model) == 4 * sum(counts)


def test_fp32_layers_of_a_half_precision_base_are_trained(folders: dict[str, Path]) -> None:
    pytest.importorskip("peft")
    base = load_base(str(folders["sd"]))
    denoiser = CheckpointDenoiser(base.denoiser, lora=LoraSettings(rank=2), dtype=torch.bfloat16)
    assert {value.dtype for value in denoiser.trainable().values()} == {torch.float32}
    encoders, objective = CheckpointEncoders(base.pipeline, base.denoiser), objective_of(base.scheduler_config)
    made = SingleProcess(denoiser, encoders, objective, autocast=torch.autocast("cpu", torch.bfloat16))
    loss = made.step(batch(1, 2))
    assert made.gradient_norm() > 0
    assert loss == pytest.approx(made.evaluate(batch(1, 2)), rel=1e-2)
