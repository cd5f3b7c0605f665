"""The typed Python client: ask for pictures, watch them appear, look at jobs."""

from shared.client.async_client import IDEMPOTENCY_KEY, MAX_MESSAGE_BYTES, AsyncClient, OnWait, Waiting
from shared.client.blocking_client import Client
from shared.client.views import Accepted, Event, JobView, Picture, Progress

__all__ = [
    "IDEMPOTENCY_KEY",
    "MAX_MESSAGE_BYTES",
    "Accepted",
    "AsyncClient",
    "Client",
    "Event",
    "JobView",
    "OnWait",
    "Picture",
    "Progress",
    "Waiting",
]
