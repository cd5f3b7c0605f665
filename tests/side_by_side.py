"""Which tests run one after the other on the same worker of xdist, and which of them begin first.

A file stays together, so that its fixtures are made once; so do those that share a server. Each worker starts its own
servers when a test asks for them: what kills a broker under its tests must not kill it under another worker's.
"""

from __future__ import annotations

import pytest
from xdist.remote import Producer
from xdist.scheduler import LoadScopeScheduling

GROUPS: dict[str, tuple[str, ...]] = {
    # a dozen processes each, under load, killed and cut off: one such test at a time
    "processes": (
        "tests/faults/test_fault_run.py",
        "tests/faults/test_network_cut.py",
        "tests/flows/test_cluster.py",
        "tests/flows/test_load.py",
        "tests/packaging/test_tutorial.py",
    ),
    "rabbitmq": ("tests/contracts/bus/", "tests/unit/cli/test_dead_letters.py"),
    "replay real": ("tests/flows/reuse/test_replay_real.py",),
    "postgresql": ("tests/contracts/catalog/", "tests/flows/test_standby.py"),
    "replay": ("tests/flows/reuse/test_replay.py",),
    # kills one process again and again, which waits more than it computes
    "lives": ("tests/faults/",),
    "weaviate": (
        "tests/contracts/test_weaviate",
        "tests/contracts/test_index.py",
        "tests/contracts/test_rebuild.py",
        "tests/unit/cli/test_cache.py",
        "tests/unit/bench/test_weaviate_lookup.py",
    ),
    "s3": ("tests/contracts/test_s3.py", "tests/contracts/test_blobs.py"),
}
"""The longest first; after them the other files, each a group of its own. The first group that names a file has it."""


def group_of(nodeid: str) -> str:
    return next((name for name, files in GROUPS.items() if nodeid.startswith(files)), nodeid.partition("::")[0])


def in_order(nodeid: str) -> int:
    group = group_of(nodeid)
    return list(GROUPS).index(group) if group in GROUPS else len(GROUPS)


class SideBySide(LoadScopeScheduling):
    """Hands out groups. Not xdist's own `--dist loadgroup`: that marks a test's node id, which pytest 9.2 does not let
    it do."""

    def __init__(self, config: pytest.Config, log: Producer) -> None:
        super().__init__(config, log)
        config.option.loadscopereorder = False  # by the number of their tests

    def _split_scope(self, nodeid: str) -> str:
        return group_of(nodeid)
