"""What is noted of a race that has ended."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from streamco.client.degradation import Degradations
from streamco.client.modes.race.notes import note_race
from streamco.errors import EndpointConnectError

LOST = EndpointConnectError("expected a connection, got none")


def race_of(*attempts: tuple[str, EndpointConnectError | None]) -> Any:
    """A driver of a race that has ended, with these attempts in order: the endpoint, and what went wrong with it."""
    made = [SimpleNamespace(source=source, trouble=trouble, ttft=0.1) for source, trouble in attempts]
    machine = SimpleNamespace(past_attempts=made, attempts={}, finished=1.0, error=None, winner="other", writer="other", gate=None)
    return SimpleNamespace(machine=machine, split_figures=dict, changes=list, unlimited=None)


@pytest.mark.parametrize("troubles", [(None, LOST), (LOST, None), (LOST, None, LOST), (LOST, LOST)])
def test_a_failure_is_logged_once_although_the_endpoint_has_worked_in_the_same_answer(
    troubles: tuple[EndpointConnectError | None, ...], caplog: pytest.LogCaptureFixture
) -> None:
    degradations, notes = Degradations(), list[str]()
    for _ in range(3):  # when the answer has ended, when all its work has, and when its report is asked for
        note_race(degradations, notes, race_of(*(("server", trouble) for trouble in troubles)))
    assert [record.getMessage() for record in caplog.records] == ["server failed (EndpointConnectError): other answered (logged once)"]
    assert notes == ["server failed (EndpointConnectError): other answered"]
    assert bool(degradations.present) == (troubles[-1] is not None)


@pytest.mark.parametrize("earlier", [[(LOST,), (None,)], [(LOST, None)]])
def test_a_failure_is_logged_again_if_the_endpoint_has_worked_since(
    earlier: list[tuple[EndpointConnectError | None, ...]], caplog: pytest.LogCaptureFixture
) -> None:
    degradations = Degradations()
    for troubles in (*earlier, (LOST,), (LOST,)):
        notes = list[str]()
        for _ in range(2):
            note_race(degradations, notes, race_of(*(("server", trouble) for trouble in troubles)))
    assert len(caplog.records) == 2
