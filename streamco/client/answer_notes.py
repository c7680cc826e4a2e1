"""Finds the degradations of an answer: in its dispatch before it starts, and in its driver when it has ended."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence

from streamco.client.degradation import Degradations
from streamco.client.race.dispatch_record import DispatchRecord
from streamco.client.race.driver import RaceDriver
from streamco.client.race.obstacles import Obstacle
from streamco.client.speculation.driver import SpeculationDriver
from streamco.core.report import HandOver, Report, WhyRemote
from streamco.endpoints.verifiers.pool_session import AssignedVerifier, PooledSession
from streamco.errors import EndpointError
from streamco.policies.migration import BarredMove

__all__ = ["note_dispatch", "note_moves", "note_obstacle", "note_race", "note_settings", "note_speculation"]


def note_dispatch(
    degradations: Degradations, notes: list[str], dispatched: DispatchRecord, unavailable: Mapping[str, EndpointError]
) -> None:
    """Record what the dispatch decision does other than asked: endpoints left out, and a shorter answer.

    Args:
        degradations: the client's.
        notes: the answer's notes.
        dispatched: the decision.
        unavailable: endpoints that could not start, with their errors, without those that are kept out, as was asked for.

    Raises:
        DegradedError: by the client's rule.
    """
    for name, error in unavailable.items():
        degradations.record_start_failure(notes, error, endpoint=name)
    device = dispatched.device or "device"
    for name, obstacle in dispatched.obstacles.items():
        text, logged = (f"{name} left out: {each}; {_instead(dispatched, name)}" for each in obstacle)
        kind = f"left out: {_without_figures(obstacle.logged)}"
        degradations.record(notes, kind=kind, endpoint=name, sentence=text, logged=logged)
    for name, why in dispatched.late.items():
        sentence = f"{name} is asked only if others fail: {why}, by an estimate"
        degradations.record(notes, kind="asked later", endpoint=name, sentence=sentence, may_raise=False)
    if dispatched.without_effect:
        degradations.record(notes, kind="no effect", endpoint="policy", sentence=dispatched.without_effect)
    if dispatched.shortened_to is not None:
        most = f"{dispatched.shortened_to} of {dispatched.facts.max_tokens} tokens"
        sentence = f"{device} can give at most {most} (max_tokens), because its context ends there"
        degradations.record(notes, kind="shortened", endpoint=device, sentence=sentence)


def note_obstacle(degradations: Degradations, notes: list[str], obstacle: Obstacle, *, is_logged: bool) -> None:
    """Record why an answer is not speculated; ``is_logged``: it is in the log already, because it holds for all answers.

    Raises:
        DegradedError: by the client's rule.
    """
    text, logged = (f"not speculated: {each}" for each in obstacle)
    degradations.record(notes, kind=_without_figures(logged), endpoint="verifier", sentence=text, logged=logged, may_log=not is_logged)


def note_settings(
    degradations: Degradations,
    notes: list[str],
    *,
    hides_drafts: str,
    offload: str,
    is_unpaced: bool,
    unmoved: str,
    barred: Sequence[BarredMove] = (),
    inexact: str = "",
) -> None:
    """Record the client's settings that have no effect on this answer.

    Args:
        degradations: the client's.
        notes: the answer's notes.
        hides_drafts: why the reader gets no drafts, though the client's ``emit`` is "draft"; "": it gets them, or didn't ask for them.
        offload: the filter that needs the importance of drafts, if the device doesn't read it; "": none does.
        is_unpaced: the client has a pace, and the answer is not streamed.
        unmoved: why the answer moves to no cheaper endpoint, though ``migration`` was given; "": it may move.
        barred: moves that would save money and must not happen, because of the target's quality; those that the caller asked to bar are
            left out.
        inexact: name of the split model that sends states in a format which changes tokens; "": none does.

    Raises:
        DegradedError: by the client's rule.
    """
    if inexact:
        sentence = f"{inexact}: the answer is not exactly the model's own, because its states travel in fewer than 32 bits"
        degradations.record(notes, kind="not exact", endpoint=inexact, sentence=sentence, may_raise=False)
    if hides_drafts:
        sentence = f'emit="draft" has no effect, because {hides_drafts}; the text comes when it is final'
        degradations.record(notes, kind="no effect", endpoint="emit", sentence=sentence, may_raise=False)
    if offload:
        cure = "EngineOptions(attention_layers=...) of the device"
        sentence = f'offload="{offload}" goes by confidence alone, because the device does not read attention ({cure})'
        degradations.record(notes, kind="no effect", endpoint="offload", sentence=sentence)
    if is_unpaced:
        sentence = "the client's pace has no effect on an answer that is not streamed"
        degradations.record(notes, kind="no effect", endpoint="pace", sentence=sentence, may_raise=False)
    if unmoved:
        sentence = f"the answer moves to no cheaper endpoint, because {unmoved}"
        degradations.record(notes, kind="no effect", endpoint="migration", sentence=sentence)
    for move in barred:
        if not move.is_asked:
            sentence = f"the answer does not move from {move.source} to {move.target}, which is cheaper, because {move.reason}"
            degradations.record(notes, kind="not moved", endpoint=move.target, sentence=sentence, may_raise=False)


def note_moves(degradations: Degradations, notes: list[str], hand_overs: Iterable[HandOver]) -> None:
    """Record planned hand-overs to models of unknown quality, which the caller has neither allowed nor forbidden."""
    for each in hand_overs:
        sentence = (
            f"{each.target} went on for {each.source}, because it is cheaper; whether its model is good enough is not known "
            "(MigrationOptions(min_quality=..., quality=...))"
        )
        degradations.record(notes, kind="moved", endpoint=each.target, sentence=sentence, may_raise=False)


def note_race(degradations: Degradations, notes: list[str], driver: RaceDriver) -> None:
    """Record what happened in a race other than asked; nothing while the race is under way.

    That is endpoints that failed, requests that were sent again in another form, and a limit that is not kept; also those that worked.
    """
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
    for source, form, change in driver.changes():
        degradations.record(notes, kind=f"no {form}", endpoint=source, sentence=f"{source}: {change}", may_raise=False)
    if driver.unlimited is not None:
        sentence = f"{driver.unlimited} may exceed max_tokens, because how many tokens the answer had before is only estimated"
        degradations.record(notes, kind="max_tokens not counted", endpoint=driver.unlimited, sentence=sentence, may_raise=False)


def note_speculation(degradations: Degradations, notes: list[str], driver: SpeculationDriver, report: Report, *, absence: str) -> None:
    """Record what a speculated answer was without: its verifier, drafts or exactness; and the endpoints that worked.

    Args:
        degradations: the client's.
        notes: the answer's notes.
        driver: the answer's driver; nothing is recorded before the answer has ended.
        report: the answer's report.
        absence: how long the verifier was expected in vain; "": it was not. It is in the log already.
    """
    if driver.finished is None and not driver.was_broken_off:
        return
    names = {each.outcome: each.name for each in report.endpoints}
    device, verifier = names.get("drafted", "device"), names.get("verified", "verifier")
    has_failed = driver.error is not None  # then the caller has the error
    instead = {
        "verifier": "the answer went on without it",
        "device": f"{verifier} went on alone",
        "remote": "the answer went on without its stream",
    }
    for part, error in driver.failures.items():
        name, kept = device if part == "device" else verifier, [] if has_failed else notes
        degradations.record_failure(kept, error, endpoint=name, instead=instead[part], may_log=not has_failed)
    _record_successes(degradations, driver, device, verifier)
    if isinstance(driver.session, PooledSession):
        _note_pool(degradations, [] if has_failed else notes, driver.session.assigned)
    if driver.was_broken_off or has_failed:
        return
    is_lost = driver.unconnected > 0.0 and driver.machine.report.losses > 0
    if absence or (is_lost and "verifier" not in driver.failures):
        why = f": {absence}" if absence else ""
        sentence = f"{verifier} {'refused a session' if driver.was_refused else 'was lost'}{why}; the answer went on without it"
        degradations.record(notes, kind="lost", endpoint=verifier, sentence=sentence, may_raise=False, may_log=not absence)
    for kind, sentence in _without_drafts(driver, report, device, verifier).items():
        degradations.record(notes, kind=kind, endpoint=verifier, sentence=sentence, may_raise=False)


def _note_pool(degradations: Degradations, notes: list[str], assigned: AssignedVerifier) -> None:
    """Record which of several verifiers were left out of an answer's choice, and which the answer had to leave."""
    for name, problem in assigned.left_out.items():
        sentence = f"verifier {name} left out: {problem}; {assigned.served[0]} took the answer"
        degradations.record(notes, kind="left out", endpoint=name, sentence=sentence, may_raise=False)
    for move in assigned.moves:
        sentence = f"the answer moved from {move.source} to {move.target}: {move.why}"
        degradations.record(notes, kind="moved", endpoint=move.source, sentence=sentence, may_raise=False)


