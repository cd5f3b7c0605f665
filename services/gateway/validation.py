"""Validation: turn a client's message into a Request with every default filled in, or name the field and the rule it
breaks."""

from __future__ import annotations

import re
import secrets
from collections.abc import Callable
from dataclasses import replace

from protos import common_pb2 as pb
from services.gateway.caller import MOST_PRIORITY
from services.gateway.served_models import Models
from services.gateway.uploads import check_bytes
from shared.domain.clip_length import check_length
from shared.domain.errors import InvalidRequestError
from shared.domain.identity import under
from shared.domain.ids import is_id
from shared.domain.plan_rules import steps_at
from shared.domain.requests import MOST_DEADLINE_S
from shared.domain.types import CacheMode, Modality, Request, Size
from shared.models import ModelCard
from shared.models.card_lookup import VIDEO
from shared.models.memory import MOST_PIXELS
from shared.runtime.rpc_types import cache_from_proto, scope_from_proto, variation_from_proto
from shared.runtime.settings import Settings

_CONTROL = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f]")
"""Control characters, except tabs and line ends."""
_ENUMS = {
    field: {number: name for name, number in kind.items()}
    for field, kind in (
        ("cache", pb.CacheMode),
        ("scope", pb.Scope),
        ("modality", pb.Modality),
        ("variation", pb.Variation),
    )
}
"""Names of the enum values by field and number."""
_MAX_USER_CHARS = 200
_STRENGTH = 0.8
"""Strength of a request that names only `from_job` or `image`, as in diffusers."""


def validate(
    message: pb.Request,
    models: Models,
    settings: Settings,
    tenant: str,
    fitting: Callable[[str], int] = lambda _: 0,
    subject: str = "",
) -> tuple[Request, ModelCard]:
    """Return the Request and the card of its model. fitting: pixels of a request of this model that the workers'
    memory holds; 0: unknown. subject: of the key that calls; empty: anonymous.

    Chooses a random seed when the client gave none (then `seed_given` is False). Raises InvalidRequestError.
    """
    check_prompt(message.prompt, settings)
    _check_text("negative_prompt", message.negative_prompt, settings.max_prompt_chars)
    _check_text("user", message.user, _MAX_USER_CHARS)
    _check_enums(message)
    video = message.modality == pb.MODALITY_VIDEO
    card = models.choose_video(message.quality) if video else models.choose(message.quality)
    size = _size(message, card)
    unset = message.steps_auto or not message.HasField("steps")
    auto = bool(card.auto_steps) and unset and not (message.from_job or message.continue_job or message.image)
    steps = card.default_steps if unset else message.steps
    guidance = message.guidance if message.HasField("guidance") else card.default_guidance
    card.check(size, steps, guidance, most_steps=settings.max_steps)
    frames = _frames(message, card) if video else _one_frame(message)
    check_work(size, frames, steps, settings, fitting=fitting(card.name))
    if abs(message.priority) > MOST_PRIORITY:
        raise InvalidRequestError("priority", f"must be from -{MOST_PRIORITY} to {MOST_PRIORITY}", message.priority)
    _check_upload(message, settings)
    user = under(subject, message.user)
    if message.scope == pb.SCOPE_PRIVATE and not user:
        raise InvalidRequestError("user", "must name the user when scope is private")
    request = Request(
        prompt=message.prompt,
        negative_prompt=message.negative_prompt,
        size=size,
        steps=steps,
        guidance=guidance,
        seed=message.seed if message.HasField("seed") else secrets.randbits(32),
        seed_given=message.HasField("seed"),
        modality=Modality.VIDEO if video else Modality.IMAGE,
        frames=frames,
        quality=message.quality or "auto",
        tenant=tenant,
        user=user,
        priority=message.priority,
        deadline_s=_deadline(message),
        slo=_slo(message, settings),
        drop_if_late=message.drop_if_late,
        savings=_share(message, "savings", 0.5),
        fresh_noise=_share(message, "fresh_noise", 0.0),
        cache=CacheMode.OFF if message.image else cache_from_proto(message.cache),
        scope=scope_from_proto(message.scope),
        variation=variation_from_proto(message.variation),
        steps_auto=auto,
        from_job=message.from_job,
        strength=_strength(message, steps),
        continue_job=_continue_job(message, frames),
    )
    return request, card


