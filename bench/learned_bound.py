"""Coverage and savings of the learned bound on held-out pairs, and the time of its decisions.

    afterimage profile --steps 50,10,5 --k 10,20,25,30,35,40,45 --pairs 400 --further 120 --out out/profile
    python -m bench.learned_bound --profile out/profile

Beside it: an oracle that knows each kind's last safe K, the same method on the similarity alone, and the K table. The
rows of several profiles of the same models count together; a profile with few T is cheap (--reference-steps 50).
"""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from bench.measuring.recording import command_line, machine, quantile, record, share, table
from services.cli.profiles.learned import learned_table
from services.cli.profiles.learning import data_of, similarities_by, similarities_like, too_few
from services.cli.profiles.pairs import scene_pairs
from services.embedder.encoder import Encoder, encoder_folder
from services.retriever.bounds import LATENT, Near
from services.retriever.learned import LearnedBound
from shared.models.learned_table import LearnedTable, learned_to_json

CANDIDATES = 64


def read_profile(folder: Path) -> tuple[dict[str, Any], dict[int, list[dict[str, Any]]]]:
    """Return (first line of rows.jsonl, T → records) of a folder that `afterimage profile` wrote."""
    found, abouts = {}, []
    for path in (folder / "rows.jsonl", *sorted(folder.glob("T*/rows.jsonl"))):
        first, *lines = path.read_text(encoding="utf-8").splitlines()
        abouts.append(json.loads(first))
        found[abouts[-1]["steps"]] = [json.loads(line) for line in lines if line.endswith("}")]
    return abouts[0], found


def decision_ms(bound: LearnedTable, steps: Sequence[int], rounds: int = 200) -> list[float]:
    """Return the milliseconds of processor time of each round: CANDIDATES candidates of one request at every T."""
    pairs, taken = list(scene_pairs(CANDIDATES + rounds, 1)), []
    for number in range(rounds):
        after, rng = pairs[CANDIDATES + number].after_text, np.random.default_rng(number)
        near = [Near(LATENT, float(rng.uniform(-0.2, 1)), "edit", one.before_text, after) for one in pairs[:CANDIDATES]]
        decide = LearnedBound(bound)
        start = time.thread_time()
        for of in steps:
            decide.latest(near, of)
        taken.append(1000 * (time.thread_time() - start))
    return taken


def rows_of(report: Mapping[str, Any]) -> list[list[Any]]:
    """Return the lines of the table on the terminal."""
    rows: list[list[Any]] = []
    for steps, of in report["steps"].items():
        rows.append([steps, "oracle", of["pairs"], share(of["oracle"]["coverage"]), share(of["oracle"]["saved"]), "–"])
        for name, one in of["methods"].items():
            figures = (share(one[figure], 1) for figure in ("coverage", "saved", "of_oracle"))
            rows.append([steps, name, of["pairs"], *figures])
    return rows


def main(given: Sequence[str] | None = None) -> None:
    parser = command_line(__doc__)
    parser.add_argument("--profile", type=Path, nargs="+", required=True, help="folders of `afterimage profile`")
    parser.add_argument("--encoder", default="bundled:clip")
    parser.add_argument("--write", type=Path, help="file for the fitted bound")
    asked = parser.parse_args(given)
    on, read = machine(), [read_profile(folder) for folder in asked.profile]
    about, data = read[0][0], data_of([records for _, records in read], borrow=not read[0][0].get("unprompted"))
    if few := too_few(data):
        raise SystemExit(f"no learned bound: {few}")
    encoder = Encoder(encoder_folder(asked.encoder))
    similarities = similarities_like(data) if "images_from" in about else similarities_by(encoder)
    bound = learned_table(data, about, about.get("reference_steps", about["steps"]), similarities)
    if asked.write:
        asked.write.write_text(json.dumps(learned_to_json(bound), separators=(",", ":")) + "\n", encoding="utf-8")
    print(table(["T", "method", "pairs", "coverage", "steps saved", "of the oracle's"], rows_of(bound.report)))
    times = {str(len(steps)): decision_ms(bound, steps) for steps in {(50,), tuple(bound.levels)}}
    quantiles = {name: {f"p{p}": quantile(values, p / 100) for p in (50, 99)} for name, values in times.items()}
    print(f"milliseconds for {CANDIDATES} candidates, by the number of T: {quantiles}")
    figures = {"held_out": bound.report, "decision_ms": {"candidates": CANDIDATES, "by_number_of_t": quantiles}}
    settings = {
        "model": about["model"],
        "weights_hash": about["weights_hash"],
        "images_from": about.get("images_from", ""),
        "seeds": [first["seed"] for first, _ in read],
        "pairs": len(data.near),
        "bytes": len(json.dumps(learned_to_json(bound), separators=(",", ":"))),
    }
    images = f"_from_{about['images_from']}" if "images_from" in about else ""
    record(f"learned_bound_{about['model']}{images}", figures, settings, on=on, folder=asked.out)


if __name__ == "__main__":
    main()
