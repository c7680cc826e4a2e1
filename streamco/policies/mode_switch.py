"""The speedup model and the mode switch: whether drafting pays, or one side should generate alone (DSD sections 3.3 and 4.4).

``predict_rates`` models a round. A draft of gamma tokens takes gamma draft steps, then the verdict takes a round trip and a verification,
and the round gives E(alpha, gamma) tokens. DSD's equation 2 is the case without a link. With drafting in parallel, a share ``hit_rate`` of
the rounds begin with the draft steps that were made during the wait for the last verdict.

``ModeSwitch`` decides the mode by that model, or by a window policy that decides on fused mode itself. Both can be wrong, and acceptance
can't be measured while the target generates alone. So a time account, which is not in the paper, limits the loss. It compares each round
with the time in which the plain remote stream would have produced the same tokens:

- Losses are a debt that is paid back with 2 % of the time. A failed round is one that gives a single token. Drafting continues only while
  another failed round and the return to the stream would leave the debt within three failed rounds, because two of the first rounds may
  well be bad luck.
- If the model predicts that drafting doesn't pay, a round is tried as soon as 1 % of the time since then has paid for the debt and for the
  round. So drafting can come back. Time that drafting saved earlier doesn't count here, because it covers rounds that fail although the
  model expected them to pay.
- Drafting begins if the model predicts that it pays, and ends if the model predicts a rate a tenth below the stream's, because a few rounds
  can be bad luck and each change costs a round. In between, the account decides.
- At most ten failed rounds are paid for in advance, or one failed round and its changes of mode if they cost more. So an hour of code, on
  which drafting saves time, doesn't pay for a minute of prose.
- A round counts as at most ten failed rounds, or as the time that was paid for it in advance. So a connection that stalls once doesn't keep
  a pair of models from drafting for minutes.

By this account, apart from stalls, the rate in the long run is never below 0.98 of the plain remote stream's, whatever the models do. In
the first 256 tokens of a pair of models it isn't below 0.95 of it.

The paper defines fused mode twice (DSD sections 3.3 and 4.4). Here it means that the target generates alone, as the remote stream.
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
_PROBE_LOSS = 0.01  # the same for rounds that are tried while the model predicts that drafting doesn't pay
_TRIED = 3.0  # rounds that may fail entirely, if with the return to the stream they take at most
_TRIED_STEPS = 8.0  # this many remote steps (3 % of an answer of 256 tokens), or one round and the return
_STAY = 0.5  # additional rounds that must be allowed to fail before drafting begins again, because changes are expensive
_MOST_ROUNDS = 10  # rounds that may be paid for in advance, by what drafting saved or by time; also what a stall counts as
_DOUBT = 0.1  # share of the remote rate by which the forecast may be lower while drafting continues, since few rounds say little
_PATIENCE = 2  # k of DSD section 4.4: consecutive proposals of another mode until it is accepted


class RoundConditions(Struct, frozen=True, kw_only=True):
    """Inputs of the speedup model. All times are in seconds.

    Args:
        acceptance: alpha, 0..1.
        window: gamma, number of draft tokens in a round, 1 or more.
        draft_step: time that the draft model takes for a token.
        remote_step: time between two tokens of the plain remote stream, as they arrive here.
        verify: time that the verifier takes for a round, including its queue but not the link.
        verify_token: additional time that the verifier takes for each draft token.
        rtt: round trip of the link, or inf if there is no link.
        round_transfer: time to transfer the bytes of a round that don't depend on the window.
        token_transfer: additional time to transfer each draft token.
        hit_rate: share of rounds after which a pre-drafted branch is adopted, 0..1.
        ahead: mean time that a round saves because its draft was sent before the last verdict came.
        slowdown: time of a step on all branches together, as a multiple of a step on the draft alone.
        adopted: measured number of tokens in an adopted branch. None computes it from the wait and ``slowdown``.
        budget: share of draft tokens that are verified, above 0 up to 1. Each of the others costs a draft step.
        round_tokens: measured number of tokens that a verified round gives. None means E(alpha, gamma).
        row_costs: additional time of the verifier by the number of rows in a round (its draft tokens plus one), or None if ``verify``
            includes it.
        energy: seconds that the energy of a drafted token is worth to the user. ``predict_rates`` counts them as time.
        drafted: measured number of tokens that a round drafts, including branches. None means ``window``.
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
    """Tokens per second of each generation mode. The worth of energy counts as time.

    Args:
        device: rate of the device alone.
        remote: rate of the remote stream alone.
        waiting: rate of drafting that waits for each verdict.
        parallel: rate of drafting that continues during the wait.
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
        """The highest rate at which the server's own text can come, by speculation or from its stream."""
        return max(self.speculative, self.remote)


