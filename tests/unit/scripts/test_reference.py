"""The generated pages of docs/reference say what the code says."""

from __future__ import annotations

import re
from pathlib import Path

from prometheus_client import CollectorRegistry, Counter

from scripts import reference
from scripts.reference.markdown import cut, prose, table
from shared.runtime.telemetry import Metrics


def test_the_pages_in_the_repository_are_fresh() -> None:
    stale = reference.stale_pages()
    assert not stale, f"run `{reference.COMMAND}` to write {', '.join(stale)} anew"


def test_a_page_that_differs_from_the_code_or_is_missing_is_stale(tmp_path: Path) -> None:
    reference.write_pages(tmp_path)
    assert reference.stale_pages(tmp_path) == []
    (tmp_path / "settings.md").write_text("# Settings\n")
    (tmp_path / "errors.md").unlink()
    assert reference.stale_pages(tmp_path) == ["settings.md", "errors.md"]


def test_every_setting_command_metric_error_and_message_has_its_place() -> None:
    for page, names in {
        "settings.md": ("`AFTERIMAGE_MAX_ROWS`", "`--max-rows`", "`1073741824` (1 GiB)"),
        "commands.md": ("### afterimage cache purge", "`--version`", "afterimage demo"),
        "metrics.md": ("`afterimage_requests_total`", "`afterimage_rpc_seconds`"),
        "errors.md": ("| `StorageFullError` | `RESOURCE_EXHAUSTED` | `STORAGE_FULL` | 74 |",),
        "messages.md": (
            "Sent by `cache_maintainer`, `gateway`, `gpu_worker`. Received by `gpu_worker` (one worker).",
            "Published by `cache_maintainer`. Received by `match_predictor`, `retriever`.",
        ),
        "training-settings.md": (
            "## [optimizer]",
            "| `batch` | `8` | whole number, ≥ 1, ≤ 1048576 |",
            "| `model` | required |",
        ),
    }.items():
        text = reference.text_of(page)
        assert [name for name in names if name not in text] == []


def test_every_metric_is_explained_with_its_labels() -> None:
    page = reference.text_of("metrics.md")
    for metric in vars(Metrics(CollectorRegistry())).values():
        name = f"`{metric._name}_total`" if isinstance(metric, Counter) else f"`{metric._name}`"
        (row,) = (line for line in page.splitlines() if line.startswith(f"| {name} |"))
        _, _, _, labels, meaning, _ = row.split("|")
        assert re.findall(r"[a-z_]+", labels) == list(metric._labelnames)
        assert meaning.strip()


def test_long_cells_continue_below_the_table() -> None:
    long = "One sentence. " + "Another sentence of six words. " * 5
    assert cut(long.strip())[0] == "One sentence. " + " ".join(["Another sentence of six words."] * 4)
    written = table(("name", "text"), [("`a|b`", long.strip())])
    assert r"| `a\|b` | One sentence." in written
    assert written.endswith("\n- `a|b`: Another sentence of six words.\n")


def test_help_texts_become_markdown() -> None:
    assert prose("See [bold]afterimage up[/bold];\n[bold]now[/bold]") == "See `afterimage up`; **now**"
    assert prose("--out or AFTERIMAGE_OUT") == "`--out` or `AFTERIMAGE_OUT`"
    assert prose("default: <job id>.png, `<kept>`") == "default: &lt;job id>.png, `<kept>`"
