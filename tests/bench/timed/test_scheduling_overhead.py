"""What decisions cost: that the measurement decides and verifies what it says."""

from __future__ import annotations

import json

import pytest

from bench.timed import scheduling_overhead as overhead
from bench.timed.scheduling_overhead import CHUNK, Server, decide_chunks, main


def test_chunks_are_decided_at_the_budget() -> None:
    steering = decide_chunks("combined", 400)
    assert steering.tokens == 400 * CHUNK
    assert steering.share == pytest.approx(0.2, abs=0.03)


@pytest.mark.parametrize("budget", [0.2, 0.9])
def test_every_session_has_its_verdict_in_every_round(budget: float) -> None:
    server = Server(3, budget)
    for _ in range(4):
        server.run_round()
    assert server.verified == 12


def test_the_table_has_the_device_the_scheduler_and_the_memory(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(overhead, "SESSIONS", 2)
    main(["--quick", "--json"])
    rows = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    metrics = {row["metric"] for row in rows}
    assert len(metrics) == 4
    assert {row["contender"] for row in rows if row["metric"].startswith("P_conf")} == {"combined", "confidence", "importance", "random"}
    assert all(row["median"] > 0.0 for row in rows)
