"""API keys: live until revoked, rotated away or expired, and listed for a year after."""

from __future__ import annotations

import asyncio

import pytest
import sqlalchemy as sa

from shared.catalog import Catalog
from shared.catalog.keys import ENDED_KEPT_S
from shared.catalog.tables import api_keys
from shared.domain.errors import ConflictError, NotFoundError
from shared.domain.identity import BOOTSTRAP, ApiKey, Rate, Role, digest, issued, parsed, principal_of

WHO = principal_of("acme", "alice", [Role.USER, Role.TENANT_ADMIN])


async def _live(catalog: Catalog) -> set[str]:
    return {key.id for key in await catalog.keys.live()}


async def test_a_key_is_stored_as_a_digest_and_read_by_another_replica(catalog: Catalog, replica: Catalog) -> None:
    key, text = issued(WHO)
    await catalog.keys.add(key)
    (read,) = await replica.keys.live()
    id_and_secret = parsed(text)
    assert id_and_secret is not None
    assert (read.id, read.digest, read.principal) == (id_and_secret[0], digest(id_and_secret[1]), WHO)
    assert read.created_at > 0
    assert read.expires_at is None


async def test_expired_and_revoked_keys_are_listed_and_not_live(catalog: Catalog) -> None:
    keys = [issued(WHO)[0] for _ in range(3)]
    for key, lifetime_s in zip(keys, (None, 0.05, 60.0), strict=True):
        await catalog.keys.add(key, lifetime_s)
    await catalog.keys.revoke(keys[0].id)
    await asyncio.sleep(0.1)
    assert await _live(catalog) == {keys[2].id}
    assert {key.id for key in await catalog.keys.all()} == {key.id for key in keys}
    for ended in (keys[0].id, "unknown"):
        with pytest.raises(NotFoundError, match="keys list"):
            await catalog.keys.revoke(ended)
    for ended in (keys[0].id, keys[1].id):
        with pytest.raises(NotFoundError):
            await catalog.keys.rotate(ended, *_new(), 1.0)


async def test_ended_keys_are_dropped_after_a_year_but_the_first_key(catalog: Catalog) -> None:
    first = ApiKey(BOOTSTRAP, "0" * 64, WHO)
    revoked, expired, recent, live = (issued(WHO)[0] for _ in range(4))
    for key in (first, revoked, expired, recent, live):
        await catalog.keys.add(key, 60.0 if key is expired else None)
    for key in (first, revoked, recent):
        await catalog.keys.revoke(key.id)
    await _age(catalog, ENDED_KEPT_S + 61.0, first.id, revoked.id, expired.id, live.id)
    await _age(catalog, ENDED_KEPT_S - 60.0, recent.id)
    new = issued(WHO)[0]
    await catalog.keys.add(new)
    assert {key.id for key in await catalog.keys.all()} == {first.id, recent.id, live.id, new.id}
    assert not await catalog.keys.add_first(first)


async def _age(catalog: Catalog, by_s: float, *key_ids: str) -> None:
    times = {name: api_keys.c[name] - by_s for name in ("created_at", "expires_at", "revoked_at")}
    aged = sa.update(api_keys).where(api_keys.c.id.in_(key_ids)).values(**times)
    await catalog.keys._database.write(lambda connection: connection.execute(aged).rowcount)


async def test_both_keys_work_during_a_rotation_that_never_lengthens_a_life(catalog: Catalog) -> None:
    old, short = issued(WHO)[0], issued(WHO)[0]
    await catalog.keys.add(old, 3600.0)
    await catalog.keys.add(short, 1.0)
    new, other = _new(), _new()
    assert (await catalog.keys.rotate(old.id, *new, 1.0)).principal == WHO
    await catalog.keys.rotate(short.id, *other, 3600.0)
    assert {old.id, new[0]} <= await _live(catalog)
    async with asyncio.timeout(10.0):
        while {old.id, short.id} & (live := await _live(catalog)):
            await asyncio.sleep(0.05)
    assert new[0] in live
    lives = {key.id: (key.expires_at or 0) - key.created_at for key in await catalog.keys.all()}
    assert lives[new[0]] == pytest.approx(3600.0, abs=0.01)


async def test_a_key_keeps_its_rate_through_a_rotation(catalog: Catalog, replica: Catalog) -> None:
    limited, free, new = issued(WHO, rate=Rate(0.5, 20))[0], issued(WHO)[0], _new()
    for key in (limited, free):
        await catalog.keys.add(key)
    assert (await catalog.keys.rotate(limited.id, *new, 60.0)).rate == limited.rate
    rates = {key.id: key.rate for key in await replica.keys.live()}
    assert rates == {limited.id: Rate(0.5, 20), new[0]: Rate(0.5, 20), free.id: None}


async def test_a_key_is_rotated_once_also_by_two_at_once(catalog: Catalog, replica: Catalog) -> None:
    """Each rotation of a leaked key made one more key that works."""
    old = issued(WHO)[0]
    await catalog.keys.add(old)
    both = [catalog.keys.rotate(old.id, *_new(), 60.0), replica.keys.rotate(old.id, *_new(), 60.0)]
    done = await asyncio.gather(*both, return_exceptions=True)
    (new,) = [one for one in done if isinstance(one, ApiKey)]
    (refused,) = [one for one in done if isinstance(one, ConflictError)]
    assert str(refused) == f"key {old.id!r}: was rotated to {new.id!r}, which has its place; rotate or revoke that one"
    assert await _live(catalog) == {old.id, new.id}
    await catalog.keys.revoke(new.id)
    with pytest.raises(ConflictError):  # the overlap of a leaked key does not begin again
        await catalog.keys.rotate(old.id, *_new(), 60.0)


async def test_the_first_key_is_made_once(catalog: Catalog, replica: Catalog) -> None:
    first, second = issued(WHO, "bootstrap")[0], issued(WHO, "bootstrap")[0]
    made = await asyncio.gather(catalog.keys.add_first(first), replica.keys.add_first(second))
    assert sorted(made) == [False, True]
    await catalog.keys.revoke("bootstrap")
    assert not await replica.keys.add_first(issued(WHO, "bootstrap")[0])


def _new() -> tuple[str, str]:
    key = issued(WHO)[0]
    return key.id, key.digest
