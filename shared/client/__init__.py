"""The typed Python client: generate images, follow their progress, read jobs."""

from shared.client.async_client import IDEMPOTENCY_KEY, MAX_MESSAGE_BYTES, AsyncClient, OnWait, Waiting
from shared.client.blocking_client import Client
from shared.client.views import Accepted, Event, ImagesFailedError, JobView, Picture, Progress

__all__ = [
    "IDEMPOTENCY_KEY",
    "MAX_MESSAGE_BYTES",
    "Accepted",
    "AsyncClient",
    "Client",
    "Event",
    "ImagesFailedError",
    "JobView",
    "OnWait",
    "Picture",
    "Progress",
    "Waiting",
]
