"""Profile the reuse between steps: `afterimage profile --reuse` (PatchedServe §5.1, §7, §8.2).

Images without reuse give, for every block, step and patch, how much its input and its output changed. A forest learns
from the input's change whether the output's stays small. Further images with reuse show what keeps the quality.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import fmean
from typing import Any

import torch
from rich.console import Console
from rich.text import Text

from services.cli.profiles.judging import vectors_of
from services.cli.profiles.measure import Profiler
from services.cli.profiles.pairs import ScenePair
from services.cli.profiles.reuse_forest import Floats, Measured, Recorder, fit_reuse
from services.gpu_worker.engine.engine import Engine
from services.gpu_worker.engine.events import Advanced, Finished, Left
from services.gpu_worker.engine.rows import Pixels, Task
from services.gpu_worker.families.pipeline import PipelineFamily
from shared.domain.errors import InvalidRequestError
from shared.domain.types import Size, vector_from
from shared.models import ModelCard
from shared.models.step_reuse import FILE, LEAST_IMAGES, TRANSFORMERS, UNETS, StepReuse, reuse_to_json
from shared.runtime.progress import shown
from shared.runtime.settings import Settings

CHANGES = (0.01, 0.03, 0.1)
"""Changes of a block's output that count as small, ascending; the paper says .1 without a unit (§3)."""
MOST = (1, 2, 4)
"""Values of N, the reuses in a row, ascending."""
CLIP_RATIO, ATTRIBUTES = 0.99, 0.01
"""Bounds of the quality: least CLIP score as a share of that without reuse, and largest loss of attributes."""
CHUNK = 64
"""Images that are generated together."""

OnStep = Callable[[], None]


@dataclass(frozen=True)
class Quality:
    """Quality and saving of images with reuse, against the same prompts and seeds without."""

    images: int
    clip_ratio: float
    attributes: float | None
    """Difference of the share of attributes that are right; None: no judge."""
    reused: float
    """Share of patches and blocks that were not computed (Fig. 15)."""

    @property
    def holds(self) -> bool:
        """Return whether both bounds hold."""
        kept = self.attributes is None or self.attributes >= -ATTRIBUTES
        return self.clip_ratio >= CLIP_RATIO and kept


def check_reuse(card: ModelCard, settings: Settings) -> None:
    """Raise InvalidRequestError where blocks of this model cannot be reused with these settings."""
    if card.family not in (*UNETS, *TRANSFORMERS):
        rule = f"needs a model of family {', '.join((*UNETS, *TRANSFORMERS))}"
        raise InvalidRequestError("reuse", rule, card.family)
    if settings.batch_invariant:
        raise InvalidRequestError(
            "reuse", "needs batch_invariant 0, because no block is reused with it", settings.batch_invariant
        )
    if card.family in TRANSFORMERS and settings.layout != "groups":
        rule = f"needs layout groups for family {card.family}; its forest counts for every layout"
        raise InvalidRequestError("reuse", rule, settings.layout)


def profile_reuse(profiler: Profiler, count: int, settings: Settings, out: Path, console: Console) -> StepReuse:
    """Train the forest on `count` images, choose N and the output's change on `count` others; write it to `out`."""
    family = profiler.family
    assert isinstance(family, PipelineFamily)
    if count < LEAST_IMAGES:
        few = f"Reuse between steps: {count} images are too few to show that quality stays; use --reuse {LEAST_IMAGES}"
        console.print(Text(few, style="yellow"))
    family.reuse_blocks(None)
    pairs = list(profiler.pairs(count, 0, "reuse"))
    with shown(console) as bar, torch.inference_mode():
        advance = bar("denoising steps, reuse", None)
        rows, changed = recorded(profiler, pairs, max(MOST), lambda: advance(1))
        plain = generated(profiler, pairs, lambda: advance(1))
        found = choose(profiler, pairs, plain, rows, changed, lambda: advance(1))
    found = replace(found, layout=settings.layout, patch_px=settings.patch_px)
    family.reuse_as_profiled()  # as the other measurements of this command run
    (out / FILE).write_text(json.dumps(reuse_to_json(found)) + "\n", encoding="utf-8")
    tried = found.quality["tried"]
    kept = f"at most {found.most} in a row" if found.most else "none: no number of reuses kept the quality"
    console.print(Text(f"Reuse between steps: {kept}; {len(tried)} settings tried on {count} images"))
    return found


def store_beside(found: StepReuse, card: ModelCard, console: Console) -> None:
    """Write the forest beside the weights, where the setting step_reuse=auto looks for it."""
    text = json.dumps(reuse_to_json(found)) + "\n"
    try:
        (card.folder / FILE).write_text(text, encoding="utf-8")
    except OSError as error:
        console.print(Text(f"{FILE}: copy it to {card.folder}, which cannot be written: {error}", style="yellow"))
    else:
        console.print(Text(f"Written beside the weights: {card.folder / FILE}"))


def recorded(
    profiler: Profiler, pairs: Sequence[ScenePair], gaps: int, on_step: OnStep, size: Size | None = None
) -> tuple[Measured, Floats]:
    """Generate the first prompts without reuse, in this size or in all sizes in turn; return features and output
    changes of blocks, steps and patches, over 1 to `gaps` steps."""
    family = profiler.family
    assert isinstance(family, PipelineFamily)
    recorder = Recorder(gaps)
    reuse = family.reuse_blocks(recorder)
    reuse.observe = recorder.observe
    try:
        for chunk in _chunks(pairs, profiler.max_rows):  # one batch, whose tensors are dropped before the next
            prompts = [(pair.before_text, pair.before_seed) for pair in chunk]
            _run(profiler, prompts, [size] * len(chunk) if size else _sizes(profiler, chunk), on_step)
            recorder.forget()
    finally:
        reuse.observe = None
        family.reuse_blocks(None)
    return recorder.rows()


