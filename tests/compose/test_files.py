"""What the compose files promise, read off them: all but the last two need no engine."""

from __future__ import annotations

import importlib
import importlib.util
import json
import re
import subprocess
import sys
import tomllib
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import yaml  # type: ignore[import-untyped]  # it ships no types

from scripts.stack.rabbitmq import CONSUMER_TIMEOUT_S
from scripts.stack.stack import ASKED, LED
from shared.runtime.settings import Settings
from shared.service.backends import PORTS
from tests.compose.project import ROOT, Compose

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


def _file(name: str) -> dict[str, Any]:
    read: dict[str, Any] = yaml.safe_load((ROOT / "compose" / name).read_text())
    return read


def _served() -> dict[str, Any]:
    """The services that `up` starts."""
    return {name: it for name, it in _file("services.yaml")["services"].items() if "profiles" not in it}


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
    services = _served()
    assert set(services) == folders
    assert {name: it["build"]["args"]["SERVICE"] for name, it in services.items()} == {name: name for name in folders}


CALL = r'(?:channel\(|Stub, )"([a-z_]+)"\)'
"""How the code of one service names another one that it calls."""


def test_every_address_that_the_code_calls_is_set() -> None:
    """The console asks two services that no request needs: without their addresses its pages had nothing to show."""
    code = [path.read_text() for path in (ROOT / "services").rglob("*.py")]
    called = {name for text in code for name in re.findall(CALL, text)}
    assert {"retriever", "cache_maintainer"} <= called
    assert called == {*ASKED, *LED}
    for name, it in _served().items():
        assert {f"AFTERIMAGE_{one.upper()}_ADDRESS" for one in called} <= it["environment"].keys(), name


@pytest.mark.parametrize("name", _served())
def test_a_service_has_the_urls_of_the_servers_that_it_uses_alone(name: str) -> None:
    """The embedder, which uses none, had the passwords of all four."""
    module = importlib.import_module(f"services.{name}.service")
    (kind,) = (one for one in vars(module).values() if getattr(one, "name", "") == name and "start" in vars(one))
    urls = {f"AFTERIMAGE_{port.upper()}_URL" for port in getattr(kind, "ports", PORTS)}
    assert {one for one in _served()[name]["environment"] if one.endswith("_URL")} == urls


def test_an_end_waits_longer_than_a_drain() -> None:
    drain_s = Settings().drain_s
    for file in ("services.yaml", "embedded.yaml"):
        for name, service in _file(file)["services"].items():
            assert float(service["stop_grace_period"].removesuffix("s")) >= drain_s + 10.0, name


def test_public_images_are_pinned_to_one_release() -> None:
    """Not to a series, whose tag moves."""
    releases = {"postgres": r"17\.\d+", "rabbitmq": r"4\.\d+\.\d+-management", "minio": r"RELEASE\.[\dTZ-]+",
                "weaviate": r"\d+\.\d+\.\d+", "prometheus": r"v\d+\.\d+\.\d+", "grafana": r"\d+\.\d+\.\d+"}  # fmt: skip
    public = ("backends.yaml", "observability.yaml")
    images = {name: one["image"] for file in public for name, one in _file(file)["services"].items()}
    assert images.keys() == releases.keys()
    for name, image in images.items():
        assert re.fullmatch(rf"(\S+/)?{name}:{releases[name]}", image), image


OWN_LIMITS = {
    "RABBITMQ_WATERMARK": "RABBITMQ_MEMORY",
    "MINIO_GOMEMLIMIT": "MINIO_MEMORY",
    "WEAVIATE_GOMEMLIMIT": "WEAVIATE_MEMORY",
}


def test_its_own_images_have_the_projects_version() -> None:
    """With `latest`, a container that starts anew could run other code than its neighbours."""
    named = [
        (path.name, tag)
        for path in (*(ROOT / "compose").glob("*.yaml"), *(ROOT / "compose/kubernetes").rglob("*.yaml"))
        for tag in re.findall(r'(?:image|value): "?afterimage(?:-[a-z_]+)?:([^\s"]+)', path.read_text())
    ]
    version = PROJECT["version"]
    allowed = {
        f"${{IMAGE_TAG:-{version}}}",
        version,
        f"${{IMAGE_TAG:-{version}}}-${{TORCH_BACKEND:-cu128}}",
        f"{version}-cu128",
    }
    assert len(named) > 20
    assert [one for one in named if one[1] not in allowed] == []


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
    assert all(f"${{{name}:?" in text for name in example if name != "URL_SECRET")  # which earlier files lack


ALL = ("embedded.yaml", "backends.yaml", "services.yaml", "observability.yaml")


@pytest.mark.parametrize("file", ALL)
def test_every_container_has_bounds(file: str) -> None:
    """One that was taken over had a root user's capabilities, forked without end, and filled the disk with logs."""
    for name, one in _file(file)["services"].items():
        assert one["cap_drop"] == ["ALL"], name
        assert one["security_opt"] == ["no-new-privileges:true"], name
        assert one["deploy"]["resources"]["limits"].keys() == {"memory", "cpus", "pids"}, name
        assert one["logging"]["options"].keys() == {"max-size", "max-file"}, name


