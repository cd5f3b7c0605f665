"""Profile of pairs: clips that start from the object of one clip and the background of another (FlexCache §4.2)."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from typing import Any

from services.cli.profiles.measure import Profiler
from services.cli.profiles.pairs import CLIPS, UNCHANGED, ScenePair, StitchedPair, scene_pairs
from services.gpu_worker.engine.rows import FromState, Latent, Pixels, Task
from services.gpu_worker.jobs.stitching import stitch
from services.segmenter.choice import open_segmenter
from services.segmenter.masks import Grid, packed_masks
from services.segmenter.models import Segmenter
from services.text_extractor.grammar import Grammar
from shared.domain.errors import InvalidRequestError
from shared.domain.masks import Bits, unpack
from shared.domain.parts import Parts
from shared.models.scenes import MovingScene, random_moving_scene, with_motion
from shared.runtime.settings import Settings

BEFORE, BESIDE = "before", "beside"
"""Names of the two sources: the clip that gives the object, and the one that gives the background."""


_KINDS = replace(
    CLIPS,
    edits=tuple(kind for change in CLIPS.edits for kind in (UNCHANGED, change)),
    edit=lambda scene, kind, rng: scene if kind == UNCHANGED else CLIPS.edit(scene, kind, rng),
)


def stitched_pairs(count: int, seed: int | str) -> Iterator[StitchedPair]:
    """Yield `count` pairs: half of them UNCHANGED, which is what pairs are for, and in the words of their clips; the
    others have every kind of change equally often. The n-th depends only on n and the seed."""
    for pair in scene_pairs(count, f"{seed}/stitched", _KINDS):
        rng = random.Random(f"{seed}/stitched/{pair.number}/sources")
        wordings = range(CLIPS.wordings)
        own = next(one for one in wordings if CLIPS.caption(pair.before, one) == pair.before_text)
        wording = own if pair.kind == UNCHANGED else rng.choice(wordings)
        object_of = _joined(pair.before, random_moving_scene(rng))
        background_of = _joined(random_moving_scene(rng), pair.before, pair.before.scene.style)
        texts = [CLIPS.caption(scene, wording) for scene in (object_of, background_of)]
        yield StitchedPair(
            pair.number, pair.kind, pair.before, pair.after, texts[0], pair.after_text,
            pair.before_seed, pair.after_seed, texts[1], rng.getrandbits(32),
        )  # fmt: skip


def _joined(object: MovingScene, background: MovingScene, style: str = "") -> MovingScene:
    """Return the object of one scene before the background of another. style: the result's, if not the object's."""
    place, style = background.scene, style or object.scene.style
    scene = replace(object.scene, background=place.background, light=place.light, style=style)
    return with_motion(scene, object.motion, background.background_motion)


@dataclass(frozen=True)
class StitchProfiler(Profiler):
    """Measurement of starts from two clips' states, stitched by the masks of `segmenter`."""

    segmenter: Segmenter | None = None
    threshold: float = 0.5
    """The setting `segment_threshold`."""
    _states: dict[str, dict[int, Latent]] = field(default_factory=dict, compare=False, repr=False)
    _clips: dict[str, Pixels] = field(default_factory=dict, compare=False, repr=False)

    def pairs(self, count: int, further: int, seed: int | str) -> Sequence[ScenePair]:
        return list(stitched_pairs(count, seed))

    def steps_of(self, pair: ScenePair, reference: bool = True) -> int:
        return super().steps_of(pair, reference) + self.steps

    def _first(self, pair: ScenePair) -> Iterator[Task]:
        assert isinstance(pair, StitchedPair)
        for task in super()._first(pair):
            yield task
            if task.id.endswith(BEFORE):
                yield replace(task, id=f"{pair.number}/{BESIDE}", prompt=pair.beside_text, seed=pair.beside_seed)

    def _captured(self, pair: ScenePair, name: str, k: int, state: Latent) -> Iterator[Task]:
        self._states.setdefault(f"{pair.number}/{name}", {})[k] = state
        yield from ()

    def _finished(self, pair: ScenePair, name: str, pixels: Pixels) -> Iterator[Task]:
        """Yield the starts once both clips are there; none if the segmenter finds no masks, as when serving."""
        if name not in (BEFORE, BESIDE):
            return
        self._clips[f"{pair.number}/{name}"] = pixels
        ids = [f"{pair.number}/{one}" for one in (BEFORE, BESIDE)]
        if any(one not in self._clips for one in ids):
            return
        assert isinstance(pair, StitchedPair)
        one, other = (self._states.pop(name) for name in ids)
        texts = pair.before_text, pair.beside_text
        masks = [self._masks(self._clips.pop(name), text) for name, text in zip(ids, texts, strict=True)]
        if masks[0] is None or masks[1] is None:
            return
        object_mask, background_mask = masks[0][0], masks[1][1]
        for k in self.ks:
            start = FromState(stitch(one[k], other[k], object_mask, background_mask), k)
            yield self._task(self.family, str(k), pair, 0, start)

    def _masks(self, clip: Pixels, prompt: str) -> tuple[Bits, Bits] | None:
        """Return the masks of object and background, or None, as the segmenter notes them for a clip."""
        parts = parts_of(prompt)
        assert self.segmenter is not None
        shares = self.segmenter.segment(clip, [parts.object, parts.background])
        found = packed_masks(shares, Grid.of(self.family.card), self.threshold)
        return unpack(found) if isinstance(found, bytes) else None

    def _similarity(self, pair: ScenePair) -> float:
        """Return the lower one of both parts' similarities (FlexCache §4.2.1)."""
        assert isinstance(pair, StitchedPair)
        asked, one, other = (parts_of(text) for text in (pair.after_text, pair.before_text, pair.beside_text))
        both = (asked.object, one.object), (asked.background, other.background)
        return min(float(self._vector_of_text(a) @ self._vector_of_text(b)) for a, b in both)


def stitched_runs(
    runs: Sequence[tuple[Profiler, dict[str, Any]]], settings: Settings
) -> list[tuple[Profiler, dict[str, Any]]]:
    """Return the runs of a profile as measurements of stitched starts; InvalidRequestError where that cannot be."""
    profiler = runs[0][0]
    if profiler.frames == 1 or profiler.images_of is not None:
        raise InvalidRequestError("stitched", "needs a model of clips, and no --images-from")
    if not settings.segmenter:
        raise InvalidRequestError("segmenter", "must name a segmentation model, which makes the masks for --stitched")
    model, threshold = open_segmenter(settings.segmenter, settings.segmenter_device), settings.segment_threshold
    about = {"segmenter": settings.segmenter, "segment_threshold": threshold}
    return [(StitchProfiler(**vars(one), segmenter=model, threshold=threshold), own | about) for one, own in runs]


@cache
def parts_of(prompt: str) -> Parts:
    """Return the parts of a caption of the grammar by the default text extractor, which knows all of them."""
    return Grammar().extract([prompt])[0].parts(prompt)
