"""The setting layout=patches by family: SDXL cuts images into patches, with its own size and prompt in each; others do
not."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import structlog
import torch

from services.gpu_worker.engine.patches import operators
from services.gpu_worker.families import load_family
from shared.domain.types import Size
from shared.models import find_card
from tests.unit.gpu_worker.families.conftest import LoadTiny, a_task, drawn

CROWD = [
    a_task("wide", size=Size(64, 32)),
    a_task("tall", size=Size(32, 64), guidance=1.0, prompt="two boats at night", seed=8),
    # at guidance 7, random weights amplify rounding to 1.1e-4, in groups with other rows as in patches
    a_task("square", size=Size(64, 64), guidance=2.0, negative_prompt="blurry", seed=9),
]


@pytest.fixture(scope="module")
def cut(saved: Callable[[str], Path]) -> Any:
    return load_family(find_card(str(saved("sdxl"))), layout="patches", patch_px=16)


def test_sdxl_over_three_sizes(cut: Any, tiny_family: LoadTiny) -> None:
    seen: list[tuple[int, ...]] = []
    hook = cut.denoiser.register_forward_pre_hook(lambda _, given: seen.append(tuple(given[0].shape)))
    together = drawn(cut, *CROWD)
    hook.remove()
    assert set(seen) == {(2 * 8 + 8 + 2 * 16, 4, 8, 8)}
    for one in CROWD:
        alone = drawn(tiny_family("sdxl"), one)[one.id]
        np.testing.assert_allclose(together[one.id].latent, alone.latent, atol=1e-4)


def test_fifty_steps_of_sdxl_stay_within_the_bound(
    cut: Any, tiny_family: LoadTiny, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With a tenth of its output: 50 steps of random weights amplify rounding to .4, in groups with other rows, too."""
    whole = tiny_family("sdxl")
    for unet in (cut.denoiser, whole.denoiser):
        tenth = torch.nn.Parameter(unet.conv_out.weight / 10, requires_grad=False)
        monkeypatch.setitem(unet.conv_out._parameters, "weight", tenth)  # setattr would delete it at the end
    tasks = [a_task(str(size), size=size, steps=50, guidance=1.0) for size in (Size(32, 16), Size(16, 16))]
    together = drawn(cut, *tasks)
    for one in tasks:
        np.testing.assert_allclose(together[one.id].latent, drawn(whole, one)[one.id].latent, atol=1e-4)


@pytest.mark.parametrize(("name", "layout"), [("sd3", "patches"), ("animatediff", "patches"), ("sdxl", "packed")])
def test_other_families_keep_groups_and_say_so(name: str, layout: str, saved: Callable[[str], Path]) -> None:
    with structlog.testing.capture_logs() as said:
        family = load_family(find_card(str(saved(name))), layout=layout)
    assert [(each["event"], each["model"]) for each in said] == [("one batch per size", family.card.name)]


def test_a_unet_with_a_module_of_another_kind_keeps_groups(
    saved: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    known = operators.RUN_ON_PATCHES - {"SiLU"}
    monkeypatch.setattr(operators, "RUN_ON_PATCHES", known)
    with structlog.testing.capture_logs() as said:
        load_family(find_card(str(saved("sdxl"))), layout="patches")
    assert [each["rule"] for each in said] == ["layout: must be groups (modules that do not run on patches: SiLU)"]
    assert [each["log_level"] for each in said] == ["warning"]
