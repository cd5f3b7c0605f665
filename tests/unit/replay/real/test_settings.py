"""Which settings a policy's file stands for when the services serve it, and which they cannot serve."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from services.replay.policy import read_policy, shipped
from services.replay.real.settings import UNLIMITED_BYTES, servable, stand_for, why_not
from shared.domain.errors import ConfigurationError
from shared.runtime.settings import Settings
from tests.unit.replay.house import policy

NOT_SERVED = {"exact", "retrieval", "gpt-cache", "crs", "gdsf", "s3fifo", "wtinylfu", "modm-raised"}
PAIRS = {"flexcache-video", "afterimage-video", "afterimage-video-residual"}
ROOM = 123_456


def base(tmp_path: Path, **given: Any) -> Settings:
    return Settings(data_dir=tmp_path, **given)


def test_every_policy_that_ships_is_served_or_refused_with_a_reason(tmp_path: Path) -> None:
    plain, two = base(tmp_path), base(tmp_path, small="bundled:small")
    assert set(servable(two)) == set(shipped()) - NOT_SERVED - PAIRS
    assert set(servable(two)) - set(servable(plain)) == {"modm-cache-large"}
    assert all(why_not(read_policy(name), two) for name in NOT_SERVED | PAIRS)


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
