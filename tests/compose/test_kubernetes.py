"""What the Kubernetes manifests promise, read off them; no cluster is needed, and none has run them."""

from __future__ import annotations

import ast
import json
import os
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any, Literal

import pytest
import yaml  # type: ignore[import-untyped]  # it ships no types
from pydantic import BaseModel, ConfigDict, Field
from pydantic.alias_generators import to_camel

from shared.runtime.settings import Settings
from shared.runtime.settings_names import misspelt
from shared.runtime.tls import mesh_name
from shared.service.door import check_guarded
from shared.service.rights import RIGHTS
from tests.compose.kustomize import Manifest, build
from tests.compose.project import ROOT
from tests.compose.test_files import CALL

FOLDER = ROOT / "compose/kubernetes"
OLDEST = "1.30"
"""Release of Kubernetes that docs/how-to/run-on-kubernetes.md asks for."""
OVERLAYS = ("cpu", "gpu", "in-cluster")
COMPONENT = "app.kubernetes.io/component"
FOLDERS = {path.parent.name for path in (ROOT / "services").glob("*/service.py")}


def _of(manifests: list[Manifest], kind: str) -> dict[str, Any]:
    return {one["metadata"]["name"]: one for one in manifests if one["kind"] == kind}


def _pod(deployment: Manifest) -> Any:
    return deployment["spec"]["template"]["spec"]


def _environment(manifests: list[Manifest], name: str) -> dict[str, str]:
    """The settings of one service: shared ones, its own, and those of secrets with a stand-in."""
    (container,) = _pod(_of(manifests, "Deployment")[name])["containers"]
    found: dict[str, str] = {}
    for source in container["envFrom"]:
        if "configMapRef" in source:
            found |= _of(manifests, "ConfigMap")[source["configMapRef"]["name"]]["data"]
        else:
            found |= _secrets()[source["secretRef"]["name"]]
    for variable in container.get("env", ()):
        if "value" in variable:
            found[variable["name"]] = variable["value"]
        else:
            reference = variable["valueFrom"]["secretKeyRef"]
            found[variable["name"]] = _secrets()[reference["name"]][reference["key"]]
    return found


def _secrets(*arguments: Path, **given: str) -> dict[str, dict[str, str]]:
    """What secrets.sh prints: name → entries."""
    call, environment = [FOLDER / "secrets.sh", *arguments], {"PATH": os.defpath, **given}
    done = subprocess.run(call, env=environment, capture_output=True, text=True, check=True)
    return {one["metadata"]["name"]: one["stringData"] for one in yaml.safe_load_all(done.stdout) if one}


def test_every_manifest_is_valid() -> None:
    """By the schemas of the oldest release that the page names, and of the newest that the package knows."""
    validate = pytest.importorskip("kubernetes_validate")
    manifests = [one for overlay in OVERLAYS for one in build(FOLDER / overlay)]
    for manifest in {json.dumps(one): one for one in manifests}.values():
        for version in (OLDEST, validate.latest_version()):
            validate.validate(manifest, version, strict=True)


