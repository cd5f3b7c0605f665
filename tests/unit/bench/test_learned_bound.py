"""The bench reads the rows of profiles, fits the bound, and records held-out figures and times."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from bench.learned_bound import main, read_profile
from services.cli.profiles import learned as fitting
from services.cli.profiles.pairs import changed, scene_pairs
from shared.models.learned_table import read_learned


def write_profile(folder: Path, pairs: int, seed: int) -> None:
    """Rows of a model that loses half of the contrast after K = 1 of 2, where the light changes."""
    folder.mkdir()
    noise = {"contrast": 50.0, "saturation": 50.0, "sharpness": 5.0, "likeness": 0.0}
    about = {"model": "m", "weights_hash": "w", "encoder_hash": "e", "codec": "fp16", "steps": 50, "seed": seed}
    lines = [about]
    for pair in scene_pairs(pairs, seed):
        for k in (20, 40):
            lost = 0.5 if pair.kind in ("light", "unrelated") and k == 40 else 0.0
            lines.append(
                {
                    "pair": pair.number, "kind": pair.kind, "k": k, "prompts": [pair.before_text, pair.after_text],
                    "changed": list(changed(pair)), "similarity": 0.9, "right": {"object": True},
                    "right_from_noise": {"object": True}, "asked_for": [], "score": 0.3, "score_from_noise": 0.3,
                    "measures": noise | {"contrast": 50.0 * (1 - lost)}, "measures_from_noise": noise,
                }
            )  # fmt: skip
            lines[-1]["right"] = lines[-1]["right_from_noise"] = dict.fromkeys(changed(pair), True)
    (folder / "rows.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines) + '{"pair": 1, "k"')


def test_profiles_are_fitted_together_and_recorded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fitting, "TEXT_PAIRS", 200)
    folders = [tmp_path / "one", tmp_path / "two"]
    for seed, folder in enumerate(folders):
        write_profile(folder, 80, seed)
    assert len(read_profile(folders[0])[1][50]) == 160  # the line that a kill cut off is left out
    written = tmp_path / "learned_bound.json"
    main(["--profile", *map(str, folders), "--out", str(tmp_path), "--write", str(written)])
    recorded = json.loads((tmp_path / "learned_bound_m.json").read_text())
    figures = recorded["figures"]
    assert recorded["settings"]["pairs"] == 160
    assert figures["held_out"]["steps"]["50"]["kinds"]["light"]["kept_up_to"] == 20
    assert set(figures["held_out"]["steps"]["50"]["methods"]) == {"learned", "similarity alone", "K table"}
    assert figures["decision_ms"]["by_number_of_t"]["1"]["p50"] > 0
    assert read_learned(written).levels[50].ks[-1] == 40


def test_too_few_pairs_fit_nothing(tmp_path: Path) -> None:
    write_profile(tmp_path / "few", 20, 0)
    with pytest.raises(SystemExit, match="needs 100 pairs"):
        main(["--profile", str(tmp_path / "few"), "--out", str(tmp_path)])
