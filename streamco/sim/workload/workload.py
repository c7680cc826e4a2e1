"""The workload of a simulated fleet: requests with lengths, arrivals, and the acceptance of every draft token (DSD section 3.2).

Requests come from a trace, or from a generator of lengths and acceptance sequences. Their arrivals are chosen separately: from the trace,
a Poisson process, or the gaps of a recorded service, or each request comes when another ends. Lengths with acceptances, arrivals, and
devices each have their own random source, so that one of them can be changed while the others stay the same.

Requests are made one by one. Only a recorded service's gaps are kept in memory, and a trace's rows if they are shuffled or used more than
once.
"""

from __future__ import annotations

import math
from array import array
from collections.abc import Iterator
from itertools import count, islice, repeat, takewhile
from random import Random
from typing import Annotated, Literal

from msgspec import Meta, Struct

from streamco.errors import ConfigError
from streamco.sim.workload.acceptance_model import AcceptanceOptions, draw_answer
from streamco.sim.workload.trace_files import TraceRow, read_gaps, read_lengths, read_trace

__all__ = ["ArrivalOptions", "LengthOptions", "LogNormal", "SimulatedRequest", "WorkloadOptions", "read_requests"]

Count = Annotated[int, Meta(ge=1)]
Rate = Annotated[float, Meta(gt=0)]

_OF_255 = [0.25 / 255.0, *(count / 255.0 for count in range(1, 256))]  # a probability that was rounded to 0 counts as slightly more


class SimulatedRequest(Struct, frozen=True, kw_only=True):
    """A request, and the acceptance of drafts for its answer.

    The draft model's choice at each position is known if the text before it is the target's. That is enough, because a verdict ends with
    the first token that isn't the target's.

    Args:
        number: number of the request, from 0, in the order of arrival.
        arrival: arrival in seconds.
        prompt_tokens: tokens of the prompt.
        output_tokens: tokens of the answer, including the end token.
        accepted: for each output position, 1 if the draft model chooses the target's token after the target's own text, or else 0.
        confidences: for each output position, the draft model's probability of its own choice; empty if not recorded.
        runners_up: for each output position, the probability of its second choice; empty if not recorded.
        ranks: for each output position, the rank of the target's token among the draft model's choices, 0 if it is accepted, 9 for the
            tenth or later (3 for the fourth or later in older records); empty if not recorded.
        attention: for each output position the same number of values: the share of the draft model's attention in that token's row that
            goes to itself and the 0, 1, 2, ... tokens before it, in 255ths; empty if not recorded.
        device: number of the device that makes it, or None to let the fleet draw one.
        common_tokens: number of tokens that all prompts begin with; a device or server reads them once.
    """

    number: int
    arrival: float
    prompt_tokens: int
    output_tokens: int
    accepted: bytes
    confidences: tuple[float, ...] = ()
    runners_up: tuple[float, ...] = ()
    ranks: bytes = b""
    attention: bytes = b""
    device: int | None = None
    common_tokens: int = 0


