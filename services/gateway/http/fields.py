"""Fields of requests and answers: OpenAI's images API, with the names that other image servers and Afterimage add."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field
from pydantic_core import PydanticCustomError

from services.gateway.http.pictures import Output


def _unicode(text: str) -> str:
    """Refuse lone surrogates, which JSON can write and UTF-8 cannot."""
    if not text.isascii() and any("\ud800" <= character <= "\udfff" for character in text):
        raise PydanticCustomError("string_unicode", "must be Unicode text without lone surrogates")
    return text


Text = Annotated[str, AfterValidator(_unicode)]
Size = Annotated[str, Field(pattern=r"^(auto|[1-9][0-9]{0,4}x[1-9][0-9]{0,4})$", examples=["64x64"])]
Pixels = Annotated[int, Field(ge=1, le=2**31 - 1)]


class Fields(BaseModel):
    """A request's JSON. Types are exact, and unknown names are refused, as OpenAI does."""

    model_config = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False)


class ImageFields(Fields):
    """`POST /v1/images/generations`. null: not given."""

    prompt: Text
    model: Text | None = Field(None, description="auto, large, small, or an id of GET /v1/models.")
    n: int | None = Field(None, ge=1, description="Images, of the seeds seed, seed + 1, …")
    size: Size | None = Field(None, description="WIDTHxHEIGHT in pixels; auto: the model's own.")
    width: Pixels | None = Field(None, description="In place of `size`, together with `height`.")
    height: Pixels | None = None
    quality: Literal["auto", "standard", "medium", "high", "hd", "low"] | None = Field(
        None, description="high and hd: the large model; low: the small one, where there is one; else the plan decides."
    )
    response_format: Literal["b64_json", "url"] | None = Field(
        None, description="url: an address that works without a key until it expires. Default: b64_json."
    )
    output_format: Output | None = None
    output_compression: int | None = Field(None, ge=0, le=100, description="Quality of JPEG and WebP.")
    background: Literal["auto", "opaque"] | None = None
    user: Text | None = Field(None, description="A label of the caller's own users, under its key.")
    stream: bool | None = Field(None, description="Answer with Server-Sent Events.")
    partial_images: int | None = Field(None, ge=0, le=3, description="Previews per image of a stream.")
    style: str | None = Field(None, description="Ignored; the answer says so. As are the next two.")
    moderation: str | None = None
    generator_device: str | None = None
    negative_prompt: Text | None = None
    num_inference_steps: int | Literal["auto"] | None = Field(None, description="auto: the plan decides.")
    guidance_scale: float | None = None
    seed: int | None = Field(None, ge=0, le=2**64 - 1)
    cache: Literal["auto", "read", "write", "off"] | None = None
    scope: Literal["private", "tenant", "public"] | None = Field(None, description="Who may start from this image.")
    deadline_s: float | None = Field(None, description="Seconds after acceptance.")
    slo: Text | None = Field(None, description="A class of deadlines (slo_classes), in place of `deadline_s`.")
    priority: int | None = Field(None, ge=-100, le=100)
    savings: float | None = Field(None, description="0: best quality, 1: most steps saved.")
    variation: Literal["auto", "same", "new"] | None = None


_FILE = {"type": "string", "format": "binary"}


def _with_files(**files: str) -> Any:
    """Return what adds files, with their descriptions, to the schema of a form's other fields."""

    def add(schema: dict[str, Any]) -> None:
        schema["properties"] |= {name: {**_FILE, "description": said} for name, said in files.items()}

    return add


class EditFields(ImageFields):
    """`POST /v1/images/edits`, as a form: numbers may be text, and the image is a file."""

    model_config = ConfigDict(
        strict=False,
        json_schema_extra=_with_files(
            image="PNG, JPEG or WebP to start from; also `image[]`.",
            mask="PNG of the image's size; its transparent pixels are generated anew.",
        ),
    )

    strength: float | None = Field(
        None, description="Share of the steps that run, above 0 up to 1: less keeps more. Default: .8, with a mask 1."
    )
    input_fidelity: str | None = Field(None, description="Ignored, as `style` is.")


