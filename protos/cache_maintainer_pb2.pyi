from protos import common_pb2 as _common_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class StatsRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class StatsResponse(_message.Message):
    __slots__ = ("entries", "states", "bytes", "max_bytes", "policy", "inserted", "evicted", "holes", "states_by_step", "uses_by_step", "pictures", "picture_bytes", "max_pictures", "max_picture_bytes", "picture_policy")
    class StatesByStepEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: int
        value: int
        def __init__(self, key: _Optional[int] = ..., value: _Optional[int] = ...) -> None: ...
    class UsesByStepEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: int
        value: int
        def __init__(self, key: _Optional[int] = ..., value: _Optional[int] = ...) -> None: ...
    ENTRIES_FIELD_NUMBER: _ClassVar[int]
    STATES_FIELD_NUMBER: _ClassVar[int]
    BYTES_FIELD_NUMBER: _ClassVar[int]
    MAX_BYTES_FIELD_NUMBER: _ClassVar[int]
    POLICY_FIELD_NUMBER: _ClassVar[int]
    INSERTED_FIELD_NUMBER: _ClassVar[int]
    EVICTED_FIELD_NUMBER: _ClassVar[int]
    HOLES_FIELD_NUMBER: _ClassVar[int]
    STATES_BY_STEP_FIELD_NUMBER: _ClassVar[int]
    USES_BY_STEP_FIELD_NUMBER: _ClassVar[int]
    PICTURES_FIELD_NUMBER: _ClassVar[int]
    PICTURE_BYTES_FIELD_NUMBER: _ClassVar[int]
    MAX_PICTURES_FIELD_NUMBER: _ClassVar[int]
    MAX_PICTURE_BYTES_FIELD_NUMBER: _ClassVar[int]
    PICTURE_POLICY_FIELD_NUMBER: _ClassVar[int]
    entries: int
    states: int
    bytes: int
    max_bytes: int
    policy: str
    inserted: int
    evicted: int
    holes: int
    states_by_step: _containers.ScalarMap[int, int]
    uses_by_step: _containers.ScalarMap[int, int]
    pictures: int
    picture_bytes: int
    max_pictures: int
    max_picture_bytes: int
    picture_policy: str
    def __init__(self, entries: _Optional[int] = ..., states: _Optional[int] = ..., bytes: _Optional[int] = ..., max_bytes: _Optional[int] = ..., policy: _Optional[str] = ..., inserted: _Optional[int] = ..., evicted: _Optional[int] = ..., holes: _Optional[int] = ..., states_by_step: _Optional[_Mapping[int, int]] = ..., uses_by_step: _Optional[_Mapping[int, int]] = ..., pictures: _Optional[int] = ..., picture_bytes: _Optional[int] = ..., max_pictures: _Optional[int] = ..., max_picture_bytes: _Optional[int] = ..., picture_policy: _Optional[str] = ...) -> None: ...

class PurgeRequest(_message.Message):
    __slots__ = ("entry_id", "tenant", "model", "everything")
    ENTRY_ID_FIELD_NUMBER: _ClassVar[int]
    TENANT_FIELD_NUMBER: _ClassVar[int]
    MODEL_FIELD_NUMBER: _ClassVar[int]
    EVERYTHING_FIELD_NUMBER: _ClassVar[int]
    entry_id: str
    tenant: str
    model: str
    everything: bool
    def __init__(self, entry_id: _Optional[str] = ..., tenant: _Optional[str] = ..., model: _Optional[str] = ..., everything: bool = ...) -> None: ...

class PurgeResponse(_message.Message):
    __slots__ = ("entries", "states", "bytes")
    ENTRIES_FIELD_NUMBER: _ClassVar[int]
    STATES_FIELD_NUMBER: _ClassVar[int]
    BYTES_FIELD_NUMBER: _ClassVar[int]
    entries: int
    states: int
    bytes: int
    def __init__(self, entries: _Optional[int] = ..., states: _Optional[int] = ..., bytes: _Optional[int] = ...) -> None: ...

