"""Clips as files: real encoders and decoders, frame by frame, and what cannot be written."""

from __future__ import annotations

import io
import json
import struct
import sys
import zlib
from pathlib import Path

import av
import numpy as np
import pytest
from PIL import Image
from PIL.PngImagePlugin import PngImageFile

from shared.client.clip_file import (
    RESAMPLES,
    Playback,
    check_clip_writable,
    write_clip,
    write_poster,
    write_strip,
)
from shared.client.named_job import job_named_in, keeps_pixels, same_pixels
from shared.domain.errors import BlobCorruptError, ConfigurationError, InvalidRequestError
from shared.runtime.animated_png import Frames, decode

FACTS = {"prompt": "ein Füchslein im Schnee, 雪の中の狐 🦊", "seed": "7", "job": "j1", "Software": "Afterimage"}
PART = {"clip" if name == "job" else name: fact for name, fact in FACTS.items()}
"""Metadata of an image that shows only some frames."""


def moving(count: int = 16, side: int = 64) -> Frames:
    """A red square that runs to the left over snow; two neighbours are equal."""
    frames = np.full((count, side, side, 3), (230, 235, 245), np.uint8)
    for index, frame in enumerate(frames):
        at = side // 2 - (index - (index == 5))
        frame[side // 3 : side // 2, at : at + side // 4] = (200, 60, 20)
    return frames


def read_video(path: Path) -> tuple[Frames, dict[str, str], float]:
    """The frames, the metadata with lower-case keys, and the frames per second."""
    with av.open(str(path)) as file:
        stream = file.streams.video[0]
        assert stream.codec_context.pix_fmt == "yuv420p"
        frames = np.stack([frame.to_ndarray(format="rgb24") for frame in file.decode(stream)]).astype(np.uint8)
        assert stream.average_rate is not None
        return frames, {key.lower(): value for key, value in file.metadata.items()}, float(stream.average_rate)


@pytest.mark.parametrize("ending", ["mp4", "webm"])
@pytest.mark.parametrize(("fps", "scale", "side"), [(8.0, 1, 64), (23.976, 3, 64), (0.5, 1, 63)])
def test_a_video_has_every_frame_at_the_asked_speed_and_size(
    tmp_path: Path, ending: str, fps: float, scale: int, side: int
) -> None:
    frames = moving(side=side)
    write_clip(tmp_path / f"fox.{ending}", frames, FACTS, Playback(fps, scale, "nearest"))
    found, facts, rate = read_video(tmp_path / f"fox.{ending}")
    large = frames.repeat(scale, axis=1).repeat(scale, axis=2)
    even = scale * side + scale * side % 2
    assert found.shape == (16, even, even, 3)
    assert rate == pytest.approx(fps, rel=1e-4)
    assert np.abs(found[:, : scale * side, : scale * side].astype(int) - large).mean() < 3  # lossy, and the same clip
    assert {key: facts[key] for key in ("prompt", "seed", "job", "software")} == {
        k.lower(): v for k, v in FACTS.items()
    }
    assert [path.name for path in tmp_path.iterdir()] == [f"fox.{ending}"]


def test_an_mp4_begins_with_its_index(tmp_path: Path) -> None:
    write_clip(tmp_path / "fox.mp4", moving(), FACTS, Playback(8))
    data = (tmp_path / "fox.mp4").read_bytes()
    assert 0 < data.index(b"moov") < data.index(b"mdat")


@pytest.mark.parametrize("name", ["fox.png", "fox.apng"])
def test_an_animated_png_keeps_every_frame(tmp_path: Path, name: str) -> None:
    frames = moving()
    write_clip(tmp_path / name, frames, FACTS, Playback(12.5))
    data = (tmp_path / name).read_bytes()
    with PngImageFile(io.BytesIO(data)) as image:
        assert (image.n_frames, image.info["duration"]) == (16, 80.0)  # equal neighbours are two frames
        assert {key: image.info[key] for key in FACTS} == FACTS
    assert np.array_equal(decode(data), frames)


def test_a_folder_has_one_lossless_file_per_frame(tmp_path: Path) -> None:
    frames = moving()
    check_clip_writable(tmp_path / "new" / "clip")
    write_clip(tmp_path / "clip", frames, FACTS, Playback(8, 2, "nearest"))
    files = sorted((tmp_path / "clip").iterdir())
    assert [file.name for file in files] == [f"frame-{number:04}.png" for number in range(1, 17)]
    for file, frame in zip(files, frames, strict=True):
        with Image.open(file) as image:
            assert np.array_equal(np.asarray(image), frame.repeat(2, axis=0).repeat(2, axis=1))
            assert image.info == PART
    with pytest.raises(InvalidRequestError, match="out: must be a new or empty folder"):
        write_clip(tmp_path / "clip", frames, FACTS, Playback(8))


@pytest.mark.parametrize("fps", [8.0, 30.0])
def test_gif_and_webp_play_as_long_as_the_clip(tmp_path: Path, fps: float) -> None:
    frames = moving(24)
    for name in ("fox.gif", "fox.webp"):
        write_clip(tmp_path / name, frames, FACTS, Playback(fps))
        lasting, last = 0.0, frames[0]
        with Image.open(tmp_path / name) as image:
            for index in range(getattr(image, "n_frames", 1)):
                image.seek(index)
                last = np.asarray(image.convert("RGB"))
                lasting += image.info["duration"]
            assert image.info["loop"] == 0
            if name.endswith("gif"):
                facts = json.loads(image.info["comment"])
            else:
                facts = json.loads(image.getexif().get_ifd(0x8769)[0x9286][8:])
        assert facts == FACTS
        assert lasting == pytest.approx(1000 * 24 / fps, abs=5)
        assert np.abs(last.astype(int) - frames[-1]).mean() < 4


def test_a_clip_of_one_frame_can_be_written(tmp_path: Path) -> None:
    for ending in ("mp4", "webm", "png", "gif", "webp"):
        write_clip(tmp_path / f"fox.{ending}", moving(1), FACTS, Playback(8))
    assert len(read_video(tmp_path / "fox.mp4")[0]) == 1
    assert np.array_equal(decode((tmp_path / "fox.png").read_bytes()), moving(1))


def test_other_bytes_are_no_clip(tmp_path: Path) -> None:
    write_clip(tmp_path / "fox.png", moving(), FACTS, Playback(8))
    write_clip(tmp_path / "fox.gif", moving(), FACTS, Playback(8))
    whole = (tmp_path / "fox.png").read_bytes()
    for data in (
        b"",
        b"no image",
        (tmp_path / "fox.gif").read_bytes(),
        *(whole[:end] for end in range(8, len(whole) - 12, 20)),
    ):
        with pytest.raises(BlobCorruptError, match="the blob"):
            decode(data)


def test_a_poster_is_the_first_frame_and_a_strip_shows_the_whole_clip(tmp_path: Path) -> None:
    frames = moving()
    write_poster(tmp_path / "poster.png", frames, FACTS, Playback(8, 2, "nearest"))
    write_strip(tmp_path / "strip.png", frames, FACTS, Playback(8))
    with Image.open(tmp_path / "poster.png") as poster, Image.open(tmp_path / "strip.png") as strip:
        assert np.array_equal(np.asarray(poster), frames[0].repeat(2, axis=0).repeat(2, axis=1))
        assert (strip.size, poster.info) == ((8 * 64, 64), PART)
        assert np.array_equal(np.asarray(strip)[:, :64], frames[0])
        assert np.array_equal(np.asarray(strip)[:, -64:], frames[-1])
    write_poster(tmp_path / "poster.jpg", frames, FACTS, Playback(8))
    with Image.open(tmp_path / "poster.jpg") as poster:
        assert poster.format == "JPEG"


def test_a_part_of_a_clip_does_not_name_the_clip_as_its_job(tmp_path: Path) -> None:
    frames, playback = moving(), Playback(8)
    write_clip(tmp_path / "clip.png", frames, FACTS, playback)
    write_clip(tmp_path / "frames", frames, FACTS, playback)
    write_poster(tmp_path / "poster.png", frames, FACTS, playback)
    write_strip(tmp_path / "strip.png", frames, FACTS, playback)
    write_strip(tmp_path / "strip.jpg", frames, FACTS, playback)
    assert job_named_in(tmp_path / "clip.png") == job_named_in(tmp_path / "frames") == "j1"
    for part in ("poster.png", "strip.png", "strip.jpg", "frames/frame-0001.png"):
        with pytest.raises(InvalidRequestError, match=r"from: shows only a part of a clip; .* --from j1"):
            job_named_in(tmp_path / part)
    (tmp_path / "previews").mkdir()
    with pytest.raises(InvalidRequestError, match=r"^from: cannot be read \(No such file or directory\) \(got"):
        job_named_in(tmp_path / "previews")


@pytest.mark.parametrize("ending", ["mp4", "webm", "gif", "webp", "apng"])
def test_every_file_of_a_clip_names_its_job(tmp_path: Path, ending: str) -> None:
    path = tmp_path / f"fox.{ending}"
    write_clip(path, moving(), FACTS, Playback(8, 2))
    assert job_named_in(path) == "j1"
    write_clip(path, moving(), {}, Playback(8))
    path.with_name(f"torn.{ending}").write_text("no clip")
    for name, said in (("fox", "must be the id of a job"), ("torn", "cannot be read"), ("gone", "cannot be read")):
        with pytest.raises(InvalidRequestError, match=f"^continue: {said}") as refused:
            job_named_in(tmp_path / f"{name}.{ending}", "continue")
        assert "\n" not in str(refused.value)


def test_a_clip_is_unchanged_only_with_every_frame(tmp_path: Path) -> None:
    frames = moving()
    for name, changed in {
        "same": frames,
        "shorter": frames[:-1],
        "first": frames[:1],
        "others": frames[[0, *[3] * 15]],
    }.items():
        write_clip(tmp_path / f"{name}.png", changed, FACTS, Playback(12.5))
    data = (tmp_path / "same.png").read_bytes()
    for name, changed in (("enlarged", frames), ("enlarged others", frames[[0, *[3] * 15]])):
        for resample in RESAMPLES:
            write_clip(tmp_path / f"{name}, {resample}.png", changed, FACTS, Playback(8, 3, resample))
    alike = {path.stem for path in tmp_path.iterdir() if same_pixels(path, data)}
    assert alike == {"same", "enlarged, lanczos", "enlarged, nearest"}
    write_clip(tmp_path / "folder", frames, FACTS, Playback(8))
    write_clip(tmp_path / "fox.gif", frames, FACTS, Playback(8))
    assert [keeps_pixels(tmp_path / name) for name in ("same.png", "folder", "fox.gif")] == [True, False, False]
    (tmp_path / "torn.png").write_bytes(data[: len(data) // 2])
    with pytest.raises(BlobCorruptError, match="the blob"):
        same_pixels(tmp_path / "torn.png", data)


def test_a_wide_strip_is_shrunk_to_what_every_format_holds(tmp_path: Path) -> None:
    for name in ("strip.webp", "strip.jpg", "strip.png"):
        write_strip(tmp_path / name, np.zeros((8, 8, 512, 3), np.uint8), FACTS, Playback(8, 8, "nearest"))
        with Image.open(tmp_path / name) as strip:
            assert strip.size == (16376, 31)


def test_an_animated_image_that_would_fill_the_memory_is_refused(tmp_path: Path) -> None:
    frames = np.broadcast_to(np.zeros((1, 1, 1, 3), np.uint8), (64, 1024, 1024, 3))
    for name in ("fox.gif", "fox.webp", "fox.png"):
        with pytest.raises(
            InvalidRequestError, match=f"scale: must keep all frames at most 134217728 pixels .*{name[3:]}"
        ):
            write_clip(tmp_path / name, frames, FACTS, Playback(8, 2))
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"fps": 0.0}, "fps: must be a number from 0.1 to 120 (got '0.0')"),
        ({"fps": float("nan")}, "fps: must be a number from 0.1 to 120 (got 'nan')"),
        ({"fps": float("inf")}, "fps: must be a number from 0.1 to 120 (got 'inf')"),
        ({"fps": "8"}, "fps: must be a number from 0.1 to 120 (got '8')"),
        ({"fps": 8.0, "scale": 2.5}, "scale: must be a whole number from 1 to 16 (got '2.5')"),
        ({"fps": 8.0, "scale": 0}, "scale: must be a whole number from 1 to 16 (got '0')"),
        ({"fps": 8.0, "scale": 10**9}, "scale: must be a whole number from 1 to 16 (got '1000000000')"),
        ({"fps": 8.0, "resample": "cubic"}, "resample: must be one of lanczos, nearest (got 'cubic')"),
    ],
)
def test_an_absurd_speed_or_size_is_refused(given: dict[str, object], said: str) -> None:
    with pytest.raises(InvalidRequestError) as caught:
        Playback(**given)  # type: ignore[arg-type]
    assert str(caught.value) == said


