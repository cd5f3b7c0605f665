"""Recent images by user, prompt and root: which roots a user has seen, and how many images descend from each root.

A retriever counts its own plans at once, and other replicas' plans when EntriesCached names their entries. Prompts are
kept as digests, so that the memory holds no text of a purged entry.
"""

from __future__ import annotations

import hashlib
from collections import Counter, OrderedDict
from collections.abc import Iterable, Iterator
from typing import NamedTuple, TypeAlias

from services.retriever.relation import normalised
from shared.domain.types import CacheMode, Entry, Plan, Request, Scope

SEEN_IMAGES = 10_000
"""Newest images in which a user's prompts and roots are looked up, about 1 KB each."""
SHARE_IMAGES = 1_000
"""Newest images over which the share of each root is counted."""

Owner: TypeAlias = tuple[str, str]
"""Tenant and user; the user may be unknown (empty)."""


class Image(NamedTuple):
    """One image, generated or planned."""

    owner: Owner
    prompt: bytes
    """Digest of the normalised prompt."""
    seed: int | None
    root: str
    shared: bool = False
    """Others of the tenant may see the entry. A private one, and one of `cache: off`, must not show in their plans."""
    background_root: str = ""
    """Root of the background, where the image descends from a pair; empty: from one root."""

    @classmethod
    def of(cls, one: Request | Entry, root: str = "") -> Image:
        asked_off = isinstance(one, Request) and one.cache is CacheMode.OFF
        shared = one.scope is not Scope.PRIVATE and not asked_off
        return cls((one.tenant, one.user), _digest(one.prompt), one.seed, root, shared)

    @property
    def roots(self) -> set[str]:
        return {self.root, self.background_root or self.root}

    @property
    def plan_id(self) -> str:
        """Id of a planned image until its entry is cached. A request that is planned twice has the same id."""
        return f"plan {self.owner[0]} {self.owner[1]} {self.prompt.hex()} {self.seed}"

    def counted(self) -> Iterator[tuple[object, ...]]:
        """Yield the keys under which the image is counted."""
        tenant, user = self.owner
        if self.shared:
            yield "images", tenant
            yield "images", tenant, user
            for root in self.roots:
                yield "root", tenant, root
                yield "root", tenant, root, user
                yield "started", tenant, self.prompt, root
                yield "started", tenant, self.prompt, root, self.seed
            yield "asked", tenant, self.prompt
            yield "asked", tenant, self.prompt, self.seed
        if user:
            yield from (("seen", self.owner, root) for root in self.roots)
            yield "prompt", self.owner, self.prompt
            yield "seed", self.owner, self.prompt, self.seed


class Window:
    """The newest `capacity` images and their counts."""

    def __init__(self, capacity: int) -> None:
        self._capacity = capacity
        self._images: OrderedDict[str, Image] = OrderedDict()
        self.counts: Counter[tuple[object, ...]] = Counter()

    def __len__(self) -> int:
        return len(self._images)

    def get(self, image_id: str) -> Image | None:
        return self._images.get(image_id)

    def add(self, image_id: str, image: Image, *, older: bool = False) -> None:
        """Add the image as the newest, or with `older` as the oldest, where there is room."""
        if image_id in self._images or (older and len(self._images) >= self._capacity):
            return
        self._images[image_id] = image
        self._images.move_to_end(image_id, last=not older)
        self._count(image, 1)
        if len(self._images) > self._capacity:
            self._count(self._images.popitem(last=False)[1], -1)

    def remove(self, image_id: str) -> None:
        if (image := self._images.pop(image_id, None)) is not None:
            self._count(image, -1)

    def _count(self, image: Image, by: int) -> None:
        for key in image.counted():
            self.counts[key] += by
            if not self.counts[key]:
                del self.counts[key]


class Seen:
    """Recent images of all users, for the rules of services.retriever.variety."""

    def __init__(self) -> None:
        self._long, self._short = Window(SEEN_IMAGES), Window(SHARE_IMAGES)

    def note(self, entries: Iterable[Entry], *, older: bool = False) -> None:
        """Count cached entries, each of which replaces its plan. older: the entries precede all counted ones."""
        for entry in entries:
            image = Image.of(entry, entry.root_id)._replace(background_root=entry.background_root)
            for window in (self._long, self._short):
                window.remove(image.plan_id)
                window.add(entry.id, image, older=older)

    def planning(self, request: Request) -> None:
        """Discount an earlier plan of this same request, so that the request is not compared with itself."""
        plan_id = Image.of(request).plan_id
        for window in (self._long, self._short):
            window.remove(plan_id)

    def planned(self, request: Request, plan: Plan) -> None:
        """Count an image that was planned and is not cached yet."""
        image = Image.of(request)
        image = image._replace(root=plan.root or image.plan_id, background_root=plan.background_root)
        for window in (self._long, self._short):
            window.add(image.plan_id, image)

    def rerolls(self, request: Request) -> bool:
        """Return whether the user had an image of this prompt before, and none with this seed."""
        image = Image.of(request)
        counts = self._long.counts
        had = counts["prompt", image.owner, image.prompt] > 0
        return had and not counts["seed", image.owner, image.prompt, image.seed]

    def asked_before(self, request: Request) -> bool:
        """Return whether the tenant had an image of this prompt before that others may see, and none of this seed."""
        image, counts = Image.of(request), self._long.counts
        asked = "asked", request.tenant, image.prompt
        return counts[asked] > 0 and not counts[*asked, image.seed]

    def has_started(self, request: Request, root: str) -> bool:
        """Return whether an image of this prompt and another seed, by any user of the tenant and shared with it,
        descends from the root."""
        image, counts = Image.of(request), self._long.counts
        started = "started", request.tenant, image.prompt, root
        return counts[started] > counts[*started, image.seed]

    def has_seen(self, owner: Owner, root: str) -> bool:
        """Return whether an image of this user descends from the root."""
        return self._long.counts["seen", owner, root] > 0

    def repeats(self, request: Request, entry: Entry) -> bool:
        """Return whether the entry, or its root, has the request's prompt with another seed. Another user's private
        root is not compared: a plan that named it would confirm its prompt."""
        own, found = Image.of(request), (self._long.get(root) for root in entry.root_ids)
        roots = [one for one in found if one is not None and (one.shared or one.owner == own.owner)]
        return any(one.prompt == own.prompt and one.seed != own.seed for one in (Image.of(entry), *roots))

    def owner_of(self, root: str) -> Owner | None:
        """Return the tenant and user of a root entry; None when the entry is not among the recent images."""
        found = self._long.get(root)
        return None if found is None else found.owner

    def seed_of(self, root: str) -> int | None:
        """Return the seed of a root entry; None when the entry is not among the recent images."""
        found = self._long.get(root)
        return None if found is None else found.seed

    def others(self, tenant: str, root: str, owner: Owner | None) -> tuple[int, int]:
        """Return how many recent images of a tenant descend from the root, and how many there are in all.

        Images of the root's owner are left out of both, and private ones: plans show both numbers. An unknown user's
        images count as those of others.
        """
        counts = self._short.counts
        behind, all_of = counts["root", tenant, root], counts["images", tenant]
        if owner is not None and owner[1] and owner[0] == tenant:
            # an owner's images that descend from the own root, within the same window
            behind -= counts["root", tenant, root, owner[1]]
            all_of -= counts["images", tenant, owner[1]]
        return behind, all_of


def _digest(prompt: str) -> bytes:
    return hashlib.blake2b(normalised(prompt).encode(), digest_size=8).digest()
