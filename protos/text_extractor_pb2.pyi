from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class ExtractRequest(_message.Message):
    __slots__ = ("prompts", "owner")
    PROMPTS_FIELD_NUMBER: _ClassVar[int]
    OWNER_FIELD_NUMBER: _ClassVar[int]
    prompts: _containers.RepeatedScalarFieldContainer[str]
    owner: str
    def __init__(self, prompts: _Optional[_Iterable[str]] = ..., owner: _Optional[str] = ...) -> None: ...

class Parts(_message.Message):
    __slots__ = ("object", "background", "sure")
    OBJECT_FIELD_NUMBER: _ClassVar[int]
    BACKGROUND_FIELD_NUMBER: _ClassVar[int]
    SURE_FIELD_NUMBER: _ClassVar[int]
    object: str
    background: str
    sure: bool
    def __init__(self, object: _Optional[str] = ..., background: _Optional[str] = ..., sure: bool = ...) -> None: ...

class ExtractResponse(_message.Message):
    __slots__ = ("extractor", "parts")
    EXTRACTOR_FIELD_NUMBER: _ClassVar[int]
    PARTS_FIELD_NUMBER: _ClassVar[int]
    extractor: str
    parts: _containers.RepeatedCompositeFieldContainer[Parts]
    def __init__(self, extractor: _Optional[str] = ..., parts: _Optional[_Iterable[_Union[Parts, _Mapping]]] = ...) -> None: ...
