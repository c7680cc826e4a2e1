"""What a caller is told about an answer: figures only, no text and no keys, ready for JSON."""

from __future__ import annotations

from typing import Literal

from msgspec import Struct, field

from streamco.core.meter import Quality
from streamco.openai_types import CompletionUsage

__all__ = [
    "AnswerMode",
    "AnswerUsage",
    "DispatchReport",
    "Ending",
    "EndpointReport",
    "HandOver",
    "Outcome",
    "Report",
    "SpeculationFigures",
    "SpeculationReport",
]

AnswerMode = Literal["race", "speculate"]
Outcome = Literal["won", "took over", "read ahead", "lost", "failed", "not started", "drafted", "verified"]
Ending = Literal["complete", "failed", "left"]


class AnswerUsage(CompletionUsage, gc=False):
    """Tokens of one answer as its reader got it, in OpenAI's shape: the request's own prompt, and what every endpoint in turn added.

    Args:
        is_estimated: not all of it is an endpoint's own count: none was sent, the answer changed endpoints, or its reader left.
    """

    is_estimated: bool = False


class DispatchReport(Struct, frozen=True, kw_only=True):
    """What was decided before anything started.

    Args:
        policy: its name.
        constraint: the side whose work the budget limits; None: no budget applies.
        device_wait: seconds after the request; None: only if the other side fails.
        server_wait: likewise.
        reason: in words, also why a side was not eligible or the budget said no.
        prompt_tokens: prompt length the decision was made for (tokens, the device's where known).
        budget: allowed share of prompt tokens that the constrained side may process, 0 to 1.
        budget_share: realised share of this client so far; None before the first request.
    """

    policy: str
    constraint: str | None
    device_wait: float | None
    server_wait: float | None
    reason: str
    prompt_tokens: int
    budget: float
    budget_share: float | None


class EndpointReport(Struct, frozen=True, kw_only=True):
    """One endpoint's part.

    Args:
        opened: seconds after the request; None: not started.
        ttft: seconds from opening to its first content token; None: it did not come that far.
        completion_tokens: what it produced, tokens the reader never saw included.
        wasted_prompt_tokens: of the prompt's tokens, those that were read for nothing: it lost or failed, or read ahead and was not needed.
        wasted_tokens: of the produced tokens, those that nobody read.
        is_estimated: the token counts are estimates (cancelled streams send no usage).
        cost_usd: money; None where no prices are known.
        energy_j: joules by the FLOPs model, for tokens that were not kept from before; None for servers, and where the model's shape is
            not known.
        unified_cost_usd: money, and energy at the exchange rate (DiSCo Appendix E, equation 8); None where either is not known.
    """

    name: str
    kind: str
    outcome: Outcome
    opened: float | None = None
    ttft: float | None = None
    prompt_tokens: int = 0
    completion_tokens: int = 0
    wasted_prompt_tokens: int = 0
    wasted_tokens: int = 0
    is_estimated: bool = False
    cost_usd: float | None = None
    energy_j: float | None = None
    unified_cost_usd: float | None = None
    error: str | None = None


class HandOver(Struct, frozen=True, kw_only=True):
    """An answer went from one endpoint to another.

    Args:
        source: who had made it so far.
        target: who goes on.
        position: tokens made before it.
        at: seconds after the request.
        reason: why: "cheaper", or the name of the error.
        is_planned: it saved money; False: the source had failed.
        buffered: tokens the reader had not come to.
        pause: seconds until the target's first token; None: it made none.
        delayed_tokens: of the target's tokens, those the reader had to wait for (``delay_num`` of Table 3).
        saved_usd: of a planned one: what the target's tokens would have cost at the source, less what the change took: all that the target
            read and wrote, and what the source made behind it; by the unified cost, None where that is not known.
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


class SpeculationFigures(Struct, frozen=True, kw_only=True):
    """What drafting and verifying one answer took; counts of tokens where nothing else is said.

    Args:
        acceptance: share of judged draft tokens that stayed; None: nothing was judged.
        offloaded_share: share of drafted tokens that were sent to be judged; None: nothing was drafted to its end.
        budget: what that share was held at, 0 to 1; 1: the answer is the verifier's own.
        hit_rate: share of rounds whose next draft was there when the verdict came; None: no round.
        ahead_rate: share of rounds whose next draft was at the verifier by then, sent ahead; None: no round.
        rounds: verdicts.
        bytes_up, bytes_down: sent and received for them, without the transport's own.
        drafted: written by the device. wasted: of these, not in the answer.
        accepted: drafted, and judged good. corrected, bonus: put there by the verifier. device: kept without asking. remote: generated by
            the server alone.
        target_tokens: computed by the server: judged positions and the one behind them, and what it generated alone.
        fallbacks: how often the server went on alone.
        refusals, losses: drafts that an overloaded verifier refused, connections lost.
        retracted: taken back from a reader of drafts.
        is_exact: the answer is the verifier's own: token for token where greedy, in distribution where sampled.
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