def test_the_gateway_is_the_one_door_and_each_server_is_with_its_users_alone() -> None:
    servers, services = _file("backends.yaml"), _file("services.yaml")
    everything = servers["services"] | services["services"]
    assert [name for name, one in everything.items() if "ports" in one] == ["gateway"]
    assert [name for name, one in everything.items() if "door" in one["networks"]] == ["gateway"]
    assert {name for name, one in everything.items() if "hub" in one["networks"]} == {
        name for name, one in services["services"].items() if one.get("volumes") == ["models:/models"]
    }
    assert servers["networks"] == {name: {"internal": True} for name in servers["services"]}
    assert services["networks"]["inside"] == {"internal": True}
    urls = {"CATALOG": "postgres", "BUS": "rabbitmq", "BLOBS": "minio", "INDEX": "weaviate"}
    for name, one in services["services"].items():
        used = {server for url, server in urls.items() if f"AFTERIMAGE_{url}_URL" in one["environment"]}
        assert set(one["networks"]) - {"door", "hub"} == {"inside", *used}, name
    assert all(one["networks"] == [name] for name, one in servers["services"].items())


def test_the_audit_log_of_a_command_outlives_its_container() -> None:
    """A container of `run --rm` took the line of a new key with it."""
    services = _file("services.yaml")
    tools = services["services"]["tools"]
    (volume,) = tools["volumes"]
    assert volume.partition(":")[0] in services["volumes"]
    assert volume.partition(":")[2] == tools["environment"]["AFTERIMAGE_DATA_DIR"]


def test_a_page_reaches_what_it_shows() -> None:
    watch = _file("observability.yaml")
    scraped = yaml.safe_load((ROOT / "compose/observability/prometheus.yaml").read_text())["scrape_configs"][0]
    for name in set(scraped["dns_sd_configs"][0]["names"]) & set(_served()):
        assert set(_served()[name]["networks"]) & set(watch["services"]["prometheus"]["networks"]), name
    assert "default" in watch["services"]["prometheus"]["networks"]  # with Grafana and the published port
    assert watch["networks"]["inside"] == {"internal": True}  # as in services.yaml; embedded.yaml does not have it
    for name, one in _file("pages.yaml")["services"].items():
        assert one["networks"] == [name, "pages"]


def test_settings_decide_who_may_call_and_the_default_is_the_try_out_stack() -> None:
    for file, gateway in (("services.yaml", "gateway"), ("embedded.yaml", "afterimage")):
        told = _file(file)["services"][gateway]["environment"]
        assert told["AFTERIMAGE_ALLOW_ANONYMOUS"] == "${ALLOW_ANONYMOUS:-always}"
        assert told["AFTERIMAGE_TLS_PROXY"] == "${TLS_PROXY:-false}"
    assert _file("tls.yaml")["services"]["gateway"]["environment"]["AFTERIMAGE_ALLOW_ANONYMOUS"] == "never"


def test_no_page_for_operators_is_reachable_from_another_machine() -> None:
    for name, service in _file("observability.yaml")["services"].items():
        (port,) = service["ports"]
        assert port.startswith("127.0.0.1:"), name
        mounted = {one["source"] for one in service.get("configs", ())}
        assert mounted <= set(_file("observability.yaml")["configs"])
    for config in _file("observability.yaml")["configs"].values():
        assert "content" in config or (ROOT / "compose" / config["file"]).is_file()


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
    with_torch = {name for name, it in _served().items() if it["build"]["args"]["PACKAGES"] == "torch"}
    assert with_torch == {"embedder", "text_extractor", "segmenter", "gpu_worker"}


def test_the_command_line_is_there_when_asked_for_as_safe_as_a_service_and_knows_what_they_know() -> None:
    tools, others = _file("services.yaml")["services"]["tools"], _served()
    assert tools["profiles"] == ["tools"]  # so `up` does not start it
    for name, service in others.items():
        own = {
            "AFTERIMAGE_ALLOW_ANONYMOUS",
            "AFTERIMAGE_TLS_PROXY",
            "AFTERIMAGE_HTTP_LISTEN",
            "AFTERIMAGE_HTTP_URL_SECRET",
        }
        told = {key: value for key, value in service["environment"].items() if name != "gateway" or key not in own}
        assert tools["environment"].items() >= told.items(), name
        for shared in ("env_file", "read_only", "cap_drop", "security_opt", "tmpfs"):
            assert tools.get(shared) == service.get(shared), (name, shared)
    assert tools["read_only"] is True
    for name in ("cache_maintainer", "global_monitor"):
        assert tools["environment"][f"AFTERIMAGE_{name.upper()}_ADDRESS"] == f"{name}:50051"
    stage = _stage(tools["build"]["target"])
    assert stage[0].startswith("FROM light ")
    assert "USER afterimage" in stage
    assert 'ENTRYPOINT ["python", "-m", "services"]' in stage


