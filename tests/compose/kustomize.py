"""Builds the overlays of compose/kubernetes, which use `resources`, `namespace`, and JSON patches by kind and name.

Where kubectl is there, a test compares the two."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml  # type: ignore[import-untyped]  # it ships no types

Manifest = dict[str, Any]
KNOWN = {"apiVersion", "kind", "resources", "patches", "namespace"}


def build(folder: Path) -> list[Manifest]:
    """Return the manifests of a folder with a kustomization. Raises ValueError for a field that it does not know."""
    given = yaml.safe_load((folder / "kustomization.yaml").read_text())
    if unknown := given.keys() - KNOWN:
        raise ValueError(f"{folder}: unknown fields {unknown}")
    manifests: list[Manifest] = []
    for name in given["resources"]:
        path = folder / name
        manifests += build(path) if path.is_dir() else [one for one in yaml.safe_load_all(path.read_text()) if one]
    for patch in given.get("patches", ()):
        target = patch["target"]
        (found,) = [
            one for one in manifests if (one["kind"], one["metadata"]["name"]) == (target["kind"], target["name"])
        ]
        for change in yaml.safe_load(patch["patch"]):
            _apply(found, change)
    for one in manifests:
        if "namespace" in given:
            one["metadata"]["namespace"] = given["namespace"]
    return manifests


def _apply(manifest: Manifest, change: dict[str, Any]) -> None:
    """Apply one operation of a JSON patch (RFC 6902): add, replace or remove."""
    *parents, last = [part.replace("~1", "/") for part in change["path"].split("/")[1:]]
    at: Any = manifest
    for part in parents:
        at = at[int(part)] if isinstance(at, list) else at[part]
    key: Any = len(at) if last == "-" else int(last) if isinstance(at, list) else last
    if change["op"] == "remove":
        del at[key]
    elif change["op"] == "replace":
        at[key]  # it must be there
        at[key] = change["value"]
    elif isinstance(at, list):
        at.insert(key, change["value"])
    else:
        at[key] = change["value"]
