"""Rows, messages, settings, metrics and names that an earlier version stored or sent (stored/*.json) still load, and
are written again under the same names. Never regenerate these files: a new version reads the old ones."""

from __future__ import annotations

import base64
import json
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import sqlalchemy as sa
from prometheus_client import CollectorRegistry

from services.cache_maintainer.service import CacheMaintainerService
from services.global_monitor.service import GlobalMonitorService
from services.gpu_worker.jobs.checkpoints import key_of
from services.gpu_worker.jobs.codecs import decode_checkpoint, decode_state, encode_checkpoint, encode_state
from shared.bus.rabbitmq import queues, returns
from shared.bus.rabbitmq.publisher import parcel
from shared.catalog import Catalog
from shared.catalog.custody import Ids
from shared.catalog.jobs.sweeping import Fleet
from shared.domain import messages
from shared.domain.exact_repeats import exact_key
from shared.domain.types import IndexItem, JobState, Modality, owner_key, vector_bytes
from shared.index.weaviate.collection import COLLECTION, object_of
from shared.models.k_table import profile_kind, table_file, table_from_json
from shared.models.latency import FILE as LATENCY_FILE
from shared.models.latency import KIND as LATENCY
from shared.runtime.settings import Settings
from shared.runtime.settings_names import RETIRED, misspelt
from shared.runtime.telemetry import Metrics
from shared.runtime.tracing import HEADERS
from shared.service.pairing import SEAL_KEY, Seal, job_of
from tests.contracts.stored import COMPAT, ENTRIES, JOBS, PLAN, PROFILES, REQUEST, RESULT, SENT, TABLE, VECTOR

FOLDER = Path(__file__).parent / "stored"
ROWS, MESSAGES, SETTINGS, METRICS, NAMES, BLOBS = (
    json.loads((FOLDER / f"{name}.json").read_text())
    for name in ("rows", "messages", "settings", "metrics", "names", "blobs")
)
DOCUMENTS = ("request", "plan", "result", "warnings", "value")
BY_THE_CLOCK = {
    "created_at", "updated_at", "seen_at", "since", "at", "until", "begun_at", "expires_at", "lease_until",
}  # fmt: skip
NOT_WRITTEN = {  # by `accept`, which writes a job that no worker has claimed and no broker has taken
    "jobs": {"crashes_alone", "exposed_from", "exposed_s", "alone_s", "alone", "confirmed", "buried"},
    "identity": {"value"},  # of the catalog's own id, which is made at random
    "workers": {"busy_s"},
}


def holds(written: Any, stored: Any) -> bool:
    """Whether everything stored is written again, under the same names; more may be written beside it."""
    if isinstance(stored, dict):
        return isinstance(written, dict) and all(
            name in written and holds(written[name], value) for name, value in stored.items()
        )
    if isinstance(stored, list):
        same = isinstance(written, list) and len(written) == len(stored)
        return same and all(holds(one, other) for one, other in zip(written, stored, strict=True))
    return type(written) is type(stored) and written == stored


def column(table: str, name: str, value: Any) -> Any:
    """A column as the file has it, as the database takes it: documents are text there, vectors bytes."""
    if name in ("vector", "data"):
        return bytes.fromhex(value)
    return json.dumps(value) if name in DOCUMENTS and table == "jobs" and value != "" else value


def shown(table: str, name: str, value: Any) -> Any:
    """A column as the database gives it, as the file has it."""
    if name in ("vector", "data"):
        return bytes(value).hex()
    return json.loads(value) if name in DOCUMENTS and table == "jobs" and value else value


def _tables(connection: sa.Connection) -> dict[str, sa.Table]:
    """The tables as they are in the database, whatever this version's code calls their columns."""
    return {name: sa.Table(name, sa.MetaData(), autoload_with=connection) for name in ROWS}


def _insert(connection: sa.Connection) -> None:
    for name, table in _tables(connection).items():
        for row in ROWS[name]:
            values = {key: column(name, key, value) for key, value in row.items()}
            connection.execute(sa.insert(table).values(values))


def _select(connection: sa.Connection) -> dict[str, list[dict[str, Any]]]:
    """Rows by table, shown as in the file."""
    return {
        name: [
            {key: shown(name, key, value) for key, value in row.items()}
            for row in connection.execute(sa.select(table)).mappings()
        ]
        for name, table in _tables(connection).items()
    }


