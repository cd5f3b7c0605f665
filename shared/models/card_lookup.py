"""Lookup of a model's card by name, folder, hub id or settings: a shipped card, a known one, or one from its folder."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter, ValidationError

from shared.domain.errors import ConfigurationError, ModelError
from shared.domain.types import Size
from shared.models import hub
from shared.models.added import added
from shared.models.card import NOOP_PREFIX, ModelCard, SizeRule, is_hub_id, noop_card
from shared.models.checkpoint import INDEX, read_json, said_by
from shared.models.published import OF_SIZE, SHAPES, published
from shared.models.step_reuse import UNETS
from shared.runtime.settings import Settings

BUNDLED = Path(__file__).parent / "bundled"
"""Folder of the models that ship with Afterimage, one folder each."""

BUNDLED_PREFIX = "bundled:"
VIDEO = "video"
"""Role of the model that serves clips."""

_CARD: TypeAdapter[ModelCard] = TypeAdapter(ModelCard)

KNOWN: dict[str, ModelCard] = {
    card.path: card
    for card in TypeAdapter(list[ModelCard]).validate_json((Path(__file__).parent / "known.json").read_bytes())
}
"""Known cards of hub checkpoints; any other checkpoint has a card.json, or its configurations provide the card."""


_TOY_SIZES = SizeRule(sizes=(Size(64, 64), Size(96, 64), Size(64, 96), Size(96, 96)))
SHIPPED: dict[str, ModelCard] = {
    role: ModelCard(
        name=role,
        role=role,
        default_size=Size(64, 64),
        auto_steps=chosen,
        unprompted=unprompted,
        default_guidance=guidance,
        guidance_max=most,
        sizes=_TOY_SIZES,
        vae_scale=4,
        about=f"The {role} bundled model; generates toy scenes of 64 to 96 pixels",
    )
    # guidance is distilled into `small`: one row a step, and no other guidance is accepted
    for role, guidance, most, unprompted, chosen in (
        ("large", 2.5, 10.0, 0.1, (5, 10, 50)),
        ("small", 1.0, 1.0, 0.0, (5, 10, 25, 50)),
    )
}
"""Cards of the bundled models. The export writes them beside the weights as card.json, so that a copied folder is
complete. Weights without a card.json use these cards."""


def bundled_cards(root: Path = BUNDLED) -> dict[str, ModelCard]:
    """Return the cards of the bundled models with weights on this disk, by name."""
    cards = {name: replace(card, path=str(root / name)) for name, card in SHIPPED.items()}
    here = {name: card for name, card in cards.items() if (root / name / "model_index.json").is_file()}
    return here | {card.name: card for card in (read_card(path) for path in sorted(root.glob("*/card.json")))}


def served_card(settings: Settings) -> ModelCard:
    """Return the card of the large model in these settings; see card_for."""
    return card_for(settings.large, settings)


def served_cards(settings: Settings) -> dict[str, ModelCard]:
    """Return cards by name: the large model's, then those of the small models, best first, then the video model's.

    Raise ConfigurationError if two models have one name, since they would share a lane, and if the video model
    generates no clips.
    """
    cards: dict[str, ModelCard] = {}
    for role, name in given_models(settings):
        card = card_for(name, settings)
        card = replace(card, role=role) if role != "large" or card.role == VIDEO else card
        if card.name in cards:
            path = cards[card.name].path
            raise ConfigurationError(
                f"{role}: two served models have the name {card.name!r} (one is {path}); rename one"
            )
        if role == VIDEO and card.frames.most == 1:
            raise ConfigurationError(f"video: model {card.name!r} generates images only; name a model of clips")
        cards[card.name] = card
    return cards


def given_models(settings: Settings) -> list[tuple[str, str]]:
    """Return (role, name) of the served models, as the settings name them, in the order of `served_cards`."""
    smalls = filter(None, (part.strip() for part in settings.small.split(",")))
    video = [(VIDEO, settings.video)] if settings.video else []
    return [("large", settings.large), *(("small", name) for name in smalls), *video]


def of_images(cards: Mapping[str, ModelCard]) -> dict[str, ModelCard]:
    """Return the cards of the models that serve images: all but the video model, the large model's first."""
    return {name: card for name, card in cards.items() if card.role != VIDEO}


def card_for(name_or_path: str, settings: Settings) -> ModelCard:
    """Return the card of a model that these settings name, with their dtype and sampler.

    `auto` is the card's own dtype, and float32 on a CPU, where half precision is slow or missing. Every service must
    use this function, so that all of them agree on the CompatKey. Configurations of an unknown hub id are fetched.
    Raise ModelError as `find_card`, and for a `patch_px` that does not fit the model."""
    card = find_card(name_or_path, data_dir=settings.data_dir)
    if not card.family:
        card = card_of_weights(hub.configurations(card.path, card.name), card.name, card.path)
    _check_patch(card, settings)
    if settings.step_reuse == "auto" and not settings.batch_invariant:
        card = replace(card, reuse_with=(settings.layout, settings.patch_px))
    if settings.regions == "on" and card.family in UNETS:
        card = replace(card, regions=True)
    if settings.sampler not in ("auto", card.sampler):
        card = replace(card, sampler=settings.sampler, eta=0.0)
    if settings.dtype != "auto":
        return replace(card, dtype=settings.dtype)
    return replace(card, dtype="float32") if settings.device == "cpu" else card


