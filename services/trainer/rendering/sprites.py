"""Source images of the scenes' objects, fetched from a package registry by version and hash, never committed."""

from __future__ import annotations

import base64
import hashlib
import io
import subprocess
import tarfile
from pathlib import Path

import numpy as np
import numpy.typing as npt
from PIL import Image

from shared.domain.errors import UnavailableError
from shared.models.scenes.grammar import OBJECTS

PACKAGE = "@lobehub/fluent-emoji-3d@1.1.0"
"""Microsoft's Fluent Emoji (MIT), repackaged as WebP images of 256×256 (MIT)."""
PACKAGE_SHA512 = "Wlq2lVStTnr8BDpIJ0pEnTKO4LuDxxqTEhTvRtD1DLRF0me7ogeRQjKoehDHXuVJ2Qaecgl5wRBv60lUAG3h7g=="
TARBALL = "lobehub-fluent-emoji-3d-1.1.0.tgz"
SPRITE_SIDE = 128

_CODE_POINTS = {
    "fox": "1f98a", "dog": "1f436", "panda": "1f43c", "rabbit": "1f430", "frog": "1f438", "penguin": "1f427",
    "elephant": "1f418", "whale": "1f433", "fish": "1f420", "turtle": "1f422", "butterfly": "1f98b", "snail": "1f40c",
    "duck": "1f986", "car": "1f697", "bus": "1f68c", "rocket": "1f680", "sailboat": "26f5", "umbrella": "2602-fe0f",
    "balloon": "1f388", "house": "1f3e0", "castle": "1f3f0", "tree": "1f333", "mushroom": "1f344",
    "sunflower": "1f33b", "hamburger": "1f354", "cupcake": "1f9c1", "donut": "1f369", "snowman": "26c4",
    "robot": "1f916", "ghost": "1f47b", "star": "2b50", "heart": "2764-fe0f", "gift": "1f381", "crown": "1f451",
    "hat": "1f3a9", "moon": "1f319",
}  # fmt: skip

Sprite = npt.NDArray[np.uint8]
"""Image of one object, `SPRITE_SIDE` square, RGBA, touching the bottom edge."""


class SpritesMissingError(UnavailableError):
    """The objects' source images could not be fetched; training and judging need a package registry once."""


def load_sprites(folder: Path) -> dict[str, Sprite]:
    """Return every object's sprite from the package in `folder`; fetch the package if it is missing.

    Raise SpritesMissingError if the registry cannot be reached or the package is not the pinned one.
    """
    tarball = folder / TARBALL
    if not tarball.exists():
        _fetch(folder)
    content = tarball.read_bytes()
    digest = base64.b64encode(hashlib.sha512(content).digest()).decode()
    if digest != PACKAGE_SHA512:
        raise SpritesMissingError(
            f"{tarball}: sha512 must be {PACKAGE_SHA512}, not {digest}; remove the file, and it is fetched again"
        )
    with tarfile.open(fileobj=io.BytesIO(content), mode="r:gz") as archive:
        wanted = {f"package/assets/{code}.webp": name for name, code in _CODE_POINTS.items()}
        found = {wanted[m.name]: archive.extractfile(m) for m in archive if m.name in wanted}
        pictures = {name: Image.open(io.BytesIO(file.read())) for name, file in found.items() if file is not None}
    return {name: _trimmed(pictures[name]) for name in OBJECTS}


def sprites_cached(folder: Path) -> bool:
    """Return whether the package is in `folder`."""
    return (folder / TARBALL).exists()


def _fetch(folder: Path) -> None:
    folder = folder.absolute()  # npm runs in it
    folder.mkdir(parents=True, exist_ok=True)
    command = ["npm", "pack", PACKAGE, "--loglevel", "error", "--pack-destination", str(folder)]
    try:
        subprocess.run(command, check=True, capture_output=True, timeout=120, cwd=folder, text=True)
    except (OSError, subprocess.SubprocessError) as error:
        said = (getattr(error, "stderr", None) or str(error)).strip().splitlines()
        raise SpritesMissingError(
            f"`{' '.join(command[:3])}` failed: {said[0] if said else error}. Training and judging need npm "
            f"and a registry that has this package, once; or the package's file as {folder / TARBALL}"
        ) from error


def _trimmed(picture: Image.Image) -> Sprite:
    picture = picture.convert("RGBA")
    box = picture.getchannel("A").point(lambda alpha: 255 if alpha > 20 else 0).getbbox()
    picture = picture.crop(box)
    side = max(picture.size)
    square = Image.new("RGBA", (side, side))
    square.paste(picture, ((side - picture.width) // 2, side - picture.height))
    return np.asarray(square.resize((SPRITE_SIDE, SPRITE_SIDE), Image.Resampling.LANCZOS))
