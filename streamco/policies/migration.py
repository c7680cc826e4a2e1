"""Whether an answer should move to a cheaper endpoint, and when it can without the reader's notice (DiSCo 4.3, equations 4 to 6).

Moving pays when what the target saves on the tokens still to come is more than what it costs to get there: the target has to read the
prompt and the answer so far, and the source goes on at its own price until the reader's buffer covers the change (``net_saving``). The
buffer covers it from B = r_c t_m tokens on, with t_m the time from asking the target to its first token (``buffer_needed``).

Two rules say how the change is made. ``full-buffer`` is the paper's: the source stops when the buffer holds B tokens, and only then is the
target asked. ``pre-copy`` is the way virtual machines move: the target reads what exists while the source goes on, then what came
meanwhile, and takes over when only a few tokens are left to read, so t_m, B and the source's last tokens become few.
"""

from __future__ import annotations

import math
from typing import Literal

from msgspec import Struct

from streamco.partial import PreCopy

__all__ = [
    "SERVER_STOPS",
    "UNKNOWN_RATE",
    "UNKNOWN_SERVER_SETUP",
    "Terms",
    "TransferRule",
    "buffer_needed",
    "keeps_up",
    "net_saving",
    "pre_copy_pays",
    "tokens_until_buffered",
    "tokens_until_covered",
]

TransferRule = Literal["pre-copy", "full-buffer"]

SLACK = 0.1  # seconds on top of every estimate: two event loops and a network turn
HEADROOM = 1.1  # a target must decode this much faster than the reader reads
UNKNOWN_RATE = 20.0  # tokens per second, where nothing was measured; phones decode 14 to 22 (DiSCo 5.1), servers more

SERVER_STOPS = 0.1  # seconds; a round trip, behind which a server notices that the connection is closed
UNKNOWN_SERVER_SETUP = 3.0  # seconds; 99 % of 3,657 first tokens of 60 services came within 2.3 s (thefastest.ai, 2024)


class Terms(Struct, frozen=True, kw_only=True):
    """What one endpoint's tokens cost, and how soon it goes on with an answer.

    Args:
        prompt: US dollars per prompt token it reads, energy included (unified cost, equation 8).
        completion: US dollars per token it makes.
        cached_prompt: US dollars per prompt token that it has kept; None: as ``prompt``.
        setup: seconds until its first token that don't depend on length, seldom exceeded; None: not known.
        per_token: seconds a token it has to read, seldom exceeded.
        rate: tokens per second it decodes; None: not known.
        pre_copy: what ``Request.prefill_only`` does there.
        stops: seconds it goes on behind a cancel, and bills.
    """

    prompt: float
    completion: float
    cached_prompt: float | None = None
    setup: float | None = None
    per_token: float = 0.0
    rate: float | None = None
    pre_copy: PreCopy = "none"
    stops: float = 0.0

    def seconds_to_first_token(self, tokens: float) -> float | None:
        """Seconds to the first token when ``tokens`` are to be read, seldom exceeded (t_m); None: not known."""
        return None if self.setup is None else self.setup + self.per_token * max(0.0, tokens)


def buffer_needed(seconds: float, reader_rate: float) -> int:
    """Tokens that must be buffered so that a reader doesn't notice a pause (equation 6, rounded up).

    Args:
        seconds: of the pause (t_m).
        reader_rate: tokens per second (r_c).
    """
    return math.ceil(round(reader_rate * (seconds + SLACK), 9))


def keeps_up(terms: Terms, reader_rate: float) -> bool:
    """Return True if an endpoint decodes faster than the reader reads; one whose rate isn't known is believed to."""
    return terms.rate is None or terms.rate >= HEADROOM * reader_rate


def tokens_until_buffered(missing: float, source_rate: float, reader_rate: float, per_token: float = 0.0) -> float:
    """Tokens the source makes until ``missing`` more are buffered; inf when that never comes about.

    Args:
        missing: tokens.
        source_rate: tokens per second it makes.
        reader_rate: tokens per second that go out again.
        per_token: seconds by which each of them makes the change longer, because the target has to read it; the buffer must cover that too.
    """
    if missing <= 0:
        return 0.0
    gain = source_rate - reader_rate - reader_rate * per_token * source_rate
    return missing * source_rate / gain if gain > 0 else math.inf


def tokens_until_covered(missing: float, reader_rate: float, per_token: float) -> float:
    """Tokens the source makes until the buffer covers what is left of a change whose reading runs meanwhile.

    The reader takes r_c tokens a second, and each second takes one from the time that is left, so what the source makes is what counts.

    Args:
        missing: tokens the buffer lacks for the whole change.
        reader_rate: tokens per second (r_c).
        per_token: seconds by which each token that is made meanwhile makes the change longer.
    """
    if missing <= 0:
        return 0.0
    return missing / (1.0 - reader_rate * per_token) if reader_rate * per_token < 1.0 else math.inf


def net_saving(
    source: Terms, target: Terms, *, remaining: float, until_change: float, length: float, kept: float = 0.0, overrun: float = 0.0
) -> float:
    """Both sides of equation 4 in US dollars: what moving saves, less what it costs; above zero it pays.

    Args:
        source: who writes now.
        target: who could.
        remaining: expected tokens still to come (l_remaining of equation 5).
        behind: of those, tokens the source makes before the change.
        length: tokens of prompt and answer so far.
        kept: of those, tokens the target has read already.
        overrun: tokens the source makes behind the change, until its cancel takes effect.
    """
    left = max(0.0, remaining - until_change)
    cached = target.prompt if target.cached_prompt is None else target.cached_prompt
    overhead = max(0.0, length + min(until_change, remaining) - kept) * target.prompt
    if target.pre_copy == "warm":
        overhead += kept * cached
    return (source.completion - target.completion) * left - overhead - source.completion * min(overrun, left)


def pre_copy_pays(source: Terms, target: Terms, *, length: float, saved: float, saving: float, is_possible_without: bool) -> bool:
    """Return True if to let the target read ahead.

    Where it keeps what it reads, that costs nothing: every token is read once. A cache that is warmed for money reads everything twice,
    the second time at the cached price, so it pays only if the tokens it saves the source are worth more, or, if there is no other way to
    move, if moving still saves more.

    Args:
        length: tokens of prompt and answer so far.
        saved: tokens the source need not make because the change takes less time.
        saving: US dollars that moving saves when everything is read once (``net_saving``).
        is_possible_without: whether the buffer can ever cover the change otherwise, or not even then.
    """
    if target.pre_copy == "append":
        return saved >= 1.0
    if target.pre_copy == "none":
        return False
    cached = target.prompt if target.cached_prompt is None else target.cached_prompt
    worth = saved * (source.completion - target.completion) if is_possible_without else saving
    return worth > length * cached + target.completion
