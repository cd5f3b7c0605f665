"""Users of MinIO: one for each service, with a policy for the blobs that it needs."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any
from urllib.parse import quote, urlsplit

from minio import MinioAdmin
from minio.credentials.providers import StaticProvider
from minio.error import MinioAdminException

from shared.blobs.address import address_of
from shared.domain.errors import ConfigurationError


async def grant(
    url: str, access_key: str, secret_key: str, user: str, password: str, actions: Mapping[str, Sequence[str]]
) -> str:
    """Make the user, or set its password, with exactly these rights; return its URL.

    url, access_key and secret_key: of an administrator. actions: prefixes by action, as in {"GetObject": ["states/"]}.
    Raises ConfigurationError for a store without MinIO's administration.
    """
    at = address_of(url, access_key, secret_key)
    admin = MinioAdmin(endpoint=at.endpoint, credentials=StaticProvider(at.access_key, at.secret_key), secure=at.secure)
    try:
        await asyncio.to_thread(_granted, admin, user, password, policy_of(at.bucket, actions))
    except (MinioAdminException, ValueError) as error:
        hint = "the store at blobs_url has no administration as MinIO's; make its users by hand, with these policies"
        raise ConfigurationError(f"blobs_url: {hint}: {error}", outside=f"blobs_url: {hint}") from error
    parts = urlsplit(url)
    host = f"{quote(user)}:{quote(password)}@{at.endpoint}"
    return parts._replace(netloc=host, path=f"/{at.bucket}").geturl()


def policy_of(bucket: str, actions: Mapping[str, Sequence[str]]) -> dict[str, Any]:
    """Return the policy, in the language of AWS, for actions on prefixes of a bucket; the bucket may be listed."""
    own = f"arn:aws:s3:::{bucket}"
    statements: list[dict[str, Any]] = [{"Action": ["s3:ListBucket", "s3:GetBucketLocation"], "Resource": [own]}]
    statements += [
        {"Action": [f"s3:{action}"], "Resource": [f"{own}/{prefix}*" for prefix in prefixes]}
        for action, prefixes in actions.items()
        if prefixes
    ]
    return {"Version": "2012-10-17", "Statement": [{"Effect": "Allow", **one} for one in statements]}


def _granted(admin: MinioAdmin, user: str, password: str, policy: Mapping[str, Any]) -> None:
    admin.policy_add(user, policy=dict(policy))
    admin.user_add(user, password)
    admin.policy_set(user, user)