class EraseRequest(_message.Message):
    __slots__ = ("job_id", "user", "whole_tenant", "tenant", "actor")
    JOB_ID_FIELD_NUMBER: _ClassVar[int]
    USER_FIELD_NUMBER: _ClassVar[int]
    WHOLE_TENANT_FIELD_NUMBER: _ClassVar[int]
    TENANT_FIELD_NUMBER: _ClassVar[int]
    ACTOR_FIELD_NUMBER: _ClassVar[int]
    job_id: str
    user: str
    whole_tenant: bool
    tenant: str
    actor: str
    def __init__(self, job_id: _Optional[str] = ..., user: _Optional[str] = ..., whole_tenant: bool = ..., tenant: _Optional[str] = ..., actor: _Optional[str] = ...) -> None: ...

class EraseResponse(_message.Message):
    __slots__ = ("erasure",)
    ERASURE_FIELD_NUMBER: _ClassVar[int]
    erasure: _common_pb2.Erasure
    def __init__(self, erasure: _Optional[_Union[_common_pb2.Erasure, _Mapping]] = ...) -> None: ...

class InspectRequest(_message.Message):
    __slots__ = ("entry_id", "page_size", "page_token")
    ENTRY_ID_FIELD_NUMBER: _ClassVar[int]
    PAGE_SIZE_FIELD_NUMBER: _ClassVar[int]
    PAGE_TOKEN_FIELD_NUMBER: _ClassVar[int]
    entry_id: str
    page_size: int
    page_token: str
    def __init__(self, entry_id: _Optional[str] = ..., page_size: _Optional[int] = ..., page_token: _Optional[str] = ...) -> None: ...

class InspectResponse(_message.Message):
    __slots__ = ("entries", "next_page_token")
    ENTRIES_FIELD_NUMBER: _ClassVar[int]
    NEXT_PAGE_TOKEN_FIELD_NUMBER: _ClassVar[int]
    entries: _containers.RepeatedCompositeFieldContainer[Entry]
    next_page_token: str
    def __init__(self, entries: _Optional[_Iterable[_Union[Entry, _Mapping]]] = ..., next_page_token: _Optional[str] = ...) -> None: ...

class Entry(_message.Message):
    __slots__ = ("id", "prompt", "tenant", "model", "width", "height", "steps", "created_at", "states", "picture")
    ID_FIELD_NUMBER: _ClassVar[int]
    PROMPT_FIELD_NUMBER: _ClassVar[int]
    TENANT_FIELD_NUMBER: _ClassVar[int]
    MODEL_FIELD_NUMBER: _ClassVar[int]
    WIDTH_FIELD_NUMBER: _ClassVar[int]
    HEIGHT_FIELD_NUMBER: _ClassVar[int]
    STEPS_FIELD_NUMBER: _ClassVar[int]
    CREATED_AT_FIELD_NUMBER: _ClassVar[int]
    STATES_FIELD_NUMBER: _ClassVar[int]
    PICTURE_FIELD_NUMBER: _ClassVar[int]
    id: str
    prompt: str
    tenant: str
    model: str
    width: int
    height: int
    steps: int
    created_at: float
    states: _containers.RepeatedCompositeFieldContainer[State]
    picture: State
    def __init__(self, id: _Optional[str] = ..., prompt: _Optional[str] = ..., tenant: _Optional[str] = ..., model: _Optional[str] = ..., width: _Optional[int] = ..., height: _Optional[int] = ..., steps: _Optional[int] = ..., created_at: _Optional[float] = ..., states: _Optional[_Iterable[_Union[State, _Mapping]]] = ..., picture: _Optional[_Union[State, _Mapping]] = ...) -> None: ...

class State(_message.Message):
    __slots__ = ("step", "bytes", "uses", "codec", "score")
    STEP_FIELD_NUMBER: _ClassVar[int]
    BYTES_FIELD_NUMBER: _ClassVar[int]
    USES_FIELD_NUMBER: _ClassVar[int]
    CODEC_FIELD_NUMBER: _ClassVar[int]
    SCORE_FIELD_NUMBER: _ClassVar[int]
    step: int
    bytes: int
    uses: int
    codec: str
    score: float
    def __init__(self, step: _Optional[int] = ..., bytes: _Optional[int] = ..., uses: _Optional[int] = ..., codec: _Optional[str] = ..., score: _Optional[float] = ...) -> None: ...

