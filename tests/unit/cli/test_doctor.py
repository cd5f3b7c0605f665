"""`afterimage doctor`: every kind of trouble is one line with what to do, and nothing is changed by looking."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import socket
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from importlib import metadata
from pathlib import Path
from typing import Any

import grpc
import pytest
from grpc_health.v1 import health as servicer
from grpc_health.v1 import health_pb2, health_pb2_grpc
from packaging.requirements import Requirement

from protos import gateway_pb2 as pb
from protos.gateway_pb2_grpc import GatewayServiceServicer, add_GatewayServiceServicer_to_server
from services.cli import app as cli
from services.cli.doctor import command, models, packages, servers
from services.cli.doctor.findings import Check, Finding, Verdict, findings, ok, without_secrets
from services.cli.doctor.settings import check_settings, read_settings
from services.cli.doctor.storage import check_storage
from services.cli.embedded import RUNNING_FILE
from shared.catalog import open_catalog
from shared.catalog.migrate import HEAD
from shared.catalog.probe import unchanging
from shared.models.card_lookup import BUNDLED
from shared.runtime.datadir import lock_data_dir
from shared.runtime.probes import Probe, ahead_by, version_of
from shared.runtime.settings import Settings
from tests.unit.cli.test_app import run

NOBODY = "127.0.0.1:9"
URLS = {
    "catalog_url": "postgresql+asyncpg://afterimage:open-sesame@{at}/afterimage",
    "bus_url": "amqp://afterimage:open-sesame@{at}/",
    "blobs_url": "minio://afterimage:open-sesame@{at}/bucket",
    "index_url": "weaviate://:open-sesame@{at}?grpc_port=10",
}


def said(checks: list[Check]) -> list[Finding]:
    return [found for check in checks for found in findings(check)]


def only(found: list[Finding], verdict: Verdict) -> list[str]:
    return [f"{one.check}: {one.fact}: {one.advice}" for one in found if one.verdict is verdict]


def all_in(folder: Path) -> list[tuple[str, int, int]]:
    return sorted((str(path), path.stat().st_size, path.stat().st_mtime_ns) for path in folder.rglob("*"))


# ---- settings and packages ----


def test_a_value_that_is_no_json_is_a_line_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AFTERIMAGE_TENANT_LIMITS", '{"acme": {"jobs": 5')
    settings, broken = read_settings()
    assert settings is None
    (wrong,) = only(broken, Verdict.WRONG)
    assert "tenant_limits: must be JSON (Expecting ',' delimiter: line 1 column 20" in wrong


def test_wrong_values_unread_names_and_combinations_are_three_lines(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    given = {"MAX_ROWS": "many", "MAX_ROWZ": "4", "BUS_URL": "amqp://u:p@host", "DATA_DIR": str(tmp_path)}
    for name, value in given.items():
        monkeypatch.setenv(f"AFTERIMAGE_{name}", value)
    settings, broken = read_settings()
    assert settings is not None
    assert settings.max_rows == Settings.model_fields["max_rows"].default
    found = list(check_settings(settings, {f"AFTERIMAGE_{name}": value for name, value in given.items()}, broken))
    (wrong,) = only(found, Verdict.WRONG)
    assert "max_rows: Input should be a valid integer" in wrong
    assert "(got 'many')" in wrong
    warnings = only(found, Verdict.WARNING)
    assert any("take the default of max_rows" in line for line in warnings)
    assert any("did you mean AFTERIMAGE_MAX_ROWS?" in line for line in warnings)
    assert any("bus_url name servers, and index_url, catalog_url, blobs_url do not" in line for line in warnings)


def test_a_rule_over_several_settings_leaves_the_rest_unchecked(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("AFTERIMAGE_CAPTURE_STEPS", "60")
    with pytest.raises(SystemExit) as left:
        cli.app(["doctor", "--json"])
    found = json.loads(capsys.readouterr().out)
    assert left.value.code == os.EX_CONFIG
    assert "capture_steps: every K must be from 1 to 49" in found[0]["fact"]
    assert found[-1]["fact"] == "not checked: the settings are wrong"
    assert any(one["check"] == "packages" for one in found)


def test_addresses_and_ports_that_cannot_work(tmp_path: Path) -> None:
    settings = Settings(
        data_dir=tmp_path, listen="here", retriever_address="a:1,b:2", metrics_listen="here", set_aside=True
    )
    found = list(check_settings(settings, {}, []))
    wrong = "\n".join(only(found, Verdict.WRONG))
    assert "listen: must be host:port" in wrong
    assert "listen and metrics_listen are both here" in wrong
    assert "retriever_address: 'a:1' is not ip:port" in wrong
    assert any("set_aside has no effect with scheduler=priority" in line for line in only(found, Verdict.WARNING))


def test_packages_are_compared_with_what_is_asked(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    assert not only(list(packages.check_packages(None)), Verdict.WRONG)
    asked = ["numpy<1", "no-such-package-here>=1", 'also-not-here; extra == "cluster"', 'pillow>=1; extra == "dev"']
    monkeypatch.setattr(metadata, "requires", lambda _: asked)
    wrong = only(list(packages.check_packages(None)), Verdict.WRONG)
    assert len(wrong) == 2
    assert "pip install 'numpy<1'" in wrong[0]
    assert "not installed: no-such-package-here: pip install 'afterimage'" in wrong[1]
    cluster = Settings(data_dir=tmp_path, bus_url=URLS["bus_url"].format(at=NOBODY))
    wrong = only(list(packages.check_packages(cluster)), Verdict.WRONG)
    assert "not installed: also-not-here: pip install 'afterimage[cluster]'" in wrong[2]


def test_requirements_read_as_packaging_reads_them() -> None:
    for line in metadata.requires("afterimage") or ():
        theirs, ours = Requirement(line), packages.Asked.parse(line)
        assert ours.name == theirs.name
        assert theirs.marker is None or ours.extra or "extra" not in str(theirs.marker)
        assert not ours.extra or f'extra == "{ours.extra}"' in str(theirs.marker)
        for version in ("0.1", "1.74", "1.74.0", "1.79.9", "1.80", "2.0.40", "6.31", "7", "7.0.0", "26", "2026.1"):
            assert ours.fits(version) is theirs.specifier.contains(version), (line, version)


# ---- the data directory ----


@pytest.fixture
def anyones() -> Iterator[Path]:
    """A folder that every user reaches, unlike pytest's own."""
    folder = Path(tempfile.mkdtemp(dir="/tmp"))
    folder.chmod(0o755)
    yield folder
    shutil.rmtree(folder)


