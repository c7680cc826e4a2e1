"""The parts of an answer's report, ready for JSON. They contain figures, but none of the conversation's text and no keys.

They are fields of ``Report`` (``streamco.core.report``). Only a speculated answer has ``SpeculationFigures``, and only an answer of a
split model has ``SplitFigures``.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from msgspec import Struct

from streamco.core.confidence import Confidence
from streamco.openai_types import CompletionUsage
from streamco.policies.ways import Way

__all__ = [
    "AnswerMode",
    "AnswerPlan",
    "AnswerUsage",
    "DispatchReport",
    "Ending",
    "EndpointReport",
    "Grade",
    "HandOver",
    "Outcome",
    "ShadowReport",
    "SpeculationFigures",
    "SplitFigures",
    "StatesName",
    "is_energy_measured",
]

AnswerMode = Literal["race", "speculate", "split"]
StatesName = Literal["f32", "f16", "i8"]
Outcome = Literal["won", "took over", "read ahead", "lost", "failed", "not started", "drafted", "verified"]
Ending = Literal["complete", "failed", "left"]


class AnswerUsage(CompletionUsage, gc=False):
    """The tokens of one answer as its reader got it, in OpenAI's format: the request's prompt, and the text that each endpoint added.

    Args:
        is_estimated: True if a part isn't an endpoint's own count, because none was sent, the answer was handed over, or its reader left.
    """

    is_estimated: bool = False


class AnswerPlan(Struct, frozen=True, kw_only=True):
    """The choice between the ways to make an answer, made by the weights of ``Auto`` before the answer began.

    Args:
        way: the chosen way.
        reason: why it was chosen, in a few words.
        ways: each way with its forecast, in the order in which the forecasts were made.
        tokens: how many tokens the answer was expected to have.
        time, money, quality: the weights; None for a weight that didn't count.
    """

    way: str
    reason: str
    ways: tuple[Way, ...]
    tokens: float
    time: float | None = None
    money: float | None = None
    quality: float | None = None


class DispatchReport(Struct, frozen=True, kw_only=True):
    """The dispatch decision, made before any endpoint started.

    Args:
        policy: name of the dispatch policy.
        constraint: the side that the budget limits, or the endpoint's name if two servers race; None if no budget applies.
        device_wait: how many seconds after the request the device starts; None if it starts only if the other side fails.
        server_wait: the same for the server.
        reason: the reason for the decision in words; also why a side was not eligible or not allowed by the budget.
        prompt_tokens: prompt length that the decision was made for, in tokens of the device's tokenizer if it is known.
        is_estimated: True if that length is an estimate.
        budget: share of prompt tokens that the constrained side may process, 0 to 1.
        budget_share: share that it has processed for this client so far; None before the first request.
        is_borrowed: True if the constrained side was started on credit because the other one was busy; later answers pay it back.
    """

    policy: str
    constraint: str | None
    device_wait: float | None
    server_wait: float | None
    reason: str
    prompt_tokens: int
    budget: float
    budget_share: float | None
    is_estimated: bool = False
    is_borrowed: bool = False


class EndpointReport(Struct, frozen=True, kw_only=True):
    """One endpoint's part in an answer.

    Args:
        server: software of its server, such as "vllm" or "streamco"; None if not known, and for a provider or a model in this process.
        opened: when it was started, in seconds after the request; None if it wasn't.
        stopped: when its stream ended, failed or was cancelled, in seconds after the request; None if not started, or still working.
        ttft: seconds from opening to its first content token; None if there was none.
        completion_tokens: tokens that it generated, including tokens that the reader never got.
        wasted_prompt_tokens: prompt tokens that it read for nothing, because it lost or failed, or read in advance and was not needed.
        wasted_tokens: generated tokens that the reader never got.
        is_estimated: True if the token counts don't come from the endpoint itself (cancelled streams send no usage).
        counted_by: the source of ``completion_tokens``: "usage" (the server's own count), "engine" (the device's), "token ids", "tiktoken
            NAME" (the text, in the model's vocabulary) or "estimate"; None if it did no work.
        cost_usd: cost in US dollars; None if no prices are known.
        cost_source: "server" if the cost is the server's own bill, "prices" if it was computed from known prices; None if it isn't known.
        energy_j: energy in joules, measured or estimated with the FLOPs model, for tokens that were not cached before; None for a
            server, or if the model's shape isn't known.
        is_energy_measured: True if ``energy_j`` is a share of the energy that all of the machine's processors used meanwhile, by their
            counters (RAPL).
        unified_cost_usd: money plus energy by the FLOPs model at the exchange rate (DiSCo Appendix E, equation 8); None if either
            isn't known.
        confidence: how sure its model was of the text that it wrote; None if not known, as with servers.
        error: text of the error that it ended with; None if there was no error.
        error_kind: that error's class, with the HTTP status or the phase of a timeout; it quotes nothing from the server.
    """

    name: str
    kind: str
    outcome: Outcome
    server: str | None = None
    opened: float | None = None
    stopped: float | None = None
    ttft: float | None = None
    prompt_tokens: int = 0
    completion_tokens: int = 0
    wasted_prompt_tokens: int = 0
    wasted_tokens: int = 0
    is_estimated: bool = False
    counted_by: str | None = None
    cost_usd: float | None = None
    cost_source: Literal["server", "prices"] | None = None
    energy_j: float | None = None
    is_energy_measured: bool = False
    unified_cost_usd: float | None = None
    confidence: Confidence | None = None
    error: str | None = None
    error_kind: str | None = None


class Grade(Struct, frozen=True, kw_only=True):
    """The quality gate's verdict on the device's answer, given before any of it was shown.

    Args:
        verdict: "sure", "unsure", or "not graded" if nothing was known about its tokens, or if computing the score failed.
        score: the score, 0..1; None if there is none.
        min_score: lowest score that is good enough.
        tokens: number of tokens that the score is based on.
        at: when the verdict was given, in seconds after the request.
        asked: the endpoint that was asked because of the score; None if one was already working, or none could be asked.
        shown_because: why an answer was shown although the device was unsure of it, as a clause; "" otherwise.
    """

    verdict: Literal["sure", "unsure", "not graded"]
    score: float | None
    min_score: float
    tokens: int
    at: float
    asked: str | None = None
    shown_because: str = ""


def is_energy_measured(parts: Sequence[EndpointReport]) -> bool:
    """Return True if at least one endpoint's energy is known, and every known energy was measured."""
    measured = [part.is_energy_measured for part in parts if part.energy_j is not None]
    return bool(measured) and all(measured)


