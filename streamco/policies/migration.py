"""Migration: whether an answer should move to a cheaper endpoint, and when the reader won't notice (DiSCo 4.3, equations 4 to 6).

The *source* writes the answer and the *target* would continue it. A move pays if the target saves more on the remaining tokens than the
move costs (equation 4, ``net_saving``). The cost is that the target has to read the prompt and the answer so far, and that the source
continues at its own price until the reader's buffer covers the change. That takes B = r_c t_m tokens (equation 6, ``buffer_needed``), where
r_c is the reader's speed in tokens per second and t_m the time in seconds from the request at the target to its first token.

There are two transfer rules. ``full-buffer`` is the paper's rule: the source stops when the buffer holds B tokens, and only then is the
target asked. ``pre-copy`` works like the migration of virtual machines: the target reads the existing text while the source continues,
then reads the text written meanwhile, and takes over when only a few tokens are left to read. So t_m and B
are small, and the source has few more tokens to write.

The quality of a moved answer is between the qualities of the two models (equation 7). So a move from a strong model to a weak one saves
money at the reader's expense. The paper doesn't discuss this. Here the caller decides (``barred_moves``).
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping
from typing import Literal

from msgspec import Struct

from streamco.events import PreCopy

__all__ = [
    "BarredMove",
    "SERVER_STOPS",
    "UNKNOWN_RATE",
    "UNKNOWN_SERVER_SETUP",
    "Terms",
    "TransferRule",
    "are_known",
    "barred_moves",
    "buffer_needed",
    "keeps_up",
    "net_saving",
    "pre_copy_pays",
    "tokens_until_buffered",
    "tokens_until_covered",
]

TransferRule = Literal["pre-copy", "full-buffer"]

SLACK = 0.1  # seconds added to every estimate, for two event loops and a network turn
HEADROOM = 1.1  # a target must decode this much faster than the reader reads
UNKNOWN_RATE = 20.0  # tokens per second, used before a measurement; phones decode 14 to 22 (DiSCo 5.1), servers more

SERVER_STOPS = 0.1  # seconds; a round trip, after which a server notices that the connection was closed
UNKNOWN_SERVER_SETUP = 3.0  # seconds; 99 % of 3,657 first tokens of 60 services came within 2.3 s (thefastest.ai, 2024)


class Terms(Struct, frozen=True, kw_only=True):
    """Costs and times of one endpoint.

    Args:
        prompt: US dollars per prompt token, including energy (unified cost, equation 8).
        completion: US dollars per generated token.
        cached_prompt: US dollars per cached prompt token. None means the price of ``prompt``.
        setup: high estimate of the seconds to the first token, without the part that depends on length. None if not known.
        per_token: high estimate of the seconds that the endpoint takes to read a token.
        rate: tokens per second that the endpoint generates, or None if not known.
        pre_copy: effect of ``Request.prefill_only`` at the endpoint.
        stops: seconds for which the endpoint continues to generate, and to bill, after it was cancelled.
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
        """Return t_m, a high estimate of the seconds to the first token if ``tokens`` must be read, or None if not known."""
        return None if self.setup is None else self.setup + self.per_token * max(0.0, tokens)


def buffer_needed(seconds: float, reader_rate: float) -> int:
    """Return B = r_c t_m, rounded up: how many tokens must be buffered so that the reader doesn't notice a pause (equation 6).

    Args:
        seconds: t_m, the length of the pause, to which ``SLACK`` is added.
        reader_rate: r_c, the reader's speed in tokens per second.
    """
    return math.ceil(round(reader_rate * (seconds + SLACK), 9))


def keeps_up(terms: Terms, reader_rate: float) -> bool:
    """Return True if an endpoint generates faster than the reader reads, or if its rate isn't known."""
    return terms.rate is None or terms.rate >= HEADROOM * reader_rate


def tokens_until_buffered(missing: float, source_rate: float, reader_rate: float, per_token: float = 0.0) -> float:
    """Return how many tokens the source generates until ``missing`` more are buffered, or inf if that never happens.

    Args:
        missing: number of tokens that the buffer lacks.
        source_rate: tokens per second that the source generates.
        reader_rate: r_c, tokens per second that leave the buffer.
        per_token: seconds that each generated token adds to t_m, because the target has to read it. The buffer must cover them, too.
    """
    if missing <= 0:
        return 0.0
    gain = source_rate - reader_rate - reader_rate * per_token * source_rate
    return missing * source_rate / gain if gain > 0 else math.inf


def tokens_until_covered(missing: float, reader_rate: float, per_token: float) -> float:
    """Return how many tokens the source generates until the buffer covers the rest of a change, while the target is already reading.

    In each second, the reader takes r_c tokens, and the rest of the change needs r_c tokens less. So only the generated tokens count.

    Args:
        missing: number of tokens that the buffer lacks for the whole change.
        reader_rate: r_c, the reader's speed in tokens per second.
        per_token: seconds that each token generated meanwhile adds to the change.
    """
    if missing <= 0:
        return 0.0
    return missing / (1.0 - reader_rate * per_token) if reader_rate * per_token < 1.0 else math.inf


