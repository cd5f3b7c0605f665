"""A clip as a file: MP4, WebM, animated WebP, GIF or PNG, or a folder of PNG frames; its poster and its thumbnails."""

from __future__ import annotations

import contextlib
import io
import json
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from numbers import Integral, Real
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from shared.client.image_file import CLIP_JOB, QUALITY, check_place, encoded, exif_of, format_of, text_chunks
from shared.domain.errors import ConfigurationError, InvalidRequestError
from shared.runtime import animated_png
from shared.runtime.animated_png import FPS, MAX_SIDE, Frames

if TYPE_CHECKING:
    from PIL import Image

FOLDER = "folder"
"""Format of a clip as a folder of PNG frames."""
FORMATS: Mapping[str, str] = {
    ".mp4": "mp4",
    ".webm": "webm",
    ".webp": "WEBP",
    ".gif": "GIF",
    ".png": "PNG",
    ".apng": "PNG",
    "": FOLDER,
}
"""Ending of the name → format: the container of PyAV, or Pillow's name."""
CODECS: Mapping[str, tuple[str, Mapping[str, str]]] = {
    "mp4": ("libx264", {"crf": "16"}),
    "webm": ("libvpx-vp9", {"crf": "20", "b": "0"}),
}
"""Container → encoder and its options. A lower crf is a larger file nearer to the frames."""
_CONTAINER: Mapping[str, Mapping[str, str]] = {"mp4": {"movflags": "+faststart+use_metadata_tags"}, "webm": {}}
_BT709, _LIMITED = 1, 1
"""Numbers of ffmpeg's colour space and range; a player assumes another space for small frames without them."""

GIF_FPS = 50.0
"""Browsers slow a GIF with delays below 0.02 s down to 10 frames per second."""
SCALES = (1, 16)
ANIMATION_PIXELS = 2**27
"""Pixels of all frames of a scaled GIF, WebP or PNG together: Pillow keeps them twice, with 4 bytes each."""
STRIP_WIDTH = 16383
"""Largest width of a strip in pixels: WebP's limit, below those of JPEG and PNG."""
RESAMPLES = ("lanczos", "nearest")
THUMBNAILS = 8
"""Frames in a strip of thumbnails, at most."""


@dataclass(frozen=True)
class Playback:
    """Speed and size of a clip in a file; neither changes what was generated."""

    fps: float
    scale: int = 1
    """Pixels of the file per generated pixel, each way."""
    resample: str = "lanczos"
    """`lanczos` is smooth, `nearest` repeats pixels."""

    def __post_init__(self) -> None:
        if not _between(self.fps, *FPS, Real):
            raise InvalidRequestError("fps", f"must be a number from {FPS[0]:g} to {FPS[1]:g}", self.fps)
        if not _between(self.scale, *SCALES, Integral):
            raise InvalidRequestError("scale", f"must be a whole number from {SCALES[0]} to {SCALES[1]}", self.scale)
        if self.resample not in RESAMPLES:
            raise InvalidRequestError("resample", f"must be one of {', '.join(RESAMPLES)}", self.resample)


def _between(value: Any, least: float, most: float, kind: type[Any]) -> bool:
    """Return whether the value is a number of this kind within the limits; nan is not."""
    return isinstance(value, kind) and bool(least <= value <= most)


def clip_format_of(path: Path, field: str = "out") -> str:
    """Return the format of a clip's file. field: the option that names the file.

    Raises InvalidRequestError for another ending, and ConfigurationError where the format's package is missing.
    """
    if (name := FORMATS.get(path.suffix.lower())) is None:
        endings = ", ".join(filter(None, FORMATS))
        raise InvalidRequestError(field, f"must end in one of {endings}, or name a folder without an ending", path)
    if name in CODECS and not _has_pyav():
        raise ConfigurationError(
            f"{field}: a {path.suffix} file needs the Python package av, which is not installed; "
            f"pip install 'afterimage[video]' brings it; .png, .gif and .webp work without it (got {str(path)!r})"
        )
    return name