class HandOver(Struct, frozen=True, kw_only=True):
    """One change of an answer from one endpoint to another.

    Args:
        source: the endpoint that generated the answer before the change.
        target: the endpoint that continues it.
        position: how many tokens the answer had before the change.
        at: when the change was made, in seconds after the request.
        reason: "cheaper", or the name of the error.
        is_planned: True if it was made to save money, False if the source had failed.
        buffered: how many tokens the reader hadn't reached yet.
        pause: seconds from the change to the target's first token; None if there was none.
        delayed_tokens: tokens of the target that the reader had to wait for (``delay_num`` of Table 3).
        saved_usd: US dollars that a planned hand-over saved, by the unified cost: the cost of the target's tokens if the source had
            written them, minus the cost of the target's work and of the tokens that the source generated after the change. A device's
            energy counts as nothing if it isn't known. None if not planned, or if a price isn't known.
    """

    source: str
    target: str
    position: int
    at: float
    reason: str
    is_planned: bool = False
    buffered: int = 0
    pause: float | None = None
    delayed_tokens: int = 0
    saved_usd: float | None = None


class ShadowReport(Struct, frozen=True, kw_only=True):
    """A server's answer that nobody reads, made only to judge the device's answer (``QualityGate.shadow``). No other figure includes it.

    Args:
        endpoint: the server's name.
        good: whether the device's answer was as good; None if not known.
        why_not: why that will never be known, as a clause; "" if it is known, or may still become known.
        prompt_tokens, completion_tokens: tokens that the server read and generated.
        is_estimated: True if these counts are estimates, because the server sent none.
        cost_usd: its cost in US dollars; None if the server's prices aren't known.
        is_final: True once no figure here will change any more.
    """

    endpoint: str
    good: bool | None
    why_not: str
    prompt_tokens: int
    completion_tokens: int
    is_estimated: bool
    cost_usd: float | None
    is_final: bool


