"""A checkpoint or a message that brings code: nothing in the services unpickles, evaluates or loads foreign code."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
UNPICKLING = {"pickle", "cPickle", "dill", "cloudpickle", "joblib", "shelve", "marshal"}
CALLS = {"eval", "exec", "compile", "__import__"}
WITHOUT_WEIGHTS = ("Tokenizer", "Processor", "ProcessorPil", "Config")
"""Ends of the names of classes that load no weights."""


def found(source: str) -> Iterator[str]:
    """Yield what in this source could run code that arrived as data."""
    for node in ast.walk(ast.parse(source)):
        match node:
            case ast.Import(names=names):
                yield from (f"import {one.name}" for one in names if one.name.split(".")[0] in UNPICKLING)
            case ast.ImportFrom(module=str(module)) if module.split(".")[0] in UNPICKLING:
                yield f"from {module}"
            case ast.Call(func=ast.Name(id=name)) if name in CALLS:
                yield f"{name}()"
            case ast.Call(func=ast.Attribute(attr="load", value=ast.Name(id="torch")), keywords=given):
                if not any(one.arg == "weights_only" and _is(one.value, True) for one in given):
                    yield "torch.load without weights_only=True"
            case ast.Call(func=ast.Attribute(attr="from_pretrained", value=loaded), keywords=given):
                safe = any(one.arg == "use_safetensors" and _is(one.value, True) for one in given)
                if not safe and not ast.unparse(loaded).endswith(WITHOUT_WEIGHTS):
                    yield "from_pretrained without use_safetensors=True"
            case ast.Call(func=ast.Attribute(attr="load", value=ast.Name(id="yaml"))):
                yield "yaml.load"
            case ast.keyword(arg="trust_remote_code", value=value) if not _is(value, False):
                yield "trust_remote_code"
            case ast.keyword(arg="allow_pickle" | "use_pickle" | "shell", value=value) if not _is(value, False):
                yield f"{node.arg}"
            case _:
                pass


def _is(node: ast.expr, value: bool) -> bool:
    return isinstance(node, ast.Constant) and node.value is value


def test_no_code_arrives_as_data() -> None:
    files = [path for folder in ("services", "shared") for path in sorted((ROOT / folder).rglob("*.py"))]
    assert len(files) > 100
    assert {
        str(path.relative_to(ROOT)): list(found(path.read_text())) for path in files if any(found(path.read_text()))
    } == {}


@pytest.mark.parametrize(
    "source",
    [
        "import pickle", "from joblib import load", "eval(text)", "torch.load(path)",
        "torch.load(path, weights_only=False)", "yaml.load(text)", "make(trust_remote_code=True)",
        "np.load(path, allow_pickle=True)", "subprocess.run(text, shell=True)",
        "SamModel.from_pretrained(path)", "type(model).from_pretrained(path, use_safetensors=False)",
    ],
)  # fmt: skip
def test_the_scan_finds_each_way(source: str) -> None:
    assert list(found(source))


def test_no_pickled_weights_ship() -> None:
    kinds = {path.suffix for path in (ROOT / "shared/models").rglob("*") if path.is_file()}
    assert ".safetensors" in kinds
    assert not kinds & {".pt", ".pth", ".bin", ".ckpt", ".pkl", ".joblib"}
