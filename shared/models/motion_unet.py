"""The UNet of the bundled motion model: diffusers' motion UNet around the blocks of the bundled image models."""

from __future__ import annotations

from typing import Any

import torch
from diffusers import ModelMixin, UNet2DConditionModel, UNetMotionModel
from diffusers.configuration_utils import register_to_config
from diffusers.models.embeddings import TextTimeEmbedding, TimestepEmbedding
from torch import Tensor, nn

__all__ = ["ModelMixin", "TextMotionUNet"]
"""diffusers finds how to load a class of an imported module by the base classes that the module names."""


class TextMotionUNet(UNetMotionModel):
    """A UNetMotionModel that differs as the bundled image models differ from Stable Diffusion's UNet.

    The time embedding scales and shifts the features, the pooled text is added to it, and there is no middle block.
    Each frame's embedding also depends on its place in the clip, from 0 to 1, together with the words of the text: so
    the words say where an object is in each frame. Attention over time and the pooled text alone did not learn to
    follow words such as "left".
    """

    @register_to_config
    def __init__(
        self,
        sample_size: int = 16,
        in_channels: int = 4,
        out_channels: int = 4,
        down_block_types: tuple[str, ...] = ("DownBlockMotion", "DownBlockMotion"),
        up_block_types: tuple[str, ...] = ("CrossAttnUpBlockMotion", "UpBlockMotion"),
        block_out_channels: tuple[int, ...] = (48, 96),
        layers_per_block: int = 1,
        norm_num_groups: int = 16,
        cross_attention_dim: int = 128,
        num_attention_heads: int = 4,
        motion_max_seq_length: int = 16,
        motion_num_attention_heads: int = 4,
        text_heads: int = 4,
    ) -> None:
        super().__init__(
            sample_size=sample_size,
            in_channels=in_channels,
            out_channels=out_channels,
            down_block_types=down_block_types,
            up_block_types=up_block_types,
            block_out_channels=block_out_channels,
            layers_per_block=layers_per_block,
            norm_num_groups=norm_num_groups,
            cross_attention_dim=cross_attention_dim,
            num_attention_heads=num_attention_heads,
            motion_max_seq_length=motion_max_seq_length,
            motion_num_attention_heads=motion_num_attention_heads,
            use_motion_mid_block=False,
        )
        self.mid_block = _NoMiddle()
        width = block_out_channels[0]
        self.time_embedding = _TimeAndText(width, 4 * width, cross_attention_dim, text_heads)
        for block in (*self.down_blocks, *self.up_blocks):
            for resnet in block.resnets:
                resnet.time_embedding_norm = "scale_shift"
                resnet.time_emb_proj = nn.Linear(4 * width, 2 * resnet.out_channels)
        self.place_embedding = _Place(4 * width, self.time_embedding.words)
        for block in (*self.down_blocks, *self.up_blocks):
            block.register_forward_pre_hook(self._placed, with_kwargs=True)

    def _placed(self, _: nn.Module, args: Any, options: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
        return args, options | {"temb": self.place_embedding(options["temb"], options["num_frames"])}

    @classmethod
    def around(cls, unet: UNet2DConditionModel) -> TextMotionUNet:
        """Return an untrained motion UNet with every weight of an image UNet; at first it generates separate images."""
        kept = ("sample_size", "block_out_channels", "layers_per_block", "norm_num_groups", "cross_attention_dim")
        types = {
            f"{way}_block_types": tuple(name.replace("2D", "Motion") for name in unet.config[f"{way}_block_types"])
            for way in ("down", "up")
        }
        heads = {"num_attention_heads": unet.config.attention_head_dim}
        found = cls(**{name: unet.config[name] for name in kept}, **types, **heads)
        weights = {name.replace("add_embedding", "time_embedding.text"): one for name, one in unet.state_dict().items()}
        missing, unexpected = found.load_state_dict(weights, strict=False)
        new = ("motion_modules", "place_embedding", "time_embedding.word")
        if unexpected or any(not any(part in name for part in new) for name in missing):
            raise ValueError(f"unet: its blocks must be those of TextMotionUNet (got {(missing + unexpected)[:3]})")
        for block in (*found.down_blocks, *found.up_blocks):
            for motion in block.motion_modules:
                nn.init.zeros_(motion.proj_out.weight)
                nn.init.zeros_(motion.proj_out.bias)
        return found

    def forward(self, sample: Tensor, timestep: Tensor | float, encoder_hidden_states: Tensor, **options: Any) -> Any:
        """Predict from latents (B, C, F, h, w) with text states (B · F, tokens, width), each repeated F times."""
        texts = encoder_hidden_states[:: sample.shape[2]]
        return super().forward(sample, timestep, encoder_hidden_states, timestep_cond=texts, **options)


class _TimeAndText(TimestepEmbedding):
    """The time embedding plus the pooled text, which is the sum that UNet2DConditionModel builds from
    `addition_embed_type`; then the largest value of each feature among the words, for `_Place`."""

    words = 96

    def __init__(self, width: int, out: int, text_width: int, heads: int) -> None:
        super().__init__(width, out)
        self.text = TextTimeEmbedding(text_width, out, heads)
        self.word = nn.Linear(text_width, self.words)

    def forward(self, sample: Tensor, condition: Tensor) -> Tensor:
        """Return embeddings (B, out + words) of timesteps (B, width) and text states (B, tokens, text_width)."""
        return torch.cat([super().forward(sample) + self.text(condition), self.word(condition).amax(dim=1)], dim=1)


class _Place(nn.Module):
    """Replaces the words' part of each frame's embedding by what follows from it and the frame's place in the clip."""

    WAVES = 8

    def __init__(self, width: int, words: int) -> None:
        super().__init__()
        self.width = width
        self.inner = nn.Linear(width + words + 2 * self.WAVES, width)
        self.outer = nn.Linear(width, width)
        nn.init.zeros_(self.outer.weight)
        nn.init.zeros_(self.outer.bias)

    def forward(self, embedding: Tensor, frames: int) -> Tensor:
        """Return embeddings (B · F, width) of (B · F, width + words); those of a clip's frames follow each other."""
        waves = torch.pi * torch.arange(1, self.WAVES + 1, device=embedding.device)
        angles = torch.linspace(0, 1, frames, device=embedding.device)[:, None] * waves
        code = torch.cat([angles.sin(), angles.cos()], dim=1).to(embedding.dtype)
        code = code.repeat(len(embedding) // frames, 1)
        found: Tensor = self.outer(nn.functional.silu(self.inner(torch.cat([embedding, code], dim=1))))
        return embedding[:, : self.width] + found


class _NoMiddle(nn.Module):
    """A middle block that changes nothing."""

    def __init__(self) -> None:
        super().__init__()
        self.motion_modules = nn.ModuleList()

    def forward(self, hidden_states: Tensor, *_: Any, **__: Any) -> Tensor:
        return hidden_states
