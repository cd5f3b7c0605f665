import hashlib
import io
import json
import shutil
import threading
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from services.embedder.encoder import Encoder, decoded, encoder_folder, encoder_hash, encoder_id
from shared.domain.errors import InvalidRequestError, ModelError
from shared.domain.types import vector_from
from shared.models.devices import single_threaded
from shared.models.vocabulary import KNOWN_WORDS


def picture(seed: int, kind: str = "PNG") -> bytes:
    pixels = np.random.default_rng(seed).integers(0, 255, (40, 56, 3), dtype=np.uint8)
    data = io.BytesIO()
    Image.fromarray(pixels).save(data, kind)
    return data.getvalue()


def test_unit_vectors_that_differ_and_repeat(encoder: Encoder) -> None:
    rows = [vector_from(one.vector) for one in encoder.texts(["a red cube", "a blue ball", "a red cube"])]
    assert all(row.shape == (encoder.dim,) for row in rows)
    assert [float(row @ row) for row in rows] == pytest.approx([1, 1, 1], abs=1e-6)
    assert np.array_equal(rows[0], rows[2])
    assert float(rows[0] @ rows[1]) < 0.9999


def test_company_does_not_matter(encoder: Encoder) -> None:
    alone = vector_from(encoder.texts(["a cube"])[0].vector)
    together = vector_from(encoder.texts(["a cube", "a very much longer prompt"])[0].vector)
    assert np.abs(alone - together).max() < 1e-5


def test_texts_and_vectors_equal_transformers_own(encoder: Encoder, clip_folder: Path) -> None:
    from transformers import AutoTokenizer, CLIPModel

    model, tokenizer = CLIPModel.from_pretrained(clip_folder).eval(), AutoTokenizer.from_pretrained(clip_folder)
    with torch.inference_mode():
        row = model.get_text_features(**tokenizer(["a red cube"], return_tensors="pt")).pooler_output[0].numpy()
    ours = vector_from(encoder.texts(["a red cube"])[0].vector)
    assert np.abs(ours - row / np.linalg.norm(row)).max() < 1e-6


def test_a_long_text_is_cut_and_says_so(encoder: Encoder) -> None:
    short, long, longer = encoder.texts(["a cube", "cube " * 40, "cube " * 80])
    assert (short.truncated, long.truncated, longer.truncated) == (False, True, True)
    assert np.abs(vector_from(long.vector) - vector_from(longer.vector)).max() < 1e-6


def test_pictures_of_two_formats(encoder: Encoder) -> None:
    one, two = (vector_from(e.vector) for e in encoder.images([picture(1), picture(2, "JPEG")]))
    assert float(one @ one) == pytest.approx(1, abs=1e-6)
    assert one.shape == two.shape == (encoder.dim,)
    assert not np.array_equal(one, two)


@pytest.mark.parametrize("data", [b"", b"no picture", picture(1)[:60], b"GIF89a" + b"0" * 40])
def test_what_is_no_picture_is_refused(data: bytes) -> None:
    with pytest.raises(InvalidRequestError, match="PNG or JPEG"):
        decoded(data)


def test_a_picture_too_large_to_decode_is_refused_by_its_header() -> None:
    data = io.BytesIO()
    Image.new("1", (9_000, 8_000)).save(data, "PNG")
    with pytest.raises(InvalidRequestError, match="pixels"):
        decoded(data.getvalue())


def test_known_words_beside_the_encoder(clip_folder: Path, tmp_path: Path) -> None:
    folder = shutil.copytree(clip_folder, tmp_path / "clip")
    (folder / KNOWN_WORDS).write_text(json.dumps(["a", "red"]))
    assert Encoder(folder).texts(["A red zyx"])[0].unknown_words == ("zyx",)
    assert encoder_hash(folder) == encoder_hash(clip_folder)  # the list changes no vector


def test_a_byte_level_tokenizer_spells_everything(encoder: Encoder) -> None:
    assert encoder.texts(["a zyxgh"])[0].unknown_words == ()


def test_the_hash_is_of_the_weights(clip_folder: Path, tmp_path: Path) -> None:
    folder = shutil.copytree(clip_folder, tmp_path / "clip")
    assert encoder_hash(folder) == encoder_hash(clip_folder)
    weights = folder / "model.safetensors"
    data = bytearray(weights.read_bytes())
    data[-1] ^= 1
    weights.write_bytes(bytes(data))
    assert encoder_hash(folder) != encoder_hash(clip_folder)


def test_the_weights_are_known_whatever_the_tokenizer_and_in_one_file_alone(clip_folder: Path, tmp_path: Path) -> None:
    folder = shutil.copytree(clip_folder, tmp_path / "clip")
    weights = folder / "model.safetensors"
    known = hashlib.sha256(weights.read_bytes()).hexdigest()
    (folder / "config.json").write_text((folder / "config.json").read_text() + "\n")
    assert encoder_id(folder) == (encoder_hash(folder), known)
    assert encoder_hash(folder) != encoder_hash(clip_folder)
    shutil.copyfile(weights, folder / "more.safetensors")
    assert encoder_id(folder).weights == ""


def test_where_an_encoder_is_looked_for(clip_folder: Path, tmp_path: Path) -> None:
    assert encoder_folder(str(clip_folder)) == clip_folder
    for name in ("bundled:nobody", str(tmp_path / "nothing"), "nobody"):
        with pytest.raises(ModelError, match=r"no config\.json"):
            encoder_folder(name)


def test_a_broken_folder_says_what_is_wrong(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="needs weights"):
        Encoder(tmp_path)
    (tmp_path / "model.safetensors").write_bytes(b"broken")
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(ModelError, match="CLIP pair"):
        Encoder(tmp_path)


def test_one_thread_here_and_no_fewer_elsewhere() -> None:
    before, seen = torch.get_num_threads(), []

    def encoder_thread() -> None:
        torch.set_num_threads(2)
        single_threaded()
        seen.append(torch.get_num_threads())

    for work in (encoder_thread, lambda: seen.append(torch.get_num_threads()), lambda: torch.set_num_threads(before)):
        thread = threading.Thread(target=work)
        thread.start()
        thread.join()
    assert seen == [1, 2]
