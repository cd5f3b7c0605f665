"""Users of RabbitMQ: one for each service, made by the broker's management API."""

from __future__ import annotations

import re
from collections.abc import Sequence
from urllib.parse import quote, unquote, urlsplit

import httpx

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
    names, publishes = rf"{queues}|{re.escape(FACTS)}", "|".join(kinds)
    permissions = {"configure": f"^({names})$", "write": f"^({names}|{DEFAULT_EXCHANGE})$", "read": f"^({names})$"}
    topics = {"exchange": FACTS, "write": f"^({publishes})$", "read": ".*"}
    administrator = unquote(parts.username or "guest"), unquote(parts.password or "guest")
    try:
        async with httpx.AsyncClient(auth=administrator, timeout=WAIT_S) as client:
            for path, body in (
                (f"users/{quote(user)}", {"password": password, "tags": ""}),
                (f"permissions/{host}/{quote(user)}", permissions),
                (f"topic-permissions/{host}/{quote(user)}", topics),
            ):
                answer = await client.put(f"{api.rstrip('/')}/api/{path}", json=body)
                answer.raise_for_status()
    except httpx.HTTPStatusError as error:
        said = f"RabbitMQ's management refuses {error.request.url}: {error.response.status_code}"
        raise ConfigurationError(f"rabbitmq_api: {said} {error.response.reason_phrase}") from error
    except (httpx.HTTPError, httpx.InvalidURL) as error:
        said = f"RabbitMQ's management does not answer at {api} ({error!r})"
        raise UnavailableError(f"rabbitmq_api: {said}; enable its plugin rabbitmq_management") from error
    return parts._replace(netloc=f"{quote(user)}:{quote(password)}@{parts.netloc.rpartition('@')[2]}").geturl()