def _has_pyav() -> bool:
    try:
        import av  # noqa: F401  # an import finds a broken package as well
    except ImportError:
        return False
    return True


def most_fps(path: Path) -> float:
    """Return the highest speed of a clip's file."""
    return GIF_FPS if clip_format_of(path) == "GIF" else FPS[1]


def check_clip_writable(path: Path, fps: float | None = None) -> None:
    """Raise InvalidRequestError if this clip cannot be written; the check leaves the disk unchanged."""
    name = clip_format_of(path)
    if name == "GIF" and fps is not None and fps > GIF_FPS:
        raise InvalidRequestError("fps", f"must be at most {GIF_FPS:g} in a GIF", fps)
    if name == FOLDER:
        check_frames_folder(path)
    else:
        check_place(path)


def check_frames_folder(folder: Path, field: str = "out") -> None:
    """Raise InvalidRequestError unless this is a new or empty folder where files can be written."""
    try:
        free = not folder.exists() or (folder.is_dir() and next(folder.iterdir(), None) is None)
    except OSError as error:
        raise InvalidRequestError(field, f"cannot be read ({error.strerror})", folder) from error
    if not free:
        raise InvalidRequestError(field, "must be a new or empty folder", folder)
    check_place(folder / "frame.png", field)


def write_clip(path: Path, frames: Frames, facts: Mapping[str, str], playback: Playback) -> None:
    """Write the clip in the format of the name's ending, with `facts` as metadata; raise OSError if that fails.

    PNG and a folder of frames are lossless. MP4 and WebM halve the resolution of colours; a frame of a GIF has 256.
    """
    check_clip_writable(path, playback.fps)
    name, images = clip_format_of(path), _scaled(frames, playback)
    if name == FOLDER:
        path.mkdir(exist_ok=True)
        for number, image in enumerate(images, 1):
            (path / f"frame-{number:04}.png").write_bytes(encoded(_png(image), _of_clip(facts), "PNG"))
    elif name in CODECS:
        path.write_bytes(_video(images, facts, playback.fps, name))
    else:
        if playback.scale > 1 and frames[..., 0].size * playback.scale**2 > ANIMATION_PIXELS:
            rule = f"must keep all frames at most {ANIMATION_PIXELS} pixels together in {path.suffix}, not so in .mp4"
            raise InvalidRequestError("scale", rule, playback.scale)
        path.write_bytes(_animation(list(images), facts, playback.fps, name))


def write_poster(path: Path, frames: Frames, facts: Mapping[str, str], playback: Playback) -> None:
    """Write the first frame as an image: PNG, JPEG or WebP."""
    path.write_bytes(encoded(_png(next(_scaled(frames[:1], playback))), _of_clip(facts), format_of(path)))


def write_strip(path: Path, frames: Frames, facts: Mapping[str, str], playback: Playback) -> None:
    """Write at most THUMBNAILS frames, evenly spread over the clip, beside each other: PNG, JPEG or WebP.

    A strip that would be wider than STRIP_WIDTH has smaller frames.
    """
    from PIL import Image

    spread = np.linspace(0, len(frames) - 1, min(len(frames), THUMBNAILS)).round().astype(int)
    width, height = _size(frames, playback)
    share = min(1.0, STRIP_WIDTH / (len(spread) * width))
    size = max(int(share * width), 1), max(int(share * height), 1)
    strip = Image.new("RGB", (len(spread) * size[0], size[1]))
    for index, image in enumerate(resized(frames[spread], size, playback.resample)):
        strip.paste(image, (index * size[0], 0))
    path.write_bytes(encoded(_png(strip), _of_clip(facts), format_of(path)))


def _of_clip(facts: Mapping[str, str]) -> dict[str, str]:
    """Return the metadata of an image that shows frames of a clip: `clip` names the job, which `job` does in whole
    results."""
    return {CLIP_JOB if name == "job" else name: fact for name, fact in facts.items()}


