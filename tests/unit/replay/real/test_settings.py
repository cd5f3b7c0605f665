"""Which settings a policy's file stands for when the services serve it, and which they cannot serve."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from services.replay.policy import read_policy, shipped
from services.replay.real.model import generating_card
from services.replay.real.serving import named_tables
from services.replay.real.settings import UNLIMITED_BYTES, servable, stand_for, why_not
from services.replay.real.sitting import Load
from shared.domain.errors import ConfigurationError, InvalidRequestError
from shared.models.card_lookup import find_card
from shared.models.k_table import FIG_10, Level
from shared.runtime.settings import Settings
from tests.unit.replay.house import policy, trace_of

NOT_SERVED = {"exact", "retrieval", "gpt-cache", "crs", "gdsf", "s3fifo", "wtinylfu", "modm-raised"}
PAIRS = {"flexcache-video", "afterimage-video", "afterimage-video-residual"}
PICTURES = {"modm", "modm-cache-large"}
CLIP = 16
ROOM = 123_456


def base(tmp_path: Path, **given: Any) -> Settings:
    return Settings(data_dir=tmp_path, **({"segmenter": "bundled:segmenter"} | given))


def test_every_policy_that_ships_is_served_or_refused_with_a_reason(tmp_path: Path) -> None:
    plain, two = base(tmp_path), base(tmp_path, small="bundled:small")
    assert set(servable(two)) == set(shipped()) - NOT_SERVED - PAIRS
    assert set(servable(two)) - set(servable(plain)) == {"modm-cache-large"}
    assert all(why_not(read_policy(name), two) for name in NOT_SERVED | PAIRS)
    assert set(servable(two, CLIP)) == set(shipped()) - NOT_SERVED - PICTURES


@pytest.mark.parametrize(
    ("name", "stands_for"),
    [
        ("none", {"cache_max_bytes": 0, "image_tier": "off", "capture_steps": ()}),
        ("infinite", {"cache_max_bytes": UNLIMITED_BYTES, "candidates": 8, "insert_on_hit": True}),
        ("nirvana", {"eviction_policy": "lcbfu", "predictor": "svm", "candidates": 1, "insert_on_hit": False}),
        ("nirvana-sketch", {"predictor": "sketch", "sketch_margin": 0.01, "eviction_policy": "lcbfu"}),
        ("nirvana-f0", {"eviction_policy": "lcbfu", "predictor": "always", "lcbfu_initial_uses": 0.0}),
        ("flexcache", {"eviction_policy": "lrbu", "candidates": 1, "insert_on_hit": True, "state_codec": "fp16"}),
        ("nirvana-video-keyframes", {"eviction_policy": "lcbfu", "state_codec": "keyframes", "keyframe_least": 0.0}),
        ("afterimage", {"eviction_policy": "afterimage", "candidates": 8, "capture_steps": (5, 10, 15, 20, 25)}),
        ("afterimage-int6", {"eviction_policy": "afterimage", "state_codec": "int6", "cache_max_bytes": ROOM}),
        ("modm", {"image_tier": "all", "picture_policy": "fifo", "picture_max_bytes": ROOM, "cache_max_bytes": 0}),
        ("modm-cache-large", {"image_tier": "large", "picture_max_bytes": ROOM, "small": "bundled:small"}),
    ],
)
def test_what_a_file_stands_for(tmp_path: Path, name: str, stands_for: dict[str, Any]) -> None:
    stand = stand_for(name, read_policy(name), base(tmp_path, small="bundled:small", max_rows=3), ROOM)
    made = stand.settings.model_dump()
    assert {key: made[key] for key in stands_for} == stands_for
    assert stand.cache == ("off" if name == "none" else "auto")
    assert made["max_rows"] == 3
    assert made["small"] == ("bundled:small" if name.startswith("modm") else "")  # latents are one model's own


def test_policies_with_pairs_alone_have_parts_and_masks(tmp_path: Path) -> None:
    pairs, whole = (
        stand_for(name, read_policy(name), base(tmp_path), ROOM, CLIP).settings
        for name in ("flexcache-video", "nirvana-video")
    )
    assert (pairs.decouple, pairs.segmenter, pairs.eviction_policy) == ("video", "bundled:segmenter", "lrbu")
    assert (pairs.state_codec, pairs.keyframe_least) == ("keyframes", 0.0)
    assert (whole.decouple, whole.segmenter, whole.eviction_policy) == ("off", "", "lcbfu")
    with pytest.raises(ConfigurationError, match="pairs need a segmenter and an extractor"):
        stand_for("flexcache-video", read_policy("flexcache-video"), base(tmp_path, segmenter=""), ROOM, CLIP)


def test_the_model_of_clips_must_be_there_and_generate_that_length(tmp_path: Path) -> None:
    assert generating_card(base(tmp_path), 1).name == "large"
    motion = base(tmp_path, video="bundled:motion")
    assert generating_card(motion, CLIP).name == "motion"
    with pytest.raises(ConfigurationError, match="video: names no model, and the trace has clips of 16 frames"):
        generating_card(base(tmp_path, video=""), CLIP)
    with pytest.raises(InvalidRequestError, match=r"frames: .*from 1 to 64 frames \(got '65'\)"):
        generating_card(motion, 65)


def test_a_named_table_holds_at_every_t_that_has_a_table_of_its_own() -> None:
    motion = find_card("bundled:motion")
    load = Load(trace_of(["a red fox"]), 0, motion, table=FIG_10, pair_table=FIG_10)
    made = named_tables(load, 0.9)
    assert set(made) == {"k_table_0.9", "k_table_0.9_t10", "pair_k_table_0.9"}
    assert made["k_table_0.9"].levels == made["pair_k_table_0.9"].levels == FIG_10.levels
    few = made["k_table_0.9_t10"]
    assert (few.steps, few.assumed) == (10, True)
    assert few.levels == tuple(Level(k, level.min_similarity) for k, level in enumerate(FIG_10.levels, 1))
    of_few = named_tables(Load(load.trace, 0, motion, table=few), 0.9)
    assert of_few["k_table_0.9"].levels == FIG_10.levels  # scaled back to the default T


def test_whatever_the_environment_names_it_is_a_process_of_its_own(tmp_path: Path) -> None:
    elsewhere = base(tmp_path, index_url="weaviate://nowhere:80", retriever_address="nowhere:1", epsilon=0.5)
    settings = stand_for("lru", read_policy("lru"), elsewhere, ROOM).settings
    assert (settings.index_url, settings.retriever_address, settings.epsilon) == ("memory:", "", 0.0)


def test_settings_files_of_ones_own_are_refused_for_what_the_services_lack(tmp_path: Path) -> None:
    plain = base(tmp_path)
    refused = {
        "refit_requests": policy(predictor="svm", refit_requests=100),
        "not by s3fifo": policy(evict="s3fifo"),
        r"\(small\)": policy(reuses="refine"),
        "raised_by must be 0": policy(reuses="refine", insert_on_hit=True, raised_by=0.01),
    }
    for said, one in refused.items():
        with pytest.raises(ConfigurationError, match=said):
            stand_for("mine", one, plain, ROOM)
