"""Tiny random checkpoints of the families whose VAE compresses time, see tiny_families."""

from __future__ import annotations

from typing import Any

from tests.tiny_parts import WIDTH, t5_tokenizer, umt5


def wan(**choices: Any) -> Any:
    """A WanPipeline: 4 latent channels, f = 4, 4 frames a latent frame, its published scheduler (UniPC, shift 3)."""
    import diffusers

    transformer = diffusers.WanTransformer3DModel(
        num_attention_heads=2,
        attention_head_dim=16,
        in_channels=4,
        out_channels=4,
        text_dim=WIDTH,
        freq_dim=32,
        ffn_dim=32,
        num_layers=2,
        rope_max_seq_len=32,
    )
    vae = diffusers.AutoencoderKLWan(
        base_dim=4,
        z_dim=4,
        dim_mult=[1, 2, 2],
        num_res_blocks=1,
        temperal_downsample=[True, True],
        latents_mean=[-0.7, 0.1, 0.9, -0.2],
        latents_std=[2.8, 1.4, 2.3, 1.9],
        scale_factor_spatial=4,
    )
    return diffusers.WanPipeline(
        tokenizer=t5_tokenizer(),
        text_encoder=umt5(),
        vae=vae.eval(),
        transformer=transformer.eval(),
        scheduler=diffusers.UniPCMultistepScheduler(
            prediction_type="flow_prediction", use_flow_sigmas=True, flow_shift=3.0
        ),
        **choices,
    )
