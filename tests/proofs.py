"""Long proofs: tests of minutes, which `make proofs` runs and `make test` leaves out.

What serves has a shorter test in `make test` that fails where the common case breaks. Run the proofs before a release,
and after a change of what they prove.
"""

from __future__ import annotations

PROOFS = (
    # services and servers killed and cut off under load; test_restart and test_cluster kill them once each
    "tests/faults/test_fault_run.py",
    "tests/faults/test_kill_9.py",
    "tests/faults/test_network_cut.py",
    # each store's disk full, a read-only disk; contracts/catalog/test_full_disk and contracts/test_s3 have each error
    "tests/faults/test_full_disks.py",
    "tests/faults/test_read_only.py",
    "tests/faults/test_three_brokers.py",
    "tests/faults/test_rolling_upgrade.py",
    "tests/faults/test_condemned.py::test_a_job_that_really_kills_its_worker",
    "tests/flows/reuse/test_live_checks.py::test_corrupt_states_and_a_corrupt_table",
    "tests/flows/reuse/test_pairs.py::test_the_segmenter_of_the_stack",
    # every command of the tutorial; test_named_commands reads them, `make demo` runs the first ones
    "tests/packaging/test_tutorial.py",
    # replays decide as serving does; the policies' own tests compare them with the papers' rules
    "tests/flows/reuse/test_replay.py",
    "tests/flows/reuse/test_replay_real.py",
    "tests/unit/cli/replays/test_command.py",
    # trainings by several processes; one process trains the same numbers in the tests beside them
    "tests/unit/trainer/finetuning/test_ranks_and_files.py",
    "tests/unit/trainer/finetuning/test_restart.py",
    "tests/unit/trainer/finetuning/test_runs.py",
    "tests/unit/trainer/pipeline/runtime/test_equal.py::test_ranks_train_as_one_process",
    "tests/unit/trainer/test_clip_motions.py",
    "tests/unit/trainer/test_workers.py",
    # a small run of each benchmark
    "tests/unit/bench/",
)
"""Prefixes of the node ids of proofs."""


def is_proof(nodeid: str) -> bool:
    return nodeid.startswith(PROOFS)
