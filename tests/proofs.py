"""Proofs: long tests, and repeated ones, which `make proofs` runs and `make test` leaves out.

What serves has a shorter test in `make test` that fails where the common case breaks. Run the proofs before a release,
and after a change of what they prove.
"""

from __future__ import annotations

PROOFS = (
    # services and servers killed and cut off under load; test_restart and test_cluster kill services
    "tests/faults/test_fault_run.py",
    "tests/faults/test_kill_9.py",
    "tests/faults/test_network_cut.py",
    "tests/faults/test_three_brokers.py",
    "tests/faults/test_rolling_upgrade.py",
    "tests/faults/test_condemned.py::test_a_job_that_really_kills_its_worker",
    # each store's disk full, a read-only disk; contracts/catalog/test_full_disk and contracts/test_s3 have each error
    "tests/faults/test_full_disks.py",
    "tests/faults/test_read_only.py",
    # a damaged store that live checks find; masks of a real segmenter, where the tests beside it note them by hand
    "tests/flows/reuse/test_live_checks.py::test_corrupt_states_and_a_corrupt_table",
    "tests/flows/reuse/test_pairs.py::test_the_segmenter_of_the_stack",
    # the highest rate of kills; `make test` has lower ones and other fleets
    "tests/unit/gpu_worker/jobs/test_crash_evidence.py::test_no_healthy_job_is_condemned_where_workers_are_killed_at_random[3-9]",
    # servers that die under services; `make test` kills the broker, and contracts/ have the way back from each server
    "tests/flows/test_cluster.py::test_a_server_that_dies_and_comes_back_costs_nothing_but_time[blobs_url]",
    "tests/flows/test_cluster.py::test_a_server_that_dies_and_comes_back_costs_nothing_but_time[catalog_url]",
    "tests/flows/test_cluster.py::test_a_server_that_dies_and_comes_back_costs_nothing_but_time[index_url]",
    "tests/flows/test_cluster.py::test_a_catalog_that_is_away_for_longer_than_a_lease_is_nobodys_crash",
    # a broker that ends in order; it is killed in `make test`
    "tests/contracts/bus/test_rabbitmq_away.py::test_everything_comes_back_after_the_broker_did[stop]",
    # every command of the tutorial; test_named_commands reads them, `make demo` runs the first ones
    "tests/packaging/test_tutorial.py",
    # the demo of images; `make demo` is that of CI
    "tests/flows/test_command_line.py::test_the_demo_draws_both_ways_and_leaves_a_report",
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
    # trainings that run here alone, of the motion model and of other wordings, and two that others are like
    "tests/unit/trainer/test_motion.py::test_training_continues_and_its_export_generates_clips",
    "tests/unit/trainer/test_wordings.py::test_the_text_encoder_learns_other_wordings_and_keeps_captions",
    "tests/unit/trainer/test_devices.py::test_a_denoisers_step_and_pictures",
    "tests/unit/trainer/training/test_sitting.py::test_a_denoiser_goes_on_from_exported_weights",
    # codecs of clips; those of images are chosen in `make test`
    "tests/unit/cli/profiles/test_clips.py::test_a_codec_of_clips_is_chosen_by_the_same_pairs",
    # whole runs of patches, and AnimateDiff's; shorter runs, and those of other families, are in the tests beside them
    "tests/unit/gpu_worker/engine/patches/test_mixed_batches.py::test_fifty_steps_stay_within_the_bound",
    "tests/unit/gpu_worker/families/test_packed.py::test_fifty_steps_stay_within_the_bound",
    "tests/unit/gpu_worker/families/test_patches.py::test_fifty_steps_of_sdxl_stay_within_the_bound",
    "tests/unit/gpu_worker/families/test_clips.py::test_batch_invariant_rows_of_any_length_are_bit_identical[animatediff]",
    "tests/unit/gpu_worker/families/test_held_frames.py::test_a_run_with_held_frames_resumes_bit_identical_in_company[animatediff]",
    # bench/probing has ten thousand guesses of it; `make test` has public images that one tenant plants, one by one
    "tests/attacks/test_probing.py::test_a_planted_image_starts_nothing_of_another_tenant",
    # an interrupted hit of two stacks; checkpoints of hits are in unit/gpu_worker/jobs, a killed worker in test_cluster
    "tests/flows/test_cluster.py::test_a_hit_that_is_interrupted_keeps_its_plan",
    # Locust's users in an open loop and refused ones; `make test` plays sessions
    "tests/flows/test_load.py::test_who_is_refused_comes_back_and_is_drawn",
    # many users at once; the tests beside it have the rule for one image after the other
    "tests/flows/reuse/test_variation.py::test_twenty_users_at_once_leave_no_root_behind_more_than_its_share",
    # profiles of clips' pairs and of images from pictures; those of images and clips are measured in `make test`
    "tests/unit/cli/profiles/test_clips.py::test_a_profile_of_pairs_gives_their_own_table",
    "tests/unit/cli/profiles/test_command.py::test_every_t_has_rows_and_tables_and_one_page_shows_them_all",
    # a small run of each benchmark
    "tests/unit/bench/",
)
"""Prefixes of the node ids of proofs."""


def is_proof(nodeid: str) -> bool:
    return nodeid.startswith(PROOFS)