def _size(frames: Frames, playback: Playback) -> tuple[int, int]:
    """Return width and height of a frame in the file."""
    height, width = frames.shape[1:3]
    if playback.scale > 1 and playback.scale * max(width, height) > MAX_SIDE:
        rule = f"must keep width and height at most {MAX_SIDE} pixels; the clip is {width}x{height}"
        raise InvalidRequestError("scale", rule, playback.scale)
    return width * playback.scale, height * playback.scale


def _scaled(frames: Frames, playback: Playback) -> Iterator[Image.Image]:
    """Yield one image per frame at the size of the file."""
    return resized(frames, _size(frames, playback), playback.resample)


def resized(frames: Frames, size: tuple[int, int], resample: str) -> Iterator[Image.Image]:
    """Yield one image of this width and height per frame. resample: see Playback."""
    from PIL import Image

    for frame in frames:
        image = Image.fromarray(frame)
        yield image if image.size == size else image.resize(size, Image.Resampling[resample.upper()])


def _png(image: Image.Image) -> bytes:
    out = io.BytesIO()
    image.save(out, "PNG")
    return out.getvalue()


def _animation(images: Sequence[Image.Image], facts: Mapping[str, str], fps: float, name: str) -> bytes:
    if name == "PNG":
        return animated_png.encode(images, fps, pnginfo=text_chunks(facts))
    first, *others = images
    out, given = io.BytesIO(), dict[str, Any]()
    match name:
        case "GIF":  # durations are multiples of 10 ms
            given = {"comment": json.dumps(facts, ensure_ascii=False).encode()}
            given["duration"] = [10 * tick for tick in _ticks(len(images), 100 / fps)]
        case _:
            given = {"quality": QUALITY, "exif": exif_of(facts), "duration": _ticks(len(images), 1000 / fps)}
    first.save(out, name, save_all=True, append_images=others, loop=0, **given)
    return out.getvalue()


def _ticks(count: int, each: float) -> list[int]:
    """Return whole durations whose sum is right after every frame, to half a tick."""
    ends = [round((index + 1) * each) for index in range(count)]
    return [end - start for start, end in zip([0, *ends], ends, strict=False)]


def _video(images: Iterator[Image.Image], facts: Mapping[str, str], fps: float, container: str) -> bytes:
    """Return the clip as H.264 or VP9 with 4:2:0 colours; an odd width or height gains one pixel at the edge."""
    import av
    from av.video.reformatter import ColorRange, Colorspace

    codec, quality = CODECS[container]
    with tempfile.TemporaryDirectory(prefix="afterimage-clip-") as folder, _quiet():
        file = Path(folder) / "clip"  # a file, because the index of an MP4 moves to the front at the end
        with av.open(str(file), "w", format=container, options=dict(_CONTAINER[container])) as out:
            out.metadata.update(facts)
            stream: Any = out.add_stream(codec, rate=Fraction(fps).limit_denominator(1001), options=dict(quality))
            stream.pix_fmt, known = "yuv420p", stream.codec_context
            known.colorspace = known.color_primaries = known.color_trc = _BT709
            known.color_range = _LIMITED
            for image in images:
                odd = ((0, image.height % 2), (0, image.width % 2), (0, 0))
                frame = av.VideoFrame.from_ndarray(np.pad(np.asarray(image), odd, mode="edge"), format="rgb24")
                if not known.is_open:
                    stream.width, stream.height = frame.width, frame.height
                yuv = frame.reformat(
                    format="yuv420p", dst_colorspace=Colorspace.ITU709, dst_color_range=ColorRange.MPEG
                )
                out.mux(stream.encode(yuv))
            out.mux(stream.encode())
        return file.read_bytes()


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Keep the encoders' own lines off stderr, and raise OSError for their errors."""
    import av.error
    import av.logging

    level = av.logging.get_level()
    av.logging.set_level(av.logging.ERROR)
    try:
        yield
    except av.error.FFmpegError as error:
        raise OSError(f"the encoder failed: {error}") from error
    finally:
        av.logging.set_level(level)
