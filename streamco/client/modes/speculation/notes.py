"""Finds the degradations of a speculated answer: in its settings before it starts, and in its driver when it has ended."""

from __future__ import annotations

from collections.abc import Mapping

from streamco.client.degradation import Degradations
from streamco.client.modes.speculation.driver import SpeculationDriver
from streamco.core.report import Report
from streamco.core.speculation.report import WhyRemote
from streamco.endpoints.verifiers.pool_session import AssignedVerifier, PooledSession

__all__ = ["note_settings", "note_speculation"]


def note_settings(degradations: Degradations, notes: list[str], *, hides_drafts: str, offload: str) -> None:
    """Record the client's settings that have no effect on this answer.

    Args:
        degradations: the client's degradations.
        notes: the answer's notes.
        hides_drafts: why the reader gets no drafts although ``emit`` is "draft"; "" if it gets them, or didn't ask for them.
        offload: the filter that was chosen, if it needs the importance of drafts but the device doesn't read attention; otherwise "".

    Raises:
        DegradedError: the client's rule is "raise".
    """
    if hides_drafts:
        sentence = f'emit="draft" has no effect, because {hides_drafts}; the text comes when it is final'
        degradations.record(notes, kind="no effect", endpoint="emit", sentence=sentence, may_raise=False)
    if offload:
        cure = "EngineOptions(attention_layers=...) of the device"
        sentence = f'offload="{offload}" goes by confidence alone, because the device does not read attention ({cure})'
        degradations.record(notes, kind="no effect", endpoint="offload", sentence=sentence)


def note_speculation(degradations: Degradations, notes: list[str], driver: SpeculationDriver, report: Report, *, absence: str) -> None:
    """Record what a speculated answer lacked (its verifier, drafts or exactness) and the endpoints that worked.

    Args:
        degradations: the client's degradations.
        notes: the answer's notes.
        driver: the answer's driver; nothing is recorded before the answer has ended.
        report: the answer's report.
        absence: how long the answer waited in vain for a verifier (already logged), or "" if it didn't wait.
    """
    if driver.finished is None and not driver.was_broken_off:
        return
    names = {each.outcome: each.name for each in report.endpoints}
    device, verifier = names.get("drafted", "device"), names.get("verified", "verifier")
    has_failed = driver.error is not None  # then the caller gets the error
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
    """Record which of several verifiers couldn't be chosen for an answer, and which ones the answer had to leave."""
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
    "its speed was measured": "{} alone is timed first, and the answer ended before (Speculate(is_adaptive=False) drafts always)",
    "drafting is slower": "{} alone is as fast (Speculate(is_adaptive=False) drafts always)",
    "no verifier": "{} verified nothing in time",
    "the device reads the prompt": "the device was still reading the prompt",
    "no draft": "the device had no draft",
    "nothing to look up": "nothing was found in the prompt or the answer that was worth a round",
}


def _without_drafts(driver: SpeculationDriver, report: Report, device: str, verifier: str) -> Mapping[str, str]:
    """Return the ways in which the answer doesn't consist of verified drafts, as sentences by kind of degradation."""
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
