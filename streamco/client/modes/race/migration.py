"""Planned hand-overs in the client: plans them for each answer, and learns from each race that has ended.

The decisions are made in ``streamco.policies.migration`` and ``streamco.core.race.migration``.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from copy import deepcopy
from itertools import permutations

from streamco.client.modes.base import CostOf
from streamco.config import Options
from streamco.core.race.answer_lengths import AnswerLengths
from streamco.core.race.machine import RaceMachine
from streamco.core.race.migration import MigrationPlan
from streamco.core.race.switch_latency import SwitchLearner
from streamco.endpoints.base import Endpoint, Kind
from streamco.endpoints.model_identity import have_same_model
from streamco.errors import ConfigError
from streamco.policies.migration import SERVER_STOPS, BarredMove, Terms, TransferRule, are_known, barred_moves
from streamco.profiles import RemainingLength
from streamco.profiles.profile import check_quality

__all__ = ["MigrationOptions", "MigrationPlanner", "trusted_moves", "wants_moves"]


class MigrationOptions(Options, frozen=True, kw_only=True):
    """How answers move to a cheaper endpoint while they are written (docs/migration.md).

    Args:
        rule: "pre-copy": the target reads the answer in advance while the source continues; "full-buffer": the target begins to read when
            the source stops, which by then has written enough text to keep the reader busy (DiSCo 4.3).
        max_migrations: maximum number of planned hand-overs per answer; 0 for none.
        unpaced: True to move unpaced answers, too, as if somebody read them at ``Race.reader_rate``. A program that reads tokens as
            fast as they arrive would notice that the cheaper endpoint is slower, so by default only answers with a fixed pace move.
        min_quality: quality that the next endpoint needs, as a share (0 to 1) of the quality of each endpoint that has written the answer
            so far. 0 allows any quality. With None, an answer moves only to an endpoint that is known to be as good, to the same model, or
            from a device to a server.
        quality: measured quality by endpoint name, 0 or more, all on one scale (docs/research/quality.md); by default the profile's.

    Raises:
        ConfigError: the rule is unknown, or a number is out of range.
    """

    rule: TransferRule = "pre-copy"
    max_migrations: int = 1
    unpaced: bool = False
    min_quality: float | None = None
    quality: Mapping[str, float] | None = None

    def __post_init__(self) -> None:
        if self.rule not in {"pre-copy", "full-buffer"}:
            raise ConfigError(f'migration: expected the rule "pre-copy" or "full-buffer", got {self.rule!r}')
        if self.max_migrations < 0:
            raise ConfigError(f"migration: expected max_migrations of 0 or more, got {self.max_migrations!r}")
        if self.min_quality is not None and not (isinstance(self.min_quality, int | float) and 0.0 <= self.min_quality <= 1.0):
            raise ConfigError(f"migration: expected min_quality of 0 to 1 or None, got {self.min_quality!r}")
        if self.quality is not None and not isinstance(self.quality, Mapping):
            raise ConfigError(f"migration: quality: expected numbers by endpoint name or None, got {type(self.quality).__name__}")
        check_quality(self.quality or {}, where="migration: quality")


class MigrationPlanner:
    """Plans the hand-overs of one client's answers from what it has learned.

    Args:
        prior: lengths of answers that an earlier client has seen, or None.
        quality: measured quality of endpoints, for options that don't set it, or None.
    """

    def __init__(self, prior: RemainingLength | None = None, quality: Mapping[str, float] | None = None) -> None:
        self.quality = dict(quality or {})
        self._switching = SwitchLearner()
        self._prior = prior
        self._lengths = AnswerLengths(prior=prior)

    @property
    def answers(self) -> RemainingLength | None:
        """Lengths of answers, for the next client; None if neither this client nor an earlier one has seen an answer."""
        return self._lengths.estimate().compress() if len(self._lengths) else self._prior

    def expected_tokens(self, limit: int | None) -> float:
        """Return how many tokens an answer is expected to have. ``limit`` is the maximum, or None if it isn't known."""
        return self._lengths.estimate().expected(0.0, None if limit is None else float(limit))

    def rate(self, endpoint: Endpoint) -> float | None:
        """Return how many tokens per second an endpoint reached in three quarters of its answers, or None if that isn't known."""
        return self._switching.timing(endpoint.name, is_device=endpoint.kind == "device").rate

    def copy(self) -> MigrationPlanner:
        """Return a planner that starts with what this one knows, and learns separately."""
        return deepcopy(self)

    def plan(
        self,
        options: MigrationOptions,
        endpoints: Iterable[Endpoint],
        cost: CostOf,
        *,
        prompt_tokens: int,
        pace: float | None,
        reader_rate: float,
        capacity: int,
        limit: int | None,
        constrained: Kind | None = None,
        trusted: Collection[tuple[str, str]] = (),
    ) -> MigrationPlan | None:
        """Return the plan for an answer's hand-overs, or None if it won't be moved.

        Args:
            options: whether and how answers move.
            endpoints: endpoints that may write this answer.
            cost: returns the cost of their tokens.
            prompt_tokens: the prompt's length.
            pace: tokens per second at the reader, or None if unpaced.
            reader_rate: tokens per second of the reader, or of the virtual reader.
            capacity: how many tokens a source may be ahead of the reader.
            limit: the answer's maximum number of tokens, or None if it isn't known.
            constrained: the side that the budget limits, or None.
            trusted: the endpoints' ``trusted_moves``.
        """
        if not wants_moves(options, pace):
            return None
        endpoints = list(endpoints)
        terms = self._known_terms(endpoints, cost)
        pairs = permutations((endpoint.name for endpoint in endpoints), 2)  # a source of any price counts, because of failures
        moves = barred_moves(pairs, self.qualities(options), options.min_quality, trusted=trusted)
        barred = frozenset((move.source, move.target) for move in moves)
        if barred.issuperset(_possible_moves(endpoints, terms)):  # no endpoint that can continue is cheaper and good enough
            return None
        return MigrationPlan(
            terms=terms,
            lengths=self._lengths.estimate(),
            prompt_tokens=prompt_tokens,
            reader_rate=reader_rate,
            capacity=capacity,
            rule=options.rule,
            max_migrations=options.max_migrations,
            constrained=frozenset(endpoint.name for endpoint in endpoints if endpoint.kind == constrained),
            max_tokens=limit,
            barred=barred,
        )

    def obstacle(self, options: MigrationOptions, endpoints: Iterable[Endpoint], cost: CostOf, *, pace: float | None) -> str:
        """Return why an answer won't move to a cheaper endpoint, as a clause; "" if it may, none is cheaper, or the options forbid it.

        Args:
            options: whether and how answers move.
            endpoints: endpoints that may write this answer.
            cost: returns the cost of their tokens.
            pace: tokens per second at the reader, or None if unpaced.
        """
        endpoints = list(endpoints)
        if not wants_moves(options, pace) or len(endpoints) < 2:
            return ""
        terms = self._known_terms(endpoints, cost)
        if _possible_moves(endpoints, terms):
            return ""
        names = [each.name for each in endpoints]
        unknown = [name for name in names if name not in terms] if len(terms) < 2 else []
        unable = list(dict.fromkeys(target for _, target in _saving_moves(terms)))  # otherwise the move would be possible
        if unknown and not any(_can_continue(each) for each in endpoints):
            unknown, unable = [], names
        reasons = [f"the cost of tokens at {' and '.join(unknown)} is not known"] if unknown else []
        return " and ".join([*reasons, f"{' and '.join(unable)} can't continue an answer"] if unable else reasons)

    def unmetered(self, endpoints: Iterable[Endpoint], cost: CostOf) -> list[str]:
        """Return the names of devices that can continue an answer but whose energy is unknown, so that their tokens count as free."""
        devices = [endpoint for endpoint in endpoints if endpoint.kind == "device" and _can_continue(endpoint)]
        return [device.name for device in devices if cost(device, 0, 1, 0).total is None]

    def barred(
        self,
        options: MigrationOptions,
        endpoints: Iterable[Endpoint],
        cost: CostOf,
        *,
        pace: float | None,
        trusted: Collection[tuple[str, str]] = (),
    ) -> list[BarredMove]:
        """Return the moves that would save money but aren't allowed, because the target isn't good enough.

        The arguments are the same as for ``plan``.
        """
        if not wants_moves(options, pace):
            return []
        endpoints = list(endpoints)
        moves = _possible_moves(endpoints, self._known_terms(endpoints, cost))
        return barred_moves(moves, self.qualities(options), options.min_quality, trusted=trusted)

    def is_unknown(self, options: MigrationOptions, source: str, target: str) -> bool:
        """Return True if these endpoints' quality is unknown and the caller hasn't set a rule about quality."""
        return options.min_quality is None and not are_known((source, target), self.qualities(options))

    def qualities(self, options: MigrationOptions) -> Mapping[str, float]:
        """Return the quality of endpoints, from the options or else the profile."""
        return self.quality if options.quality is None else options.quality

    def record(self, machine: RaceMachine, devices: frozenset[str], prompt_tokens: int) -> None:
        """Record a race that has ended: learn the switch latencies and the answer's length."""
        self._switching.record((*machine.past_attempts, *machine.attempts.values()), devices, prompt_tokens)
        tokens = machine.meter.tokens + machine.dropped
        if tokens and machine.finish_reason in {"stop", "length", None}:
            self._lengths.observe(tokens, is_censored=machine.finish_reason != "stop")

    def _known_terms(self, endpoints: Iterable[Endpoint], cost: CostOf) -> dict[str, Terms]:
        """Return the terms of the endpoints with known prices, by name."""
        return {endpoint.name: known for endpoint in endpoints if (known := self._terms(endpoint, cost)) is not None}

    def _terms(self, endpoint: Endpoint, cost: CostOf) -> Terms | None:
        """Return an endpoint's terms, or None if a price isn't known. A device whose energy isn't known costs nothing."""
        prompt, completion, cached = (cost(endpoint, *tokens).known for tokens in ((1, 0, 0), (0, 1, 0), (1, 0, 1)))
        if prompt is None or completion is None:
            return None
        timing = self._switching.timing(endpoint.name, is_device=endpoint.kind == "device")
        setup, per_token = timing.start or (None, 0.0)
        return Terms(
            prompt=prompt,
            completion=completion,
            cached_prompt=cached,
            setup=setup,
            per_token=per_token,
            rate=timing.rate,
            pre_copy=endpoint.capabilities.pre_copy,
            stops=0.0 if endpoint.kind == "device" else SERVER_STOPS,
        )


