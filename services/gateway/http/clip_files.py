"""Finished clips as files for browsers."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Literal

from protos import common_pb2 as pb
from shared.client.views import Clip, picture_of

Variant = Literal["video", "thumbnail", "spritesheet", "source"]
KINDS: Mapping[Variant, str] = {
    "video": "video/mp4",
    "thumbnail": "image/webp",
    "spritesheet": "image/jpeg",
    "source": "image/png",
}
"""Media type of each variant; `source` is the animated PNG as stored."""


def clip_file(job: pb.Job, png: bytes, variant: Variant) -> bytes:
    """Return a variant of a clip other than its source. Encoding takes long: call it on a thread."""
    clip = picture_of(job, png)
    assert isinstance(clip, Clip)
    with tempfile.TemporaryDirectory(prefix="afterimage-") as folder:
        path = Path(folder) / f"clip.{KINDS[variant].partition('/')[2]}"
        save = {"video": clip.save, "thumbnail": clip.save_poster, "spritesheet": clip.save_strip}[variant]
        save(path)
        return path.read_bytes()
