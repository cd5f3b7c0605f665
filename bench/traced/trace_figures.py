"""Figures of a replayed trace from its answers: hits, K, steps, and quality against noise."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from math import comb, sqrt
from pathlib import Path
from statistics import fmean
from typing import Any

from bench.measuring.judging import LOOKS, Verdict, accuracy
from bench.measuring.recording import quantile, table
from bench.traced.closed_loop import Drawn
from load.sessions import KINDS, Prompt

Answers = Mapping[int, Drawn]
Verdicts = Mapping[int, Verdict]
SHOWN = ("object", "background", "style", "light", "colour", "all")


_OTHERS = {"no_cache": "all steps from noise", "fewer_steps": "fewer steps"}


def figures_of(
    rows: Sequence[Prompt], answers: Mapping[str, Answers], verdicts: Mapping[str, Verdicts]
) -> dict[str, Any]:
    """Compute the figures of three runs of one trace: `cache`, `no_cache`, and `fewer_steps` (which may lack rows).

    Quality covers generated images only: an exact repeat returns a stored image and is counted apart.
    """
    cache = answers["cache"]
    hits = sorted(index for index, answer in cache.items() if answer.hit)
    drawn = [answer for answer in cache.values() if not answer.exact]
    return {
        "requests": len(cache),
        "exact_repeats": len(cache) - len(drawn),
        "hits": len(hits),
        "hit_rate": len(hits) / len(drawn),
        "hit_rate_with_exact": (len(hits) + len(cache) - len(drawn)) / len(cache),
        "k_histogram": {str(k): n for k, n in sorted(Counter(answer.start_step for answer in drawn).items())},
        **steps_saved(cache.values()),
        "degraded": sum(bool(answer.degraded) for answer in cache.values()),
        "hits_against_noise": against(hits, verdicts, "cache"),
        "fewer_steps_against_noise": against(hits, verdicts, "fewer_steps"),
        "cache_on_the_same_prompts": against(
            [index for index in hits if index in verdicts["fewer_steps"]], verdicts, "cache"
        ),
        "cache_pair_by_pair": {
            other: paired(hits, verdicts["cache"], verdicts[other]) for other in ("no_cache", "fewer_steps")
        },
        "all_drawn_against_noise": against([answer.index for answer in drawn], verdicts, "cache"),
        "by_kind": _split(hits, verdicts, lambda index: rows[index].kind_of_edit, cache),
        "by_k": _split(hits, verdicts, lambda index: str(cache[index].start_step), cache),
        "seconds_per_request": {name: seconds(of.values()) for name, of in answers.items()},
    }


def steps_saved(answers: Iterable[Drawn]) -> dict[str, float]:
    """Return the shares of requested steps that did not run, without exact repeats and with them."""
    everything = list(answers)
    drawn = [answer for answer in everything if not answer.exact]
    asked, run = sum(answer.steps for answer in drawn), sum(answer.steps_run for answer in drawn)
    return {
        "steps_asked": asked,
        "steps_run": run,
        "steps_saved": 1 - run / asked,
        "steps_saved_with_exact": 1 - run / sum(answer.steps for answer in everything),
        "steps_run_on_average": run / len(drawn),
    }


def against(indices: Sequence[int], verdicts: Mapping[str, Verdicts], phase: str) -> dict[str, Any]:
    """Return CLIP score and accuracy of `phase` on these prompts, beside the same prompts from noise with all steps."""
    common = [index for index in indices if index in verdicts[phase] and index in verdicts["no_cache"]]
    if not common:
        return {"pictures": 0}
    own = [verdicts[phase][index] for index in common]
    noise = [verdicts["no_cache"][index] for index in common]
    return {
        "pictures": len(common),
        "clip": fmean(verdict.clip for verdict in own),
        "clip_from_noise": fmean(verdict.clip for verdict in noise),
        "clip_ratio": fmean(verdict.clip for verdict in own) / fmean(verdict.clip for verdict in noise),
        "accuracy": accuracy(own),
        "accuracy_from_noise": accuracy(noise),
    }


def paired(indices: Iterable[int], ours: Verdicts, theirs: Verdicts) -> dict[str, float]:
    """Compare how often all attributes are right in `ours` and in `theirs`, on the prompts that both generated.

    Return the counts where only one is right, the shares' difference, half of its 95 % interval, and McNemar's exact
    two-sided p."""
    both = [(ours[i].right, theirs[i].right) for i in indices if i in ours and i in theirs]
    judged = [(all(one.values()), all(other.values())) for one, other in both if one and other]
    if not judged:
        return {"pictures": 0}
    count = len(judged)
    won, lost = sum(one and not other for one, other in judged), sum(other and not one for one, other in judged)
    tail = sum(comb(won + lost, k) for k in range(min(won, lost) + 1)) / 2 ** (won + lost)
    return {
        "pictures": count,
        "ours_alone": won,
        "theirs_alone": lost,
        "difference": (won - lost) / count,
        "half_interval": 1.96 * sqrt(won + lost - (won - lost) ** 2 / count) / count,
        "p": min(1.0, 2 * tail),
    }


def seconds(answers: Iterable[Drawn]) -> dict[str, float]:
    """Return mean and quantiles of the clients' wait; in a closed loop that is mostly the steps of other requests."""
    waited = [answer.seconds for answer in answers]
    return {"mean": fmean(waited), "p50": quantile(waited, 0.5), "p99": quantile(waited, 0.99)} if waited else {}


