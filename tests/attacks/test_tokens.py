"""Tokens of an identity provider: what they open, and every way to forge one that is known."""

from __future__ import annotations

import asyncio
import hmac
import json
import time
from base64 import urlsafe_b64encode
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, ClassVar

import pytest
from joserfc import jwt
from joserfc.jwk import ECKey, KeySet, RSAKey

from shared.client import AsyncClient
from shared.domain.errors import (
    AfterimageError,
    ConfigurationError,
    PermissionDeniedError,
    UnauthenticatedError,
    UnavailableError,
)
from shared.domain.identity import ApiKey, Role, is_user, issued, principal_of, under
from shared.runtime.settings import Settings
from shared.service import door, running, tokens
from shared.service.open_calls import OpenCalls
from shared.service.tokens import Tokens
from tests.attacks.test_open_doors import Nothing


class Entrance(Nothing):
    """What clients call; there is no gateway behind it."""

    name: ClassVar[str] = "gateway"


ISSUER, AUDIENCE = "https://id.example.com/", "afterimage"
ONE, OTHER, STRANGER = (ECKey.generate_key("P-256", {"kid": name, "alg": "ES256"}) for name in ("one", "other", "one"))


def token(key: Any = ONE, header: Mapping[str, Any] | None = None, **changed: Any) -> str:
    claims = {"iss": ISSUER, "aud": AUDIENCE, "sub": "ann", "tenant": "acme", "exp": int(time.time()) + 60}
    claims = {name: value for name, value in {**claims, **changed}.items() if value is not None}
    head = {"alg": "ES256", "kid": key.kid, **(header or {})}
    return jwt.encode(head, claims, key, algorithms=[head["alg"]])


def published(path: Path, *keys: Any) -> Path:
    path.write_text(json.dumps(KeySet(list(keys)).as_dict(private=False)))
    return path


