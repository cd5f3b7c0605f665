"""What the compose files promise, read off them: all but the last two need no engine."""

from __future__ import annotations

import importlib.util
import json
import re
import tomllib
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import yaml  # type: ignore[import-untyped]  # it ships no types

from shared.settings import Settings
from tests.compose.project import ROOT, Compose

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


def _file(name: str) -> dict[str, Any]:
    read: dict[str, Any] = yaml.safe_load((ROOT / "compose" / name).read_text())
    return read


def _requirements() -> ModuleType:
    spec = importlib.util.spec_from_file_location("requirements", ROOT / "compose/requirements.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_every_service_has_its_image() -> None:
    """A folder of services that can run alone and is not in the stack would be missed by nobody."""
    folders = {path.parent.name for path in (ROOT / "services").glob("*/service.py")}
    services = _file("services.yaml")["services"]
    assert set(services) == folders
    assert {name: it["build"]["args"]["SERVICE"] for name, it in services.items()} == {name: name for name in folders}


def test_an_end_waits_longer_than_a_drain() -> None:
    drain_s = Settings().drain_s
    for file in ("services.yaml", "embedded.yaml"):
        for name, service in _file(file)["services"].items():
            assert float(service["stop_grace_period"].removesuffix("s")) >= drain_s + 10.0, name


def test_public_images_are_pinned() -> None:
    for name, service in _file("backends.yaml")["services"].items():
        assert service["image"].rpartition(":")[2] not in ("", "latest"), name
        assert "/" not in service["image"].rpartition(":")[2], name


OWN_LIMITS = {
    "RABBITMQ_WATERMARK": "RABBITMQ_MEMORY",
    "MINIO_GOMEMLIMIT": "MINIO_MEMORY",
    "WEAVIATE_GOMEMLIMIT": "WEAVIATE_MEMORY",
}


def test_a_servers_own_limit_is_set_beside_its_containers_and_below_it() -> None:
    text = (ROOT / "compose/backends.yaml").read_text()
    defaults = dict(re.findall(r"\$\{(\w+):-(\w+)\}", text))
    assert not re.search(r"(GOMEMLIMIT:|watermark\S* =) *\d", text)  # none that a smaller container would not know of
    for own, container in OWN_LIMITS.items():
        assert 0.5 < _mib(defaults[own]) / _mib(defaults[container]) < 0.9, own
        for name in (own, container):
            assert f"#{name}={defaults[name]}\n" in (ROOT / "compose/.env.example").read_text()


def _mib(size: str) -> int:
    return int(size.removesuffix("MiB")) if size.endswith("MiB") else 1024 * int(size.removesuffix("g"))


def test_the_repository_holds_no_password() -> None:
    example = dict(
        line.split("=", 1)
        for line in (ROOT / "compose/.env.example").read_text().splitlines()
        if line and not line.startswith("#")
    )
    assert set(example.values()) == {""}
    text = (ROOT / "compose/backends.yaml").read_text()
    assert all(f"${{{name}:?" in text for name in example)


def test_every_requirement_is_in_one_set() -> None:
    requirements = _requirements()
    sets = [requirements.requirements(name, PROJECT) for name in ("light", *requirements.ONLY)]
    listed = [
        *PROJECT["dependencies"],
        *(one for extra in requirements.EXTRAS for one in PROJECT["optional-dependencies"][extra]),
    ]
    assert sorted(line for lines in sets for line in lines) == sorted(listed)
    for name, packages in requirements.ONLY.items():
        assert {requirements.package_of(line) for line in requirements.requirements(name, PROJECT)} == set(packages)


@pytest.mark.parametrize("package", ["torch", "diffusers", "transformers"])
def test_only_those_that_run_models_install_torch(package: str) -> None:
    light = {_requirements().package_of(line) for line in _requirements().requirements("light", PROJECT)}
    assert package not in light
    with_torch = {
        name for name, it in _file("services.yaml")["services"].items() if it["build"]["args"]["PACKAGES"] == "torch"
    }
    assert with_torch == {"embedder", "gpu_worker"}


def test_without_passwords_it_says_where_they_come_from(docker: None, tmp_path: Path) -> None:
    compose = Compose(tmp_path, ("backends.yaml", "services.yaml"), {}, passwords=False)
    # whichever of the four compose happens to miss first
    with pytest.raises(AssertionError, match=r"_(PASSWORD|KEY)\b.*is not set, run compose/secrets\.sh.*compose/\.env"):
        compose("config", "--quiet")


def test_a_gpu_is_asked_for_with_the_build_of_torch_that_uses_it(docker: None, tmp_path: Path) -> None:
    compose = Compose(tmp_path, ("backends.yaml", "services.yaml", "gpu.yaml"), {})
    services = json.loads(compose("config", "--format", "json"))["services"]
    worker = services["gpu_worker"]
    assert worker["build"]["args"]["TORCH_BACKEND"].startswith("cu")
    (device,) = worker["deploy"]["resources"]["reservations"]["devices"]
    assert (device["driver"], device["capabilities"], device["device_ids"]) == ("nvidia", ["gpu"], ["0"])
    assert "TORCH_BACKEND" not in services["embedder"]["build"]["args"]
    assert worker["image"] != services["embedder"]["image"].replace("embedder", "gpu_worker")
