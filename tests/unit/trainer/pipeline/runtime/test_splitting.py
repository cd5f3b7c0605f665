"""The chain of all layers gives the model's own result bit for bit, wherever it is cut."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
import torch
from diffusers import AutoencoderTiny, ControlNetModel, SD3Transformer2DModel
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from transformers import CLIPTextConfig, CLIPTextModelWithProjection

from services.trainer.pipeline.runtime.splitting.chain import Chain, State
from services.trainer.pipeline.runtime.splitting.controlnet import controlnet_chain, locked_encoder
from services.trainer.pipeline.runtime.splitting.encoders import clip_chain, vae_chain
from services.trainer.pipeline.runtime.splitting.transformer import transformer_chain
from services.trainer.pipeline.runtime.splitting.unet import unet_chain
from shared.domain.errors import ModelError
from tests.unit.trainer.pipeline.runtime.tiny_jobs import SIDE, TOKENS, WIDE, tiny_text, tiny_unet, tiny_vae

DOWN, UP = {"": "DownBlock2D", "a": "CrossAttnDownBlock2D"}, {"": "UpBlock2D", "a": "CrossAttnUpBlock2D"}


def run_in_stages(chain: Chain, given: State, cuts: list[int]) -> State:
    """Run a chain stage by stage; each one gets only what the cut before sends and the inputs it reads."""
    crossed: State = {}
    ends = [0, *sorted(cuts), len(chain.layers)]
    for first, last in itertools.pairwise(ends):
        layers = range(first, last)
        assert set(crossed) == set(chain.crossing(first))
        crossed = chain.run(layers, crossed | {name: given[name] for name in chain.read_by(layers)})
    return crossed


def inputs(size: tuple[int, int] = (SIDE, SIDE), rows: int = 2) -> State:
    return {
        "sample": torch.randn(rows, 4, *size),
        "timestep": torch.tensor([3, 900])[:rows],
        "encoder_hidden_states": torch.randn(rows, TOKENS, WIDE),
    }


@st.composite
def unets(draw: st.DrawFn) -> dict[str, Any]:
    """Draw the configuration of a tiny UNet."""
    kinds = draw(st.lists(st.sampled_from(["", "a"]), min_size=1, max_size=3))
    return {
        "block_out_channels": tuple(draw(st.sampled_from([4, 8])) for _ in kinds),
        "norm_num_groups": 2,
        "down_block_types": tuple(DOWN[kind] for kind in kinds),
        "up_block_types": tuple(UP[kind] for kind in reversed(kinds)),
        "mid_block_type": draw(st.sampled_from([None, "UNetMidBlock2D", "UNetMidBlock2DCrossAttn"])),
        "layers_per_block": draw(st.integers(1, 2)),
        "addition_embed_type": draw(st.sampled_from([None, "text"])),
        "addition_embed_type_num_heads": 2,
        "resnet_time_scale_shift": draw(st.sampled_from(["default", "scale_shift"])),
        "encoder_hid_dim": draw(st.sampled_from([None, WIDE])),
    }


@settings(max_examples=12)
@given(config=unets(), size=st.tuples(st.integers(4, 9), st.integers(4, 9)), data=st.data())
def test_a_unet_of_any_shape_can_be_cut_anywhere(config: dict[str, Any], size: tuple[int, int], data: Any) -> None:
    unet = tiny_unet(**config)
    chain, state = unet_chain(unet), inputs(size)
    cuts = data.draw(st.lists(st.integers(1, len(chain.layers) - 1), max_size=3, unique=True))
    with torch.no_grad():
        whole = unet(**state).sample
        assert torch.equal(run_in_stages(chain, state, cuts)["prediction"], whole)
    names = [name for layer in chain.layers for name in layer.parameters()]
    assert sorted(names) == sorted(name for name, _ in unet.named_parameters())


def test_added_conditions_of_sdxl_and_an_estimate_are_inputs_of_the_first_layer() -> None:
    unet = tiny_unet(
        in_channels=8, addition_embed_type="text_time", addition_time_embed_dim=4,
        projection_class_embeddings_input_dim=6 * 4 + WIDE, transformer_layers_per_block=(1, 2),
    )  # fmt: skip
    chain = unet_chain(unet, self_conditioned=True)
    added = {"text_embeds": torch.randn(2, WIDE), "time_ids": torch.randn(2, 6)}
    given, estimate = inputs(), torch.randn(2, 4, SIDE, SIDE)
    wide = {**given, "sample": torch.cat([given["sample"], estimate], dim=1)}
    with torch.no_grad():
        whole = unet(**wide, added_cond_kwargs=added).sample
        assert torch.equal(chain(given | added | {"estimate": estimate})["prediction"], whole)
    assert set(chain.read_by(range(1, 3))) <= {"encoder_hidden_states"}


def test_skips_pass_through_the_stages_between() -> None:
    chain = unet_chain(tiny_unet())
    middle = next(at for at, layer in enumerate(chain.layers) if layer.name.startswith("mid_block"))
    assert {"hidden", "emb", "skip.0", "skip.1"} <= set(chain.crossing(middle))


def test_a_controlnet_over_a_locked_unet() -> None:
    unet = tiny_unet()
    net = ControlNetModel.from_unet(unet, conditioning_embedding_out_channels=(4, 8, 8, 8))
    for parameter in net.parameters():
        nn.init.normal_(parameter, std=0.1)
    unet.requires_grad_(False)
    encoder, chain = locked_encoder(unet), controlnet_chain(net, unet)
    given, hint = inputs(), torch.randn(2, 3, 8 * SIDE, 8 * SIDE)
    state = given | {"hint": hint} | {name: one.detach() for name, one in encoder(given).items()}
    found = run_in_stages(chain, state, [4, len(chain.layers) - 2])["prediction"]
    down, middle = net(**given, controlnet_cond=hint, return_dict=False)
    whole = unet(**given, down_block_additional_residuals=down, mid_block_additional_residual=middle).sample
    assert torch.equal(found, whole)
    names = {name for layer in chain.layers for name, one in layer.parameters().items() if one.requires_grad}
    assert names == {f"controlnet.{name}" for name, _ in net.named_parameters()}
    assert not any(
        "down_blocks" in name and name.startswith("unet") for layer in chain.layers for name in layer.modules
    )


def test_a_transformer_of_sd3() -> None:
    model = SD3Transformer2DModel(
        sample_size=SIDE, patch_size=2, in_channels=4, out_channels=4, num_layers=3, attention_head_dim=4,
        num_attention_heads=2, joint_attention_dim=WIDE, caption_projection_dim=8, pooled_projection_dim=WIDE,
        pos_embed_max_size=SIDE, qk_norm="rms_norm", dual_attention_layers=(0,),
    )  # fmt: skip
    chain, given, pooled = transformer_chain(model), inputs(), torch.randn(2, WIDE)
    found = run_in_stages(chain, given | {"pooled_projections": pooled}, [1, 3])["prediction"]
    whole = model(
        hidden_states=given["sample"], encoder_hidden_states=given["encoder_hidden_states"],
        pooled_projections=pooled, timestep=given["timestep"],
    ).sample  # fmt: skip
    assert torch.equal(found, whole)


@torch.no_grad()
def test_frozen_encoders() -> None:
    ids = torch.randint(0, 31, (2, TOKENS))
    ids[:, 3] = 31
    text = tiny_text().eval()
    own = text(ids, output_hidden_states=True)
    chain = clip_chain(text, "text", ids="ids", penultimate="early", last="states", pooled="vector")
    found = run_in_stages(chain, {"ids": ids}, [1, 2])
    assert torch.equal(found["early"], own.hidden_states[-2])
    assert torch.equal(found["states"], own.last_hidden_state)
    assert torch.equal(found["vector"], own.pooler_output)
    sizes = {"hidden_size": WIDE, "intermediate_size": 16, "num_hidden_layers": 3, "num_attention_heads": 2}
    ends = {"bos_token_id": 0, "eos_token_id": 31, "pad_token_id": 0}
    projected = CLIPTextModelWithProjection(CLIPTextConfig(vocab_size=32, projection_dim=6, **sizes, **ends)).eval()
    found = clip_chain(projected, "text 2", ids="ids", pooled="vector")({"ids": ids})
    assert torch.equal(found["vector"], projected(ids).text_embeds)
    vae, pixels = tiny_vae().eval(), torch.randn(2, 3, 16, 16)
    found = run_in_stages(vae_chain(vae), {"pixels": pixels}, [2])
    assert torch.equal(found["latents"], vae.encode(pixels).latent_dist.mode())
    small = AutoencoderTiny(
        encoder_block_out_channels=(4, 4), decoder_block_out_channels=(4, 4), num_encoder_blocks=(0, 1),
        num_decoder_blocks=(1, 0),
    ).eval()  # fmt: skip
    found = run_in_stages(vae_chain(small), {"pixels": pixels}, [1])
    assert torch.equal(found["latents"], small.encode(pixels).latents)


def test_a_model_that_cannot_be_cut_is_named() -> None:
    unet = tiny_unet(down_block_types=("ResnetDownsampleBlock2D", "CrossAttnDownBlock2D"))
    with pytest.raises(ModelError, match=r"down_block_types: .*\(got ResnetDownsampleBlock2D\)"):
        unet_chain(unet)
