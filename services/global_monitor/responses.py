"""Conversion of decisions to protobuf messages for watchers."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from protos import global_monitor_pb2 as pb
from services.global_monitor.decision import Decision, Rules
from services.global_monitor.demand import LaneDemand
from services.global_monitor.roster import Worker


def allocation(
    decision: Decision, rules: Rules, history: Iterable[pb.Change], deadlines: tuple[int, int], *, leads: bool
) -> pb.AllocationResponse:
    """deadlines: jobs with a deadline that ended lately, and those that met it."""
    demand, work, pid = decision.demand, decision.work, decision.pid
    return pb.AllocationResponse(
        assignments=[_assignment(worker, decision, rules) for worker in decision.workers],
        mode=decision.mode,
        requests_per_s=demand.requests_per_s,
        hit_rate=demand.hit_rate,
        share_by_step=demand.share_by_k,
        pid_error=pid.error,
        pid_integral=pid.integral,
        pid_output=pid.output,
        target=decision.target.large,
        small_model=decision.target.small,
        miss_work=work.miss,
        hit_work=work.hit,
        small_work=work.small,
        why=decision.why,
        kept=decision.kept,
        lanes=[_lane(lane) for lane in demand.lanes],
        history=history,
        set_mode=rules.mode,
        period_s=rules.period_s,
        leads=leads,
        deadlines=deadlines[0],
        deadlines_met=deadlines[1],
    )


def change(decision: Decision, at: float) -> pb.Change:
    """Return a change for the history. at: seconds since 1970."""
    return pb.Change(
        at=at,
        mode=decision.mode,
        workers_by_model=dict(Counter(decision.models.values())),
        switches=len(decision.switches),
        requests_per_s=decision.demand.requests_per_s,
        why=decision.why,
    )


def _assignment(worker: Worker, decision: Decision, rules: Rules) -> pb.Assignment:
    model = decision.models.get(worker.name, worker.model)
    return pb.Assignment(
        worker=worker.name,
        model=model,
        role="large" if model == rules.large else "small",
        kind=worker.kind,
        running=worker.model,
        rows=worker.rows,
        max_rows=worker.max_rows,
        rate=worker.rates.get(model, 0.0),
        credit=worker.credit,
    )


def _lane(lane: LaneDemand) -> pb.LaneDemand:
    return pb.LaneDemand(
        lane=lane.lane,
        modality=lane.modality,
        requests_per_s=lane.requests_per_s,
        work_per_s=lane.work_per_s,
        share_by_step=lane.share_by_k,
        waiting=lane.waiting,
    )
