"""Profiles of true training shapes on GPUs: layers as measured on one, links as assumed.

    python -m bench.pipeline.gpu_profiles out/profiles

reads results/gpu_training_shapes.json (`bench.gpu.training_shapes`) and writes a profile of each model, for `afterimage
train plan --profile`. No link was measured: the bandwidths are parameters.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from bench.measuring.recording import RESULTS
from services.trainer.pipeline.costs.profile import AllReduce, Backbone, FrozenComponent, Link, Profile
from services.trainer.pipeline.costs.profile_file import write_profile

SHAPES = RESULTS / "gpu_training_shapes.json"
DEVICES = (2, 4, 8, 16, 32, 64)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, help="folder of the profiles")
    parser.add_argument("--p2p", type=float, default=300e9, help="bytes/s between two devices")
    parser.add_argument("--all-reduce", type=float, default=200e9, help="bytes/s of gradients in an all-reduce")
    parser.add_argument("--latency", type=float, default=20e-6, help="seconds of a message")
    asked = parser.parse_args()
    measured = json.loads(SHAPES.read_text(encoding="utf-8"))
    asked.folder.mkdir(parents=True, exist_ok=True)
    for name, figures in measured["figures"].items():
        link = {"latency_s": asked.latency, "bandwidth_bytes_per_s": asked.all_reduce}
        profile = Profile(
            source=f"{name}, layers measured on one {measured['machine']['gpu']}; links assumed: {asked.p2p:.3g} "
            f"bytes/s between two devices, {asked.all_reduce:.3g} in an all-reduce",
            backbones=(Backbone.model_validate(figures["backbone"]),),
            frozen=tuple(FrozenComponent.model_validate(one) for one in figures["frozen"]),
            p2p=Link(latency_s=asked.latency, bandwidth_bytes_per_s=asked.p2p),
            all_reduce=tuple(AllReduce(devices=count, **link) for count in DEVICES),
        )
        write_profile(profile, asked.folder / f"{name}.json")
        print(f"wrote {asked.folder / f'{name}.json'}")


if __name__ == "__main__":
    main()
