"""Run a whole replay on real models: serve each policy in turn, and return one summary."""

from __future__ import annotations

import asyncio
import gc
import statistics
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from services.cache_maintainer.pictures import pictures_start
from services.embedder.encoder import Encoder, encoder_folder
from services.replay.policy import PolicySettings
from services.replay.real.figures import NOT_HERE, against_none, real_figures, run_of
from services.replay.real.kept import Kept
from services.replay.real.model import as_generated, generating_card, state_bytes_of, table_in_force
from services.replay.real.scores import clip_scores
from services.replay.real.serving import Start, serve
from services.replay.real.settings import ServedPolicy, refuse, stand_for
from services.replay.real.sitting import Load, Sitting
from services.replay.results.compare import OF_REQUESTS
from services.replay.results.real_page import shown
from services.replay.run import STEPS
from services.replay.simulated.thresholds import k_table
from services.replay.study import (
    Asked,
    about_steps,
    about_table,
    about_trace,
    of_requests,
    trace_of,
    warmup_of,
    where_and_when,
)
from shared.domain.errors import ConfigurationError
from shared.models.k_table import NoProfiles, named_table
from shared.runtime.loop import run
from shared.runtime.progress import Bar
from shared.runtime.settings import Settings

AS_NAMED = "The named table is used, even if it was measured with another model or encoder."


@dataclass(frozen=True)
class Real:
    """Settings of a replay on real models."""

    base: Settings
    """Models, device and batching; each policy adds its own settings."""
    start: Start
    out: Path
    one_at_a_time: bool = False
    steps: int = 0
    """T of every request; 0: 50, or the trace's own."""


@dataclass(frozen=True)
class Made:
    """Result of a replay on real models."""

    summary: dict[str, Any]
    decisions: dict[str, npt.NDArray[Any]]
    """Arrays of decisions.npz."""
    left: Sequence[str]
    """Policies, with their budgets, that an interrupted replay did not finish."""


@dataclass
class _Served:
    """Policies served so far."""

    sittings: dict[tuple[int, str], Sitting] = field(default_factory=dict)
    """Runs by (budget in states, policy)."""
    pictures: dict[str, Path] = field(default_factory=dict)
    """Folder of the images of each policy at the first budget."""
    taken_over: list[dict[str, Any]] = field(default_factory=list)
    """Policies at budgets that an earlier run had finished."""


def real_study(asked: Asked, real: Real, bar: Bar) -> Made:
    """Serve every policy that is not finished on disk; after Ctrl-C return the finished policies and name the others.

    Raises ConfigurationError, ModelError and InvalidRequestError for policies and traces that cannot be served, before
    the first image.
    """
    bar(f"preparing: the trace {asked.trace.name}", None)
    offered, arrivals = trace_of(asked)
    refuse(asked.policies, real.base, offered.frames)
    card = generating_card(real.base, offered.frames)
    encoder = Encoder(encoder_folder(real.base.encoder))
    _pictures_can_start(asked, real.base, encoder)
    trace = as_generated(offered, asked, real.base, card, real.steps)
    table, thresholds = k_table(asked.table, asked.encoder, asked.alpha) if asked.table else (None, "")
    pairs = k_table(asked.pair_table, asked.encoder, asked.alpha)[0] if asked.pair_table else table
    load = Load(trace, warmup_of(asked, trace), card, STEPS, asked.seed, real.one_at_a_time, table, pairs)
    served, left = _Served(), [(states, name) for states in asked.states for name, _ in asked.policies]
    with suppress(KeyboardInterrupt):
        for states, (name, policy) in ((states, one) for states in asked.states for one in asked.policies):
            stand = stand_for(name, policy, real.base, states * state_bytes_of(card), trace.frames)
            kept = Kept(real.out, name, load, stand, encoder.hash)
            if (found := None if asked.anew else kept.found()) is not None:
                served.sittings[states, name] = found
                served.taken_over.append({"policy": name, "states": states})
            else:
                served.sittings[states, name] = _sitting(name, load, stand, kept, real.start, encoder, bar)
            served.pictures.setdefault(name, kept.pictures)
            left.remove((states, name))
    if not served.sittings:
        raise KeyboardInterrupt
    in_force = named_table(table) if table else table_in_force(real.base, card, encoder, asked.alpha)
    said = {
        "trace": about_trace(asked, offered, load.warmup, _in_turn(arrivals) if real.one_at_a_time else arrivals),
        "encoder": {"name": real.base.encoder, "hash": encoder.hash, "dim": encoder.dim},
        "thresholds": f"{thresholds} {AS_NAMED}"
        if table
        else f"Thresholds: {in_force.source}, the services' table for {card.name}.",
        "table": about_table(in_force),
    }
    return _made(asked, real, load, served, said, [f"{name} ({states:,} states)" for states, name in left])


def _in_turn(arrivals: str) -> str:
    return f"one at a time, each after the previous request's states are indexed; the cache's clock shows {arrivals}"


