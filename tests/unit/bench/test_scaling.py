"""The model of Kubernetes' autoscaler, on the rule of the manifests."""

from __future__ import annotations

from bench.virtual_time.scaling import Autoscaler, read_rule


def test_workers_double_at_once_and_never_beyond_the_most() -> None:
    scaler = Autoscaler(read_rule())
    assert scaler.replicas(4, 0.0, 20.0, None) == 8
    assert scaler.replicas(8, 15.0, 20.0, None) == 8  # doubled within this minute
    assert scaler.replicas(8, 75.0, 20.0, None) == 16
    assert scaler.replicas(16, 150.0, 40.0, None) == 16


def test_workers_go_only_when_fewer_were_enough_for_the_whole_window() -> None:
    rule = read_rule()
    scaler = Autoscaler(rule)
    assert scaler.replicas(8, 0.0, 8.0, None) == 8
    assert scaler.replicas(8, rule.stable_s - 15.0, 2.0, None) == 8
    assert scaler.replicas(8, rule.stable_s + 15.0, 2.0, None) == 6  # a fifth, rounded up
    assert scaler.replicas(6, rule.stable_s + 30.0, 2.0, None) == 6


def test_a_missed_slo_asks_for_a_quarter_more() -> None:
    scaler = Autoscaler(read_rule())
    assert scaler.replicas(4, 0.0, 3.0, 0.9) == 5
    assert Autoscaler(read_rule()).replicas(4, 0.0, 4.0, 0.96) == 4
