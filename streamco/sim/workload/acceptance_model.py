"""Acceptance sequences for pairs nobody has recorded: a two-state Markov chain with another mean in every request, and its fit.

A request has an acceptance of its own, m, drawn from a Beta distribution with the given mean and concentration k: texts differ in how well
a draft model follows them. Within the request a token is accepted or not depending on the token before it alone:

    P(accepted | the one before was) = m + p (1 - m)        P(accepted | it wasn't) = m (1 - p)

so that m stays the mean whatever the persistence p, the autocorrelation at distance d is p^d, and runs are geometric: of accepted tokens
with mean 1 / ((1 - m)(1 - p)), of rejected ones 1 / (m (1 - p)). At p = 0 tokens are independent, as the formulas of speculative
decoding have it. Over all requests the autocorrelation is 1 / (k + 1) + k / (k + 1) p^d: what doesn't fade with the distance is the
requests' own.

``fit_acceptance`` finds mean, concentration and persistence of recorded sequences by maximum likelihood, m integrated out on a grid. How
well that does is a matter of figures, not of the likelihood: ``describe`` gives those that a simulation lives by, the tokens of a round
above all. docs/workloads.md has them for the recorded pairs beside those of the chain.

Confidences are drawn by themselves, from the recorded ones of accepted tokens or of rejected ones; that confidence, too, comes in runs
is not in it. The rank of the target's token where it is rejected is drawn with the recorded shares.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from itertools import pairwise
from random import Random
from typing import Annotated

import numpy as np
from msgspec import Meta, Struct
from numpy.typing import NDArray

from streamco.errors import ConfigError

__all__ = ["AcceptanceMetrics", "AcceptanceOptions", "describe", "draw_accepted", "draw_answer", "fit_acceptance"]

Floats = NDArray[np.float64]
Share = Annotated[float, Meta(ge=0, le=1)]

# Confidences at 17 evenly spaced quantiles, in 255ths, over the packaged traces of Q4_0 for Q8_0 (experiments/fit_acceptance.py)
_OF_ACCEPTED = (11, 71, 102, 126, 146, 166, 186, 203, 219, 231, 239, 245, 249, 252, 254, 255, 255)
_OF_REJECTED = (10, 29, 40, 50, 56, 64, 71, 77, 85, 94, 105, 112, 122, 132, 150, 173, 249)


class AcceptanceOptions(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How a pair's acceptance sequences are made. Defaults are near what was fitted to the packaged traces of Q4_0 for Q8_0.

    Args:
        mean: share of tokens that are accepted.
        concentration: of the requests' own means, k: their variance is mean (1 - mean) / (k + 1). None: all are alike.
        persistence: p, correlation of a token's fate with that of the one before, within a request.
        second, third: of the tokens that aren't accepted, share whose right one is the draft model's second choice, and third.
        is_blind: confidences say nothing: they are drawn as if each token were accepted with chance ``mean``, whether it is or not.

    Raises:
        ConfigError: second and third together above 1.
    """

    mean: Share = 0.8
    concentration: Annotated[float, Meta(gt=0)] | None = 50.0
    persistence: Annotated[float, Meta(ge=0, lt=1)] = 0.03
    second: Share = 0.55
    third: Share = 0.18
    is_blind: bool = False

    def __post_init__(self) -> None:
        if self.second + self.third > 1.0:
            raise ConfigError(f"acceptance: expected second and third to be at most 1 together, got {self.second} and {self.third}")


def draw_answer(options: AcceptanceOptions, tokens: int, rng: Random) -> tuple[bytes, bytes, bytes]:
    """(accepted, confidences, ranks) of an answer; see ``workload.SimulatedRequest``."""
    accepted = draw_accepted(options, tokens, rng)
    drawn = rng.randbytes(tokens)
    of_accepted, of_rejected = drawn.translate(_ACCEPTED_TABLE), drawn.translate(_REJECTED_TABLE)
    seems = [rng.random() < options.mean for _ in accepted] if options.is_blind else accepted
    confidences = bytes([high if good else low for good, high, low in zip(seems, of_accepted, of_rejected, strict=True)])
    ranks = bytes([0 if good else _rank(options, rng.random()) for good in accepted])
    return accepted, confidences, ranks


