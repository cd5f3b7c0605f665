"""A private MinIO from the installed program."""

from __future__ import annotations

import shutil
from pathlib import Path

from scripts.stack.servers import HOST, Server, StackError, answers, free_port

HOW_TO_GET_IT = "put the program `minio` on PATH (min.io/download)"
USER, PASSWORD, BUCKET = "afterimage", "afterimage-secret", "afterimage"


def find() -> str | None:
    """Return the path of `minio`; None when it is not on PATH."""
    return shutil.which("minio")


def start(folder: Path, host: str = HOST) -> Server:
    """Start a store in `folder`, new or existing; the first client of the URL makes the bucket."""
    program = find()
    if program is None:
        raise StackError(f"minio: not installed; {HOW_TO_GET_IT}")
    folder, port = folder.absolute(), free_port()
    return Server(
        name="minio",
        url=f"minio://{USER}:{PASSWORD}@{host}:{port}/{BUCKET}?secure=false",
        folder=folder,
        command=[program, "server", "--quiet", "--address", f"{host}:{port}", str(folder / "data")],
        environment={
            "MINIO_ROOT_USER": USER,
            "MINIO_ROOT_PASSWORD": PASSWORD,
            "MINIO_BROWSER": "off",
            "MINIO_UPDATE": "off",
        },
        ready=lambda: answers(f"http://{host}:{port}/minio/health/ready"),
    ).start()
