"""The choice of a codec: from records of images, the smallest that keeps every bound."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar

import numpy as np
import pytest

from services.cli.profiles import codecs
from services.cli.profiles.codecs import NOISE, CodecProfiler, broken_bounds, choose_codecs
from services.cli.profiles.pairs import grammar_of, scene_pairs
from services.gpu_worker.engine.events import LatentCaptured
from services.gpu_worker.families import load_family
from services.gpu_worker.jobs.codecs import decode_run, encode_run
from services.gpu_worker.jobs.keyframes import Keyframes
from shared.models import find_card
from tests import tiny_clips

GOOD = {"score": 0.3, "shown": True, "contrast": 50.0, "saturation": 90.0, "sharpness": 8.0, "likeness": 0.1}
PAIRS = list(scene_pairs(100, 7))
BYTES = {"residual-4x4": 39, "residual": 111, "residual-1bit": 143, "fp16": 2128}


def records(measures: dict[tuple[int, str], dict[str, float]], right: float = 1.0) -> list[dict[str, Any]]:
    """A record of every pair for each K and codec, with a little spread."""
    return [
        {
            "pair": pair.number, "steps": 5, "k": k, "codec": codec, "bytes": BYTES.get(codec, 0), "right": right,
            "measures": {
                name: value if isinstance(value, bool) else value * (1 + 0.02 * (pair.number % 3 - 1))
                for name, value in (GOOD | changed).items()
            },
        }
        for pair in PAIRS
        for (k, codec), changed in measures.items()
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("changed", "broken"),
    [
        ({}, []),
        ({"sharpness": 7.9}, []),
        ({"sharpness": 7.0}, ["sharpness 0.875 of noise's", "sharpness 0.875 of fp16's"]),
        ({"score": 0.27}, ["fidelity 0.900 of noise's", "fidelity 0.900 of fp16's"]),
        ({"likeness": 0.2}, ["copying 0.100 of noise's", "copying 0.100 of fp16's"]),
    ],
)
def test_a_codec_keeps_the_bounds_that_fp16_keeps(changed: dict[str, float], broken: list[str]) -> None:
    found = broken_bounds(records({(0, NOISE): {}, (2, "fp16"): {}, (2, "residual"): changed}), 2, "residual")
    assert [said.partition(" (")[0] for said in found] == broken


def test_where_fp16_breaks_a_bound_the_codec_must_not_add_to_it() -> None:
    """A late K is for close prompts: over all pairs fp16 itself is below the bound there."""
    pale = {"contrast": 40.0}
    known = {
        (0, NOISE): {},
        (4, "fp16"): pale,
        (4, "residual"): {"contrast": 39.0},
        (4, "residual-4x4"): {"contrast": 34.0},
    }
    assert broken_bounds(records(known), 4, "residual") == []
    (said,) = broken_bounds(records(known), 4, "residual-4x4")
    assert said.startswith("contrast 0.850 of fp16's")


def test_all_attributes_count_against_fp16() -> None:
    known = records({(0, NOISE): {}, (2, "fp16"): {}})
    worse = records({(2, "residual"): {}}, right=0.9)
    (said,) = broken_bounds(known + worse, 2, "residual")
    assert said.startswith("attributes 0.900 of fp16's")


class Recorded(CodecProfiler):
    """Gives records instead of images, and notes what was asked for."""

    asked: ClassVar[list[tuple[int, str]]] = []

    def measure(self, pairs: Any, wanted: Any) -> Iterator[dict[str, Any]]:
        soft = {
            (k, codec): {"sharpness": 6.0} for k, codec in ((2, "residual-4x4"), (3, "residual-4x4"), (3, "residual"))
        }
        for pair in pairs:
            self.asked.extend(wanted[pair.number])
            for kept in wanted[pair.number]:
                yield next(one for one in records({kept: soft.get(kept, {})}) if one["pair"] == pair.number)


def test_each_k_takes_the_smallest_codec_and_fails_early(tmp_path: Path) -> None:
    profiler = Recorded(None, None, None, 5)  # type: ignore[arg-type]
    Recorded.asked = []
    levels = choose_codecs(profiler, PAIRS, (1, 2, 3), tmp_path / "records.jsonl")
    assert [(level.k, level.codec, level.bytes) for level in levels] == [
        (1, "residual-4x4", 39), (2, "residual", 111), (3, "residual-1bit", 143),
    ]  # fmt: skip
    assert [set(level.why_not) for level in levels] == [set(), {"residual-4x4"}, {"residual-4x4", "residual"}]
    assert Recorded.asked.count((3, "residual")) == codecs.SCREENED
    assert Recorded.asked.count((2, "residual")) == Recorded.asked.count((3, "fp16")) == len(PAIRS)
    Recorded.asked = []
    assert choose_codecs(profiler, PAIRS, (1, 2, 3), tmp_path / "records.jsonl") == levels
    assert Recorded.asked == []


def test_clips_start_from_states_that_were_stored_together(tmp_path: Path) -> None:
    family = load_family(
        find_card(str(tiny_clips.build(tmp_path, 5, tiny_clips.SMALL) / tiny_clips.CLIPS)), device="cpu"
    )
    profiler = CodecProfiler(family, None, None, 5, max_rows=8, frames=4)  # type: ignore[arg-type]
    (pair,) = scene_pairs(1, 0, grammar_of(4))
    wanted = [(0, NOISE), *((k, codec) for k in (1, 3) for codec in ("fp16", "keyframes", "residual-2x2x2"))]
    sizes: dict[str, int] = {}
    images = profiler._images([pair], {pair.number: wanted}, sizes)
    assert images.keys() == {codecs._name(pair, *one) for one in wanted} | {codecs._before(pair)}
    assert {one.shape for one in images.values()} == {(4, 16, 16, 3)}
    for k in (1, 3):
        assert sizes[codecs._name(pair, k, "residual-2x2x2")] < sizes[codecs._name(pair, k, "keyframes")]
        near = images[codecs._name(pair, k, "keyframes")].astype(int) - images[codecs._name(pair, k, "fp16")]
        assert np.abs(near).mean() < 16
    of_images = CodecProfiler(family, None, None, 5)  # type: ignore[arg-type]
    assert set(profiler.codecs) - set(of_images.codecs) == {"keyframes", "residual-2x2x2", "residual-4x2x2"}


def test_key_frames_are_coded_with_all_states_of_the_run() -> None:
    rng = np.random.default_rng(0)
    latents = {k: rng.standard_normal((4, 6, 4, 4)).astype(np.float32) for k in (1, 2, 3)}
    states = {k: LatentCaptured("0/before", k, latent) for k, latent in latents.items()}
    paper, family = Keyframes(0.99, 0.0), SimpleNamespace(card=find_card("bundled:motion"))
    profiler = CodecProfiler(
        family, None, None, 5, frames=6, of_runs={"paper": paper}, together=(1, 2)  # type: ignore[arg-type]
    )  # fmt: skip
    wanted = [(0, NOISE), (3, "fp16"), (3, "paper")]
    assert profiler._captured(wanted) == (1, 2, 3)
    assert profiler._captured(wanted[:1]) == ()
    found = {codec: (k, size, latent) for k, codec, size, latent in profiler._coded(states, wanted)}
    assert found.keys() == {"fp16", "paper"}
    together = encode_run(latents, paper)
    assert found["paper"][:2] == (3, len(together[3][0]))
    np.testing.assert_array_equal(found["paper"][2], decode_run(together)[3])
