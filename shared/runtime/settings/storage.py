"""Storage: the data directory, and the servers of bus, index, blobs and catalog."""

from __future__ import annotations

from pathlib import Path
from typing import Self

from pydantic import Field, SecretStr, model_validator

from shared.runtime.settings.section import Seconds, Section


class Storage(Section):
    """Four URLs. The defaults keep everything in one process and one data directory."""

    data_dir: Path = Field(Path(".afterimage"), description="Folder of the embedded mode: catalog, blobs, lock.")
    bus_url: str = Field("inprocess:", description="inprocess:, or amqp://user:password@host:port/vhost.")
    index_url: str = Field("memory:", description="memory:, or weaviate://host:port?grpc_port=50051.")
    weaviate_hnsw_ef: int = Field(
        -1, ge=-1, le=4096, description="Candidates kept while searching; -1: 8 per wanted entry, 100 to 500."
    )
    weaviate_hnsw_ef_construction: int = Field(128, ge=8, le=4096, description="For a collection that is made anew.")
    weaviate_hnsw_max_connections: int = Field(32, ge=4, le=512, description="For a collection that is made anew.")
    weaviate_exact_up_to: int = Field(
        40_000, ge=1000, description="A filter that leaves fewer entries than this is answered by comparing them all."
    )
    blobs_url: str = Field(
        "",
        description="file:/path, or minio://access:secret@host:port/bucket (any S3 server); empty: the data directory.",
    )
    blobs_access_key: str = Field("", description="For the S3 server; empty: AWS_ACCESS_KEY_ID.")
    blobs_secret_key: SecretStr = Field(SecretStr(""), description="For the S3 server; empty: AWS_SECRET_ACCESS_KEY.")
    catalog_url: str = Field(
        "", description="sqlite+aiosqlite:///path or postgresql+asyncpg://…; empty: the data directory."
    )
    catalog_timeout_s: Seconds = Field(
        3.0, description="How long a gateway waits for one answer of a catalog on a server before it says UNAVAILABLE."
    )
    connect_wait_s: float = Field(30.0, ge=0, description="How long a start waits for servers that do not answer yet.")

    @model_validator(mode="after")
    def _fill_urls_of_the_data_directory(self) -> Self:
        data = self.data_dir.absolute()
        object.__setattr__(self, "catalog_url", self.catalog_url or f"sqlite+aiosqlite:///{data}/catalog.sqlite3")
        object.__setattr__(self, "blobs_url", self.blobs_url or f"file:{data}/blobs")
        return self
