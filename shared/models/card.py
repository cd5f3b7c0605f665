"""A model card: everything a service must know about a model before (or without) loading its weights."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Literal
from urllib.parse import parse_qsl

from pydantic import TypeAdapter, ValidationError

from shared.domain.errors import ConfigurationError, InvalidRequestError, ModelError
from shared.domain.types import CompatKey, Size
from shared.models import hub
from shared.models.added import added
from shared.models.checkpoint import INDEX, faults, read_json, said_by
from shared.models.published import OF_SIZE, SHAPES, published
from shared.models.schedules import nearest_step, same_noise_level, sampler_id
from shared.models.weights import weights_hash
from shared.runtime.settings import Settings

BUNDLED = Path(__file__).parent / "bundled"
"""Where the models that ship with Afterimage lie, one folder each."""

BUNDLED_PREFIX = "bundled:"
NOOP_PREFIX = "noop:"
"""Model paths that begin so name a denoiser that only waits (benchmarks): `noop:?step_ms=1&row_ms=.2`."""


@dataclass(frozen=True)
class SizeRule:
    """Which sizes a model draws: the listed ones, or every multiple of `multiple_of` from `min_px` to `max_px`."""

    sizes: tuple[Size, ...] = ()
    multiple_of: int = 8
    min_px: int = 64
    max_px: int = 2048

    def allows(self, size: Size) -> bool:
        if self.sizes:
            return size in self.sizes
        return all(self.min_px <= px <= self.max_px and px % self.multiple_of == 0 for px in (size.width, size.height))

    def __str__(self) -> str:
        if self.sizes:
            return "one of " + ", ".join(str(size) for size in self.sizes)
        return f"width and height multiples of {self.multiple_of} from {self.min_px} to {self.max_px}"


@dataclass(frozen=True)
class ModelCard:
    """A model's name, where its weights are, and what may be asked of it."""

    name: str
    """How requests, lanes and metrics call it."""
    path: str = ""
    """A folder in diffusers' layout, a hub id, or `noop:`; empty: the folder the card lies in."""
    family: str = "unet"
    """File of services/gpu_worker/families that runs it; empty before anyone has seen its model_index.json."""
    role: str = "large"
    """`large` draws misses, `small` refines hits (MoDM §4.2)."""
    sampler: str = "ddim"
    """One of gpu_worker/samplers.py; its configuration is the checkpoint's own scheduler_config.json."""
    eta: float = 0.0
    """DDIM's η: 0 is deterministic."""
    default_size: Size = field(default_factory=lambda: Size(512, 512))
    default_steps: int = 50
    max_steps: int = 200
    default_guidance: float = 7.5
    guidance_min: float = 1.0
    guidance_max: float = 30.0
    sizes: SizeRule = field(default_factory=SizeRule)
    latent_channels: int = 4
    vae_scale: int = 8
    """Pixels per latent cell, each way; where there are weights, their VAE says it and a card need not."""
    dtype: Literal["float32", "bfloat16", "float16"] = "float32"
    """What the weights compute in; latents and the sampler are always float32."""
    denoiser_parameters: int = 0
    """Numbers in the weights; 0: not known before they are on this disk."""
    text_parameters: int = 0
    vae_parameters: int = 0
    row_values: int = 0
    """Numbers that one forward row of the denoiser keeps alive at the default size: an estimate
    (bench.gpu.live_values)."""
    decode_values: int = 0
    """The same of one picture's decoding."""
    k_table: str = ""
    """Similarity → K table beside the card, as `afterimage profile` writes it; empty: the paper's."""
    preview_factors: tuple[tuple[float, float, float], ...] = ()
    """Linear latent → RGB map, one row per channel and a last one for the offset; empty: fitted from the VAE."""
    about: str = ""
    """One sentence for people."""

    @property
    def is_noop(self) -> bool:
        return self.path.startswith(NOOP_PREFIX)

    @property
    def noop_options(self) -> dict[str, str]:
        """What a no-op denoiser's path asks of it; empty for a real model."""
        return dict(parse_qsl(self.path.removeprefix(NOOP_PREFIX).lstrip("?"))) if self.is_noop else {}

    @cached_property
    def folder(self) -> Path:
        """The folder with the weights; a hub id is fetched (or found in the hub's cache) on first use.

        Raises ModelError naming the path when no weights are there.
        """
        return weights_folder(self)

    @cached_property
    def weights_hash(self) -> str:
        """16 hex digits over everything that decides what the model draws (design §2, Compatibility)."""
        return noop_hash(self.path) if self.is_noop else weights_hash(self.folder)

    @cached_property
    def scheduler_config(self) -> dict[str, Any]:
        """The checkpoint's own scheduler_config.json."""
        if self.is_noop:
            return {"_class_name": "DDIMScheduler", "num_train_timesteps": 1000, "timestep_spacing": "trailing"}
        return read_json(self.folder / "scheduler" / "scheduler_config.json")

    @cached_property
    def sampler_id(self) -> str:
        """`name:hash` of the sampler and its configuration."""
        return sampler_id(self.sampler, self.scheduler_config, self.eta)

    def compat(self, size: Size, steps: int) -> CompatKey:
        """What a latent must match to start a picture of this model (design §2, Compatibility)."""
        return CompatKey(
            weights_hash=self.weights_hash, sampler=self.sampler_id, dtype=self.dtype, size=size, steps=steps
        )

    def step_in(self, step: int, of: int, steps: int) -> int:
        """Where a latent after `step` of `of` steps stands in a run of `steps`; 0 where it has no exact place."""
        start, rest = divmod(step * steps, of)
        levels = self.sampler, self.scheduler_config
        return start if not rest and same_noise_level(*levels, (step, of), (start, steps)) else 0

    def step_near(self, k: int, of: int, steps: int) -> int:
        """The step of its run of `steps` whose noise level is nearest to that after `k` of `of`, for a start from a
        picture; 0 where that is the start of the run (MoDM §6: every model has a T of its own)."""
        return nearest_step(self.sampler, self.scheduler_config, (k, of), steps)

    def steps_for(self, steps: int, asked: ModelCard) -> int:
        """T of this model in a request of `steps` steps that was made for `asked`: default for default, and never more
        steps than the request names. Models with one default T run the request's."""
        if self.default_steps == asked.default_steps:
            return steps
        return self.default_steps if steps == asked.default_steps else min(steps, self.default_steps)

    def draws(self, size: Size, steps: int) -> bool:
        """Whether it may be asked for this size in so many steps."""
        return self.sizes.allows(size) and 1 <= steps <= self.max_steps

    def guidance_for(self, guidance: float, asked: ModelCard) -> float:
        """What stands for `guidance` here in a request that was made for `asked`: default for default, else the
        nearest that this model takes."""
        if guidance == asked.default_guidance:
            return self.default_guidance
        return min(max(guidance, self.guidance_min), self.guidance_max)

    def check(self, size: Size, steps: int, guidance: float, most_steps: int | None = None) -> None:
        """Raises InvalidRequestError naming the field and the rule that this model's request breaks; where it is served
        with fewer steps than it takes, `most_steps` is how many."""
        if not self.sizes.allows(size):
            raise InvalidRequestError("size", f"model {self.name!r} draws {self.sizes}", size)
        most = min(self.max_steps, most_steps or self.max_steps)
        if not 1 <= steps <= most:
            raise InvalidRequestError("steps", f"model {self.name!r} takes 1 to {most}", steps)
        if not self.guidance_min <= guidance <= self.guidance_max:  # also refuses nan
            rule = f"model {self.name!r} takes {self.guidance_min:g} to {self.guidance_max:g}"
            raise InvalidRequestError("guidance", rule, guidance)