async def test_rows_load_field_by_field(catalog: Catalog) -> None:
    await catalog._database.write(_insert)
    for job in JOBS:
        assert asdict(await catalog.jobs.get(job.id)) == asdict(job)
    for entry in ENTRIES:
        assert asdict(await catalog.entries.get(entry.id)) == asdict(entry)
        assert (
            await catalog.entries.exact(entry.exact_key, entry.tenant, [owner_key(entry.scope, "acme", "ann")]) == entry
        )
    items = await catalog.entries.items()
    assert [(item.entry_id, item.owner, item.compat, item.encoder_hash) for item in items] == [
        (f"entry-{name}", owner, "weights-a/ddim-1/bfloat16/64x96", "clip-1")
        for name, owner in (("private", "private:acme:ann"), ("public", "public"), ("tenant", "tenant:acme"))
    ]
    assert {name: vector.tolist() for name, vector in items[0].vectors.items()} == {
        "image": VECTOR.tolist(), "whole": VECTOR.tolist()
    }  # fmt: skip
    for key, value in PROFILES.items():
        assert await catalog.profiles.get(*key) == value
    assert await catalog.jobs.first_all("acme", "key-1", "body-1") == [JOBS[0]]
    assert await catalog.jobs.to_cache() == ["job-cancelled", "job-succeeded"]
    assert await catalog.jobs.drop_captured(["job-succeeded", "job-cancelled"]) == sorted(
        latent.key for latent in RESULT.captured
    )
    assert await catalog.jobs.fleet(0.0) == Fleet(crashes=0, busy_s=60.5)
    assert not await catalog.leases.take("cache_maintainer", "another", 1.0)
    assert await catalog.leases.take("cache_maintainer", "holder-1", 1.0)
    assert await catalog.custody.ids() == Ids(catalog="catalog-1", store="store-1", paired_with="/blobs")
    assert await catalog.custody.due(0.0, 10) == ["states/gone-1-5.safetensors"]
    assert await catalog.custody.counts(0.0) == (1, 1)
    assert await catalog.custody.erased(["job-erased", "another"], 0.0) == {"job-erased"}


async def test_rows_are_written_again_under_the_same_names(catalog: Catalog) -> None:
    for job in JOBS:
        if job.id == "job-succeeded":
            job = replace(job, state=JobState.RUNNING, result=None)
        key = "key-1" if job is JOBS[0] else ""
        await catalog.jobs.accept(job, idempotency_key=key, caller="acme", body_hash="body-1", key_lifetime_s=60.0)
    assert await catalog.jobs.finish("job-succeeded", 3, RESULT)
    for entry in ENTRIES:
        assert await catalog.entries.add(entry, {name: vector_bytes(VECTOR) for name in ("image", "whole")})
    for key_of_profile, value in PROFILES.items():
        await catalog.profiles.put(*key_of_profile, value)
    await catalog.jobs.report_worker("holder-1", 60.5, 15.0)
    assert await catalog.leases.take("cache_maintainer", "holder-1", 15.0)
    await catalog.custody.pair("store-1", "/blobs")
    await catalog.custody.ids()
    await catalog.custody.mark(["states/gone-1-5.safetensors"])
    await catalog.custody.erase(["job-erased"])
    written = await catalog._database.read(_select)
    for table, rows in ROWS.items():
        for stored in rows:
            if table == "captured" and stored["key"].startswith("none:"):
                continue  # of a job that captured nothing: tests/contracts/catalog/test_jobs.py
            expected = {
                name: value
                for name, value in stored.items()
                if name not in BY_THE_CLOCK | NOT_WRITTEN.get(table, set())
            }
            assert all(row.keys() >= stored.keys() for row in written[table]), table
            assert any(holds(row, expected) for row in written[table]), f"{table}: no row holds {expected}"


def test_every_kind_of_message_loads_and_is_sent_again() -> None:
    for message, one in zip(SENT, MESSAGES, strict=True):
        assert asdict(messages.decode(one["kind"], json.dumps(one["body"]).encode())) == asdict(message)
        kind, body = messages.encode(message)
        assert kind == one["kind"]
        assert holds(json.loads(body), one["body"])
    assert {type(message) for message in SENT} == set(messages.KINDS.values())


