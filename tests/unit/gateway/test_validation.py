"""Requests are checked against the card of the model they are for, and completed from it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from protos import common_pb2 as pb
from services.gateway.caller import caller_of, check_tenant
from services.gateway.served_models import Models
from services.gateway.validation import default_refused, page_size, page_token, validate
from shared.domain.errors import InvalidRequestError
from shared.domain.identity import Principal, Role
from shared.domain.ids import new_id
from shared.domain.types import CacheMode, Request, Scope, Size
from shared.models.card import FrameRule, ModelCard, SizeRule
from shared.runtime.settings import Settings

LARGE = ModelCard(name="large", sizes=SizeRule(sizes=(Size(64, 64), Size(96, 64))), default_size=Size(64, 64))
SMALL = ModelCard(name="tiny-one", default_steps=8, default_guidance=1.0, role="small")
MODELS = Models({"large": LARGE, "tiny-one": SMALL}, large="large", small="tiny-one")


def checked(settings: Settings, **fields: Any) -> Request:
    return validate(pb.Request(**({"prompt": "a fox"} | fields)), MODELS, settings, "acme")[0]


def test_unset_fields_take_the_models_defaults(settings: Settings) -> None:
    request = checked(settings)
    assert (request.size, request.steps, request.guidance) == (Size(64, 64), 50, 7.5)
    assert (request.cache, request.scope, request.tenant) == (CacheMode.AUTO, Scope.TENANT, "acme")
    assert (request.savings, request.fresh_noise, request.deadline_s) == (0.5, 0.0, None)


def test_steps_are_left_to_the_plan_where_the_card_lists_several(settings: Settings) -> None:
    several = Models({"large": replace(LARGE, auto_steps=(5, 10, 50))}, large="large")

    def steps(models: Models, **fields: Any) -> tuple[int, bool]:
        request = validate(pb.Request(prompt="a fox", **fields), models, settings, "acme")[0]
        return request.steps, request.steps_auto

    assert steps(several) == (50, True)
    assert steps(several, steps=10) == (10, False)
    assert steps(several, steps=50, steps_auto=True) == (50, True)  # as an earlier answer had it
    assert steps(MODELS) == (50, False)
    assert steps(MODELS, steps=9, steps_auto=True) == (50, False)
    with pytest.raises(ValueError, match="auto_steps must contain default_steps, 50"):
        replace(LARGE, auto_steps=(5, 10))


def test_an_image_has_one_frame_and_no_length(settings: Settings) -> None:
    assert checked(settings, frames=1).frames == 1
    with pytest.raises(InvalidRequestError, match=r"seconds: is for clips alone \(modality video\) \(got '1.0'\)"):
        checked(settings, seconds=1.0)
    with pytest.raises(InvalidRequestError, match=r"frames: must be 1 for an image \(got '?2'?\)"):
        checked(settings, frames=2)


def test_frames_and_pixels_are_bounded_however_few_steps_run(settings: Settings) -> None:
    video = ModelCard(name="clips", role="video", frames=FrameRule(default=16, most=64))
    models = Models({"large": LARGE}, large="large", video=video)

    def frames(count: int, side: int) -> int:
        asked = pb.Request(prompt="a fox", modality="MODALITY_VIDEO", frames=count, width=side, height=side, steps=1)
        return validate(asked, models, settings, "acme")[0].frames

    assert (frames(64, 1024), frames(32, 2048)) == (64, 32)
    with pytest.raises(InvalidRequestError, match=r"frames: frames × pixels must be at most 134217728 \(max_pixels\)"):
        frames(64, 2048)


@pytest.mark.parametrize("modality", ["MODALITY_IMAGE", "MODALITY_VIDEO"])
def test_what_the_workers_memory_does_not_hold_is_refused_with_the_limit(modality: str) -> None:
    video = ModelCard(name="clips", role="video", frames=FrameRule(default=1, most=64))
    models = Models({"large": replace(LARGE, sizes=SizeRule())}, large="large", video=video)

    def size(side: int, most: int = 0, fitting: int = 1024 * 1024) -> Size:
        asked = pb.Request(prompt="a fox", modality=modality, width=side, height=side, steps=1)
        return validate(asked, models, Settings(max_pixels=most), "acme", lambda _: fitting)[0].size

    assert size(1024) == Size(1024, 1024)
    with pytest.raises(InvalidRequestError, match=r"size: frames × pixels must be at most 1048576 \(the memory of"):
        size(2048)
    assert size(2048, fitting=0) == size(2048, most=2**22) == Size(2048, 2048)  # unknown, or an explicit setting
    with pytest.raises(InvalidRequestError, match=r"size: frames × pixels must be at most 4096 \(max_pixels\)"):
        size(1024, most=4096)


def test_settings_that_refuse_default_requests_are_told_at_the_start() -> None:
    clips = ModelCard(name="clips", role="video", default_size=Size(64, 64), frames=FrameRule(default=16, most=64))
    assert default_refused(LARGE, Settings()) == default_refused(LARGE, Settings(max_pixels=64 * 64)) == ""
    assert default_refused(LARGE, Settings(max_pixels=1000)).startswith("size: frames × pixels must be at most 1000")
    assert default_refused(clips, Settings(max_pixels=64 * 64)).startswith("frames: frames × pixels must be at most")
    assert default_refused(LARGE, Settings(max_steps=10)).startswith("steps: ")


def test_zero_is_a_value_and_not_an_unset_field(settings: Settings) -> None:
    assert checked(settings, savings=0.0).savings == 0.0
    assert checked(settings, seed=0).seed == 0
    assert checked(settings, seed=0).seed_given
    with pytest.raises(InvalidRequestError, match="steps"):
        checked(settings, steps=0)


def test_a_start_from_a_job_takes_diffusers_strength_unless_it_names_one(settings: Settings) -> None:
    assert (checked(settings).from_job, checked(settings).strength) == ("", 1.0)
    assert checked(settings, from_job="j1").strength == 0.8
    assert checked(settings, from_job="j1", strength=0.3).strength == 0.3
    with pytest.raises(InvalidRequestError, match="control characters"):
        checked(settings, from_job="j\x00")


def test_a_seed_is_drawn_when_none_is_given(settings: Settings) -> None:
    seeds = {checked(settings).seed for _ in range(20)}
    assert len(seeds) == 20
    assert not checked(settings).seed_given


@pytest.mark.parametrize(
    ("quality", "model"), [("", "large"), ("auto", "large"), ("large", "large"), ("small", "tiny-one")]
)
def test_quality_names_a_role_or_a_model(settings: Settings, quality: str, model: str) -> None:
    _, card = validate(pb.Request(prompt="a", quality=quality), MODELS, settings, "default")
    assert card.name == model
    assert validate(pb.Request(prompt="a", quality="tiny-one"), MODELS, settings, "default")[1] is SMALL


def test_an_unknown_model_is_answered_with_those_that_exist(settings: Settings) -> None:
    with pytest.raises(InvalidRequestError, match="auto, large, small, tiny-one") as caught:
        checked(settings, quality="huge")
    assert caught.value.field == "quality"


def test_a_size_is_answered_with_those_the_model_draws(settings: Settings) -> None:
    assert checked(settings, width=96, height=64).size == Size(96, 64)
    with pytest.raises(InvalidRequestError, match="one of 64x64, 96x64"):
        checked(settings, width=64, height=96)


@pytest.mark.parametrize("steps", [0, 201, 100_001])
def test_whatever_steps_are_asked_for_the_answer_is_what_the_model_takes(settings: Settings, steps: int) -> None:
    with pytest.raises(InvalidRequestError, match=rf"steps: model 'large' takes 1 to 200 \(got '{steps}'\)"):
        checked(settings, steps=steps)
    with pytest.raises(InvalidRequestError, match="steps: model 'large' takes 1 to 20 "):
        checked(settings.model_copy(update={"max_steps": 20}), steps=steps)


def test_tabs_and_line_ends_are_text(settings: Settings) -> None:
    assert checked(settings, prompt="a fox\n\tin the snow").prompt == "a fox\n\tin the snow"
    with pytest.raises(InvalidRequestError, match=r"U\+0007 at position 1"):
        checked(settings, prompt="a\x07")


def test_the_longest_prompt_is_taken_and_one_more_character_is_not(settings: Settings) -> None:
    assert checked(settings, prompt="x" * settings.max_prompt_chars)
    with pytest.raises(InvalidRequestError, match="at most 2000 characters"):
        checked(settings, prompt="x" * (settings.max_prompt_chars + 1))


@pytest.mark.parametrize("tenant", ["", "a:b", "ü", "x" * 65, "a b", "a/b"])
def test_tenants_that_could_be_confused_are_refused(tenant: str) -> None:
    with pytest.raises(InvalidRequestError, match="tenant"):
        check_tenant(tenant)


def test_a_model_that_is_called_small_is_asked_for_by_its_name(settings: Settings) -> None:
    alone = Models({"small": replace(SMALL, name="small")}, large="small")
    for quality in ("small", "auto", "large"):
        assert alone.choose(quality).name == "small"
    with pytest.raises(InvalidRequestError, match=r"a model served here: auto, large, tiny-one"):
        Models({"tiny-one": SMALL}, large="tiny-one").choose("small")


def test_a_page_begins_where_a_page_ended() -> None:
    assert page_token("") == ""
    assert page_token(token := new_id()) == token
    for wrong in ("garbage", "%", new_id().upper(), new_id() + "0", new_id()[:-1] + "u", "ü" * 26):
        with pytest.raises(InvalidRequestError, match="page_token: must be the id that ends the page before") as caught:
            page_token(wrong)
        assert caught.value.field == "page_token"


def test_page_sizes() -> None:
    assert (page_size(0), page_size(1), page_size(1000)) == (50, 1, 1000)
    with pytest.raises(InvalidRequestError, match="page_size"):
        page_size(1001)


@pytest.mark.parametrize(
    ("subject", "roles", "most"),
    [
        ("", ["user"], 100),  # an anonymous caller, on this machine
        ("bob", ["user"], 4),
        ("bob", ["user", "publisher"], 4),
        ("chief", ["tenant-admin"], 100),
    ],
)
def test_the_role_limits_the_priority(settings: Settings, subject: str, roles: list[str], most: int) -> None:
    caller = caller_of(Principal("acme" if subject else "", subject, frozenset(map(Role, roles))), [])
    for asked in (-100, 0, 4, 5, 100):
        request, said = caller.clamped(checked(settings, priority=asked))
        assert request.priority == min(asked, most)
        assert said == (
            [] if asked <= most else [f"priority: {asked} needs a key with the role tenant-admin; 4 is used"]
        )
