"""The speedup model and the mode switch: whether drafting pays, or one side should generate alone (DSD sections 3.3 and 4.4).

``predict_rates`` models a round. A draft of gamma tokens takes gamma draft steps, then the verdict takes a round trip and a verification,
and the round gives E(alpha, gamma) tokens. DSD's equation 2 is the case without a link. With drafting in parallel, a share ``hit_rate`` of
the rounds begin with the draft steps that were made while the last verdict was out.

``ModeSwitch`` decides the mode by that model, or by a window policy that decides on fused mode itself. Both can be wrong, and acceptance
can't be measured while the target generates alone. So a time account limits the loss, which is not in the paper. Each round is compared
with the time in which the plain remote stream would have given the same tokens:

- Losses are a debt that is paid back with 2 % of the time. Drafting continues only while another round that gives a single token, and the
  return to the stream, would leave the debt within three such rounds: two of the first rounds may well be bad luck.
- If the model speaks against drafting, one round is tried as soon as 1 % of the time since then has paid for the debt and for the round.
  So drafting can come back. What drafting saved before then no longer counts: it is for rounds that fail although the model speaks for
  them.
- Drafting begins if the model speaks for it, and ends if the model expects a tenth less than the stream gives, because a few rounds can be
  bad luck and each change costs a round. Between the two, the account decides.
- At most ten rounds that give a single token are paid in advance, or one and its changes of mode if they cost more. So an hour of code, on
  which drafting saves time, doesn't pay for a minute of prose.
- A round counts as at most ten that give a single token, or as what was paid for it. So a connection that stalls once doesn't keep a pair
  from drafting for minutes.

By this account, apart from stalls, the rate in the long run is never below 0.98 of the plain remote stream, whatever the models do. In the
first 256 tokens of a pair of models it isn't below 0.95.

The paper defines fused mode twice (DSD sections 3.3 and 4.4); here it is the target alone, the remote stream.
"""

from __future__ import annotations

import math
from typing import Literal

from msgspec import Struct
from msgspec.structs import replace

from streamco.config import READING
from streamco.errors import ConfigError
from streamco.policies.acceptance import expected_tokens
from streamco.policies.window import DEFAULT, MAX_WINDOW, WindowState, is_fused
from streamco.profiles.row_costs import RowCosts

__all__ = [
    "Mode",
    "ModeSwitch",
    "Predicted",
    "Rates",
    "RoundConditions",
    "best_window",
    "conditions_of",
    "predict_rates",
    "round_seconds",
]

Mode = Literal["device", "remote", "speculate"]

_LOSS = 0.02  # share of the time that drafting may lose against the plain stream; 0.05 is promised, the rest is for uncounted losses
_PROBE_LOSS = 0.01  # the same for rounds that are tried while the model speaks against drafting
_TRIED = 3.0  # rounds that may fail entirely, if with the return to the stream they take at most
_TRIED_STEPS = 8.0  # this many remote steps (3 % of an answer of 256 tokens), or one round and the return
_STAY = 0.5  # additional rounds that must be allowed to fail before drafting begins again, because changes are expensive
_MOST_ROUNDS = 10  # rounds that may be paid for in advance, by what drafting saved or by time; also what a stall counts as
_DOUBT = 0.1  # share of the remote rate by which the forecast may be lower while drafting continues, since few rounds say little
_PATIENCE = 2  # k of DSD section 4.4: consecutive proposals of another mode until it is accepted


