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
    __slots__ = ("assignments", "mode", "requests_per_s", "hit_rate", "share_by_step", "pid_error", "pid_integral", "pid_output")
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
    assignments: _containers.RepeatedCompositeFieldContainer[Assignment]
    mode: str
    requests_per_s: float
    hit_rate: float
    share_by_step: _containers.ScalarMap[int, float]
    pid_error: float
    pid_integral: float
    pid_output: float
    def __init__(self, assignments: _Optional[_Iterable[_Union[Assignment, _Mapping]]] = ..., mode: _Optional[str] = ..., requests_per_s: _Optional[float] = ..., hit_rate: _Optional[float] = ..., share_by_step: _Optional[_Mapping[int, float]] = ..., pid_error: _Optional[float] = ..., pid_integral: _Optional[float] = ..., pid_output: _Optional[float] = ...) -> None: ...

class Assignment(_message.Message):
    __slots__ = ("worker", "model", "role")
    WORKER_FIELD_NUMBER: _ClassVar[int]
    MODEL_FIELD_NUMBER: _ClassVar[int]
    ROLE_FIELD_NUMBER: _ClassVar[int]
    worker: str
    model: str
    role: str
    def __init__(self, worker: _Optional[str] = ..., model: _Optional[str] = ..., role: _Optional[str] = ...) -> None: ...
