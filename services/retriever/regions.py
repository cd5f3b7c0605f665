"""Regions: starts from a latent that compute only the patches that change (docs/adr/0023-regions.md)."""

from __future__ import annotations

from dataclasses import replace

from services.retriever.question import Rules
from services.retriever.starts import Option
from shared.domain.regions import region_until
from shared.domain.types import Plan, PlanSource


def with_region(plan: Plan, rules: Rules, option: Option, asked: int) -> Plan:
    """Return the plan of this start with the image whose unchanged patches the run holds, where it may hold some.

    It may where `regions` is on, where the entry names its image, and where no fresh noise changes the whole image.
    asked: the request's T.
    """
    entry, until = option.entry, region_until(plan.start_step, plan.run_steps(asked))
    if not rules.regions or plan.source is not PlanSource.LATENT or plan.fresh_noise or not until:
        return plan
    if entry is None or not entry.picture_key:
        return plan
    source = replace(plan.first_source, picture_key=entry.picture_key, picture_sha256=entry.picture_sha256)
    said = f"Patches that its first step does not change may keep that image's run until step {until}."
    return replace(plan, sources=(source,), region_until=until, reason=f"{plan.reason} {said}")
