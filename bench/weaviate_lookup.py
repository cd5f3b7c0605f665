"""Latency and recall of a lookup in Weaviate at 100,000 entries, and the time to rebuild the index from the catalog.

    python -m bench.weaviate_lookup --count 100000      (8 minutes on quiet cores)

The benchmark starts a private Weaviate and fills a SQLite catalog with entries. Their embeddings form clusters, as
those of prompts do. `repair_index` (which `afterimage cache rebuild-index` runs) fills the index. The adapter then
searches, one search after the other, with the filters of a lookup: cache key, the caller's three scope keys, encoder.
The exact answers are computed from every cosine in float64.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import shutil
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from bench.measuring.quiet import quiet
from bench.measuring.recording import command_line, machine, quantile, record, table
from bench.serving.processes import resident_mib, servers_on_path
from scripts.stack import weaviate
from shared.catalog import Catalog, open_catalog
from shared.domain.ids import new_id
from shared.domain.types import CompatKey, Entry, IndexFilter, Scope, Size, State, owner_key, vector_bytes
from shared.index import Hnsw, Index, open_index
from shared.index.rebuild import Repaired, repair_index
from shared.runtime.progress import Remaining

ENCODER = "encoder-1"
TOGETHER = 500
COMPAT = CompatKey("weights-a", "ddim-1", "float32", Size(512, 512), 50)
Rows = npt.NDArray[np.float32]


def clustered(count: int, dim: int, clusters: int, seed: int) -> Rows:
    """Return unit rows around cluster centres; two rows of one cluster have a cosine of about .8, like paraphrases."""
    rng = np.random.default_rng(seed)
    centres = rng.standard_normal((clusters, dim), np.float32)
    rows = centres[rng.integers(clusters, size=count)]
    for at in range(0, count, 10_000):
        part = rows[at : at + 10_000]
        part += 0.5 * rng.standard_normal(part.shape, np.float32)
        part /= np.linalg.norm(part, axis=1, keepdims=True)
    return rows


def like(rows: Rows, count: int, seed: int) -> Rows:
    """Return queries near some of the rows (cosine about .9)."""
    rng = np.random.default_rng(seed)
    picked = rng.integers(len(rows), size=count)
    noise = rng.standard_normal((count, rows.shape[1]), np.float32)
    queries = rows[picked] + 0.5 * noise / np.linalg.norm(noise, axis=1, keepdims=True)
    return queries / np.linalg.norm(queries, axis=1, keepdims=True)


def tenant_of(number: int, small_every: int) -> str:
    """Return the tenant of an entry: every n-th entry belongs to the small tenant, the others to the large one."""
    return "small" if number % small_every == 0 else "large"


async def fill(catalog: Catalog, rows: Rows, small_every: int) -> list[str]:
    """Insert entries with one state each; return their ids in the rows' order."""
    ids = [new_id() for _ in rows]

    def entry(number: int) -> Entry:
        id_, tenant = ids[number], tenant_of(number, small_every)
        state = State(id_, 15, f"states/{id_}/1/15.safetensors", 8192, "fp16", "ab")
        return Entry(id_, "", f"prompt {number}", tenant, "", Scope.TENANT, "large", COMPAT, id_,
                     f"pictures/{id_}/1.png", "ab", ENCODER, 0.0, (state,))  # fmt: skip

    remaining = Remaining("entries in the catalog", len(rows))
    for at in range(0, len(rows), TOGETHER):  # entries inserted at the same time share a commit
        numbers = range(at, min(at + TOGETHER, len(rows)))
        await asyncio.gather(
            *(catalog.entries.add(entry(number), {"whole": vector_bytes(rows[number])}) for number in numbers)
        )
        remaining.advance(len(numbers))
    return ids


def where(tenant: str) -> IndexFilter:
    return IndexFilter(str(COMPAT), (owner_key(Scope.TENANT, tenant, ""), "public", f"private:{tenant}:u"), ENCODER)


async def search(index: Index, queries: Rows, truth: Sequence[str], filters: IndexFilter, limit: int) -> dict[str, Any]:
    """Return quantiles in milliseconds and the share of queries whose nearest entry came first."""
    taken, right = [], 0
    for query, best in zip(queries, truth, strict=True):
        start = time.monotonic()
        hits = await index.search("whole", query, filters, limit)
        taken.append((time.monotonic() - start) * 1000)
        right += bool(hits) and hits[0].entry_id == best
    return {
        "searches": len(taken),
        "p50_ms": quantile(taken, 0.5),
        "p90_ms": quantile(taken, 0.9),
        "p99_ms": quantile(taken, 0.99),
        "recall_at_1": right / len(taken),
    }


def nearest(rows: Rows, queries: Rows, allowed: npt.NDArray[np.bool_]) -> npt.NDArray[np.intp]:
    """Return the exact answers from every cosine in float64, some rows at a time."""
    best = np.full(len(queries), -2.0)
    found = np.zeros(len(queries), np.intp)
    for at in range(0, len(rows), 10_000):
        scores = queries.astype(np.float64) @ rows[at : at + 10_000].astype(np.float64).T
        scores[:, ~allowed[at : at + 10_000]] = -2.0
        top = scores.argmax(axis=1)
        better = scores[np.arange(len(queries)), top] > best
        best[better] = scores[better, top[better]]
        found[better] = top[better] + at
    return found


