"""A colleague and another tenant read, in the plans of their own requests, what others asked for, and plant images
that others are to start from."""

from __future__ import annotations

from typing import Any, Literal

import pytest

from shared.client import AsyncClient
from shared.domain.errors import InvalidRequestError, NotFoundError, PermissionDeniedError
from shared.domain.types import Plan, PlanSource
from tests.attacks.conftest import Guarded

pytestmark = pytest.mark.asyncio(loop_scope="session")

SECRET = "a zeppelin over castle quixotry"


@pytest.mark.parametrize(("scope", "thief"), [("tenant", "bob"), ("public", "eve")])
async def test_a_plan_tells_no_prompt_and_no_id_of_others(
    guarded: Guarded, scope: Literal["tenant", "public"], thief: str
) -> None:
    """An unrelated prompt at similarity .152 showed another tenant's prompt, entry id and job id verbatim."""
    async with guarded.client("alice") as alice, guarded.client(thief) as other:
        first = await alice.generate(f"{SECRET} {scope}", steps=10, seed=11, scope=scope)
        await guarded.house.settled(first)
        # the thief's own entries may be candidates, with their prompts: none before `same` has the secret's words
        near = await other.generate(f"a zeppelin above castle quixotry {scope} at night", steps=10, seed=12)
        dry = await other.plan(f"{SECRET} {scope} at dawn", steps=10)
        same = await other.generate(f"{SECRET} {scope}", steps=10, seed=11)
        # an exact repeat hands the image out: it comes from the caller's own tenant alone
        assert (same.plan.source is PlanSource.EXACT) == (scope == "tenant")
        assert near.plan.candidates  # they were considered, and are shown without what they are
        read = [await other.get_job(one.job.id) for one in (near, same)]
        rows = [await guarded.house.backends.catalog.jobs.get(one.job.id) for one in (near, same)]
        assert SECRET not in repr([row.plan for row in rows])
        for plan in (near.plan, same.plan, *(view.job.plan for view in (*dry, *read))):
            assert first.job.id not in repr(plan)
            assert SECRET not in repr(plan)
        own = await alice.plan(f"{SECRET} {scope} at night", steps=10)
        assert first.job.id in repr(own)


async def test_what_descends_from_another_callers_image_does_not_name_it(guarded: Guarded) -> None:
    """In the second generation all candidates were the caller's own, and the plan named another caller's root."""
    prompt = "an otter plays the bassoon under an aqueduct"
    async with guarded.client("alice") as alice, guarded.client("bob") as bob:
        first = await alice.generate(prompt, steps=10, seed=21, scope="tenant", cache="write")
        await guarded.house.settled(first)
        grown = await bob.generate(prompt, steps=10, seed=22, variation="same")
        await guarded.house.settled(grown)
        assert (await guarded.house.backends.catalog.entries.get(grown.job.id)).root == first.job.id
        again = await bob.generate(prompt, steps=10, seed=22)
        named = await bob.generate(f"{prompt} at dawn", steps=10, from_job=grown.job.id, strength=0.5)
        assert (again.plan.source, named.plan.source) == (PlanSource.EXACT, PlanSource.IMAGE)
        assert named.plan.entry_id == grown.job.id
        for plan in (grown.plan, again.plan, named.plan, (await bob.get_job(named.job.id)).job.plan):
            assert first.job.id not in repr(plan)


async def test_an_image_of_a_colleague_starts_nothing_even_by_its_job_id(guarded: Guarded) -> None:
    async with guarded.client("alice") as alice, guarded.client("bob") as bob:
        first = await alice.generate("a fox of the whole tenant", steps=10, scope="tenant")
        with pytest.raises(NotFoundError, match="no such job"):
            await _from(bob, first.job.id)
        assert (await _from(alice, first.job.id)).source is PlanSource.IMAGE


async def test_public_images_are_for_the_tenants_that_share_and_planting_them_is_a_role(guarded: Guarded) -> None:
    """Any caller could write an image that any other tenant then started from."""
    async with guarded.client("alice") as alice, guarded.client("bob") as bob, guarded.client("mallory") as mallory:
        planted = await alice.generate("a logo on a red balloon", steps=10, scope="public")
        await guarded.house.settled(planted)
        assert (await bob.plan("a logo on a red balloon at night", steps=10))[0].job.plan.candidates
        assert not (await mallory.plan("a logo on a red balloon at night", steps=10))[0].job.plan.candidates
        with pytest.raises(PermissionDeniedError, match="scope: public needs a key with the role publisher"):
            await bob.generate("a planted logo", steps=10, scope="public")
        with pytest.raises(InvalidRequestError, match="scope: public is for the tenants in the setting public_tenants"):
            await mallory.generate("a planted logo", steps=10, scope="public")


async def _from(client: AsyncClient, job_id: str) -> Plan:
    return (await client.generate("a wolf", steps=10, from_job=job_id, strength=0.5)).plan


async def test_an_image_that_was_steered_away_starts_no_plain_request(guarded: Guarded) -> None:
    """A colleague's image of the same words, made with `negative_prompt` of what they say, was a near copy to start
    from."""
    prompt = "a heron beside a quiet lake"
    fields: dict[str, Any] = {"steps": 10, "variation": "same", "guidance": 3.0}
    async with guarded.client("alice") as alice, guarded.client("bob") as bob:
        planted = await alice.generate(prompt, negative_prompt="a heron", scope="tenant", **fields)
        await guarded.house.settled(planted)

        async def source(**changed: Any) -> PlanSource:
            (planned,) = await bob.plan(prompt, **{**fields, **changed})
            return planned.job.plan.source

        assert await source() is PlanSource.NOISE
        assert await source(negative_prompt="a heron", guidance=9.0) is PlanSource.NOISE
        assert await source(negative_prompt="A  heron") is PlanSource.LATENT
