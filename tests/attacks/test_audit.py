"""An operator acts, and later denies it; a caller reads the log for prompts; a flood of lines fills the disk."""

from __future__ import annotations

import fcntl
import json
import os
import stat
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import grpc
import pytest
import structlog
from cachetools import TTLCache
from typer.testing import CliRunner

from protos import cache_maintainer_pb2 as pb
from protos import common_pb2, retriever_pb2
from protos.cache_maintainer_pb2_grpc import CacheMaintainerServiceStub
from protos.retriever_pb2_grpc import RetrieverServiceStub
from services.cache_maintainer.service import CacheMaintainerService
from services.cli import credentials
from services.cli.app import app
from services.gateway import own_jobs
from services.gateway.caller import Caller
from services.retriever.service import RetrieverService
from shared.catalog import open_catalog
from shared.domain.errors import InvalidRequestError, NotFoundError, PermissionDeniedError
from shared.domain.identity import Role, issued, principal_of
from shared.runtime import audit, rpc
from shared.runtime.direct import CallContext
from shared.runtime.settings import Settings
from shared.service import running
from shared.service.door import AUDITED_S, Door, actor_of, operator_recorded


def _lines(folder: Path, file: str = audit.FILE) -> list[dict[str, str]]:
    return [json.loads(line) for line in (folder / file).read_text().splitlines()]


async def test_operators_acts_and_reads_and_refused_ones_are_recorded(settings: Settings) -> None:
    changed = settings.model_copy(update={"allow_anonymous": "never"})
    ops, user = issued(principal_of("acme", "ops", [Role.OPERATOR])), issued(principal_of("acme", "u", [Role.USER]))
    catalog = await open_catalog(settings.catalog_url)
    for key, _ in (ops, user):
        await catalog.keys.add(key)
    await catalog.close()
    async with (
        running([CacheMaintainerService()], changed) as process,
        grpc.aio.insecure_channel(process.address) as channel,
    ):
        stub: Any = CacheMaintainerServiceStub(channel)

        async def purge(text: str) -> None:
            bearer = (("authorization", f"Bearer {text}"),)
            await rpc.call(stub.Purge, pb.PurgeRequest(tenant="acme"), timeout_s=10.0, metadata=bearer)

        with pytest.raises(PermissionDeniedError, match="operator"):
            await purge(user[1])
        await purge(ops[1])
        bearer = (("authorization", f"Bearer {ops[1]}"),)
        with pytest.raises(InvalidRequestError):
            await rpc.call(stub.Purge, pb.PurgeRequest(), timeout_s=10.0, metadata=bearer)
        with pytest.raises(NotFoundError):
            await rpc.call(stub.Inspect, pb.InspectRequest(entry_id="unknown"), timeout_s=10.0, metadata=bearer)
        await rpc.call(stub.Inspect, pb.InspectRequest(), timeout_s=10.0, metadata=bearer)
    (refused,) = _lines(settings.data_dir, audit.REFUSALS)
    assert (refused["actor"], refused["action"], refused["outcome"]) == ("acme/u", "refused Purge", "PERMISSION_DENIED")
    said = _lines(settings.data_dir)
    assert [(one["actor"], one["action"], one["target"], one["outcome"]) for one in said] == [
        ("acme/ops", "purge", "tenant acme", "0 entries removed"),
        ("acme/ops", "purge", "", "INVALID_ARGUMENT"),
        ("acme/ops", "inspect", "unknown", "NOT_FOUND"),
        ("acme/ops", "inspect", "a page of entries", "done"),
    ]
    assert stat.S_IMODE((settings.data_dir / audit.FILE).stat().st_mode) == 0o600


