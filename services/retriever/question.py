"""The question that a plan answers: what the request asks for, and the rules that the operator sets."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass, field

from services.retriever.bounds import Bound
from services.retriever.cost import Pace
from services.retriever.seen import Seen
from services.retriever.variety import Variety
from shared.domain.parts import Parts
from shared.domain.types import CompatKey, Request
from shared.models.card import ModelCard
from shared.runtime.settings import Settings

StepIn = Callable[[int, int, int], int]
"""(K, T of a state, T of a run) → the step of the run with exactly that noise level; 0 when there is none."""


@dataclass(frozen=True, slots=True)
class Question:
    """One request to plan."""

    request: Request
    model: str
    compat: CompatKey
    encoder_hash: str = ""
    predicted_hit: bool | None = None
    sampled: bool = False
    """Looked up although a miss is predicted."""
    choices: tuple[int, ...] = ()
    """T that the plan may choose among; empty: the request's alone."""
    further: bool = False
    """A later image of a request for several."""
    taken_roots: frozenset[str] = frozenset()
    """Roots that other images of the request start from."""
    taken_seeds: frozenset[int] = frozenset()
    """Seeds of the request's other images."""
    parts: Parts | None = None
    """Object and background that the prompt names; None: not extracted."""

    @property
    def steps(self) -> tuple[int, ...]:
        """T that the model asked for may run."""
        return self.choices or (self.request.steps,)

    @property
    def asked(self) -> int:
        """T that a run has unless its plan states another; 0 where every plan states T."""
        return 0 if self.choices else self.request.steps

    @property
    def worth_searching(self) -> bool:
        """Whether to search for latents. A predicted miss skips the search, except in a sampled share, and where the
        caller asks for more savings than the prediction assumed."""
        return self.predicted_hit is not False or self.sampled or self.request.savings > 0.5

    def variety(self, seen: Seen, settings: Settings) -> Variety:
        """Return the rules of variety for this question."""
        return Variety(
            self.request,
            seen,
            settings.root_share,
            enforced=settings.reuse_rules == "relation",
            further=self.further,
            taken_roots=self.taken_roots,
            taken_seeds=self.taken_seeds,
        )


def choices_of(card: ModelCard, request: Request, most: int | None = None) -> tuple[int, ...]:
    """Return the T that the plan of this request may choose among for this model; empty where it chooses none. most:
    the service's limit of steps."""
    return tuple(steps for steps in card.auto_steps if steps <= (most or steps)) if request.steps_auto else ()


@dataclass(frozen=True, slots=True)
class Refiner:
    """A model that may continue from an image (MoDM §5.1)."""

    model: str
    weights_hash: str
    steps: tuple[int, ...] = (50,)
    """T that the model may run: the request's, its own (MoDM §6: 10 steps of a Turbo beside 50 of the large model), or
    several to choose among."""
    pace: Pace = field(default_factory=Pace)
    guidance: float | None = None
    """None: the request's own."""
    small: bool = False
    noise: Callable[[bool], Collection[int]] | None = None
    """Whether variety counts → T whose runs from noise were measured to keep the quality of the model asked for. Only a
    deadline takes them."""
    prompted_from: Callable[[int], int] | None = None
    """As `Rules.prompted_from`, for these runs."""


@dataclass(frozen=True, slots=True)
class Rules:
    """The operator's settings for planning, as they apply to one question."""

    bound: Bound
    step_in: StepIn
    no_latents: str = ""
    """Reason why no latent may start this request; empty when some may."""
    capture_steps: tuple[int, ...] = (5, 10, 15, 20, 25)
    """K of T = 50."""
    epsilon: float = 0.0
    """Share of hits generated from noise, so that images stay diverse (NIRVANA §9)."""
    insert_on_hit: bool = True
    refiners: tuple[Refiner, ...] = ()
    """Models that may continue from a finished image: the named model alone, else every served model."""
    prompted_from: Callable[[int], int] | None = None
    """T that the plan chose → steps that run without the prompt first, from noise; None: no step does."""
    variety: Variety | None = None
    """None: plans name no relations. With `reuse_rules=paper` relations are recorded and refuse nothing."""
    pairs: bool = True
    """Whether a pair may start a request that names object and background."""
    regions: bool = False
    """True if starts of the model asked for from a latent compute only the patches that change."""
    every_start: bool = False
    """List every start up to the allowed K, not the latest one alone."""