class RoundConditions(Struct, frozen=True, kw_only=True):
    """Inputs of the speedup model; times in seconds.

    Args:
        acceptance: alpha, 0..1.
        window: gamma, draft tokens per round, 1 or more.
        draft_step: time of the draft model for a token.
        remote_step: time between two tokens of the plain remote stream, as they arrive here.
        verify: time of the verifier for a round, including its queue, without the link.
        verify_token: additional time for each draft token.
        rtt: round trip of the link; inf if there is no link.
        round_transfer: time for the bytes of a round that don't depend on the window.
        token_transfer: additional time for each draft token.
        hit_rate: share of rounds after which a pre-drafted branch is adopted, 0..1.
        ahead: mean time by which a round is shorter, because its draft was sent before the verdict on the last one came.
        slowdown: time of a step on all branches together, in steps of the draft alone.
        adopted: measured tokens of an adopted branch; by default as many as all branches together reach during the wait, by ``slowdown``.
        budget: share of draft tokens that are verified, above 0 up to 1; the others cost a draft step each.
        round_tokens: measured tokens of a verified round; None for E(alpha, gamma).
        row_costs: additional time of the verifier by the rows of a round (its draft tokens and one); None if included in ``verify``.
        energy: seconds that the energy of a drafted token is worth to the user; they count as time in ``predict_rates``.
        drafted: measured tokens that a round drafts, including branches; None for ``window``.
    """

    acceptance: float
    window: int
    draft_step: float
    remote_step: float
    verify: float
    verify_token: float = 0.0
    rtt: float = 0.0
    round_transfer: float = 0.0
    token_transfer: float = 0.0
    hit_rate: float = 0.0
    ahead: float = 0.0
    slowdown: float = 1.0
    adopted: float | None = None
    budget: float = 1.0
    round_tokens: float | None = None
    row_costs: RowCosts | None = None
    energy: float = 0.0
    drafted: float | None = None

    def __post_init__(self) -> None:
        """Refuse values that no round can have."""
        if self.window < 1 or self.draft_step <= 0.0 or self.remote_step <= 0.0 or not 0.0 < self.budget <= 1.0 or self.slowdown <= 0.0:
            raise ConfigError(
                "conditions: expected a window >= 1, steps and slowdown above 0 and a budget above 0 up to 1, "
                f"got {self.window}, {self.draft_step}, {self.remote_step}, {self.slowdown} and {self.budget}"
            )

    @property
    def wait(self) -> float:
        """Seconds from the end of a draft to its verdict."""
        rows = 0.0 if self.row_costs is None else self.row_costs.seconds(self.window + 1)
        return self.rtt + self.verify + self.round_transfer + self.window * (self.verify_token + self.token_transfer) + rows


class Rates(Struct, frozen=True):
    """Tokens per second of each generation mode, in which the worth of energy counts as time.

    Args:
        device: the device alone.
        remote: the remote stream alone.
        waiting: drafting, with a wait for each verdict.
        parallel: drafting that continues while the verdict is out.
    """

    device: float
    remote: float
    waiting: float
    parallel: float

    @property
    def speculative(self) -> float:
        """The higher of the two rates of speculation."""
        return max(self.waiting, self.parallel)

    @property
    def best(self) -> float:
        """The highest rate for the server's own text, since its stream is used where drafting doesn't pay."""
        return max(self.speculative, self.remote)


def round_seconds(conditions: RoundConditions, *, is_parallel: bool) -> float:
    """Return the mean seconds of a verified round, from one verdict to the next."""
    drafting = conditions.window * conditions.draft_step
    if math.isinf(conditions.wait):
        return math.inf
    if is_parallel:
        reached = conditions.adopted
        if reached is None:
            reached = int(conditions.wait / (conditions.draft_step * conditions.slowdown) + 1e-9)
        steps = min(conditions.window, reached)
        drafting -= conditions.hit_rate * steps * conditions.draft_step
        return drafting + max(0.0, conditions.wait - conditions.ahead)
    return drafting + conditions.wait


def predict_rates(conditions: RoundConditions) -> Rates:
    """Return the expected tokens per second of each mode; 0 for a mode that needs a link if there is none."""
    has_link = not math.isinf(conditions.rtt)
    remote = 1.0 / conditions.remote_step if has_link else 0.0
    step, energy = conditions.draft_step + conditions.energy, conditions.energy
    if not has_link:
        return Rates(1.0 / step, 0.0, 0.0, 0.0)
    verified, local = conditions.budget, 1.0 - conditions.budget
    given = conditions.round_tokens
    if given is None:  # E(alpha, gamma), DSD equation 1
        given = expected_tokens(conditions.acceptance, conditions.window)
    tokens = verified * given + local * conditions.window
    alone = local * conditions.window * step
    drafted = conditions.window if conditions.drafted is None else max(conditions.window, conditions.drafted)
    waiting = tokens / (verified * (round_seconds(conditions, is_parallel=False) + conditions.window * energy) + alone)
    parallel = tokens / (verified * (round_seconds(conditions, is_parallel=True) + drafted * energy) + alone)
    return Rates(1.0 / step, remote, waiting, parallel)


