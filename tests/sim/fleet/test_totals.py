import pytest

from streamco.core.verifier.events import DraftVerdict, SendVerdict
from streamco.sim.fleet.totals import FleetTotals
from tests.sim.fleets import SmallFleet, requests


def verdict(queued: float, compute: float) -> SendVerdict:
    return SendVerdict(verdict=DraftVerdict("s", 1, 2), round=1, position=3, depth=0, queued=queued, compute=compute)


def test_of_nothing_there_are_no_figures() -> None:
    assert FleetTotals().metrics(0) == {}


def test_shares_are_of_what_they_say() -> None:
    small = SmallFleet(requests(5, acceptance=0.6), branches=6)
    totals = FleetTotals()
    for outcomes in small.outcomes:
        totals.record(outcomes)
    for each in (verdict(0.1, 0.2), verdict(0.3, 0.2)):
        totals.record_verdict(each)
    found = totals.metrics(server_tokens=500)
    reports = [outcomes.report for outcomes in small.outcomes if outcomes.report is not None]
    tokens = sum(outcomes.tokens for outcomes in small.outcomes)
    assert found["verdict_mean"] == pytest.approx(0.4)
    assert found["verdict_queue"] == pytest.approx(0.2)
    assert found["hit_rate"] == pytest.approx(sum(report.hits for report in reports) / sum(report.rounds for report in reports))
    assert found["offloaded_share"] == 1.0
    assert found["by_server_alone"] == 0.0
    assert found["server_tokens"] == pytest.approx(500 / tokens)
    assert 3.0 < found["window_mean"] <= 4.0
    assert found["device_joules"] > 2.0


def test_answers_of_the_server_alone_say_nothing_of_drafts() -> None:
    totals = FleetTotals()
    for outcomes in SmallFleet(requests(3), execution="fused").outcomes:
        totals.record(outcomes)
    found = totals.metrics(100)
    assert found["by_server_alone"] == 1.0
    assert not {"window_mean", "hit_rate", "drafted_unused", "offloaded_share"} & set(found)