class SpeculationFigures(Struct, frozen=True, kw_only=True):
    """The figures of a speculated answer, in tokens unless stated otherwise.

    The client computes them from the machine's ``SpeculationReport``, the link's byte counts and the budget.

    Args:
        acceptance: share of verified draft tokens that were accepted; None if none was verified.
        offloaded_share: share of drafted tokens that were sent to the verifier; None if no draft was finished.
        budget: the limit for that share, 0 to 1; with 1 the answer is the verifier's own.
        hit_rate: share of rounds with an adopted branch, whose next draft was ready when the verdict arrived; None if there was no round.
        ahead_rate: share of rounds whose next draft was sent before the verdict and matched it; None if there was no round.
        rounds: number of verdicts.
        bytes_up, bytes_down: bytes sent and received for the rounds, without the transport's overhead.
        drafted: tokens generated by the device.
        wasted: drafted tokens that are not in the answer.
        accepted: drafted tokens that the verifier accepted.
        corrected, bonus: tokens added by the verifier, in place of a rejected token or after a fully accepted draft.
        device: tokens committed without the verifier.
        remote: tokens generated by the target model alone.
        target_tokens: tokens computed by the target model: each verified position and the one after it, and the tokens it generated alone.
        fallbacks: number of changes to the remote stream.
        refusals: number of drafts that an overloaded verifier refused.
        losses: number of lost connections.
        retracted: tokens taken back from a reader of drafts.
        is_exact: True if the answer is the verifier's own: token for token if greedy, in distribution if sampled.
        verifiers: names of the verifiers that verified the answer, in order; more than one if the answer moved.
    """

    acceptance: float | None
    offloaded_share: float | None
    budget: float
    hit_rate: float | None
    ahead_rate: float | None
    rounds: int
    bytes_up: int
    bytes_down: int
    drafted: int
    wasted: int
    accepted: int
    corrected: int
    bonus: int
    device: int
    remote: int
    target_tokens: int
    fallbacks: int
    refusals: int
    losses: int
    retracted: int
    is_exact: bool
    verifiers: tuple[str, ...] = ()


class SplitFigures(Struct, frozen=True, kw_only=True):
    """The figures of a split model's answer: how much was sent and received, and in how many trips. ``SplitTally`` counts them.

    Args:
        trips: how many times states came back from the server, including the prompt's states.
        tokens_per_trip: mean number of the answer's tokens per trip; None if no trip has ended.
        bytes_up, bytes_down: bytes sent and received, without the transport's overhead.
        rows_up, rows_down: hidden states in those bytes, one for each token that was read.
        chunks: number of messages in which the states were sent.
        repeated_rows: states that were sent again because a server was lost or too busy.
        sessions: sessions that were opened or resumed; more than 1 if a server was lost and the answer continued.
        servers: names of the servers that computed it, in order.
        drafted: tokens that were drafted on the device.
        accepted: how many of the drafted tokens are in the answer.
        looked_up: how many of the drafted tokens were copied from the prompt or the answer, where they follow the same tokens.
        lookups_accepted: how many of the copied tokens are in the answer.
        branches: continuations that were drafted while a verdict was out.
        branch_hits: how many verdicts matched one of these continuations.
        branch_tokens: tokens of the answer that come from such a continuation, and were sent without another draft.
        states: format of the states on the wire.
        is_exact: True if the states lost no precision on the way, because they were sent in 32 bits.
        sent: a description of the data that left the device.
    """

    trips: int
    tokens_per_trip: float | None
    bytes_up: int
    bytes_down: int
    rows_up: int
    rows_down: int
    chunks: int
    repeated_rows: int
    sessions: int
    servers: list[str]
    drafted: int
    accepted: int
    looked_up: int = 0
    lookups_accepted: int = 0
    branches: int = 0
    branch_hits: int = 0
    branch_tokens: int = 0
    states: StatesName
    is_exact: bool
    sent: str

    def makers(self, name: str) -> str:
        """Return a clause that says where the parts of the model are; ``name`` is the endpoint that has its first and last layers."""
        return f"{name} has the ends of a model here, and its middle at {self.servers[-1] if self.servers else 'a server'}"
