"""Small runs of the attacks in bench/probing: across private entries and across tenants an attacker is no better than
chance, and where entries are shared, the same attacker succeeds."""

from __future__ import annotations

import random
from collections.abc import AsyncIterator
from math import comb

import pytest
import pytest_asyncio

from bench.probing.arena import CASES, Arena, Case
from bench.probing.attacks import covert_channel, membership, planted_content
from bench.probing.guessing import Rate, wilson
from shared.domain.identity import Role
from tests.attacks.conftest import Guarded

pytestmark = pytest.mark.asyncio(loop_scope="session")

UNLUCKY = 1e-4
"""Probability that an attacker who only guesses fails a test."""


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def place(guarded: Guarded) -> AsyncIterator[Arena]:
    await guarded.issue("prober", "acme", [Role.USER, Role.PUBLISHER])
    await guarded.issue("probing-rival", "rival", [Role.USER, Role.PUBLISHER])
    names = {"victim": "alice", "colleague": "prober", "bystander": "prober", "stranger": "probing-rival"}
    clients = {role: guarded.client(name) for role, name in names.items()}
    found = Arena(clients, guarded.house.process.context.channel("cache_maintainer"))
    await found.purge()
    yield found
    for client in clients.values():
        await client.close()


def most_by_chance(guesses: int, chance: float) -> int:
    """Return the successes that blind guesses exceed with a probability below UNLUCKY (binomial, exact)."""
    left, most = 1.0, -1
    while left >= UNLUCKY:
        most += 1
        left -= comb(guesses, most) * chance**most * (1 - chance) ** (guesses - most)
    return most


def check(case: Case, rate: Rate) -> None:
    if case.shared:
        assert wilson(rate.right, rate.guesses)[0] > rate.chance + 0.1, "the attack does not work even where it may"
    else:
        assert rate.right <= most_by_chance(rate.guesses, rate.chance)


@pytest.mark.parametrize("case", CASES, ids=[case.name for case in CASES])
async def test_a_covert_channel_ends_at_the_borders_of_the_cache(place: Arena, case: Case) -> None:
    check(case, await covert_channel(place, case, 40, random.Random(1)))


@pytest.mark.parametrize("case", CASES[::2], ids=[case.name for case in CASES[::2]])
async def test_a_planted_image_does_not_tell_what_a_colleague_keeps_private(place: Arena, case: Case) -> None:
    """Four of five guesses were right: plans named the private images that had started from the planted one."""
    check(case, await membership(place, case, 40 if case.shared else 140, random.Random(2)))


@pytest.mark.parametrize("case", CASES[1::2], ids=[case.name for case in CASES[1::2]])
async def test_a_planted_image_starts_nothing_of_another_tenant(place: Arena, case: Case) -> None:
    check(case, await planted_content(place, case, 100, random.Random(4)))