@pytest.fixture
def provider(settings: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Settings:
    monkeypatch.setattr(tokens, "EVERY_S", 0.02)
    monkeypatch.setattr(door, "EVERY_S", 0.05)
    keys = published(tmp_path / "keys.json", ONE)
    given = {"jwt_issuer": ISSUER, "jwt_audience": AUDIENCE, "jwt_keys": str(keys), "allow_anonymous": "never"}
    return settings.model_copy(update=given)


async def outcome(address: str, text: str) -> str:
    """Return how a call with this credential ends: `in` is past the door, where no gateway is in these tests."""
    async with AsyncClient(address, retry_s=0.0, api_key=text) as client:
        try:
            await client.list_jobs()
        except ConfigurationError:
            return "in"
        except AfterimageError as error:
            return f"{type(error).__name__}: {error}"
    return "in"


async def test_forged_and_foreign_tokens_open_nothing(provider: Settings) -> None:
    now, rsa = int(time.time()), RSAKey.generate_key(2048, {"kid": "one"})
    whole = token()
    head, body, signature = whole.split(".")
    symmetric = urlsafe_b64encode(b'{"alg":"HS256","kid":"one"}').decode().rstrip("=")
    mac = hmac.digest(ONE.as_pem(private=False), f"{symmetric}.{body}".encode(), "sha256")
    forged = {
        "expired": token(exp=now - 60),
        "without an end": token(exp=None),
        "not valid yet": token(nbf=now + 3600),
        "for another service": token(aud="elsewhere"),
        "of another provider": token(iss="https://evil.example/"),
        "nobody's": token(sub=None),
        "without a tenant": token(tenant=None),
        "a tenant that is no text": token(tenant=5),
        "a tenant with a slash": token(tenant="acme/x"),
        "signed by a stranger with the same key id": token(STRANGER),
        "the public key as a secret": f"{symmetric}.{body}.{urlsafe_b64encode(mac).decode().rstrip('=')}",
        "another kind of key": token(rsa, {"alg": "RS256"}),
        "unsigned": f"eyJhbGciOiJub25lIn0.{body}.",
        "changed": f"{head}.{body[:-2]}AA.{signature}",
        "cut": f"{head}.{body}.",
        "nonsense": "eyJ.eyJ.x",
    }
    async with running([Entrance()], provider) as process:
        assert await outcome(process.address, whole) == "in"
        for what, text in forged.items():
            said = await outcome(process.address, text)
            assert said.startswith("UnauthenticatedError: authorization: "), f"{what}: {said}"
            assert text[:60] not in said


async def test_whatever_decoding_raises_is_a_refusal(provider: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    """Early versions of joserfc bound no header: one of nested brackets wrote a traceback into the log."""

    def decode(*_: Any, **_options: Any) -> Any:
        raise RecursionError("maximum recursion depth exceeded")

    read = Tokens.of(provider)
    assert read is not None
    await read.refresh()
    monkeypatch.setattr(jwt, "decode", decode)
    with pytest.raises(UnauthenticatedError, match="this token is refused: maximum recursion"):
        read.read(token())


async def test_roles_come_from_the_token_and_from_nowhere_else(provider: Settings) -> None:
    read = Tokens.of(provider)
    assert read is not None
    with pytest.raises(UnavailableError, match="not known yet"):
        read.read(token())
    await read.refresh()
    assert read.read(token()).principal.roles == {Role.USER}
    assert read.read(token(roles=["operator", "king"])).principal.roles == {Role.OPERATOR}
    assert read.read(token(roles="user tenant-admin")).principal.roles == {Role.USER, Role.TENANT_ADMIN}
    for nothing in ([], "", ["king"], 7):
        with pytest.raises((UnauthenticatedError, PermissionDeniedError)):
            read.read(token(roles=nothing))
    odd = read.read(token(sub="auth0|5f7c")).principal
    assert odd.subject.startswith("sub-")
    assert odd == read.read(token(sub="auth0|5f7c")).principal != read.read(token(sub="auth0|5f7d")).principal
    assert read.read(token(exp=2**40)).expired(time.time() + tokens.LONGEST_S + 1)


@pytest.mark.parametrize("name", ["ann", "auth0|5f7c", "https://id.example.com/ann", "sub-5f7c"])
async def test_the_user_of_a_token_is_found_by_the_name_that_its_provider_gives(provider: Settings, name: str) -> None:
    """An erasure of `auth0|5f7c` found nothing and called that done."""
    read = Tokens.of(provider)
    assert read is not None
    await read.refresh()
    subject = read.read(token(sub=name)).principal.subject
    for named in (name, subject):
        assert is_user(under(subject, "blog"), named)
        assert is_user(under(subject, ""), named)
        assert not is_user(under(f"{subject}a", ""), named)
    assert is_user(under(subject, "blog"), f"{subject}/blog")
    assert not is_user(under(subject, "home"), f"{subject}/blog")
    if "/" not in name:
        assert is_user(under(subject, "blog"), f"{name}/blog")
        assert not is_user(under(subject, "home"), f"{name}/blog")


async def test_new_keys_of_the_provider_are_found_and_old_ones_end(
    provider: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with running([Entrance()], provider) as process:
        early = await outcome(process.address, token(OTHER))
        assert early.startswith("UnauthenticatedError: authorization: no key of the provider"), early
        monkeypatch.setattr(tokens, "UNKNOWN_S", 0.1)
        published(Path(provider.jwt_keys), OTHER)
        async with asyncio.timeout(10.0):
            while await outcome(process.address, token(OTHER)) != "in":
                await asyncio.sleep(0.05)
            while (ended := await outcome(process.address, token(ONE))).startswith("UnavailableError"):
                await asyncio.sleep(0.05)  # a key is refused once the keys have been read again
        assert ended.startswith("UnauthenticatedError"), ended


async def test_a_new_key_is_asked_for_again_until_the_keys_have_been_read(
    provider: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    """During a reading, and after one that failed, its tokens were refused for good."""
    read = Tokens.of(provider)
    assert read is not None
    await read.refresh()
    fetches = list[asyncio.Future[KeySet]]()

    def fetched() -> asyncio.Future[KeySet]:
        fetches.append(asyncio.get_running_loop().create_future())
        return fetches[-1]

    def refused(error: type[AfterimageError]) -> None:
        with pytest.raises(error):
            read.read(token(OTHER))

    monkeypatch.setattr(read, "_fetched", fetched)
    read._tried_at -= tokens.UNKNOWN_S
    read._read_at -= tokens.UNKNOWN_S
    refused(UnavailableError)
    reading = asyncio.create_task(read.refresh())
    await asyncio.sleep(0)
    refused(UnavailableError)
    fetches[0].set_exception(OSError())
    await reading
    refused(UnavailableError)
    await read.refresh()
    assert len(fetches) == 1  # unknown keys cause one reading in UNKNOWN_S
    read._tried_at -= tokens.UNKNOWN_S
    reading = asyncio.create_task(read.refresh())
    await asyncio.sleep(0)
    fetches[1].set_result(KeySet([ONE]))
    await reading
    refused(UnauthenticatedError)


async def test_keys_are_read_from_the_providers_address(provider: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tokens, "UNKNOWN_S", 0.0)
    keys = Path(provider.jwt_keys)
    pages = ThreadingHTTPServer(("127.0.0.1", 0), partial(SimpleHTTPRequestHandler, directory=str(keys.parent)))
    serving = asyncio.create_task(asyncio.to_thread(pages.serve_forever, 0.05))
    url = f"http://127.0.0.1:{pages.server_port}/keys.json"
    read = Tokens.of(provider.model_copy(update={"jwt_keys": url}))
    assert read is not None

    async def opened(key: Any) -> bool:
        await read.refresh()
        try:
            return read.read(token(key)).principal.subject == "ann"
        except (UnauthenticatedError, UnavailableError):
            return False

    try:
        assert (await opened(ONE), await opened(OTHER)) == (True, False)
        published(keys, OTHER)
        assert (await opened(OTHER), await opened(ONE)) == (True, False)
        await asyncio.to_thread(keys.write_text, " " * (tokens.MOST_BYTES + 1))  # no keys: the last ones hold
        assert (await opened(ONE), await opened(OTHER)) == (False, True)
        await asyncio.to_thread(keys.unlink)
        assert (await opened(ONE), await opened(OTHER)) == (False, True)
    finally:
        pages.shutdown()
        await serving
        pages.server_close()


async def test_a_call_ends_with_its_token(provider: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tokens, "LEEWAY_S", 0)
    monkeypatch.setattr(door, "EVERY_S", 0.2)
    catalog: Any = _NoKeys()
    place = door.Door(catalog, provider, Tokens.of(provider), needed=True)
    await place.open(bootstrap=False)
    watching = asyncio.create_task(place.run())
    text = token(exp=int(time.time()) + 4)
    assert place.takes(f"Bearer {text}")
    assert not place.takes("Bearer sk-of-another-service")
    key = place.key_of([f"Bearer {text}"], frozenset(Role), "Watch", key_needed=True)
    assert key is not None
    assert (key.principal.tenant, key.principal.subject) == ("acme", "ann")

    async def call() -> None:
        with place.calls.noted(key, "Watch"):
            await asyncio.sleep(60.0)

    first, begun = asyncio.create_task(call()), time.time()
    soon = issued(principal_of("acme", "brief", [Role.USER]))[0]
    catalog.found = [replace(soon, expires_at=begun + 0.5)]
    await asyncio.sleep(1.0)  # a key expires meanwhile: no reason to end the calls of others
    assert not first.done()
    catalog.away = True  # the tokens' ends need no catalog
    with pytest.raises(UnauthenticatedError, match="ended during the call"):
        await asyncio.wait_for(first, 10.0)
    watching.cancel()
    await asyncio.gather(watching, return_exceptions=True)


async def test_a_key_that_is_revoked_or_rotated_ends_its_calls_and_no_tokens() -> None:
    calls = OpenCalls("ended")
    key = issued(principal_of("acme", "ann", [Role.USER]))[0]
    shown = replace(key, id="", expires_at=time.time() + 60.0)

    async def call(key: ApiKey) -> None:
        with calls.noted(key, "Watch"):
            await asyncio.sleep(60.0)

    token_call = asyncio.create_task(call(shown))
    for live in ({}, {key.id: replace(key, expires_at=time.time())}):
        key_call = asyncio.create_task(call(key))
        await asyncio.sleep(0)
        calls.keep({key.id: key})
        assert not key_call.cancelling()
        calls.keep(live)
        with pytest.raises(UnauthenticatedError, match="ended"):
            await key_call
    assert not token_call.cancelling()
    token_call.cancel()
    await asyncio.gather(token_call, return_exceptions=True)
    assert not calls._tasks  # what ended leaves nothing behind, however many tokens a client mints


class _NoKeys:
    """A catalog of keys alone."""

    def __init__(self) -> None:
        self.found, self.away = list[ApiKey](), False

    @property
    def keys(self) -> _NoKeys:
        return self

    async def live(self) -> list[ApiKey]:
        if self.away:
            raise OSError
        return self.found


@pytest.mark.parametrize(
    ("changed", "rule"),
    [
        ({"jwt_audience": ""}, "jwt_audience: must be set too"),
        ({"jwt_keys": "http://id.example.com/keys"}, "jwt_keys: must be https"),
    ],
)
def test_half_a_provider_is_refused_at_the_start(provider: Settings, changed: dict[str, str], rule: str) -> None:
    with pytest.raises(ConfigurationError, match=rule):
        Tokens.of(provider.model_copy(update=changed))
