"""Rejection forecast: where the verifier will probably reject, and what to pre-draft (Synera section 4.4, stall-free parallel inference).

The number r of accepted draft tokens is a capped geometric variable, and a rejection is less likely at a confident token:

    weight(r = t) = (1 - alpha) alpha^t (1 - c_t),  t = 0 .. gamma - 1

where alpha is the acceptance, c_t the confidence of token t and gamma the window. The code deviates from the paper in these points:

- The paper has alpha^gamma for a rejection at the last position, but that is the probability that no token is rejected. Here the
  acceptance of all tokens is a separate outcome, and the last position has (1 - alpha) alpha^t like the others.
- No single confidence adjusts that outcome. It gets the factor of an average token, 1 - c, where c is the mean confidence. So a draft of
  average tokens keeps the base distribution, and a confident draft is more likely to be accepted whole. Without a measured mean, c = alpha.
- The paper draws r* from this distribution, and one correction from the top 3 (``sample_branch``). Here all outcomes are ranked, because
  the likeliest outcome is right more often than a draw.

If the acceptance of every single token is known, ``chain_rejection`` computes the distribution directly: the first rejection is at a
position if that token isn't accepted but all tokens before it are. ``bench/timed/speculate.py`` compares both.

A *branch* is one expected verdict, with its position of rejection and its correction, and the tokens drafted after it. ``rank_branches``
gives the probability of each branch. ``schedule_branches`` chooses how many branches are drafted until the verdict comes, and how many of
them in one batch. If a batch of two takes as long as two batches of one, the likelier branch goes first.
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
    "sample_branch",
]

ALTERNATIVES = 3  # corrections at each position; most are among the draft model's top 3 (section 4.4)


class RejectionForecast(Struct, frozen=True):
    """The probability of each possible verdict on a draft.

    Args:
        rejections: for each position of the draft, the probability that the first rejected token is there, shape (window,).
        accept_all: probability that no token is rejected. Together with ``rejections`` it adds up to 1.
    """

    rejections: tuple[float, ...]
    accept_all: float

    @property
    def window(self) -> int:
        """Number of tokens in the draft. As a position, it means that all tokens are accepted."""
        return len(self.rejections)

    @property
    def likeliest(self) -> int:
        """The most likely number of accepted tokens (r*). Among equals it is the highest, because its branch shares the most work."""
        outcomes = (*self.rejections, self.accept_all)
        return max(range(len(outcomes)), key=lambda position: (outcomes[position], position))

    def draw(self, rng: Random) -> int:
        """Return the paper's r*, drawn at random from the distribution. ``likeliest`` is right more often."""
        sums = list(accumulate((*self.rejections, self.accept_all)))
        return min(bisect_right(sums, rng.random() * sums[-1]), self.window)


class Branch(Struct, frozen=True):
    """One expected verdict.

    Args:
        position: number of accepted draft tokens, which is the draft's length if all are accepted.
        token: the token that the verifier adds, or None for the draft model's own next token, which isn't computed yet.
        probability: probability of this verdict, and so of adopting the branch.
    """

    position: int
    token: int | None
    probability: float


class PreDraft(Struct, frozen=True):
    """A plan of what to draft during the wait for a verdict.

    Args:
        branches: branches to draft, likeliest first. Empty if no branch is worth a step, or there is no time for a step.
        steps: number of tokens to draft on each branch. Time may run out before the last branches have them.
        width: number of branches in one batch. The next branches follow when these are done.
        first_width: number of branches that are drafted before all others, 0 or 1.
    """

    branches: tuple[Branch, ...] = ()
    steps: int = 0
    width: int = 1
    first_width: int = 0

    @property
    def hit_rate(self) -> float:
        """Probability that one of the branches is adopted."""
        return sum(branch.probability for branch in self.branches)

    @property
    def tokens(self) -> int:
        """Maximum number of tokens to compute. Most of them are discarded."""
        return len(self.branches) * self.steps


def forecast_rejection(acceptance: float, confidences: Sequence[float], mean_confidence: float | None = None) -> RejectionForecast:
    """Return the distribution of the first rejection: capped geometric, adjusted by the tokens' confidences.

    Args:
        acceptance: alpha, the probability that a draft token is accepted, 0..1.
        confidences: c_t, the draft model's probability of each draft token. May be empty.
        mean_confidence: c, measured mean confidence of draft tokens, 0..1. None means alpha.

    Raises:
        ConfigError: the acceptance or the mean confidence is outside 0..1.
    """
    check_share("acceptance", acceptance)
    mean = acceptance if mean_confidence is None else mean_confidence
    check_share("mean confidence", mean)
    # Section 4.4: the capped geometric distribution, (1 - alpha) alpha^t, then the factor 1 - c_t.
    base = [(1.0 - acceptance) * acceptance**position for position in range(len(confidences))]
    all_accepted: float = acceptance ** len(confidences)
    adjusted = [weight * (1.0 - min(1.0, max(0.0, sure))) for weight, sure in zip(base, confidences, strict=True)]
    total = sum(adjusted) + all_accepted * (1.0 - mean)
    if total <= 0.0:  # every token that could be rejected has confidence 1, so the adjustment leaves nothing
        return RejectionForecast(tuple(base), all_accepted)
    return RejectionForecast(tuple(weight / total for weight in adjusted), all_accepted * (1.0 - mean) / total)


