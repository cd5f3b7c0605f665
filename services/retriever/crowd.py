"""Crowd: public entries of other tenants count only where several tenants have similar ones (setting `public_crowd`).

The threshold is the one that Acs et al. give a shared cache: content is served from it only once k parties asked for it
("Cache Privacy in Named-Data Networking", ICDCS 2013). Here the parties are tenants other than the asker, and a similar
prompt counts as the same.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from shared.domain.types import Entry, Hit


def in_a_crowd(hits: Sequence[Hit], entries: Mapping[str, Entry], tenant: str, least: int) -> list[Hit]:
    """Return the hits without other tenants' that are nearer than the nearest hit of the `least`-th other tenant.

    So every hit of another tenant that is left has `least` tenants besides the asker behind it, with entries at least
    as similar. Fewer tenants leave the asker's own hits alone. least: 1 leaves all.
    """
    if least <= 1:
        return list(hits)
    tenants = {hit.entry_id: entry.tenant for hit in hits if (entry := entries.get(hit.entry_id)) is not None}
    nearest: dict[str, float] = {}
    for hit in hits:
        if (other := tenants.get(hit.entry_id, tenant)) != tenant:
            nearest[other] = max(hit.similarity, nearest.get(other, -math.inf))
    ranked = sorted(nearest.values(), reverse=True)
    most = ranked[least - 1] if len(ranked) >= least else -math.inf
    # an entry that is gone has no tenant any more, and starts nothing
    return [
        hit
        for hit in hits
        if (of := tenants.get(hit.entry_id)) == tenant or (of is not None and hit.similarity <= most)
    ]
