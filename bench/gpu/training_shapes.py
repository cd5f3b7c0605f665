"""Frozen share and partial-batch times of true training shapes on one GPU (DiffusionPipe Table 1).

    python -m bench.gpu.training_shapes
    python -m bench.gpu.training_shapes --tiny        # tiny models and sizes, on any machine: a check of the script

Stable Diffusion 2.1 and a ControlNet over Stable Diffusion 1.5 at 512 pixels, and SDXL at 1024 pixels. The weights are
random. Every layer is measured for itself at every local batch size: the trained part forward and backward under
bfloat16 autocast with float32 weights, the frozen part forward in bfloat16. The frozen share is the frozen part's time
over the trained part's. The figures hold backbones and frozen components in the format of the planner's profiles. On a
CPU everything is in float32.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from bench.measuring.quiet import quiet
from bench.measuring.recording import command_line, machine, record, settings_of, share, table

if TYPE_CHECKING:
    import torch

    from services.trainer.pipeline.costs.profile import Backbone
    from services.trainer.pipeline.runtime.splitting.chain import Chain, State

PAPER = {"sd-2.1": {8: 0.38, 16: 0.41, 32: 0.43, 64: 0.44}, "controlnet-1.0": {8: 0.76, 16: 0.81, 32: 0.86, 64: 0.89}}
"""Table 1: A100, precision not stated."""
SIZES = (4, 8, 12, 16, 24, 32, 48, 64)
MODELS = ("sd-2.1", "controlnet-1.0", "sdxl")
LARGEST = {"sdxl": 16}
"""Largest local batch size of a model that has a smaller one than the others."""
UNET = {
    "sample_size": 64,
    "block_out_channels": (320, 640, 1280, 1280),
    "down_block_types": ("CrossAttnDownBlock2D",) * 3 + ("DownBlock2D",),
    "up_block_types": ("UpBlock2D",) + ("CrossAttnUpBlock2D",) * 3,
    "layers_per_block": 2,
}
SD21 = {**UNET, "attention_head_dim": (5, 10, 20, 20), "cross_attention_dim": 1024, "use_linear_projection": True}
SD15 = {**UNET, "attention_head_dim": 8, "cross_attention_dim": 768}
TINY = {
    "block_out_channels": (32, 64),
    "down_block_types": ("CrossAttnDownBlock2D", "DownBlock2D"),
    "up_block_types": ("UpBlock2D", "CrossAttnUpBlock2D"),
    "layers_per_block": 1,
}
H14 = {"hidden_size": 1024, "intermediate_size": 4096, "num_hidden_layers": 23, "num_attention_heads": 16}
L14 = {"hidden_size": 768, "intermediate_size": 3072, "num_hidden_layers": 12, "num_attention_heads": 12}
G14 = {"hidden_size": 1280, "intermediate_size": 5120, "num_hidden_layers": 32, "num_attention_heads": 20}
TOKENS = 77


@dataclass(frozen=True)
class Training:
    """What one model trains: the backbone, and the frozen chains with those that each one reads."""

    backbone: Chain
    frozen: tuple[tuple[Chain, tuple[str, ...]], ...]
    inputs: Callable[[Chain, int], State]
    """Random inputs of a chain for a number of samples."""


def main(given: Sequence[str] | None = None) -> None:
    parser = command_line(__doc__)
    parser.add_argument("--models", nargs="+", choices=MODELS, default=list(MODELS))
    parser.add_argument("--sizes", type=int, nargs="+", default=list(SIZES), help="local batch sizes, ascending")
    parser.add_argument("--repeats", type=int, default=3, help="timed passes, after one more")
    parser.add_argument("--tiny", action="store_true", help="tiny models and sizes, on the CPU if there is no GPU")
    asked = parser.parse_args(given)
    quiet()
    import torch

    if not torch.cuda.is_available() and not asked.tiny:
        raise SystemExit(
            "bench.gpu.training_shapes: no CUDA device here: nothing was measured (--tiny checks the script)"
        )
    if asked.tiny:
        torch.set_num_threads(1)
    on, device = machine(), torch.device("cuda" if torch.cuda.is_available() else "cpu")
    sizes = [1, 2] if asked.tiny else asked.sizes
    figures: dict[str, Any] = {}
    for name in asked.models:
        begun = time.perf_counter()
        figures[name] = measured(name, device, [size for size in sizes if size <= LARGEST.get(name, size)], asked)
        figures[name]["measured_in_s"] = time.perf_counter() - begun
        print_model(name, figures[name])
        if device.type == "cuda":
            torch.cuda.empty_cache()
    record("gpu_training_shapes", figures, settings_of(asked) | {"device": str(device)}, on=on, folder=asked.out)


def measured(name: str, device: torch.device, sizes: Sequence[int], asked: Any) -> dict[str, Any]:
    """Return the layers' times of one model, the frozen share by size, and the peak memory."""
    import torch

    from services.trainer.pipeline.runtime.measuring import measured_backbone, measured_component

    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
    training = built(name, device, asked.tiny)
    autocast = torch.autocast(device.type, torch.bfloat16, enabled=device.type == "cuda")

    def inputs(chain: Chain) -> Callable[[int], State]:
        return lambda count: training.inputs(chain, count)

    backbone = measured_backbone(
        training.backbone, inputs(training.backbone), sizes, repeats=asked.repeats, autocast=autocast
    )
    frozen = [
        measured_component(chain, inputs(chain), sizes, after=after, repeats=asked.repeats)
        for chain, after in training.frozen
    ]
    return {
        "local_batch_sizes": list(sizes),
        "trained_s": [_trained_s(backbone, size) for size in sizes],
        "frozen_s": [sum(one.whole_s(size) for one in frozen) for size in sizes],
        "frozen_share": [sum(one.whole_s(size) for one in frozen) / _trained_s(backbone, size) for size in sizes],
        "paper_share": [PAPER.get(name, {}).get(size) for size in sizes],
        "whole_model_s": _whole_s(training, sizes[0], device, autocast, asked.repeats),
        "peak_bytes": torch.cuda.max_memory_allocated(device) if device.type == "cuda" else 0,
        "backbone": backbone.model_dump(mode="json"),
        "frozen": [one.model_dump(mode="json") for one in frozen],
    }


