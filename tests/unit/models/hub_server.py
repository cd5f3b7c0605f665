"""A model hub of one test's own on loopback: repositories from folders, some of them gated, and what was asked."""

from __future__ import annotations

import contextlib
import hashlib
import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

COMMIT = "0123456789abcdef0123456789abcdef01234567"


class Hub(ThreadingHTTPServer):
    """Serves `repositories` (id → folder) as far as huggingface_hub asks; ids in `gated` are listed, not given."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.repositories: dict[str, Path] = {}
        self.gated: set[str] = set()
        self.revisions = {"main": COMMIT}
        """Revision → commit; a commit names itself."""
        self.given: list[str] = []
        """Files that were handed out, by path."""

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"


class _Handler(BaseHTTPRequestHandler):
    server: Hub

    def do_GET(self) -> None:
        self._answer(body=True)

    def do_HEAD(self) -> None:
        self._answer(body=False)

    def _answer(self, body: bool) -> None:
        path = self.path.partition("?")[0]
        if path.startswith("/api/models/"):
            owner, name, *rest = path.removeprefix("/api/models/").split("/")
            self._about(f"{owner}/{name}", rest)
        else:
            owner, name, _, revision, *file = path.lstrip("/").split("/")
            self._file(f"{owner}/{name}", revision, "/".join(file), body)

    def _about(self, repository: str, rest: list[str]) -> None:
        folder = self.server.repositories.get(repository)
        if folder is None:
            self._say(404, {"error": "Repository not found"}, {"X-Error-Code": "RepoNotFound"})
        elif rest[:1] == ["revision"] and self._commit(rest[1]) is None:
            self._say(404, {"error": "no such revision"}, {"X-Error-Code": "RevisionNotFound"})
        elif rest[:1] == ["tree"]:
            files = [path for path in sorted(folder.rglob("*")) if path.is_file()]
            self._say(200, [_entry(path, folder) for path in files])
        else:
            sha = self._commit(rest[1]) if rest else COMMIT
            self._say(200, {"id": repository, "modelId": repository, "sha": sha, "siblings": [], "tags": []})

    def _commit(self, revision: str) -> str | None:
        return self.server.revisions.get(revision) or (revision if revision in self.server.revisions.values() else None)

    def _file(self, repository: str, revision: str, name: str, body: bool) -> None:
        if repository in self.server.gated:
            self._say(401, {"error": "gated"}, {"X-Error-Code": "GatedRepo"})
            return
        data = (self.server.repositories[repository] / name).read_bytes()
        self.send_response(200)
        self.send_header("Content-Length", str(len(data)))
        self.send_header("ETag", f'"{hashlib.sha256(data).hexdigest()}"')
        self.send_header("X-Repo-Commit", str(self._commit(revision)))
        self.end_headers()
        if body:
            self.server.given.append(name)
            self.wfile.write(data)

    def _say(self, status: int, content: object, headers: dict[str, str] | None = None) -> None:
        data = json.dumps(content).encode()
        self.send_response(status)
        for key, value in {**(headers or {}), "Content-Type": "application/json"}.items():
            self.send_header(key, value)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(data)

    def log_message(self, *said: object) -> None:
        """Nothing on the terminal."""


def _entry(path: Path, folder: Path) -> dict[str, object]:
    data = path.read_bytes()
    name = path.relative_to(folder).as_posix()
    return {"type": "file", "path": name, "size": len(data), "oid": hashlib.sha1(data).hexdigest()}


@contextlib.contextmanager
def serving(monkeypatch: pytest.MonkeyPatch, cache: Path) -> Iterator[Hub]:
    """huggingface_hub talks to a hub of our own, with a cache of its own."""
    from huggingface_hub import constants

    hub = Hub()
    thread = threading.Thread(target=hub.serve_forever, args=(0.01,), daemon=True)
    thread.start()
    monkeypatch.setattr(constants, "ENDPOINT", hub.url)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(cache))
    monkeypatch.setattr(constants, "HF_HUB_DISABLE_XET", True)
    monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", hub.url + "/{repo_id}/resolve/{revision}/{filename}")
    try:
        yield hub
    finally:
        hub.shutdown()
        hub.server_close()
        thread.join()
