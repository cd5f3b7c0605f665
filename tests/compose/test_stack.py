"""The whole stack in containers, run and not only parsed: pictures through the published port while containers die."""

from __future__ import annotations

import os
import re
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from shared.client import Client, Picture, Progress
from shared.domain.types import PlanSource
from tests.compose.project import BUILD_S, ROOT, Compose, inspect, run

PROMPT, STEPS = "a red fox in the snow", 20
LONG = 200
"""Steps of a picture in whose middle something is done to it."""
EVERY = 10
"""Steps between two checkpoints."""
LIMIT_S = 300.0
SERVERS = {"postgres", "rabbitmq", "minio", "weaviate"}
OURS = {
    "embedder",
    "text_extractor",
    "match_predictor",
    "retriever",
    "cache_maintainer",
    "segmenter",
    "global_monitor",
    "gpu_worker",
    "gateway",
}
SETTINGS = {
    "large": "bundled:small",
    "torch_threads": 1,
    "max_rows": 2,
    "checkpoint_every_steps": EVERY,
    "lease_s": 10,
    "sweep_s": 1,
    "maintainer_lease_s": 5,
    "call_timeout_s": 30,
    "lookup_timeout_s": 30,
    "predictor": "always",
    "log_level": "warning",
}


class Figures:
    """What was measured on the way; the last test prints it."""

    build_s = up_s = again_s = 0.0
    first: Picture | None = None


@pytest.fixture(scope="module")
def stack(docker: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Compose]:
    folder = tmp_path_factory.mktemp("stack")
    mesh, credentials = folder / "mesh", folder / "credentials"
    run([str(ROOT / "compose/mesh_certificates.sh"), str(mesh)])
    credentials.mkdir()
    run(["chown", "-R", "10001", str(mesh), str(credentials)])
    folders = {"MESH_FOLDER": mesh, "CREDENTIALS_FOLDER": credentials}
    compose = Compose(folder, ("backends.yaml", "services.yaml", "mesh.yaml"), SETTINGS, gateways=2, folders=folders)
    try:
        begun = time.monotonic()
        compose("--profile", "tools", "build", limit_s=BUILD_S)
        Figures.build_s = time.monotonic() - begun
        begun = time.monotonic()
        compose.up(*SERVERS)
        compose("run", "--rm", "--no-deps", "-v", f"{credentials}:/credentials", "tools", "credentials", "/credentials")
        compose.add("credentials.yaml")
        compose.up()
        Figures.up_s = time.monotonic() - begun
        yield compose
    finally:
        compose.down("-v", "--remove-orphans")


def client_of(stack: Compose, at: int = 0) -> Client:
    return Client(stack.targets()[at], retry_s=LIMIT_S)


def generate(stack: Compose, prompt: str, seed: int, **fields: Any) -> Picture:
    with client_of(stack) as client:
        return client.generate(prompt, seed=seed, timeout_s=LIMIT_S, **{"steps": STEPS, "variation": "same", **fields})


def disturbed(client: Client, prompt: str, disturb: Callable[[], object]) -> Picture:
    """A long picture that draws from noise, with something done once it has a few checkpoints behind it."""
    done = False
    for event in client.generate_stream(prompt, seed=5, steps=LONG, cache="off", timeout_s=LIMIT_S):
        match event:
            case Progress(step=step) if step >= 3 * EVERY and not done:
                assert step < LONG - 3 * EVERY, "it was done before anything could happen to it"
                disturb()
                done = True
            case Picture():
                assert done
                return event
    raise AssertionError("the stream ended without a picture")


def hit_after(stack: Compose, prompt: str) -> Picture:
    """The first picture that starts from a latent: its source is cached soon after it was drawn, not before."""
    until = time.monotonic() + LIMIT_S
    for seed in range(100, 1000):
        picture = generate(stack, prompt, seed, cache="read")
        if picture.plan.source is PlanSource.LATENT:
            return picture
        assert time.monotonic() < until, f"no hit on {prompt!r}: {picture.plan}"
        time.sleep(0.5)
    raise AssertionError(prompt)


def test_everything_is_healthy_and_shut(stack: Compose) -> None:
    names = set()
    for container in stack.containers():
        facts = inspect(container)
        service = facts["Config"]["Labels"]["com.docker.compose.service"]
        names.add(service)
        assert facts["State"]["Health"]["Status"] == "healthy", service
        assert facts["HostConfig"]["Memory"] > 0, service
        published = [at for at in facts["NetworkSettings"]["Ports"].values() if at]
        assert {at[0]["HostIp"] for at in published} <= {"127.0.0.1"}
        assert bool(published) == (service == "gateway"), service
        assert facts["HostConfig"]["CapDrop"] == ["ALL"], service
        assert facts["HostConfig"]["PidsLimit"] == 1000, service
        assert facts["HostConfig"]["LogConfig"]["Config"] == {"max-size": "10m", "max-file": "5"}, service
        if service in OURS:
            assert facts["HostConfig"]["ReadonlyRootfs"], service
            assert stack("exec", "-T", service, "id", "-u").strip() == "10001"
    assert names == OURS | SERVERS


def test_the_command_line_runs_beside_them(stack: Compose) -> None:
    assert "no dead letters" in stack("run", "--rm", "-T", "tools", "dead-letters", "list")