@pytest.mark.parametrize("overlay", [*OVERLAYS, "keda"])
def test_kubectl_builds_the_same(overlay: str) -> None:
    if shutil.which("kubectl") is None:
        pytest.skip("no kubectl")
    done = subprocess.run(["kubectl", "kustomize", FOLDER / overlay], capture_output=True, text=True, check=True)

    def order(one: Manifest) -> tuple[str, str]:
        return one["kind"], one["metadata"]["name"]

    assert sorted(yaml.safe_load_all(done.stdout), key=order) == sorted(build(FOLDER / overlay), key=order)


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_every_service_runs_with_settings_that_the_code_has(overlay: str, monkeypatch: pytest.MonkeyPatch) -> None:
    manifests = build(FOLDER / overlay)
    deployments = _of(manifests, "Deployment")
    assert {name.replace("-", "_") for name in deployments} == FOLDERS
    for name in deployments:
        with monkeypatch.context() as patched:
            for known in Settings.model_fields:
                patched.delenv(f"AFTERIMAGE_{known.upper()}", raising=False)
            environment = _environment(manifests, name)
            assert all(one.removeprefix("AFTERIMAGE_").lower() in Settings.model_fields for one in environment), name
            assert not list(misspelt(environment))
            for variable, value in environment.items():
                patched.setenv(variable, value)
            settings = Settings()  # raises for a wrong value
        check_guarded(settings)
        (container,) = _pod(deployments[name])["containers"]
        assert container["image"].split(":")[0] == f"afterimage-{name.replace('-', '_')}"


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_addresses_and_ports_are_those_of_the_settings(overlay: str) -> None:
    manifests = build(FOLDER / overlay)
    services, deployments = _of(manifests, "Service"), _of(manifests, "Deployment")
    for name, deployment in deployments.items():
        environment = _environment(manifests, name)
        (container,) = _pod(deployment)["containers"]
        ports = {port["name"]: port["containerPort"] for port in container["ports"]}
        listening = {"grpc": "LISTEN", "health": "HEALTH_LISTEN", "metrics": "METRICS_LISTEN", "http": "HTTP_LISTEN"}
        assert ports == {
            port: int(environment[f"AFTERIMAGE_{variable}"].rpartition(":")[2])
            for port, variable in listening.items()
            if environment[f"AFTERIMAGE_{variable}"]
        }
        for probe in ("startupProbe", "livenessProbe", "readinessProbe"):
            assert container[probe]["grpc"]["port"] == ports["health"]
        for variable, value in environment.items():
            if variable.endswith("_ADDRESS"):
                host, _, port = value.partition(":")
                assert host == variable.removeprefix("AFTERIMAGE_").removesuffix("_ADDRESS").lower().replace("_", "-")
                assert int(port) in {one["port"] for one in services[host]["spec"]["ports"]}
        labels = deployment["spec"]["template"]["metadata"]["labels"]
        assert services[name]["spec"]["selector"] == deployment["spec"]["selector"]["matchLabels"] == labels
        assert _of(manifests, "PodDisruptionBudget")[name]["spec"]["selector"]["matchLabels"] == labels


def test_readiness_asks_for_the_services_that_need_catalog_and_broker() -> None:
    asked = {}
    for name, deployment in _of(build(FOLDER / "base"), "Deployment").items():
        (container,) = _pod(deployment)["containers"]
        asked[name] = container["readinessProbe"]["grpc"].get("service", "")
        assert "service" not in container["livenessProbe"]["grpc"]  # a restart does not bring a server back
    page = (ROOT / "docs/how-to/run-the-cluster.md").read_text()
    named = {
        "gateway": "afterimage.gateway.v1.GatewayService",
        "gpu-worker": "afterimage.gpu_worker.v1.GpuWorkerService",
    }
    assert {name: one for name, one in asked.items() if one} == named
    assert all(one in page for one in asked.values())


def test_a_pod_ends_no_earlier_than_it_has_drained() -> None:
    manifests = build(FOLDER / "base")
    for name, deployment in _of(manifests, "Deployment").items():
        pod = _pod(deployment)
        (container,) = pod["containers"]
        drain_s = float(_environment(manifests, name).get("AFTERIMAGE_DRAIN_S", Settings().drain_s))
        waits = container.get("lifecycle", {}).get("preStop", {}).get("exec", {}).get("command", ["sleep", "0"])
        assert pod["terminationGracePeriodSeconds"] >= drain_s + float(waits[1]) + 10, name
        assert container["securityContext"]["readOnlyRootFilesystem"]
        assert pod["securityContext"]["runAsUser"] == 10001
    assert "--uid 10001" in (ROOT / "compose/Dockerfile").read_text()


