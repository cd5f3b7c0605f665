"""Users of RabbitMQ: one for each service, made by the broker's management API."""

from __future__ import annotations

import asyncio
import base64
import json
import urllib.error
import urllib.request
from collections.abc import Sequence
from typing import Any
from urllib.parse import quote, unquote, urlsplit

from shared.bus.rabbitmq.queues import FACTS
from shared.domain.errors import ConfigurationError, UnavailableError

DEFAULT_EXCHANGE = r"amq\.default"
"""By it tasks reach their queues, and dead letters theirs."""
WAIT_S = 10.0


async def grant(url: str, api: str, user: str, password: str, queues: str, kinds: Sequence[str]) -> str:
    """Make the user, or set its password, with exactly these rights; return its URL.

    url: of an administrator; api: address of the management API, as in http://host:15672. queues: pattern of the queues
    that it declares and reads; kinds: of the events that it publishes; it receives all. Raises ConfigurationError when
    the API refuses, and UnavailableError when it does not answer.
    """
    parts = urlsplit(url)
    host = quote(unquote(parts.path.removeprefix("/")) or "/", safe="")
    names = rf"{queues}|{FACTS}".replace(FACTS, FACTS.replace(".", r"\."))
    publishes = "|".join(kinds)
    for path, body in (
        (f"users/{quote(user)}", {"password": password, "tags": ""}),
        (
            f"permissions/{host}/{quote(user)}",
            {"configure": rf"^({names})$", "write": rf"^({names}|{DEFAULT_EXCHANGE})$", "read": rf"^({names})$"},
        ),
        (f"topic-permissions/{host}/{quote(user)}", {"exchange": FACTS, "write": rf"^({publishes})$", "read": ".*"}),
    ):
        await asyncio.to_thread(_put, parts, f"{api.rstrip('/')}/api/{path}", body)
    return parts._replace(netloc=f"{quote(user)}:{quote(password)}@{parts.netloc.rpartition('@')[2]}").geturl()


def _put(parts: Any, address: str, body: dict[str, str]) -> None:
    request = urllib.request.Request(address, json.dumps(body).encode(), method="PUT")
    given = f"{unquote(parts.username or 'guest')}:{unquote(parts.password or 'guest')}"
    request.add_header("authorization", f"Basic {base64.b64encode(given.encode()).decode()}")
    request.add_header("content-type", "application/json")
    try:
        with urllib.request.urlopen(request, timeout=WAIT_S):
            return
    except urllib.error.HTTPError as error:
        said = f"RabbitMQ's management refuses {address}: {error.code} {error.reason}"
        raise ConfigurationError(f"rabbitmq_api: {said}") from error
    except OSError as error:
        said = f"RabbitMQ's management does not answer at {address} ({error})"
        raise UnavailableError(f"rabbitmq_api: {said}; enable its plugin rabbitmq_management") from error
