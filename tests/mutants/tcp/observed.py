"""What a caller saw of an answer, and how it is compared with the oracle's reading."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

from tests.mutants.decoding import differences
from tests.mutants.oracle.reading import Call, Reading

__all__ = ["Observed", "compare"]


@dataclass(slots=True)
class Observed:
    """One answer as a caller saw it.

    Args:
        calls: in the order of their beginnings; pieces of arguments are joined.
        items: the items or blocks of a typed API that have begun in a stream.
        usage: the two counts; None: it has none.
        is_estimated: the usage is marked as an estimate.
        error: what was raised in place of a proper end; None: the answer is whole.
    """

    text: str = ""
    reasoning: str = ""
    refusal: str = ""
    calls: list[Call] = field(default_factory=list)
    reason: str | None = None
    usage: tuple[int, int] | None = None
    is_estimated: bool = False
    logprobs: list[float] = field(default_factory=list)
    items: list[dict[str, Any]] = field(default_factory=list)
    error: Exception | None = None


def compare(expected: Reading, seen: Observed, *, api: str) -> list[str]:
    """Return in what an answer differs from a reading; an answer without a text of the server's failure is not blamed for that."""
    counts = seen.usage or (0, 0)
    if seen.error is not None and not expected.text:
        expected = replace(expected, logprobs=())  # of tokens that had no text, and were never given
    got = Reading(
        text=seen.text,
        reasoning=seen.reasoning,
        refusal=seen.refusal,
        calls=tuple(_with_arguments(call) if seen.error is None else call for call in seen.calls),
        reason=seen.reason,
        prompt_tokens=expected.prompt_tokens and counts[0],
        completion_tokens=expected.completion_tokens and counts[1],
        logprobs=tuple(seen.logprobs),
        whole=seen.error is None,
        word="" if seen.error is None else str(seen.error),
    )
    found = differences(expected, got, api=api)
    if expected.whole and seen.error is None:
        is_known = expected.prompt_tokens is not None and expected.completion_tokens is not None
        if seen.usage is None or is_known == seen.is_estimated:
            found.append(f"usage: expected it {'counted' if is_known else 'estimated'}, got {seen.usage}, {seen.is_estimated=}")
    return found


def _with_arguments(call: Call) -> Call:
    """Return a call of a whole answer; one without arguments has none, or an empty object."""
    return call if call.is_custom or call.arguments.strip() else replace(call, arguments="{}")