def test_only_those_that_call_a_service_reach_it() -> None:
    manifests = build(FOLDER / "base")
    policies = _of(manifests, "NetworkPolicy")
    assert policies["afterimage-closed"]["spec"].keys() == {"podSelector", "policyTypes"}
    callers = {}
    for name in set(policies) - {"afterimage-closed", "afterimage-metrics", "gateway"}:
        (rule,) = policies[name]["spec"]["ingress"]
        ((source,),) = (rule["from"],)
        callers[name] = {*source["podSelector"]["matchExpressions"][0]["values"]}
        assert policies[name]["spec"]["podSelector"]["matchLabels"][COMPONENT] == name
    for name, allowed in callers.items():
        called = name.replace("-", "_")
        code = {
            path.relative_to(ROOT / "services").parts[0].replace("_", "-")
            for path in (ROOT / "services").rglob("*.py")
            if called in re.findall(CALL, path.read_text())
        } & {one.replace("_", "-") for one in FOLDERS}
        assert code <= allowed, name
        assert allowed <= code | {"tools"}, name
        service = (ROOT / f"services/{called}/service.py").read_text()
        by_certificate = re.search(r"callers: ClassVar\[MayCall\] = (\{[^=]*\})\n", service)
        named = set(ast.literal_eval(by_certificate[1])) if by_certificate else set()
        assert {one.replace("_", "-") for one in named} == code, name


def test_in_cluster_needs_no_certificate_and_is_open_to_nobody() -> None:
    manifests = build(FOLDER / "in-cluster")
    gateway = _pod(_of(manifests, "Deployment")["gateway"])
    environment = _environment(manifests, "gateway")
    assert environment["AFTERIMAGE_ALLOW_ANONYMOUS"] == "always"
    assert not {one for one in environment if "TLS" in one}
    assert [mount["name"] for mount in gateway["containers"][0]["volumeMounts"]] == ["tmp", "mesh"]
    assert [volume["name"] for volume in gateway["volumes"]] == ["tmp", "mesh"]
    assert "ingress" not in _of(manifests, "NetworkPolicy")["gateway"]["spec"]
    compose = yaml.safe_load((ROOT / "compose/backends.yaml").read_text())["services"]
    servers = _of(manifests, "StatefulSet")
    for name, server in servers.items():
        assert _pod(server)["containers"][0]["image"] == compose[name]["image"]
    assert servers.keys() == compose.keys()
    services = yaml.safe_load((ROOT / "compose/services.yaml").read_text())["services"]
    for name, server in servers.items():
        (rule,) = _of(manifests, "NetworkPolicy")[name]["spec"]["ingress"]
        allowed = rule["from"][0]["podSelector"]["matchExpressions"][0]["values"]
        assert {one.replace("-", "_") for one in allowed} == {
            service for service, one in services.items() if name in one["networks"]
        }
        assert [one["port"] for one in rule["ports"]] == [
            one["containerPort"] for one in _pod(server)["containers"][0]["ports"]
        ]


def test_each_service_finds_its_own_mesh_certificate_where_it_looks() -> None:
    for service, deployment in _of(build(FOLDER / "cpu"), "Deployment").items():
        (container,) = _pod(deployment)["containers"]
        places = [one["mountPath"] for one in container["volumeMounts"] if one["name"] == "mesh"]
        assert places == [f"/mesh/{mesh_name(service)}"]
        (volume,) = [one for one in _pod(deployment)["volumes"] if one["name"] == "mesh"]
        assert volume["secret"] == {"secretName": f"{service}-mesh", "defaultMode": 0o440, "optional": True}


def test_secrets_take_four_urls_or_none() -> None:
    urls = {f"AFTERIMAGE_{name}_URL": f"{name.lower()}://host" for name in ("CATALOG", "BUS", "BLOBS", "INDEX")}
    given, own = _secrets(**urls), _secrets()
    assert {name for name in given if name.endswith("-servers")} == {_secret_of(service) for service in FOLDERS}
    assert own.keys() == given.keys() | {"afterimage-passwords"}
    for service in FOLDERS:
        assert given[_secret_of(service)] == urls
        for name, password in own["afterimage-passwords"].items():
            assert len(password) == 32
            assert any(f":{password}@{name}" in url for url in own[_secret_of(service)].values())
    with pytest.raises(subprocess.CalledProcessError):
        _secrets(AFTERIMAGE_BUS_URL="amqp://host")


