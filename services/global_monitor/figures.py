"""Metrics of the last decision and the current demand, by model, lane, K and mode. Never by worker, since label values
must be few."""

from __future__ import annotations

from services.global_monitor.allocation.workload import REFINE
from services.global_monitor.decision import Decision, Rules
from shared.domain.messages import lane_of
from shared.runtime.telemetry import METRICS


def show(decision: Decision, rules: Rules) -> None:
    models = (rules.large, *rules.smalls)
    for model in models:
        METRICS.assigned.labels(model).set(decision.count(model))
        rates = (worker.rates.get(model, 0.0) for worker in decision.workers if decision.models[worker.name] == model)
        METRICS.monitor_rate.labels(model).set(sum(rates))
    for mode in ("quality", "throughput"):
        METRICS.monitor_mode.labels(mode).set(decision.mode == mode)
    METRICS.monitor_target.set(decision.target.large)
    for term in ("output", "error", "integral"):
        METRICS.monitor_pid.labels(term).set(getattr(decision.pid, term))
    for kind in ("miss", "hit", "small"):
        METRICS.monitor_work.labels(kind).set(getattr(decision.work, kind))
    METRICS.monitor_doubted.set(sum(worker.credit != 1 for worker in decision.workers))
    _show_demand(decision, {*map(lane_of, models), *REFINE})


def _show_demand(decision: Decision, lanes: set[str]) -> None:
    """Set the demand metrics; lanes of models that are not served are counted together."""
    demand = decision.demand
    rates = dict.fromkeys((*sorted(lanes), "other"), 0.0)
    waiting = dict(rates)
    for lane in demand.lanes:
        name = lane.lane if lane.lane in lanes else "other"
        rates[name] += lane.requests_per_s
        waiting[name] += lane.waiting
    for name, rate in rates.items():
        METRICS.monitor_demand.labels(name).set(rate)
        METRICS.monitor_waiting.labels(name).set(waiting[name])
    METRICS.monitor_hit_rate.set(demand.hit_rate)
    METRICS.monitor_k.clear()
    for k, share in demand.share_by_k.items():
        METRICS.monitor_k.labels(str(5 * round(k / 5))).inc(share)
