"""Builds the report of a split model's answer: its times, its cost, and the data sent to the servers and back.

The figures on states and round trips come from ``SplitTally.figures`` (``engines/split/tally.py``).
"""

from __future__ import annotations

from msgspec import Struct, field

from streamco.client.answer_log import describe_error
from streamco.client.cost_totals import answer_ending
from streamco.core.confidence import ConfidenceMeter
from streamco.core.meter import Meter
from streamco.core.report import Report
from streamco.core.report_parts import AnswerUsage, DispatchReport, EndpointReport, Outcome, SplitFigures
from streamco.core.totals import AnswerCost
from streamco.endpoints.split.endpoint import SplitEndpoint
from streamco.errors import EndpointConnectError, EndpointStatusError, StreamcoError
from streamco.openai_types import CompletionUsage
from streamco.policies.cost import RequestCost, Usage, device_costs, request_cost
from streamco.profiles import ModelShape

__all__ = ["PromptFacts", "SplitProgress", "dispatch_report", "split_cost", "split_endpoint_cost", "split_report", "split_usage"]


class PromptFacts(Struct, frozen=True, kw_only=True):
    """What is known about an answer before it begins.

    Args:
        prompt_tokens: the prompt's length.
        is_estimated: True if that length is an estimate.
        budget_share: see ``DispatchReport``.
    """

    prompt_tokens: int
    is_estimated: bool = False
    budget_share: float | None = None


class SplitProgress(Struct, kw_only=True):
    """How far an answer has come, as its driver records it. Times of the model's work are in seconds since the answer began.

    Args:
        began, finished: when the answer began and ended for its reader (None if it hasn't), in seconds on the driver's clock.
        has_won: True if some of the answer has reached the reader, or an answer without content has ended.
        first_token, stopped: when the model's first token arrived, and when its work ended; None until then.
        made: number of tokens that the model has generated.
        late: how many of them arrived after the reader had left.
        dropped: tokens that were held for the pace when the reader left.
        finish_reason: "stop" or "length"; None unless the model has finished the answer.
        usage: the model's own counts, which arrive at the end; None until then.
        error: the error that the answer ended with, or None.
        was_left: True if the reader left before the end.
        confidence: records how sure the model was of its tokens.
    """

    began: float = 0.0
    finished: float | None = None
    has_won: bool = False
    first_token: float | None = None
    stopped: float | None = None
    made: int = 0
    late: int = 0
    dropped: int = 0
    finish_reason: str | None = None
    usage: CompletionUsage | None = None
    error: StreamcoError | None = None
    was_left: bool = False
    confidence: ConfidenceMeter = field(default_factory=ConfidenceMeter)


def split_report(
    progress: SplitProgress, meter: Meter, facts: PromptFacts, endpoint: SplitEndpoint, figures: SplitFigures, *, now: float, is_final: bool
) -> Report:
    """Return the report of an answer, finished or not.

    Args:
        progress: how far it has come.
        meter: measures the text that the reader gets.
        facts: what was known before it began.
        endpoint: the model.
        figures: figures on the data sent to the servers and back.
        now: the current time, in seconds on the driver's clock.
        is_final: True if the answer and all its work have ended.
    """
    cost = split_cost(progress, meter, facts, endpoint)
    span = (meter.last - meter.first) if meter.first is not None and meter.last is not None else 0.0
    return Report(
        winner=endpoint.name if progress.has_won else None,
        ttft=None if meter.first is None else meter.first - progress.began,
        duration=(now if progress.finished is None else progress.finished) - progress.began,
        tokens=cost.tokens,
        tokens_per_second=(meter.tokens - 1) / span if meter.tokens > 1 and span > 0 else None,
        finish_reason=progress.finish_reason,
        dispatch=dispatch_report(facts, endpoint, figures),
        endpoints=cost.endpoints,
        quality=meter.quality(),
        cost_usd=cost.cost_usd,
        unified_cost_usd=cost.unified_cost_usd,
        energy_j=cost.energy_j,
        wasted_tokens=cost.wasted_tokens,
        wasted_prompt_tokens=cost.wasted_prompt_tokens,
        usage=split_usage(progress, meter, facts),
        ending=cost.ending,
        is_final=is_final,
        mode="split",
        split=figures,
    )


def dispatch_report(facts: PromptFacts, endpoint: SplitEndpoint, figures: SplitFigures) -> DispatchReport:
    """Return the dispatch report, which says who makes the answer; the arguments are the same as for ``split_report``."""
    return DispatchReport(
        policy="split",
        constraint=None,
        device_wait=0.0,
        server_wait=None,
        reason=figures.makers(endpoint.name),
        prompt_tokens=facts.prompt_tokens,
        is_estimated=facts.is_estimated,
        budget=1.0,
        budget_share=facts.budget_share,
    )


