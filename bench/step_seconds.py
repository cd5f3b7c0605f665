"""Relative error of three predictors of a step's seconds, on random mixes of sizes (PatchedServe §6.1.2).

    python -m bench.step_seconds
    python -m bench.step_seconds --mixes 10 --out out/quick    # does the command work?

Each mix runs through the engine; its seconds are the median of three steps. On one thread they are seconds of processor
time, which other work on the machine disturbs less. A fifth of the mixes is held out of every
fit. `afterimage profile --mixes` fits the same support vector regression. The cold start is the line through the
shipped `latency.json`, and the corrected line is the cold start after the steps of the other four fifths.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from bench.measuring.quiet import quiet
from bench.measuring.recording import command_line, machine, quantile, record, settings_of, table

Predict = Callable[[Any], float]
CALLS = 200


def main(arguments: Sequence[str] | None = None) -> None:
    parser = command_line(__doc__)
    parser.add_argument("--model", default="bundled:large")
    parser.add_argument("--mixes", type=int, default=300, help="random mixes")
    parser.add_argument("--rows", type=int, default=8, help="most requests of a mix")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--layout", choices=("groups", "patches", "packed"), default="groups")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args(arguments)
    quiet()
    figures, on = measure(options)
    rows = [
        [name, f"{one['p50']:.1%}", f"{one['p95']:.1%}", one["mse_ms2"], one["predict_us"]]
        for name, one in figures["predictors"].items()
    ]
    print(table(["predictor", "relative error p50", "p95", "MSE ms²", "one prediction, µs"], rows))
    name = "step_seconds" if options.layout == "groups" else f"step_seconds_{options.layout}"
    record(name, figures, settings_of(options), on=on, folder=options.out)


def measure(options: argparse.Namespace) -> tuple[dict[str, Any], dict[str, Any]]:
    import torch

    from services.cli.profiles.mixes import fit, measure_mixes, split
    from services.gpu_worker.families import load_family
    from services.gpu_worker.models.measuring import warm_up
    from shared.models import find_card

    torch.set_num_threads(options.threads)
    on = machine()
    family = load_family(find_card(options.model), device="cpu", layout=options.layout)
    warm_up(family)
    clock = time.process_time if options.threads == 1 else time.monotonic
    with torch.inference_mode():
        measured = list(measure_mixes(family, options.mixes, options.rows, options.seed, clock))
    trained, held_out = split(measured, options.seed)
    regression = fit(measured, options.layout, options.seed)
    predictors = _baselines(trained) | _lines(family, trained, options.layout)
    line = predictors["line of the card, corrected"]
    predictors["support vectors, exported"] = lambda mix: regression.seconds(mix) or line(mix)
    found = {name: _judged(predict, held_out) for name, predict in predictors.items()}
    seconds = [one for _, one in measured]
    figures = {
        "predictors": found,
        "held_out": len(held_out),
        "step_s": {"least": min(seconds), "median": quantile(seconds, 0.5), "most": max(seconds)},
        "support_vectors": len(regression.weights),
    }
    return figures, on


def _judged(predict: Predict, held_out: Sequence[tuple[Any, float]]) -> Mapping[str, float]:
    mixes, seconds = [mix for mix, _ in held_out], np.array([one for _, one in held_out])
    predicted = np.array([predict(mix) for mix in mixes])
    errors = (np.abs(predicted - seconds) / seconds).tolist()
    begun = time.perf_counter()
    for number in range(CALLS):
        predict(mixes[number % len(mixes)])
    return {
        "p50": quantile(errors, 0.5),
        "p95": quantile(errors, 0.95),
        "mse_ms2": float(np.mean(np.square(1000 * (predicted - seconds)))),
        "predict_us": 1e6 * (time.perf_counter() - begun) / CALLS,
    }


def _baselines(trained: Sequence[tuple[Any, float]]) -> dict[str, Predict]:
    """Return linear regression of seconds, and gradient boosting of their logarithm, on the same features."""
    from sklearn.ensemble import GradientBoostingRegressor
    from sklearn.linear_model import LinearRegression

    from services.cli.profiles.mixes import resolutions_of
    from shared.models.step_regression import features

    resolutions = resolutions_of(trained)
    inputs, seconds = np.array([features(mix, resolutions) for mix, _ in trained]), [one for _, one in trained]
    linear = LinearRegression().fit(inputs, seconds)
    boosted = GradientBoostingRegressor(random_state=0).fit(inputs, np.log(seconds))
    return {
        "linear": lambda mix: float(linear.predict([features(mix, resolutions)])[0]),
        "gradient boosting": lambda mix: float(np.exp(boosted.predict([features(mix, resolutions)])[0])),
    }


def _lines(family: Any, trained: Sequence[tuple[Any, float]], layout: str) -> dict[str, Predict]:
    """Return the worker's prediction without a regression: from the card alone, and after the steps of `trained`.

    The corrected one never saw a held-out mix, so it predicts by line and correction."""
    from services.gpu_worker.engine.step_seconds import StepSeconds
    from shared.models.standalone import line_of, read_shipped

    line = line_of(family.card, read_shipped(family.card))
    cold, corrected = (StepSeconds(line, together=layout != "groups") for _ in range(2))
    for mix, seconds in trained:
        corrected.took(mix, seconds)
    return {"line of the card, cold": cold.of, "line of the card, corrected": corrected.of}


if __name__ == "__main__":
    main()
