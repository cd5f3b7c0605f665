"""What a fault run left behind, counted: lost, doubled, stuck, dangling, unequal, unmasked."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from shared.domain.types import JobState


@dataclass(frozen=True, slots=True)
class Answer:
    """What a client was given under its key."""

    job_id: str
    picture_sha256: str


@dataclass(frozen=True, slots=True)
class Left:
    """What clients have and what catalog, index, blobs and broker hold when everything has come to rest."""

    answers: Mapping[str, Sequence[Answer]]
    """By idempotency key, every answer that a client ever got; empty for a key that was never answered."""
    job_of: Mapping[str, str]
    """Key → job id, as the catalog has it."""
    states: Mapping[str, JobState]
    """Of every job row."""
    pictures: Mapping[str, str]
    """Job id → sha256 of its stored picture, for those that are there and whole."""
    redrawn: Mapping[str, str]
    """Job id → sha256 of the picture that its recorded plan yields when nothing happens to it."""
    indexed: frozenset[str] = frozenset()
    """Entry ids that the index holds."""
    named: Mapping[str, Sequence[str]] = field(default_factory=dict)
    """Entry id → keys of the blobs that its live row names."""
    blobs: frozenset[str] = frozenset()
    """Keys of those that are there and whole."""
    uncached: Sequence[str] = ()
    """Jobs that succeeded and that the cache maintainer has not dealt with."""
    unmasked: Sequence[str] = ()
    """Jobs with both parts, whose clips should have masks, and have neither masks nor a reason for having none."""
    dead_letters: int = 0


@dataclass(frozen=True, slots=True)
class Verdict:
    """Who is wrong, by key, job or entry; all empty when nothing is."""

    lost: tuple[str, ...]
    """Keys without a picture: never answered, or answered with one that is not there any more."""
    doubled: tuple[str, ...]
    """Keys answered with different jobs or pictures, and jobs that no key names."""
    stuck: tuple[str, ...]
    """Jobs that neither ended nor will, and ended ones that nobody takes into the cache."""
    dangling: tuple[str, ...]
    """Index entries whose row or one of whose blobs is not there."""
    unequal: tuple[str, ...]
    """Jobs whose picture is not the one that their recorded plan yields, or not the one their client has."""
    unmasked: tuple[str, ...]
    """Clips without masks and without a reason."""
    dead_letters: int

    @property
    def clean(self) -> bool:
        return not any(self.counts().values())

    def counts(self) -> dict[str, int]:
        names = ("lost", "doubled", "stuck", "dangling", "unequal", "unmasked")
        return {name: len(getattr(self, name)) for name in names} | {"dead_letters": self.dead_letters}

    def __str__(self) -> str:
        return ", ".join(f"{name.replace('_', ' ')} {count}" for name, count in self.counts().items())


def judge(left: Left) -> Verdict:
    """Every count by the definition in `Verdict`."""
    return Verdict(
        lost=tuple(sorted(_lost(left))),
        doubled=tuple(sorted(_doubled(left))),
        stuck=tuple(sorted({*_unfinished(left), *left.uncached})),
        dangling=tuple(sorted(_dangling(left))),
        unequal=tuple(sorted(_unequal(left))),
        unmasked=tuple(sorted(left.unmasked)),
        dead_letters=left.dead_letters,
    )


def _lost(left: Left) -> set[str]:
    return {
        key
        for key, answers in left.answers.items()
        if not answers or any(answer.job_id not in left.pictures for answer in answers)
    }


def _doubled(left: Left) -> set[str]:
    different = {key for key, answers in left.answers.items() if len(set(answers)) > 1}
    others = {
        key for key, answers in left.answers.items() if {answer.job_id for answer in answers} - {left.job_of.get(key)}
    }
    return different | others | (set(left.states) - set(left.job_of.values()))


def _unfinished(left: Left) -> set[str]:
    return {job_id for job_id, state in left.states.items() if not state.final}


def _dangling(left: Left) -> set[str]:
    return {
        entry_id
        for entry_id in left.indexed
        if entry_id not in left.named or any(key not in left.blobs for key in left.named[entry_id])
    }


def _unequal(left: Left) -> set[str]:
    redrawn = {job_id for job_id, picture in left.pictures.items() if left.redrawn.get(job_id) != picture}
    given = {
        answer.job_id
        for answers in left.answers.values()
        for answer in answers
        if left.pictures.get(answer.job_id, answer.picture_sha256) != answer.picture_sha256
    }
    return redrawn | given
