"""Where the verifier will most likely reject, and what to draft meanwhile (Synera section 4.4).

The number of accepted draft tokens is a capped geometric variable; a confident token is a less likely place of rejection:

    weight(r = t) = (1 - alpha) alpha^t (1 - c_t),  t = 0 .. window - 1

The paper has alpha^window for a rejection at the last position, which is the probability that nothing is rejected. Here accepting all is an
outcome of its own, and the last position has (1 - alpha) alpha^t like the others. No single confidence adjusts that outcome, so it gets the
factor of an ordinary token, 1 - c with c the mean confidence; then a draft of ordinary tokens has the base distribution, a sure one is
more likely to be accepted whole. Without a measured mean, c = alpha: a draft model that is as sure as it is right.

If the acceptance of each token is known by itself, ``chain_rejection`` needs no such form: the first rejection is at a position if all
tokens before it are accepted and it is not. ``bench/speculate.py`` compares both.

A *branch* is a guess of the whole verdict, where it rejects and what it puts there, and the draft goes on behind it. ``rank_branches``
says how likely each guess is, ``schedule_branches`` how many are drafted in the time the verdict takes, and how many of them side by side:
where a batch of two costs as much as two of one, the likelier goes first.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from itertools import accumulate, chain, product, repeat
from random import Random

from msgspec import Struct

from streamco.config import check_share
from streamco.errors import ConfigError

__all__ = [
    "ALTERNATIVES",
    "Branch",
    "PreDraft",
    "RejectionForecast",
    "schedule_branches",
    "chain_rejection",
    "forecast_rejection",
    "rank_branches",
]

ALTERNATIVES = 3  # of each position; most corrections lie within the draft model's top 3 (section 4.4)


class RejectionForecast(Struct, frozen=True):
    """How likely each verdict is.

    Args:
        rejections: probability that the first rejected token is at this position of the draft, shape (window,).
        accept_all: probability that none is; all of them add up to 1.
    """

    rejections: tuple[float, ...]
    accept_all: float

    @property
    def window(self) -> int:
        """Tokens of the draft; as a position it means that all are accepted."""
        return len(self.rejections)

    @property
    def likeliest(self) -> int:
        """The most likely number of accepted tokens (r*); of equal ones the highest, whose branch shares the most work."""
        outcomes = (*self.rejections, self.accept_all)
        return max(range(len(outcomes)), key=lambda position: (outcomes[position], position))

    def draw(self, rng: Random) -> int:
        """Return the paper's r*, sampled from the distribution; ``likeliest`` is right more often."""
        sums = list(accumulate((*self.rejections, self.accept_all)))
        return min(bisect_right(sums, rng.random() * sums[-1]), self.window)


class Branch(Struct, frozen=True):
    """One guess of a verdict.

    Args:
        position: draft tokens that are accepted; the draft's length: all.
        token: what the verifier puts behind them; None: whatever the draft model itself says next, not yet computed.
        probability: that both are so, and the branch is adopted.
    """

    position: int
    token: int | None
    probability: float


class PreDraft(Struct, frozen=True):
    """What to draft while the verdict is out.

    Args:
        branches: likeliest first; empty: nothing is worth a step, or there is no time for one.
        steps: tokens to draft on each of them; time may end before the last ones have so many.
        width: so many are drafted side by side, and when they are done the next ones.
        lead: so many come before all others.
    """

    branches: tuple[Branch, ...] = ()
    steps: int = 0
    width: int = 1
    lead: int = 0

    @property
    def hit_rate(self) -> float:
        """Probability that one of the branches is adopted."""
        return sum(branch.probability for branch in self.branches)

    @property
    def tokens(self) -> int:
        """Tokens to compute at most, the most of them in vain."""
        return len(self.branches) * self.steps


def forecast_rejection(acceptance: float, confidences: Sequence[float], mean_confidence: float | None = None) -> RejectionForecast:
    """Return the confidence-adjusted capped geometric distribution of the first rejection.

    Args:
        acceptance: alpha, the probability that a draft token is accepted, 0..1.
        confidences: c_t, the draft model's probability of each draft token; empty: none.
        mean_confidence: of draft tokens in general, measured; None: alpha.

    Raises:
        ConfigError: an acceptance or a mean confidence outside 0..1.
    """
    check_share("acceptance", acceptance)
    mean = acceptance if mean_confidence is None else mean_confidence
    check_share("mean confidence", mean)
    base = [(1.0 - acceptance) * acceptance**position for position in range(len(confidences))]
    all_accepted: float = acceptance ** len(confidences)
    adjusted = [weight * (1.0 - min(1.0, max(0.0, sure))) for weight, sure in zip(base, confidences, strict=True)]
    total = sum(adjusted) + all_accepted * (1.0 - mean)
    if total <= 0.0:  # every possible place of rejection is certain of itself: the adjustment has nothing to say
        return RejectionForecast(tuple(base), all_accepted)
    return RejectionForecast(tuple(weight / total for weight in adjusted), all_accepted * (1.0 - mean) / total)