def test_each_service_gets_the_users_that_the_command_made_for_it(tmp_path: Path) -> None:
    urls = {
        service: {
            "AFTERIMAGE_BUS_URL": f"amqp://afterimage_{service}@host/",
            "AFTERIMAGE_INDEX_URL": "weaviate://h?a=b",
        }
        for service in RIGHTS
    }
    for service, own in urls.items():
        (tmp_path / f"{service}.env").write_text("".join(f"{name}={url}\n" for name, url in own.items()))
    assert _secrets(tmp_path) == {_secret_of(service): own for service, own in urls.items()}
    for service, deployment in _of(build(FOLDER / "cpu"), "Deployment").items():
        (container,) = _pod(deployment)["containers"]
        named = [one["secretRef"]["name"] for one in container["envFrom"] if "secretRef" in one]
        assert named == [_secret_of(service)]
    (tmp_path / "segmenter.env").unlink()
    with pytest.raises(subprocess.CalledProcessError):
        _secrets(tmp_path)


def _secret_of(service: str) -> str:
    return f"{service.replace('_', '-')}-servers"


# ---- KEDA


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True, alias_generator=to_camel)


class _Policy(_Strict):
    type: Literal["Pods", "Percent"]
    value: int = Field(gt=0)
    period_seconds: int = Field(gt=0, le=1800)


class _Direction(_Strict):
    stabilization_window_seconds: int = Field(ge=0, le=3600)
    select_policy: Literal["Max", "Min", "Disabled"] = "Max"
    policies: list[_Policy] = []


class _Behavior(_Strict):
    scale_up: _Direction | None = None
    scale_down: _Direction | None = None


class _Hpa(_Strict):
    behavior: _Behavior


class _Advanced(_Strict):
    horizontal_pod_autoscaler_config: _Hpa


class _Prometheus(_Strict):
    """Metadata of KEDA's Prometheus scaler: all values are strings."""

    server_address: str = Field(pattern="^https?://")
    query: str
    threshold: str = Field(pattern=r"^\d+(\.\d+)?$")
    ignore_null_values: Literal["true", "false"]


class _Trigger(_Strict):
    type: Literal["prometheus"]
    name: str = ""
    metric_type: Literal["AverageValue", "Value"]
    metadata: _Prometheus


class _Target(_Strict):
    name: str


class _Scaling(_Strict):
    scale_target_ref: _Target
    min_replica_count: int = Field(ge=0)
    max_replica_count: int = Field(gt=0)
    polling_interval: int = Field(gt=0)
    advanced: _Advanced
    triggers: list[_Trigger] = Field(min_length=1)


class _ScaledObject(_Strict):
    """The fields of keda.sh/v1alpha1 that the manifests use, by its documentation; no package has KEDA's schema."""

    api_version: Literal["keda.sh/v1alpha1"]
    kind: Literal["ScaledObject"]
    metadata: dict[str, str]
    spec: _Scaling


def test_scaled_objects_fit_their_deployments() -> None:
    deployments = _of(build(FOLDER / "base"), "Deployment")
    scaled = [_ScaledObject.model_validate(one) for one in build(FOLDER / "keda")]
    assert {one.spec.scale_target_ref.name for one in scaled} == {"gpu-worker", "embedder"}
    for one in scaled:
        # a number in the Deployment would undo KEDA's at each apply
        assert "replicas" not in deployments[one.spec.scale_target_ref.name]["spec"]
        down = one.spec.advanced.horizontal_pod_autoscaler_config.behavior.scale_down
        assert down is not None
        assert down.stabilization_window_seconds >= 300
    assert {name for name, it in deployments.items() if "replicas" not in it["spec"]} == {"gpu-worker", "embedder"}


def test_the_page_names_what_is_there() -> None:
    page = (ROOT / "docs/how-to/run-on-kubernetes.md").read_text()
    for folder in (*OVERLAYS, "keda"):
        assert f"compose/kubernetes/{folder}" in page
        assert (Path(FOLDER) / folder / "kustomization.yaml").is_file()
    assert f"Kubernetes {OLDEST} or newer" in page
