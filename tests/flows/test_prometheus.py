"""Every query of the Grafana board and of the alerts, run by a real Prometheus on the /metrics of everything in one
process."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import re
import shutil
import socket
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml  # type: ignore[import-untyped]  # it ships no types

from shared.runtime.settings import Settings
from shared.runtime.telemetry import METRICS, serving_metrics
from tests.contracts.servers import REQUIRED
from tests.flows.house import house

ROOT = Path(__file__).parents[2]
COMPOSE = ROOT / "compose"
ALERTS = [
    rule
    for group in yaml.safe_load((COMPOSE / "observability/alerts.yaml").read_text())["groups"]
    for rule in group["rules"]
]
PANELS = [
    panel for panel in json.loads((COMPOSE / "observability/board.json").read_text())["panels"] if "targets" in panel
]
QUERIES = [target["expr"] for panel in PANELS for target in panel["targets"]]
KEDA = [
    trigger["metadata"]["query"]
    for path in sorted((COMPOSE / "kubernetes").rglob("*.yaml"))
    for manifest in yaml.safe_load_all(path.read_text())
    if manifest and manifest.get("kind") == "ScaledObject"
    for trigger in manifest["spec"]["triggers"]
    if trigger["type"] == "prometheus"
]
QUIET = {
    "afterimage_refused_total", "afterimage_door_refused_total", "afterimage_http_seconds", "afterimage_degraded_total",
    "afterimage_hints_lost_total", "afterimage_wider_searches_total", "afterimage_deadline_plans_total",
    "afterimage_checks_total", "afterimage_checks_stopped_cells", "afterimage_clips_segmented_total",
    "afterimage_unreadable_rows_total", "afterimage_states_evicted_total", "afterimage_predictor_recall",
    "afterimage_collection_held",
}  # fmt: skip
"""Metrics with labels whose first sample comes with HTTP, clips, small models, full caches or trouble."""
TROUBLE = (r'status!="succeeded"', r'outcome!="handled"', r'code!~"OK', r'source="exact"')
"""Selections that are empty while all is well, or while nobody repeats a request."""


def _declared() -> dict[str, tuple[str, ...]]:
    """Name of each sample → labels of its metric."""
    found: dict[str, tuple[str, ...]] = {}
    for metric in vars(METRICS).values():
        name, labels = metric._name, metric._labelnames
        endings = {"counter": ("_total",), "gauge": ("",), "histogram": ("_bucket", "_sum", "_count")}[metric._type]
        found |= {f"{name}{ending}": labels for ending in endings}
    return found


@pytest.mark.parametrize("query", [*QUERIES, *(rule["expr"] for rule in ALERTS), *KEDA])
def test_every_query_names_metrics_and_labels_that_there_are(query: str) -> None:
    declared = _declared()
    names = re.findall(r"\bafterimage_\w+", query)
    assert names or re.search(r"\b(process_\w+|up)\b", query)
    known = {"job", "instance", "le"}
    for name in names:
        assert name in declared
        known |= {*declared[name]}
    asked = {label for labels in re.findall(r"\bby \(([\w, ]+)\)", query) for label in labels.split(", ")}
    asked |= set(re.findall(r"[{,]\s*(\w+)(?:=|!=|=~|!~)", query))
    assert asked <= known


def test_every_alert_says_where_its_runbook_is() -> None:
    for rule in ALERTS:
        page, _, anchor = rule["annotations"]["runbook_url"].partition("#")
        headings = re.findall(r"^#+ (.+)$", (ROOT / page).read_text(), flags=re.MULTILINE)
        assert anchor in {heading.lower().replace(" ", "-") for heading in headings}, rule["alert"]
        assert rule["annotations"]["summary"]
        assert rule["labels"]["severity"] in ("page", "ticket")


def test_the_board_shows_every_metric_once_and_no_two_panels_overlap() -> None:
    shown = " ".join(QUERIES)
    for name in {re.sub(r"_(bucket|sum|count)$", "", name) for name in _declared()}:
        assert name in shown, name
    places = [panel["gridPos"] for panel in PANELS]
    assert len({(place["x"], place["y"]) for place in places}) == len(places)
    assert all(place["x"] + place["w"] <= 24 for place in places)


def test_prometheus_scrapes_every_service() -> None:
    config = yaml.safe_load((COMPOSE / "observability/prometheus.yaml").read_text())
    (names,) = (source["names"] for job in config["scrape_configs"] for source in job["dns_sd_configs"])
    services = yaml.safe_load((COMPOSE / "services.yaml").read_text())["services"]
    embedded = yaml.safe_load((COMPOSE / "embedded.yaml").read_text())["services"]
    assert set(names) == {name for name in services if name != "tools"} | set(embedded)
    assert "0.0.0.0:9464" in (COMPOSE / "Dockerfile").read_text()


# ---- with a server


@contextlib.contextmanager
def _port() -> Iterator[int]:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = int(taken.getsockname()[1])
    yield port


@contextlib.asynccontextmanager
async def _prometheus(folder: Path, target: str) -> AsyncIterator[httpx.AsyncClient]:
    """A real Prometheus that scrapes `target` and evaluates the alerts each second."""
    program = shutil.which("prometheus")
    if program is None:
        missing = "no prometheus: apt-get install prometheus"
        (pytest.fail if "prometheus" in REQUIRED else pytest.skip)(missing)
    config = {
        "global": {"scrape_interval": "1s", "scrape_timeout": "1s", "evaluation_interval": "1s"},
        "rule_files": [str(COMPOSE / "observability/alerts.yaml")],
        "scrape_configs": [{"job_name": "afterimage", "static_configs": [{"targets": [target]}]}],
    }
    (folder / "prometheus.yaml").write_text(yaml.safe_dump(config))
    with _port() as port:
        process = await asyncio.create_subprocess_exec(
            program, f"--config.file={folder / 'prometheus.yaml'}", f"--storage.tsdb.path={folder / 'tsdb'}",
            f"--web.listen-address=127.0.0.1:{port}", "--log.level=error",
        )  # fmt: skip
    try:
        async with httpx.AsyncClient(
            base_url=f"http://127.0.0.1:{port}/api/v1", timeout=5.0, trust_env=False
        ) as client:
            yield client
    finally:
        process.terminate()
        await process.wait()


async def _until(client: httpx.AsyncClient, query: str) -> None:
    """Until the query has a sample."""
    async with asyncio.timeout(60.0):
        while not await _found(client, query):
            await asyncio.sleep(0.1)


async def _found(client: httpx.AsyncClient, query: str) -> bool:
    try:
        return bool(await _result(client, query))
    except httpx.TransportError:
        return False


async def _result(client: httpx.AsyncClient, query: str) -> list[Any]:
    asked = query.replace("$__rate_interval", "15s")
    answer = await client.get("/query", params={"query": asked})
    if answer.status_code == 503:  # it starts
        return []
    assert answer.status_code == 200, f"{query}: {answer.text}"
    found: list[Any] = answer.json()["data"]["result"]
    return found


def _may_be_empty(query: str) -> bool:
    names = {re.sub(r"_(bucket|sum|count)$", "", name) for name in re.findall(r"\bafterimage_\w+", query)}
    return bool(names & QUIET) or any(one in query for one in TROUBLE)


async def test_a_real_prometheus_answers_every_query(settings: Settings, tmp_path: Path) -> None:
    own = settings.model_copy(update={"report_s": 0.5, "monitor_window_s": 5.0, "max_rows": 4, "reuse_rules": "paper"})
    with serving_metrics("127.0.0.1:0") as port:
        async with house(own) as running, _prometheus(tmp_path, f"127.0.0.1:{port}") as client:
            await _until(client, "up == 1")
            with contextlib.suppress(Exception):
                await running.client.generate("x", steps=0)
            await _until(client, "sum(rate(afterimage_monitor_kept_total[15s]))")
            async with asyncio.timeout(60.0):  # a rate needs a scrape between two requests, and forgets them after 15 s
                met = 'sum(rate(afterimage_deadlines_total{outcome="met"}[15s])) > 0'
                for seed in itertools.count():
                    await running.generate("a red circle on a white background", seed=seed, steps=10, deadline_s=60.0)
                    await asyncio.sleep(0.3)
                    if await _found(client, met):
                        break
            empty = [query for query in [*QUERIES, *KEDA] if not await _result(client, query)]
            due = [query for query in empty if not _may_be_empty(query)]
            for _ in range(40):  # a rate needs two scrapes
                if due:
                    await asyncio.sleep(0.5)
                    due = [query for query in due if not await _result(client, query)]
            assert not due
            groups = (await client.get("/rules")).json()["data"]["groups"]
            rules = [rule for group in groups for rule in group["rules"]]
            assert {rule["name"] for rule in rules} == {rule["alert"] for rule in ALERTS}
            assert {(rule["name"], rule["health"], rule.get("lastError")) for rule in rules} == {
                (rule["alert"], "ok", None) for rule in ALERTS
            }
            pending = {rule["name"] for rule in rules if rule["alerts"]}
            # a second's work against a fleet of one, and a scrape that took longer than 1 s: neither lasts long enough
            assert pending <= {"TooFewWorkers", "ServiceDown"}
            assert not [rule["name"] for rule in rules for alert in rule["alerts"] if alert["state"] == "firing"]
