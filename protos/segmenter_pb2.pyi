from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from typing import ClassVar as _ClassVar, Optional as _Optional

DESCRIPTOR: _descriptor.FileDescriptor

class SegmentRequest(_message.Message):
    __slots__ = ("video_key", "object", "background", "job_id")
    VIDEO_KEY_FIELD_NUMBER: _ClassVar[int]
    OBJECT_FIELD_NUMBER: _ClassVar[int]
    BACKGROUND_FIELD_NUMBER: _ClassVar[int]
    JOB_ID_FIELD_NUMBER: _ClassVar[int]
    video_key: str
    object: str
    background: str
    job_id: str
    def __init__(self, video_key: _Optional[str] = ..., object: _Optional[str] = ..., background: _Optional[str] = ..., job_id: _Optional[str] = ...) -> None: ...

class SegmentResponse(_message.Message):
    __slots__ = ("mask_key", "frames", "width", "height", "coverage", "mask", "background_coverage", "reason")
    MASK_KEY_FIELD_NUMBER: _ClassVar[int]
    FRAMES_FIELD_NUMBER: _ClassVar[int]
    WIDTH_FIELD_NUMBER: _ClassVar[int]
    HEIGHT_FIELD_NUMBER: _ClassVar[int]
    COVERAGE_FIELD_NUMBER: _ClassVar[int]
    MASK_FIELD_NUMBER: _ClassVar[int]
    BACKGROUND_COVERAGE_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    mask_key: str
    frames: int
    width: int
    height: int
    coverage: float
    mask: bytes
    background_coverage: float
    reason: str
    def __init__(self, mask_key: _Optional[str] = ..., frames: _Optional[int] = ..., width: _Optional[int] = ..., height: _Optional[int] = ..., coverage: _Optional[float] = ..., mask: _Optional[bytes] = ..., background_coverage: _Optional[float] = ..., reason: _Optional[str] = ...) -> None: ...
