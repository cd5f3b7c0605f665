"""Users of Weaviate: one for each service that searches or writes the index."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import chain
from typing import Any, Literal
from urllib.parse import quote, urlsplit

from weaviate.classes.rbac import Permissions
from weaviate.exceptions import UnexpectedStatusCodeError

from shared.domain.errors import ConfigurationError
from shared.index.weaviate.collection import FAMILY
from shared.index.weaviate.connection import MEET_S, client_of


async def grant(url: str, user: str, key: str, rights: Literal["read", "write"]) -> str:
    """Make the user with these rights on the index's collections; return its URL.

    url: of an administrator. key: that the user has and keeps; empty: it gets a new one. Raises
    ConfigurationError where the server has no users or roles.
    """
    writes = rights == "write"
    collections = f"{FAMILY}*"
    wanted = [
        Permissions.collections(
            collection=collections, read_config=True, create_collection=writes, update_config=writes,
            delete_collection=writes,
        ),
        Permissions.data(collection=collections, read=True, create=writes, update=writes, delete=writes),
    ]  # fmt: skip
    client = client_of(url, connect_s=MEET_S, read_s=MEET_S, write_s=MEET_S)
    try:
        await client.connect()
        role = await client.roles.get(role_name=user)
        if role is None:
            await client.roles.create(role_name=user, permissions=wanted)
        else:  # in place: running services use the role
            await client.roles.add_permissions(role_name=user, permissions=wanted)
            if beyond := _beyond(role.permissions, chain.from_iterable(wanted)):
                await client.roles.remove_permissions(role_name=user, permissions=beyond)
        if user not in {one.user_id for one in await client.users.db.list_all()}:
            key = await client.users.db.create(user_id=user)
        elif not key:
            key = await client.users.db.rotate_key(user_id=user)
        await client.users.db.assign_roles(user_id=user, role_names=[user])
    except UnexpectedStatusCodeError as error:
        hint = "users and roles must be on: AUTHORIZATION_RBAC_ENABLED, AUTHENTICATION_DB_USERS_ENABLED"
        raise ConfigurationError(f"index_url: {hint}: {error}", outside=f"index_url: {hint}") from error
    finally:
        await client.close()
    parts = urlsplit(url)
    return parts._replace(netloc=f":{quote(key)}@{parts.netloc.rpartition('@')[2]}").geturl()


def _beyond(held: Iterable[Any], wanted: Iterable[Any]) -> list[Any]:
    """Return the permissions that are held and not wanted, one for each action and resource."""
    kept = [one.model_dump() for one in _each(wanted)]
    return [one for one in _each(held) if one.model_dump() not in kept]


def _each(permissions: Iterable[Any]) -> list[Any]:
    return [one.model_copy(update={"actions": {action}}) for one in permissions for action in one.actions]
