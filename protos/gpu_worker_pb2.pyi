from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class DescribeRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class DescribeResponse(_message.Message):
    __slots__ = ("worker", "device", "models", "rows", "max_rows", "draining")
    WORKER_FIELD_NUMBER: _ClassVar[int]
    DEVICE_FIELD_NUMBER: _ClassVar[int]
    MODELS_FIELD_NUMBER: _ClassVar[int]
    ROWS_FIELD_NUMBER: _ClassVar[int]
    MAX_ROWS_FIELD_NUMBER: _ClassVar[int]
    DRAINING_FIELD_NUMBER: _ClassVar[int]
    worker: str
    device: str
    models: _containers.RepeatedCompositeFieldContainer[LoadedModel]
    rows: int
    max_rows: int
    draining: bool
    def __init__(self, worker: _Optional[str] = ..., device: _Optional[str] = ..., models: _Optional[_Iterable[_Union[LoadedModel, _Mapping]]] = ..., rows: _Optional[int] = ..., max_rows: _Optional[int] = ..., draining: bool = ...) -> None: ...

class LoadedModel(_message.Message):
    __slots__ = ("model", "weights_hash", "sampler", "dtype", "bytes", "step_s")
    class StepSEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: int
        value: float
        def __init__(self, key: _Optional[int] = ..., value: _Optional[float] = ...) -> None: ...
    MODEL_FIELD_NUMBER: _ClassVar[int]
    WEIGHTS_HASH_FIELD_NUMBER: _ClassVar[int]
    SAMPLER_FIELD_NUMBER: _ClassVar[int]
    DTYPE_FIELD_NUMBER: _ClassVar[int]
    BYTES_FIELD_NUMBER: _ClassVar[int]
    STEP_S_FIELD_NUMBER: _ClassVar[int]
    model: str
    weights_hash: str
    sampler: str
    dtype: str
    bytes: int
    step_s: _containers.ScalarMap[int, float]
    def __init__(self, model: _Optional[str] = ..., weights_hash: _Optional[str] = ..., sampler: _Optional[str] = ..., dtype: _Optional[str] = ..., bytes: _Optional[int] = ..., step_s: _Optional[_Mapping[int, float]] = ...) -> None: ...

class DrainRequest(_message.Message):
    __slots__ = ("timeout_s",)
    TIMEOUT_S_FIELD_NUMBER: _ClassVar[int]
    timeout_s: float
    def __init__(self, timeout_s: _Optional[float] = ...) -> None: ...

class DrainResponse(_message.Message):
    __slots__ = ("finished", "handed_back")
    FINISHED_FIELD_NUMBER: _ClassVar[int]
    HANDED_BACK_FIELD_NUMBER: _ClassVar[int]
    finished: int
    handed_back: int
    def __init__(self, finished: _Optional[int] = ..., handed_back: _Optional[int] = ...) -> None: ...