def _rank(options: AcceptanceOptions, drawn: float) -> int:
    if drawn < options.second:
        return 1
    return 2 if drawn < options.second + options.third else 3


def draw_accepted(options: AcceptanceOptions, tokens: int, rng: Random) -> bytes:
    """Return an acceptance sequence, run by run."""
    mean, spread = options.mean, options.concentration
    if spread is not None and 0.0 < mean < 1.0:
        mean = rng.betavariate(mean * spread, (1.0 - mean) * spread)
    leaves = ((mean * (1.0 - options.persistence)), (1.0 - mean) * (1.0 - options.persistence))  # chances that a run ends, by its kind
    parts, made, kind = [], 0, int(rng.random() < mean)
    while made < tokens:
        run = min(tokens - made, _run(leaves[kind], rng))
        parts.append((b"\0", b"\1")[kind] * run)
        made += run
        kind = 1 - kind
    return b"".join(parts)


def _run(end: float, rng: Random) -> int:
    """Length of a run that ends behind each of its tokens with this chance."""
    if end >= 1.0:
        return 1
    if end < 1e-12:
        return 1 << 40
    return 1 + int(math.log(1.0 - rng.random()) / math.log1p(-end))


def _table(quantiles: Sequence[int]) -> bytes:
    """Of 256 equal shares, in the order of their size: what a drawn byte stands for."""
    steps = len(quantiles) - 1
    positions = [(share + 0.5) / 256 * steps for share in range(256)]
    return bytes(round(quantiles[int(at)] + (at % 1.0) * (quantiles[int(at) + 1] - quantiles[int(at)])) for at in positions)


_ACCEPTED_TABLE, _REJECTED_TABLE = _table(_OF_ACCEPTED), _table(_OF_REJECTED)


class AcceptanceMetrics(Struct, frozen=True, kw_only=True):
    """What acceptance sequences do, whoever made them.

    Args:
        mean: share of tokens accepted.
        spread: standard deviation of the requests' means.
        autocorrelation: at distances from 1 on, over all requests, about the common mean.
        accepted_runs, rejected_runs: mean lengths of runs that neither begin nor end with the sequence.
        long_runs: share of such runs of accepted tokens that are longer than 8.
        round_tokens: by window: tokens of a round, the target's own included, where drafts always have so many tokens and rounds follow
            each other from the beginning of the answer.
    """

    mean: float
    spread: float
    autocorrelation: tuple[float, ...]
    accepted_runs: float
    rejected_runs: float
    long_runs: float
    round_tokens: dict[int, float]


def describe(sequences: Sequence[bytes], *, distances: int = 4, windows: Iterable[int] = (2, 4, 8, 12)) -> AcceptanceMetrics:
    """Return the figures of sequences of 0 and 1.

    Raises:
        ConfigError: there is no token.
    """
    tokens = sum(map(len, sequences))
    if not tokens:
        raise ConfigError("acceptance: expected sequences with tokens, got none")
    mean = sum(map(sum, sequences)) / tokens
    centred = [np.frombuffer(each, np.uint8) - mean for each in sequences if each]
    variance = mean * (1.0 - mean) or 1.0
    products = ([each[:-distance] * each[distance:] for each in centred] for distance in range(1, distances + 1))
    runs = {kind: [run for each in sequences for run in _inner_runs(each, kind)] or [0] for kind in (0, 1)}
    return AcceptanceMetrics(
        mean=mean,
        spread=float(np.std([each.mean() for each in centred])),
        autocorrelation=tuple(float(np.concatenate(each).mean()) / variance for each in products),
        accepted_runs=float(np.mean(runs[1])),
        rejected_runs=float(np.mean(runs[0])),
        long_runs=float(np.mean([run > 8 for run in runs[1]])),
        round_tokens={window: tokens / sum(_rounds(each, window) for each in sequences) for window in windows},
    )


