from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class AllocationRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class AllocationResponse(_message.Message):
    __slots__ = ("assignments", "mode", "requests_per_s", "hit_rate", "share_by_step", "pid_error", "pid_integral", "pid_output", "target", "small_model", "miss_work", "hit_work", "small_work", "why", "kept", "lanes", "history", "set_mode", "period_s", "leads", "deadlines", "deadlines_met")
    class ShareByStepEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: int
        value: float
        def __init__(self, key: _Optional[int] = ..., value: _Optional[float] = ...) -> None: ...
    ASSIGNMENTS_FIELD_NUMBER: _ClassVar[int]
    MODE_FIELD_NUMBER: _ClassVar[int]
    REQUESTS_PER_S_FIELD_NUMBER: _ClassVar[int]
    HIT_RATE_FIELD_NUMBER: _ClassVar[int]
    SHARE_BY_STEP_FIELD_NUMBER: _ClassVar[int]
    PID_ERROR_FIELD_NUMBER: _ClassVar[int]
    PID_INTEGRAL_FIELD_NUMBER: _ClassVar[int]
    PID_OUTPUT_FIELD_NUMBER: _ClassVar[int]
    TARGET_FIELD_NUMBER: _ClassVar[int]
    SMALL_MODEL_FIELD_NUMBER: _ClassVar[int]
    MISS_WORK_FIELD_NUMBER: _ClassVar[int]
    HIT_WORK_FIELD_NUMBER: _ClassVar[int]
    SMALL_WORK_FIELD_NUMBER: _ClassVar[int]
    WHY_FIELD_NUMBER: _ClassVar[int]
    KEPT_FIELD_NUMBER: _ClassVar[int]
    LANES_FIELD_NUMBER: _ClassVar[int]
    HISTORY_FIELD_NUMBER: _ClassVar[int]
    SET_MODE_FIELD_NUMBER: _ClassVar[int]
    PERIOD_S_FIELD_NUMBER: _ClassVar[int]
    LEADS_FIELD_NUMBER: _ClassVar[int]
    DEADLINES_FIELD_NUMBER: _ClassVar[int]
    DEADLINES_MET_FIELD_NUMBER: _ClassVar[int]
    assignments: _containers.RepeatedCompositeFieldContainer[Assignment]
    mode: str
    requests_per_s: float
    hit_rate: float
    share_by_step: _containers.ScalarMap[int, float]
    pid_error: float
    pid_integral: float
    pid_output: float
    target: float
    small_model: str
    miss_work: float
    hit_work: float
    small_work: float
    why: str
    kept: str
    lanes: _containers.RepeatedCompositeFieldContainer[LaneDemand]
    history: _containers.RepeatedCompositeFieldContainer[Change]
    set_mode: str
    period_s: float
    leads: bool
    deadlines: int
    deadlines_met: int
    def __init__(self, assignments: _Optional[_Iterable[_Union[Assignment, _Mapping]]] = ..., mode: _Optional[str] = ..., requests_per_s: _Optional[float] = ..., hit_rate: _Optional[float] = ..., share_by_step: _Optional[_Mapping[int, float]] = ..., pid_error: _Optional[float] = ..., pid_integral: _Optional[float] = ..., pid_output: _Optional[float] = ..., target: _Optional[float] = ..., small_model: _Optional[str] = ..., miss_work: _Optional[float] = ..., hit_work: _Optional[float] = ..., small_work: _Optional[float] = ..., why: _Optional[str] = ..., kept: _Optional[str] = ..., lanes: _Optional[_Iterable[_Union[LaneDemand, _Mapping]]] = ..., history: _Optional[_Iterable[_Union[Change, _Mapping]]] = ..., set_mode: _Optional[str] = ..., period_s: _Optional[float] = ..., leads: bool = ..., deadlines: _Optional[int] = ..., deadlines_met: _Optional[int] = ...) -> None: ...

class Assignment(_message.Message):
    __slots__ = ("worker", "model", "role", "kind", "running", "rows", "max_rows", "rate", "credit")
    WORKER_FIELD_NUMBER: _ClassVar[int]
    MODEL_FIELD_NUMBER: _ClassVar[int]
    ROLE_FIELD_NUMBER: _ClassVar[int]
    KIND_FIELD_NUMBER: _ClassVar[int]
    RUNNING_FIELD_NUMBER: _ClassVar[int]
    ROWS_FIELD_NUMBER: _ClassVar[int]
    MAX_ROWS_FIELD_NUMBER: _ClassVar[int]
    RATE_FIELD_NUMBER: _ClassVar[int]
    CREDIT_FIELD_NUMBER: _ClassVar[int]
    worker: str
    model: str
    role: str
    kind: str
    running: str
    rows: int
    max_rows: int
    rate: float
    credit: float
    def __init__(self, worker: _Optional[str] = ..., model: _Optional[str] = ..., role: _Optional[str] = ..., kind: _Optional[str] = ..., running: _Optional[str] = ..., rows: _Optional[int] = ..., max_rows: _Optional[int] = ..., rate: _Optional[float] = ..., credit: _Optional[float] = ...) -> None: ...

class LaneDemand(_message.Message):
    __slots__ = ("lane", "modality", "requests_per_s", "work_per_s", "share_by_step", "waiting")
    class ShareByStepEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: int
        value: float
        def __init__(self, key: _Optional[int] = ..., value: _Optional[float] = ...) -> None: ...
    LANE_FIELD_NUMBER: _ClassVar[int]
    MODALITY_FIELD_NUMBER: _ClassVar[int]
    REQUESTS_PER_S_FIELD_NUMBER: _ClassVar[int]
    WORK_PER_S_FIELD_NUMBER: _ClassVar[int]
    SHARE_BY_STEP_FIELD_NUMBER: _ClassVar[int]
    WAITING_FIELD_NUMBER: _ClassVar[int]
    lane: str
    modality: str
    requests_per_s: float
    work_per_s: float
    share_by_step: _containers.ScalarMap[int, float]
    waiting: float
    def __init__(self, lane: _Optional[str] = ..., modality: _Optional[str] = ..., requests_per_s: _Optional[float] = ..., work_per_s: _Optional[float] = ..., share_by_step: _Optional[_Mapping[int, float]] = ..., waiting: _Optional[float] = ...) -> None: ...

class Change(_message.Message):
    __slots__ = ("at", "mode", "workers_by_model", "switches", "requests_per_s", "why")
    class WorkersByModelEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: int
        def __init__(self, key: _Optional[str] = ..., value: _Optional[int] = ...) -> None: ...
    AT_FIELD_NUMBER: _ClassVar[int]
    MODE_FIELD_NUMBER: _ClassVar[int]
    WORKERS_BY_MODEL_FIELD_NUMBER: _ClassVar[int]
    SWITCHES_FIELD_NUMBER: _ClassVar[int]
    REQUESTS_PER_S_FIELD_NUMBER: _ClassVar[int]
    WHY_FIELD_NUMBER: _ClassVar[int]
    at: float
    mode: str
    workers_by_model: _containers.ScalarMap[str, int]
    switches: int
    requests_per_s: float
    why: str
    def __init__(self, at: _Optional[float] = ..., mode: _Optional[str] = ..., workers_by_model: _Optional[_Mapping[str, int]] = ..., switches: _Optional[int] = ..., requests_per_s: _Optional[float] = ..., why: _Optional[str] = ...) -> None: ...