async def timed_repair(
    catalog: Catalog, index: Index, on_checked: Callable[[int], object] = lambda _: None
) -> tuple[Repaired, float]:
    start = time.monotonic()
    found = await repair_index(catalog, index, on_checked)
    return found, time.monotonic() - start


async def cosine_error(index: Index, rows: Rows, ids: Sequence[str], queries: Rows) -> float:
    """Return the largest difference between a returned similarity and the cosine in float64."""
    row_of = {id_: number for number, id_ in enumerate(ids)}
    worst = 0.0
    for query in queries:
        for hit in await index.search("whole", query, IndexFilter(), 8):
            row = rows[row_of[hit.entry_id]].astype(np.float64)
            asked = query.astype(np.float64)
            exact = float(row @ asked / np.linalg.norm(row) / np.linalg.norm(asked))
            worst = max(worst, abs(hit.similarity - exact))
    return worst


async def measure(arguments: argparse.Namespace) -> None:
    on = machine()
    folder = Path(tempfile.mkdtemp(prefix="afterimage-bench-"))
    server = weaviate.start(folder / "weaviate")
    try:
        found = await figures(arguments, server.url, folder)
        found["server_memory_mib"] = resident_mib(server.pid)
    finally:
        server.stop()
        shutil.rmtree(folder, ignore_errors=True)
    print(report(found))
    print(f"load {on['load_1min']} before, {os.getloadavg()[0]:.1f} after")
    settings = {key: str(value) for key, value in vars(arguments).items() if key != "out"}
    record("weaviate_lookup", found, settings, on={**on, "load_1min_after": os.getloadavg()[0]}, folder=arguments.out)


async def figures(arguments: argparse.Namespace, url: str, folder: Path) -> dict[str, Any]:
    rows = clustered(arguments.count, arguments.dim, arguments.clusters, seed=1)
    catalog = await open_catalog(f"sqlite+aiosqlite:///{folder / 'catalog.db'}?synchronous=normal")
    index = await open_index(url, Hnsw(ef=arguments.ef, exact_up_to=arguments.exact_up_to))
    ids = await fill(catalog, rows, arguments.small_every)
    print("building the index", flush=True)
    built, build_s = await timed_repair(catalog, index)
    checked, check_s = await timed_repair(catalog, index)
    gone = ids[:: max(1, len(ids) // 1000)][:1000]
    await index.remove(gone)
    mended, mend_s = await timed_repair(catalog, index)
    found: dict[str, Any] = {
        "entries": await index.count(),
        "rebuild_from_nothing_s": build_s,
        "inserted_per_s": built.added / build_s,
        "check_of_a_whole_index_s": check_s,
        "check_added": checked.added,
        "repair_of_1000_missing_s": mend_s,
        "repair_added": mended.added,
        "searches": {},
    }
    for seed, tenant in enumerate(("large", "small")):
        allowed = np.array([tenant_of(number, arguments.small_every) == tenant for number in range(len(rows))])
        queries = like(rows[allowed], arguments.queries, seed=2 + seed)
        truth = [ids[number] for number in nearest(rows, queries, allowed)]
        await search(index, queries[:50], truth[:50], where(tenant), arguments.limit)  # warm
        name = f"{tenant} tenant, {int(allowed.sum())} entries"
        found["searches"][name] = await search(index, queries, truth, where(tenant), arguments.limit)
    found["largest_cosine_error"] = await cosine_error(index, rows, ids, queries[:50])
    await index.close()
    await catalog.close()
    return found


def report(found: dict[str, Any]) -> str:
    searches = table(
        ["lookup in Weaviate", "searches", "p50 ms", "p90 ms", "p99 ms", "recall@1"],
        [[name, *(one[key] for key in ("searches", "p50_ms", "p90_ms", "p99_ms", "recall_at_1"))]
         for name, one in found["searches"].items()],
    )  # fmt: skip
    rebuilt = table(
        ["rebuild of the index", "seconds"],
        [
            [f"from nothing, {found['entries']} entries", found["rebuild_from_nothing_s"]],
            ["nothing is missing", found["check_of_a_whole_index_s"]],
            [f"{found['repair_added']} entries are missing", found["repair_of_1000_missing_s"]],
        ],
    )
    return f"\n{searches}\n\n{rebuilt}\n\nserver: {found['server_memory_mib']} MiB resident"


def main(given: Sequence[str] | None = None) -> None:
    parser = command_line(__doc__)
    parser.add_argument("--count", type=int, default=100_000, help="entries")
    parser.add_argument("--dim", type=int, default=512, help="dimensions of an embedding")
    parser.add_argument("--clusters", type=int, default=5000)
    parser.add_argument("--queries", type=int, default=1000, help="searches of each kind")
    parser.add_argument("--limit", type=int, default=8, help="entries wanted (the setting `candidates`)")
    parser.add_argument("--small-every", type=int, default=10, help="every n-th entry belongs to the small tenant")
    parser.add_argument("--ef", type=int, default=-1, help="the setting weaviate_hnsw_ef")
    parser.add_argument("--exact-up-to", type=int, default=40_000, help="the setting weaviate_exact_up_to")
    arguments = parser.parse_args(given)
    servers_on_path()
    if weaviate.find() is None:
        parser.exit(message=f"weaviate_lookup: skipped, no weaviate here; {weaviate.HOW_TO_GET_IT}\n")
    quiet()
    asyncio.run(measure(arguments))


if __name__ == "__main__":
    main()