def best_window(conditions: RoundConditions, *, is_parallel: bool, max_window: int = MAX_WINDOW) -> int:
    """Return the window of 1 to ``max_window`` tokens with the highest predicted rate, the shortest among equals.

    What was measured at one window (``round_tokens``, ``adopted``, ``drafted``) isn't used.
    """

    def rate(window: int) -> float:
        rates = predict_rates(replace(conditions, window=window, round_tokens=None, adopted=None, drafted=None))
        return rates.parallel if is_parallel else rates.waiting

    return max(range(1, max_window + 1), key=lambda window: (rate(window), -window))


def conditions_of(state: WindowState) -> RoundConditions:
    """Return the model's inputs from a window policy's; acceptance and times must be known."""
    assert state.acceptance is not None
    return RoundConditions(
        acceptance=state.acceptance,
        window=max(1, state.previous),
        draft_step=state.draft_step,
        remote_step=state.tpot,
        verify=state.wait if state.row_costs is None else state.fixed_wait,
        hit_rate=state.hit_rate,
        slowdown=state.slowdown,
        row_costs=state.row_costs,
    )


class ModeSwitch:
    """Decides before each round whether to draft, or which side generates alone. Each pair of models has one, kept across answers.

    If the answer must be lossless, only the remote stream can replace drafting, because the device's own tokens are not the target's. The
    mode is then ``remote`` even without a link, and failover handles the answer. In selective mode the device replaces drafting, because
    the remote stream would exceed the budget. That happens without a link, or if speculation is slower than both ``min_rate`` and the
    device.

    Args:
        is_lossless: the answer must be the target's (budget 1).
        min_rate: tokens per second above which a selective answer keeps speculation, for the sake of its quality.

    Attributes:
        mode: the current mode.
        seconds: total time recorded.
        lost_seconds: how much longer drafting took than the plain remote stream; below 0 if it took less.
        probes: number of rounds tried against the forecast.
    """

    def __init__(self, *, is_lossless: bool, min_rate: float = READING) -> None:
        self.is_lossless = is_lossless
        self.min_rate = min_rate
        self.mode: Mode = "speculate"
        self.seconds = self.lost_seconds = 0.0
        self.probes = 0
        self._votes = 0
        self._is_new = True
        self._is_probe = False
        self._is_drafting = False
        self._worst = 0.0  # seconds that a round loses if it gives a single token
        self._debt = 0.0  # seconds of loss that are not paid back; below 0 if paid in advance
        self._probe_debt = 0.0  # the same, since the model began to speak against drafting
        self._most_paid = math.inf  # seconds that may be paid in advance

    def choose(
        self,
        conditions: RoundConditions,
        *,
        window: float | None = None,
        policy_decides: bool = False,
        opening: float = 0.0,
        return_time: float = 0.0,
        at_once: bool = False,
    ) -> Mode:
        """Return the mode of the next round. While one side generates alone, call it every few tokens.

        Args:
            conditions: recent measurements.
            window: window that the policy proposes; None for ``conditions.window``.
            policy_decides: True if the policy decides on fused mode (``window.DecidesFusedMode``); if False, the speedup model does.
            opening: additional seconds of the first round, because the verifier must first read the stream's tokens.
            return_time: additional seconds for a stream to begin after a failed attempt to draft, for the same reason.
            at_once: the conditions belong to the very draft that would be sent, so there is no need to wait for a second opinion.
        """
        rates = predict_rates(conditions)
        self._is_probe = False
        if not self.is_lossless:
            pays = rates.speculative > 0.0 and rates.speculative >= min(self.min_rate, rates.device)
            return self._vote("speculate" if pays else "device", at_once=rates.speculative <= 0.0)
        if rates.speculative <= 0.0:
            self._is_drafting = False
            return self._vote("remote", at_once=True)
        energy = conditions.window * conditions.energy
        self._worst = max(0.0, round_seconds(conditions, is_parallel=False) + energy - conditions.remote_step)
        was_drafting = self.mode == "speculate" and not self._is_new
        least = rates.remote * (1.0 - _DOUBT) if self._is_drafting else rates.remote
        pays = (policy_decides or rates.speculative > least) and not is_fused(conditions.window if window is None else window)
        mode = self._vote("speculate" if pays else "remote", at_once=at_once)
        self._is_drafting = mode == "speculate" and self._has_credit(conditions, opening)
        probe = self._worst + opening + return_time
        self._most_paid = max(_MOST_ROUNDS * self._worst, probe)
        if mode == "remote" and was_drafting:
            self._probe_debt = max(0.0, self._debt)
        self._is_probe = mode == "remote" and not pays and self._probe_debt + probe <= 0.0
        return "speculate" if self._is_drafting or self._is_probe else "remote"

    def _has_credit(self, conditions: RoundConditions, opening: float) -> bool:
        """Return True if the loss stays within its limit even if a round fails and the stream is then opened."""
        way_back = max(0.0, conditions.wait - conditions.remote_step)  # until a stream's first token
        debt = self._debt + self._worst
        if not self._is_drafting and self.seconds:
            debt += _STAY * self._worst
        may_fail = debt <= _TRIED * self._worst
        return may_fail and debt + opening + way_back <= max(_TRIED_STEPS * conditions.remote_step, self._worst + way_back)

    def record(self, mode: Mode, *, seconds: float, tokens: int, remote_step: float, energy: float = 0.0, is_return: bool = False) -> None:
        """Record a round, or some tokens that one side generated alone.

        Args:
            mode: mode in which they were generated.
            seconds: time that they took, including the change of modes.
            tokens: number of tokens.
            remote_step: seconds between two tokens of a plain remote stream in that time.
            energy: seconds that the energy of what was drafted is worth, which count as lost like others.
            is_return: it was the wait for the stream after drafting, which isn't a stall however long it takes.
        """
        self.seconds += seconds
        lost = 0.0
        if mode == "speculate":
            self.probes += self._is_probe and tokens > 0
            lost = seconds + energy - tokens * remote_step
        counted = lost if is_return else min(lost, max(self._most_paid, _MOST_ROUNDS * remote_step))
        self.lost_seconds += lost
        self._debt = max(-self._most_paid, self._debt + counted - _LOSS * seconds)
        self._probe_debt = max(-self._most_paid, self._probe_debt + counted - _PROBE_LOSS * seconds)

    def _vote(self, mode: Mode, *, at_once: bool = False) -> Mode:
        """Return the current mode until another is proposed twice in a row; the very first proposal is accepted at once."""
        if mode == self.mode:
            self._votes = 0
        else:
            self._votes += 1
            if at_once or self._is_new or self._votes >= _PATIENCE:  # hysteresis, k proposals in a row (DSD section 4.4)
                self.mode, self._votes = mode, 0
        self._is_new = False
        return self.mode