def test_a_miss_a_hit_and_a_repeat_through_the_published_port(stack: Compose) -> None:
    miss = generate(stack, PROMPT, 1)
    assert miss.plan.source is PlanSource.NOISE
    assert miss.png.startswith(b"\x89PNG")
    hit = hit_after(stack, PROMPT)
    assert hit.plan.entry_id == miss.job.id
    assert hit.steps_run == STEPS - hit.plan.start_step < STEPS
    repeat = generate(stack, PROMPT, 1)
    assert (repeat.plan.source, repeat.png) == (PlanSource.EXACT, miss.png)
    Figures.first = miss


def test_a_worker_that_crashes_is_started_again_and_goes_on_where_it_was(stack: Compose) -> None:
    (worker,) = stack.containers("gpu_worker")
    with client_of(stack) as client:
        undisturbed = client.generate("a ball", seed=5, steps=LONG, cache="off", timeout_s=LIMIT_S)
        # the child of the container's init, as a crash would: Docker does not start again what it was asked to kill
        crash = ("exec", "-T", "gpu_worker", "sh", "-c", "kill -9 $(cat /proc/1/task/1/children)")
        picture = disturbed(client, "a ball", lambda: stack(*crash))
    assert inspect(worker)["RestartCount"] == 1
    assert 0 < picture.steps_run <= LONG - 2 * EVERY  # it went on from a checkpoint
    assert picture.png == undisturbed.png


def test_more_workers_and_gateways_and_one_container_killed(stack: Compose) -> None:
    stack.up("--no-recreate", "--scale", "gpu_worker=2", "--scale", "gateway=2")
    first, second = stack.targets()
    assert {first, second} == {f"127.0.0.1:{port}" for port in stack.ports}
    workers = stack.containers("gpu_worker")
    assert len(workers) == 2
    with Client(first, retry_s=LIMIT_S) as one, Client(second, retry_s=LIMIT_S) as other:
        killed: list[str] = []

        def kill() -> None:
            killed.append(busiest(workers))
            run(["docker", "kill", *killed])

        picture = disturbed(one, "a cone", kill)
        assert 0 < picture.steps_run <= LONG - 2 * EVERY  # the one that drew was killed, the other went on
        assert other.get_picture(picture.job.id).png == picture.png  # another gateway knows it, too
    assert stack.containers("gpu_worker") == [worker for worker in workers if worker not in killed]


def busiest(containers: list[str]) -> str:
    """The one that has used most processor time in a moment: the worker that draws."""
    before = [_ticks(container) for container in containers]
    time.sleep(0.5)
    used = [_ticks(container) - ticks for container, ticks in zip(containers, before, strict=True)]
    return containers[used.index(max(used))]


def _ticks(container: str) -> int:
    """Processor time of its service, in the kernel's ticks."""
    stat = run(["docker", "exec", container, "sh", "-c", "cat /proc/$(cat /proc/1/task/1/children | tr -d ' ')/stat"])
    fields = stat.rpartition(")")[2].split()
    return int(fields[11]) + int(fields[12])


def test_the_broker_is_started_again_in_the_middle_of_a_picture(stack: Compose) -> None:
    with client_of(stack) as client:
        picture = disturbed(client, "a cube", lambda: stack("restart", "--timeout", "30", "rabbitmq"))
        assert picture.png.startswith(b"\x89PNG")
        after = client.generate("a cube after that", seed=1, steps=STEPS, timeout_s=LIMIT_S)
    assert after.png.startswith(b"\x89PNG")
    # no service was started again for that
    assert {inspect(one)["RestartCount"] for name in OURS - {"gpu_worker"} for one in stack.containers(name)} == {0}


def test_what_was_drawn_outlives_all_containers(stack: Compose) -> None:
    assert Figures.first is not None
    stack.down()
    assert stack.containers() == []
    Figures.again_s = stack.up()
    repeat = generate(stack, PROMPT, 1)
    assert (repeat.plan.source, repeat.png) == (PlanSource.EXACT, Figures.first.png)  # PostgreSQL and MinIO
    hit = generate(stack, PROMPT, 99, cache="read")
    assert (hit.plan.source, hit.plan.start_step > 0) == (PlanSource.LATENT, True)  # Weaviate


def test_what_it_took(stack: Compose, capsys: pytest.CaptureFixture[str]) -> None:
    """Print the figures of docs/how-to/run-in-containers.md."""
    ids = stack.containers()
    names = {one: inspect(one)["Config"]["Labels"]["com.docker.compose.service"] for one in ids}
    shown = run(["docker", "stats", "--no-stream", "--no-trunc", "--format", "{{.ID}} {{.MemUsage}}", *ids])
    used = [line.split() for line in shown.splitlines()]
    memory = ", ".join(sorted(f"{names[one]} {first}" for one, first, *_ in used))
    (python,) = re.findall(r"^ARG PYTHON_IMAGE=(.+)$", (ROOT / "compose/Dockerfile").read_text(), re.MULTILINE)
    base = inspect(python)["Size"]
    images = {name: inspect(inspect(one)["Image"])["Size"] for one, name in names.items() if name in OURS}
    sizes = ", ".join(f"{name} {(size - base) / 1e6:.0f}" for name, size in sorted(images.items()))
    with capsys.disabled():
        sys.stdout.write(
            f"\nimages built in {Figures.build_s:.0f} s; all healthy after {Figures.up_s:.0f} s, "
            f"on data that was there after {Figures.again_s:.0f} s; load {os.getloadavg()[0]:.1f}"
            f"\nmemory: {memory}\nimages, MB above their base: {sizes}\n"
        )
    assert set(names.values()) == OURS | SERVERS