class Report(Struct, frozen=True, kw_only=True):
    """One answer, in figures; times in seconds.

    Args:
        winner: the endpoint whose tokens the reader got; None while undecided. Of a speculated answer: all whose tokens they are.
        ttft: from the request to the first token at the reader.
        duration: from the request to the end of the delivery.
        tokens: delivered to the reader.
        tokens_per_second: delivery rate after the first token; None below two tokens.
        cost_usd: all endpoints together; None when one that worked has no known price.
        unified_cost_usd: money and energy together, likewise.
        hand_overs: how often the answer changed endpoints, in order.
        wasted_tokens: completion tokens that nobody read.
        wasted_prompt_tokens: prompt tokens that endpoints read for nothing.
        usage: of the answer as it was delivered; what each endpoint did for it is in ``endpoints``.
        ending: whether the answer came to its end, failed, or was left by its reader before; None while it is under way.
        is_final: no figure changes any more: all work has ended.
        mode: how it was made; where it could have been speculated and wasn't, ``dispatch.reason`` says why.
        speculation: what drafting and verifying took; None: it raced.
    """

    winner: str | None
    ttft: float | None
    duration: float
    tokens: int
    tokens_per_second: float | None
    finish_reason: str | None
    dispatch: DispatchReport
    endpoints: list[EndpointReport] = field(default_factory=list)
    quality: Quality
    cost_usd: float | None = None
    energy_j: float | None = None
    unified_cost_usd: float | None = None
    hand_overs: list[HandOver] = field(default_factory=list)
    wasted_tokens: int = 0
    wasted_prompt_tokens: int = 0
    usage: AnswerUsage = field(default_factory=AnswerUsage)
    ending: Ending | None = None
    is_final: bool = False
    mode: AnswerMode = "race"
    speculation: SpeculationFigures | None = None


class SpeculationReport(Struct, kw_only=True):
    """What one answer took; counts of tokens but for the first line.

    Args:
        rounds, hits, branched_rounds, ahead: rounds that were judged, those whose branch was adopted, those with branches, those whose
            next draft had been sent ahead.
        stale_verdicts, refusals, losses, fallbacks: verdicts of rounds that were over, drafts refused, connections lost, changes to the
            remote side.
        drafted: written by the device, branches included. pre_drafted: of these, on branches. adopted: of these, on adopted branches.
        judged: of rounds that got their verdict. accepted: of these. corrected, bonus: put there by the verifier.
        device, remote: settled without being judged; generated by the remote side alone. wasted: drafted and settled by nobody.
        target_tokens: computed by the target model: judged positions and the one behind them, plain generation. given: the answer's
            tokens that it read unjudged, as often as it did.
        retracted: taken back from the reader. offloaded_share: of the chunks' tokens, sent to be judged.
        is_exact: the answer is what the rule promises; False: the device stood in for a verifier that was gone.
    """

    rounds: int = 0
    hits: int = 0
    branched_rounds: int = 0
    ahead: int = 0
    stale_verdicts: int = 0
    refusals: int = 0
    losses: int = 0
    fallbacks: int = 0
    drafted: int = 0
    pre_drafted: int = 0
    adopted: int = 0
    verified: int = 0
    accepted: int = 0
    corrected: int = 0
    bonus: int = 0
    device: int = 0
    remote: int = 0
    target_tokens: int = 0
    given: int = 0
    retracted: int = 0
    chunks: int = 0
    offloaded: int = 0
    is_exact: bool = True

    @property
    def acceptance(self) -> float | None:
        """Share of judged draft tokens that were accepted; None: nothing was judged."""
        return self.accepted / self.verified if self.verified else None

    @property
    def hit_rate(self) -> float | None:
        """Share of judged rounds whose pre-drafted branch was adopted; None: no round."""
        return self.hits / self.rounds if self.rounds else None

    @property
    def ahead_rate(self) -> float | None:
        """Share of judged rounds whose next draft had been sent ahead for just their verdict; None: no round."""
        return self.ahead / self.rounds if self.rounds else None

    @property
    def offloaded_share(self) -> float | None:
        """Share of tokens in finished chunks that were sent to be judged; None: no chunk was finished."""
        return self.offloaded / self.chunks if self.chunks else None

    @property
    def wasted(self) -> int:
        """Drafted tokens that didn't become part of the answer."""
        return self.drafted - self.accepted - self.device
