"""Quality lost by starting after K steps, per kind of change: the rows of `afterimage profile` as tables.

afterimage profile --pairs 400 --out out/profile && python -m bench.k_quality --profile out/profile
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from bench.measuring.recording import command_line, machine, record, table
from shared.models.quality import BOUNDS
from shared.models.scenes import CLIP_EDITS, EDITS


def read_profile(folder: Path) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return (profile's settings, quality.json) of a folder that `afterimage profile` wrote."""
    measured = json.loads((folder / "quality.json").read_text(encoding="utf-8"))
    with (folder / "rows.jsonl").open(encoding="utf-8") as rows:
        about = json.loads(rows.readline())
    return about, measured


def ks_of(measured: Mapping[str, Any]) -> list[str]:
    return sorted({k for cells in measured["kinds"].values() for k in cells}, key=int)


def ratios(measured: Mapping[str, Any]) -> str:
    """Return a table, kind of change × K: mean CLIP ratio to the image from noise, and its 95 % lower bound."""
    ks = ks_of(measured)
    rows = []
    for kind in _kinds(measured):
        cells = measured["kinds"][kind]
        low, high = min(c["min_similarity"] for c in cells.values()), max(c["max_similarity"] for c in cells.values())
        shown = [f"{cells[k]['mean_ratio']:.2f} (≥ {cells[k]['lower_bound']:.2f})" if k in cells else "–" for k in ks]
        rows.append([kind, cells[next(iter(cells))]["count"], f"{low:.2f}–{high:.2f}", *shown])
    return table(["CLIP ratio (95 % bound)", "pairs", "prompt similarity", *(f"K = {k}" for k in ks)], rows)


def changed(measured: Mapping[str, Any]) -> str:
    """Return a table, kind of change × K: share of images that show the change, beside the share from noise."""
    ks = ks_of(measured)
    rows = []
    for kind in _kinds(measured):
        cells = measured["kinds"][kind]
        first = cells[next(iter(cells))]
        if first["kept"] is None:
            continue
        shown = [f"{cells[k]['kept']:.2f}" if k in cells else "–" for k in ks]
        rows.append([kind, first["judged"], f"{first['kept_from_noise']:.2f}", *shown])
    return table(["what changed came out", "pairs", "from noise", *(f"K = {k}" for k in ks)], rows)


def rest(measured: Mapping[str, Any], names: Sequence[str] = ("object", "background")) -> str:
    """Return a table, kind of change × K: share of images with object and background right."""
    ks = ks_of(measured)
    rows = []
    for kind in _kinds(measured):
        shares = measured["right"].get(kind, {})
        if not shares.get("from_noise"):
            continue
        shown = [" / ".join(f"{shares[k][name]:.2f}" for name in names) for k in ("from_noise", *ks) if k in shares]
        rows.append([kind, *shown])
    return table([f"{' / '.join(names)} right", "from noise", *(f"K = {k}" for k in ks)], rows)


def measure(measured: Mapping[str, Any], name: str) -> str:
    """Return a table, kind of change × K, of one measure of `shared.models.quality`: value, 95 % bound and pairs; empty
    for a profile of an earlier version."""
    ks, rows = ks_of(measured), []
    for kind in _kinds(measured):
        found = {k: (cell.get("quality") or {}).get(name) for k, cell in measured["kinds"][kind].items()}
        known = {k: one for k, one in found.items() if one}
        sign = "≤" if BOUNDS[name].at_most else "≥"
        shown = {
            k: f"{one['value']:.2f}" + ("" if one["bound"] is None else f" ({sign} {one['bound']:.2f})")
            for k, one in known.items()
        }
        if known:
            rows.append([kind, max(one["count"] for one in known.values()), *(shown.get(k, "–") for k in ks)])
    return table([f"{name} (95 % bound)", "pairs", *(f"K = {k}" for k in ks)], rows) if rows else ""


def _kinds(measured: Mapping[str, Any]) -> list[str]:
    return [kind for kind in dict.fromkeys((*EDITS, *CLIP_EDITS)) if kind in measured["kinds"]]


def main(given: Sequence[str] | None = None) -> None:
    parser = command_line(__doc__)
    parser.add_argument(
        "--profile", type=Path, default=Path("out/profile"), help="folder that `afterimage profile` wrote"
    )
    arguments = parser.parse_args(given)
    if not (arguments.profile / "quality.json").is_file():
        parser.error(f"--profile: no quality.json in {arguments.profile}; run `afterimage profile` first")
    about, measured = read_profile(arguments.profile)
    others = [measure(measured, name) for name in BOUNDS if name not in ("fidelity", "attributes")]
    print("\n\n".join(filter(None, [ratios(measured), changed(measured), rest(measured), *others])))
    record("k_quality", measured, about | {"profile": str(arguments.profile)}, on=machine(), folder=arguments.out)
    plot = arguments.profile / "quality.png"
    if plot.is_file():
        shutil.copy(plot, arguments.out / "k_quality.png")


if __name__ == "__main__":
    main()