class CollectRequest(_message.Message):
    __slots__ = ("confirmed",)
    CONFIRMED_FIELD_NUMBER: _ClassVar[int]
    confirmed: bool
    def __init__(self, confirmed: bool = ...) -> None: ...

class CollectResponse(_message.Message):
    __slots__ = ("blobs", "unnamed", "due", "erased", "deleted", "held", "said", "quarantine_s")
    BLOBS_FIELD_NUMBER: _ClassVar[int]
    UNNAMED_FIELD_NUMBER: _ClassVar[int]
    DUE_FIELD_NUMBER: _ClassVar[int]
    ERASED_FIELD_NUMBER: _ClassVar[int]
    DELETED_FIELD_NUMBER: _ClassVar[int]
    HELD_FIELD_NUMBER: _ClassVar[int]
    SAID_FIELD_NUMBER: _ClassVar[int]
    QUARANTINE_S_FIELD_NUMBER: _ClassVar[int]
    blobs: int
    unnamed: int
    due: int
    erased: int
    deleted: int
    held: str
    said: str
    quarantine_s: float
    def __init__(self, blobs: _Optional[int] = ..., unnamed: _Optional[int] = ..., due: _Optional[int] = ..., erased: _Optional[int] = ..., deleted: _Optional[int] = ..., held: _Optional[str] = ..., said: _Optional[str] = ..., quarantine_s: _Optional[float] = ...) -> None: ...

class QualityRequest(_message.Message):
    __slots__ = ("model", "reset")
    MODEL_FIELD_NUMBER: _ClassVar[int]
    RESET_FIELD_NUMBER: _ClassVar[int]
    model: str
    reset: bool
    def __init__(self, model: _Optional[str] = ..., reset: bool = ...) -> None: ...

class QualityResponse(_message.Message):
    __slots__ = ("cells", "check_share")
    CELLS_FIELD_NUMBER: _ClassVar[int]
    CHECK_SHARE_FIELD_NUMBER: _ClassVar[int]
    cells: _containers.RepeatedCompositeFieldContainer[CheckedCell]
    check_share: float
    def __init__(self, cells: _Optional[_Iterable[_Union[CheckedCell, _Mapping]]] = ..., check_share: _Optional[float] = ...) -> None: ...

class CheckedCell(_message.Message):
    __slots__ = ("model", "relation", "source", "steps", "start_step", "checks", "fails", "ratios", "stopped_at")
    class RatiosEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: Ratio
        def __init__(self, key: _Optional[str] = ..., value: _Optional[_Union[Ratio, _Mapping]] = ...) -> None: ...
    MODEL_FIELD_NUMBER: _ClassVar[int]
    RELATION_FIELD_NUMBER: _ClassVar[int]
    SOURCE_FIELD_NUMBER: _ClassVar[int]
    STEPS_FIELD_NUMBER: _ClassVar[int]
    START_STEP_FIELD_NUMBER: _ClassVar[int]
    CHECKS_FIELD_NUMBER: _ClassVar[int]
    FAILS_FIELD_NUMBER: _ClassVar[int]
    RATIOS_FIELD_NUMBER: _ClassVar[int]
    STOPPED_AT_FIELD_NUMBER: _ClassVar[int]
    model: str
    relation: str
    source: str
    steps: int
    start_step: int
    checks: int
    fails: int
    ratios: _containers.MessageMap[str, Ratio]
    stopped_at: float
    def __init__(self, model: _Optional[str] = ..., relation: _Optional[str] = ..., source: _Optional[str] = ..., steps: _Optional[int] = ..., start_step: _Optional[int] = ..., checks: _Optional[int] = ..., fails: _Optional[int] = ..., ratios: _Optional[_Mapping[str, Ratio]] = ..., stopped_at: _Optional[float] = ...) -> None: ...

class Ratio(_message.Message):
    __slots__ = ("value", "low", "high")
    VALUE_FIELD_NUMBER: _ClassVar[int]
    LOW_FIELD_NUMBER: _ClassVar[int]
    HIGH_FIELD_NUMBER: _ClassVar[int]
    value: float
    low: float
    high: float
    def __init__(self, value: _Optional[float] = ..., low: _Optional[float] = ..., high: _Optional[float] = ...) -> None: ...