def chain_rejection(acceptance_by_token: Sequence[float]) -> RejectionForecast:
    """Return the distribution of the first rejection where each token's chance to be accepted is known.

    Args:
        chances: of each draft token, if all in front of it are accepted, 0..1, shape (window,).

    Raises:
        ConfigError: one outside 0..1.
    """
    rejections, reached = [], 1.0
    for chance in acceptance_by_token:
        check_share("chance", chance)
        rejections.append(reached * (1.0 - chance))
        reached *= chance
    return RejectionForecast(tuple(rejections), reached)


def rank_branches(
    forecast: RejectionForecast,
    draft: Sequence[int],
    candidates: Sequence[Sequence[tuple[int, float]]],
    acceptance: float,
    alternatives: int = ALTERNATIVES,
) -> list[Branch]:
    """Return every branch there is, likeliest first.

    A rejected token is replaced by another candidate of its position, in proportion to the draft model's probabilities. Behind an accepted
    draft the verifier adds a token of its own: the draft model's best with probability alpha, else another one, likewise.

    Args:
        forecast: of this draft.
        draft: its ids, shape (window,).
        candidates: the draft model's likeliest (id, probability) at each position, best first, probabilities of the whole vocabulary. One
            row more than the draft where the position behind it was computed already.
        acceptance: alpha.
        alternatives: candidates of a position that are worth a branch.

    Raises:
        ConfigError: the numbers of tokens and of rows don't fit.
    """
    window = forecast.window
    if len(draft) != window or len(candidates) not in {window, window + 1} or alternatives < 0:
        raise ConfigError(
            f"branches: expected {window} draft tokens, as many rows or one more, and alternatives >= 0, "
            f"got {len(draft)}, {len(candidates)} and {alternatives}"
        )
    branches: list[Branch] = []
    for position, probability in enumerate(forecast.rejections):
        branches += _replacements(position, draft[position], probability, candidates[position], alternatives)
    if len(candidates) == window or not candidates[window]:
        branches.append(Branch(window, None, forecast.accept_all * acceptance))
    else:
        best = candidates[window][0][0]
        branches.append(Branch(window, best, forecast.accept_all * acceptance))
        branches += _replacements(window, best, forecast.accept_all * (1.0 - acceptance), candidates[window], alternatives - 1)
    return sorted((branch for branch in branches if branch.probability > 0.0), key=lambda branch: (-branch.probability, -branch.position))


def schedule_branches(
    branches: Sequence[Branch], *, seconds: float, step_times: Sequence[float], window: int, rtt: float = 0.0, max_ahead: int = 0
) -> PreDraft:
    """Choose which branches to draft, how far, and how many side by side.

    More branches hit more often, but a batch of them takes longer a step, so each gets less far before the verdict comes. A hit saves the
    steps that were made, up to the next draft's length; what counts is the mean of that. A draft that is sent ahead saves more: what is
    left of the time until the verdict when it is ready, up to a round trip. So the likeliest branch may come before all others.

    Args:
        branches: likeliest first (``rank_branches``).
        seconds: the compute allowance, as a rule until the verdict is expected.
        step_times: seconds for one token on each of 1, 2, ... branches in one batch; as long as the most branches allowed.
        window: tokens of the next draft.
        rtt: seconds that a draft saves which is sent ahead.
        max_ahead: so many are.

    Raises:
        ConfigError: a step that takes no time.
    """
    if any(time <= 0.0 for time in step_times):
        raise ConfigError(f"branches: expected step times above 0 s, got {list(step_times)}")
    allowed = branches[: len(step_times)]
    best, most = PreDraft(), 0.0
    for lead, width in product((0, 1) if max_ahead and rtt > 0.0 else (0,), range(1, len(allowed) + 1)):
        sizes = chain((lead,) if lead else (), repeat(width))
        steps, left = _steps(len(allowed), sizes, seconds, step_times, window)
        saved = sum(branch.probability * made for branch, made in zip(allowed, steps, strict=False))
        spared = zip(allowed[:max_ahead], left, strict=False)
        saved += sum(branch.probability * min(rtt, time) for branch, time in spared) / step_times[0]
        if saved > most + 1e-12:
            best, most = PreDraft(tuple(allowed[: len(steps)]), max(steps), width, lead), saved
    return best


def _steps(count: int, sizes: Iterator[int], seconds: float, step_times: Sequence[float], window: int) -> tuple[list[int], list[float]]:
    """Tokens that each branch gets, in groups side by side, one after the other, and the seconds left when it has them.

    Branches that get none are left out.
    """
    steps: list[int] = []
    spare: list[float] = []
    left = max(0.0, seconds)
    while len(steps) < count:
        size = min(next(sizes), count - len(steps))
        made = min(window, int(left / step_times[size - 1] + 1e-9))
        if made < 1:
            break
        left -= made * step_times[size - 1]
        steps += [made] * size
        spare += [left] * size
    return steps, spare


def _replacements(
    position: int, token: int, probability: float, candidates: Sequence[tuple[int, float]], alternatives: int
) -> list[Branch]:
    """Branches for the likeliest candidates other than ``token``, each with its share of what the model leaves to others."""
    own = sum(share for choice, share in candidates if choice == token)
    others = [(choice, share) for choice, share in candidates if choice != token and share > 0.0]
    left = max(1.0 - own, sum(share for _, share in others))
    return [Branch(position, choice, probability * share / left) for choice, share in others[: max(0, alternatives)]]