def trusted_moves(endpoints: Sequence[Endpoint], model: str | None) -> set[tuple[str, str]]:
    """Return the source and target of each move that makes no answer worse, whatever the qualities are; see ``barred_moves``.

    Args:
        endpoints: the endpoints that may write the answer.
        model: the remote model that the request names; None uses each server's own.
    """
    return {
        (source.name, target.name)
        for source, target in permutations(endpoints, 2)
        if (source.kind == "device" and target.kind == "server") or have_same_model(source, target, asked=model)
    }


def wants_moves(options: MigrationOptions, pace: float | None) -> bool:
    """Return True if the options say that an answer with this pace should move."""
    return options.max_migrations > 0 and (pace is not None or options.unpaced)


def _can_continue(endpoint: Endpoint) -> bool:
    return endpoint.capabilities.continuation != "none"


def _saving_moves(terms: Mapping[str, Terms]) -> list[tuple[str, str]]:
    """Return the source and target of each move to an endpoint with cheaper tokens."""
    return [(source, target) for source, dear in terms.items() for target, cheap in terms.items() if cheap.completion < dear.completion]


def _possible_moves(endpoints: Iterable[Endpoint], terms: Mapping[str, Terms]) -> list[tuple[str, str]]:
    """Return the source and target of each move to a cheaper endpoint that can continue an answer."""
    able = {endpoint.name for endpoint in endpoints if _can_continue(endpoint)}
    return [(source, target) for source, target in _saving_moves(terms) if target in able]