def round_seconds(conditions: RoundConditions, *, is_parallel: bool) -> float:
    """Return how many seconds a verified round takes on average, from one verdict to the next."""
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
    """Return the expected tokens per second of each mode. Without a link, modes that need it have a rate of 0."""
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
    """Return the window of 1 to ``max_window`` tokens with the highest predicted rate, or the shortest of several equal ones.

    Measurements that belong to one window (``round_tokens``, ``adopted``, ``drafted``) aren't used.
    """

    def rate(window: int) -> float:
        rates = predict_rates(replace(conditions, window=window, round_tokens=None, adopted=None, drafted=None))
        return rates.parallel if is_parallel else rates.waiting

    return max(range(1, max_window + 1), key=lambda window: (rate(window), -window))


def conditions_of(state: WindowState) -> RoundConditions:
    """Build the speedup model's inputs from a window policy's inputs. The acceptance and the times must be known."""
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
        is_lossless: True if the answer must be the target's own (budget 1).
        min_rate: tokens per second above which a selective answer keeps speculation, for the sake of its quality.

    Attributes:
        mode: the current mode.
        seconds: total time recorded.
        lost_seconds: how many seconds longer drafting took than the plain remote stream would have. Below 0 if it took less.
        probes: number of rounds that were tried against the forecast.
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
        self._probe_debt = 0.0  # the same, since the model began to predict that drafting doesn't pay
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
            window: window that the policy proposes, or None for ``conditions.window``.
            policy_decides: True if the policy decides on fused mode (``window.DecidesFusedMode``), False if the speedup model does.
            opening: additional seconds that the first round takes, because the verifier must first read the stream's tokens.
            return_time: additional seconds until a stream begins after a failed attempt to draft, for the same reason.
            at_once: True if the conditions are those of the draft to be sent, so that a change of mode needn't be proposed twice.
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
        """Return True if the loss would stay within its limit even if the next round failed and the stream had to be opened again."""
        way_back = max(0.0, conditions.wait - conditions.remote_step)  # until a stream's first token
        debt = self._debt + self._worst
        if not self._is_drafting and self.seconds:
            debt += _STAY * self._worst
        may_fail = debt <= _TRIED * self._worst
        return may_fail and debt + opening + way_back <= max(_TRIED_STEPS * conditions.remote_step, self._worst + way_back)

    def record(self, mode: Mode, *, seconds: float, tokens: int, remote_step: float, energy: float = 0.0, is_return: bool = False) -> None:
        """Record a round, or some tokens that one side generated alone.

        Args:
            mode: mode in which the tokens were generated.
            seconds: time that they took, including a change of mode.
            tokens: number of tokens.
            remote_step: seconds between two tokens of a plain remote stream at that time.
            energy: seconds that the energy of the drafted tokens is worth, which count as lost time.
            is_return: True if this was the wait for the stream after drafting, which isn't a stall however long it takes.
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
        """Count a proposed mode, and return the current mode. A change needs two proposals in a row, except for the very first proposal."""
        if mode == self.mode:
            self._votes = 0
        else:
            self._votes += 1
            if at_once or self._is_new or self._votes >= _PATIENCE:  # hysteresis, k proposals in a row (DSD section 4.4)
                self.mode, self._votes = mode, 0
        self._is_new = False
        return self.mode


class Predicted(Struct, frozen=True, tag="predicted"):
    """Chooses the window with the highest rate by ``predict_rates``, for the recent acceptance rate, times and hit rate.

    No paper has this policy. DSD's baselines use a fixed window, or one token more or less than the last window, and its learned policy
    needs training. In simulations this policy comes within 10 % of the best fixed window, whatever the link, the acceptance rate and the
    step times.

    Args:
        first: window in tokens for the first round, and as long as the times aren't known.
        min_window, max_window: bounds of the window in tokens. 1 would mean fused mode, which ``ModeSwitch`` decides.
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
