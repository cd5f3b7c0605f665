"""Services forked from one process that has imported their libraries, which takes seconds of processor time per start.

`python -m tests.forking` is that process: one JSON line on stdin asks for a fork or for an exit code, one on stdout
answers. A fork ends the loop and runs its module as `python -m` does.
"""

from __future__ import annotations

import atexit
import ctypes
import gc
import json
import os
import runpy
import subprocess
import sys
import threading
import time
import traceback
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import IO, Any, NoReturn

from scripts.stack.servers import Server
from scripts.stack.stack import Stack
from shared.runtime.datadir import OTHERS

ROOT = Path(__file__).parents[1]
CLIENTS = ("aio_pika", "asyncpg", "minio", "weaviate")
CLASSES = {
    "diffusers": ("StableDiffusionPipeline", "AnimateDiffPipeline", "MotionAdapter", "DDIMScheduler"),
    "transformers": ("AutoTokenizer", "CLIPImageProcessorPil", "CLIPModel", "CLIPSegForImageSegmentation"),
}
"""What services import where they use it: a class of these libraries takes its modules along."""
CLONE_NEWNET = 0x40000000
"""Linux: the namespace of networks, for setns(2)."""


class Parent:
    """The process that services are forked from, as seen by the test."""

    def __init__(self, code: Path = ROOT) -> None:
        """Start it; the first fork waits for its imports. code: the root of another version's code."""
        command, environment = [sys.executable, "-m", "tests.forking"], {**os.environ, "PYTHONPATH": str(code)}
        self._process = subprocess.Popen(
            command,
            cwd=code,
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        self._lock = threading.Lock()

    def ask(self, **what: Any) -> Any:
        with self._lock:
            assert self._process.stdin is not None
            assert self._process.stdout is not None
            print(json.dumps(what), file=self._process.stdin, flush=True)
            return json.loads(self._process.stdout.readline())

    def close(self) -> None:
        """End it; its forks go on."""
        self._process.communicate()


@cache
def shared_parent() -> Parent:
    """One for all stacks of this process, until it ends."""
    made = Parent()
    atexit.register(made.close)
    return made


class Fork:
    """The part of subprocess.Popen that a Server uses."""

    def __init__(self, parent: Parent, module: str, **how: Any) -> None:
        self._parent = parent
        self.pid: int = parent.ask(module=module, **how)

    def poll(self) -> int | None:
        code: int | None = self._parent.ask(poll=self.pid)
        return code

    def wait(self) -> int:
        while (code := self.poll()) is None:
            time.sleep(0.01)
        return code


@dataclass
class ForkedServer(Server):
    """A program whose command is `python -m <module>`."""

    parent: Parent = field(kw_only=True)
    namespace: str = ""
    """Network namespace that the process runs in; empty: ours."""

    def spawn(self, log: IO[bytes]) -> Any:
        _, _, module = self.command
        environment = {**os.environ, **self.environment}
        how = {"cwd": str(self.folder), "log": log.name, "namespace": self.namespace}
        return Fork(self.parent, module, environment=environment, **how)


class ForkedStack(Stack):
    """A stack whose services are forks; its servers are programs of their own as ever."""

    def start_servers(self) -> None:
        shared_parent()  # imports while the servers start
        super().start_servers()

    def namespace(self, name: str) -> str:
        """Return the network namespace of a service, one of `ip netns`; a subclass may name some."""
        return ""

    def _service(self, name: str) -> Server:
        return ForkedServer(**vars(super()._service(name)), parent=shared_parent(), namespace=self.namespace(name))


def main() -> None:
    gc.disable()  # a sixth of the imports' time
    from services.cli.embedded import all_services

    all_services()
    for name in CLIENTS:
        import_module(name)
    for name, classes in CLASSES.items():
        for one in classes:
            getattr(import_module(name), one)
    gc.freeze()  # what forks share is not theirs to collect
    gc.enable()
    codes: dict[int, int] = {}
    for line in sys.stdin:
        asked: dict[str, Any] = json.loads(line)
        if "poll" in asked:
            answer = _code(asked["poll"], codes)
        elif answer := os.fork():
            _own_group(answer)
        else:
            _become(**asked)
        print(json.dumps(answer), flush=True)  # noqa: T201


def _code(pid: int, codes: dict[int, int]) -> int | None:
    """The exit code, negative for a signal; None while it runs."""
    if pid not in codes:
        ended, status = os.waitpid(pid, os.WNOHANG)
        if not ended:
            return None
        codes[pid] = os.waitstatus_to_exitcode(status)
    return codes[pid]


def _own_group(pid: int) -> None:
    """Called on both sides, so that the group exists when either goes on."""
    os.setpgid(pid, pid)


def _become(
    module: str, cwd: str, log: str, environment: Mapping[str, str], namespace: str = "", arguments: Sequence[str] = ()
) -> NoReturn:
    _own_group(os.getpid())
    if namespace:
        _enter(namespace)
    os.umask(OTHERS)
    os.chdir(cwd)
    for number, path in enumerate((os.devnull, log, log)):
        opened = os.open(path, os.O_RDWR | os.O_APPEND)
        os.dup2(opened, number)
        os.close(opened)
    os.environ.clear()
    os.environ.update(environment)
    sys.argv = [module, *arguments]
    try:
        runpy.run_module(module, run_name="__main__", alter_sys=True)
        code = 0
    except SystemExit as ended:
        code = ended.code if isinstance(ended.code, int) else int(bool(ended.code))
    except BaseException:
        traceback.print_exc()
        code = 1
    _end(code)


def _enter(namespace: str) -> None:
    """Move into a network namespace, as `ip netns exec` does; needs no `os.setns`, which Python has from 3.12 on."""
    with Path("/run/netns", namespace).open("rb") as there:
        if ctypes.CDLL(None, use_errno=True).setns(there.fileno(), CLONE_NEWNET) != 0:
            raise OSError(ctypes.get_errno(), f"cannot enter network namespace {namespace}")


def _end(code: int) -> NoReturn:
    """Exit without taking the interpreter down, which copies every page that is shared with the parent: half a second.

    The handlers of atexit run, the output is written; a service has closed everything else by now.
    """
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


if __name__ == "__main__":
    main()
