"""A job's progress as the message that clients see."""

from __future__ import annotations

import base64

from services.gpu_worker.codecs import encode_png
from services.gpu_worker.rows import Pixels
from shared.messages import Progress


def progress(job_id: str, step: int, steps: int, preview: Pixels | None) -> Progress:
    """`step` of `steps` are behind the picture; the preview becomes a small base64 PNG."""
    picture = "" if preview is None else base64.b64encode(encode_png(preview)).decode()
    return Progress(job_id, step, steps, picture)
