"""The remote side alone, where drafting doesn't pay or can't be judged; and the account of what drafting cost against it."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from streamco.core.speculation.estimates import SpeculationEstimates
from streamco.core.speculation.events import CloseRemote, OpenRemote, SpeculationCommand
from streamco.errors import StreamcoError
from streamco.policies.mode_switch import round_seconds

__all__ = ["TimeAccount", "RemoteStream"]

_WHOLE = 8  # tokens of an answer that came in one piece and says how fast the remote side is


class RemoteStream:
    """The remote side's plain stream.

    Args:
        is_there: somebody can generate alone.
        say: takes commands.
        number: gives the next version.

    Attributes:
        version: of the stream that is open; None: none is.
        failure: why it is out for the rest of the answer; None: it is not.
        tokens: of the present stream.
    """

    def __init__(self, is_there: bool, say: Callable[[SpeculationCommand], None], number: Callable[[], int]) -> None:
        self.version: int | None = None
        self.failure: StreamcoError | None = None
        self.tokens = 0
        self._is_there = is_there
        self._say = say
        self._number = number

    @property
    def is_able(self) -> bool:
        """It can go on, or does."""
        return self._is_there and self.failure is None

    def open(self, settled: Sequence[int], left: int | None) -> None:
        """Go on behind the settled tokens."""
        self.tokens = 0
        self.version = self._number()
        self._say(OpenRemote(self.version, tuple(settled), left))

    def close(self) -> None:
        """Stop, if it runs."""
        if self.version is not None:
            self._say(CloseRemote(self.version))
        self.version = None


class TimeAccount:
    """Tells the mode switch what rounds and streams took, each second once.

    A change to the remote stream belongs to drafting: what its first token takes longer than the others. So does a change back, for the
    round that follows begins with the stream's last token. What every answer takes to begin, a prompt to read, is nobody's.

    Attributes:
        prompt_time: seconds in which the remote side read the prompt of this answer; 0: it didn't begin it.
    """

    def __init__(self, pair: SpeculationEstimates) -> None:
        self._pair = pair
        self.prompt_time = 0.0
        self._at = self._opened_at = 0.0
        self._is_begun = False

    def start(self, *, now: float) -> None:
        """The answer begins."""
        self._at = now

    def note_opened(self, *, now: float) -> None:
        """The remote stream was asked for."""
        self._opened_at = now

    def note_ended(self, tokens: int, *, now: float) -> None:
        """The remote stream has ended behind so many tokens.

        If it came in one piece, its whole time is all that is known of its pace; of a few tokens most of that is no pace at all.
        """
        if not self._pair.knows_remote and tokens >= _WHOLE:
            self._pair.note_remote(tokens, now - self._opened_at)

    def note_round(self, tokens: int, *, now: float) -> None:
        """A verdict settled so many tokens."""
        seconds = self._lap(now)
        if not self._is_begun:
            seconds = min(seconds, round_seconds(self._pair.conditions(), is_parallel=False))
        self._pair.switch.record("speculate", seconds=seconds, tokens=tokens, remote_step=self._pair.remote_step)
        self._pair.note_drafted(tokens)
        self._is_begun = True

    def note_forced(self, *, now: float) -> None:
        """A verdict settled tokens while there was no stream to go back to."""
        self.skip(now=now)
        self._is_begun = True

    def note_stream(self, tokens: int, *, is_first: bool, now: float) -> None:
        """The remote stream gave so many; ``is_first``: since it was opened."""
        seconds, step = self._lap(now), self._pair.remote_step
        if is_first:
            change = max(0.0, seconds - tokens * step)
            if self._is_begun:
                self._pair.switch.record("speculate", seconds=change, tokens=0, remote_step=step)
            else:
                self.prompt_time = max(0.0, now - self._opened_at - tokens * step - self._pair.rtt)
                self._pair.note_prompt(self.prompt_time)
            seconds -= change
        else:
            self._pair.note_remote(tokens, seconds)
        self._pair.switch.record("remote", seconds=seconds, tokens=tokens, remote_step=step)
        self._is_begun = True

    def note_device(self, *, now: float) -> None:
        """The device settled tokens alone."""
        self._pair.switch.record("device", seconds=self._lap(now), tokens=0, remote_step=self._pair.remote_step)
        self._is_begun = True

    def skip(self, since: float = -math.inf, *, now: float) -> None:
        """From ``since``, or from what was counted last, to now: no time of drafting, nor of the stream."""
        self._at += max(0.0, now - max(since, self._at))

    @property
    def is_begun(self) -> bool:
        """Something was settled."""
        return self._is_begun

    def _lap(self, now: float) -> float:
        seconds, self._at = max(0.0, now - self._at), now
        return seconds