def _inner_runs(sequence: bytes, kind: int) -> list[int]:
    """Lengths; of the first and the last run nobody knows how long they would be."""
    other = bytes([1 - kind])
    return [len(run) for run in sequence.split(other)[1:-1] if run]


def _rounds(sequence: bytes, window: int) -> int:
    """That write all of it."""
    position = rounds = 0
    while position < len(sequence):
        wrong = sequence.find(0, position, position + window)
        position = (position + window if wrong < 0 else wrong) + 1
        rounds += 1
    return rounds


_GRID = 256  # of a request's own mean
_POINTS = 15  # of each parameter, in each of so many turns
_TURNS = 6


def fit_acceptance(sequences: Iterable[bytes]) -> AcceptanceOptions:
    """Mean, concentration and persistence that make these sequences likeliest; the other settings are the defaults.

    A few hundred tokens say little of the concentration: 50 requests or more are wanted.

    Raises:
        ConfigError: fewer than two sequences with two tokens or more.
    """
    counts = np.array([_transitions(each) for each in sequences if len(each) > 1], dtype=float)
    if len(counts) < 2:
        raise ConfigError(f"acceptance: expected at least two sequences of two tokens or more, got {len(counts)}")
    own = (np.arange(_GRID) + 0.5) / _GRID
    centre, width = np.array([0.0, 3.0, 0.45]), np.array([5.0, 4.5, 0.45])  # logit of the mean, logarithm of the concentration, persistence
    for _ in range(_TURNS):
        means, spreads, persistences = (
            np.linspace(middle - half, middle + half, _POINTS) for middle, half in zip(centre, width, strict=True)
        )
        persistences = np.clip(persistences, 0.0, 0.99)
        positions = np.array([(mean, spread) for mean in means for spread in spreads])
        beta = np.exp(positions[:, 1])[:, None] * np.stack([1 / (1 + np.exp(-positions[:, 0])), 1 / (1 + np.exp(positions[:, 0]))], axis=1)
        prior = np.stack([np.log(own), np.log1p(-own)]).T @ (beta - 1.0).T
        prior = np.exp(prior - prior.max(axis=0))
        prior /= prior.sum(axis=0)
        likelihoods = []
        for persistence in persistences:
            chances = counts @ np.log(_chances(own, float(persistence)))
            highest = chances.max(axis=1, keepdims=True)
            likelihoods.append((np.log(np.exp(chances - highest) @ prior + 1e-300) + highest).sum(axis=0))
        best = np.unravel_index(int(np.argmax(likelihoods)), (_POINTS, len(positions)))
        centre = np.array([*positions[best[1]], persistences[best[0]]])
        width = width / 3.0
    return AcceptanceOptions(
        mean=round(float(1 / (1 + np.exp(-centre[0]))), 4),
        concentration=round(float(np.exp(centre[1])), 2),
        persistence=round(float(centre[2]), 4),
    )


def _transitions(sequence: bytes) -> list[int]:
    """Return the counts of: accepted first, rejected first, accepted and rejected after accepted, accepted and rejected after rejected."""
    pairs = [2 * first + second for first, second in pairwise(sequence)]
    return [sequence[0], 1 - sequence[0], pairs.count(3), pairs.count(2), pairs.count(1), pairs.count(0)]


def _chances(own: Floats, persistence: float) -> Floats:
    """Of those six, by a request's own mean."""
    stays, comes = own + persistence * (1 - own), own * (1 - persistence)
    return np.stack([own, 1 - own, stays, 1 - stays, comes, 1 - comes])
