"""Degradations: requests that aren't served as asked. Each is a note in the answer's report and a warning in the log, or an error.

A server's 401, 403 or 404 is different from an outage: it is a configuration error, and stays until somebody fixes it. So the call fails,
unless degradations are ignored. If it arrives when the answer is already in progress, calls in the next 30 seconds fail instead.
"""

from __future__ import annotations

import logging
import time
from typing import Literal, get_args

from msgspec import Struct

from streamco.client.answer_log import describe_error
from streamco.errors import ConfigError, DegradedError, EndpointError, EndpointStatusError, is_refusal, shorten

__all__ = ["Degradation", "Degradations", "OnDegraded"]

OnDegraded = Literal["warn", "answer", "raise", "ignore"]

_MAX_KINDS = 1000  # kinds that are logged: callers choose the names of fields and models, which could fill the log and the memory
_REFUSED_SECONDS = 30.0  # for this long, a refusal that came too late to fail its own answer makes other answers fail

_logger = logging.getLogger("streamco")


class Degradation(Struct, frozen=True, kw_only=True):
    """An endpoint that isn't used as requested.

    Args:
        endpoint: its name.
        kind: what happened: an error's name with its status, or one of "left out", "not speculated", "limited".
        note: what was requested, and what happens instead.
        since: when this began, in seconds since 1970.
    """

    endpoint: str
    kind: str
    note: str
    since: float


class Degradations:
    """The degradations of a client; clients from ``with_options`` share them.

    Args:
        rule: "warn" logs each (endpoint, kind) once. "answer" does too, but doesn't let a server's refusal fail an answer that another
            endpoint can give. "raise" makes every degradation an error. "ignore" is like "answer", but only reports mention degradations.

    Raises:
        ConfigError: the rule is unknown.
    """

    def __init__(self, rule: OnDegraded = "warn") -> None:
        if rule not in get_args(OnDegraded):
            raise ConfigError(f'on_degraded: expected "warn", "answer", "raise" or "ignore", got {rule!r}')
        self.rule = rule
        self._logged: set[tuple[str, str]] = set()
        self._present: dict[str, Degradation] = {}
        self._refusals: dict[str, tuple[float, EndpointError]] = {}

    def with_rule(self, rule: OnDegraded | None) -> Degradations:
        """Return an object that has another rule but shares all records with this one; None returns this object."""
        if rule is None:
            return self
        other = Degradations(rule)
        other._logged, other._present, other._refusals = self._logged, self._present, self._refusals
        return other

    @property
    def present(self) -> tuple[Degradation, ...]:
        """The endpoints that failed or were left out, and have not worked since."""
        return tuple(self._present.values())

    def record(
        self,
        notes: list[str],
        *,
        kind: str,
        endpoint: str,
        sentence: str,
        logged: str | None = None,
        may_raise: bool = True,
        may_log: bool = True,
    ) -> None:
        """Add a degradation to an answer's notes and log it once, or raise an error if the rule is "raise".

        Args:
            notes: the answer's notes; the same sentence is added, and logged, only once.
            kind: what happened, without figures and without text from the caller, so that each kind is logged only once.
            endpoint: name of the endpoint that isn't used as requested.
            sentence: what was requested, what happens instead, and the remedy if there is one.
            logged: the sentence without any text from the caller; None if it contains no such text.
            may_raise: False if the reader already has the answer.
            may_log: False if it is already in the log.

        Raises:
            DegradedError: the rule is "raise".
        """
        sentence = shorten(sentence)
        is_new = sentence not in notes
        if is_new:
            notes.append(sentence)
        is_full = len(self._logged) >= _MAX_KINDS
        if may_log and not is_full and (endpoint, kind) not in self._logged:
            self._logged.add((endpoint, kind))
            if is_new and self.rule != "ignore":  # an answer is noted several times, and the endpoint may have worked in between
                _logger.warning("%s (logged once)", sentence if logged is None else shorten(logged))
        if self.rule == "raise" and may_raise:
            raise DegradedError(sentence, kind=kind, endpoint=endpoint)

    def record_failure(self, notes: list[str], error: Exception, *, endpoint: str, instead: str, may_log: bool = True) -> None:
        """Record that an endpoint failed while the answer came from another one. If the failure was a refusal, later answers fail.

        Args:
            notes: the answer's notes.
            error: the failure. Its message goes into the report; the log shows only its kind, because the message may quote the request.
            endpoint: name of the endpoint that failed.
            instead: what happened instead.
            may_log: False if the caller gets the error.
        """
        kind = describe_error(error)
        sentence = f"{endpoint} failed ({kind}): {instead}"
        self.record(notes, kind=kind, endpoint=endpoint, sentence=sentence, may_raise=False, may_log=may_log)
        self._present[endpoint] = Degradation(
            endpoint=endpoint, kind=kind, note=f"{endpoint} failed ({kind})", since=self._since(endpoint, kind)
        )
        if isinstance(error, EndpointStatusError) and is_refusal(error):
            self._refusals[endpoint] = (time.monotonic(), error)

    def record_start_failure(self, notes: list[str], error: EndpointError, *, endpoint: str) -> None:
        """Record an endpoint that could not start and is left out. Its error message is logged, because nothing has been sent yet.

        Raises:
            DegradedError: the rule is "raise".
        """
        kind = f"left out: {describe_error(error)}"
        self._present[endpoint] = Degradation(endpoint=endpoint, kind=kind, note=str(error), since=self._since(endpoint, kind))
        self.record(notes, kind=kind, endpoint=endpoint, sentence=f"endpoint left out, it could not start: {error}")

    def record_success(self, endpoint: str) -> None:
        """Record that an endpoint has answered: its failures are over, and a new one will be logged again."""
        present = self._present.pop(endpoint, None)
        if present is not None:
            self._logged.discard((endpoint, present.kind))
            self._refusals.pop(endpoint, None)

    def refusal(self, endpoint: str) -> EndpointError | None:
        """Return the refusal that this endpoint sent in the last 30 seconds while another one was answering, or None."""
        if self.rule in {"answer", "ignore"}:
            return None
        at, error = self._refusals.get(endpoint, (0.0, None))
        if error is not None and time.monotonic() - at > _REFUSED_SECONDS:
            del self._refusals[endpoint]
            return None
        return error

    def _since(self, endpoint: str, kind: str) -> float:
        present = self._present.get(endpoint)
        return present.since if present is not None and present.kind == kind else time.time()