def _stage(name: str) -> list[str]:
    """The lines of one stage of the Dockerfile."""
    stages = re.split(r"^(?=FROM )", (ROOT / "compose/Dockerfile").read_text(), flags=re.MULTILINE)
    (found,) = [stage for stage in stages if stage.splitlines()[0].endswith(f" AS {name}")]
    return found.splitlines()


MODULES = {"scikit-learn": "sklearn", "pillow": "PIL"}
OPERATING = (
    "services.cli.app shared.bus.rabbitmq shared.catalog.engines.postgresql shared.index.weaviate shared.index.rebuild "
    "shared.blobs.minio shared.service.backends shared.client"
)
"""What commands import: at their start, and for a cluster."""


def test_the_command_line_needs_no_more_than_its_image_installs() -> None:
    text = "\n".join(_stage("command"))
    installed = {"light", *re.findall(r"/lists/(\w+)\.txt", text)} - {"constraints"}
    by_name = set(re.findall(r"\S+$", next(line for line in _stage("command") if "pip install" in line)))
    only = _requirements().ONLY
    away = [MODULES.get(package, package) for name in set(only) - installed for package in set(only[name]) - by_name]
    assert "torch" in away
    blocked = f"import sys; sys.modules.update(dict.fromkeys({away!r})); import {', '.join(OPERATING.split())}"
    done = subprocess.run([sys.executable, "-c", blocked], cwd=ROOT, capture_output=True, text=True, check=False)
    assert not done.returncode, done.stderr


@pytest.mark.parametrize("name", ["gateway", "match_predictor", "retriever", "cache_maintainer", "global_monitor"])
def test_a_service_needs_no_more_than_its_image_installs(name: str) -> None:
    only, brought = _requirements().ONLY, _served()[name]["build"]["args"]["PACKAGES"]
    away = [MODULES.get(package, package) for kind in set(only) - {brought} for package in only[kind]]
    assert {"torch", "PIL"} <= set(away)
    blocked = f"import sys; sys.modules.update(dict.fromkeys({away!r})); import services.{name}.service"
    done = subprocess.run([sys.executable, "-c", blocked], cwd=ROOT, capture_output=True, text=True, check=False)
    assert not done.returncode, done.stderr


def test_every_limit_is_named_where_settings_are_looked_up() -> None:
    files = [path.read_text() for path in (ROOT / "compose").glob("*.yaml")]
    limits = {name for text in files for name in re.findall(r"\$\{(\w+_MEMORY):-", text)}
    named = set(re.findall(r"\b\w+_MEMORY\b", (ROOT / "compose/.env.example").read_text()))
    assert named == limits


def test_a_task_may_stay_unacknowledged_as_long_as_in_the_stack_without_containers() -> None:
    """The broker's own half an hour would take a long picture out of the hands of the worker that draws it."""
    given = _file("backends.yaml")["configs"]["rabbitmq"]["content"]
    (timeout_ms,) = re.findall(r"^consumer_timeout = (\d+)$", given, flags=re.MULTILINE)
    assert int(timeout_ms) == CONSUMER_TIMEOUT_S * 1000 == 24 * 3600 * 1000


def test_without_passwords_it_says_where_they_come_from(docker: None, tmp_path: Path) -> None:
    compose = Compose(tmp_path, ("backends.yaml", "services.yaml"), {}, passwords=False)
    # whichever of the four compose happens to miss first
    with pytest.raises(AssertionError, match=r"_(PASSWORD|KEY)\b.*is not set, run compose/secrets\.sh.*compose/\.env"):
        compose("config", "--quiet")


def test_every_service_knows_whether_the_workers_have_a_gpu() -> None:
    """The dtype of the latents that they look for follows it, and only a worker could see it."""
    services, gpu = _file("services.yaml"), _file("gpu.yaml")
    own = {name: one["environment"]["AFTERIMAGE_DEVICE"] for name, one in services["services"].items()}
    assert set(own.values()) == {"${DEVICE:-cpu}"}
    told = {name: one["environment"]["AFTERIMAGE_DEVICE"] for name, one in gpu["services"].items()}
    assert told == dict.fromkeys(own, "auto") | {"gpu_worker": "${GPU_WORKER_DEVICE:-cuda}"}


def test_a_gpu_is_asked_for_with_the_build_of_torch_that_uses_it(docker: None, tmp_path: Path) -> None:
    compose = Compose(tmp_path, ("backends.yaml", "services.yaml", "gpu.yaml"), {})
    services = json.loads(compose("config", "--format", "json"))["services"]
    worker = services["gpu_worker"]
    assert worker["build"]["args"]["TORCH_BACKEND"].startswith("cu")
    (device,) = worker["deploy"]["resources"]["reservations"]["devices"]
    assert (device["driver"], device["capabilities"], device["device_ids"]) == ("nvidia", ["gpu"], ["0"])
    assert "TORCH_BACKEND" not in services["embedder"]["build"]["args"]
    assert worker["image"] != services["embedder"]["image"].replace("embedder", "gpu_worker")
