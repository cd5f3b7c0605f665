"""Profiles: interpolation, round trip through the file, and errors that name field and rule."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from services.trainer.pipeline.costs.profile import Profile, seconds_at
from services.trainer.pipeline.costs.profile_file import parse_profile, read_profile, write_profile
from shared.domain.errors import ConfigurationError
from tests.unit.trainer.pipeline.profiles import backbone, frozen, profile


def test_times_are_linear_between_measured_sizes_and_extended_beyond() -> None:
    sizes, times = (4, 8, 16), (1.0, 1.5, 3.5)
    assert [seconds_at(sizes, times, size) for size in (4, 6, 8, 12, 16)] == [1.0, 1.25, 1.5, 2.5, 3.5]
    assert seconds_at(sizes, times, 20) == pytest.approx(4.5)
    assert seconds_at(sizes, times, 2) == pytest.approx(0.75)  # the line of the first two sizes
    assert seconds_at((4, 8), (1.0, 3.0), 1) == pytest.approx(0.25)  # the line would be negative
    assert seconds_at((4, 8), (2.0, 1.0), 1) == 2.0  # never above the smallest measured size
    assert seconds_at((4, 8), (2.0, 1.0), 20) == 1.0  # never below the largest measured size
    assert seconds_at((4,), (1.0,), 6) == 1.5
    assert seconds_at(sizes, times, 0) == 0


def test_a_written_profile_reads_equal(tmp_path: Path) -> None:
    one = profile(
        backbone([1.0, 2.0], sent=3.0, gradients=8.0),
        frozen=[frozen([0.5]), frozen([0.25], name="vae", after=["encoder"])],
        bandwidth=4.0,
    )
    write_profile(one, tmp_path / "new" / "profile.json")
    assert read_profile(tmp_path / "new" / "profile.json") == one
    assert one.frozen_s(2) == 1.5
    assert (one.all_reduce_s(8, 1), one.all_reduce_s(8, 2), one.all_reduce_s(8, 64)) == (0, 2, 2)


def test_the_profile_on_the_how_to_page_can_be_read() -> None:
    page = (Path(__file__).parents[5] / "docs" / "how-to" / "plan-a-pipeline.md").read_text(encoding="utf-8")
    found = parse_profile(page.partition("```json\n")[2].partition("```")[0], "page")
    assert [component.name for component in found.frozen] == ["text_encoder", "vae"]
    assert found.backbones[0].layers[0].returned_bytes_per_sample == 2621440


def broken(change: dict[str, Any]) -> str:
    content = profile(backbone([1.0, 2.0]), frozen=[frozen([0.5])]).model_dump(mode="json")
    with pytest.raises(ConfigurationError) as raised:
        parse_profile(json.dumps(content | change), "p.json")
    return str(raised.value)


LAYER = {"name": "a", "forward_s": [1], "backward_s": [1]}
NO_TIME = {"forward_s": [0], "backward_s": [0]}


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"version": 2}, "profile p.json: version must be 1, the one that this release reads (got 2)"),
        ({"format": "x"}, "profile p.json: format must be afterimage-pipeline-profile (got 'x')"),
        ({"backbones": []}, "profile p.json: backbones: Tuple should have at least 1 item"),
        (
            {"backbones": [{"name": "u", "local_batch_sizes": [1, 2], "layers": [LAYER]}]},
            "profile p.json: backbones[0]: forward_s of layer a must have one time per local batch size, 2 (got 1)",
        ),
        (
            {"backbones": [{"name": "u", "local_batch_sizes": [1], "layers": [LAYER | {"backward_s": [-1]}]}]},
            "backbones[0].layers[0].backward_s[0]: Input should be greater than or equal to 0 (got -1)",
        ),
        (
            {"backbones": [{"name": "u", "local_batch_sizes": [3], "layers": [LAYER | NO_TIME]}]},
            "backbones[0]: a layer must take time: all forward_s and backward_s are 0 at local batch size 3",
        ),
        (
            {"backbones": [{"name": "u", "local_batch_sizes": [2, 2], "layers": [LAYER]}]},
            "backbones[0]: local_batch_sizes must ascend, each size once (got [2, 2])",
        ),
        (
            {"frozen": [frozen([1.0], after=["text"]).model_dump(mode="json")]},
            "frozen must be in topological order: list text before encoder, which reads it",
        ),
        (
            {"frozen": [frozen([1.0], name="unet").model_dump(mode="json")]},
            "each component needs a name of its own (got 'unet' twice)",
        ),
        ({"p2p": {"latency_s": 0, "bandwidth_bytes_per_s": 0}}, "p2p.bandwidth_bytes_per_s: Input should be greater"),
        ({"speed": 1}, "speed: Extra inputs are not permitted"),
        (
            {"all_reduce": [{"devices": 4, "bandwidth_bytes_per_s": 1}, {"devices": 2, "bandwidth_bytes_per_s": 1}]},
            "all_reduce must ascend by devices, each number once (got [4, 2])",
        ),
    ],
)  # fmt: skip
def test_a_wrong_profile_is_named_with_field_and_rule(change: dict[str, Any], said: str) -> None:
    message = broken(change)
    assert message.startswith("profile p.json: ")
    assert said in message
    assert "\n" not in message


def test_a_file_that_is_no_profile_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="no such file"):
        read_profile(tmp_path / "none.json")
    (tmp_path / "text.json").write_text("times: 3")
    with pytest.raises(ConfigurationError, match="must be JSON"):
        read_profile(tmp_path / "text.json")
    with pytest.raises(ConfigurationError, match=r"backbones: Field required"):
        parse_profile("{}", "empty.json")
    assert isinstance(profile(backbone([1.0])), Profile)
