"""Settings are read once, checked by range, and named in their errors."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from shared.domain.errors import ConfigurationError
from shared.runtime.settings import Settings
from shared.runtime.settings_names import in_words
from shared.service.backends import require_shared


def test_urls_follow_the_data_directory(tmp_path: Path) -> None:
    settings = Settings(data_dir=tmp_path)
    assert settings.catalog_url == f"sqlite+aiosqlite:///{tmp_path}/catalog.sqlite3"
    assert settings.blobs_url == f"file:{tmp_path}/blobs"


def test_the_environment_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AFTERIMAGE_MAX_ROWS", "3")
    monkeypatch.setenv("AFTERIMAGE_MONITOR_GAINS", ".5,.1,0")
    for written in ("[5, 25]", "5,25", " 5, 25 "):
        monkeypatch.setenv("AFTERIMAGE_CAPTURE_STEPS", written)
        settings = Settings()
        assert settings.max_rows == 3
        assert settings.capture_steps == (5, 25)
        assert settings.monitor_gains == (0.5, 0.1, 0.0)
    monkeypatch.setenv("AFTERIMAGE_CAPTURE_STEPS", "5;25")
    with pytest.raises(ValidationError, match="capture_steps"):
        Settings()


def test_checkpoints_are_on_where_another_process_can_go_on() -> None:
    broker = "amqp://there"
    assert Settings().checkpoint_every_steps == 0
    assert Settings(bus_url=broker).checkpoint_every_steps == 10
    assert Settings(bus_url=broker, checkpoint_every_steps=0).checkpoint_every_steps == 0
    assert Settings(bus_url=broker).checkpoint_gap_s == 1.0
    assert Settings(bus_url=broker, checkpoint_every_steps=10).checkpoint_gap_s == 0.0, "steps that are set are taken"
    assert Settings(bus_url=broker, checkpoint_gap_s=5.0).checkpoint_gap_s == 5.0


@pytest.mark.parametrize("more", [{}, {"layout": "auto"}, {"layout": "patches", "batch_invariant": 4}])
def test_regions_need_patches(more: dict[str, Any]) -> None:
    assert Settings(regions="on", layout="patches").regions == "on"
    with pytest.raises(ValidationError, match="regions: on needs layout=patches and batch_invariant=0"):
        Settings(regions="on", **more)


def test_a_crash_does_not_cost_a_minute() -> None:
    assert Settings().lease_s <= 15.0


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("max_rows", 0),
        ("epsilon", 1.5),
        ("lease_s", 0),
        ("capture_steps", (0,)),
        ("capture_steps", (50,)),
        ("nope", 1),
        ("slo_classes", {"Very tight": 2.0}),
    ],
)
def test_a_value_out_of_range_is_refused_by_name(name: str, value: object) -> None:
    with pytest.raises(ValidationError, match=name):
        Settings(**{name: value})  # type: ignore[arg-type]  # wrong on purpose


def test_more_k_than_the_default_eviction_learns_of_need_another_one() -> None:
    assert Settings().eviction_policy == "afterimage"
    many = tuple(range(4, 48, 4))
    with pytest.raises(ValidationError, match=r"capture_steps: .* \(got 11\)"):
        Settings(capture_steps=many)
    assert Settings(capture_steps=many, eviction_policy="lcbfu").capture_steps == many


def test_a_misspelt_limit_of_a_tenant_is_named_with_the_limits_that_exist() -> None:
    with pytest.raises(ValidationError) as refused:
        Settings(tenant_limits={"acme": {"job": 5}})
    said = in_words(refused.value)
    assert said.startswith("tenant_limits.acme: has no limit job; the limits are rate, calls, jobs,"), said


def test_settings_cannot_be_changed() -> None:
    with pytest.raises(ValidationError, match="frozen"):
        Settings().max_rows = 2  # type: ignore[misc]  # wrong on purpose


def test_a_service_alone_refuses_process_local_ports_and_names_the_setting() -> None:
    with pytest.raises(ConfigurationError, match="bus_url=inprocess:"):
        require_shared(Settings(), "retriever")
    with pytest.raises(ConfigurationError, match="catalog_url=sqlite"):
        require_shared(Settings(bus_url="amqp://there", index_url="weaviate://there"), "retriever")
