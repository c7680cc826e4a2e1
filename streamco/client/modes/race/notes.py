"""Finds the degradations of a raced answer: in its dispatch before it starts, and in its driver when it has ended."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence

from streamco.client.degradation import Degradations
from streamco.client.modes.base import AskedAnswer
from streamco.client.modes.notes import note_inexact, note_shortened
from streamco.client.modes.race.dispatch_record import DispatchRecord
from streamco.client.modes.race.driver import RaceDriver
from streamco.core.race.gate import HeldBeginning
from streamco.core.report_parts import HandOver
from streamco.errors import EndpointError, why_unable
from streamco.policies.migration import BarredMove

__all__ = ["note_dispatch", "note_moves", "note_passed_over", "note_race", "note_settings"]


def note_dispatch(asked: AskedAnswer, dispatched: DispatchRecord, unavailable: Mapping[str, EndpointError]) -> None:
    """Record where the dispatch decision differs from the request: endpoints left out, and a shorter answer.

    Args:
        asked: the answer.
        dispatched: the decision.
        unavailable: endpoints that could not start, with their errors, except the ones that the caller excluded.

    Raises:
        DegradedError: the client's rule is "raise".
    """
    degradations, notes = asked.settings.degradations, asked.notes
    for name, error in unavailable.items():
        degradations.record_start_failure(notes, error, endpoint=name)
    device = dispatched.device or "device"
    for name, obstacle in dispatched.obstacles.items():
        text, logged = (f"{name} left out: {each}; {_instead(dispatched, name)}" for each in obstacle.texts)
        kind = f"left out: {_without_figures(obstacle.logged)}"
        degradations.record(notes, kind=kind, endpoint=name, sentence=text, logged=logged)
    for name, why in dispatched.late.items():
        sentence = f"{name} is asked only if others fail: {why}, by an estimate"
        degradations.record(notes, kind="asked later", endpoint=name, sentence=sentence, may_raise=False)
    for name, why in dispatched.resting.items():
        sentence = f"{name} is asked only if others fail: {why}"
        degradations.record(notes, kind=f"rests: {why}", endpoint=name, sentence=sentence, may_raise=False)
    if dispatched.waits_for:
        others = f"{dispatched.waits_for} other{'s' * (dispatched.waits_for > 1)}"
        credit = ", and what may be borrowed, too (burst)" if dispatched.steering.burst else ""
        sentence = f"the answer waits for {others} at {device}, because the budget is spent{credit}"
        degradations.record(notes, kind="waits", endpoint=device, sentence=sentence, may_raise=False)
    if dispatched.not_graded:
        sentence = f"{device}'s answer isn't graded, because {dispatched.not_graded}"
        kind = _without_figures(f"not graded: {dispatched.not_graded}")
        degradations.record(notes, kind=kind, endpoint=device, sentence=sentence, may_raise=False)  # such answers lead to ratings
    if dispatched.without_effect:
        degradations.record(notes, kind="no effect", endpoint="policy", sentence=dispatched.without_effect)
    if dispatched.shortened_to is not None:
        note_shortened(asked, dispatched.facts, device=device, tokens=dispatched.shortened_to)


def note_passed_over(asked: AskedAnswer, dispatched: DispatchRecord) -> None:
    """Record why the requested mode doesn't make the answer. If it would just have been slower, only the dispatch decision says so.

    Raises:
        DegradedError: the client's rule is "raise".
    """
    if asked.passed_over is None:
        return
    planner, obstacle = asked.passed_over
    text, logged = (f"{planner.declined}: {each}" for each in obstacle.texts)
    dispatched.add_note(text, logged=logged)
    if not obstacle.is_choice:
        kind, may_log = _without_figures(logged), not obstacle.is_logged
        asked.settings.degradations.record(asked.notes, kind=kind, endpoint=planner.role, sentence=text, logged=logged, may_log=may_log)


def note_settings(
    degradations: Degradations,
    notes: list[str],
    *,
    unmoved: str,
    barred: Sequence[BarredMove] = (),
) -> None:
    """Record the client's settings that have no effect on this answer.

    Args:
        degradations: the client's degradations.
        notes: the answer's notes.
        unmoved: why the answer won't move to a cheaper endpoint although ``migration`` was given, or "" if it may move.
        barred: moves that would save money but aren't allowed because of the target's quality; those that the caller forbade are skipped.

    Raises:
        DegradedError: the client's rule is "raise".
    """
    if unmoved:
        sentence = f"the answer moves to no cheaper endpoint, because {unmoved}"
        degradations.record(notes, kind=f"no effect: {unmoved}", endpoint="migration", sentence=sentence)
    for move in barred:
        if not move.is_asked:
            sentence = f"the answer does not move from {move.source} to {move.target}, which is cheaper, because {move.reason}"
            degradations.record(notes, kind="not moved", endpoint=move.target, sentence=sentence, may_raise=False)


def note_moves(degradations: Degradations, notes: list[str], hand_overs: Iterable[HandOver]) -> None:
    """Record planned hand-overs to models of unknown quality, if the caller has neither allowed nor forbidden them."""
    for each in hand_overs:
        sentence = (
            f"{each.target} went on for {each.source}, because it is cheaper; whether its model is good enough is not known "
            "(MigrationOptions(min_quality=..., quality=...))"
        )
        degradations.record(notes, kind="moved", endpoint=each.target, sentence=sentence, may_raise=False)


def note_race(degradations: Degradations, notes: list[str], driver: RaceDriver) -> None:
    """Record whatever a race didn't do as requested.

    While the race is running, that can only be a split model's format that may change tokens. Once it is over, endpoints that failed,
    requests that were resent in another form and a token limit that may be exceeded are recorded, and so are endpoints that worked.
    """
    machine = driver.machine
    for source, figures in driver.split_figures().items():
        note_inexact(degradations, notes, source, figures)
    if machine.finished is None:
        return
    has_failed = machine.error is not None  # then the caller gets the error
    instead = "no endpoint answered" if has_failed or machine.winner is None else f"{machine.writer} answered"
    for attempt in (*machine.past_attempts, *machine.attempts.values()):
        if (error := attempt.trouble) is not None:
            degradations.record_failure(
                [] if has_failed else notes, error, endpoint=attempt.source, instead=instead, may_log=not has_failed
            )
        elif attempt.ttft is not None:
            degradations.record_success(attempt.source)
    if machine.gate is not None and not has_failed:
        _note_grade(degradations, notes, machine.gate)
    if isinstance(machine.error, EndpointError) and machine.error.unable:
        sentence = why_unable(machine.error.unable)
        if sentence not in notes:
            notes.append(sentence)
    for source, form, change in driver.changes():
        degradations.record(notes, kind=f"no {form}", endpoint=source, sentence=f"{source}: {change}", may_raise=False)
    if driver.unlimited is not None:
        sentence = f"{driver.unlimited} may exceed max_tokens, because how many tokens the answer had before is only estimated"
        degradations.record(notes, kind="max_tokens not counted", endpoint=driver.unlimited, sentence=sentence, may_raise=False)


def _note_grade(degradations: Degradations, notes: list[str], held: HeldBeginning) -> None:
    """Record that the reader got an answer that wasn't graded, or that the device was unsure of."""
    name = held.plan.source
    if held.verdict == "not graded":
        sentence = f"{name}'s answer wasn't graded: {held.unscored_because}"
        degradations.record(notes, kind="not graded", endpoint=name, sentence=sentence, may_raise=False)
    elif held.passed_because and held.score is not None:
        sure = f"{held.score:.2f}, below {held.plan.min_score:.2f}"
        sentence = f"{name} answered, though it was unsure ({sure}): {held.passed_because}"
        degradations.record(notes, kind="unsure", endpoint=name, sentence=sentence, may_raise=False)
    elif held.passed_because and held.verdict is None:
        sentence = f"{name}'s answer wasn't graded: {held.passed_because}"
        degradations.record(notes, kind="not graded", endpoint=name, sentence=sentence, may_raise=False)


def _instead(dispatched: DispatchRecord, name: str) -> str:
    """Return what happens instead of using an endpoint that is left out."""
    if name == dispatched.device:
        return f"{dispatched.sides.get('server', 'the server')} alone answers"
    able = [each.source for each in dispatched.attempts if each.source != dispatched.device and each.source not in dispatched.obstacles]
    return f"{able[0]} takes its place" if able else f"{dispatched.sides.get('device', 'the device')} alone answers"


def _without_figures(text: str) -> str:
    """Return a text without its numbers, so that it is logged only once, whatever the numbers are."""
    return re.sub(r"\d+", "N", text)
