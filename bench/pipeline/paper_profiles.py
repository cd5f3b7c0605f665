"""Profiles of SD 2.1, ControlNet 1.0 and a cascade, made from the numbers in facts.json.

    python -m bench.pipeline.paper_profiles

writes `sd-2.1.json` and `controlnet-1.0.json` beside facts.json, for `afterimage train plan --profile`.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from services.trainer.pipeline.costs.profile import (
    AllReduce,
    Backbone,
    FrozenComponent,
    FrozenLayer,
    Link,
    Profile,
    TrainableLayer,
)
from services.trainer.pipeline.costs.profile_file import write_profile

HERE = Path(__file__).parent
MODELS = ("sd-2.1", "controlnet-1.0")
LARGEST = 64
"""Batch at which the frozen layers are given."""


def facts() -> dict[str, Any]:
    found: dict[str, Any] = json.loads((HERE / "facts.json").read_text(encoding="utf-8"))
    return found


def paper_profile(model: str) -> Profile:
    """Return the profile of sd-2.1 or controlnet-1.0."""
    known = facts()
    frozen = _frozen(model, known["frozen_layers_s_at_64"])
    frozen_s = sum(component.whole_s(LARGEST) for component in frozen)
    shares = dict(zip(known["frozen_share"]["batches"], known["frozen_share"][model], strict=True))
    trainable = {batch: frozen_s * batch / LARGEST / share for batch, share in shares.items()}
    parameters = known["parameters"][model]
    backbone = _backbone("unet", trainable, parameters, trained_half=model == "controlnet-1.0")
    gradient_bytes = parameters * known["parameters"]["gradient_bytes"]
    computed_s = trainable[8] + frozen_s * 8 / LARGEST
    return Profile(
        source=f"{model} on A100, simulated: bench/pipeline/facts.json has each number with its source",
        backbones=(backbone,),
        frozen=frozen,
        p2p=_link(),
        all_reduce=_all_reduce(model, computed_s, gradient_bytes),
        optimizer_bytes_per_parameter_byte=known["parameters"]["kept_bytes"] / 2 - 2,
    )


def cascade_profile() -> Profile:
    """Return the profile of a cascade of two backbones; its all-reduce is SD 2.1's, byte for byte."""
    known = facts()["cascade"]
    backbones = tuple(
        _backbone(name, {LARGEST: seconds}, parameters)
        for name, seconds, parameters in zip(
            ("low", "high"), known["trainable_s_at_64"], known["parameters"], strict=True
        )
    )
    layer = FrozenLayer(name="text", forward_s=(known["frozen_s_at_64"] / 10,))
    layers = tuple(layer.model_copy(update={"name": f"text {at}"}) for at in range(10))
    frozen = (FrozenComponent(name="text_encoder", local_batch_sizes=(LARGEST,), layers=layers),)
    base = paper_profile("sd-2.1")
    return base.model_copy(update={"source": "cascade", "backbones": backbones, "frozen": frozen})


def _frozen(model: str, known: dict[str, Any]) -> tuple[FrozenComponent, ...]:
    image = known["image_encoder"]
    lists = {
        "text_encoder": [known["text_encoder"]["seconds"]] * known["text_encoder"]["count"],
        "image_encoder": [
            image["long_s"] if at in image["long_at"] else image["seconds"] for at in range(image["count"])
        ],
    }
    if model == "controlnet-1.0":
        lists["locked_encoder"] = [known["locked_encoder"]["seconds"]] * known["locked_encoder"]["count"]
    after = {"locked_encoder": ("text_encoder", "image_encoder")}
    return tuple(
        FrozenComponent(
            name=name,
            local_batch_sizes=(LARGEST,),
            layers=tuple(FrozenLayer(name=f"{name} {at}", forward_s=(one,)) for at, one in enumerate(seconds)),
            after=after.get(name, ()),
        )
        for name, seconds in lists.items()
    )


def _backbone(name: str, seconds: dict[int, float], parameters: int, *, trained_half: bool = False) -> Backbone:
    """Return a U-Net. trained_half: only layers up to the middle have gradients, as in a ControlNet."""
    known = facts()
    weights, forward = known["backbone_layers"]["weights"], known["backbone_layers"]["forward_share"]
    trained = [weight * (not trained_half or at <= len(weights) // 2) for at, weight in enumerate(weights)]
    layers = []
    for at, weight in enumerate(weights):
        share = weight / sum(weights)
        held = trained[at] / sum(trained) * parameters * 2
        layers.append(
            TrainableLayer(
                name=f"block {at}",
                forward_s=tuple(forward * share * one for one in seconds.values()),
                backward_s=tuple((1 - forward) * share * one for one in seconds.values()),
                output_bytes_per_sample=known["sent_bytes_per_sample"]["value"],
                gradient_bytes=held,
                parameter_bytes=held,
                activation_bytes_per_sample=share * known["activation_bytes_per_sample"]["value"],
            )
        )
    return Backbone(name=name, local_batch_sizes=tuple(seconds), layers=tuple(layers))


def _link() -> Link:
    known = facts()["p2p"]
    return Link(latency_s=known["latency_s"], bandwidth_bytes_per_s=known["bandwidth_bytes_per_s"])


def _all_reduce(model: str, computed_s: float, gradient_bytes: float) -> tuple[AllReduce, ...]:
    """Return links whose all-reduce of the whole model takes Table 2's share of an iteration at local batch 8."""
    known = facts()["sync_share"]
    return tuple(
        AllReduce(devices=devices, bandwidth_bytes_per_s=gradient_bytes / (share / (1 - share) * computed_s))
        for devices, share in zip(known["devices"], known[model], strict=True)
    )


def main() -> None:
    for model in MODELS:
        write_profile(paper_profile(model), HERE / f"{model}.json")
        print(f"wrote {HERE / f'{model}.json'}")


if __name__ == "__main__":
    main()