_CARD: TypeAdapter[ModelCard] = TypeAdapter(ModelCard)

KNOWN: dict[str, ModelCard] = {
    card.path: card
    for card in TypeAdapter(list[ModelCard]).validate_json((Path(__file__).parent / "known.json").read_bytes())
}
"""Hub checkpoints whose card is known; any other checkpoint brings a card.json or says it by its configurations."""


_TOY_SIZES = SizeRule(sizes=(Size(64, 64), Size(96, 64), Size(64, 96), Size(96, 96)))
SHIPPED: dict[str, ModelCard] = {
    role: ModelCard(
        name=role,
        role=role,
        default_size=Size(64, 64),
        default_guidance=guidance,
        guidance_max=most,
        sizes=_TOY_SIZES,
        vae_scale=4,
        about=f"The {role} of the two small models that ship with Afterimage: toy scenes at 64 to 96 pixels",
    )
    # `small` has its guidance distilled into it: one row a step, and no other guidance to ask for
    for role, guidance, most in (("large", 2.5, 10.0), ("small", 1.0, 1.0))
}
"""Cards of the bundled models: their export writes them beside the weights as card.json, so that a copied folder is
enough. Weights that were exported without take them from here."""


def bundled_cards(root: Path = BUNDLED) -> dict[str, ModelCard]:
    """Cards of the models that ship and whose weights are there, by name."""
    cards = {name: replace(card, path=str(root / name)) for name, card in SHIPPED.items()}
    here = {name: card for name, card in cards.items() if (root / name / "model_index.json").is_file()}
    return here | {card.name: card for card in (read_card(path) for path in sorted(root.glob("*/card.json")))}