def check_patch(name: str, patch_px: int, multiple_px: int) -> None:
    """Raise ModelError for patches that the levels of the model's UNet cannot halve. multiple_px: pixels of the
    smallest patch that they can."""
    if patch_px % multiple_px:
        raise ModelError(f"patch_px: must be a multiple of {multiple_px} pixels for model {name!r} (got {patch_px})")


def _check_patch(card: ModelCard, settings: Settings) -> None:
    """Raise as `check_patch`, before anything is loaded. The weights of a hub id are checked when they are loaded."""
    if settings.layout not in ("patches", "auto") or card.family not in UNETS or settings.batch_invariant:
        return
    config = read_json(Path(card.path).expanduser() / "unet" / "config.json")
    if levels := len(config.get("up_block_types") or ()):
        check_patch(card.name, settings.patch_px, card.vae_scale * 2 ** (levels - 1))


def find_card(name_or_path: str, *, root: Path = BUNDLED, data_dir: Path | None = None) -> ModelCard:
    """Return the card of a name, a folder or a hub id, without its weights.

    Accepted are `bundled:NAME` (or NAME), a name of `afterimage models add` in `data_dir`, the name of a known card, a
    folder in diffusers' layout, a hub id (`owner/name`, or `owner/name@revision`), and `noop:…`. Raise ModelError with
    the name if nothing matches. The card of a hub id that is neither known nor on this disk has no family yet.
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
        name = hub.repository(name_or_path)[0].split("/")[1].lower()
        if (here := hub.cached(name_or_path)) is not None:
            return card_of_weights(here, name, name_or_path)
        return ModelCard(name=name, path=name_or_path, family="")
    raise ModelError(
        f"model {name_or_path!r}: not bundled:NAME, not a name of `afterimage models list`, not a folder with a "
        f"card.json or a model_index.json ({folder}), and not a hub id (owner/name)"
    )


def _known_card(name_or_path: str) -> ModelCard | None:
    by_name = {card.name: card for card in KNOWN.values()}
    card = KNOWN.get(hub.repository(name_or_path)[0])
    return replace(card, path=name_or_path) if card else by_name.get(name_or_path)


def _bundled_card(name: str, root: Path) -> ModelCard:
    known = bundled_cards(root)
    if name not in known:
        raise ModelError(f"model bundled:{name}: no weights in {root / name}; there are: {', '.join(known) or 'none'}")
    return known[name]


def read_card(path: Path) -> ModelCard:
    """Read a card.json; missing fields come from the known card in its key `like`, else from the weights beside it.

    Keys outside the card (licences, scores) are for readers and ignored."""
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
    """Write card.json into a folder of weights, without their path, so that the folder can be moved."""
    (folder / "card.json").write_bytes(
        _CARD.dump_json(card, indent=2, exclude={"path", "reuse_with", "regions"}) + b"\n"
    )


def _defaults(folder: Path, like: str = "") -> dict[str, Any]:
    """Return default fields of a card for the weights in `folder`.

    They come from the published checkpoint that `like` names or that the weights equal, else from the pipeline's
    defaults. Shapes are always the weights' own. Raise ModelError for an unknown `like`.
    """
    said, named = said_by(folder), _known_card(like) if like else None
    if like and named is None:
        names = ", ".join(card.name for card in KNOWN.values())
        raise ModelError(f"{folder / 'card.json'}: like must be one of {names}, or the hub id of one (got {like!r})")
    alike = [named] if named else published(folder, said, KNOWN.values())
    if len(alike) > 1:
        names = " or ".join(card.name for card in alike)
        return {**said, "about": f"Its shapes are those of {names}: set `like` in its card.json to one of them"}
    if not alike:
        return said
    own = [*SHAPES, *(OF_SIZE if said.get("default_size") != alike[0].default_size else ())]
    known = _CARD.dump_python(alike[0], exclude={"name", "path", "k_table", "reuse_with", "regions", *own})
    return {**known, **{name: said[name] for name in own if name in said}}


def card_of_weights(folder: Path, name: str = "", path: str = "") -> ModelCard:
    """Return a card for weights without card.json, from their configurations and defaults.

    `name` and `path` replace the folder's name and path.
    """
    # a hub id's weights may arrive later, and its card must not change then
    said = said_by(folder) if path else _defaults(folder)
    return _CARD.validate_python({**said, "name": name or folder.name, "path": path or str(folder)})
