"""A look at a Weaviate server: its version and our collection, and nothing is made."""

from __future__ import annotations

from urllib.parse import urlsplit

import pytest

from shared.index.weaviate import probe
from shared.index.weaviate.probe import probe_index
from tests.contracts.conftest import an_empty_weaviate
from tests.contracts.servers import url_of


async def test_a_look_makes_no_collection_and_names_a_wrong_key(monkeypatch: pytest.MonkeyPatch) -> None:
    url = url_of("weaviate")
    await (await an_empty_weaviate(url)).close()
    for _ in range(2):
        seen = await probe_index(url, 10.0)
        assert seen.wrong == ""
        assert seen.found.endswith("missing, the first entry makes it")
        assert seen.round_trip_s > 0
    if (key := urlsplit(url).password) is not None:
        refused = await probe_index(url.replace(key, "n0t-a-key"), 10.0)
        assert "the server refuses the key" in refused.wrong
        assert "n0t-a-key" not in str(refused)
    monkeypatch.setattr(probe, "LEAST", (99, 0))
    assert "Weaviate must be 99.0 or newer" in (await probe_index(url, 10.0)).wrong
