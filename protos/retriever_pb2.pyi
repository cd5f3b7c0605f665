from protos import common_pb2 as _common_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class PlanRequest(_message.Message):
    __slots__ = ("request", "tenant", "seed_given", "vector", "encoder_hash", "predicted_hit", "model", "encoder_weights", "unknown_share", "dry_run", "further_image", "taken_roots", "taken_seeds", "parts", "object_vector", "background_vector", "forecasts")
    REQUEST_FIELD_NUMBER: _ClassVar[int]
    TENANT_FIELD_NUMBER: _ClassVar[int]
    SEED_GIVEN_FIELD_NUMBER: _ClassVar[int]
    VECTOR_FIELD_NUMBER: _ClassVar[int]
    ENCODER_HASH_FIELD_NUMBER: _ClassVar[int]
    PREDICTED_HIT_FIELD_NUMBER: _ClassVar[int]
    MODEL_FIELD_NUMBER: _ClassVar[int]
    ENCODER_WEIGHTS_FIELD_NUMBER: _ClassVar[int]
    UNKNOWN_SHARE_FIELD_NUMBER: _ClassVar[int]
    DRY_RUN_FIELD_NUMBER: _ClassVar[int]
    FURTHER_IMAGE_FIELD_NUMBER: _ClassVar[int]
    TAKEN_ROOTS_FIELD_NUMBER: _ClassVar[int]
    TAKEN_SEEDS_FIELD_NUMBER: _ClassVar[int]
    PARTS_FIELD_NUMBER: _ClassVar[int]
    OBJECT_VECTOR_FIELD_NUMBER: _ClassVar[int]
    BACKGROUND_VECTOR_FIELD_NUMBER: _ClassVar[int]
    FORECASTS_FIELD_NUMBER: _ClassVar[int]
    request: _common_pb2.Request
    tenant: str
    seed_given: bool
    vector: bytes
    encoder_hash: str
    predicted_hit: bool
    model: str
    encoder_weights: str
    unknown_share: float
    dry_run: bool
    further_image: bool
    taken_roots: _containers.RepeatedScalarFieldContainer[str]
    taken_seeds: _containers.RepeatedScalarFieldContainer[int]
    parts: _common_pb2.PromptParts
    object_vector: bytes
    background_vector: bytes
    forecasts: _containers.RepeatedCompositeFieldContainer[Forecast]
    def __init__(self, request: _Optional[_Union[_common_pb2.Request, _Mapping]] = ..., tenant: _Optional[str] = ..., seed_given: bool = ..., vector: _Optional[bytes] = ..., encoder_hash: _Optional[str] = ..., predicted_hit: bool = ..., model: _Optional[str] = ..., encoder_weights: _Optional[str] = ..., unknown_share: _Optional[float] = ..., dry_run: bool = ..., further_image: bool = ..., taken_roots: _Optional[_Iterable[str]] = ..., taken_seeds: _Optional[_Iterable[int]] = ..., parts: _Optional[_Union[_common_pb2.PromptParts, _Mapping]] = ..., object_vector: _Optional[bytes] = ..., background_vector: _Optional[bytes] = ..., forecasts: _Optional[_Iterable[_Union[Forecast, _Mapping]]] = ...) -> None: ...

class Forecast(_message.Message):
    __slots__ = ("lane", "model", "wait_s", "step_s", "decode_s", "slowdown")
    LANE_FIELD_NUMBER: _ClassVar[int]
    MODEL_FIELD_NUMBER: _ClassVar[int]
    WAIT_S_FIELD_NUMBER: _ClassVar[int]
    STEP_S_FIELD_NUMBER: _ClassVar[int]
    DECODE_S_FIELD_NUMBER: _ClassVar[int]
    SLOWDOWN_FIELD_NUMBER: _ClassVar[int]
    lane: str
    model: str
    wait_s: float
    step_s: float
    decode_s: float
    slowdown: float
    def __init__(self, lane: _Optional[str] = ..., model: _Optional[str] = ..., wait_s: _Optional[float] = ..., step_s: _Optional[float] = ..., decode_s: _Optional[float] = ..., slowdown: _Optional[float] = ...) -> None: ...

class PlanResponse(_message.Message):
    __slots__ = ("plan",)
    PLAN_FIELD_NUMBER: _ClassVar[int]
    plan: _common_pb2.Plan
    def __init__(self, plan: _Optional[_Union[_common_pb2.Plan, _Mapping]] = ...) -> None: ...

class NearestRequest(_message.Message):
    __slots__ = ("tenant", "user", "vector", "encoder_hash", "limit")
    TENANT_FIELD_NUMBER: _ClassVar[int]
    USER_FIELD_NUMBER: _ClassVar[int]
    VECTOR_FIELD_NUMBER: _ClassVar[int]
    ENCODER_HASH_FIELD_NUMBER: _ClassVar[int]
    LIMIT_FIELD_NUMBER: _ClassVar[int]
    tenant: str
    user: str
    vector: bytes
    encoder_hash: str
    limit: int
    def __init__(self, tenant: _Optional[str] = ..., user: _Optional[str] = ..., vector: _Optional[bytes] = ..., encoder_hash: _Optional[str] = ..., limit: _Optional[int] = ...) -> None: ...

class NearestResponse(_message.Message):
    __slots__ = ("hits",)
    HITS_FIELD_NUMBER: _ClassVar[int]
    hits: _containers.RepeatedCompositeFieldContainer[Neighbour]
    def __init__(self, hits: _Optional[_Iterable[_Union[Neighbour, _Mapping]]] = ...) -> None: ...

class Neighbour(_message.Message):
    __slots__ = ("entry_id", "similarity")
    ENTRY_ID_FIELD_NUMBER: _ClassVar[int]
    SIMILARITY_FIELD_NUMBER: _ClassVar[int]
    entry_id: str
    similarity: float
    def __init__(self, entry_id: _Optional[str] = ..., similarity: _Optional[float] = ...) -> None: ...
