"""What a plan starts from: prompts, parts, pairs and roots."""

from __future__ import annotations

import asyncio

from rich.console import Console

from shared.domain.plan_rules import ANOTHER
from shared.domain.types import Plan, PlanSource
from shared.runtime.settings import Settings


def chosen_pair(plan: Plan) -> str | None:
    """Return both sources of a stitched start with their similarities; None for other plans."""
    for one in plan.candidates if plan.source is PlanSource.STITCHED else ():
        if one.chosen:
            return (
                f"the object {_of(one.prompt)} (similarity {one.object_similarity:.3f}) "
                f"over the background {_of(one.background_prompt)} ({one.background_similarity:.3f})"
            )
    return None


def _of(prompt: str) -> str:
    return f"of “{prompt}”" if prompt else ANOTHER


def parts(plan: Plan) -> str:
    """Return the parts that the prompt names; empty where none were extracted."""
    if plan.parts is None:
        return ""
    named = (("object", plan.parts.object), ("background", plan.parts.background))
    return " · ".join(f"{name} “{phrase}”" if phrase else f"no {name}" for name, phrase in named)


def relation(plan: Plan) -> str:
    """Return the plan's relation to its start, and the roots of that start; empty where neither was recorded."""
    roots = plan.root and f"root {' and '.join(filter(None, (plan.root, plan.background_root)))}"
    return ", ".join(filter(None, (plan.relation, roots)))


def chosen_prompt(plan: Plan) -> str:
    """Return the prompt of the image that this one started from; empty from noise."""
    return next((candidate.prompt for candidate in plan.candidates if candidate.chosen), "")


def chosen_model(plan: Plan) -> str:
    """Return the model of the image that this one started from; empty from noise."""
    return next((candidate.model for candidate in plan.candidates if candidate.chosen), "")


def show_pair(plan: Plan, settings: Settings, target: str | None, console: Console) -> None:
    """Print the sources of a stitched start; in a terminal with colours also their masks, if they can be read here."""
    if plan.source is PlanSource.STITCHED:
        from services.cli.display.masks import masks_here, pair_table

        coloured = console.color_system is not None
        console.print(pair_table(plan, asyncio.run(masks_here(settings, plan, target)) if coloured else None))