class LogNormal(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A log-normal distribution of lengths.

    Args:
        median: tokens.
        sigma: standard deviation of the natural logarithm.
    """

    median: Rate
    sigma: Annotated[float, Meta(ge=0)]


class LengthOptions(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The distribution of a length in tokens, either uniform or log-normal.

    Args:
        uniform: smallest and largest length; these two and all lengths in between are equally likely.
        log_normal: a log-normal distribution, rounded, and clipped to ``least`` and ``most``.
        least, most: bounds of the log-normal distribution, in tokens.

    Raises:
        ConfigError: neither or both are given, or the bounds are in the wrong order.
    """

    uniform: tuple[Count, Count] | None = None
    log_normal: LogNormal | None = None
    least: Count = 1
    most: Count = 8192

    def __post_init__(self) -> None:
        if (self.uniform is None) == (self.log_normal is None):
            raise ConfigError("lengths: expected a number of tokens, or one of uniform and log_normal, got none or both")
        first, last = self.uniform or (self.least, self.most)
        if first > last:
            raise ConfigError(f"lengths: expected the least before the most, got {first} and {last}")

    def draw(self, rng: Random) -> int:
        """Draw a length in tokens."""
        if self.uniform is not None:
            return rng.randint(*self.uniform)
        if self.log_normal is None:
            raise AssertionError("lengths have one distribution")
        drawn = rng.lognormvariate(math.log(self.log_normal.median), self.log_normal.sigma)
        return min(self.most, max(self.least, round(drawn)))


class ArrivalOptions(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The arrivals of requests, one of three kinds.

    Args:
        poisson_per_s: mean number per second; gaps are exponential.
        azure: a CSV file of a recorded service's arrivals (column ``arrival_s`` or ``arrival_ms``). Its gaps are used in order, from a
            position that depends on the seed, and again from the beginning after the last.
        rate_scale: factor on the rate of ``azure``.
        closed: number of requests that are always in flight. All arrive at 0, and the fleet starts the next one when one ends.

    Raises:
        ConfigError: none or several of the three are given.
    """

    poisson_per_s: Rate | None = None
    azure: str | None = None
    rate_scale: Rate = 1.0
    closed: Count | None = None

    def __post_init__(self) -> None:
        given = [name for name in ("poisson_per_s", "azure", "closed") if getattr(self, name) is not None]
        if len(given) != 1:
            raise ConfigError(f"arrivals: expected trace or one of poisson_per_s, azure and closed, got {', '.join(given) or 'none'}")
        if self.rate_scale != 1.0 and self.azure is None:
            raise ConfigError(f"arrivals: rate_scale: only valid with azure, got {given[0]}")

    def times(self, rng: Random) -> Iterator[float]:
        """Return an endless iterator over arrivals in seconds.

        Raises:
            ConfigError: the recorded arrivals can't be read.
        """
        if self.poisson_per_s is not None:
            return _poisson(self.poisson_per_s, rng)
        if self.azure is not None:
            return _recorded_times(read_gaps(self.azure), rng, self.rate_scale)
        return repeat(0.0)


class WorkloadOptions(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A workload, as an experiment's file describes it; see docs/workloads.md.

    Args:
        trace: name of a packaged trace or path of a JSON-lines file, or None to generate requests.
        requests: number of requests, or None to use each row of the trace once. A shorter trace is repeated in a different order.
        arrivals: ``trace`` for arrivals as recorded, in the trace's order. With other arrivals, the rows are shuffled even the first time.
        prompt, output: without a trace, the number of tokens, or its distribution.
        lengths: without a trace, a CSV file with prompt and answer in each row, from which rows are drawn instead of ``prompt`` and
            ``output``.
        acceptance: without a trace, the parameters of the acceptance sequences.
        horizon_s: seconds during which requests arrive, however many there are; the last ones are answered afterwards. Only with
            ``poisson_per_s`` or ``azure``. With None, the number of requests determines the duration.
        warm_up_s: seconds at the beginning during which nothing is measured, while the simulated world fills up and its clients learn.
        system_prompt: number of tokens before each prompt, the same for all; each device and each server reads them once.

    Raises:
        ConfigError: the settings contradict each other.
    """

    trace: str | None = None
    requests: Count | None = None
    arrivals: Literal["trace"] | ArrivalOptions = "trace"
    prompt: Count | LengthOptions | None = None
    output: Count | LengthOptions | None = None
    lengths: str | None = None
    acceptance: AcceptanceOptions | None = None
    horizon_s: Rate | None = None
    warm_up_s: Annotated[float, Meta(ge=0)] = 0.0
    system_prompt: Annotated[int, Meta(ge=0)] = 0

    def __post_init__(self) -> None:
        if self.horizon_s is not None:
            self._check_horizon(self.horizon_s)
        generated = [name for name in ("prompt", "output", "lengths", "acceptance") if getattr(self, name) is not None]
        if self.trace is not None:
            if generated:
                raise ConfigError(f"workload: expected a trace or {', '.join(generated)}, got both")
            return
        if (self.lengths is None) == (self.prompt is None) or (self.prompt is None) != (self.output is None):
            raise ConfigError(f"workload: expected a trace, or prompt and output, or lengths, got {', '.join(generated) or 'none'}")
        if self.requests is None and self.horizon_s is None:
            raise ConfigError("workload: requests: expected a number if there is no trace, got none")
        if self.arrivals == "trace":
            raise ConfigError("workload: arrivals: expected poisson_per_s, azure or closed if there is no trace, got trace")

    def _check_horizon(self, horizon: float) -> None:
        if self.arrivals == "trace" or self.in_flight is not None:
            raise ConfigError("workload: horizon_s: only valid with arrivals poisson_per_s or azure")
        if self.warm_up_s >= horizon:
            raise ConfigError(f"workload: warm_up_s: expected less than the horizon, {horizon:g} s, got {self.warm_up_s:g}")

    @property
    def in_flight(self) -> int | None:
        """Number of requests that are always in flight, or None if requests have their own arrivals."""
        return self.arrivals.closed if isinstance(self.arrivals, ArrivalOptions) else None


def read_requests(options: WorkloadOptions, *, devices: int | None = None, seed: int = 0) -> Iterator[SimulatedRequest]:
    """Yield the requests in the order of their arrival, made one by one.

    With ``closed`` arrivals, all have arrival 0, and the fleet takes the next one when another ends.

    Args:
        options: options of the workload.
        devices: number of devices, or None to give requests no device. Each request gets a random device (DSD section 3.2), or its row's
            ``drafter_id`` if the arrivals are the trace's.
        seed: seed of all random draws; equal seeds give equal requests.

    Raises:
        ConfigError: a file can't be read or used, or a row that is reached is invalid.
    """
    if devices is not None and devices < 1:
        raise ConfigError(f"devices: expected at least 1, got {devices}")
    rng = Random(f"{seed} devices")
    for number, (arrival, device, row) in enumerate(_arriving(options, devices, seed)):
        drawn = rng.randrange(devices) if device is None and devices is not None else device
        yield SimulatedRequest(
            number=number,
            arrival=arrival,
            prompt_tokens=options.system_prompt + row.prompt_tokens,
            output_tokens=row.output_tokens,
            accepted=row.accepted,
            confidences=_shares(row.confidences),
            runners_up=_shares(row.runners_up),
            ranks=row.ranks,
            attention=row.attention,
            device=drawn,
            common_tokens=options.system_prompt,
        )


def _shares(recorded: bytes) -> tuple[float, ...]:
    return tuple(map(_OF_255.__getitem__, recorded))


def _arriving(options: WorkloadOptions, devices: int | None, seed: int) -> Iterator[tuple[float, int | None, TraceRow]]:
    """Yield (arrival, device or None, row) of each request."""
    if not isinstance(options.arrivals, ArrivalOptions):
        if options.trace is None:
            raise AssertionError("options are checked when they are made")
        return islice(_as_recorded(options.trace, devices, options.requests, Random(f"{seed} rows")), options.requests)
    is_endless = options.requests is not None or options.horizon_s is not None
    rows = _generated(options, seed) if options.trace is None else _shuffled(options.trace, Random(f"{seed} rows"), is_endless=is_endless)
    arrivals = options.arrivals.times(Random(f"{seed} arrivals"))
    if options.horizon_s is not None:
        arrivals = takewhile(options.horizon_s.__gt__, arrivals)
    return ((arrival, None, row) for arrival, row in islice(zip(arrivals, rows, strict=False), options.requests))


def _as_recorded(trace: str, devices: int | None, requests: int | None, rng: Random) -> Iterator[tuple[float, int | None, TraceRow]]:
    """Yield the trace's requests, and then repeat its arrivals after the last one, with the rows in a different order each time."""
    kept: list[TraceRow] = []
    last = 0.0
    for number, row in enumerate(read_trace(trace), 1):
        if row.arrival is None or row.arrival < last:
            got = "none" if row.arrival is None else f"{1000 * row.arrival:g} after {1000 * last:g}"
            raise ConfigError(f"{trace}, request {number}: arrival_time_ms: expected times that ascend, or other arrivals, got {got}")
        if devices is not None and row.device is not None and row.device >= devices:
            raise ConfigError(
                f"{trace}, request {number}: drafter_id: expected one below the number of devices, {devices}, got {row.device}"
            )
        last = row.arrival
        yield last, row.device if devices is not None else None, row
        if requests is not None:
            kept.append(row)
    if requests is None:
        return
    first = kept[0].arrival or 0.0
    period = (last - first) * len(kept) / max(1, len(kept) - 1)  # the next repetition begins a mean gap after the last arrival
    for turn in count(1):
        shuffled = rng.sample(kept, len(kept))
        for placed, row in zip(kept, shuffled, strict=True):
            yield (placed.arrival or 0.0) + turn * period, placed.device if devices is not None else None, row


def _shuffled(trace: str, rng: Random, *, is_endless: bool) -> Iterator[TraceRow]:
    rows = list(read_trace(trace))
    for _ in count() if is_endless else range(1):
        rng.shuffle(rows)
        yield from rows


def _generated(options: WorkloadOptions, seed: int) -> Iterator[TraceRow]:
    acceptance, rng = options.acceptance or AcceptanceOptions(), Random(f"{seed} acceptance")
    for prompt, output in _lengths(options, Random(f"{seed} rows")):
        accepted, confidences, ranks = draw_answer(acceptance, output, rng)
        yield TraceRow(prompt_tokens=prompt, output_tokens=output, accepted=accepted, confidences=confidences, ranks=ranks)


def _lengths(options: WorkloadOptions, rng: Random) -> Iterator[tuple[int, int]]:
    """Yield (prompt, output) in tokens, endlessly."""
    if options.lengths is not None:
        prompts, outputs = read_lengths(options.lengths)
        while True:
            position = rng.randrange(len(prompts))
            yield prompts[position], outputs[position]
    while True:
        yield _length(options.prompt, rng), _length(options.output, rng)


def _length(of: int | LengthOptions | None, rng: Random) -> int:
    if of is None:
        raise AssertionError("options are checked when they are made")
    return of if isinstance(of, int) else of.draw(rng)


def _poisson(rate: float, rng: Random) -> Iterator[float]:
    now = 0.0
    while True:
        now += rng.expovariate(rate)
        yield now


def _recorded_times(gaps: array[float], rng: Random, rate: float) -> Iterator[float]:
    """Yield arrivals from 0 on, cycling through the gaps from a random position."""
    position, now = rng.randrange(len(gaps)), 0.0
    while True:
        yield now
        now += gaps[position] / rate
        position = (position + 1) % len(gaps)
