"""A look at a Weaviate server that makes no collection."""

from __future__ import annotations

import time

from shared.domain.errors import ConfigurationError, UnavailableError
from shared.index import Hnsw
from shared.index.weaviate.collection import COLLECTION, EntryCollection
from shared.index.weaviate.connection import Connection, client_of, place_of
from shared.runtime.probes import Probe, version_of

LEAST = (1, 31)
"""Least version: it adds named vectors to a collection."""
REFUSED = (401, 403)


async def probe_index(url: str, limit_s: float) -> Probe:
    """Ask the server for its version and our collection; raise UnavailableError for none that answers in `limit_s`."""
    at = place_of(url)
    client = client_of(url, connect_s=limit_s, read_s=limit_s, write_s=limit_s)
    connection = Connection(client, at)
    where, found, wrong = f"{at.http.host}:{at.http.port}", "", ""
    try:
        async with connection.within(limit_s, "look"):
            await client.get_meta()  # connects
            begun = time.monotonic()
            version = str((await client.get_meta())["version"])
            took = time.monotonic() - begun
            spaces = await EntryCollection(client, Hnsw()).spaces()
        found = f"collection {COLLECTION}" + (" missing, the first entry makes it" if spaces is None else "")
    except ConfigurationError as error:
        wrong = str(error)
    except UnavailableError as error:
        status = getattr(error.__cause__, "status_code", 0)
        if status not in REFUSED:
            raise
        wrong = f"index_url: the server refuses the key ({status}); set it as weaviate://:KEY@host:port"
        return Probe(f"Weaviate at {where}", 0.0, wrong=wrong)
    finally:
        await connection.close()
    if version_of(version) < LEAST:
        wrong = f"index_url: Weaviate must be {'.'.join(map(str, LEAST))} or newer (is {version}); upgrade the server"
    return Probe(f"Weaviate {version} at {where}", took, found, wrong=wrong)