def image_count(n: int, settings: Settings) -> int:
    """Return the number of images of a request, which leaves out `n` for one."""
    most = min(settings.max_images, settings.max_queued)
    if n > most:
        limit = "max_images" if most == settings.max_images else "max_queued"
        raise InvalidRequestError("n", f"must be from 1 to {most} ({limit})", n)
    return n or 1


def seeds_of(request: Request, count: int) -> list[Request]:
    """Return the request once per image, each with the next seed."""
    if request.seed + count > 2**64:
        raise InvalidRequestError("seed", f"must leave room for {count} seeds below 2^64", request.seed)
    return [replace(request, seed=request.seed + number) for number in range(count)]


def default_refused(card: ModelCard, settings: Settings) -> str:
    """Return why these settings refuse a request that names neither size nor length nor steps; empty: they take it."""
    try:
        card.check(card.default_size, card.default_steps, card.default_guidance, most_steps=settings.max_steps)
        check_work(card.default_size, card.frames.default if card.role == VIDEO else 1, card.default_steps, settings)
    except InvalidRequestError as error:
        return str(error)
    return ""


def page_size(wanted: int) -> int:
    """Return the number of jobs per page: 1 to 1000; 0 means 50."""
    if wanted > 1000:
        raise InvalidRequestError("page_size", "must be from 1 to 1000, or 0 for 50", wanted)
    return wanted or 50


def page_token(token: str) -> str:
    """Return the id of the job before the page: the last job of the previous page, or empty."""
    if token and not is_id(token):
        raise InvalidRequestError("page_token", "must be the id that ends the page before, or empty", token[:100])
    return token


def check_prompt(prompt: str, settings: Settings) -> None:
    """Raise InvalidRequestError for an empty prompt, and for one that is too long or no text."""
    _check_text("prompt", prompt, settings.max_prompt_chars)
    if not prompt.strip():
        raise InvalidRequestError("prompt", "must not be empty")


def _check_text(field: str, text: str, limit: int) -> None:
    if len(text) > limit:
        raise InvalidRequestError(field, f"must have at most {limit} characters", f"{len(text)} characters")
    if found := _CONTROL.search(text):
        rule = f"must not contain control characters (U+{ord(found[0]):04X} at position {found.start()})"
        raise InvalidRequestError(field, rule)


def _check_enums(message: pb.Request) -> None:
    """Refuse unknown enum numbers, which proto3 lets through. Replacing them by the default would do what the client
    did not ask for."""
    for field, kind in _ENUMS.items():
        value = getattr(message, field)
        if value not in kind:
            names = ", ".join(name.rsplit("_", 1)[1].lower() for name in list(kind.values())[1:])
            raise InvalidRequestError(field, f"must be one of {names}", value)


def _one_frame(message: pb.Request) -> int:
    if message.HasField("seconds"):
        raise InvalidRequestError("seconds", "is for clips alone (modality video)", message.seconds)
    if message.HasField("frames") and message.frames != 1:
        raise InvalidRequestError("frames", "must be 1 for an image", message.frames)
    return 1


def _frames(message: pb.Request, card: ModelCard) -> int:
    """Return the length of a clip: as given, from its seconds, or the model's default."""
    frames, seconds = (getattr(message, field) if message.HasField(field) else None for field in ("frames", "seconds"))
    check_length(frames, seconds)
    frames = card.frames.default if frames is None else frames
    if seconds is not None:
        if message.seconds * card.frames.fps > card.frames.most + 0.5:
            longest = card.frames.most / card.frames.fps
            said = f"model {card.name!r} generates at most {longest:g} s ({card.frames.most} frames)"
            raise InvalidRequestError("seconds", said, message.seconds)
        frames = card.frames.of_seconds(message.seconds)
    if not card.frames.allows(frames):
        raise InvalidRequestError("frames", f"model {card.name!r} generates {card.frames}", frames)
    return frames


def check_work(size: Size, frames: int, steps: int, settings: Settings, named_in: str = "", fitting: int = 0) -> None:
    """Raise InvalidRequestError for a request whose frames × pixels, or these × steps, are above the service's
    limits. named_in: field with the job whose frames begin the clip; `frames` then counts the whole clip. fitting:
    pixels that the workers' memory holds, which count where max_pixels is 0; 0: unknown."""
    pixels, whole = frames * size.width * size.height, " of the whole clip" if named_in else ""
    field = named_in or ("frames" if frames > 1 else "size")
    most = settings.max_pixels or min(fitting or MOST_PIXELS, MOST_PIXELS)
    if pixels > most:
        by_memory = not settings.max_pixels and most < MOST_PIXELS
        reason = "the memory of the workers; max_pixels sets another limit" if by_memory else "max_pixels"
        rule = f"frames × pixels{whole} must be at most {most} ({reason})"
        raise InvalidRequestError(field, rule, f"{frames} × {size}")
    if pixels * steps > settings.max_pixel_steps:
        rule = f"frames × pixels × steps{whole} must be at most {settings.max_pixel_steps} (max_pixel_steps)"
        raise InvalidRequestError(field, rule, f"{frames} × {size} × {steps}")


