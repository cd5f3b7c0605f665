"""`afterimage doctor`, the check `access`: addresses, keys near their end, the bootstrap key's file, the audit log."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path
from typing import Any

import pytest

from services.cli.doctor import access
from services.cli.doctor.findings import Check, Verdict
from shared.catalog import open_catalog
from shared.domain.identity import BOOTSTRAP, ApiKey, Role, principal_of
from shared.runtime.settings import Settings
from tests.unit.cli.test_doctor import NOBODY, URLS, anyones, nobody, only, said

__all__ = ["anyones", "nobody"]


@pytest.mark.parametrize(
    ("given", "verdict", "words"),
    [
        ({"listen": "0.0.0.0:50051"}, "wrong", "it needs TLS"),
        ({"listen": "0.0.0.0:50051", "allow_anonymous": "always"}, "warning", "anyone who reaches"),
        ({"http_listen": "0.0.0.0:8000"}, "wrong", "it needs TLS"),
    ],
)
def test_who_may_call_an_address_on_the_network(
    tmp_path: Path, given: dict[str, str], verdict: str, words: str
) -> None:
    found = list(access.check_access(Settings(data_dir=tmp_path, **given)))  # type: ignore[arg-type]
    troubled = [one for one in found if one.verdict is not Verdict.OK]
    assert [(one.verdict, words in one.fact) for one in troubled] == [(verdict, True)]
    assert not list(tmp_path.iterdir())


def test_an_address_says_whether_it_takes_keys_and_tls(tmp_path: Path) -> None:
    def addresses(**given: Any) -> list[str]:
        found = access.check_access(Settings(data_dir=tmp_path, **given))
        return [f"{one.verdict} {one.fact}" for one in found if "listen" in one.fact or "tls" in one.fact]

    alone, http = addresses(listen="127.0.0.1:0", http_listen="127.0.0.1:8000")
    assert alone == "ok listen: 127.0.0.1:0 is of this machine alone; it takes callers without a key, no TLS"
    assert http.startswith("ok http_listen: 127.0.0.1:8000 is of this machine alone")
    assert "takes callers with an API key, no TLS" in addresses(allow_anonymous="never")[0]
    (proxied,) = addresses(listen="0.0.0.0:1", http_listen="", tls_proxy=True)
    assert proxied == "warning listen: 0.0.0.0:1 takes API keys in plain text, from the proxy that ends TLS"
    gone: Any = {"tls_certificate": str(tmp_path / "gone.pem"), "tls_key": str(tmp_path / "gone.key")}
    (unread,) = addresses(listen="0.0.0.0:1", http_listen="", **gone)
    assert unread.startswith("wrong tls_certificate, tls_key: ")
    assert "gone.pem" in unread


def key(name: str, lasts_s: float | None, age_s: float = 0.0, **fields: Any) -> ApiKey:
    who = principal_of("acme", "alice", [Role.USER])
    return ApiKey(name, "", who, -age_s, None if lasts_s is None else lasts_s, **fields)


@pytest.mark.parametrize(
    ("keys", "needed", "said"),
    [
        ([], False, ["ok: no API key, and no address needs one"]),
        ([], True, ["ok: no API key yet: the first start makes one, in bootstrap-key"]),
        ([key("a", -5.0, 10.0), key("b", None, revoked_at=-1.0)], True,
         ["wrong: none of 2 API keys is live, so nobody may call"]),
        ([key("a", None)], True, ["ok: 1 live API key, none near its end"]),
        ([key("a", 10 * access.DAY_S, 300 * access.DAY_S)], True,
         ["warning: key a of acme/alice ends in 10.0 days"]),
        ([key("a", 80 * access.DAY_S, 10 * access.DAY_S), key("b", 3600.0, 60.0)], True,
         ["ok: 2 live API keys, none near its end"]),
        ([key("a", 60.0, access.DAY_S), key("b", access.DAY_S, replaces="a")], True,
         ["ok: 2 live API keys, none near its end"]),
        ([key(str(number), 3600.0, access.DAY_S) for number in range(7)], True,
         [*(f"warning: key {number} of acme/alice ends in 1.0 hours" for number in range(5)),
          "warning: 2 more keys end soon"]),
    ],
)  # fmt: skip
def test_keys_near_their_end(keys: list[ApiKey], needed: bool, said: list[str]) -> None:
    found = access.compared_keys(keys, 0.0, needed=needed)
    assert [f"{one.verdict}: {one.fact}" for one in found] == said


async def test_the_bootstrap_file_and_the_audit_log(tmp_path: Path) -> None:
    settings = Settings(data_dir=tmp_path, http_listen="")

    async def troubled() -> list[str]:
        found = await asyncio.to_thread(lambda: list(access.check_access(settings)))
        return [f"{one.verdict}: {one.fact}" for one in found if one.verdict is not Verdict.OK]

    assert await troubled() == []
    path = tmp_path / "bootstrap-key"
    path.touch(mode=0o600)
    assert await troubled() == [f"warning: {path} holds a key with every role"]
    path.chmod(0o644)
    assert await troubled() == [f"wrong: {path} holds a key with every role, and has mode 0644"]
    catalog = await open_catalog(settings.catalog_url)
    await catalog.keys.add(key(BOOTSTRAP, None))
    assert await troubled() == [f"wrong: {path} holds a key with every role, and has mode 0644"]
    await catalog.keys.revoke(BOOTSTRAP)
    assert await troubled() == [f"warning: {path} holds a key that has ended"]
    await catalog.close()
    path.unlink()
    log = tmp_path / "audit.jsonl"
    log.touch(mode=0o644)
    assert await troubled() == [f"warning: audit log: {log} has mode 0644, so other users may read it"]


def test_an_audit_log_that_cannot_be_written(anyones: Path, nobody: None) -> None:
    if os.geteuid() != 65534:
        anyones.chmod(0o555)
    found = list(access.check_access(Settings(data_dir=anyones, http_listen="")))
    (unwritten,) = only(found, Verdict.WARNING)
    assert f"audit log: {anyones / 'audit.jsonl'} cannot be written" in unwritten


def test_keys_of_a_catalog_that_is_away_are_not_checked(tmp_path: Path) -> None:
    settings = Settings(data_dir=tmp_path, catalog_url=URLS["catalog_url"].format(at=NOBODY))
    (unknown,) = only(said([Check("access", 10.0, lambda: access.check_access(settings))]), Verdict.WARNING)
    assert unknown.startswith("access: keys not checked: ")
    assert "open-sesame" not in unknown