def _split(
    hits: Sequence[int], verdicts: Mapping[str, Verdicts], key: Callable[[int], str], cache: Answers
) -> dict[str, dict[str, Any]]:
    groups: dict[str, list[int]] = {}
    for index in hits:
        groups.setdefault(key(index), []).append(index)
    return {
        name: {"mean_k": fmean(cache[index].start_step for index in some), **against(some, verdicts, "cache")}
        for name, some in groups.items()
    }


def _look(look: Mapping[str, float]) -> list[str]:
    if not look["pictures"]:
        return []
    ratios = ", ".join(f"{name} {look[name]:.3f}" for name in LOOKS)
    return [f"hits, times the same prompts from noise: {ratios}; {look['less_contrast']:.1%} have less contrast", ""]


def report(figures: Mapping[str, Any]) -> str:
    """Return the figures as Markdown."""
    wall = figures["seconds"]
    lines = [
        f"{figures['requests']} requests: {figures['exact_repeats']} exact repeats, {figures['hits']} hits "
        f"({figures['hit_rate']:.1%} of the rest), {figures['degraded']} degraded",
        f"steps saved {figures['steps_saved']:.1%} ({figures['steps_saved_with_exact']:.1%} with exact repeats); "
        f"on average {figures['steps_run_on_average']:.1f} steps run",
        f"{wall['cache']:.3f} s a request with the cache, {wall['no_cache']:.3f} s without: "
        f"{figures['wall_time_saved']:.1%} saved (CPU time: {figures['cpu_time_saved']:.1%})",
        "",
        table(["K", "pictures"], list(figures["k_histogram"].items())),
        "",
        table(
            ["hits, against the same prompts from noise", "pictures", "CLIP ratio", *SHOWN],
            [
                *_quality("with the cache", figures["hits_against_noise"]),
                *_quality(f"no cache, {figures['fewer_steps']} steps", figures["fewer_steps_against_noise"]),
                *_quality("with the cache, on those prompts", figures["cache_on_the_same_prompts"], noise=False),
            ],
        ),
        "",
        *_look(figures["look_against_noise"]),
        *(_pairs(_OTHERS[name], found) for name, found in figures["cache_pair_by_pair"].items() if found["pictures"]),
        "",
        _split_table("kind of change", figures["by_kind"], KINDS),
        "",
        _split_table("K", figures["by_k"], figures["k_histogram"]),
    ]
    return "\n".join(lines)


def _pairs(other: str, found: Mapping[str, float]) -> str:
    return (
        f"all attributes, with the cache against {other}, image by image: {found['ours_alone']} to "
        f"{found['theirs_alone']} of {found['pictures']}, {found['difference']:+.3f} ± {found['half_interval']:.3f} "
        f"(95 %; by chance: p = {found['p']:.2g})"
    )


def _quality(name: str, found: Mapping[str, Any], *, noise: bool = True) -> list[list[object]]:
    if not found["pictures"]:
        return []
    own: list[object] = [name, found["pictures"], found["clip_ratio"], *_shares(found["accuracy"])]
    beside: list[object] = ["… from noise, all steps", found["pictures"], 1.0, *_shares(found["accuracy_from_noise"])]
    return [own, beside] if noise else [own]


def _shares(found: Mapping[str, float]) -> list[object]:
    return [found.get(name, "–") for name in SHOWN]


def _split_table(name: str, groups: Mapping[str, Mapping[str, Any]], order: Iterable[str]) -> str:
    rows = []
    for key in order:
        if key in groups and groups[key]["pictures"]:
            found = groups[key]
            beside = [
                f"{found['accuracy'][name]:.2f} / {found['accuracy_from_noise'][name]:.2f}"
                if found["accuracy"]
                else "–"
                for name in SHOWN
            ]
            rows.append([key, found["pictures"], found["mean_k"], found["clip_ratio"], *beside])
    return table([name, "hits", "mean K", "CLIP ratio", *(f"{shown}, hit / noise" for shown in SHOWN)], rows)


def plots(figures: Mapping[str, Any], folder: Path) -> Path:
    """Plot the number of requests by K, and quality against noise by K; return the file."""
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot

    figure, (left, right) = pyplot.subplots(1, 2, figsize=(8, 3))
    histogram = figures["k_histogram"]
    left.bar(list(histogram), list(histogram.values()), color="#4c72b0")
    left.set(xlabel="start step K of 50", ylabel="images", title="where images start")
    ks = [k for k in histogram if k in figures["by_k"]]
    right.plot(ks, [figures["by_k"][k]["clip_ratio"] for k in ks], "o-", label="CLIP ratio")
    for name in ("object", "background"):
        pairs = [(figures["by_k"][k]["accuracy"], figures["by_k"][k]["accuracy_from_noise"]) for k in ks]
        if all(own and noise and noise[name] for own, noise in pairs):
            right.plot(ks, [own[name] / noise[name] for own, noise in pairs], "s--", label=f"{name}, ratio")
    right.axhline(0.95, color="grey", linewidth=0.8)
    right.set(xlabel="start step K of 50", title="hits against the same prompts from noise", ylim=(0.5, 1.1))
    right.legend(frameon=False)
    figure.tight_layout()
    path = folder / "session_trace.png"
    figure.savefig(path, dpi=100)
    pyplot.close(figure)
    return path
