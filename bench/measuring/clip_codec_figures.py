"""Figures of `bench.clip_codecs` from the rows of clips, and their tables."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import fmean
from typing import Any

import numpy as np

from bench.measuring.recording import quantile, table

Row = Mapping[str, Any]
PAPER = {"mean": 6.7, "best": 16.0, "worst": 2.53, "share_of_best": 0.31}
"""Ratios of FlexCache §6.2.4, of 5,000 clips of 64 frames; best and worst are those of 31 % and of 1 % of the clips."""
SHOWN = ("fidelity", "attributes", "sharpness", "contrast", "copying")


def figures_of(rows: Sequence[Row]) -> dict[str, Any]:
    """Return the figures of the clips of one length."""
    ks = rows[0]["ks"]
    return {
        "clips": len(rows),
        "frames": rows[0]["frames"],
        "ks": ks,
        "difference_similarity": np.mean([row["differences"] for row in rows], axis=0).tolist(),
        "codecs": {name: _codec([row["codecs"][name] for row in rows], ks) for name in rows[0]["codecs"]},
    }


def _codec(rows: Sequence[Row], ks: Sequence[int]) -> dict[str, Any]:
    ratios = [row["ratio"] for row in rows]
    found: dict[str, Any] = {
        "ratio": {"mean": fmean(ratios), "worst": min(ratios), "best": max(ratios), "median": quantile(ratios, 0.5)},
        "ratio_of_all_bytes": 1 / fmean(1 / ratio for ratio in ratios),
        "ratios": sorted(ratios),
        "cosine": {k: fmean(row["cosine"][k] for row in rows) for k in ks},
        "least_cosine": min(row["least"] for row in rows),
        "encode_ms": 1000 * quantile([row["encode_s"] for row in rows], 0.5),
        "decode_ms": 1000 * quantile([row["decode_s"] for row in rows], 0.5),
    }
    if "extra" in rows[0]:
        ratios = [row["frame_ratio"] for row in rows]
        found["frame_ratio"] = {"mean": fmean(ratios), "worst": min(ratios), "best": max(ratios)}
        found["redundant"] = {k: fmean(row["redundant"][k] for row in rows) for k in ks}
        found["repeated"] = {k: fmean(row["repeated"][k] for row in rows) for k in ks}
        found["extra"] = {k: fmean(row["extra"][k] for row in rows) for k in ks}
        found["extras"] = {k: sorted(row["extra"][k] for row in rows) for k in ks}
        found["base"] = {k: sum(row["base"] == k for row in rows) for k in ks}
    return found


def report(figures: Mapping[str, Any]) -> str:
    """Return the tables as Markdown."""
    caps = [[row["frames"], *(f"{row[name]:.2f}" for name in ("independent", "freenoise", "highest_cosine"))]
            for row in figures["arithmetic"]]  # fmt: skip
    parts = [table(["frames", "highest ratio, independent noise", "with FreeNoise", "highest cosine of noises"], caps)]
    for one in figures["lengths"]:
        ks = one["ks"]
        parts.append(f"{one['clips']} clips of {one['frames']} frames, states after {', '.join(map(str, ks))}")
        rows = [
            [
                name, *(f"{codec['ratio'][which]:.2f}" for which in ("mean", "worst", "best")),
                *(f"{codec['cosine'][k]:.4f}" for k in ks), f"{codec['least_cosine']:.4f}",
                f"{codec['encode_ms']:.1f}", f"{codec['decode_ms']:.1f}",
            ]
            for name, codec in one["codecs"].items()
        ]  # fmt: skip
        heads = ["codec", "ratio", "worst", "best", *(f"cosine K = {k}" for k in ks), "least", "encode ms", "decode ms"]
        parts.append(table(heads, rows))
        keyed = {name: codec for name, codec in one["codecs"].items() if "extra" in codec}
        rows = [
            [name, *(f"{codec[of][k]:.2f}" for of in ("redundant", "extra") for k in ks)]
            for name, codec in keyed.items()
        ]
        parts.append(table(["key frames", *(f"{of} K = {k}" for of in ("redundant", "extra") for k in ks)], rows))
        similar = zip(ks, one["difference_similarity"], strict=True)
        rows = [[k, *(f"{value:.3f}" for value in line)] for k, line in similar]
        parts.append(table(["similarity of differences, K", *map(str, ks)], rows))
    if figures["quality"]:
        parts.append(_quality(figures["quality"]))
    return "\n\n".join(parts)


def _quality(rows: Sequence[Row]) -> str:
    lines = []
    for row in rows:
        of = {**row["of_fp16"], "attributes": row["attributes_of_fp16"]}
        values = [f"{of[name]['value']:.3f}" if of[name] else "–" for name in SHOWN]
        broken = "; ".join(row["broken"]) or "none"
        lines.append([row["k"], row["codec"], row["pairs"], f"{row['ratio']:.1f}", *values, broken])
    return table(["K", "codec", "pairs", "ratio", *(f"{name} (fp16)" for name in SHOWN), "broken bounds"], lines)