def choose(
    profiler: Profiler, pairs: Sequence[ScenePair], plain: Sequence[Pixels], rows: Measured, changed: Floats,
    on_step: OnStep,
) -> StepReuse:  # fmt: skip
    """Return the forest and N that save most within the bounds; N = 0 where none keeps them.

    A larger N, and a larger change of the output, are tried only while the smaller one keeps the bounds.
    """
    best, tried, saved = None, [], 0.0
    for change in CHANGES:
        forest = fit_reuse(rows, changed, change, profiler.family.card.weights_hash)
        for most in MOST:
            found = replace(forest, most=most)
            quality = quality_of(profiler, pairs, plain, found, on_step)
            tried.append({"change": change, "most": most, **_figures(quality)})
            if not quality.holds:
                break
            if best is None or quality.reused > saved:
                best, saved = replace(found, quality=dict(tried[-1])), quality.reused
        if not tried[-1]["holds"] and tried[-1]["most"] == MOST[0]:
            break
    found = best or replace(fit_reuse(rows, changed, CHANGES[0], profiler.family.card.weights_hash), most=0)
    return replace(found, quality={**found.quality, "steps": profiler.steps, "tried": tried})


def quality_of(
    profiler: Profiler, pairs: Sequence[ScenePair], plain: Sequence[Pixels], found: StepReuse, on_step: OnStep
) -> Quality:
    """Generate the second prompts with reuse, and compare them with `plain`, the same without."""
    family = profiler.family
    assert isinstance(family, PipelineFamily)
    reuse = family.reuse_blocks(found)
    seen, reused = reuse.counts.seen, reuse.counts.reused
    try:
        images = generated(profiler, pairs, on_step)
    finally:
        family.reuse_blocks(None)
    share = (reuse.counts.reused - reused) / max(reuse.counts.seen - seen, 1)
    before, after = (scores(profiler, pairs, each) for each in (plain, images))
    ratio = fmean(after) / fmean(before) if fmean(before) > 0 else 1.0
    return Quality(len(pairs), ratio, attribute_gain(profiler, pairs, plain, images), share)


def generated(
    profiler: Profiler, pairs: Sequence[ScenePair], on_step: OnStep, size: Size | None = None
) -> list[Pixels]:
    """Generate the second prompts of the pairs, in this size or in all sizes of the card in turn."""
    found: list[Pixels] = []
    for chunk in _chunks(pairs):
        prompts = [(pair.after_text, pair.after_seed) for pair in chunk]
        found += _run(profiler, prompts, [size] * len(chunk) if size else _sizes(profiler, chunk), on_step)
    return found


def _run(
    profiler: Profiler, prompts: Sequence[tuple[str, int]], sizes: Sequence[Size], on_step: OnStep
) -> list[Pixels]:
    card = profiler.family.card
    engine = Engine({card.name: profiler.family}, max_rows=profiler.max_rows, tell_every_s=0.0)
    images: dict[str, Pixels] = {}
    for number, ((prompt, seed), size) in enumerate(zip(prompts, sizes, strict=True)):
        engine.submit(Task(str(number), card.name, prompt, size, profiler.steps, card.default_guidance, seed))
    while not engine.idle:
        for event in engine.step():
            match event:
                case Advanced():
                    on_step()
                case Finished(id=name, pixels=pixels):
                    images[name] = pixels
                case Left(error=error):
                    raise error
    return [images[str(number)] for number in range(len(prompts))]


def _sizes(profiler: Profiler, pairs: Sequence[ScenePair]) -> list[Size]:
    sizes = profiler.family.card.sizes.sizes or (profiler.family.card.default_size,)
    return [sizes[pair.number % len(sizes)] for pair in pairs]


def scores(profiler: Profiler, pairs: Sequence[ScenePair], images: Sequence[Pixels]) -> list[float]:
    """Return the CLIP score of each image, never below 0."""
    found: list[float] = []
    for start in range(0, len(pairs), CHUNK):
        some = slice(start, start + CHUNK)
        texts = profiler.encoder.texts([pair.after_text for pair in pairs[some]])
        pairs_of = zip(vectors_of(profiler.encoder, images[some]), texts, strict=True)
        found += [max(float(vector @ vector_from(text.vector)), 0.0) for vector, text in pairs_of]
    return found


def attribute_gain(
    profiler: Profiler, pairs: Sequence[ScenePair], plain: Sequence[Pixels], images: Sequence[Pixels]
) -> float | None:
    """Return the difference of the share of attributes that are right; None without a judge."""
    if profiler.judge is None:
        return None
    before, after = [], []
    for pair, one, other in zip(pairs, plain, images, strict=True):
        without, with_reuse = profiler.judge([one, other], pair.after)
        before += [*without.values()]
        after += [*with_reuse.values()]
    return fmean(after) - fmean(before)


def _figures(quality: Quality) -> Mapping[str, Any]:
    names = ("images", "clip_ratio", "attributes", "reused", "holds")
    return {name: getattr(quality, name) for name in names}


def _chunks(pairs: Sequence[ScenePair], size: int = CHUNK) -> list[Sequence[ScenePair]]:
    return [pairs[at : at + size] for at in range(0, len(pairs), size)]
