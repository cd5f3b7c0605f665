from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable
from typing import ClassVar as _ClassVar, Optional as _Optional

DESCRIPTOR: _descriptor.FileDescriptor

class PredictRequest(_message.Message):
    __slots__ = ("vector", "encoder_hash", "owners", "compat")
    VECTOR_FIELD_NUMBER: _ClassVar[int]
    ENCODER_HASH_FIELD_NUMBER: _ClassVar[int]
    OWNERS_FIELD_NUMBER: _ClassVar[int]
    COMPAT_FIELD_NUMBER: _ClassVar[int]
    vector: bytes
    encoder_hash: str
    owners: _containers.RepeatedScalarFieldContainer[str]
    compat: str
    def __init__(self, vector: _Optional[bytes] = ..., encoder_hash: _Optional[str] = ..., owners: _Optional[_Iterable[str]] = ..., compat: _Optional[str] = ...) -> None: ...

class PredictResponse(_message.Message):
    __slots__ = ("hit", "score", "predictor")
    HIT_FIELD_NUMBER: _ClassVar[int]
    SCORE_FIELD_NUMBER: _ClassVar[int]
    PREDICTOR_FIELD_NUMBER: _ClassVar[int]
    hit: bool
    score: float
    predictor: str
    def __init__(self, hit: bool = ..., score: _Optional[float] = ..., predictor: _Optional[str] = ...) -> None: ...

class StatsRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class StatsResponse(_message.Message):
    __slots__ = ("predictor", "entries", "fits", "precision", "recall", "judged")
    PREDICTOR_FIELD_NUMBER: _ClassVar[int]
    ENTRIES_FIELD_NUMBER: _ClassVar[int]
    FITS_FIELD_NUMBER: _ClassVar[int]
    PRECISION_FIELD_NUMBER: _ClassVar[int]
    RECALL_FIELD_NUMBER: _ClassVar[int]
    JUDGED_FIELD_NUMBER: _ClassVar[int]
    predictor: str
    entries: int
    fits: int
    precision: float
    recall: float
    judged: int
    def __init__(self, predictor: _Optional[str] = ..., entries: _Optional[int] = ..., fits: _Optional[int] = ..., precision: _Optional[float] = ..., recall: _Optional[float] = ..., judged: _Optional[int] = ...) -> None: ...
