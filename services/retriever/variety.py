"""Rules of variety: the entries that a request may start from, by what its user has seen (docs/adr/0012-relation.md).

They are no bounds of quality: an entry that they refuse could start the request as well as any other.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from services.retriever.relation import normalised, relation
from services.retriever.seen import Owner, Seen
from shared.domain.types import Candidate, Entry, Relation, Request, Variation

REFUSED = "refused: "
"""Start of the reason why the rules refuse a candidate."""
CLOSEST = (Relation.REROLL, Relation.EDIT, Relation.TOPIC, Relation.OTHER)


def closer(one: str, other: str) -> str:
    """Return the closer of two relations; empty where both are."""
    found = [Relation(relation) for relation in (one, other) if relation]
    return min(found, key=CLOSEST.index).value if found else ""


@dataclass(frozen=True, slots=True)
class Variety:
    """The rules as they apply to one request."""

    request: Request
    seen: Seen
    root_share: float
    """Largest share of one root in the recent images of users other than the root's owner."""
    enforced: bool = True
    """False: relations are recorded, and refuse nothing. Images of one request differ all the same."""
    further: bool = False
    """The request is for several images, and this is not the first: another seed of the same prompt."""
    taken_roots: frozenset[str] = frozenset()
    """Roots that other images of the request start from."""
    taken_seeds: frozenset[int] = frozenset()
    """Seeds of the request's other images."""

    @property
    def draws(self) -> bool:
        """True if the request's seed chooses among equal candidates."""
        return self.enforced and self.request.variation is not Variation.SAME

    def relation_to(self, entry: Entry, similarity: float) -> str:
        """Return the relation to this entry. similarity: of the two prompts; −1 where that is unknown."""
        return relation(self.request, entry, similarity).value

    def may_copy(self, relation: str) -> bool:
        """Return whether an image may keep the composition of an entry of this relation: only an edit may.

        A re-roll counts as one here: what its user has seen refuses it, which is the better reason.
        """
        same = not self.enforced or self.request.variation is Variation.SAME
        return same or relation in (Relation.EDIT, Relation.REROLL)

    def refuses(self, candidate: Candidate, entry: Entry, rerolls: bool) -> str:
        """Return why the request may not start from this entry; empty when it may. rerolls: the request is a
        re-roll."""
        again = rerolls or candidate.relation == Relation.REROLL  # a known seed may start from its own image alone
        why = self.clash(entry) or (self._refusal(entry, again) if self.enforced else "")
        return f"{REFUSED}{why}" if why else ""

    def rerolls(self, candidates: Collection[Candidate]) -> bool:
        """Return whether the request is a re-roll: another seed of a prompt of which the user had an image.

        With the seed of an earlier image it is none: then something else about the request changed.
        """
        prompt = normalised(self.request.prompt)
        if any(one.relation == Relation.EDIT and normalised(one.prompt) == prompt for one in candidates):
            return False
        rerolls = any(one.relation == Relation.REROLL for one in candidates) or self.seen.rerolls(self.request)
        return rerolls or self.further

    def matters(self, candidates: Collection[Candidate] = ()) -> bool:
        """Return whether the image must differ from others of its prompt: the request is a re-roll or for several
        images, or the tenant had an image of the prompt before."""
        request = self.request
        if not self.enforced or request.variation is Variation.SAME:
            return False
        several = request.variation is Variation.NEW or bool(self.taken_seeds)
        return several or self.rerolls(candidates) or self.seen.asked_before(request)

    def closest(self, candidates: Collection[Candidate] = ()) -> Relation:
        """Return the closest relation to any candidate; without one, the relation to an entry that was not found."""
        if self.request.user and self.rerolls(candidates):
            return Relation.REROLL
        found = [Relation(one.relation) for one in candidates if one.relation]
        return min(found, key=CLOSEST.index, default=Relation.TOPIC if self.request.user else Relation.OTHER)

    def clash(self, entry: Entry) -> str:
        """Return why an image from this entry would resemble another image of the same request; empty otherwise.

        Runs of one noise resemble each other, whatever their T: a root is refused to one image if another image has
        its seed.
        """
        if any(root in self.taken_roots for root in entry.root_ids):
            return "another image of this request starts from this root"
        seeds = [entry.seed if root == entry.id else self.seen.seed_of(root) for root in entry.root_ids]
        taken = any(seed in self.taken_seeds for seed in seeds)
        return "its root began from the noise of another image of this request" if taken else ""

    def _refusal(self, entry: Entry, rerolls: bool) -> str:
        """Return why the request may not start from this entry; empty when it may."""
        request, owner = self.request, (self.request.tenant, self.request.user)
        if request.variation is Variation.SAME:
            return ""
        new = request.variation is Variation.NEW
        if new and not request.user:
            return "variation is new, and an unknown user may have seen this image"
        roots = entry.root_ids
        own = (entry.tenant, entry.user) == owner or any(self.seen.has_seen(owner, root) for root in roots)
        if own and request.user and (new or rerolls):
            asked = "variation is new" if new else "another seed of the same prompt"
            return f"{asked}, and the user has seen an image of this root"
        if not own and self.seen.repeats(request, entry):
            return "its root is another user's image of the same prompt, which the new image would resemble"
        if not own and any(self.seen.has_started(request, root) for root in roots):
            return "another user's image of the same prompt starts from this root"
        return next((why for root in roots if (why := self._too_often(entry, root, owner))), "")

    def _too_often(self, entry: Entry, root: str, owner: Owner) -> str:
        """Return why this root of the entry may not be behind one more image; empty when it may, and for its own
        user."""
        # the user of this entry stands in for the owner of a root that is gone
        of = (root != entry.id and self.seen.owner_of(root)) or (entry.tenant, entry.user)
        if self.request.user and of == owner:
            return ""
        behind, images = self.seen.others(self.request.tenant, root, of)
        if behind + 1 <= self.root_share * (images + 1):
            return ""
        return (
            f"its root is behind {behind} of the {images} recent images of other users; one more would "
            f"exceed {self.root_share:.0%}"
        )
