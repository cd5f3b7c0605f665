"""An image as a file: PNG, JPEG or WebP by the name's ending, with prompt, seed and model as metadata."""

from __future__ import annotations

import io
import json
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from shared.domain.errors import InvalidRequestError
from shared.domain.types import Job

if TYPE_CHECKING:
    from PIL import Image, PngImagePlugin

FORMATS = {"": "PNG", ".png": "PNG", ".jpg": "JPEG", ".jpeg": "JPEG", ".webp": "WEBP"}
QUALITY = 95
"""Quality of JPEG and WebP files, 0–100."""
COMMENT_CHARS = 2000
"""Characters of one value in an EXIF block of 64 KiB; JSON takes up to 12 bytes per character."""
CLIP_JOB = "clip"
"""Name of the metadata with the job of a clip, in images that show only some of its frames."""
EXIF_IFD, USER_COMMENT = 0x8769, 0x9286


def format_of(path: Path, field: str = "out") -> str:
    """Return Pillow's name of the format; raise InvalidRequestError for an ending that is not in FORMATS."""
    if (ending := path.suffix.lower()) not in FORMATS:
        raise InvalidRequestError(field, f"must end in one of {', '.join(filter(None, FORMATS))}", path)
    return FORMATS[ending]


def check_writable(path: Path, field: str = "out") -> None:
    """Raise InvalidRequestError if this image cannot be written; the check leaves the disk unchanged."""
    format_of(path, field)
    check_place(path, field)


def check_place(path: Path, field: str = "out") -> None:
    """Raise InvalidRequestError if a file cannot be written here, whatever its format."""
    try:
        if path.is_dir():
            raise InvalidRequestError(field, "must be a file, not a folder", path)
        if path.is_file():
            path.open("r+b").close()
        elif not path.exists():  # an existing path that is no file is a device or a pipe
            tempfile.TemporaryFile(dir=next(folder for folder in path.absolute().parents if folder.exists())).close()
    except OSError as error:
        raise InvalidRequestError(field, f"cannot be written ({error.strerror})", path) from error


def facts_of(job: Job, model: str) -> dict[str, str]:
    """Return the metadata of the files of a job that `model` ran."""
    request = job.request
    facts = {"prompt": request.prompt, "negative_prompt": request.negative_prompt, "seed": str(request.seed)}
    steps = job.plan.run_steps(request.steps)
    facts |= {"model": model, "steps": str(steps), "job": job.id, "Software": "Afterimage"}
    return {name: fact for name, fact in facts.items() if fact}


def write(path: Path, png: bytes, job: Job, model: str) -> None:
    """Write the image that `model` generated for this job; raise OSError, or InvalidRequestError for another ending."""
    path.write_bytes(encoded(png, facts_of(job, model), format_of(path)))


def encoded(png: bytes, facts: Mapping[str, str], format_name: str) -> bytes:
    """Return the image in another format, JPEG and WebP at QUALITY, with `facts` as metadata.

    PNG: one text chunk per fact. JPEG and WebP: JSON in EXIF's UserComment.
    """
    from PIL import Image

    out = io.BytesIO()
    with Image.open(io.BytesIO(png)) as image:
        if format_name == "PNG":
            image.save(out, format_name, pnginfo=text_chunks(facts))
        else:
            image.save(out, format_name, quality=QUALITY, exif=exif_of(facts))
    return out.getvalue()


def text_chunks(facts: Mapping[str, str]) -> PngImagePlugin.PngInfo:
    """Return one text chunk per fact."""
    from PIL import PngImagePlugin

    chunks = PngImagePlugin.PngInfo()
    for name, value in facts.items():
        chunks.add_text(name, value)  # text that is not Latin-1 becomes iTXt
    return chunks


def exif_of(facts: Mapping[str, str]) -> Image.Exif:
    """Return the facts as JSON in EXIF's UserComment, COMMENT_CHARS of each value at most."""
    from PIL import Image

    exif = Image.Exif()
    said = json.dumps({name: value[:COMMENT_CHARS] for name, value in facts.items()})
    exif.get_ifd(EXIF_IFD)[USER_COMMENT] = b"ASCII\0\0\0" + said.encode()
    return exif
