"""NIRVANA is the paper's settings: what runs our latent tier is called ours wherever a reader sees its name."""

from __future__ import annotations

import pytest

from bench import trace_plans, two_model_quality, two_processes
from bench.virtual_time import monitor_ramp, paper_rates, slo_latency, two_models

SYSTEMS = [*two_model_quality.SYSTEMS, trace_plans.NIRVANA]
TITLES = {
    **{f"{bench.__name__}.{name}": title for bench in (paper_rates, slo_latency, two_models)
       for name, title in bench.TITLES.items()},
    **{f"two_processes.{way.name}": way.title for way in two_processes.WAYS},
    **{f"systems.{system.name}": system.title for system in SYSTEMS},
}  # fmt: skip
SAID = {bench.__name__: " ".join(bench.ASSUMPTIONS) for bench in (monitor_ramp, paper_rates, two_model_quality)}


@pytest.mark.parametrize("name", [name for name in TITLES if "nirvana" in name])
def test_our_latents_are_called_ours(name: str) -> None:
    assert "latents (ours)" in TITLES[name]


def test_what_is_said_of_them_does_not_say_nirvana_either() -> None:
    assert sum("nirvana" in name for name in TITLES) == 6
    for said in SAID.values():
        assert "NIRVANA " not in said
