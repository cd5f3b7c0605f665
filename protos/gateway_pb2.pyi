from protos import common_pb2 as _common_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class GenerateRequest(_message.Message):
    __slots__ = ("request", "n")
    REQUEST_FIELD_NUMBER: _ClassVar[int]
    N_FIELD_NUMBER: _ClassVar[int]
    request: _common_pb2.Request
    n: int
    def __init__(self, request: _Optional[_Union[_common_pb2.Request, _Mapping]] = ..., n: _Optional[int] = ...) -> None: ...

class GenerateResponse(_message.Message):
    __slots__ = ("job", "picture", "images")
    JOB_FIELD_NUMBER: _ClassVar[int]
    PICTURE_FIELD_NUMBER: _ClassVar[int]
    IMAGES_FIELD_NUMBER: _ClassVar[int]
    job: _common_pb2.Job
    picture: bytes
    images: _containers.RepeatedCompositeFieldContainer[Image]
    def __init__(self, job: _Optional[_Union[_common_pb2.Job, _Mapping]] = ..., picture: _Optional[bytes] = ..., images: _Optional[_Iterable[_Union[Image, _Mapping]]] = ...) -> None: ...

class Image(_message.Message):
    __slots__ = ("job", "picture", "code", "error")
    JOB_FIELD_NUMBER: _ClassVar[int]
    PICTURE_FIELD_NUMBER: _ClassVar[int]
    CODE_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    job: _common_pb2.Job
    picture: bytes
    code: str
    error: str
    def __init__(self, job: _Optional[_Union[_common_pb2.Job, _Mapping]] = ..., picture: _Optional[bytes] = ..., code: _Optional[str] = ..., error: _Optional[str] = ...) -> None: ...

class GenerateStreamRequest(_message.Message):
    __slots__ = ("request", "previews", "n")
    REQUEST_FIELD_NUMBER: _ClassVar[int]
    PREVIEWS_FIELD_NUMBER: _ClassVar[int]
    N_FIELD_NUMBER: _ClassVar[int]
    request: _common_pb2.Request
    previews: bool
    n: int
    def __init__(self, request: _Optional[_Union[_common_pb2.Request, _Mapping]] = ..., previews: bool = ..., n: _Optional[int] = ...) -> None: ...

class GenerateFromImageRequest(_message.Message):
    __slots__ = ("request", "image", "mask")
    REQUEST_FIELD_NUMBER: _ClassVar[int]
    IMAGE_FIELD_NUMBER: _ClassVar[int]
    MASK_FIELD_NUMBER: _ClassVar[int]
    request: GenerateStreamRequest
    image: bytes
    mask: bytes
    def __init__(self, request: _Optional[_Union[GenerateStreamRequest, _Mapping]] = ..., image: _Optional[bytes] = ..., mask: _Optional[bytes] = ...) -> None: ...

class GenerateStreamResponse(_message.Message):
    __slots__ = ("accepted", "progress", "result", "failed", "index")
    ACCEPTED_FIELD_NUMBER: _ClassVar[int]
    PROGRESS_FIELD_NUMBER: _ClassVar[int]
    RESULT_FIELD_NUMBER: _ClassVar[int]
    FAILED_FIELD_NUMBER: _ClassVar[int]
    INDEX_FIELD_NUMBER: _ClassVar[int]
    accepted: Accepted
    progress: Progress
    result: GenerateResponse
    failed: Image
    index: int
    def __init__(self, accepted: _Optional[_Union[Accepted, _Mapping]] = ..., progress: _Optional[_Union[Progress, _Mapping]] = ..., result: _Optional[_Union[GenerateResponse, _Mapping]] = ..., failed: _Optional[_Union[Image, _Mapping]] = ..., index: _Optional[int] = ...) -> None: ...

class Accepted(_message.Message):
    __slots__ = ("job_id", "queue_position", "plan", "predicted_s")
    JOB_ID_FIELD_NUMBER: _ClassVar[int]
    QUEUE_POSITION_FIELD_NUMBER: _ClassVar[int]
    PLAN_FIELD_NUMBER: _ClassVar[int]
    PREDICTED_S_FIELD_NUMBER: _ClassVar[int]
    job_id: str
    queue_position: int
    plan: _common_pb2.Plan
    predicted_s: float
    def __init__(self, job_id: _Optional[str] = ..., queue_position: _Optional[int] = ..., plan: _Optional[_Union[_common_pb2.Plan, _Mapping]] = ..., predicted_s: _Optional[float] = ...) -> None: ...

class Progress(_message.Message):
    __slots__ = ("job_id", "step", "steps", "preview", "queue_position", "waits_again")
    JOB_ID_FIELD_NUMBER: _ClassVar[int]
    STEP_FIELD_NUMBER: _ClassVar[int]
    STEPS_FIELD_NUMBER: _ClassVar[int]
    PREVIEW_FIELD_NUMBER: _ClassVar[int]
    QUEUE_POSITION_FIELD_NUMBER: _ClassVar[int]
    WAITS_AGAIN_FIELD_NUMBER: _ClassVar[int]
    job_id: str
    step: int
    steps: int
    preview: bytes
    queue_position: int
    waits_again: str
    def __init__(self, job_id: _Optional[str] = ..., step: _Optional[int] = ..., steps: _Optional[int] = ..., preview: _Optional[bytes] = ..., queue_position: _Optional[int] = ..., waits_again: _Optional[str] = ...) -> None: ...

