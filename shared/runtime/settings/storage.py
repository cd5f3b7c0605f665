"""Storage: the data directory, and the servers of bus, index, blobs and catalog."""

from __future__ import annotations

from pathlib import Path
from typing import Self

from pydantic import Field, SecretStr, model_validator

from shared.runtime.settings.section import Seconds, Section


class Storage(Section):
    """Four URLs. The defaults keep everything in one process and one data directory."""

    data_dir: Path = Field(
        Path(".afterimage"),
        description="Folder of the catalog, images, cached latents and lock of the all-in-one process.",
    )
    bus_url: str = Field(
        "inprocess:", description="Message bus: inprocess:, or RabbitMQ at amqp://user:password@host:port/vhost."
    )
    index_url: str = Field(
        "memory:", description="Vector index: memory:, or Weaviate at weaviate://host:port?grpc_port=50051."
    )
    weaviate_hnsw_ef: int = Field(
        -1,
        ge=-1,
        le=4096,
        description="Candidates that Weaviate keeps during a search. A larger value finds more of the nearest and is "
        "slower; -1 means 8 per wanted entry, from 100 to 500.",
    )
    weaviate_hnsw_ef_construction: int = Field(
        128,
        ge=8,
        le=4096,
        description="Candidates that Weaviate keeps while it inserts a vector. A larger value builds a better graph "
        "more slowly. Applies to new collections.",
    )
    weaviate_hnsw_max_connections: int = Field(
        32,
        ge=4,
        le=512,
        description="Links of each vector in Weaviate's graph. More links find more of the nearest and take more "
        "memory. Applies to new collections.",
    )
    weaviate_exact_up_to: int = Field(
        40_000,
        ge=1000,
        description="Entries that a filter may leave for an exact search. Below this number Weaviate compares all of "
        "them instead of searching its graph.",
    )
    blobs_url: str = Field(
        "",
        description="Blob store: file:/path, or minio://access:secret@host:port/bucket (any S3 server). Empty: the "
        "data directory.",
    )
    blobs_access_key: str = Field("", description="Access key of the S3 server. Empty: the variable AWS_ACCESS_KEY_ID.")
    blobs_secret_key: SecretStr = Field(
        SecretStr(""), description="Secret key of the S3 server. Empty: the variable AWS_SECRET_ACCESS_KEY."
    )
    catalog_url: str = Field(
        "",
        description="Database of the catalog: sqlite+aiosqlite:///path, or postgresql+asyncpg://… Empty: the data "
        "directory.",
    )
    catalog_timeout_s: Seconds = Field(
        3.0,
        description="Seconds that the gateway and the global monitor wait for one answer of a catalog server. After "
        "that the gateway replies UNAVAILABLE.",
    )
    connect_wait_s: float = Field(
        30.0,
        ge=0,
        description="Seconds that a start waits for servers that do not answer yet. After that the start fails.",
    )

    @model_validator(mode="after")
    def _fill_urls_of_the_data_directory(self) -> Self:
        data = self.data_dir.absolute()
        object.__setattr__(self, "catalog_url", self.catalog_url or f"sqlite+aiosqlite:///{data}/catalog.sqlite3")
        object.__setattr__(self, "blobs_url", self.blobs_url or f"file:{data}/blobs")
        return self
