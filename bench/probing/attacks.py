"""The attacks: each function says what the attacker may do, what it learns, what counts as success, and what chance is.

All send ordinary requests with keys of their own. The covert channel, stolen prompts and planted logos are those of
Sun, Jie and Liu, "Attacks on Approximate Caches in Text-to-Image Diffusion Models" (arXiv 2508.20424).
"""

from __future__ import annotations

import math
import random
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import asdict, replace
from statistics import fmean, median
from typing import Any

from bench.probing.arena import STEPS, Arena, Case, in_flight
from bench.probing.guessing import Features, Rate, Trial, calibration, guessed, nearest_of_others, observed
from shared.domain.types import PlanSource
from shared.models.scenes import ATTRIBUTES, VALUES, Scene, caption, known_words, random_scene

ROUND = 100
"""Attempts between two purges, so that an attack is about its own entries and not about a full cache."""
EDITS_OF = 10
"""Victims' prompts around one scene of which the attacker planted an image."""
SALAD = 7
"""Words of an agreed prompt of the covert channel."""
STOLEN = ("background", "style", "light", "colour")
"""Attributes of a victim's prompt that the attacker is after; the object is known."""
PROBE: dict[str, Any] = {"variation": "same", "savings": 1.0}
"""Fields of a probe: no rule of variety refuses an entry, and a predicted miss is searched all the same."""
LOGO = "crown"
"""The rare object in planted images."""
WORDED = 5
"""Wordings in which victims send a popular prompt."""
WARM = 30
"""Requests of two users of the victim's tenant before images are planted: `root_share` lets a root start one image in
twenty."""
STAGES = ("embed_s", "predict_s", "plan_s", "accept_s", "queue_s", "fetch_s", "encode_s", "denoise_s", "total_s")
"""Seconds of an answer that the attacker reads."""
SEED, PLANS = 7, 9
"""The seed that a victim and the attacker name, and the plans of each prompt that the attacker times."""
PATIENT_AT_ONCE = 2
"""Requests in flight while times are measured."""


async def covert_channel(arena: Arena, case: Case, count: int, draw: random.Random) -> Rate:
    """Sender and receiver, who may not talk, agreed on prompts of rare words. The sender generates the prompt for a 1
    and nothing for a 0. The receiver plans the same prompt and guesses the bit from all that the plan shows.
    Chance: 50 %."""
    words = known_words()

    async def one_round() -> list[Trial]:
        prompts = [" ".join(draw.sample(words, SALAD)) for _ in range(ROUND)]
        bits = _bits(draw)
        await _victims(arena, case, prompts, bits, variation="same")
        plans = await arena.plan(case.attacker, prompts, variation="same")
        return [Trial(observed(view), bit) for view, bit in zip(plans, bits, strict=True)]

    return await _rate(arena, count, one_round)


