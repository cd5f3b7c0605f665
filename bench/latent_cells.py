"""Rule for masks on the latent grid: the share of a cell's pixels that a mask must cover to hold the cell.

    python -m bench.latent_cells --count 128

Scenes of combinations never trained on give the object; the same light and style on another background give the
background. Clean latents of both are stitched by the true mask under each rule, and decoded. The decoded image is
compared with the rendering of that object on that background, encoded and decoded: so the error is that of the rule
alone (mean squared error of pixels from 0 to 1).
"""

from __future__ import annotations

import argparse
import random
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
from diffusers import AutoencoderTiny

from bench.measuring.recording import machine, record, table
from services.trainer.export import shipped_autoencoder
from services.trainer.judging.scenes import balanced_scenes
from services.trainer.rendering.backgrounds import background
from services.trainer.rendering.renderer import LATTICE, Renderer
from services.trainer.training import runs
from shared.domain.latent_cells import on_cells
from shared.models.scenes import VALUES, Scene

RULES = (0.01, 0.25, 0.5, 0.75, 1.0)
SEED, SIDE = 700, 64


def errors(renderer: Renderer, vae: AutoencoderTiny, count: int) -> dict[float, float]:
    """Return the mean squared error of each rule over `count` scenes."""
    rng, sums = random.Random(SEED), dict.fromkeys(RULES, 0.0)
    for scene in balanced_scenes(count, SEED):
        place = str(rng.choice([one for one in VALUES["background"] if one != scene.background]))
        for least, error in scene_errors(renderer, vae, scene, place).items():
            sums[least] += error / count
    return sums


@torch.no_grad()
def scene_errors(renderer: Renderer, vae: AutoencoderTiny, scene: Scene, place: str) -> dict[float, float]:
    """Return the mean squared error of each rule where a scene's objects go to another place."""
    wanted = replace(scene, background=place)
    own, goal = renderer.render(scene), renderer.render(wanted)
    bare = renderer.compose(wanted, background(place, scene.light, 0, SIDE, SIDE), ()).pixels
    sources = vae.encode(runs.to_tensor(np.stack([own.pixels, bare, goal.pixels]))).latents
    cells = [torch.from_numpy(on_cells(own.mask[None], LATTICE, least=least)) for least in RULES]
    stitched = torch.stack([torch.where(mask, sources[0], sources[1]) for mask in cells] + [sources[2]])
    images = vae.decode(stitched).sample.clamp(-1, 1) / 2
    return {least: float((image - images[-1]).square().mean()) for least, image in zip(RULES, images, strict=False)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=128, help="scenes")
    parser.add_argument("--sprites", type=Path, default=Path("out/train/sprites"), help="folder of the sprites")
    given = parser.parse_args()
    torch.set_num_threads(1)
    on = machine()
    found = errors(Renderer(given.sprites), shipped_autoencoder(), given.count)
    print(table(["least share", "error"], [[f"{least:g}", f"{error:.5f}"] for least, error in found.items()]))
    record(
        "latent_cells", {"mse": {f"{least:g}": error for least, error in found.items()}}, {"count": given.count}, on=on
    )


if __name__ == "__main__":
    main()
