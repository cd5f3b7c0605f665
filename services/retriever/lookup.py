"""Lookup of a question in the cache: an exact repeat, then similar prompts and images. A port that is away costs only
the hit."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import TypeVar

from services.retriever.asked import Asked
from services.retriever.crowd import in_a_crowd
from services.retriever.entry_reader import EntryReader
from services.retriever.figures import outcome
from services.retriever.planning import from_noise, from_repeat, options_of, plan_of
from services.retriever.selection import should_widen_search, trim_candidates
from services.retriever.starts import Found
from services.retriever.tables import Tables
from shared.domain.errors import AfterimageError
from shared.domain.exact_repeats import exact_key, repeat_weights
from shared.domain.types import BACKGROUND, OBJECT, Entry, Hit, IndexFilter, Plan, Scope, Vector, visible_owners
from shared.runtime.clock import Clock
from shared.runtime.settings import Settings
from shared.runtime.telemetry import METRICS, log
from shared.service.backends import Backends

T = TypeVar("T")


class Lookup:
    """Searches of index and catalog for one question at a time."""

    def __init__(
        self, backends: Backends, entries: EntryReader, tables: Tables, settings: Settings, clock: Clock
    ) -> None:
        self._backends, self._entries, self._tables = backends, entries, tables
        self._settings, self._clock = settings, clock

    async def repeat(self, asked: Asked) -> Plan | None:
        """Return a plan for the stored image, when the client named the seed and the same request was generated
        before."""
        request = asked.question.request
        if not (asked.question.request.cache.reads and request.seed_given):
            return None
        key = exact_key(request, asked.question.compat, asked.known.card.sampler_id)
        served = (one.card.weights_hash for one in self._tables.served)
        weights = repeat_weights(request, asked.question.compat.weights_hash, served)
        owners = visible_owners(request.tenant, request.user)
        exact = self._backends.catalog.entries.exact(key, request.tenant, owners, weights)
        entry = await self._within(asked, "catalog", exact)
        variety = None if request.named_job else asked.rules.variety
        if entry is None or (variety is not None and variety.clash(entry)):
            return None
        return from_repeat(asked.question, entry, asked.degraded)

    async def planned(self, asked: Asked) -> Plan:
        """Return the plan from what the cache has."""
        question, noise = asked.question, partial(from_noise, asked.question, asked.rules)
        if why := self._unsearchable(asked):
            return noise(f"Generated from noise: {why}.", degraded=asked.degraded)
        assert asked.vector is not None
        worth_it = question.worth_searching and not asked.rules.no_latents
        if asked.rules.no_latents:
            asked.degraded += asked.notes
        # the match predictor knows whole prompts alone: a pair may be found where it expects nothing
        if not worth_it and not asked.rules.refiners and asked.pair is None:
            why = asked.rules.no_latents or "the match predictor expects nothing similar"
            return noise(f"Generated from noise: {why}.", degraded=asked.degraded)
        return await self._searched(asked, asked.vector, latents=worth_it)

    async def nearest(self, asked: Asked) -> Found:
        """Return what one wide search finds, whatever the match predictor said; nothing where no search is possible."""
        if self._unsearchable(asked) or asked.vector is None:
            return Found(None)
        # within the ordinary plan's time: if the gateway's call timed out, the ordinary plan would be lost, too
        asked.over_at = min(asked.over_at, self._clock.monotonic() + self._settings.lookup_timeout_s)
        far = max(self._settings.candidates, self._settings.further_candidates)
        found = await self._found(asked, asked.vector, latents=not asked.rules.no_latents, limit=far)
        return found or Found(None)

    def _unsearchable(self, asked: Asked) -> str:
        """Return why the cache has nothing for this request, whatever it holds; empty where a search may find some."""
        if not asked.question.request.cache.reads:
            return "the request does not read the cache"
        if asked.vector is None:
            return "the prompt has no embedding"
        if self._settings.reuse_rules == "relation" and asked.unknown_share > self._settings.unknown_words_share:
            return (
                f"{asked.unknown_share:.0%} of the prompt's words that name something are unknown to the encoder, so "
                "its similarity to other prompts says little"
            )
        return ""

    async def _searched(self, asked: Asked, vector: Vector, *, latents: bool) -> Plan:
        settings = self._settings
        # one time limit for both searches and their reads, so that a wider search cannot double the wait of the caller
        asked.over_at = self._clock.monotonic() + 2 * settings.lookup_timeout_s
        found = await self._found(asked, vector, latents=latents)
        if found is None:
            reason = f"Generated from noise: {asked.degraded[-1]}."
            return from_noise(asked.question, asked.rules, reason, degraded=asked.degraded)
        if found.latents is not None:
            asked.degraded += asked.notes
        options = options_of(asked.question, asked.rules, found)
        nearest = options.nearest_latents()
        if settings.further_candidates > settings.candidates and should_widen_search(nearest, settings.candidates):
            further = await self._further(asked, vector, found)
            if further is not None:
                options = options_of(asked.question, asked.rules, further)
            done = "failed" if further is None else outcome(nearest, options.nearest_latents())
            METRICS.wider_searches.labels(done).inc(not asked.dry_run)
            return self.trimmed(plan_of(options, degraded=asked.degraded))
        return plan_of(options, degraded=asked.degraded)

    async def _found(self, asked: Asked, vector: Vector, *, latents: bool, limit: int | None = None) -> Found | None:
        """Return the nearest entries of each kind; None when the searches failed. limit: latents to find; None:
        `candidates`. Where a crowd counts, more are found, because the nearest ones may be one tenant's."""
        compat, (thing, place) = str(asked.question.compat), asked.pair or (None, None)
        # of many entries with a part some have masks and a state early enough; a clip takes longer than their reading
        far = max(self._settings.candidates, self._settings.further_candidates)
        crowd, few = self._settings.crowd(asked.question.request.tenant), self._settings.candidates
        wide = far if crowd > 1 else None
        of_latents, of_pictures, objects, backgrounds = await asyncio.gather(
            self._search(asked, "whole", vector, compat, wide or limit) if latents else _nothing(),
            # an image starts any model at any size, so its compatibility key does not matter
            self._search(asked, "image", vector, "", wide) if asked.rules.refiners else _nothing(),
            self._search(asked, OBJECT, thing, compat, far) if thing is not None else _nothing(),
            self._search(asked, BACKGROUND, place, compat, far) if place is not None else _nothing(),
        )
        entries = await self._entries_of(asked, of_latents, of_pictures, objects, backgrounds)
        nothing = of_latents is None and not of_pictures and not (objects and backgrounds)
        if entries is None or (nothing and asked.degraded):
            return None
        tenant = asked.question.request.tenant
        of_latents, of_pictures, objects, backgrounds = (
            self._shown(hits, entries, tenant) for hits in (of_latents, of_pictures, objects, backgrounds)
        )
        found = Found(of_latents, of_pictures, entries, objects, backgrounds)
        return found if crowd == 1 else _crowded(found, tenant, crowd, limit or few, few)

    async def _further(self, asked: Asked, vector: Vector, found: Found) -> Found | None:
        """Search again with more latent candidates; None when that fails."""
        compat = str(asked.question.compat)
        of_latents = await self._search(asked, "whole", vector, compat, self._settings.further_candidates)
        entries = await self._entries_of(asked, of_latents) if of_latents is not None else None
        if of_latents is None or entries is None:
            return None
        tenant = asked.question.request.tenant
        kept = in_a_crowd(self._shown(of_latents, entries, tenant) or [], entries, tenant, self._settings.crowd(tenant))
        return replace(found, latents=kept, entries={**found.entries, **entries})

    async def _entries_of(self, asked: Asked, *hits: Sequence[Hit] | None) -> Mapping[str, Entry] | None:
        ids = list(dict.fromkeys(hit.entry_id for some in hits for hit in some or ()))
        return await self._within(asked, "catalog", self._entries.read(ids)) if ids else {}

    def _hides(self, entry: Entry | None, tenant: str) -> bool:
        """Return whether an entry that the index shows to this tenant is of another one that no longer shares."""
        if entry is None or entry.scope is not Scope.PUBLIC or entry.tenant == tenant:
            return False
        return not self._settings.shares(entry.tenant)

    def _shown(self, hits: list[Hit] | None, entries: Mapping[str, Entry], tenant: str) -> list[Hit] | None:
        """Return the hits without those of tenants that no longer share."""
        return hits and [hit for hit in hits if not self._hides(entries.get(hit.entry_id), tenant)]

    def trimmed(self, plan: Plan) -> Plan:
        """Return the plan without those candidates of a wider search that were not chosen."""
        latents = [one for one in plan.candidates if one.kind == "latent"]
        others = [one for one in plan.candidates if one.kind != "latent"]
        kept = trim_candidates(latents, self._settings.candidates, next((one for one in latents if one.chosen), None))
        return replace(plan, candidates=(*kept, *others))

    async def _search(
        self, asked: Asked, name: str, vector: Vector, compat: str, limit: int | None = None
    ) -> list[Hit] | None:
        """Return the nearest entries by this named vector among those visible to the caller; None when the index is
        away, late or wrong."""
        request = asked.question.request
        owners = visible_owners(request.tenant, request.user, public=self._settings.shares(request.tenant))
        where = IndexFilter(compat, owners, asked.question.encoder_hash)
        search = self._backends.index.search(name, vector, where, limit or self._settings.candidates)
        return await self._within(asked, "index", search)

    async def _within(self, asked: Asked, port: str, answer: Awaitable[T]) -> T | None:
        """Return the port's answer; None, with a note on the plan, when the port is away, late or wrong."""
        limit_s = max(0.0, min(self._settings.lookup_timeout_s, asked.over_at - self._clock.monotonic()))
        try:
            async with asyncio.timeout(limit_s):
                return await answer
        except TimeoutError:
            what = said = f"{port}: no answer within {limit_s:.3g} s"
        except Exception as error:  # no failure of the cache may fail a request (docs/architecture.md, Request path)
            outside = error.outside if isinstance(error, AfterimageError) else str(error)
            said, what = (f"{port}: {type(error).__name__}: {text[:200]}" for text in (outside, str(error)))
        asked.degraded.append(said)
        METRICS.degraded.labels(port).inc(not asked.dry_run)
        log("retriever").warning("planned without a port", what=what)
        return None


def _crowded(found: Found, tenant: str, least: int, latents: int, pictures: int) -> Found:
    """Return what a crowd of `least` tenants leaves of each kind. latents, pictures: the most to keep of them."""

    def kept(hits: Sequence[Hit] | None, most: int | None = None) -> list[Hit] | None:
        return None if hits is None else in_a_crowd(hits, found.entries, tenant, least)[:most]

    return replace(
        found,
        latents=kept(found.latents, latents),
        pictures=kept(found.pictures, pictures),
        objects=kept(found.objects),
        backgrounds=kept(found.backgrounds),
    )


async def _nothing() -> None:
    """The result of a search that is not made."""
