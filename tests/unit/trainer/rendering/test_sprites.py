"""The objects' source pictures are fetched to the folder that is named, wherever the command runs."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from services.trainer.rendering import sprites


@pytest.mark.skipif(shutil.which("npm") is None, reason="npm is not installed")
def test_a_folder_given_relative_to_the_working_directory_gets_the_package(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`make judge` names out/train/sprites; npm itself runs in that folder."""
    package = tmp_path / "package"
    package.mkdir()
    (package / "package.json").write_text(json.dumps({"name": "tiny", "version": "1.0.0"}))
    monkeypatch.setattr(sprites, "PACKAGE", str(package))  # npm packs a folder without a registry
    monkeypatch.setattr(sprites, "TARBALL", "tiny-1.0.0.tgz")
    monkeypatch.chdir(tmp_path)
    folder = Path("out/train/sprites")
    with pytest.raises(sprites.SpritesMissingError, match="sha512"):  # fetched, and not the pinned one
        sprites.load_sprites(folder)
    assert sprites.sprites_cached(tmp_path / folder)
