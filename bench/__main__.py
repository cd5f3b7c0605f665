"""Run every benchmark with its defaults, one after the other: `python -m bench` (several hours on two cores)."""

from __future__ import annotations

import argparse
import subprocess
import sys
from pathlib import Path

PROFILE = Path("out/profile")
COMMANDS: dict[str, list[str]] = {
    "batch_of_8": ["bench.batch_of_8"],
    "overhead": ["bench.overhead"],
    "identity": ["bench.identity"],
    "http_costs": ["bench.http_costs"],
    "tracing": ["bench.tracing"],
    "profile": ["services", "profile", "--out", str(PROFILE), "--no-store"],
    "k_quality": ["bench.k_quality", "--profile", str(PROFILE)],
    "state_codecs": ["bench.state_codecs"],
    "live_checks": ["bench.live_checks"],
    "session_trace": ["bench.session_trace"],
    "blobs_latency": ["bench.blobs_latency"],
    "weaviate_lookup": ["bench.weaviate_lookup"],
    "scale": ["bench.scale"],
    "cluster_overhead": ["bench.cluster_overhead"],
    "overload": ["bench.overload"],
    "fairness": ["bench.fairness"],
    "probing": ["bench.probing"],
    "probing_price": ["bench.probing.price"],
    "trace_plans": ["bench.trace_plans"],
    "two_models": ["bench.virtual_time.two_models"],
    "slo_latency": ["bench.virtual_time.slo_latency"],
    "paper_rates": ["bench.virtual_time.paper_rates"],
    "monitor_ramp": ["bench.virtual_time.monitor_ramp"],
    "scaling": ["bench.virtual_time.scaling"],
    "step_seconds": ["bench.step_seconds"],
    "layouts": ["bench.layouts"],
    "layouts_steps": ["bench.layouts", "--steps", "50"],
    "layouts_random_sd3": ["bench.layouts", "--model", "random-sd3"],
    "deadlines": ["bench.virtual_time.deadlines"],
    "ablation": ["bench.virtual_time.ablation"],
    "pipeline_simulated": ["bench.pipeline_simulated"],
    "clip_replays": ["bench.replays.clip_replays"],
    "clip_equal": ["bench.replays.clip_equal"],
    "two_processes": ["bench.two_processes"],
    "deadline_processes": ["bench.deadline_processes"],
}
"""Name → arguments of `python -m`, in order of dependence. `k_quality` reads the profile before it. The benchmarks
after `trace_plans` read its hits. `two_model_quality` takes hours and is left out."""


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m bench", description=__doc__)
    parser.add_argument("names", nargs="*", help=f"some of them: {', '.join(COMMANDS)}")
    wanted = parser.parse_args().names or list(COMMANDS)
    if unknown := set(wanted) - set(COMMANDS):
        parser.error(f"no benchmark {', '.join(sorted(unknown))}; there are: {', '.join(COMMANDS)}")
    failed = []
    for name in wanted:
        print(f"\n== {name}", flush=True)
        if subprocess.run([sys.executable, "-m", *COMMANDS[name]], check=False).returncode:
            failed.append(name)
    if failed:
        sys.stderr.write(f"failed: {', '.join(failed)}\n")
    return bool(failed)


if __name__ == "__main__":
    raise SystemExit(main())