def served_card(settings: Settings) -> ModelCard:
    """The card of the large model these settings serve; see card_for."""
    return card_for(settings.large, settings)


def served_cards(settings: Settings) -> dict[str, ModelCard]:
    """By name: the large model's card, then those of the small ones, best first.

    Raises ConfigurationError when two of them are called the same: their lanes would be one.
    """
    cards = {(large := served_card(settings)).name: large}
    for name in filter(None, (part.strip() for part in settings.small.split(","))):
        card = replace(card_for(name, settings), role="small")
        if card.name in cards:
            raise ConfigurationError(f"small: two models served here are called {card.name!r} ({card.path} is one)")
        cards[card.name] = card
    return cards


def card_for(name_or_path: str, settings: Settings) -> ModelCard:
    """The card of a model that these settings name, computing in their dtype (`auto`: the card's own, on a CPU float32,
    since half precision is slow or missing there): every service must ask here, so that all of them mean the same
    CompatKey. A hub id that nothing is known of has its configurations fetched."""
    card = find_card(name_or_path, data_dir=settings.data_dir)
    if not card.family:
        card = card_of_weights(hub.configurations(card.path, card.name), card.name, card.path)
    if settings.dtype != "auto":
        return replace(card, dtype=settings.dtype)
    return replace(card, dtype="float32") if settings.device == "cpu" else card


def find_card(name_or_path: str, *, root: Path = BUNDLED, data_dir: Path | None = None) -> ModelCard:
    """The card of `bundled:NAME` (or NAME), a name that `afterimage models add` gave in `data_dir`, the name of a card
    that is known, a folder in diffusers' layout, a hub id (`owner/name`), or `noop:…`.

    Raises ModelError naming what was looked for; weights are not needed until they are used. The card of a hub id that
    is neither known nor on this disk has no family yet.
    """
    if data_dir is not None and (path := added(data_dir).get(name_or_path)):
        return replace(find_card(path, root=root), name=name_or_path)
    if name_or_path.startswith(NOOP_PREFIX):
        return noop_card(name_or_path)
    if name_or_path.startswith(BUNDLED_PREFIX):
        return _bundled_card(name_or_path.removeprefix(BUNDLED_PREFIX), root)
    if name_or_path in (bundled := bundled_cards(root)):
        return bundled[name_or_path]
    folder = Path(name_or_path).expanduser()
    if (folder / "card.json").is_file():
        return read_card(folder / "card.json")
    if (folder / INDEX).is_file():
        return card_of_weights(folder)
    if (known := _known_card(name_or_path)) is not None:
        return known
    if is_hub_id(name_or_path):
        name = name_or_path.split("/")[1].lower()
        if (here := hub.cached(name_or_path)) is not None:
            return card_of_weights(here, name, name_or_path)
        return ModelCard(name=name, path=name_or_path, family="")
    raise ModelError(
        f"model {name_or_path!r}: not bundled:NAME, not a name of `afterimage models list`, not a folder with a "
        f"card.json or a model_index.json ({folder}), and not a hub id (owner/name)"
    )


