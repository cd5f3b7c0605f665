from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class CacheMode(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    CACHE_MODE_UNSPECIFIED: _ClassVar[CacheMode]
    CACHE_MODE_AUTO: _ClassVar[CacheMode]
    CACHE_MODE_READ: _ClassVar[CacheMode]
    CACHE_MODE_WRITE: _ClassVar[CacheMode]
    CACHE_MODE_OFF: _ClassVar[CacheMode]

class Scope(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    SCOPE_UNSPECIFIED: _ClassVar[Scope]
    SCOPE_PRIVATE: _ClassVar[Scope]
    SCOPE_TENANT: _ClassVar[Scope]
    SCOPE_PUBLIC: _ClassVar[Scope]

class Modality(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    MODALITY_UNSPECIFIED: _ClassVar[Modality]
    MODALITY_IMAGE: _ClassVar[Modality]
    MODALITY_VIDEO: _ClassVar[Modality]

class Variation(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    VARIATION_UNSPECIFIED: _ClassVar[Variation]
    VARIATION_AUTO: _ClassVar[Variation]
    VARIATION_SAME: _ClassVar[Variation]
    VARIATION_NEW: _ClassVar[Variation]

class JobState(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    JOB_STATE_UNSPECIFIED: _ClassVar[JobState]
    JOB_STATE_QUEUED: _ClassVar[JobState]
    JOB_STATE_RUNNING: _ClassVar[JobState]
    JOB_STATE_SUCCEEDED: _ClassVar[JobState]
    JOB_STATE_FAILED: _ClassVar[JobState]
    JOB_STATE_CANCELLED: _ClassVar[JobState]

class PlanSource(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    PLAN_SOURCE_UNSPECIFIED: _ClassVar[PlanSource]
    PLAN_SOURCE_NOISE: _ClassVar[PlanSource]
    PLAN_SOURCE_LATENT: _ClassVar[PlanSource]
    PLAN_SOURCE_IMAGE: _ClassVar[PlanSource]
    PLAN_SOURCE_STITCHED: _ClassVar[PlanSource]
    PLAN_SOURCE_EXACT: _ClassVar[PlanSource]
    PLAN_SOURCE_UPLOAD: _ClassVar[PlanSource]
CACHE_MODE_UNSPECIFIED: CacheMode
CACHE_MODE_AUTO: CacheMode
CACHE_MODE_READ: CacheMode
CACHE_MODE_WRITE: CacheMode
CACHE_MODE_OFF: CacheMode
SCOPE_UNSPECIFIED: Scope
SCOPE_PRIVATE: Scope
SCOPE_TENANT: Scope
SCOPE_PUBLIC: Scope
MODALITY_UNSPECIFIED: Modality
MODALITY_IMAGE: Modality
MODALITY_VIDEO: Modality
VARIATION_UNSPECIFIED: Variation
VARIATION_AUTO: Variation
VARIATION_SAME: Variation
VARIATION_NEW: Variation
JOB_STATE_UNSPECIFIED: JobState
JOB_STATE_QUEUED: JobState
JOB_STATE_RUNNING: JobState
JOB_STATE_SUCCEEDED: JobState
JOB_STATE_FAILED: JobState
JOB_STATE_CANCELLED: JobState
PLAN_SOURCE_UNSPECIFIED: PlanSource
PLAN_SOURCE_NOISE: PlanSource
PLAN_SOURCE_LATENT: PlanSource
PLAN_SOURCE_IMAGE: PlanSource
PLAN_SOURCE_STITCHED: PlanSource
PLAN_SOURCE_EXACT: PlanSource
PLAN_SOURCE_UPLOAD: PlanSource

class Size(_message.Message):
    __slots__ = ("width", "height")
    WIDTH_FIELD_NUMBER: _ClassVar[int]
    HEIGHT_FIELD_NUMBER: _ClassVar[int]
    width: int
    height: int
    def __init__(self, width: _Optional[int] = ..., height: _Optional[int] = ...) -> None: ...

class Request(_message.Message):
    __slots__ = ("prompt", "negative_prompt", "width", "height", "frames", "steps", "guidance", "seed", "quality", "modality", "cache", "scope", "priority", "deadline_s", "drop_if_late", "savings", "fresh_noise", "user", "variation", "steps_auto", "slo", "from_job", "strength", "seconds", "continue_job", "image", "mask")
    PROMPT_FIELD_NUMBER: _ClassVar[int]
    NEGATIVE_PROMPT_FIELD_NUMBER: _ClassVar[int]
    WIDTH_FIELD_NUMBER: _ClassVar[int]
    HEIGHT_FIELD_NUMBER: _ClassVar[int]
    FRAMES_FIELD_NUMBER: _ClassVar[int]
    STEPS_FIELD_NUMBER: _ClassVar[int]
    GUIDANCE_FIELD_NUMBER: _ClassVar[int]
    SEED_FIELD_NUMBER: _ClassVar[int]
    QUALITY_FIELD_NUMBER: _ClassVar[int]
    MODALITY_FIELD_NUMBER: _ClassVar[int]
    CACHE_FIELD_NUMBER: _ClassVar[int]
    SCOPE_FIELD_NUMBER: _ClassVar[int]
    PRIORITY_FIELD_NUMBER: _ClassVar[int]
    DEADLINE_S_FIELD_NUMBER: _ClassVar[int]
    DROP_IF_LATE_FIELD_NUMBER: _ClassVar[int]
    SAVINGS_FIELD_NUMBER: _ClassVar[int]
    FRESH_NOISE_FIELD_NUMBER: _ClassVar[int]
    USER_FIELD_NUMBER: _ClassVar[int]
    VARIATION_FIELD_NUMBER: _ClassVar[int]
    STEPS_AUTO_FIELD_NUMBER: _ClassVar[int]
    SLO_FIELD_NUMBER: _ClassVar[int]
    FROM_JOB_FIELD_NUMBER: _ClassVar[int]
    STRENGTH_FIELD_NUMBER: _ClassVar[int]
    SECONDS_FIELD_NUMBER: _ClassVar[int]
    CONTINUE_JOB_FIELD_NUMBER: _ClassVar[int]
    IMAGE_FIELD_NUMBER: _ClassVar[int]
    MASK_FIELD_NUMBER: _ClassVar[int]
    prompt: str
    negative_prompt: str
    width: int
    height: int
    frames: int
    steps: int
    guidance: float
    seed: int
    quality: str
    modality: Modality
    cache: CacheMode
    scope: Scope
    priority: int
    deadline_s: float
    drop_if_late: bool
    savings: float
    fresh_noise: float
    user: str
    variation: Variation
    steps_auto: bool
    slo: str
    from_job: str
    strength: float
    seconds: float
    continue_job: str
    image: bytes
    mask: bytes
    def __init__(self, prompt: _Optional[str] = ..., negative_prompt: _Optional[str] = ..., width: _Optional[int] = ..., height: _Optional[int] = ..., frames: _Optional[int] = ..., steps: _Optional[int] = ..., guidance: _Optional[float] = ..., seed: _Optional[int] = ..., quality: _Optional[str] = ..., modality: _Optional[_Union[Modality, str]] = ..., cache: _Optional[_Union[CacheMode, str]] = ..., scope: _Optional[_Union[Scope, str]] = ..., priority: _Optional[int] = ..., deadline_s: _Optional[float] = ..., drop_if_late: bool = ..., savings: _Optional[float] = ..., fresh_noise: _Optional[float] = ..., user: _Optional[str] = ..., variation: _Optional[_Union[Variation, str]] = ..., steps_auto: bool = ..., slo: _Optional[str] = ..., from_job: _Optional[str] = ..., strength: _Optional[float] = ..., seconds: _Optional[float] = ..., continue_job: _Optional[str] = ..., image: _Optional[bytes] = ..., mask: _Optional[bytes] = ...) -> None: ...

class ModelPlan(_message.Message):
    __slots__ = ("model", "start_step", "guidance", "steps", "prompted_from")
    MODEL_FIELD_NUMBER: _ClassVar[int]
    START_STEP_FIELD_NUMBER: _ClassVar[int]
    GUIDANCE_FIELD_NUMBER: _ClassVar[int]
    STEPS_FIELD_NUMBER: _ClassVar[int]
    PROMPTED_FROM_FIELD_NUMBER: _ClassVar[int]
    model: str
    start_step: int
    guidance: float
    steps: int
    prompted_from: int
    def __init__(self, model: _Optional[str] = ..., start_step: _Optional[int] = ..., guidance: _Optional[float] = ..., steps: _Optional[int] = ..., prompted_from: _Optional[int] = ...) -> None: ...

class Candidate(_message.Message):
    __slots__ = ("entry_id", "kind", "similarity", "wished_step", "start_step", "prompt", "chosen", "reason", "model", "relation", "steps", "background_id", "background_prompt", "object_similarity", "background_similarity")
    ENTRY_ID_FIELD_NUMBER: _ClassVar[int]
    KIND_FIELD_NUMBER: _ClassVar[int]
    SIMILARITY_FIELD_NUMBER: _ClassVar[int]
    WISHED_STEP_FIELD_NUMBER: _ClassVar[int]
    START_STEP_FIELD_NUMBER: _ClassVar[int]
    PROMPT_FIELD_NUMBER: _ClassVar[int]
    CHOSEN_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    MODEL_FIELD_NUMBER: _ClassVar[int]
    RELATION_FIELD_NUMBER: _ClassVar[int]
    STEPS_FIELD_NUMBER: _ClassVar[int]
    BACKGROUND_ID_FIELD_NUMBER: _ClassVar[int]
    BACKGROUND_PROMPT_FIELD_NUMBER: _ClassVar[int]
    OBJECT_SIMILARITY_FIELD_NUMBER: _ClassVar[int]
    BACKGROUND_SIMILARITY_FIELD_NUMBER: _ClassVar[int]
    entry_id: str
    kind: str
    similarity: float
    wished_step: int
    start_step: int
    prompt: str
    chosen: bool
    reason: str
    model: str
    relation: str
    steps: int
    background_id: str
    background_prompt: str
    object_similarity: float
    background_similarity: float
    def __init__(self, entry_id: _Optional[str] = ..., kind: _Optional[str] = ..., similarity: _Optional[float] = ..., wished_step: _Optional[int] = ..., start_step: _Optional[int] = ..., prompt: _Optional[str] = ..., chosen: bool = ..., reason: _Optional[str] = ..., model: _Optional[str] = ..., relation: _Optional[str] = ..., steps: _Optional[int] = ..., background_id: _Optional[str] = ..., background_prompt: _Optional[str] = ..., object_similarity: _Optional[float] = ..., background_similarity: _Optional[float] = ...) -> None: ...

class Plan(_message.Message):
    __slots__ = ("source", "model", "start_step", "entry_id", "state_key", "similarity", "capture_steps", "may_run", "fresh_noise", "noise_seed", "weights_hash", "candidates", "reason", "degraded", "predicted_hit", "looked_up", "found", "sampled", "state_sha256", "state_codec", "miss_model", "fallback", "relation", "root", "sources", "miss_steps", "miss_prompted_from", "lead", "parts", "background_root", "step_reuse", "for_deadline", "soonest", "uncached", "region_until")
    SOURCE_FIELD_NUMBER: _ClassVar[int]
    MODEL_FIELD_NUMBER: _ClassVar[int]
    START_STEP_FIELD_NUMBER: _ClassVar[int]
    ENTRY_ID_FIELD_NUMBER: _ClassVar[int]
    STATE_KEY_FIELD_NUMBER: _ClassVar[int]
    SIMILARITY_FIELD_NUMBER: _ClassVar[int]
    CAPTURE_STEPS_FIELD_NUMBER: _ClassVar[int]
    MAY_RUN_FIELD_NUMBER: _ClassVar[int]
    FRESH_NOISE_FIELD_NUMBER: _ClassVar[int]
    NOISE_SEED_FIELD_NUMBER: _ClassVar[int]
    WEIGHTS_HASH_FIELD_NUMBER: _ClassVar[int]
    CANDIDATES_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    DEGRADED_FIELD_NUMBER: _ClassVar[int]
    PREDICTED_HIT_FIELD_NUMBER: _ClassVar[int]
    LOOKED_UP_FIELD_NUMBER: _ClassVar[int]
    FOUND_FIELD_NUMBER: _ClassVar[int]
    SAMPLED_FIELD_NUMBER: _ClassVar[int]
    STATE_SHA256_FIELD_NUMBER: _ClassVar[int]
    STATE_CODEC_FIELD_NUMBER: _ClassVar[int]
    MISS_MODEL_FIELD_NUMBER: _ClassVar[int]
    FALLBACK_FIELD_NUMBER: _ClassVar[int]
    RELATION_FIELD_NUMBER: _ClassVar[int]
    ROOT_FIELD_NUMBER: _ClassVar[int]
    SOURCES_FIELD_NUMBER: _ClassVar[int]
    MISS_STEPS_FIELD_NUMBER: _ClassVar[int]
    MISS_PROMPTED_FROM_FIELD_NUMBER: _ClassVar[int]
    LEAD_FIELD_NUMBER: _ClassVar[int]
    PARTS_FIELD_NUMBER: _ClassVar[int]
    BACKGROUND_ROOT_FIELD_NUMBER: _ClassVar[int]
    STEP_REUSE_FIELD_NUMBER: _ClassVar[int]
    FOR_DEADLINE_FIELD_NUMBER: _ClassVar[int]
    SOONEST_FIELD_NUMBER: _ClassVar[int]
    UNCACHED_FIELD_NUMBER: _ClassVar[int]
    REGION_UNTIL_FIELD_NUMBER: _ClassVar[int]
    source: PlanSource
    model: str
    start_step: int
    entry_id: str
    state_key: str
    similarity: float
    capture_steps: _containers.RepeatedScalarFieldContainer[int]
    may_run: _containers.RepeatedCompositeFieldContainer[ModelPlan]
    fresh_noise: float
    noise_seed: int
    weights_hash: str
    candidates: _containers.RepeatedCompositeFieldContainer[Candidate]
    reason: str
    degraded: _containers.RepeatedScalarFieldContainer[str]
    predicted_hit: bool
    looked_up: bool
    found: bool
    sampled: bool
    state_sha256: str
    state_codec: str
    miss_model: str
    fallback: Plan
    relation: str
    root: str
    sources: _containers.RepeatedCompositeFieldContainer[Source]
    miss_steps: int
    miss_prompted_from: int
    lead: Lead
    parts: PromptParts
    background_root: str
    step_reuse: str
    for_deadline: str
    soonest: Soonest
    uncached: bool
    region_until: int
    def __init__(self, source: _Optional[_Union[PlanSource, str]] = ..., model: _Optional[str] = ..., start_step: _Optional[int] = ..., entry_id: _Optional[str] = ..., state_key: _Optional[str] = ..., similarity: _Optional[float] = ..., capture_steps: _Optional[_Iterable[int]] = ..., may_run: _Optional[_Iterable[_Union[ModelPlan, _Mapping]]] = ..., fresh_noise: _Optional[float] = ..., noise_seed: _Optional[int] = ..., weights_hash: _Optional[str] = ..., candidates: _Optional[_Iterable[_Union[Candidate, _Mapping]]] = ..., reason: _Optional[str] = ..., degraded: _Optional[_Iterable[str]] = ..., predicted_hit: bool = ..., looked_up: bool = ..., found: bool = ..., sampled: bool = ..., state_sha256: _Optional[str] = ..., state_codec: _Optional[str] = ..., miss_model: _Optional[str] = ..., fallback: _Optional[_Union[Plan, _Mapping]] = ..., relation: _Optional[str] = ..., root: _Optional[str] = ..., sources: _Optional[_Iterable[_Union[Source, _Mapping]]] = ..., miss_steps: _Optional[int] = ..., miss_prompted_from: _Optional[int] = ..., lead: _Optional[_Union[Lead, _Mapping]] = ..., parts: _Optional[_Union[PromptParts, _Mapping]] = ..., background_root: _Optional[str] = ..., step_reuse: _Optional[str] = ..., for_deadline: _Optional[str] = ..., soonest: _Optional[_Union[Soonest, _Mapping]] = ..., uncached: bool = ..., region_until: _Optional[int] = ...) -> None: ...

class Soonest(_message.Message):
    __slots__ = ("run", "finish_s", "alone_s")
    RUN_FIELD_NUMBER: _ClassVar[int]
    FINISH_S_FIELD_NUMBER: _ClassVar[int]
    ALONE_S_FIELD_NUMBER: _ClassVar[int]
    run: str
    finish_s: float
    alone_s: float
    def __init__(self, run: _Optional[str] = ..., finish_s: _Optional[float] = ..., alone_s: _Optional[float] = ...) -> None: ...

class PromptParts(_message.Message):
    __slots__ = ("object", "background")
    OBJECT_FIELD_NUMBER: _ClassVar[int]
    BACKGROUND_FIELD_NUMBER: _ClassVar[int]
    object: str
    background: str
    def __init__(self, object: _Optional[str] = ..., background: _Optional[str] = ...) -> None: ...

class Lead(_message.Message):
    __slots__ = ("job_id", "key", "sha256", "frames", "held")
    JOB_ID_FIELD_NUMBER: _ClassVar[int]
    KEY_FIELD_NUMBER: _ClassVar[int]
    SHA256_FIELD_NUMBER: _ClassVar[int]
    FRAMES_FIELD_NUMBER: _ClassVar[int]
    HELD_FIELD_NUMBER: _ClassVar[int]
    job_id: str
    key: str
    sha256: str
    frames: int
    held: int
    def __init__(self, job_id: _Optional[str] = ..., key: _Optional[str] = ..., sha256: _Optional[str] = ..., frames: _Optional[int] = ..., held: _Optional[int] = ...) -> None: ...

class Source(_message.Message):
    __slots__ = ("entry_id", "key", "sha256", "codec", "mask_key", "mask_sha256", "picture_key", "picture_sha256")
    ENTRY_ID_FIELD_NUMBER: _ClassVar[int]
    KEY_FIELD_NUMBER: _ClassVar[int]
    SHA256_FIELD_NUMBER: _ClassVar[int]
    CODEC_FIELD_NUMBER: _ClassVar[int]
    MASK_KEY_FIELD_NUMBER: _ClassVar[int]
    MASK_SHA256_FIELD_NUMBER: _ClassVar[int]
    PICTURE_KEY_FIELD_NUMBER: _ClassVar[int]
    PICTURE_SHA256_FIELD_NUMBER: _ClassVar[int]
    entry_id: str
    key: str
    sha256: str
    codec: str
    mask_key: str
    mask_sha256: str
    picture_key: str
    picture_sha256: str
    def __init__(self, entry_id: _Optional[str] = ..., key: _Optional[str] = ..., sha256: _Optional[str] = ..., codec: _Optional[str] = ..., mask_key: _Optional[str] = ..., mask_sha256: _Optional[str] = ..., picture_key: _Optional[str] = ..., picture_sha256: _Optional[str] = ...) -> None: ...

class Timings(_message.Message):
    __slots__ = ("embed_s", "predict_s", "plan_s", "accept_s", "queue_s", "fetch_s", "encode_s", "denoise_s", "decode_s", "store_s", "total_s", "extract_s")
    EMBED_S_FIELD_NUMBER: _ClassVar[int]
    PREDICT_S_FIELD_NUMBER: _ClassVar[int]
    PLAN_S_FIELD_NUMBER: _ClassVar[int]
    ACCEPT_S_FIELD_NUMBER: _ClassVar[int]
    QUEUE_S_FIELD_NUMBER: _ClassVar[int]
    FETCH_S_FIELD_NUMBER: _ClassVar[int]
    ENCODE_S_FIELD_NUMBER: _ClassVar[int]
    DENOISE_S_FIELD_NUMBER: _ClassVar[int]
    DECODE_S_FIELD_NUMBER: _ClassVar[int]
    STORE_S_FIELD_NUMBER: _ClassVar[int]
    TOTAL_S_FIELD_NUMBER: _ClassVar[int]
    EXTRACT_S_FIELD_NUMBER: _ClassVar[int]
    embed_s: float
    predict_s: float
    plan_s: float
    accept_s: float
    queue_s: float
    fetch_s: float
    encode_s: float
    denoise_s: float
    decode_s: float
    store_s: float
    total_s: float
    extract_s: float
    def __init__(self, embed_s: _Optional[float] = ..., predict_s: _Optional[float] = ..., plan_s: _Optional[float] = ..., accept_s: _Optional[float] = ..., queue_s: _Optional[float] = ..., fetch_s: _Optional[float] = ..., encode_s: _Optional[float] = ..., denoise_s: _Optional[float] = ..., decode_s: _Optional[float] = ..., store_s: _Optional[float] = ..., total_s: _Optional[float] = ..., extract_s: _Optional[float] = ...) -> None: ...

class Job(_message.Message):
    __slots__ = ("id", "state", "request", "plan", "attempt", "error", "model", "steps_run", "timings", "warnings", "created_at", "updated_at", "seed_given", "picture_bytes", "picture_sha256", "fps", "deadline_met", "predicted_s", "standalone_s", "skipped")
    ID_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    REQUEST_FIELD_NUMBER: _ClassVar[int]
    PLAN_FIELD_NUMBER: _ClassVar[int]
    ATTEMPT_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    MODEL_FIELD_NUMBER: _ClassVar[int]
    STEPS_RUN_FIELD_NUMBER: _ClassVar[int]
    TIMINGS_FIELD_NUMBER: _ClassVar[int]
    WARNINGS_FIELD_NUMBER: _ClassVar[int]
    CREATED_AT_FIELD_NUMBER: _ClassVar[int]
    UPDATED_AT_FIELD_NUMBER: _ClassVar[int]
    SEED_GIVEN_FIELD_NUMBER: _ClassVar[int]
    PICTURE_BYTES_FIELD_NUMBER: _ClassVar[int]
    PICTURE_SHA256_FIELD_NUMBER: _ClassVar[int]
    FPS_FIELD_NUMBER: _ClassVar[int]
    DEADLINE_MET_FIELD_NUMBER: _ClassVar[int]
    PREDICTED_S_FIELD_NUMBER: _ClassVar[int]
    STANDALONE_S_FIELD_NUMBER: _ClassVar[int]
    SKIPPED_FIELD_NUMBER: _ClassVar[int]
    id: str
    state: JobState
    request: Request
    plan: Plan
    attempt: int
    error: str
    model: str
    steps_run: int
    timings: Timings
    warnings: _containers.RepeatedScalarFieldContainer[str]
    created_at: float
    updated_at: float
    seed_given: bool
    picture_bytes: int
    picture_sha256: str
    fps: float
    deadline_met: bool
    predicted_s: float
    standalone_s: float
    skipped: float
    def __init__(self, id: _Optional[str] = ..., state: _Optional[_Union[JobState, str]] = ..., request: _Optional[_Union[Request, _Mapping]] = ..., plan: _Optional[_Union[Plan, _Mapping]] = ..., attempt: _Optional[int] = ..., error: _Optional[str] = ..., model: _Optional[str] = ..., steps_run: _Optional[int] = ..., timings: _Optional[_Union[Timings, _Mapping]] = ..., warnings: _Optional[_Iterable[str]] = ..., created_at: _Optional[float] = ..., updated_at: _Optional[float] = ..., seed_given: bool = ..., picture_bytes: _Optional[int] = ..., picture_sha256: _Optional[str] = ..., fps: _Optional[float] = ..., deadline_met: bool = ..., predicted_s: _Optional[float] = ..., standalone_s: _Optional[float] = ..., skipped: _Optional[float] = ...) -> None: ...

class Erasure(_message.Message):
    __slots__ = ("removed", "left")
    REMOVED_FIELD_NUMBER: _ClassVar[int]
    LEFT_FIELD_NUMBER: _ClassVar[int]
    removed: _containers.RepeatedCompositeFieldContainer[Removed]
    left: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, removed: _Optional[_Iterable[_Union[Removed, _Mapping]]] = ..., left: _Optional[_Iterable[str]] = ...) -> None: ...

class Removed(_message.Message):
    __slots__ = ("kind", "count", "bytes")
    KIND_FIELD_NUMBER: _ClassVar[int]
    COUNT_FIELD_NUMBER: _ClassVar[int]
    BYTES_FIELD_NUMBER: _ClassVar[int]
    kind: str
    count: int
    bytes: int
    def __init__(self, kind: _Optional[str] = ..., count: _Optional[int] = ..., bytes: _Optional[int] = ...) -> None: ...
