"""Data sets: folders, tar files, broken images, buckets, and an order that depends on seed and iteration alone."""

from __future__ import annotations

import io
import json
import tarfile
from collections import Counter
from pathlib import Path

import pytest
from PIL import Image

from services.trainer.finetuning.data.buckets import bucket_sizes, grouped, nearest
from services.trainer.finetuning.data.index import make_index, read_index, source_of
from services.trainer.finetuning.data.order import Order, held_out
from services.trainer.finetuning.data.training_data import TrainingData
from services.trainer.finetuning.settings import DataSettings, read_run_settings
from shared.domain.errors import ConfigurationError
from shared.domain.types import Size
from shared.models.card import ModelCard, SizeRule
from shared.models.card_lookup import SHIPPED, find_card
from tests.unit.trainer.finetuning.conftest import settings_of

SD = ModelCard(name="sd", sizes=SizeRule(multiple_of=8, min_px=64, max_px=2048))


def indexed(path: str, folder: Path) -> tuple[list[str], list[str]]:
    """Names of the usable rows, and lines that were said."""
    said: list[str] = []
    make_index(source_of(DataSettings(path=path), 0), folder, said.append)
    return [one.row.name for one in read_index(folder)], said


def test_a_folder_is_read_and_broken_images_are_named_and_counted(
    photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 32 * 32)  # Pillow refuses twice as many
    data = tmp_path / "data"
    data.mkdir()
    (data / "whole.png").write_bytes((photos / "0.png").read_bytes())
    (data / "cut.png").write_bytes((photos / "0.png").read_bytes()[:60])
    Image.new("RGB", (64, 64)).save(data / "huge.png")
    lines = [
        '{"file_name": "whole.png", "text": "two\u2028lines"}',
        '{"file_name": "cut.png", "text": "cut"}',
        '{"file_name": "gone.png", "text": "gone"}',
        '{"file_name": "../secret.png", "text": "outside"}',
        '{"file_name": "whole.png"}',
        "{",
        '{"file_name": "huge.png", "text": "huge"}',
    ]
    (data / "metadata.jsonl").write_text("\n".join(lines))
    names, said = indexed(str(data), tmp_path / "index")
    assert names == ["whole.png"]
    assert said[0].startswith("skipped 6 of 7 images: cut.png: ")
    for part in (
        "gone.png: No such file",
        "line 4: file_name must be inside",
        "line 5: has no caption",
        "line 6: must",
    ):
        assert part in said[0]
    broken = (tmp_path / "index" / "broken.jsonl").read_text().splitlines()
    assert len(broken) == 6
    assert "exceeds limit of 2048 pixels" in broken[-1]


@pytest.mark.parametrize(
    ("path", "content", "said"),
    [
        ("empty", None, "no metadata.jsonl in "),
        ("none", "", "names no image"),
        ("broken", '{"file_name": "gone.png", "text": "gone"}', "none of its 1 images can be used; gone.png: No such"),
        ("missing", "-", "missing', which does not exist)"),
        ("shards-*.tar", "-", "no tar file matches"),
    ],
)
def test_data_without_an_image_is_one_clear_error(tmp_path: Path, path: str, content: str | None, said: str) -> None:
    if content != "-":
        (tmp_path / path).mkdir()
    if content is not None and content != "-":
        (tmp_path / path / "metadata.jsonl").write_text(content)
    with pytest.raises(ConfigurationError, match=r"data\.path: ") as raised:
        indexed(str(tmp_path / path), tmp_path / "index")
    assert said in str(raised.value)


def test_tar_files_are_read_at_their_offsets(photos: Path, tmp_path: Path) -> None:
    content = (photos / "1.png").read_bytes()

    def add(archive: tarfile.TarFile, name: str, data: bytes) -> None:
        member = tarfile.TarInfo(name)
        member.size = len(data)
        archive.addfile(member, io.BytesIO(data))

    for shard in range(2):
        with tarfile.open(tmp_path / f"shard-{shard}.tar", "w") as archive:
            add(archive, f"a/{shard}.txt", b" a tall square \n")
            add(archive, f"a/{shard}.png", content)
            add(archive, f"a/{shard}b.json", json.dumps({"caption": "from JSON"}).encode())
            add(archive, f"a/{shard}b.png", content)
            add(archive, f"a/{shard}c.png", content)
    names, said = indexed(str(tmp_path / "shard-*.tar"), tmp_path / "index")
    assert names == ["shard-0.tar/a/0.png", "shard-0.tar/a/0b.png", "shard-1.tar/a/1.png", "shard-1.tar/a/1b.png"]
    assert "skipped 2 of 6 images: shard-0.tar/a/0c.png: has no caption beside it" in said[0]
    rows = read_index(tmp_path / "index")
    assert [one.row.caption for one in rows[:2]] == ["a tall square", "from JSON"]
    image = source_of(DataSettings(path=str(tmp_path / "shard-*.tar")), 0).image(rows[3].row, None)
    assert image.tobytes() == Image.open(io.BytesIO(content)).convert("RGB").tobytes()