def _pictures_can_start(asked: Asked, base: Settings, encoder: Encoder) -> None:
    """Raise ConfigurationError if a policy starts from images and the services have no table for such starts."""
    named = [name for name, policy in asked.policies if policy.reuses == "refine"]
    if not named or asyncio.run(pictures_start(NoProfiles(), base, encoder.id)):
        return
    raise ConfigurationError(
        f"policy {named[0]!r}: cannot be served on real models: no table for starts from finished images beside the "
        f"weights of {base.large} or of `small`; measure one with `afterimage profile --images-from`"
    )


def _sitting(
    name: str, load: Load, stand: ServedPolicy, kept: Kept, start: Start, encoder: Encoder, bar: Bar
) -> Sitting:
    """Serve one policy, score its images, and write the result to disk."""
    bar(f"{name}: starting its services", None)
    advance = bar(name, len(load.trace))
    kept.begin()
    sitting = run(serve(load, stand, start, kept.keep, advance))
    gc.collect()  # frees the models before the next policy loads its own
    prompts = {one.request: load.trace.prompts[one.request] for one in sitting.answers if not one.error}
    advance = bar(f"{name}: scores", len(prompts))
    return kept.done(sitting, clip_scores(prompts, kept, load.trace.frames, encoder, advance))


def _made(asked: Asked, real: Real, load: Load, served: _Served, said: Mapping[str, Any], left: Sequence[str]) -> Made:
    """Return summary and decisions; the summary's `policies` are those of the first budget."""
    each, policy_of = state_bytes_of(load.card), dict(asked.policies)
    alone_s, step_s = (
        statistics.median(getattr(one, name) for one in served.sittings.values()) for name in ("alone_s", "step_s")
    )
    each_alone_s = alone_s + step_s * (load.trace.asked(load.steps) - load.usual_steps)
    budgets: list[dict[str, Any]] = []
    for states in asked.states:
        sittings = {name: served.sittings[states, name] for name in policy_of if (states, name) in served.sittings}
        if budgets and len(sittings) < len(policy_of):
            break  # plots over budgets need every policy at every budget
        policies = {
            name: real_figures(run_of(name, policy_of[name].title, states * each, one), one, load, each_alone_s)
            for name, one in sittings.items()
        }
        _compare_with_none(policies, sittings, policy_of, load)
        budgets.append(
            {"states": states, "of": "states", "max_bytes": states * each, "bound": None, "policies": policies}
        )
    decisions = _decisions(load, budgets, served)
    summary = {
        "policies": budgets[0]["policies"],
        **said,
        "budgets": budgets,
        "settings": _settings(asked, real, load, alone_s),
        "not_here": NOT_HERE,
        "left": list(left),
        "pictures": {name: str(folder.relative_to(real.out)) for name, folder in served.pictures.items()},
        "shown": _shown(load, decisions),
        "taken_over": served.taken_over,
        "timings": None,
        **where_and_when(),
    }
    return Made(summary, decisions, left)


def _shown(load: Load, decisions: Mapping[str, npt.NDArray[Any]]) -> list[dict[str, Any]]:
    """Return the requests for the page's sheet of images."""
    starts = {key: starts for key, starts in decisions.items() if key not in OF_REQUESTS}
    requests = [load.warmup + row for row in shown(starts)]
    return [{"request": request, "prompt": load.trace.prompts[request]} for request in requests]


def _compare_with_none(
    policies: dict[str, dict[str, Any]],
    sittings: Mapping[str, Sitting],
    of: Mapping[str, PolicySettings],
    load: Load,
) -> None:
    """Compare CLIP scores with the policy without a cache, if one was served."""
    plain = next((name for name in sittings if of[name].lookup == "none"), None)
    if plain is None:
        return
    others = {name: one for name, one in sittings.items() if name != plain}
    for name, differs in against_none(others, sittings[plain], load).items():
        policies[name]["real"]["clip_against"] = {"policy": plain, **differs}


def _decisions(load: Load, budgets: Sequence[Mapping[str, Any]], served: _Served) -> dict[str, npt.NDArray[Any]]:
    kept = {
        f"{budget['states']}/{name}": np.array(
            [one.start_step for one in served.sittings[budget["states"], name].answers[load.warmup :]], np.int16
        )
        for budget in budgets
        for name in budget["policies"]
    }
    return of_requests(load.trace, load.warmup) | kept


def _settings(asked: Asked, real: Real, load: Load, alone_s: float) -> dict[str, Any]:
    base, card = real.base, load.card
    return {
        "policies": {name: policy.model_dump(mode="json") for name, policy in asked.policies},
        "sizes_honoured": asked.honour_sizes,
        **(about_steps(asked) | ({"steps": real.steps} if real.steps else {})),
        "skip": asked.skip,
        "limit": asked.limit,
        "seed": asked.seed,
        "fleet": None,
        "surrogate": None,
        "real": {
            "model": card.name,
            "weights_hash": card.weights_hash,
            "small": base.small,
            "frames": load.trace.frames,
            "guidance": card.default_guidance,
            "size": {"width": card.default_size.width, "height": card.default_size.height},
            "state_bytes": state_bytes_of(card),
            "pair_table": asked.pair_table or asked.table,
            "one_at_a_time": real.one_at_a_time,
            "workers": base.workers,
            "max_rows": base.max_rows,
            "device": base.device,
            "torch_threads": base.torch_threads,
            "alone_s": alone_s,
            "alone_steps": load.usual_steps,
        },
    }