@pytest.fixture
def nobody() -> Iterator[None]:
    """Not root, whom no mode keeps from writing."""
    before = os.geteuid()
    if before == 0:
        os.seteuid(65534)
    yield
    os.seteuid(before)


def test_a_directory_that_cannot_be_written(anyones: Path, nobody: None) -> None:
    if os.geteuid() != 65534:
        anyones.chmod(0o555)
    found = list(check_storage(Settings(data_dir=anyones)))
    (wrong,) = only(found, Verdict.WRONG)
    assert f"data directory: {anyones} cannot be written" in wrong
    assert "choose another AFTERIMAGE_DATA_DIR" in wrong
    assert any(one.check == "disk" for one in found)


def test_a_directory_that_others_may_read_and_one_that_is_a_file(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir(mode=0o755)
    (tmp_path / "file").touch()
    found = list(check_storage(Settings(data_dir=tmp_path / "data")))
    assert f"chmod 700 {tmp_path / 'data'}" in only(found, Verdict.WARNING)[0]
    (wrong,) = only(list(check_storage(Settings(data_dir=tmp_path / "file"))), Verdict.WRONG)
    assert "is not a folder" in wrong


def test_blobs_outside_the_data_directory_are_checked_too(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    settings = Settings(data_dir=tmp_path / "data", blobs_url=f"file://{tmp_path / 'file'}")
    (wrong,) = only(list(check_storage(settings)), Verdict.WRONG)
    assert wrong == f"blobs: {tmp_path / 'file'} is not a folder: choose another AFTERIMAGE_BLOBS_URL"


def test_a_lock_that_somebody_holds(tmp_path: Path) -> None:
    settings = Settings(data_dir=tmp_path / "data")
    lock = lock_data_dir(settings.data_dir)
    (held,) = only(list(check_storage(settings)), Verdict.WARNING)
    assert f"lock: process {os.getpid()} holds the data directory, and serves nothing yet" in held
    lock.release()
    before = all_in(tmp_path)
    assert not only(list(check_storage(settings)), Verdict.WARNING)
    assert all_in(tmp_path) == before
    lock_data_dir(settings.data_dir).release()


def test_disk_space_against_the_limits(tmp_path: Path) -> None:
    free = shutil.disk_usage(tmp_path).free
    less = Settings(data_dir=tmp_path / "data", cache_max_bytes=2 * free)
    assert any("less than the cache limits" in line for line in only(list(check_storage(less)), Verdict.WARNING))
    none = Settings(data_dir=tmp_path / "data", min_free_bytes=2 * free)
    assert any("the gateway refuses new jobs" in line for line in only(list(check_storage(none)), Verdict.WRONG))
    assert not (tmp_path / "data").exists()


# ---- models ----


def test_models_whole_lacking_a_file_and_unknown(tmp_path: Path) -> None:
    shutil.copytree(BUNDLED / "small", tmp_path / "lame")
    (tmp_path / "lame" / "vae" / "diffusion_pytorch_model.safetensors").unlink()
    settings = Settings(
        data_dir=tmp_path, large="bundled:small", small=f"{tmp_path / 'lame'}, nowhere", video="", device="cpu"
    )
    found = said(models.model_checks(settings)[:-1])
    assert [one.check for one in found] == ["encoder", "model large", "model small", "model small"]
    assert [one.verdict for one in found] == [Verdict.OK, Verdict.OK, Verdict.WRONG, Verdict.WRONG]
    assert "whole, weights" in found[1].fact
    assert "reuse by small/" in found[1].fact
    assert "missing vae/*.safetensors" in found[2].fact
    assert "model 'nowhere': not bundled:NAME" in found[3].fact


def test_memory_that_the_models_need(tmp_path: Path) -> None:
    def verdict(**changed: Any) -> tuple[Verdict, str]:
        settings = Settings(data_dir=tmp_path, video="", device="cpu", **changed)
        (found,) = said(models.model_checks(settings)[-1:])
        return found.verdict, found.fact

    assert verdict()[0] is Verdict.OK
    assert verdict(large="nowhere") == (Verdict.WARNING, "not checked: a model cannot be served")
    assert "no estimate: offload=sequential" in verdict(offload="sequential")[1]
    many = said([Check("memory", 60.0, lambda: models.compared(2**40, 2**41, 2**30, "machine", held=False))])
    assert many[0].verdict is Verdict.WRONG
    assert "1024.0 GiB for weights" in many[0].fact
    assert "offload=model" in many[0].advice
    batch = said([Check("memory", 60.0, lambda: models.compared(2**29, 2**41, 2**30, "machine", held=False))])
    assert batch[0].verdict is Verdict.WARNING
    held = said([Check("memory", 60.0, lambda: models.compared(2**40, 2**41, 2**30, "machine", held=True))])
    assert held[0].verdict is Verdict.OK


def test_the_service_of_a_data_directory_is_the_one_that_is_asked(
    serve: Callable[[str | None], str], tmp_path: Path
) -> None:
    (tmp_path / RUNNING_FILE).write_text(json.dumps({"address": serve(None), "pid": os.getpid()}))
    settings, broken = read_settings(tmp_path)
    assert settings is not None
    assert (settings.data_dir, broken) == (tmp_path, [])
    (found,) = servers.check_service(settings)
    assert "it is no gateway" in found.fact


def test_a_gpu_that_this_machine_lacks(tmp_path: Path) -> None:
    settings = Settings(data_dir=tmp_path, device="cuda:63")
    found = said([Check("GPU", 60.0, lambda: models.check_gpu(settings))])
    assert "this machine has no cuda:63" in only(found, Verdict.WRONG)[-1]


@pytest.mark.parametrize(
    ("arch", "capability", "runs"),
    [("sm_90", (9, 0), True), ("sm_80", (8, 9), True), ("sm_80", (9, 0), False), ("compute_80", (9, 0), True),
     ("sm_90a", (9, 0), True), ("sm_120", (12, 0), True), ("sm_120", (9, 0), False)],
)  # fmt: skip
def test_code_runs_within_a_major_version(arch: str, capability: tuple[int, int], runs: bool) -> None:
    assert models.runs_on(arch, *capability) is runs


# ---- servers, clocks, the service ----


def test_where_nothing_listens_each_url_is_one_line_without_its_password(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(servers, "ANSWER_S", 0.5)
    urls: dict[str, Any] = {name: url.format(at=NOBODY) for name, url in URLS.items()}
    settings = Settings(data_dir=tmp_path, **urls)
    found = [without_secrets(one, settings) for one in said(servers.server_checks(settings))]
    assert [one.check for one in found if one.verdict is Verdict.WRONG] == ["catalog", "bus", "blobs", "index"]
    assert all("start the server, or correct AFTERIMAGE_" in one.advice for one in found[:4])
    assert "open-sesame" not in str(found)
    assert found[-1].check == "clocks"


def test_a_url_of_another_kind_of_server_is_wrong(tmp_path: Path) -> None:
    urls: dict[str, Any] = dict.fromkeys(URLS, "redis://me:open-sesame@host:1")
    settings = Settings(data_dir=tmp_path, **urls)
    found = [without_secrets(one, settings) for one in said(servers.server_checks(settings))]
    assert [one.verdict for one in found] == [Verdict.WRONG] * 4 + [Verdict.OK]
    assert all(f"{name}: scheme must be" in one.fact for name, one in zip(URLS, found[:4], strict=True))
    assert "open-sesame" not in str(found)
    swapped = Settings(data_dir=tmp_path, index_url="inprocess:", bus_url="memory:")
    wrong = [one.check for one in said(servers.server_checks(swapped)) if one.verdict is Verdict.WRONG]
    assert wrong == ["bus", "index"]


@pytest.mark.parametrize("name", URLS)
def test_a_server_that_never_answers_holds_nothing_up(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(servers, "ANSWER_S", 0.3)
    monkeypatch.setattr(servers, "LIMIT_S", 1.0)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        at = f"127.0.0.1:{silent.getsockname()[1]}"
        changed: dict[str, Any] = {name: URLS[name].format(at=at)}
        found = said(servers.server_checks(Settings(data_dir=tmp_path, **changed)))
    troubled = [one for one in found if one.verdict is not Verdict.OK]
    assert [one.check for one in troubled] == [name.removesuffix("_url")]


async def test_a_catalog_in_a_file_is_read_and_not_touched(tmp_path: Path) -> None:
    settings = Settings(data_dir=tmp_path)
    assert unchanging(settings.catalog_url) == ""
    await (await open_catalog(settings.catalog_url)).close()
    before = all_in(tmp_path)
    found = await asyncio.to_thread(said, servers.server_checks(settings)[:1])
    assert f"catalog at revision {HEAD}" in found[0].fact
    assert all_in(tmp_path) == before
    running = await open_catalog(settings.catalog_url)  # its log is beside the file: read as another process does
    found = await asyncio.to_thread(said, servers.server_checks(settings)[:1])
    assert f"catalog at revision {HEAD}" in found[0].fact
    await running.close()


def test_clocks_that_differ_by_more_than_a_second() -> None:
    probes = {
        "catalog": Probe("PostgreSQL 17", 0.001, clock_ahead_s=-2.5),
        "blobs": Probe("S3", 0.001, clock_ahead_s=0.4),
        "bus": Probe("RabbitMQ 4", 0.001),
    }
    found = list(servers.compared_clocks(probes))
    (late,) = only(found, Verdict.WARNING)
    assert "PostgreSQL 17 is 2.50 s behind this machine" in late
    assert "leases and deadlines" in late
    assert [one.verdict for one in found] == [Verdict.WARNING, Verdict.OK, Verdict.OK]


def test_a_date_header_is_right_within_its_second() -> None:
    date, at = "Thu, 01 Jan 2026 00:00:10 GMT", 1767225610.0
    assert [ahead_by(date, at + more) for more in (-2.0, 0.0, 0.9, 3.0)] == [2.0, 0.0, 0.0, -2.0]
    assert ahead_by("", at) is None
    assert [version_of(text) for text in ("4.0.9-management", "v1.35.2", "unknown")] == [(4, 0, 9), (1, 35, 2), ()]


class Gateway(GatewayServiceServicer):
    def __init__(self, version: str) -> None:
        self.version = version

    def Locate(self, request: pb.LocateRequest, context: Any) -> pb.LocateResponse:  # noqa: N802  # gRPC names it
        return pb.LocateResponse(version=self.version)


@pytest.fixture
def serve() -> Iterator[Callable[[str | None], str]]:
    """Start a server with health, and a gateway of the given version; return its address."""
    started = []

    def start(version: str | None) -> str:
        server, answers = grpc.server(ThreadPoolExecutor(2)), servicer.HealthServicer()
        health_pb2_grpc.add_HealthServicer_to_server(answers, server)
        answers.set("", health_pb2.HealthCheckResponse.SERVING)
        if version is not None:
            add_GatewayServiceServicer_to_server(Gateway(version), server)
        port = server.add_insecure_port("127.0.0.1:0")
        server.start()
        started.append(server)
        return f"127.0.0.1:{port}"

    yield start
    for server in started:
        server.stop(None).wait()


@pytest.mark.parametrize(
    ("version", "verdict", "fact"),
    [
        (metadata.version("afterimage"), Verdict.OK, "with the same version"),
        ("0.0.1", Verdict.WARNING, "with version 0.0.1; this is"),
        ("", Verdict.WARNING, "with an earlier version"),
        (None, Verdict.OK, "it is no gateway"),
    ],
)
def test_the_service_that_listens_has_a_version(
    version: str | None, verdict: Verdict, fact: str, serve: Callable[[str | None], str], tmp_path: Path
) -> None:
    (found,) = servers.check_service(Settings(data_dir=tmp_path, listen=serve(version)))
    assert (found.verdict, fact in found.fact) == (verdict, True), found


# ---- the command ----


def test_a_check_that_fails_or_hangs_is_a_finding() -> None:
    def fails() -> Iterator[Finding]:
        yield ok("first", "kept")
        raise KeyError("second")

    assert [one.fact for one in said([Check("first", 5.0, fails)])] == ["kept", "not checked: KeyError: 'second'"]

    def refused() -> list[Finding]:
        raise PermissionError(13, "Permission denied", "/root/data")

    (denied,) = said([Check("third", 5.0, refused)])
    assert (denied.verdict, denied.fact) == (Verdict.WRONG, "/root/data: Permission denied")

    def hangs() -> list[Finding]:
        time.sleep(2.0)
        return []

    assert [one.fact for one in said([Check("slow", 0.05, hangs)])] == ["not checked: no answer within 0.05 s"]


def test_the_exit_code_says_whether_something_is_wrong(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    lines = [ok("one", "right"), Finding("two", Verdict.WARNING, "odd", "look"), Finding("three", Verdict.WRONG, "no")]
    monkeypatch.setattr(command, "examine", lambda _: iter(lines[:2]))
    assert run(monkeypatch, capfd, "doctor") == (0, "")
    monkeypatch.setattr(command, "examine", lambda _: iter(lines))
    with pytest.raises(SystemExit) as left:
        cli.app(["doctor"])
    assert left.value.code == os.EX_CONFIG
    assert capfd.readouterr().out.splitlines() == [
        "ok      one             right", "warning two             odd: look", "wrong   three           no",
    ]  # fmt: skip