def _size(message: pb.Request, card: ModelCard) -> Size:
    if message.HasField("width") != message.HasField("height"):
        missing = "height" if message.HasField("width") else "width"
        raise InvalidRequestError(missing, "width and height go together: set both or neither")
    return Size(message.width, message.height) if message.HasField("width") else card.default_size


def _deadline(message: pb.Request) -> float | None:
    if not message.HasField("deadline_s"):
        return None
    if not 0 < message.deadline_s <= MOST_DEADLINE_S:
        rule = f"must be a number of seconds above 0, at most {MOST_DEADLINE_S} (30 days)"
        raise InvalidRequestError("deadline_s", rule, message.deadline_s)
    return message.deadline_s


def _slo(message: pb.Request, settings: Settings) -> str:
    """Return the class of the deadline; empty without one. `Intake` computes the seconds."""
    if message.slo and message.HasField("deadline_s"):
        raise InvalidRequestError("slo", "name slo or deadline_s, not both", message.slo)
    if message.slo and message.slo not in settings.slo_classes:
        rule = f"must be one of {', '.join(settings.slo_classes) or 'none'} (slo_classes)"
        raise InvalidRequestError("slo", rule, message.slo)
    return message.slo


def _strength(message: pb.Request, steps: int) -> float:
    """Return the strength of a start from an image or from a clip's last frame; 1 for other requests."""
    for field in ("from_job", "continue_job"):
        _check_text(field, getattr(message, field), _MAX_USER_CHARS)
    if not (message.from_job or message.continue_job or message.image):
        if message.HasField("strength"):
            raise InvalidRequestError("strength", "needs from_job, continue_job or image", message.strength)
        return 1.0
    default = 1.0 if message.continue_job or message.mask else _STRENGTH
    strength = message.strength if message.HasField("strength") else default
    if not 0.0 < strength <= 1.0:  # also refuses nan
        raise InvalidRequestError("strength", "must be above 0 and at most 1", strength)
    if not steps_at(strength, steps):
        raise InvalidRequestError("strength", f"must run at least 1 of {steps} steps", strength)
    return strength


def _check_upload(message: pb.Request, settings: Settings) -> None:
    """Check what goes with an uploaded image; `services.gateway.uploads` reads the image itself."""
    if not message.image:
        if message.mask:
            raise InvalidRequestError("mask", "needs image")
        return
    check_bytes(len(message.image) + len(message.mask), settings.max_upload_bytes)
    if message.from_job or message.continue_job:
        raise InvalidRequestError("image", "name one start: image, from_job or continue_job")
    if message.mask and message.modality == pb.MODALITY_VIDEO:
        raise InvalidRequestError("mask", "is for images alone (modality image)")
    if message.cache not in (pb.CACHE_MODE_UNSPECIFIED, pb.CACHE_MODE_AUTO, pb.CACHE_MODE_OFF):
        raise InvalidRequestError("cache", "must be auto or off with an image, which stays out of the cache")
    if message.scope == pb.SCOPE_PUBLIC:
        raise InvalidRequestError("scope", "must be private or tenant with an image, which stays out of the cache")


def _continue_job(message: pb.Request, frames: int) -> str:
    """Return the job whose clip goes on; empty for other requests."""
    named = message.continue_job
    if named and message.modality != pb.MODALITY_VIDEO:
        raise InvalidRequestError("continue_job", "is for clips alone (modality video)", named)
    if named and message.from_job:
        raise InvalidRequestError("continue_job", "name from_job or continue_job, not both", named)
    if named and frames < 2:
        raise InvalidRequestError("frames", "must be above 1 to continue a clip: the first frames are held", frames)
    return named


def _share(message: pb.Request, field: str, default: float) -> float:
    value = float(getattr(message, field)) if message.HasField(field) else default
    if not 0.0 <= value <= 1.0:  # also refuses nan
        raise InvalidRequestError(field, "must be from 0 to 1", value)
    return value
