"""What `minio://…` says, and what it must not show."""

from __future__ import annotations

import pytest

from shared.blobs.address import address_of
from shared.domain.errors import ConfigurationError


def test_the_bucket_stands_before_the_host_or_behind_it() -> None:
    short = address_of("minio://pictures@store:9000", "key", "secret")
    assert (short.bucket, short.endpoint, short.secure, short.region) == ("pictures", "store:9000", False, "us-east-1")
    assert (short.access_key, short.secret_key) == ("key", "secret")
    long = address_of("minio://own%40key:own%2Fsecret@store:9000/pictures?secure=true&region=eu-1", "key", "secret")
    assert (long.bucket, long.secure, long.region) == ("pictures", True, "eu-1")
    assert (long.access_key, long.secret_key) == ("own@key", "own/secret")


def test_clients_may_reach_the_server_elsewhere() -> None:
    at = address_of("minio://pictures@store:9000?public=https://cdn.example:443")
    assert (at.public, at.public_secure) == ("cdn.example:443", True)
    same = address_of("minio://pictures@store:9000?secure=true")
    assert (same.public, same.public_secure) == ("store:9000", True)


def test_an_address_does_not_show_its_keys() -> None:
    assert "s3cret" not in repr(address_of("minio://key:s3cret@store:9000/pictures"))


@pytest.mark.parametrize(
    ("url", "rule"),
    [
        ("minio://store:9000", "bucket, host or port is missing"),
        ("minio://pictures@store", "bucket, host or port is missing"),
        ("minio://key:s3cret@store:port/pictures", "must be minio:"),
        ("minio://key:s3cret@store:9000/pictures?bukket=x", ".*'bukket'"),
        ("minio://key:s3cret@store:9000/pictures?secure=yes", "secure .*'yes'"),
    ],
)
def test_what_is_wrong_is_said_without_the_url(url: str, rule: str) -> None:
    with pytest.raises(ConfigurationError, match=f"blobs_url: {rule}") as wrong:
        address_of(url)
    assert "s3cret" not in str(wrong.value)
    assert wrong.value.__cause__ is None or "s3cret" not in str(wrong.value.__cause__)
