"""The typed Python client: generate images and clips, follow their progress, read jobs."""

from shared.client.async_client import IDEMPOTENCY_KEY, MAX_MESSAGE_BYTES, AsyncClient, OnWait, Waiting
from shared.client.blocking_client import Client
from shared.client.views import Accepted, Clip, Event, ImagesFailedError, JobView, Picture, Progress

__all__ = [
    "IDEMPOTENCY_KEY",
    "MAX_MESSAGE_BYTES",
    "Accepted",
    "AsyncClient",
    "Client",
    "Clip",
    "Event",
    "ImagesFailedError",
    "JobView",
    "OnWait",
    "Picture",
    "Progress",
    "Waiting",
]