class VideoFields(BaseModel):
    """`POST /v1/videos`, as JSON or as a form. Numbers may be text, as in forms."""

    model_config = ConfigDict(
        extra="forbid",
        allow_inf_nan=False,
        json_schema_extra=_with_files(input_reference="PNG, JPEG or WebP: the first frame. In a form alone."),
    )

    prompt: Text
    model: Text | None = None
    seconds: float | None = Field(None, gt=0, description="Length; default: the model's own.")
    num_frames: int | None = Field(None, ge=1, le=2**31 - 1, description="In place of `seconds`.")
    size: Size | None = None
    user: Text | None = None
    negative_prompt: Text | None = None
    num_inference_steps: int | Literal["auto"] | None = None
    guidance_scale: float | None = None
    seed: int | None = Field(None, ge=0, le=2**64 - 1)
    cache: Literal["auto", "read", "write", "off"] | None = None
    scope: Literal["private", "tenant", "public"] | None = None
    deadline_s: float | None = None
    slo: Text | None = None
    priority: int | None = Field(None, ge=-100, le=100)
    savings: float | None = None
    variation: Literal["auto", "same", "new"] | None = None


IGNORED = ("style", "moderation", "generator_device", "input_fidelity")
"""Fields that change nothing here and do no harm."""


class ErrorBody(BaseModel):
    message: str
    type: str
    param: str | None
    code: str | None


class ErrorAnswer(BaseModel):
    """Every answer that is no success."""

    error: ErrorBody


class Origin(BaseModel):
    """Where an image came from, and what that saved."""

    index: int
    job_id: str
    source: str = Field(description="noise, latent, image, stitched, exact or upload.")
    similarity: float = Field(description="Of the request to what the image starts from; 0 from noise.")
    start_step: int
    steps: int
    steps_run: int
    steps_saved: int
    skipped: float = Field(description="Share of the work of steps_run that took earlier outputs of blocks instead.")
    model: str
    seed: int
    seconds: float
    reason: str
    degraded: list[str]
    warnings: list[str]


class Image(BaseModel):
    b64_json: str | None = None
    url: str | None = None
    afterimage: Origin


class Failure(ErrorBody):
    """One of several images that its request does not get."""

    index: int
    job_id: str


class Whole(BaseModel):
    failed: list[Failure]
    ignored: list[str] = Field(description="Fields of the request that changed nothing.")


class Images(BaseModel):
    """The answer to `POST /v1/images/generations`."""

    created: int
    data: list[Image]
    size: str
    output_format: str
    background: str
    afterimage: Whole


class VideoError(BaseModel):
    code: str
    message: str


class Video(BaseModel):
    """A job of a clip, as OpenAI shows it."""

    id: str
    object: Literal["video"]
    model: str
    prompt: str
    status: Literal["queued", "in_progress", "completed", "failed"]
    progress: int
    created_at: int
    completed_at: int | None
    expires_at: int | None
    size: str
    seconds: str
    num_frames: int
    error: VideoError | None
    remixed_from_video_id: str | None
    afterimage: Origin


class Videos(BaseModel):
    object: Literal["list"]
    data: list[Video]
    first_id: str | None
    last_id: str | None
    has_more: bool


class DeletedImage(BaseModel):
    id: str
    object: Literal["image.deleted"]
    deleted: bool


class DeletedVideo(BaseModel):
    id: str
    object: Literal["video.deleted"]
    deleted: bool


class ModelFacts(BaseModel):
    modality: str
    roles: list[str]
    size: str
    steps: int


class Model(BaseModel):
    id: str
    object: Literal["model"]
    created: int
    owned_by: str
    afterimage: ModelFacts


class Models(BaseModel):
    object: Literal["list"]
    data: list[Model]


class Status(BaseModel):
    status: str
    away: list[str] = []


STREAM: dict[str, Any] = {
    "text/event-stream": {"schema": {"type": "string", "description": "Events as in OpenAI's images API."}}
}