def _trained_s(backbone: Backbone, size: int) -> float:
    return sum(backbone.forward_s(at, size) + backbone.backward_s(at, size) for at in range(len(backbone.layers)))


def _whole_s(training: Training, size: int, device: Any, autocast: Any, repeats: int) -> float:
    """Return the seconds of forward and backward of the uncut backbone at one size: a check of the layers' sum."""
    import torch

    from services.trainer.pipeline.runtime.measuring import Stopwatch

    watch, taken = Stopwatch(device), []
    given = training.inputs(training.backbone, size)
    for number in range(1 + repeats):
        watch.mark()
        with autocast or nullcontext():
            found = training.backbone(given)["prediction"]
        torch.autograd.backward(found.float().square().mean())
        watch.mark()
        seconds = watch.seconds()[0]
        if number:
            taken.append(seconds)
        for layer in training.backbone.layers:
            for parameter in layer.parameters().values():
                parameter.grad = None
    return sorted(taken)[len(taken) // 2]


def built(name: str, device: torch.device, tiny: bool) -> Training:
    """Build random weights of a published shape on the device: what trains in float32, the frozen part in bfloat16."""
    import torch
    from diffusers import AutoencoderKL, ControlNetModel, UNet2DConditionModel
    from transformers import CLIPTextConfig, CLIPTextModel, CLIPTextModelWithProjection

    from bench.gpu.gpu_shapes import KL, SDXL
    from services.trainer.pipeline.runtime.measuring import frozen_module
    from services.trainer.pipeline.runtime.splitting.controlnet import controlnet_chain, locked_encoder
    from services.trainer.pipeline.runtime.splitting.encoders import clip_chain, vae_chain
    from services.trainer.pipeline.runtime.splitting.unet import unet_chain

    half, layout = torch.bfloat16 if device.type == "cuda" else torch.float32, torch.channels_last
    small = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 3, "num_attention_heads": 2}
    pixels = (32 if tiny else 1024 if name == "sdxl" else 512) // 8

    def unet(config: dict[str, Any]) -> Any:
        made = {**config, **({**TINY, "attention_head_dim": 8, "cross_attention_dim": 32} if tiny else {})}
        return UNet2DConditionModel(**made).to(memory_format=layout)

    def text(config: dict[str, Any], kind: Any = CLIPTextModel) -> Any:
        width = small if tiny else config
        projection = {"projection_dim": width["hidden_size"], "hidden_act": "gelu"}
        return frozen_module(kind(CLIPTextConfig(**width, **projection))).to(half)

    def vae() -> Chain:
        shape = {**KL, "latent_channels": 4, **({"block_out_channels": (32,) * 4} if tiny else {})}
        return vae_chain(frozen_module(AutoencoderKL(**shape).to(memory_format=layout)).to(half))

    frozen: list[tuple[Chain, tuple[str, ...]]]

    with device:
        if name == "sd-2.1":
            encoder, wide = text(H14), 32 if tiny else 1024
            chain = unet_chain(unet(SD21))
            frozen = [(clip_chain(encoder, "text", ids="ids", last="states"), ()), (vae(), ())]
        elif name == "controlnet-1.0":
            locked, wide = frozen_module(unet(SD15)), 32 if tiny else 768
            control = ControlNetModel.from_unet(locked).to(memory_format=layout).train()
            chain = controlnet_chain(control.requires_grad_(True), locked)
            frozen = [(clip_chain(text(L14), "text", ids="ids", last="states"), ()), (vae(), ())]
            half_copy = frozen_module(unet(SD15)).to(half)
            frozen.append((locked_encoder(half_copy), ("text", "vae")))
        else:
            first, second, wide = text(L14), text(G14, CLIPTextModelWithProjection), 32 if tiny else 2048
            added = {"transformer_layers_per_block": 1, "projection_class_embeddings_input_dim": 32 + 6 * 256}
            chain = unet_chain(unet({**SDXL, **(added if tiny else {})}))
            frozen = [
                (clip_chain(first, "text", ids="ids", penultimate="states"), ()),
                (clip_chain(second, "text 2", ids="ids", penultimate="states 2", pooled="text_embeds"), ()),
                (vae(), ()),
            ]

    def inputs(chain: Chain, count: int) -> State:
        dtype = torch.float32 if chain.name in ("unet", "controlnet") else half

        def latent(*shape: int) -> torch.Tensor:
            return torch.randn(count, *shape, device=device, dtype=dtype).contiguous(memory_format=layout)

        def made(wanted: str) -> torch.Tensor:
            if wanted in ("ids", "timestep"):
                return torch.randint(1000, (count, TOKENS) if wanted == "ids" else (count,), device=device)
            if wanted == "encoder_hidden_states":
                return torch.randn(count, TOKENS, wide, device=device, dtype=dtype)
            if wanted == "text_embeds":
                return torch.randn(count, 32 if tiny else 1280, device=device, dtype=dtype)
            if wanted == "time_ids":
                return torch.full((count, 6), 512.0, device=device)
            return latent(3, 8 * pixels, 8 * pixels) if wanted in ("pixels", "hint") else latent(4, pixels, pixels)

        found = {wanted: made(wanted) for wanted in chain.inputs if not wanted.startswith("locked.")}
        if len(found) < len(chain.inputs):  # the backbone of a ControlNet reads what the locked encoder makes
            locked_chain = frozen[-1][0]
            read = {key: found[key] for key in locked_chain.inputs}
            with torch.no_grad():
                locked_state = locked_chain({k: v.to(half) if v.is_floating_point() else v for k, v in read.items()})
            found |= {key: one.to(dtype) for key, one in locked_state.items()}
        return found

    return Training(chain, tuple(frozen), inputs)


def print_model(name: str, found: dict[str, Any]) -> None:
    """Print the frozen share by size, and the longest frozen layers at each size."""
    sizes = found["local_batch_sizes"]
    rows = [
        [size, 1000 * trained, 1000 * frozen, share(part), share(paper, 0)]
        for size, trained, frozen, part, paper in zip(
            sizes, found["trained_s"], found["frozen_s"], found["frozen_share"], found["paper_share"], strict=True
        )
    ]
    print(f"\n{name}: uncut at {sizes[0]} samples {1000 * found['whole_model_s']:.3g} ms\n")
    print(table(["local batch", "trained, ms", "frozen, ms", "frozen share", "paper (A100)"], rows))
    layers = [(part["name"], layer) for part in found["frozen"] for layer in part["layers"]]
    longest = sorted(layers, key=lambda one: -one[1]["forward_s"][-1])[:5]
    print("\nLongest frozen layers, ms by samples of a partial batch\n")
    print(
        table(
            ["layer", *map(str, sizes)],
            [[f"{part}: {layer['name']}", *(1000 * one for one in layer["forward_s"])] for part, layer in longest],
        )
    )


if __name__ == "__main__":
    main()
