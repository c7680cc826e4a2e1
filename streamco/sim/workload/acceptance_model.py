"""A model of acceptance sequences for model pairs without a recording: a two-state Markov chain with its own mean in every request.

A request has its own acceptance m, drawn from a Beta distribution with the given mean and concentration k, because a draft model predicts
some texts better than others. Within the request, whether a token is accepted depends only on the token before it:

    P(accepted | the one before was) = m + p (1 - m)        P(accepted | it wasn't) = m (1 - p)

So m stays the mean for every persistence p, and the autocorrelation at distance d is p^d. Runs are geometric: runs of accepted tokens have
the mean 1 / ((1 - m)(1 - p)), and runs of rejected ones 1 / (m (1 - p)). At p = 0 tokens are independent, as the formulas of speculative
decoding assume. Over all requests the autocorrelation is 1 / (k + 1) + k / (k + 1) p^d: the part that doesn't fade with the distance comes
from the requests' own means.

``fit_acceptance`` finds mean, concentration and persistence of recorded sequences by maximum likelihood, with m integrated out on a grid.
The likelihood doesn't show how good a fit is for simulations. ``describe`` gives the metrics that matter there, above all the tokens per
round. ``python -m bench.data.fit_acceptance`` compares them for the recorded pairs and for the chain.

Confidences are drawn independently, from the recorded confidences of accepted or rejected tokens. The model ignores that confidences come
in runs, too. The rank of the target's token, if the draft model's is rejected, is drawn with the recorded shares.
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

# Confidences at 17 evenly spaced quantiles, in 255ths, over the packaged traces of Q4_0 for Q8_0 (bench/data/fit_acceptance.py)
_OF_ACCEPTED = (11, 71, 102, 126, 146, 166, 186, 203, 219, 231, 239, 245, 249, 252, 254, 255, 255)
_OF_REJECTED = (10, 29, 40, 50, 56, 64, 71, 77, 85, 94, 105, 112, 122, 132, 150, 173, 249)


class AcceptanceOptions(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The parameters of a pair's acceptance sequences. The defaults are close to a fit to the packaged traces of Q4_0 drafts for Q8_0.

    Args:
        mean: share of tokens that are accepted.
        concentration: k, concentration of the requests' own means; their variance is mean (1 - mean) / (k + 1). None if all are equal.
        persistence: p, correlation between the acceptance of a token and of the token before it, within a request.
        second, third: shares of the rejected tokens for which the target's token is the draft model's second choice, and its third.
        is_blind: True if confidences carry no information, so they are drawn as if each token were accepted with probability ``mean``.

    Raises:
        ConfigError: ``second`` and ``third`` together are above 1.
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
    """Return (accepted, confidences, ranks) of an answer; see ``workload.SimulatedRequest``."""
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
    """Draw an acceptance sequence of ``tokens`` bytes, run by run, with 1 for accepted and 0 for rejected."""
    mean, spread = options.mean, options.concentration
    if spread is not None and 0.0 < mean < 1.0:
        mean = rng.betavariate(mean * spread, (1.0 - mean) * spread)
    leaves = ((mean * (1.0 - options.persistence)), (1.0 - mean) * (1.0 - options.persistence))  # probability that a run ends, by its kind
    parts, made, kind = [], 0, int(rng.random() < mean)
    while made < tokens:
        run = min(tokens - made, _run(leaves[kind], rng))
        parts.append((b"\0", b"\1")[kind] * run)
        made += run
        kind = 1 - kind
    return b"".join(parts)


def _run(end: float, rng: Random) -> int:
    """Return the length of a run that ends after each of its tokens with this probability."""
    if end >= 1.0:
        return 1
    if end < 1e-12:
        return 1 << 40
    return 1 + int(math.log(1.0 - rng.random()) / math.log1p(-end))


def _table(quantiles: Sequence[int]) -> bytes:
    """Return a translation table that turns uniform random bytes into values with these evenly spaced quantiles."""
    steps = len(quantiles) - 1
    positions = [(share + 0.5) / 256 * steps for share in range(256)]
    return bytes(round(quantiles[int(at)] + (at % 1.0) * (quantiles[int(at) + 1] - quantiles[int(at)])) for at in positions)


_ACCEPTED_TABLE, _REJECTED_TABLE = _table(_OF_ACCEPTED), _table(_OF_REJECTED)


class AcceptanceMetrics(Struct, frozen=True, kw_only=True):
    """The metrics of acceptance sequences, recorded or drawn.

    Args:
        mean: share of accepted tokens.
        spread: standard deviation of the requests' means.
        autocorrelation: autocorrelation at distances 1, 2, ... over all requests, about the common mean.
        accepted_runs, rejected_runs: mean lengths of runs that neither begin nor end with the sequence.
        long_runs: share of these runs of accepted tokens that are longer than 8.
        round_tokens: mean tokens of a round by window, including the target's own token. All drafts are as long as the window, and rounds
            follow each other from the beginning of the answer.
    """

    mean: float
    spread: float
    autocorrelation: tuple[float, ...]
    accepted_runs: float
    rejected_runs: float
    long_runs: float
    round_tokens: dict[int, float]


def describe(sequences: Sequence[bytes], *, distances: int = 4, windows: Iterable[int] = (2, 4, 8, 12)) -> AcceptanceMetrics:
    """Return the metrics of sequences of 0 and 1.

    Raises:
        ConfigError: the sequences have no tokens.
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
    """Return the lengths of runs, without the first and the last run, which may be cut off."""
    other = bytes([1 - kind])
    return [len(run) for run in sequence.split(other)[1:-1] if run]


def _rounds(sequence: bytes, window: int) -> int:
    """Return the number of rounds that write the whole answer."""
    position = rounds = 0
    while position < len(sequence):
        wrong = sequence.find(0, position, position + window)
        position = (position + window if wrong < 0 else wrong) + 1
        rounds += 1
    return rounds


_GRID = 256  # points for a request's own mean
_POINTS = 15  # points for each parameter in a turn
_TURNS = 6  # each turn searches a third of the previous range


def fit_acceptance(sequences: Iterable[bytes]) -> AcceptanceOptions:
    """Return the options with the likeliest mean, concentration and persistence for these sequences, and defaults for the other options.

    The concentration needs 50 requests or more, because a few hundred tokens say little about it.

    Raises:
        ConfigError: there are fewer than two sequences with two tokens or more.
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
    """Return six counts: accepted and rejected first, accepted and rejected after accepted, accepted and rejected after rejected."""
    pairs = [2 * first + second for first, second in pairwise(sequence)]
    return [sequence[0], 1 - sequence[0], pairs.count(3), pairs.count(2), pairs.count(1), pairs.count(0)]


def _chances(own: Floats, persistence: float) -> Floats:
    """Return the probabilities of the six transitions in ``_transitions``, by a request's own mean."""
    stays, comes = own + persistence * (1 - own), own * (1 - persistence)
    return np.stack([own, 1 - own, stays, 1 - stays, comes, 1 - comes])
