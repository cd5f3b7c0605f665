"""Store finished policies on disk, so that an interrupted replay on real models resumes with the next one."""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from services.replay.real.settings import ServedPolicy
from services.replay.real.sitting import Answer, Load, Sitting
from shared.models.card_lookup import of_images, served_cards

NOT_ASKED = {
    "data_dir", "catalog_url", "blobs_url", "blobs_access_key", "blobs_secret_key", "listen", "metrics_listen",
}  # fmt: skip
"""Settings of addresses and folders, which change no answer."""


class Kept:
    """Files of one policy at one budget: `served/NAME-KEY.json`, and images in `pictures/NAME-KEY`.

    A clip is an animated PNG, as the services store it: browsers play it, and no frame loses anything."""

    def __init__(self, out: Path, name: str, load: Load, stand: ServedPolicy, encoder_hash: str) -> None:
        asked = _asked(load, stand, encoder_hash)
        key = hashlib.sha256(json.dumps(asked, sort_keys=True).encode()).hexdigest()[:12]
        self._asked = asked
        self._file = out / "served" / f"{name}-{key}.json"
        self.pictures = out / "pictures" / f"{name}-{key}"

    def begin(self) -> None:
        """Remove the images of an unfinished earlier run, whose cache no longer exists."""
        shutil.rmtree(self.pictures, ignore_errors=True)
        self.pictures.mkdir(parents=True)

    def picture(self, request: int) -> Path:
        return self.pictures / f"{request:06d}.png"

    def keep(self, request: int, png: bytes) -> None:
        self.picture(request).write_bytes(png)

    def done(self, sitting: Sitting, clips: Mapping[int, float]) -> Sitting:
        """Write the run with the scores of its images, and return it."""
        scored = tuple(replace(one, clip=clips.get(one.request)) for one in sitting.answers)
        whole = replace(sitting, answers=scored)
        self._file.parent.mkdir(parents=True, exist_ok=True)
        new = self._file.with_suffix(".new")
        new.write_text(json.dumps({"asked": self._asked, **asdict(whole)}, indent=1) + "\n", encoding="utf-8")
        new.replace(self._file)
        return whole

    def found(self) -> Sitting | None:
        """Return the result of an earlier run with the same inputs, if it finished."""
        if not self._file.is_file():
            return None
        kept: dict[str, Any] = json.loads(self._file.read_text(encoding="utf-8"))
        kept.pop("asked")
        answers = [Answer(**{**one, "degraded": tuple(one["degraded"])}) for one in kept.pop("answers")]
        return Sitting(answers=tuple(answers), **kept)


def _asked(load: Load, stand: ServedPolicy, encoder_hash: str) -> dict[str, Any]:
    """Return every input that determines the answers, and the warm-up."""
    return {
        "prompts": load.trace.digest,
        "users": _digest(load.trace.users.tolist()),
        "arrivals": _digest(load.trace.arrival_s.tolist()),
        "requests": len(load.trace),
        "frames": load.trace.frames,
        "warmup": load.warmup,
        "weights": load.card.weights_hash,
        **({"image_weights": _image_weights(stand)} if stand.settings.small else {}),
        "encoder": encoder_hash,
        "steps": load.steps if load.trace.steps is None else _digest(load.trace.steps.tolist()),
        "seed": load.seed,
        "one_at_a_time": load.one_at_a_time,
        "table": asdict(load.table) if load.table else None,
        "pair_table": asdict(load.pair_table) if load.pair_table else None,
        "cache": stand.cache,
        "settings": stand.settings.model_dump(mode="json", exclude=NOT_ASKED),
    }


def _image_weights(stand: ServedPolicy) -> dict[str, str]:
    """Return the weights of each model of images: with a small one, several may generate."""
    return {name: one.weights_hash for name, one in of_images(served_cards(stand.settings)).items()}


def _digest(values: Sequence[float]) -> str:
    return hashlib.blake2b(json.dumps(values).encode(), digest_size=8).hexdigest()
