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
        near = await other.generate(
            f"a zeppelin above castle quixotry {scope} at night", steps=10, seed=12, variation="same"
        )
        dry = await other.plan(f"{SECRET} {scope} at dawn", steps=10)
        same = await other.generate(f"{SECRET} {scope}", steps=10, seed=11)
        # an exact repeat hands the image out: it comes from the caller's own tenant alone
        assert (same.plan.source is PlanSource.EXACT) == (scope == "tenant")
        assert near.plan.candidates  # they were considered, and are shown without what they are
        read = [await other.get_job(one.job.id) for one in (near, same)]
        for plan in (near.plan, same.plan, *(view.job.plan for view in (*dry, *read))):
            assert first.job.id not in repr(plan)
            assert SECRET not in repr(plan)
        own = await alice.plan(f"{SECRET} {scope} at night", steps=10)
        assert first.job.id in repr(own)
        # whatever descends from it later has no candidate of others that would give its root away
        await guarded.house.settled(near)
        assert (await guarded.house.backends.catalog.entries.get(near.job.id)).root == first.job.id
        again = await other.generate(near.job.request.prompt, steps=10, seed=12)
        edit = await other.generate(f"{near.job.request.prompt} and day", steps=10, seed=13, variation="same")
        assert again.plan.source is PlanSource.EXACT
        assert edit.plan.entry_id == near.job.id
        for plan in (again.plan, edit.plan, (await other.get_job(edit.job.id)).job.plan):
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