async def membership(arena: Arena, case: Case, count: int, draw: random.Random) -> Rate:
    """The attacker guesses whether the victim sent a prompt. Before, it plants images of similar prompts under another
    label, for the victim's images to start from. After, it plans the prompt under both rules of variety, and reads
    what the plans say about its own entries and others'. Chance: 50 %."""
    planted_as: Any = {"scope": case.scope if case.scope == "public" else "tenant", "user": "planter"}
    await _fill(arena, draw)

    async def one_round() -> list[Trial]:
        scenes = [random_scene(draw) for _ in range(ROUND // EDITS_OF)]
        prompts = [caption(_variant(scene, draw)) for scene in scenes for _ in range(EDITS_OF)]
        bits = _bits(draw)
        await arena.generate(case.attacker, [caption(scene) for scene in scenes], cache="write", **planted_as)
        await _bystanders(arena, case, [_variant(scene, draw) for scene in scenes])
        await arena.settled()
        await _victims(arena, case, prompts, bits)
        seen = [
            [observed(view, f"{variation} ") for view in await arena.plan(case.attacker, prompts, **probe)]
            for variation, probe in (
                ("same", {"variation": "same", "user": "prober"}),
                ("auto", {"user": "prober"}),
            )
        ]
        return [Trial({**one, **two}, bit) for one, two, bit in zip(*seen, bits, strict=True)]

    return await _rate(arena, count, one_round)


async def timing(arena: Arena, case: Case, count: int, draw: random.Random) -> Rate:
    """Test membership from times alone: the attacker generates the prompt without writing to the cache, and measures
    how long the call took. The stages' seconds that the answer states count, too. Chance: 50 %."""
    client = arena.clients[case.attacker]

    async def timed(prompt: str) -> Features:
        begun = time.perf_counter()
        made = await client.generate(prompt, steps=20, cache="read", variation="same")
        took_s = time.perf_counter() - begun
        return {"seconds": took_s} | {name: value for name, value in asdict(made.timings).items() if name in STAGES}

    async def one_round() -> list[Trial]:
        prompts, bits = [caption(random_scene(draw)) for _ in range(ROUND)], _bits(draw)
        await _victims(arena, case, prompts, bits, variation="same", steps=20)
        seen = await in_flight(timed, prompts, PATIENT_AT_ONCE)
        return [Trial(one, bit) for one, bit in zip(seen, bits, strict=True)]

    return await _rate(arena, count, one_round)


async def repeats(arena: Arena, case: Case, count: int, draw: random.Random) -> Rate:
    """The attacker knows a prompt and a seed, and plans them again and again, which is free and leaves nothing: does
    the answer take longer where somebody generated exactly that? In turn it plans a prompt that nobody sent, which
    takes the same share of the machine's drift. Chance: 50 %."""
    client = arena.clients[case.attacker]
    asked: dict[str, Any] = {"seed": SEED, "steps": STEPS, "variation": "same"}

    async def timed(prompt: str) -> Features:
        other, took_s = caption(random_scene(draw)), dict[str, list[float]]()
        for _ in range(PLANS):
            for one in (prompt, other):
                begun = time.perf_counter()
                await client.plan(one, **asked)
                took_s.setdefault(one, []).append(time.perf_counter() - begun)
        mine, others = took_s[prompt], took_s[other]
        return {
            "least": min(mine),
            "least more": min(mine) - min(others),
            "median more": median(mine) - median(others),
            "mostly longer": fmean(one > two for one, two in zip(mine, others, strict=True)),
        }

    async def one_round() -> list[Trial]:
        prompts, bits = [caption(random_scene(draw)) for _ in range(ROUND)], _bits(draw)
        await _victims(arena, case, prompts, bits, **asked)
        return [Trial(await timed(prompt), bit) for prompt, bit in zip(prompts, bits, strict=True)]

    return await _rate(arena, count, one_round)


async def prompt_stealing(arena: Arena, case: Case, count: int, draw: random.Random) -> Rate:
    """The attacker knows the object of a victim's prompt. It plans captions with each value of one attribute after the
    other, keeps the value whose nearest entry of others is most similar, and so climbs to the victim's prompt. One
    guess is one attribute of one victim. Chance: one in the number of values."""
    right, guesses = 0, 0
    while guesses < count:
        objects = VALUES["object"][: -(-(count - guesses) // len(STOLEN))]
        scenes = [replace(random_scene(draw), object=str(one)) for one in objects]
        await _bystanders(arena, case, [replace(random_scene(draw), object=str(one)) for one in objects])
        await _victims(arena, case, [caption(scene) for scene in scenes], [True] * len(scenes))
        guess = await _climbed(arena, case.attacker, [str(one) for one in objects], draw)
        hits = [
            getattr(one, name) == getattr(two, name) for one, two in zip(scenes, guess, strict=True) for name in STOLEN
        ]
        right, guesses = right + sum(hits), guesses + len(hits)
        await arena.purge()
        arena.progress(guesses / count)
    chance = sum(1 / len(VALUES[name]) for name in STOLEN) / len(STOLEN)
    return Rate(right, guesses, chance)


async def planted_content(arena: Arena, case: Case, count: int, draw: random.Random) -> Rate:
    """The attacker generates popular prompts with a logo beside their object, before the victims send the prompts
    themselves. Success is a victim's plan that starts from an image of the attacker's: the cache has no others.
    Plans are not counted by `root_share`, which further limits a root to one image in twenty. Chance: 0."""
    right, guesses = 0, 0
    await _fill(arena, draw)
    while guesses < count:
        popular = [random_scene(draw) for _ in range(ROUND // WORDED)]
        logos = [f"{caption(scene)}, a small {LOGO}" for scene in popular]
        await arena.generate(case.attacker, logos, scope=case.scope, user="planter", cache="write")
        await arena.settled()
        wordings = [caption(scene, wording) for scene in popular for wording in range(WORDED)]
        plans = await arena.plan("victim", wordings)
        right += sum(view.job.plan.source is not PlanSource.NOISE for view in plans)
        guesses += len(plans)
        await arena.purge()
        arena.progress(guesses / count)
    return Rate(right, guesses, 0.0)


async def _rate(arena: Arena, count: int, one_round: Callable[[], Awaitable[list[Trial]]]) -> Rate:
    """Make rounds of attempts until there are enough to learn from and to guess `count`; return the guesses' rate."""
    trials, wanted = list[Trial](), count + calibration(count)
    while len(trials) < wanted:
        trials += await one_round()
        await arena.purge()
        arena.progress(len(trials) / wanted)
    return guessed(trials[:wanted], count)


async def _victims(arena: Arena, case: Case, prompts: Sequence[str], bits: Sequence[bool], **fields: Any) -> None:
    """Let the victim generate the prompts whose bit is 1, and wait until the cache has them."""
    sent = [prompt for prompt, bit in zip(prompts, bits, strict=True) if bit]
    await arena.generate("victim", sent, scope=case.scope, user="home", **fields)
    await arena.settled()


async def _bystanders(arena: Arena, case: Case, scenes: Sequence[Scene]) -> None:
    """Let a third tenant send public prompts of these scenes, where the case is about public entries: without it, two
    tenants are alone with each other, and never a crowd."""
    if case.scope == "public":
        await arena.generate("bystander", [caption(scene) for scene in scenes], scope=case.scope, user="home")


async def _fill(arena: Arena, draw: random.Random) -> None:
    """Let the victim's tenant have recent images, which leave no entries."""
    await arena.generate("victim", [caption(random_scene(draw)) for _ in range(WARM)], cache="read", user="filler")
    await arena.generate("colleague", [caption(random_scene(draw)) for _ in range(WARM)], cache="read", user="filler")


async def _climbed(arena: Arena, attacker: str, objects: Sequence[str], draw: random.Random) -> list[Scene]:
    """Return the scene that the attacker takes for the victim's, for each object. Where a plan shows no entry of
    others, there is nothing to climb, and every attribute is drawn; so is what is left once a limit on near-duplicates
    refuses further plans about the object."""
    guess, left = [Scene(one) for one in objects], (arena.near_duplicates or math.inf) - 1
    first = await arena.plan(attacker, [caption(one) for one in guess], **PROBE)
    seen = [bool(nearest_of_others(view)) for view in first]
    for name in STOLEN:
        values = [value for number, value in enumerate(VALUES[name]) if number < left]
        left -= len(values)
        able = [place for place, shows in enumerate(seen) for _ in values if shows]
        asked = [_with(one, name, value) for one, shows in zip(guess, seen, strict=True) for value in values if shows]
        plans = await arena.plan(attacker, [caption(one) for one in asked], **PROBE)
        best: dict[int, tuple[float, Scene]] = {}
        for place, one, view in zip(able, asked, plans, strict=True):
            best[place] = max(best.get(place, (-1.0, one)), (nearest_of_others(view), one), key=lambda pair: pair[0])
        drawn = [_with(one, name, draw.choice(VALUES[name])) for one in guess]
        guess = [best[place][1] if place in best else one for place, one in enumerate(drawn)]
    return guess


def _variant(scene: Scene, draw: random.Random) -> Scene:
    """Return the scene with two other values, near enough that its image starts from one of the scene."""
    names = draw.sample([name for name in ATTRIBUTES if name not in ("object", "background", "colour")], 2)
    for name in names:
        scene = _with(scene, name, draw.choice(VALUES[name]))
    return scene


def _with(scene: Scene, name: str, value: str | int) -> Scene:
    changed: dict[str, Any] = {name: value}
    return replace(scene, **changed)


def _bits(draw: random.Random) -> list[bool]:
    """Return ROUND bits, half of them 1."""
    return draw.sample([True, False] * (ROUND // 2), ROUND)


ATTACKS = {
    "covert channel": covert_channel,
    "membership": membership,
    "timing": timing,
    "repeats": repeats,
    "prompt stealing": prompt_stealing,
    "planted content": planted_content,
}
