"""What `--why` shows of a stitched start: both entries, and their masks where they can be read."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from rich.console import Console

from services.cli.display.masks import masks_here, pair_table
from shared.blobs import open_blobs
from shared.domain.masks import pack
from shared.domain.types import Plan, PlanSource, Source
from shared.runtime.settings import Settings


def shown(plan: Plan, masks: object) -> str:
    console = Console(width=200, force_terminal=False)
    with console.capture() as captured:
        console.print(pair_table(plan, masks))  # type: ignore[arg-type]
    return captured.get()


async def test_why_shows_both_sources_and_their_masks(tmp_path: Path) -> None:
    settings = Settings(data_dir=tmp_path, blobs_url=f"file:{tmp_path / 'blobs'}")
    thing = np.zeros((3, 4, 4), bool)
    thing[:, 1] = True
    blobs = await open_blobs(settings.blobs_url)
    data = pack(thing, ~thing)
    hashes = {entry: await blobs.put(f"masks/{entry}.mask", data) for entry in ("fox", "dog")}
    sources = tuple(
        Source(entry, "states/a", mask_key=f"masks/{entry}.mask", mask_sha256=sha256)
        for entry, sha256 in hashes.items()
    )
    plan = Plan(PlanSource.STITCHED, "clips", 5, sources=sources)
    masks = await masks_here(settings, plan, None)
    assert masks is not None
    text = shown(plan, masks)
    assert text.index("fox") < text.index("dog")
    assert text.count("▀") == 3 * 4 * 2  # 4×4 cells each, two rows a line
    # another process's store is not read, nor masks that are gone
    assert await masks_here(settings, plan, "other:50051") is None
    await blobs.delete(["masks/dog.mask"])
    await blobs.close()
    assert await masks_here(settings, plan, None) is None
    assert "▀" not in shown(plan, None)
    assert "dog" in shown(plan, None)
