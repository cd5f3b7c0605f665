"""Extractors of object and background: token F1 on labelled prompts, exact answers on captions, milliseconds.

    python -m bench.extraction --data vidprom_40k.parquet
    python -m bench.extraction --data vidprom_40k.parquet --extractors SmolLM2-135M-Instruct.Q4_1.gguf --rows 40

labels.json has the rows and the borders of 150 prompts, marked by hand before any extractor was written or trained;
labels_later.json those of 50 prompts, marked when the grammar was finished. The texts are not part of the project;
`--data` names the file that has them in its column `prompt`. Without the file only the captions count. A named
extractor is a value of the setting `extractor`; `split` splits at prepositions.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from bench.extraction.scoring import LABELS, LATER, Split, captions, exact, judged, labelled
from bench.measuring.quiet import quiet
from bench.measuring.recording import command_line, machine, record, settings_of, table
from services.text_extractor.choice import open_extractor
from shared.runtime.settings import Settings

SHOWN = (
    "rows",
    "object_f1",
    "background_f1",
    "sure",
    "object_f1_sure",
    "background_f1_sure",
    "p50_ms",
    "processor_p99_ms",
)


def prompts_of(data: Path | None) -> list[str]:
    """Return the column of prompts; none without the file."""
    if data is None:
        return []
    from pyarrow.parquet import read_table

    found: list[str] = read_table(data, columns=["prompt"])["prompt"].to_pylist()
    return found


def command(given: Sequence[str] | None) -> str:
    """Return the command with the names of files alone: their folders belong to a machine."""
    words = [Path(word).name if "/" in word and not word.startswith("http") else word for word in given or sys.argv[1:]]
    return " ".join(["python -m bench.extraction", *words])


def main(given: Sequence[str] | None = None) -> None:
    parser = command_line(__doc__)
    parser.add_argument("--data", type=Path, help="file with the column `prompt`")
    parser.add_argument("--extractors", nargs="+", default=["split", "grammar"])
    parser.add_argument("--rows", type=int, default=150, help="labelled prompts of each file, from the first")
    parser.add_argument("--captions", type=int, default=2000, help="captions of the scenes' grammar")
    parser.add_argument("--seed", type=int, default=4, help="seed of the captions")
    parser.add_argument("--name", default="extraction", help="name of the results' file")
    asked = parser.parse_args(given)
    quiet()
    on, prompts, figures = machine(), prompts_of(asked.data), dict[str, dict[str, Any]]()
    sets = {one.stem: labelled(prompts, one)[: asked.rows] for one in (LABELS, LATER) if prompts}
    texts = {"all": list(captions(asked.captions, asked.seed))}
    texts["held_out"] = list(captions(asked.captions, asked.seed, untrained=True))
    for name in asked.extractors:
        extractor = Split() if name == "split" else open_extractor(Settings(extractor=name))
        extractor.extract(["a warm fox in the snow"])
        figure = {kind: judged(extractor, rows) for kind, rows in sets.items()}
        figures[Path(name).name] = {
            "id": extractor.id, **figure, "captions": {kind: exact(extractor, those) for kind, those in texts.items()}
        }  # fmt: skip
        print(table(["extractor", "labels", *SHOWN], [
            [one, kind, *(found[kind][key] for key in SHOWN)] for one, found in figures.items() for kind in sets
        ]))  # fmt: skip
        print({one: found["captions"] for one, found in figures.items()}, flush=True)
    settings = settings_of(asked) | {"extractors": list(figures)}
    record(asked.name, figures, settings, on=on, folder=asked.out, command=command(given))


if __name__ == "__main__":
    main()