def chain_rejection(acceptance_by_token: Sequence[float]) -> RejectionForecast:
    """Return the distribution of the first rejection from the acceptance of every single token.

    Args:
        acceptance_by_token: acceptance of each draft token if all tokens before it are accepted, 0..1, shape (window,).

    Raises:
        ConfigError: an acceptance is outside 0..1.
    """
    rejections, reached = [], 1.0
    for acceptance in acceptance_by_token:
        check_share("acceptance", acceptance)
        rejections.append(reached * (1.0 - acceptance))
        reached *= acceptance
    return RejectionForecast(tuple(rejections), reached)


def rank_branches(
    forecast: RejectionForecast,
    draft: Sequence[int],
    candidates: Sequence[Sequence[tuple[int, float]]],
    acceptance: float,
    alternatives: int = ALTERNATIVES,
) -> list[Branch]:
    """Return all branches of a draft, likeliest first.

    A rejected token is replaced by another candidate for its position, in proportion to the draft model's probabilities. After an accepted
    draft the verifier adds its own token: the draft model's best with probability alpha, otherwise another candidate, also in proportion.

    Args:
        forecast: the draft's rejection forecast.
        draft: the draft's ids, shape (window,).
        candidates: the draft model's likeliest tokens at each position as (id, probability), best first, with probabilities over the whole
            vocabulary. There is one row more than draft tokens if the position after the draft has already been computed.
        acceptance: alpha, 0..1.
        alternatives: maximum number of candidates for each position that get a branch.

    Raises:
        ConfigError: the numbers of tokens and rows don't fit.
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


def sample_branch(
    forecast: RejectionForecast,
    draft: Sequence[int],
    candidates: Sequence[Sequence[tuple[int, float]]],
    rng: Random,
    alternatives: int = ALTERNATIVES,
) -> Branch:
    """Draw the paper's single branch: r* from the forecast, and the correction from the draft model's likeliest tokens.

    Args:
        forecast, draft, candidates: as for ``rank_branches``.
        rng: random source for both draws.
        alternatives: number of candidates from which the correction is drawn, in proportion to their probabilities.
    """
    position = forecast.draw(rng)
    if position == forecast.window:
        return Branch(position, None, forecast.accept_all)
    replacements = _replacements(position, draft[position], forecast.rejections[position], candidates[position], alternatives)
    if not replacements:  # the draft model sees no other token here
        return Branch(forecast.window, None, forecast.accept_all)
    return rng.choices(replacements, [branch.probability for branch in replacements])[0]


def schedule_branches(
    branches: Sequence[Branch],
    *,
    seconds: float,
    step_times: Sequence[float],
    window: int,
    rtt: float = 0.0,
    max_ahead: int = 0,
    energy: float = 0.0,
) -> PreDraft:
    """Choose which branches to draft, how many tokens on each, and how many branches in one batch.

    With more branches, one is adopted more often, but a step of a larger batch takes longer, so each branch has fewer tokens when the
    verdict comes. An adopted branch saves the steps that were made, up to the next window. The plan maximises the mean saving. A draft
    that is sent ahead saves additional time, from its end to the verdict, but at most a round trip. So the likeliest branch may be drafted
    before all others. The worth of the energy for dropped tokens is subtracted, so that a branch that is hardly ever adopted isn't
    drafted.

    Args:
        branches: the branches, likeliest first (``rank_branches``).
        seconds: time for drafting, usually until the verdict is expected.
        step_times: seconds that one step on 1, 2, ... branches in one batch takes. Its length is the maximum number of branches.
        window: number of tokens in the next draft.
        rtt: seconds that a round trip takes, which is the most that sending ahead can save.
        max_ahead: maximum number of drafts that are sent ahead.
        energy: seconds that the energy of a drafted token is worth.

    Raises:
        ConfigError: a step takes no time.
    """
    if any(time <= 0.0 for time in step_times):
        raise ConfigError(f"branches: expected step times above 0 s, got {list(step_times)}")
    allowed = branches[: len(step_times)]
    best, most = PreDraft(), 0.0
    if not allowed:
        return best
    dropped = energy / step_times[0]  # steps that a dropped token's energy is worth

    def worth(branch: Branch) -> float:
        return branch.probability - (1.0 - branch.probability) * dropped

    ahead = max_ahead if rtt > 0.0 else 0
    allowed = [branch for place, branch in enumerate(allowed) if place < ahead or worth(branch) > 0.0]
    for first_width, width in product((0, 1) if ahead else (0,), range(1, len(allowed) + 1)):
        sizes = chain((first_width,) if first_width else (), repeat(width))
        steps, left = _steps(len(allowed), sizes, seconds, step_times, window)
        saved = sum(worth(branch) * made for branch, made in zip(allowed, steps, strict=False))
        spared = zip(allowed[:max_ahead], left, strict=False)
        saved += sum(branch.probability * min(rtt, time) for branch, time in spared) / step_times[0]
        if saved > most + 1e-12:
            best, most = PreDraft(tuple(allowed[: len(steps)]), max(steps), width, first_width), saved
    return best


def _steps(count: int, sizes: Iterator[int], seconds: float, step_times: Sequence[float], window: int) -> tuple[list[int], list[float]]:
    """Return how many tokens each branch gets, and how many seconds are left when it has them.

    Branches are drafted in batches of the given ``sizes``, one batch after the other. Branches that get no tokens are left out.
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
    """Return branches for the likeliest candidates other than ``token``. They divide ``probability`` in proportion to their shares."""
    own = sum(share for choice, share in candidates if choice == token)
    others = [(choice, share) for choice, share in candidates if choice != token and share > 0.0]
    left = max(1.0 - own, sum(share for _, share in others))
    return [Branch(position, choice, probability * share / left) for choice, share in others[: max(0, alternatives)]]
