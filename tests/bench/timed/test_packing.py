"""How many streams a server packs: the factor, and a run of the bench."""

from __future__ import annotations

import json

import pytest

from bench.timed.packing import main, packing_factor


def test_the_factor_is_the_last_number_of_streams_within_the_limit() -> None:
    assert packing_factor({1: 10.0}) == 1
    assert packing_factor({1: 10.0, 2: 10.5, 3: 11.0, 4: 11.5}) == 3
    assert packing_factor({1: 10.0, 2: 12.0, 3: 10.0}) == 1
    assert packing_factor({1: 10.0, 2: 19.0}, limit=2.0) == 2


@pytest.mark.long
@pytest.mark.model
@pytest.mark.timeout(180)
def test_a_quick_run_has_a_factor_for_each_model(capsys: pytest.CaptureFixture[str]) -> None:
    main(["--quick", "--json"])
    rows = [json.loads(line) for line in capsys.readouterr().out.splitlines() if line.startswith("{")]
    [factor] = [row["median"] for row in rows if row["metric"] == "streams within 10 %"]
    assert factor in {1.0, 2.0}
    assert {row["contender"] for row in rows} == {"1 streams", "2 streams", "streamco"}
    assert all(row["median"] > 0.0 for row in rows)