def test_every_command_on_keys_is_recorded_without_a_secret(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AFTERIMAGE_DATA_DIR", str(settings.data_dir))
    settings.data_dir.mkdir(parents=True)
    (settings.data_dir / "catalog.sqlite3").touch()
    texts = []

    def afterimage(*words: str) -> str:
        done = CliRunner().invoke(app, ["keys", *words], catch_exceptions=True)
        return done.stdout.strip()

    texts.append(afterimage("create", "alice", "--tenant", "acme", "--days", "1"))
    key_id = texts[0].removeprefix("aik_").partition(".")[0]
    texts.append(afterimage("rotate", key_id, "--overlap-s", "60"))
    afterimage("revoke", key_id)
    afterimage("revoke", "unknown")
    listed = afterimage("list")
    assert "revoked" in listed
    assert listed.count("acme") == 2
    said = _lines(settings.data_dir)
    assert [one["action"].removeprefix("keys ") for one in said] == ["create", "rotate", "revoke", "revoke", "list"]
    assert [one["outcome"] for one in said] == ["done", "done", "done", "NOT_FOUND", "done"]
    assert all(one["actor"].startswith("local:") and one["time"].endswith("+00:00") for one in said)
    stored = (settings.data_dir / audit.FILE).read_text() + listed
    assert all(len(text) > 43 and text.partition(".")[2] not in stored for text in texts)


def test_every_command_on_the_servers_is_recorded(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    """New passwords left no line."""

    async def made(*_: object) -> list[str]:
        return ["gateway.env"]

    monkeypatch.setattr(credentials, "_made", made)
    monkeypatch.setenv("AFTERIMAGE_DATA_DIR", str(settings.data_dir))
    settings.data_dir.mkdir(parents=True)
    (settings.data_dir / "catalog.sqlite3").touch()
    servers = {"AFTERIMAGE_CATALOG_URL": "postgresql+asyncpg://u@h/d", "AFTERIMAGE_BUS_URL": "amqp://u@h/"}
    for words, env in (
        (["dead-letters", "list"], {}),
        (["dead-letters", "replay", "unknown"], {}),
        (["credentials", "folder"], servers),
        (["credentials", "folder", "--rotate"], servers),
    ):
        CliRunner().invoke(app, words, env=env)
    assert [(one["action"], one["target"], one["outcome"]) for one in _lines(settings.data_dir)] == [
        ("dead-letters list", "", "FAILED_PRECONDITION"),
        ("dead-letters replay", "unknown", "0 of 1 replayed"),
        ("credentials", "folder", "done"),
        ("credentials rotate", "folder", "done"),
    ]


async def test_an_operator_who_asks_a_users_questions_is_recorded(settings: Settings) -> None:
    """Plans name the prompts and entries of the user: the retriever answered operators, and kept no line."""
    key, text = issued(principal_of("acme", "ops", [Role.OPERATOR]))
    catalog = await open_catalog(settings.catalog_url)
    await catalog.keys.add(key)
    await catalog.close()
    changed = settings.model_copy(update={"large": "noop:?name=noop"})
    plan = retriever_pb2.PlanRequest(tenant="acme", request=common_pb2.Request(user="key:alice/home"))
    nearest = retriever_pb2.NearestRequest(tenant="acme", user="key:alice/")
    async with (
        running([RetrieverService()], changed) as process,
        grpc.aio.insecure_channel(process.address) as channel,
    ):
        stub: Any = RetrieverServiceStub(channel)
        for bearer in ((("authorization", f"Bearer {text}"),), ()):  # a gateway comes without a key
            for method, asked in ((stub.Plan, plan), (stub.Nearest, nearest)):
                with pytest.raises(InvalidRequestError):
                    await rpc.call(method, asked, timeout_s=10.0, metadata=bearer)
    refused = InvalidRequestError.code
    assert [tuple(one.values())[1:] for one in _lines(settings.data_dir)] == [
        ("acme/ops", "plan", "user key:alice/home of tenant acme", refused),
        ("acme/ops", "nearest", "user key:alice/ of tenant acme", refused),
    ]


def test_the_operators_certificate_is_recorded_and_a_services_is_not(tmp_path: Path) -> None:
    for name in (b"gateway", b"operator"):
        shown = {"x509_subject_alternative_name": [name]}
        call = Mock(peer=lambda: "ipv4:10.0.0.2:5", auth_context=lambda shown=shown: shown)
        with operator_recorded(call, tmp_path, "plan", "user alice of tenant acme"):
            pass
    with operator_recorded(CallContext(()), tmp_path, "plan", "user alice of tenant acme"):
        pass
    (line,) = _lines(tmp_path)
    assert line["actor"] == "certificate operator at ipv4:10.0.0.2:5"


async def test_a_flood_of_refused_acts_pushes_out_no_line(settings: Settings) -> None:
    """A flood of one caller, ten lines in ten seconds, replaced the acts of all, and hid what others were refused."""
    keys = [issued(principal_of("acme", subject, [Role.USER])) for subject in ("u", "v")]
    catalog = await open_catalog(settings.catalog_url)
    clock = [0.0]
    try:
        for key, _ in keys:
            await catalog.keys.add(key)
        door = Door(catalog, settings, needed=True)
        door._audited = TTLCache(10, AUDITED_S, lambda: clock[0])
        await door.open(bootstrap=False)

        def refuse(text: str) -> None:
            with pytest.raises(PermissionDeniedError):
                door.key_of([f"Bearer {text}"], frozenset({Role.OPERATOR}), "Purge", key_needed=True)

        for _ in range(100):
            refuse(keys[0][1])
            clock[0] += AUDITED_S / 120
        refuse(keys[1][1])
    finally:
        await catalog.close()
    assert [one["actor"] for one in _lines(settings.data_dir, audit.REFUSALS)] == [*["acme/u"] * 10, "acme/v"]
    assert not (settings.data_dir / audit.FILE).exists()


def test_callers_without_a_key_share_their_lines_of_refusals(settings: Settings) -> None:
    """Each connection has another port."""
    nothing: Any = Mock()
    door = Door(nothing, settings, needed=False)
    for port in range(100):
        door.note_refused(f"anonymous at ipv4:10.0.0.2:{port}", "Erase", "NOT_FOUND", "job unknown")
    assert len(_lines(settings.data_dir, audit.REFUSALS)) == 10


def test_a_flood_of_lines_fills_no_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(audit, "MOST_BYTES", 1000)
    for number in range(200):
        audit.record(tmp_path, actor="a", action="x" * 10_000, target=str(number))
    files = list(tmp_path.glob(f"{audit.FILE}*"))
    assert len(files) == audit.KEPT + 1
    assert sum(file.stat().st_size for file in files) < 1500 * (audit.KEPT + 1)
    assert _lines(tmp_path)[-1]["target"] == "199"


@pytest.mark.parametrize("text", ["\N{FOX FACE}" * 1000, "\0" * 1000, "x" * 1000, "\udc80" * 1000])
def test_no_text_makes_a_long_line(tmp_path: Path, text: str) -> None:
    """A line of 196 emoji had 2,354 bytes."""
    audit.record(tmp_path, actor="a", action="erase", target=text)
    assert (tmp_path / audit.FILE).stat().st_size < 450
    (line,) = _lines(tmp_path)
    assert len(line["target"]) > 20
    assert text.startswith(line["target"])


def test_a_file_that_another_process_has_rotated_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two processes saw the same full file: the second replaced it by the one line of the first."""
    audit.record(tmp_path, actor="a", action="first")
    monkeypatch.setattr(audit, "MOST_BYTES", 1)
    locked = fcntl.flock

    def other_first(file: Any, how: int) -> None:
        monkeypatch.setattr(fcntl, "flock", locked)
        audit.record(tmp_path, actor="a", action="second")
        locked(file, how)

    monkeypatch.setattr(fcntl, "flock", other_first)
    audit.record(tmp_path, actor="a", action="third")
    assert [one["action"] for one in _lines(tmp_path)] == ["second", "third"]
    assert [one["action"] for one in _lines(tmp_path, f"{audit.FILE}.1")] == ["first"]


def test_a_file_that_another_process_has_begun_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The process that came second had seen a full file, and rotated the new one of the first with its one line."""
    audit.record(tmp_path, actor="a", action="first", target="x" * 200)
    monkeypatch.setattr(audit, "MOST_BYTES", 250)

    def other_first(*what: Any, **how: Any) -> Any:
        monkeypatch.delattr(audit, "open")
        audit.record(tmp_path, actor="a", action="second")
        return open(*what, **how)

    monkeypatch.setattr(audit, "open", other_first, raising=False)
    audit.record(tmp_path, actor="a", action="third")
    assert [one["action"] for one in _lines(tmp_path)] == ["second", "third"]
    assert [one["action"] for one in _lines(tmp_path, f"{audit.FILE}.1")] == ["first"]


def test_old_lines_go_though_the_files_are_small(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Lines had a bound and no age."""
    monkeypatch.setattr(audit, "LOOK_EVERY_S", 0.0)
    path, day = tmp_path / audit.FILE, timedelta(days=1)
    now = datetime.now(UTC)

    def begin(age: timedelta) -> None:
        path.write_text(json.dumps({"time": (now - age).isoformat(timespec="milliseconds"), "action": "old"}) + "\n")

    begin(audit.FILE_AGE - day)
    audit.record(tmp_path, actor="a", action="young")
    assert [one["action"] for one in _lines(tmp_path)] == ["old", "young"]
    begin(audit.FILE_AGE + day)
    audit.record(tmp_path, actor="a", action="new")
    assert [one["action"] for one in _lines(tmp_path)] == ["new"]
    older = path.with_name(f"{path.name}.1")
    for age, stays in ((audit.KEPT_AGE - day, True), (audit.KEPT_AGE + day, False)):
        os.utime(older, ((now - age).timestamp(),) * 2)
        audit.record(tmp_path, actor="a", action="new")
        assert older.exists() is stays


def test_a_line_that_cannot_be_written_is_not_in_the_output_of_a_command(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """`KEY=$(afterimage keys create …)` got both the line and the key."""
    (tmp_path / "file").touch()
    structlog.reset_defaults()
    try:
        audit.record(tmp_path / "file" / "data", actor="a", action="keys create")
    finally:
        structlog.reset_defaults()
    said = capsys.readouterr()
    assert said.out == ""
    assert "audit line not written" in said.err
    assert "keys create" in said.err


def test_a_line_is_written_while_another_process_rotates(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The line was lost: the file to rename was gone."""
    monkeypatch.setattr(audit, "MOST_BYTES", 1)
    audit.record(tmp_path, actor="a", action="first")
    renamed = Path.replace

    def replace(path: Path, target: Path) -> None:
        renamed(path, target)
        renamed(path, target)  # as if the other process was first

    monkeypatch.setattr(Path, "replace", replace)
    audit.record(tmp_path, actor="a", action="second")
    assert [one["action"] for one in _lines(tmp_path)] == ["second"]


def test_a_call_over_the_servers_own_socket_is_its_accounts() -> None:
    """An operator of an embedded server was `anonymous at unix:`."""
    assert actor_of(CallContext(())) == audit.local_actor()


def test_a_caller_without_a_key_is_named_by_its_certificate() -> None:
    """An operator with a certificate alone was `anonymous`."""
    call = Mock(peer=lambda: "ipv4:10.0.0.2:5", auth_context=lambda: {"x509_subject_alternative_name": [b"operator"]})
    assert actor_of(call) == "certificate operator at ipv4:10.0.0.2:5"
    call.auth_context = dict
    assert actor_of(call) == "anonymous at ipv4:10.0.0.2:5"


def test_an_admin_who_reads_again_and_again_pushes_out_no_line(tmp_path: Path) -> None:
    chief, user = Caller("acme", subject="chief", admin=True), Caller("acme", subject="user")
    for _ in range(100):
        own_jobs.note_admin(chief, tmp_path, "list jobs", "tenant acme")
        own_jobs.note_admin(user, tmp_path, "list jobs", "tenant acme")
    own_jobs.note_admin(chief, tmp_path, "read job", "j1", "key:user/")
    own_jobs.note_admin(chief, tmp_path, "read job", "j2", "key:chief/")
    assert [(one["actor"], one["target"]) for one in _lines(tmp_path, audit.READS)] == [
        ("acme/chief", "tenant acme"),
        ("acme/chief", "j1"),
    ]


def test_an_admin_who_reads_very_many_jobs_pushes_out_no_act(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Reads of distinct jobs replaced the lines of everybody's acts."""
    monkeypatch.setattr(audit, "MOST_BYTES", 1000)
    chief = Caller("acme", subject="chief", admin=True)
    own_jobs.note_admin(chief, tmp_path, "cancel job", "j1", "key:user/")
    for number in range(100):
        own_jobs.note_admin(chief, tmp_path, "read job", f"r{number}", "key:user/")
    assert [one["target"] for one in _lines(tmp_path)] == ["j1"]
    assert len([*tmp_path.glob(f"{audit.READS}*")]) == audit.KEPT + 1
    assert _lines(tmp_path, audit.READS)[-1]["target"] == "r99"


@pytest.mark.parametrize("days", ["nan", "inf", "1e7"])
def test_no_key_lives_for_ever_by_a_number_that_is_none(
    days: str, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AFTERIMAGE_DATA_DIR", str(settings.data_dir))
    for words in (["create", "alice", "--days", days], ["rotate", "some", "--overlap-s", "nan"]):
        done = CliRunner().invoke(app, ["keys", *words])
        assert done.exit_code != 0
        assert not done.stdout.startswith("aik_")
        assert isinstance(done.exception, InvalidRequestError)


async def test_who_erases_cannot_pass_for_another(settings: Settings) -> None:
    key, text = issued(principal_of("acme", "ops", [Role.OPERATOR]))
    catalog = await open_catalog(settings.catalog_url)
    await catalog.keys.add(key)
    await catalog.close()
    async with (
        running([CacheMaintainerService()], settings) as process,
        grpc.aio.insecure_channel(process.address) as channel,
    ):
        stub: Any = CacheMaintainerServiceStub(channel)
        asked = pb.EraseRequest(whole_tenant=True, tenant="acme", actor="acme/alice")
        for given in ((("authorization", f"Bearer {text}"),), ()):
            await rpc.call(stub.Erase, asked, timeout_s=10.0, metadata=given)
    first, second = (one["actor"] for one in _lines(settings.data_dir) if one["action"] == "erase")
    assert first == "acme/ops"
    assert second.startswith("acme/alice, says anonymous at ipv4:127.0.0.1:")
