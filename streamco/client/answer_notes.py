"""Finds the degradations of an answer: in its dispatch before it starts, and in its driver when it has ended."""

from __future__ import annotations

import re
from collections.abc import Mapping

from streamco.client.degradation import Degradations
from streamco.client.race.dispatcher import DispatchRecord
from streamco.client.race.driver import RaceDriver
from streamco.client.speculation.driver import SpeculationDriver
from streamco.core.report import Report
from streamco.errors import EndpointError

__all__ = ["note_dispatch", "note_race", "note_speculation"]


def note_dispatch(
    degradations: Degradations, notes: list[str], dispatched: DispatchRecord, unavailable: Mapping[str, EndpointError], *, kept_out: bool
) -> None:
    """Record what the dispatch decision does other than asked: endpoints left out, and a shorter answer.

    Args:
        degradations: the client's.
        notes: the answer's notes.
        dispatched: the decision.
        unavailable: endpoints that could not start, with their errors.
        kept_out: one side was kept out, as was asked for; then nothing is said of it.

    Raises:
        DegradedError: by the client's rule.
    """
    if not kept_out:
        for name, error in unavailable.items():
            degradations.record_start_failure(notes, error, endpoint=name)
    device = dispatched.device or "device"
    if dispatched.device_obstacle and not kept_out:
        sentence = f"{device} left out: {dispatched.device_obstacle}; the server alone answers"
        degradations.record(notes, kind=f"left out: {_without_figures(dispatched.device_obstacle)}", endpoint=device, sentence=sentence)
    if dispatched.shortened_to is not None:
        most = f"{dispatched.shortened_to} of {dispatched.facts.max_tokens} tokens"
        sentence = f"{device} can give at most {most} (max_tokens), because its context ends there"
        degradations.record(notes, kind="shortened", endpoint=device, sentence=sentence)


def note_race(degradations: Degradations, notes: list[str], driver: RaceDriver) -> None:
    """Record the endpoints that failed in a race, those that worked, and a limit that is not kept; nothing while the race is under way."""
    machine = driver.machine
    if machine.finished is None:
        return
    has_failed = machine.error is not None  # then the caller has the error
    instead = "no endpoint answered" if has_failed or machine.winner is None else f"{machine.writer} answered"
    for attempt in (*machine.past_attempts, *machine.attempts.values()):
        if attempt.error is not None:
            degradations.record_failure(
                [] if has_failed else notes, attempt.error, endpoint=attempt.source, instead=instead, may_log=not has_failed
            )
        elif attempt.ttft is not None:
            degradations.record_success(attempt.source)
    if driver.unlimited is not None:
        sentence = f"{driver.unlimited} may exceed max_tokens, because how many tokens the answer had before is only estimated"
        degradations.record(notes, kind="max_tokens not counted", endpoint=driver.unlimited, sentence=sentence, may_raise=False)


def note_speculation(degradations: Degradations, notes: list[str], driver: SpeculationDriver, report: Report) -> None:
    """Record what a speculated answer was without: its verifier, or drafts."""
    names = {each.outcome: each.name for each in report.endpoints}
    device, verifier = names.get("drafted", "device"), names.get("verified", "verifier")
    if driver.verifier_error is not None:
        degradations.record_failure(notes, driver.verifier_error, endpoint=verifier, instead="the answer went on without it")
    figures = report.speculation
    if figures is None or driver.was_broken_off:
        return
    if figures.device and figures.budget >= 1.0:
        sentence = f"{device} wrote {figures.device} of {report.tokens} tokens alone, because {verifier} could not be reached"
        degradations.record(notes, kind="device alone", endpoint=verifier, sentence=sentence, may_raise=False)
    elif figures.rounds == 0 and figures.remote:
        sentence = f"nothing was drafted, because {verifier} alone is as fast (SpeculationOptions(is_adaptive=False) drafts always)"
        degradations.record(notes, kind="not drafted", endpoint=verifier, sentence=sentence, may_raise=False)


def _without_figures(text: str) -> str:
    """Return a text without its numbers, to log it once whatever they are."""
    return re.sub(r"\d+", "N", text)