def _known_card(name_or_path: str) -> ModelCard | None:
    by_name = {card.name: card for card in KNOWN.values()}
    return KNOWN.get(name_or_path) or by_name.get(name_or_path)


def is_hub_id(path: str) -> bool:
    return path.count("/") == 1 and not path.startswith((".", "/", "~"))


def _bundled_card(name: str, root: Path) -> ModelCard:
    known = bundled_cards(root)
    if name not in known:
        raise ModelError(f"model bundled:{name}: no weights in {root / name}; there are: {', '.join(known) or 'none'}")
    return known[name]


def read_card(path: Path) -> ModelCard:
    """The card written in a card.json, filled up by the known card that its key `like` names, else by what is known of
    the weights beside it; keys that are not the card's (licences, scores) are for people and ignored."""
    written = read_json(path)
    weights = _defaults(path.parent, str(written.get("like", "")))
    try:
        card = _CARD.validate_python({**weights, **written})
    except ValidationError as error:
        raise ModelError(f"{path}: not a model card: {error}") from error
    if card.path:
        return card
    return replace(card, path=str(path.parent), vae_scale=weights.get("vae_scale", card.vae_scale))


def write_card(card: ModelCard, folder: Path) -> None:
    """Writes card.json into a folder of weights: everything but where they lie, so that the folder can be moved."""
    (folder / "card.json").write_bytes(_CARD.dump_json(card, indent=2, exclude={"path"}) + b"\n")


def _defaults(folder: Path, like: str = "") -> dict[str, Any]:
    """Fields of a card for the weights in `folder`: those of the published checkpoint that they are, or that `like`
    names, else their pipeline's defaults. Shapes are always the weights' own. Raises ModelError for an unknown `like`.
    """
    said, named = said_by(folder), _known_card(like) if like else None
    if like and named is None:
        names = ", ".join(card.name for card in KNOWN.values())
        raise ModelError(f"{folder / 'card.json'}: like must be one of {names}, or the hub id of one (got {like!r})")
    alike = [named] if named else published(folder, said, KNOWN.values())
    if len(alike) > 1:
        names = " or ".join(card.name for card in alike)
        return {**said, "about": f"Its shapes are those of {names}: say which by `like` in a card.json"}
    if not alike:
        return said
    own = [*SHAPES, *(OF_SIZE if said.get("default_size") != alike[0].default_size else ())]
    known = _CARD.dump_python(alike[0], exclude={"name", "path", "k_table", *own})
    return {**known, **{name: said[name] for name in own if name in said}}


def card_of_weights(folder: Path, name: str = "", path: str = "") -> ModelCard:
    """The card of weights that bring none: what their own configurations say, and defaults.

    name, path: what to call it and where to load it from, when that is not the folder.
    """
    # weights of a hub id may not be here yet, and its card must not change when they are
    said = said_by(folder) if path else _defaults(folder)
    return _CARD.validate_python({**said, "name": name or folder.name, "path": path or str(folder)})


def weights_folder(card: ModelCard) -> Path:
    """Where `card`'s weights lie on this disk; see ModelCard.folder."""
    folder = Path(card.path).expanduser()
    if (folder / INDEX).is_file():
        if wrong := faults(folder):
            raise ModelError(f"model {card.name!r}: path: {folder} is not whole: {wrong}; copy or fetch it again")
        return folder
    if folder.exists() or not is_hub_id(card.path):
        raise ModelError(f"model {card.name!r}: no weights in {folder} (no model_index.json there)")
    return hub.checkpoint(card.path, card.name)


def noop_card(path: str) -> ModelCard:
    """Card of a denoiser that only waits: any size, any T."""
    name = dict(parse_qsl(path.removeprefix(NOOP_PREFIX).lstrip("?"))).get("name", "noop")
    return ModelCard(
        name=name,
        path=path,
        family="noop",
        default_size=Size(64, 64),
        default_guidance=1.0,
        max_steps=1000,
        sizes=SizeRule(multiple_of=4, min_px=16),
        vae_scale=4,
        about="Waits a known time per step instead of denoising",
    )


def noop_hash(path: str) -> str:
    """A stand-in weights hash: what the URL says is what the denoiser does."""
    return hashlib.sha256(path.encode()).hexdigest()[:16]