def test_every_variable_sets_what_it_set(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, (written, _) in SETTINGS["read"].items():
        monkeypatch.setenv(name, written)
    settings = Settings()
    retired = {f"AFTERIMAGE_{name}" for name in RETIRED}
    for name, (written, becomes) in SETTINGS["read"].items():
        if name in retired:  # a start ignores the variable and says so
            continue
        value: Any = settings.model_dump(mode="json")[name.removeprefix("AFTERIMAGE_").lower()]
        assert value == becomes, f"{name}={written}"
    assert settings.blobs_secret_key.get_secret_value() == "a secret"
    said = misspelt([*SETTINGS["read"], *SETTINGS["elsewhere"]])
    assert {line.partition(": no longer a setting")[0] for line in said} == retired


def test_metrics_keep_their_names_and_labels() -> None:
    registry = CollectorRegistry()
    Metrics(registry)
    for collector in list(registry._collector_to_names):
        if labels := getattr(collector, "_labelnames", ()):
            collector.labels(*labels)  # type: ignore[attr-defined]  # one sample of it
    exposed = {sample.name: sorted(sample.labels) for metric in registry.collect() for sample in metric.samples}
    for name, labels in METRICS.items():
        assert exposed.get(name) == labels, name


def names() -> dict[str, Any]:
    """What other processes, brokers, stores and older versions know by name."""
    sent = parcel("JobFailed", b"{}")
    indexed = object_of(IndexItem("entry-a", {"whole": VECTOR}, "compat", "owner", "clip-1"), {"whole": VECTOR})
    return {
        "lanes": [messages.lane_of("tiny"), messages.refine_lane(), messages.refine_lane(Modality.VIDEO)],
        "exchange": queues.FACTS,
        "queues": {
            queue.name: queue.declared_with
            for queue in (
                queues.DEAD_LETTERS,
                queues.lane_queue("generate.tiny"),
                queues.retry_queue("generate.tiny", 5.0),
                queues.settling_queue("generate.tiny", 3.5),
                queues.facts_queue(CacheMaintainerService.name),
            )
        },
        "headers": [*HEADERS, returns.RETURNS, returns.SEEN, returns.LANE, returns.REASON, returns.AT],
        "parcel": {"type": sent.type, "content_type": sent.content_type, "delivery_mode": int(sent.delivery_mode)},
        "leases": [CacheMaintainerService.name, GlobalMonitorService.name],
        "checkpoint": key_of("job-a", 2, 12),
        "seal": SEAL_KEY,
        "profile_kinds": [profile_kind(0.95), profile_kind(0.9, images=True), LATENCY],
        "profile_files": [table_file(TABLE), table_file(replace(TABLE, images_from="")), LATENCY_FILE],
        "exact_key": exact_key(REQUEST, COMPAT),
        "collection": COLLECTION,
        "indexed": {
            "uuid": str(indexed.uuid), "properties": indexed.properties, "vectors": sorted(indexed.vector)
        },
    }  # fmt: skip


def test_names_stay() -> None:
    found = names()
    for name, stored in NAMES.items():
        assert found[name] == stored, name


@pytest.mark.parametrize("key", BLOBS["keys"])
def test_the_job_of_a_stored_blob_is_known(key: str) -> None:
    assert job_of(key) == "01JOB"


def test_blobs_load() -> None:
    seal = BLOBS["seal"]
    assert Seal(**seal) == Seal(store="store-1", catalog="catalog-1", catalog_at="/catalog")
    assert asdict(Seal(**seal)) == seal
    assert table_from_json(BLOBS["table"]) == TABLE
    latent = np.linspace(-1.0, 1.0, 16, dtype=np.float32).reshape(4, 2, 2)
    start, plan = decode_checkpoint(base64.b64decode(BLOBS["checkpoint"]))
    assert (start.step, start.generator_state, plan) == (12, b"noise", PLAN)
    assert np.array_equal(start.latent, latent)
    again = decode_checkpoint(encode_checkpoint(latent, 12, b"noise", PLAN))
    assert (again[0].step, again[0].generator_state, again[1]) == (12, b"noise", PLAN)
    for codec, stored in BLOBS["states"].items():
        found = decode_state(base64.b64decode(stored), codec)
        assert np.array_equal(found, decode_state(encode_state(latent, codec), codec)), codec
