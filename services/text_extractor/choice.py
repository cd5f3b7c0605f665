"""Choice of the extractor by the setting `extractor`."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from pathlib import Path

from services.text_extractor import Extraction, Extractor
from services.text_extractor.grammar import Grammar
from shared.models.checkpoint import read_json
from shared.models.folders import transformers_folder
from shared.runtime.settings import Settings

GRAMMAR = "grammar"
URLS = ("http://", "https://")
CHOICES = "grammar, a bundled name, a folder, a .gguf file, a hub id or the URL of a server"
HEAD_BYTES = 2**20


class Off:
    """No extractor: every answer is unsure, so that only whole prompts are searched."""

    id = ""
    seats = 256

    def extract(self, prompts: Sequence[str]) -> list[Extraction]:
        return [Extraction()] * len(prompts)


def open_extractor(settings: Settings) -> Extractor:
    """Return the extractor that the settings name, with its weights loaded. Raise ModelError if that fails."""
    name, tokens = settings.extractor.strip(), settings.extract_tokens
    if not name:
        return Off()
    if name == GRAMMAR:
        return Grammar(tokens)
    if name.startswith(URLS):
        from services.text_extractor.served import Served

        return Served(name, settings.extractor_key.get_secret_value(), tokens)
    path = weights_at(name)
    if path.suffix != ".gguf" and "LlamaForTokenClassification" in read_json(path / "config.json")["architectures"]:
        from services.text_extractor.marking import BorderLlama

        return BorderLlama(path, model_id(path), tokens)
    from services.text_extractor.llama import CausalLlama

    return CausalLlama(path, model_id(path), tokens, settings.device)


def weights_at(name: str) -> Path:
    """Return the folder or the .gguf file of a bundled name, a path or a hub id; fetch the hub's files."""
    path = Path(name).expanduser()
    return path if path.suffix == ".gguf" and path.is_file() else transformers_folder(name, "extractor", CHOICES)


def model_id(path: Path) -> str:
    """Return a model's name with 8 hex digits over its files: their names, sizes and first MiB."""
    total = hashlib.sha256()
    files = (
        [path] if path.is_file() else sorted(one for one in path.iterdir() if one.suffix in (".safetensors", ".json"))
    )
    for file in files:
        with file.open("rb") as opened:
            total.update(f"{file.name} {file.stat().st_size}\0".encode() + opened.read(HEAD_BYTES))
    return f"{path.stem if path.is_file() else path.name}-{total.hexdigest()[:8]}"