def _record_successes(degradations: Degradations, driver: SpeculationDriver, device: str, verifier: str) -> None:
    done = driver.machine.report
    if done.drafted and "device" not in driver.failures:
        degradations.record_success(device)
    if (done.rounds or done.remote) and driver.failures.keys() <= {"device"}:
        degradations.record_success(verifier)


_WHY_NO_DRAFTS: Mapping[WhyRemote, str] = {
    "its speed was measured": "{} alone is timed first, and the answer ended before (SpeculationOptions(is_adaptive=False) drafts always)",
    "drafting is slower": "{} alone is as fast (SpeculationOptions(is_adaptive=False) drafts always)",
    "no verifier": "{} verified nothing in time",
    "the device reads the prompt": "the device was still reading the prompt",
    "no draft": "the device had no draft",
}


def _without_drafts(driver: SpeculationDriver, report: Report, device: str, verifier: str) -> Mapping[str, str]:
    """Return what is different from drafts that are verified: kind and sentence."""
    figures, found = report.speculation, dict[str, str]()
    if figures is None:
        return found
    if figures.device and figures.budget >= 1.0:
        found["device alone"] = f"{device} wrote {figures.device} of {report.tokens} tokens alone, because {verifier} could not be reached"
    elif figures.budget >= 1.0 and not figures.is_exact:
        found["not exact"] = f"the answer is not exactly {verifier}'s own, because it tells only a part of what it draws from"
    done = driver.machine.report
    if not done.verified and done.remote and (why := done.why_remote) is not None:
        found[f"not drafted: {why}"] = f"nothing was drafted, because {_WHY_NO_DRAFTS[why].format(verifier)}"
    return found


def _instead(dispatched: DispatchRecord, name: str) -> str:
    """Return what happens in place of asking an endpoint that is left out."""
    if name == dispatched.device:
        return "the server alone answers"
    able = [each.source for each in dispatched.attempts if each.source != dispatched.device and each.source not in dispatched.obstacles]
    return f"{able[0]} takes its place" if able else "the device alone answers"


def _without_figures(text: str) -> str:
    """Return a text without its numbers, to log it once whatever they are."""
    return re.sub(r"\d+", "N", text)
