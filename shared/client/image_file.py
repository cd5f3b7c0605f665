"""A picture as a file: PNG, JPEG or WebP by its name's ending, with what it was drawn from as metadata."""

from __future__ import annotations

import io
import json
import tempfile
from collections.abc import Mapping
from pathlib import Path

from shared.domain.errors import InvalidRequestError
from shared.domain.types import Job

FORMATS = {"": "PNG", ".png": "PNG", ".jpg": "JPEG", ".jpeg": "JPEG", ".webp": "WEBP"}
QUALITY = 95
"""Quality of JPEG and WebP files, 0–100."""
COMMENT_CHARS = 2000
"""Characters of one value in an EXIF block, which holds 64 KiB: up to 12 bytes a character in JSON."""
_EXIF_IFD, _USER_COMMENT = 0x8769, 0x9286


def format_of(path: Path) -> str:
    """Pillow's name for the format; raises InvalidRequestError for an ending that is none of FORMATS."""
    if (ending := path.suffix.lower()) not in FORMATS:
        raise InvalidRequestError("out", f"must end in one of {', '.join(filter(None, FORMATS))}", path)
    return FORMATS[ending]


def check_writable(path: Path) -> None:
    """Raise InvalidRequestError where this file could not be written; leaves the disk as it was."""
    format_of(path)
    if path.is_dir():
        raise InvalidRequestError("out", "must be a file, not a folder", path)
    try:
        if path.is_file():
            path.open("r+b").close()
        elif not path.exists():  # else it is a device or a pipe
            tempfile.TemporaryFile(dir=next(folder for folder in path.absolute().parents if folder.exists())).close()
    except OSError as error:
        raise InvalidRequestError("out", f"cannot be written ({error.strerror})", path) from error


def write(path: Path, png: bytes, job: Job, model: str) -> None:
    """Write the picture that `model` generated for this job; raises OSError, InvalidRequestError for another ending."""
    request = job.request
    facts = {"prompt": request.prompt, "negative_prompt": request.negative_prompt, "seed": str(request.seed)}
    steps = job.plan.run_steps(request.steps)
    facts |= {"model": model, "steps": str(steps), "job": job.id, "Software": "Afterimage"}
    path.write_bytes(encoded(png, {name: fact for name, fact in facts.items() if fact}, format_of(path)))


def encoded(png: bytes, facts: Mapping[str, str], format_name: str) -> bytes:
    """The same pixels (of JPEG and WebP: at QUALITY) with `facts` beside them.

    PNG: one text chunk a fact. JPEG and WebP: EXIF's UserComment, as JSON.
    """
    from PIL import Image, PngImagePlugin

    out = io.BytesIO()
    with Image.open(io.BytesIO(png)) as image:
        if format_name == "PNG":
            chunks = PngImagePlugin.PngInfo()
            for name, value in facts.items():
                chunks.add_text(name, value)  # what is not Latin-1 becomes iTXt
            image.save(out, format_name, pnginfo=chunks)
        else:
            exif = Image.Exif()
            said = json.dumps({name: value[:COMMENT_CHARS] for name, value in facts.items()})
            exif.get_ifd(_EXIF_IFD)[_USER_COMMENT] = b"ASCII\0\0\0" + said.encode()
            image.save(out, format_name, quality=QUALITY, exif=exif)
    return out.getvalue()
