"""The remote stream, used when drafting doesn't pay or can't be verified, and the time account that compares drafting with it."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from streamco.core.speculation.estimates import SpeculationEstimates
from streamco.core.speculation.events import CloseRemote, OpenRemote, SpeculationCommand
from streamco.errors import StreamcoError
from streamco.policies.mode_switch import round_seconds

__all__ = ["RemoteStream", "TimeAccount"]

_WHOLE_ANSWER = 8  # an answer that arrives in one piece needs this many tokens to show how fast the remote stream is


class RemoteStream:
    """The target model's plain generation for one answer.

    Args:
        is_available: True if there is an endpoint that can generate alone.
        emit: called with each command.
        next_version: returns a new version number.

    Attributes:
        version: version of the open stream; None if no stream is open.
        failure: why it can't be used for the rest of the answer; None if it can.
        tokens: how many tokens the current stream, or the last one, has produced.
    """

    def __init__(self, is_available: bool, emit: Callable[[SpeculationCommand], None], next_version: Callable[[], int]) -> None:
        self.version: int | None = None
        self.failure: StreamcoError | None = None
        self.tokens = 0
        self._is_available = is_available
        self._emit = emit
        self._next_version = next_version

    @property
    def is_open(self) -> bool:
        """True while a stream is open."""
        return self.version is not None

    @property
    def is_usable(self) -> bool:
        """True if the stream can continue the answer, or is already doing so."""
        return self._is_available and self.failure is None

    def open(self, committed: Sequence[int], max_tokens: int | None) -> None:
        """Open a stream that continues after the committed tokens, for at most ``max_tokens`` tokens (None for no limit)."""
        self.tokens = 0
        self.version = self._next_version()
        self._emit(OpenRemote(self.version, tuple(committed), max_tokens))

    def close(self) -> None:
        """Cancel the stream if one is open."""
        if self.version is not None:
            self._emit(CloseRemote(self.version))
        self.version = None

    def record_tokens(self, count: int) -> bool:
        """Record that tokens arrived, and return True if they are the first ones of this stream."""
        is_first = not self.tokens
        self.tokens += count
        return is_first

    def record_ended(self) -> None:
        """Record that the stream has ended by itself."""
        self.version = None

    def record_failure(self, error: StreamcoError) -> None:
        """Record that the stream failed. It is not used again in this answer."""
        self.version, self.failure = None, error


class TimeAccount:
    """Charges each second of one answer to drafting or to the stream, so that the mode switch can compare them.

    The extra latency of the first remote token is charged to drafting, because without drafting the mode would never change. The return to
    drafting is charged to drafting too: the time of the next round counts from the stream's last token. Reading the prompt, which every
    answer needs, is charged to neither.

    Attributes:
        started_at: when the answer began, in seconds.
        prompt_time: how many seconds the remote stream took to read this answer's prompt; 0 if the answer didn't begin with the stream.
    """

    def __init__(self, estimates: SpeculationEstimates) -> None:
        self._estimates = estimates
        self.started_at = self.prompt_time = 0.0
        self._counted_until = self._opened_at = 0.0
        self._has_begun = False
        self._is_one_piece = True  # everything that the stream has sent arrived together
        self._is_charged = True  # the wait for the stream's first token is charged to drafting

    @property
    def has_begun(self) -> bool:
        """True once a token has been committed."""
        return self._has_begun

    def start(self, *, now: float) -> None:
        """Start counting, because the answer begins."""
        self.started_at = self._counted_until = now

    def skip(self, since: float = -math.inf, *, now: float) -> None:
        """Charge the time until ``now`` to neither. It begins at ``since`` or where counting last stopped, whichever is later."""
        self._counted_until += max(0.0, now - max(since, self._counted_until))

    def record_opened(self, *, is_charged: bool = True, now: float) -> None:
        """Record that the remote stream was opened. ``is_charged`` says whether the wait for its first token is charged to drafting."""
        self._opened_at, self._is_charged, self._is_one_piece = now, is_charged, True

    def record_ended(self, tokens: int, *, now: float) -> None:
        """Record that the remote stream, or the answer in it, has ended after ``tokens`` tokens.

        If everything arrived in one piece, only the total time is known. If there are few tokens, most of that time has nothing to do with
        the pace. If a pace is known already, a longer time is put down to the prompt, so only a faster stream changes the pace.
        """
        if self._is_one_piece and tokens >= _WHOLE_ANSWER:
            estimates, seconds = self._estimates, now - self._opened_at
            if not estimates.has_remote_step:
                estimates.record_remote(tokens, seconds)
            elif estimates.is_remote_step_stale:
                estimates.record_remote(tokens, min(seconds, tokens * estimates.remote_step))

    def record_round(self, tokens: int, *, now: float) -> None:
        """Record that a verdict committed ``tokens`` tokens. The first round counts at most its expected time, as it reads the prompt."""
        seconds = self._lap(now)
        if not self._has_begun:
            seconds = min(seconds, round_seconds(self._estimates.conditions(), is_parallel=False))
        step, energy = self._estimates.remote_step, self._estimates.round_energy
        self._estimates.switch.record("speculate", seconds=seconds, tokens=tokens, remote_step=step, energy=energy)
        self._estimates.record_drafted(tokens)
        self._has_begun = True

    def record_forced_round(self, *, now: float) -> None:
        """Record that a verdict committed tokens while there was no stream to compare with."""
        self.skip(now=now)
        self._has_begun = True

    def record_stream(self, tokens: int, *, is_first: bool, is_beside_draft: bool = False, now: float) -> None:
        """Record that the remote stream produced tokens.

        Args:
            tokens: how many.
            is_first: True if they are the first since the stream was opened.
            is_beside_draft: True if the device drafted meanwhile.
            now: the current time in seconds.
        """
        since, step, switch = self._counted_until, self._estimates.remote_step, self._estimates.switch
        seconds = self._lap(now)
        if is_first:
            change = max(0.0, seconds - tokens * step)
            if self._has_begun and self._is_charged:
                given_up = min(change, max(0.0, self._opened_at - since))  # seconds of a round that gave no tokens
                switch.record("speculate", seconds=given_up, tokens=0, remote_step=step)
                switch.record("speculate", seconds=change - given_up, tokens=0, remote_step=step, is_return=True)
            elif not self._has_begun:
                self.prompt_time = max(0.0, now - self._opened_at - tokens * step - self._estimates.rtt)
                self._estimates.record_prompt(self.prompt_time)
            seconds -= change
        else:
            self._is_one_piece = False
            self._estimates.record_remote(tokens, seconds, is_beside_draft=is_beside_draft)
        switch.record("remote", seconds=seconds, tokens=tokens, remote_step=step)
        self._has_begun = True

    def record_device(self, *, now: float) -> None:
        """Record that the device committed tokens alone."""
        self._estimates.switch.record("device", seconds=self._lap(now), tokens=0, remote_step=self._estimates.remote_step)
        self._has_begun = True

    def _lap(self, now: float) -> float:
        seconds, self._counted_until = max(0.0, now - self._counted_until), now
        return seconds
