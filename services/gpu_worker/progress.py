"""How often a job's progress is worth a message."""

from __future__ import annotations

import base64

from services.gpu_worker.codecs import encode_png
from services.gpu_worker.rows import Pixels
from shared.messages import Progress


class Pace:
    """At most `per_s` a second; the first at once."""

    def __init__(self, per_s: float) -> None:
        self._every_s = 1 / per_s
        self._next = float("-inf")

    def due(self, now: float) -> bool:
        """Whether one may go now; saying yes counts as going."""
        if now < self._next:
            return False
        self._next = now + self._every_s
        return True


def progress(job_id: str, step: int, steps: int, preview: Pixels | None) -> Progress:
    """The message, with the preview as a small base64 PNG."""
    picture = "" if preview is None else base64.b64encode(encode_png(preview)).decode()
    return Progress(job_id, step, steps, picture)