class Predicted(Struct, frozen=True, tag="predicted"):
    """The window with the highest rate of ``predict_rates``, for the recent acceptance rate, times and hit rate.

    Neither paper has it: DSD's baselines have a fixed window, or one token more or less than the last one, and its learned policy needs
    training. In simulations this window comes within 10 % of the best fixed one, whatever the link, the acceptance rate and the step times.

    Args:
        first: window of the first round, and while the times aren't known, tokens.
        min_window, max_window: bounds of the window, tokens. 1 would be fused mode, which ``ModeSwitch`` decides.
    """

    first: int = DEFAULT
    min_window: int = 2
    max_window: int = MAX_WINDOW

    def __post_init__(self) -> None:
        """Refuse bounds that exclude each other."""
        if not 1 <= self.min_window <= self.first <= self.max_window:
            raise ConfigError(
                "predicted window: expected 1 <= min_window <= first <= max_window, "
                f"got {self.min_window}, {self.first} and {self.max_window}"
            )

    @property
    def name(self) -> str:
        """Name of the policy, ``predicted``."""
        return "predicted"

    def propose(self, state: WindowState) -> float:
        """Return the window with the highest predicted rate."""
        if state.acceptance is None or state.draft_step <= 0.0 or state.wait <= 0.0 or state.tpot <= 0.0:
            return float(self.first)
        return float(max(self.min_window, best_window(conditions_of(state), is_parallel=True, max_window=self.max_window)))
