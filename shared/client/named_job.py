"""The job that a file of Afterimage names in its metadata: an image, a clip, or a folder with a clip's frames."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from shared.client.clip_file import CODECS, RESAMPLES, clip_format_of, resized
from shared.client.image_file import CLIP_JOB, EXIF_IFD, USER_COMMENT
from shared.domain.errors import InvalidRequestError
from shared.runtime import animated_png


def job_named_in(path: Path, field: str = "from") -> str:
    """Return the id of the job whose image or clip this file holds.

    field: the option that names the file. Raises InvalidRequestError for a file without such metadata, and
    ConfigurationError where the package that reads the format is missing.
    """
    frames = path.is_dir()
    known = _facts_in(path / "frame-0001.png" if frames else path, field)
    job, clip = known.get("job"), known.get(CLIP_JOB)
    if isinstance(clip, str) and not frames:
        rule = f"shows only a part of a clip; to start from the clip: --{field} {clip}"
        raise InvalidRequestError(field, rule, path)
    if not isinstance(named := clip if frames else job, str):
        rule = "must be the id of a job, or a file that Afterimage wrote, with its metadata"
        raise InvalidRequestError(field, rule, path)
    return named


def _facts_in(path: Path, field: str) -> Mapping[Any, Any]:
    """Return the metadata that the writers of image_file and clip_file gave the file; empty without any."""
    from PIL import Image

    try:
        if path.suffix.lower().removeprefix(".") in CODECS:
            clip_format_of(path, field)  # checks that PyAV is there
            return _of_video(path)
        with Image.open(path) as image:
            if image.format == "PNG":
                return image.info
            comment = image.info.get("comment") if image.format == "GIF" else None
            known = json.loads(comment or image.getexif().get_ifd(EXIF_IFD).get(USER_COMMENT, b"")[8:])
    except (OSError, Image.DecompressionBombError) as error:
        why = getattr(error, "strerror", None) or error
        raise InvalidRequestError(field, f"cannot be read ({why})", path) from error
    except (ValueError, TypeError, SyntaxError):  # metadata of other programs, or none that Pillow can read
        return {}
    return known if isinstance(known, dict) else {}


def _of_video(path: Path) -> Mapping[str, Any]:
    import av
    import av.error

    try:
        with av.open(str(path)) as file:
            return {name.lower(): value for name, value in file.metadata.items()}  # WebM has capitals
    except av.error.FFmpegError as error:
        raise OSError(error.strerror) from error


def keeps_pixels(path: Path) -> bool:
    """Return whether this file is a PNG: the other formats keep no exact pixels, and a folder is not read again."""
    from PIL import Image

    if path.is_dir() or path.suffix.lower().removeprefix(".") in CODECS:
        return False
    with Image.open(path) as image:
        return image.format == "PNG"


def same_pixels(path: Path, png: bytes) -> bool:
    """Return whether a PNG file holds exactly this image, or the frames of this clip, also as `--scale` writes them.
    Raises BlobCorruptError for a file that cannot be read."""
    from PIL import Image

    with Image.open(path) as image:
        if image.mode != "RGB":
            return False
    held, made = animated_png.decode(path.read_bytes()), animated_png.decode(png)
    count, height, width, channels = made.shape
    scale = held.shape[2] // width
    if held.shape != (count, height * scale, width * scale, channels):
        return False
    size = width * scale, height * scale
    return any(
        all(
            np.array_equal(one, np.asarray(other))
            for one, other in zip(held, resized(made, size, resample), strict=True)
        )
        for resample in RESAMPLES
    )