class PlanRequest(_message.Message):
    __slots__ = ("request", "n")
    REQUEST_FIELD_NUMBER: _ClassVar[int]
    N_FIELD_NUMBER: _ClassVar[int]
    request: _common_pb2.Request
    n: int
    def __init__(self, request: _Optional[_Union[_common_pb2.Request, _Mapping]] = ..., n: _Optional[int] = ...) -> None: ...

class PlanResponse(_message.Message):
    __slots__ = ("jobs",)
    JOBS_FIELD_NUMBER: _ClassVar[int]
    jobs: _containers.RepeatedCompositeFieldContainer[_common_pb2.Job]
    def __init__(self, jobs: _Optional[_Iterable[_Union[_common_pb2.Job, _Mapping]]] = ...) -> None: ...

class GetJobRequest(_message.Message):
    __slots__ = ("job_id", "picture", "offset", "length")
    JOB_ID_FIELD_NUMBER: _ClassVar[int]
    PICTURE_FIELD_NUMBER: _ClassVar[int]
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    LENGTH_FIELD_NUMBER: _ClassVar[int]
    job_id: str
    picture: bool
    offset: int
    length: int
    def __init__(self, job_id: _Optional[str] = ..., picture: bool = ..., offset: _Optional[int] = ..., length: _Optional[int] = ...) -> None: ...

class GetJobResponse(_message.Message):
    __slots__ = ("job", "picture")
    JOB_FIELD_NUMBER: _ClassVar[int]
    PICTURE_FIELD_NUMBER: _ClassVar[int]
    job: _common_pb2.Job
    picture: bytes
    def __init__(self, job: _Optional[_Union[_common_pb2.Job, _Mapping]] = ..., picture: _Optional[bytes] = ...) -> None: ...

class ListJobsRequest(_message.Message):
    __slots__ = ("state", "page_size", "page_token")
    STATE_FIELD_NUMBER: _ClassVar[int]
    PAGE_SIZE_FIELD_NUMBER: _ClassVar[int]
    PAGE_TOKEN_FIELD_NUMBER: _ClassVar[int]
    state: _common_pb2.JobState
    page_size: int
    page_token: str
    def __init__(self, state: _Optional[_Union[_common_pb2.JobState, str]] = ..., page_size: _Optional[int] = ..., page_token: _Optional[str] = ...) -> None: ...

class ListJobsResponse(_message.Message):
    __slots__ = ("jobs", "next_page_token")
    JOBS_FIELD_NUMBER: _ClassVar[int]
    NEXT_PAGE_TOKEN_FIELD_NUMBER: _ClassVar[int]
    jobs: _containers.RepeatedCompositeFieldContainer[_common_pb2.Job]
    next_page_token: str
    def __init__(self, jobs: _Optional[_Iterable[_Union[_common_pb2.Job, _Mapping]]] = ..., next_page_token: _Optional[str] = ...) -> None: ...

class CancelJobRequest(_message.Message):
    __slots__ = ("job_id",)
    JOB_ID_FIELD_NUMBER: _ClassVar[int]
    job_id: str
    def __init__(self, job_id: _Optional[str] = ...) -> None: ...

class CancelJobResponse(_message.Message):
    __slots__ = ("job",)
    JOB_FIELD_NUMBER: _ClassVar[int]
    job: _common_pb2.Job
    def __init__(self, job: _Optional[_Union[_common_pb2.Job, _Mapping]] = ...) -> None: ...

class LocateRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class LocateResponse(_message.Message):
    __slots__ = ("internal_address", "version")
    INTERNAL_ADDRESS_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    internal_address: str
    version: str
    def __init__(self, internal_address: _Optional[str] = ..., version: _Optional[str] = ...) -> None: ...

class EraseRequest(_message.Message):
    __slots__ = ("job_id", "user", "whole_tenant", "tenant")
    JOB_ID_FIELD_NUMBER: _ClassVar[int]
    USER_FIELD_NUMBER: _ClassVar[int]
    WHOLE_TENANT_FIELD_NUMBER: _ClassVar[int]
    TENANT_FIELD_NUMBER: _ClassVar[int]
    job_id: str
    user: str
    whole_tenant: bool
    tenant: str
    def __init__(self, job_id: _Optional[str] = ..., user: _Optional[str] = ..., whole_tenant: bool = ..., tenant: _Optional[str] = ...) -> None: ...

class EraseResponse(_message.Message):
    __slots__ = ("erasure",)
    ERASURE_FIELD_NUMBER: _ClassVar[int]
    erasure: _common_pb2.Erasure
    def __init__(self, erasure: _Optional[_Union[_common_pb2.Erasure, _Mapping]] = ...) -> None: ...