def test_what_cannot_be_written_is_refused_before_the_work(tmp_path: Path) -> None:
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "kept.txt").write_text("kept")
    (tmp_path / "folder.mp4").mkdir()
    endings = ".mp4, .webm, .webp, .gif, .png, .apng"
    refused = {
        tmp_path / "fox.avi": f"must end in one of {endings}, or name a folder without an ending",
        tmp_path / "full": "must be a new or empty folder",
        tmp_path / "folder.mp4": "must be a file, not a folder",
        Path("/proc/fox.mp4"): "cannot be written (No such file or directory)",
    }
    for path, rule in refused.items():
        with pytest.raises(InvalidRequestError) as caught:
            check_clip_writable(path)
        assert str(caught.value) == f"out: {rule} (got {str(path)!r})"
    with pytest.raises(InvalidRequestError, match=r"fps: must be at most 50 in a GIF \(got '60.0'\)"):
        check_clip_writable(tmp_path / "fox.gif", 60.0)
    with pytest.raises(InvalidRequestError, match="scale: must keep width and height at most 8192 pixels; the clip"):
        write_clip(tmp_path / "wide.png", np.zeros((1, 8, 1024, 3), np.uint8), FACTS, Playback(8, 16))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["folder.mp4", "full"]


def test_a_small_file_that_claims_endless_frames_is_refused_at_once() -> None:
    """Its header's checksum is right, so only the claim itself is wrong."""
    out = io.BytesIO()
    first, *others = [Image.fromarray(frame) for frame in moving(9)]
    first.save(out, "PNG", save_all=True, append_images=others)
    for kind, claim in ((b"IHDR", struct.pack(">II", 8_000, 8_000)), (b"acTL", struct.pack(">I", 2**31 - 1))):
        data = bytearray(out.getvalue())
        at = data.index(kind)
        data[at + 4 : at + 4 + len(claim)] = claim
        end = at + 4 + int.from_bytes(data[at - 4 : at])
        data[end : end + 4] = struct.pack(">I", zlib.crc32(data[at:end]))
        with pytest.raises(BlobCorruptError, match="more than 536870912 pixels"):
            decode(bytes(data))


def test_without_pyav_one_line_names_the_extra_and_the_formats_that_work(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "av", None)
    for ending in ("mp4", "webm"):
        with pytest.raises(ConfigurationError) as caught:
            check_clip_writable(tmp_path / f"fox.{ending}")
        assert "\n" not in str(caught.value)
        assert str(caught.value).startswith(f"out: a .{ending} file needs the Python package av")
        assert "pip install 'afterimage[video]'" in str(caught.value)
        assert ".png, .gif and .webp work without it" in str(caught.value)
    for name in ("fox.png", "fox.gif", "fox.webp", "frames"):
        write_clip(tmp_path / name, moving(2), FACTS, Playback(8))