def net_saving(
    source: Terms, target: Terms, *, remaining: float, until_change: float, length: float, kept: float = 0.0, overrun: float = 0.0
) -> float:
    """Return what a move saves minus what it costs, in US dollars (both sides of equation 4). Above 0 the move pays.

    Args:
        source: the endpoint that is writing now.
        target: the endpoint that would continue.
        remaining: l_remaining of equation 5, the expected number of tokens still to come.
        until_change: number of the remaining tokens that the source generates before the change.
        length: number of tokens in the prompt and the answer so far.
        kept: number of these tokens that the target has already read.
        overrun: number of tokens that the source generates after the change, until its cancellation takes effect.
    """
    left = max(0.0, remaining - until_change)
    # Equation 4: (c_source - c_target) l_remaining against the cost of the target's prompt and of the source's last tokens.
    cached = target.prompt if target.cached_prompt is None else target.cached_prompt
    overhead = max(0.0, length + min(until_change, remaining) - kept) * target.prompt
    if target.pre_copy == "warm":
        overhead += kept * cached
    return (source.completion - target.completion) * left - overhead - source.completion * min(overrun, left)


def pre_copy_pays(source: Terms, target: Terms, *, length: float, saved: float, saving: float, is_possible_without: bool) -> bool:
    """Return True if a pre-copy pays, in which the target reads the text before the change.

    If the target keeps the tokens that it reads ("append"), each token is read once and the pre-copy costs nothing. If it only warms a
    cache ("warm"), everything is read and paid for twice, the second time at the cached price. That pays only if the tokens that the source
    saves are worth more or, if there is no other way to move, if the whole move still saves more.

    Args:
        source: the endpoint that is writing now.
        target: the endpoint that would continue.
        length: number of tokens in the prompt and the answer so far.
        saved: number of tokens that the source needn't generate because the change takes less time.
        saving: US dollars that the move saves if everything is read once (``net_saving``).
        is_possible_without: True if the buffer can cover the change without a pre-copy.
    """
    if target.pre_copy == "append":
        return saved >= 1.0
    if target.pre_copy == "none":
        return False
    cached = target.prompt if target.cached_prompt is None else target.cached_prompt
    worth = saved * (source.completion - target.completion) if is_possible_without else saving
    return worth > length * cached + target.completion


class BarredMove(Struct, frozen=True):
    """A planned move that must not happen.

    Args:
        source: the endpoint that would hand over.
        target: the endpoint that would take over.
        reason: why the move must not happen, worded to follow "because".
        is_asked: True if the caller's setting bars the move, or if nothing is known in its favour. False if known figures bar it without
            a setting, or if the setting can't be followed.
    """

    source: str
    target: str
    reason: str
    is_asked: bool


def are_known(names: Iterable[str], quality: Mapping[str, float]) -> bool:
    """Return True if the quality of all these endpoints is known."""
    return all(name in quality for name in names)


def barred_moves(
    moves: Iterable[tuple[str, str]],
    quality: Mapping[str, float],
    min_quality: float | None,
    *,
    trusted: Collection[tuple[str, str]] = (),
) -> list[BarredMove]:
    """Return the moves that must not happen.

    Args:
        moves: (source, target) for each move that would save money.
        quality: measured quality of each endpoint, 0 or more, on one scale.
        min_quality: the share of the source's quality that the target needs. 0 lets any target take over. None means no setting: a target
            that is known to be worse is then barred, and so is a target of unknown quality unless the move is trusted.
        trusted: moves that can't make an answer worse even if no quality is known: to the same model, or from a device to a server.
    """
    if min_quality == 0:
        return []
    found = (_barred(source, target, quality, min_quality, is_trusted=(source, target) in trusted) for source, target in moves)
    return [each for each in found if each is not None]


def _barred(source: str, target: str, quality: Mapping[str, float], min_quality: float | None, *, is_trusted: bool) -> BarredMove | None:
    unknown = [name for name in (source, target) if name not in quality]
    if unknown:
        if min_quality is None:
            reason = f"whether the model of {target} is as good is not known (MigrationOptions(min_quality=0) allows it)"
            return None if is_trusted else BarredMove(source, target, reason, is_asked=True)
        return BarredMove(
            source, target, f"the quality of {' and '.join(unknown)} is not known (min_quality={min_quality:g})", is_asked=False
        )
    of_source, of_target = quality[source], quality[target]
    if of_target >= of_source * (1.0 if min_quality is None else min_quality):
        return None
    figures = f"{target} has a quality of {of_target:g} and {source} of {of_source:g}"
    if min_quality is None:
        return BarredMove(source, target, f"{figures} (MigrationOptions(min_quality=...) allows it)", is_asked=False)
    return BarredMove(source, target, f"{figures}, less than min_quality={min_quality:g} of it", is_asked=True)
