"""Reuse between steps by family: whole images of transformers and SDXL, patches of SDXL."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from services.gpu_worker.families import load_family
from shared.domain.types import Size
from shared.models import find_card
from tests.unit.gpu_worker.engine.reuse.conftest import always, never, odd_patches
from tests.unit.gpu_worker.families.conftest import a_task, drawn

CROWD = [
    a_task("wide", size=Size(64, 32), steps=4),
    a_task("square", size=Size(64, 64), steps=4, guidance=2.0, negative_prompt="blurry", seed=9),
]


@pytest.mark.parametrize(
    ("name", "layout"), [("sdxl", "patches"), ("sd3", "groups"), ("flux-schnell", "groups"), ("sana", "groups")]
)
def test_blocks_of_every_family(saved: Callable[[str], Path], name: str, layout: str) -> None:
    family: Any = load_family(find_card(str(saved(name))), layout=layout, patch_px=16 * (layout == "patches"))
    plain = drawn(family, *CROWD)
    reuse = family.reuse_blocks(never())
    same = drawn(family, *CROWD)
    assert reuse.counts.seen > 0 == reuse.counts.reused
    family.reuse_blocks(odd_patches())
    some = drawn(family, *CROWD)
    assert 0.1 < reuse.counts.share < 0.2  # half of the patches, in half of the steps of one of two runs
    family.reuse_blocks(always())
    most = drawn(family, *CROWD)
    for one in CROWD:
        np.testing.assert_array_equal(same[one.id].latent, plain[one.id].latent)
        near, far = (np.square(each[one.id].latent - plain[one.id].latent).mean() for each in (some, most))
        assert 0 < near < far < np.square(plain[one.id].latent).mean()