def split_usage(progress: SplitProgress, meter: Meter, facts: PromptFacts) -> AnswerUsage:
    """Return the token counts of the answer as it was delivered; the arguments are the same as for ``split_report``."""
    usage = progress.usage
    if usage is not None and not progress.dropped and not progress.late:
        return AnswerUsage(
            prompt_tokens=usage.prompt_tokens,
            completion_tokens=usage.completion_tokens,
            total_tokens=usage.total_tokens,
            prompt_tokens_details=usage.prompt_tokens_details,
            completion_tokens_details=usage.completion_tokens_details,
        )
    made = progress.made if usage is None else usage.completion_tokens
    completion = max(0, made - progress.late) if progress.has_won else 0
    if progress.dropped:
        completion = round(completion * meter.tokens / (meter.tokens + progress.dropped))
    prompt = facts.prompt_tokens if usage is None else usage.prompt_tokens
    return AnswerUsage(prompt_tokens=prompt, completion_tokens=completion, total_tokens=prompt + completion, is_estimated=True)


def split_cost(progress: SplitProgress, meter: Meter, facts: PromptFacts, endpoint: SplitEndpoint) -> AnswerCost:
    """Return the cost of the answer so far; the arguments are the same as for ``split_report``."""
    part = _describe(progress, meter, facts, endpoint)
    return AnswerCost(
        endpoints=[part],
        ending=answer_ending(was_left=progress.was_left, error=progress.error, finished=progress.finished),
        hand_overs=0,
        tokens=meter.tokens,
        cost_usd=part.cost_usd,
        unified_cost_usd=part.unified_cost_usd,
        energy_j=part.energy_j,
        wasted_tokens=part.wasted_tokens,
        wasted_prompt_tokens=part.wasted_prompt_tokens,
    )


def _describe(progress: SplitProgress, meter: Meter, facts: PromptFacts, endpoint: SplitEndpoint) -> EndpointReport:
    """Return the endpoint's part in the answer."""
    usage, error = progress.usage, progress.error
    has_worked = bool(progress.made) or not isinstance(error, EndpointConnectError | EndpointStatusError)
    prompt, made, cached = (facts.prompt_tokens, progress.made, 0) if has_worked else (0, 0, 0)
    if usage is not None:
        details = usage.prompt_tokens_details
        prompt, made, cached = usage.prompt_tokens, usage.completion_tokens, (details.cached_tokens or 0) if details else 0
    cost = split_endpoint_cost(endpoint, prompt, made, cached)
    return EndpointReport(
        name=endpoint.name,
        kind=endpoint.kind,
        outcome=_outcome(progress),
        opened=0.0,
        stopped=progress.stopped,
        ttft=progress.first_token,
        prompt_tokens=prompt,
        completion_tokens=made,
        wasted_prompt_tokens=0 if progress.has_won else prompt,
        wasted_tokens=_unread(progress, meter, made) if progress.has_won else made,
        is_estimated=has_worked and usage is None,
        counted_by="engine" if has_worked else None,
        cost_usd=cost.server,
        cost_source=None if cost.server is None else "prices",
        energy_j=cost.device_joules,
        unified_cost_usd=cost.total,
        confidence=progress.confidence.confidence,
        error=None if error is None else str(error),
        error_kind=None if error is None else describe_error(error),
    )


def _outcome(progress: SplitProgress) -> Outcome:
    if progress.has_won:
        return "won"
    return "lost" if progress.error is None else "failed"


def _unread(progress: SplitProgress, meter: Meter, made: int) -> int:
    """Return how many of the generated tokens never reached the reader."""
    late = min(progress.late, made)
    held = round((made - late) * progress.dropped / (meter.tokens + progress.dropped)) if progress.dropped else 0
    return late + min(held, made - late)


def split_endpoint_cost(endpoint: SplitEndpoint, prompt: int, completion: int, cached: int) -> RequestCost:
    """Return the energy that the device uses for tokens, and its cost; the servers' work has no price."""
    engine = endpoint.engine
    costs = None
    if engine is not None:
        info = engine.info
        costs = device_costs(
            ModelShape(layers=info.layers, width=info.width, ffn_width=info.ffn_width, vocabulary=info.vocabulary_size, heads=info.heads)
        )
    return request_cost(Usage(device_prompt=prompt - cached, device_completion=completion), None, costs)