def test_tar_files_are_found_below_folders_with_brackets(tmp_path: Path) -> None:
    folder = tmp_path / "photos [2]"
    folder.mkdir()
    for name in ("a[1].tar", "b.tar"):
        with tarfile.open(folder / name, "w"):
            pass

    def found(path: str) -> list[str]:
        (folder / "job.toml").write_text(f'model = "m"\nout = "out"\n[data]\npath = "{path}"\n')
        source = source_of(read_run_settings(folder / "job.toml", {}).data, 0)
        return [one.name for one in source.files()]

    assert found("*.tar") == ["a[1].tar", "b.tar"]
    assert found("b.tar") == ["b.tar"]
    assert found(f"{folder}/a[1].tar") == ["a[1].tar"]  # a whole name is no pattern


def test_scenes_are_rendered_in_the_size_of_their_bucket(renderer: object, tmp_path: Path) -> None:
    from tests.unit.trainer.conftest import SPRITES

    source = source_of(DataSettings(path="scenes", scenes=3, sprites=SPRITES), 5)
    make_index(source, tmp_path, lambda line: None)
    rows = read_index(tmp_path)
    assert source.image(rows[0].row, Size(96, 64)).size == (96, 64)
    assert len({one.row.caption for one in rows}) == 3


def test_bucket_sizes_have_the_area_and_the_ratio() -> None:
    found = bucket_sizes(SD, 512, 2.0)
    assert Size(512, 512) in found
    assert Size(704, 384) in found
    assert {Size(size.height, size.width) for size in found} == set(found)
    assert all(size.width % 64 == 0 and 0.75 < size.width * size.height / 512**2 < 1.25 for size in found)
    assert bucket_sizes(SD, 512, 1.0) == (Size(512, 512),)
    assert bucket_sizes(SHIPPED["small"], 64, 2.0) == (Size(64, 64),)
    with pytest.raises(ConfigurationError, match=r"data\.resolution: the model generates width and height multiples"):
        bucket_sizes(SD, 513, 2.0)


def test_rare_shapes_join_the_nearest_bucket() -> None:
    sizes = (Size(64, 64), Size(96, 64), Size(64, 96))
    assert nearest(Size(300, 310), sizes) == Size(64, 64)
    images = [Size(10, 10)] * 5 + [Size(15, 10)] * 5 + [Size(10, 15)]
    assert {size: len(rows) for size, rows in grouped(images, sizes, least=4).items()} == {
        Size(64, 64): 6,
        Size(96, 64): 5,
    }


def test_every_row_comes_once_an_epoch_and_the_order_depends_on_the_seed() -> None:
    buckets = {Size(64, 64): range(8), Size(96, 64): range(8, 15)}
    order = Order(buckets, batch=4, seed=1)
    assert order.batches_per_epoch == 4
    epoch = [order.at(iteration) for iteration in range(4, 8)]
    seen = Counter(index for _, rows in epoch for index in rows)
    assert set(seen) == set(range(15))
    assert sum(seen.values()) == 16  # one row of the second bucket fills its last batch
    assert all(set(rows) <= set(buckets[size]) for size, rows in epoch)
    assert Order(buckets, batch=4, seed=1).at(5) == order.at(5)  # no earlier batch was asked for
    assert [order.at(iteration) for iteration in range(4)] != epoch
    assert Order(buckets, batch=4, seed=2).at(5) != order.at(5)


def test_held_out_rows_are_a_share_and_never_all() -> None:
    assert len(held_out(100, 0.05, 0)) == 5
    assert len(held_out(12, 0.05, 0)) == 1
    assert len(held_out(1, 0.5, 0)) == 0
    assert not held_out(100, 0.0, 0)


def test_batches_have_captions_crops_and_seeds_of_their_own(base: Path, photos: Path, tmp_path: Path) -> None:
    settings = settings_of(base, photos, tmp_path, data={"dropout": 0.5}, self_conditioning=0.5)
    source = source_of(settings.data, 0)
    make_index(source, tmp_path, lambda line: None)
    data = TrainingData(source, read_index(tmp_path), settings, find_card(str(base)))
    batches = [data.batch(iteration) for iteration in range(24)]
    assert (data.count, data.held_out_count) == (11, 1)
    rows = [row for batch in batches for row in batch.rows]
    assert 0.3 < sum(not row.caption for row in rows) / len(rows) < 0.7
    assert 4 < sum(batch.second_pass for batch in batches) < 20
    assert len({row.seed for row in rows}) == len(rows)
    assert data.batch(3).rows == batches[3].rows
    pixels = batches[0].pixels()
    assert pixels.shape == (4, 3, batches[0].size.height, batches[0].size.width)
    assert -1 <= pixels.min() < pixels.max() <= 1
    held = data.validation()
    assert [len(batch) for batch in held] == [1]
    assert held[0].rows[0].index not in {row.index for row in rows}
