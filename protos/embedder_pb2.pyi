from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class Embedding(_message.Message):
    __slots__ = ("vector", "unknown_words", "truncated", "unknown_share")
    VECTOR_FIELD_NUMBER: _ClassVar[int]
    UNKNOWN_WORDS_FIELD_NUMBER: _ClassVar[int]
    TRUNCATED_FIELD_NUMBER: _ClassVar[int]
    UNKNOWN_SHARE_FIELD_NUMBER: _ClassVar[int]
    vector: bytes
    unknown_words: _containers.RepeatedScalarFieldContainer[str]
    truncated: bool
    unknown_share: float
    def __init__(self, vector: _Optional[bytes] = ..., unknown_words: _Optional[_Iterable[str]] = ..., truncated: bool = ..., unknown_share: _Optional[float] = ...) -> None: ...

class EmbedTextRequest(_message.Message):
    __slots__ = ("texts", "owner")
    TEXTS_FIELD_NUMBER: _ClassVar[int]
    OWNER_FIELD_NUMBER: _ClassVar[int]
    texts: _containers.RepeatedScalarFieldContainer[str]
    owner: str
    def __init__(self, texts: _Optional[_Iterable[str]] = ..., owner: _Optional[str] = ...) -> None: ...

class EmbedTextResponse(_message.Message):
    __slots__ = ("embeddings", "encoder_hash", "encode_s", "encoder_weights")
    EMBEDDINGS_FIELD_NUMBER: _ClassVar[int]
    ENCODER_HASH_FIELD_NUMBER: _ClassVar[int]
    ENCODE_S_FIELD_NUMBER: _ClassVar[int]
    ENCODER_WEIGHTS_FIELD_NUMBER: _ClassVar[int]
    embeddings: _containers.RepeatedCompositeFieldContainer[Embedding]
    encoder_hash: str
    encode_s: float
    encoder_weights: str
    def __init__(self, embeddings: _Optional[_Iterable[_Union[Embedding, _Mapping]]] = ..., encoder_hash: _Optional[str] = ..., encode_s: _Optional[float] = ..., encoder_weights: _Optional[str] = ...) -> None: ...

class EmbedImageRequest(_message.Message):
    __slots__ = ("images", "looks")
    IMAGES_FIELD_NUMBER: _ClassVar[int]
    LOOKS_FIELD_NUMBER: _ClassVar[int]
    images: _containers.RepeatedScalarFieldContainer[bytes]
    looks: bool
    def __init__(self, images: _Optional[_Iterable[bytes]] = ..., looks: bool = ...) -> None: ...

class Look(_message.Message):
    __slots__ = ("contrast", "saturation", "sharpness")
    CONTRAST_FIELD_NUMBER: _ClassVar[int]
    SATURATION_FIELD_NUMBER: _ClassVar[int]
    SHARPNESS_FIELD_NUMBER: _ClassVar[int]
    contrast: float
    saturation: float
    sharpness: float
    def __init__(self, contrast: _Optional[float] = ..., saturation: _Optional[float] = ..., sharpness: _Optional[float] = ...) -> None: ...

class EmbedImageResponse(_message.Message):
    __slots__ = ("embeddings", "encoder_hash", "encode_s", "looks")
    EMBEDDINGS_FIELD_NUMBER: _ClassVar[int]
    ENCODER_HASH_FIELD_NUMBER: _ClassVar[int]
    ENCODE_S_FIELD_NUMBER: _ClassVar[int]
    LOOKS_FIELD_NUMBER: _ClassVar[int]
    embeddings: _containers.RepeatedCompositeFieldContainer[Embedding]
    encoder_hash: str
    encode_s: float
    looks: _containers.RepeatedCompositeFieldContainer[Look]
    def __init__(self, embeddings: _Optional[_Iterable[_Union[Embedding, _Mapping]]] = ..., encoder_hash: _Optional[str] = ..., encode_s: _Optional[float] = ..., looks: _Optional[_Iterable[_Union[Look, _Mapping]]] = ...) -> None: ...
