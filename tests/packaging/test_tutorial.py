"""docs/tutorial.md is true: each of its commands runs, in order, and prints what the page shows.

The page runs in a folder that looks like a checkout after `make install`. `afterimage` there is the unpacked wheel.
Only `afterimage up` sees every installed package; the other commands and the Python client see the base install alone.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import textwrap
import time
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from scripts.stack import postgresql, rabbitmq, weaviate
from scripts.stack.servers import free_port
from scripts.stack.stack import STATE_FILE, Stack, missing
from shared.catalog import Catalog, open_catalog
from shared.domain.types import PlanSource
from tests.contracts.servers import REQUIRED, folder
from tests.packaging.base_install import ALONE, COMMAND, ROOT, absent

pytestmark = pytest.mark.skipif(shutil.which("make") is None, reason="the page needs make")
PAGE = ROOT / "docs" / "tutorial.md"
FOUR_URLS = "## 6. Four URLs"
LISTEN = "127.0.0.1:50051"
"""The address on the page; the test uses a free port."""
LIMIT_S = 180.0
BLOCK = re.compile(r"^( *)```(sh|python|text)\n(.*?)^ *```$", re.DOTALL | re.MULTILINE)
NEEDED = {"postgresql": postgresql, "rabbitmq": rabbitmq, "weaviate": weaviate}


@dataclass(frozen=True)
class Step:
    """One command block of the page, and the lines that the page shows below."""

    language: str
    text: str
    shown: tuple[str, ...]


def steps(page: str) -> list[Step]:
    found = [(language, textwrap.dedent(text)) for _, language, text in BLOCK.findall(page)]
    after = [*found[1:], ("", "")]
    return [
        Step(language, text, tuple(then.splitlines()) if kind == "text" else ())
        for (language, text), (kind, then) in zip(found, after, strict=True)
        if language != "text"
    ]


def pattern(line: str) -> re.Pattern[str]:
    """A line of the page as a pattern: `…` is any text, seconds and the port are any number, spaces do not count."""
    known = re.escape(" ".join(line.split())).replace("…", ".*")
    known = re.sub(r"\d+\\\.\d+\\ s\b", r"\\d+\\.\\d+\\ s", known).replace(
        "127\\.0\\.0\\.1:PORT", "127\\.0\\.0\\.1:\\d+"
    )
    return re.compile(known)


def compare(shown: tuple[str, ...], output: str) -> None:
    """Each line that the page shows is in the output, in this order."""
    rest = iter([" ".join(line.split()) for line in output.splitlines()])
    for line in shown:
        assert any(pattern(line).search(one) for one in rest), f"the page shows {line!r}; the command printed\n{output}"


@dataclass
class Reader:
    """Someone who types the commands of the page in `tree`."""

    tree: Path
    environment: dict[str, str]
    server: subprocess.Popen[bytes] | None = None
    printed: str = ""
    """Everything so far."""
    catalog_url: str = ""
    jobs: list[str] = field(default_factory=list)

    def do(self, step: Step) -> None:
        text = step.text.replace(LISTEN, self.environment["AFTERIMAGE_LISTEN"])
        if port := re.search(r"gRPC: 127\.0\.0\.1:(\d+)", self.printed):
            text = text.replace("PORT", port[1])
        if step.language == "python":
            text = f".venv/bin/client <<'PROGRAM'\n{text}PROGRAM\n"
        if text.startswith(("afterimage up", "make stack-up")):
            self.press_ctrl_c()
        output = self.start(text) if text.startswith("afterimage up") else self.run(text)
        shown = tuple(line.replace(LISTEN, self.environment["AFTERIMAGE_LISTEN"]) for line in step.shown)
        compare(shown, output)
        self.printed += output
        if url := re.search(r"AFTERIMAGE_CATALOG_URL=(\S+)", output):
            self.catalog_url, self.jobs = url[1], []
        jobs = re.findall(r", job (\w+)\)", output)
        self.jobs += jobs
        if jobs or text.startswith("afterimage up --small"):
            asyncio.run(self.settled())

    def run(self, text: str) -> str:
        done = subprocess.run(
            ["bash", "-euc", text], cwd=self.tree, env=self.environment, timeout=LIMIT_S, check=False,
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        )  # fmt: skip
        assert done.returncode == 0, f"{text}\n{done.stdout}"
        return done.stdout

    def start(self, text: str) -> str:
        """What the server printed until it listens."""
        log = self.tree / "server.log"
        with log.open("wb") as out:
            self.server = subprocess.Popen(
                ["bash", "-euc", f"exec {text}"], cwd=self.tree, env=self.environment, stdout=out, stderr=out
            )
        end = time.monotonic() + LIMIT_S
        while " Stop: " not in log.read_text():
            assert self.server.poll() is None, log.read_text()
            assert time.monotonic() < end, log.read_text()
            time.sleep(0.1)
        return log.read_text()

    def press_ctrl_c(self) -> None:
        if self.server is not None:
            self.server.send_signal(signal.SIGINT)
            assert self.server.wait(LIMIT_S) == 0
            self.server = None

    async def settled(self) -> None:
        """Wait until the cache has taken what the jobs left, as it has when a person types the next command."""
        catalog = await open_catalog(self.catalog_url)
        try:
            async with asyncio.timeout(LIMIT_S):
                rows = [await catalog.jobs.get(job_id) for job_id in self.jobs]
                wanted = {row.id for row in rows if row.plan.source is not PlanSource.EXACT}
                while not wanted <= set(await catalog.entries.by_ids(sorted(wanted))) or await self._unembedded(
                    catalog
                ):
                    await asyncio.sleep(0.05)
        finally:
            await catalog.close()
        await asyncio.sleep(0.2)  # the retriever and the match predictor learn of an entry a moment later

    async def _unembedded(self, catalog: Catalog) -> bool:
        """Whether images that the small model could start from are not in the index yet."""
        small = self.server is not None and "large, small" in (self.tree / "server.log").read_text()
        return small and bool(await catalog.entries.unembedded(1))

    def leave(self) -> None:
        """Stop what still runs."""
        if self.server is not None:
            self.server.kill()
            self.server.wait()
        if (self.tree / "out" / "stack" / STATE_FILE).exists():
            Stack.load(self.tree / "out" / "stack").stop()


@pytest.fixture(scope="module")
def tree(wheel: Path) -> Iterator[Path]:
    """A folder like a checkout after `make install`, readable by PostgreSQL's user where the tests are root's."""
    tree = folder() / "tutorial"
    site, bin_ = tree / "site", tree / ".venv" / "bin"
    bin_.mkdir(parents=True)
    zipfile.ZipFile(wheel).extractall(site)
    shutil.copy(ROOT / "Makefile", tree)
    (tree / "scripts").mkdir()
    for name in ("__init__.py", "stack"):
        (tree / "scripts" / name).symlink_to(ROOT / "scripts" / name)
    (tree / "command.py").write_text(COMMAND)
    (tree / "client.py").write_text(ALONE + "exec(sys.stdin.read())")
    alone = f"{sys.executable} {{}} '{json.dumps(absent())}' \"$@\""
    programs = {
        "scripts/install.sh": "exit 0  # `make test` has installed what this checkout needs",
        ".venv/bin/python": f'exec {sys.executable} "$@"',
        ".venv/bin/client": f"PYTHONPATH={site} exec {alone.format(tree / 'client.py')}",
        ".venv/bin/afterimage": f'export PYTHONPATH={site}\n[ "$1" != up ] || exec {sys.executable} -m services "$@"\n'
        f"exec {alone.format(tree / 'command.py')}",
        ".venv/bin/activate": f'PATH="{bin_}:$PATH"',
    }
    for name, text in programs.items():
        (tree / name).write_text(f"#!/bin/sh\n{text}\n")
        (tree / name).chmod(0o755)
    yield tree
    shutil.rmtree(tree, ignore_errors=True)


@pytest.fixture
def reader(tree: Path) -> Iterator[Reader]:
    private = {
        "AFTERIMAGE_LISTEN": f"127.0.0.1:{free_port()}",
        "AFTERIMAGE_METRICS_LISTEN": "",
        "HF_HUB_OFFLINE": "1",
        "HOME": str(tree),
        "PATH": f"{tree / '.venv' / 'bin'}:{os.environ['PATH']}",
    }
    others = {name: value for name, value in os.environ.items() if not name.startswith("AFTERIMAGE_")}
    reader = Reader(tree, others | private, catalog_url=f"sqlite+aiosqlite:///{tree}/.afterimage/catalog.sqlite3")
    yield reader
    reader.leave()


def test_in_one_process_with_one_model_and_with_two(reader: Reader) -> None:
    page, _, _ = PAGE.read_text().partition(FOUR_URLS)
    for step in steps(page):
        reader.do(step)
    reader.press_ctrl_c()
    assert reader.run("cmp -s two.png variation.png || echo differ") == "differ\n"


def test_over_four_servers(reader: Reader) -> None:
    if said := missing({}):
        required = any(name in REQUIRED and module.find() is None for name, module in NEEDED.items())
        (pytest.fail if required else pytest.skip)("; ".join(said))
    _, _, page = PAGE.read_text().partition(FOUR_URLS)
    for step in steps(page):
        reader.do(step)


def test_a_line_that_a_command_does_not_print_is_found() -> None:
    compare(
        ("Started after … (similarity 0.879): 35 steps in 0.66 s",),
        "Started after 15 (similarity 0.879): 35  steps in 1.20 s",
    )
    with pytest.raises(AssertionError, match="the page shows 'Started from noise'"):
        compare(("Started from noise",), "Started after step 15")
