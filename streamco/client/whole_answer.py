"""Whole answers: OpenAI's types with streamco's report, and with the object parsed from an answer's JSON."""

from __future__ import annotations

from typing import Any, ClassVar, Generic, TypeVar

from msgspec import field

from streamco.client.response_schema import ParsedT, read_object
from streamco.core.report import Report
from streamco.errors import UnparsedAnswer
from streamco.openai_types import ChatCompletion, ChatCompletionMessage, Choice, ResponseModel, further_fields, with_further

__all__ = ["Answer", "ParsedAnswer", "ParsedChoice", "ParsedMessage", "ParsedT", "check_end", "read_answer", "read_content", "whole_answer"]

_Model = TypeVar("_Model", bound=ResponseModel)


class Answer(ChatCompletion):
    """A whole answer: OpenAI's ``chat.completion`` together with streamco's report."""

    undumped: ClassVar[frozenset[str]] = frozenset({"report"})

    report: Report | None = None


class ParsedMessage(ChatCompletionMessage, Generic[ParsedT]):
    """A message with the object parsed from its text.

    ``parsed`` is None if the model refused or wrote no text, or if no class was given. Dumps leave it out, because ``content`` has it.
    """

    undumped: ClassVar[frozenset[str]] = frozenset({"parsed"})

    parsed: ParsedT | None = None


class ParsedChoice(Choice, Generic[ParsedT]):
    """A choice of a parsed answer."""

    message: ParsedMessage[ParsedT]


class ParsedAnswer(Answer, Generic[ParsedT]):
    """An answer whose messages have the objects parsed from their texts."""

    choices: list[ParsedChoice[ParsedT]] = field(default_factory=list)  # type: ignore[assignment]  # a narrower list, as OpenAI's


def whole_answer(completion: ChatCompletion, report: Report) -> Answer:
    """Return a completion as an ``Answer`` with its report."""
    return _as(Answer, completion, report=report)


def read_answer(answer: Answer, kind: type[ParsedT] | None) -> ParsedAnswer[ParsedT]:
    """Return an answer with each message's text parsed into an object.

    Args:
        answer: a whole answer.
        kind: the pydantic class that was requested, or None.

    Raises:
        UnparsedAnswer: the answer was cut off, or isn't valid JSON for the class.
    """
    choices = []
    for choice in answer.choices:
        check_end(choice, answer)
        parsed = None if kind is None or choice.message.refusal or not choice.message.content else read_content(choice, answer, kind)
        choices.append(_as(ParsedChoice, choice, message=_as(ParsedMessage, choice.message, parsed=parsed)))
    return _as(ParsedAnswer, answer, choices=choices)


def read_content(choice: Choice, answer: Answer, kind: type[ParsedT]) -> ParsedT:
    """Return the object parsed from a choice's text.

    Raises:
        UnparsedAnswer: it isn't valid JSON for the class.
    """
    try:
        return read_object(kind, choice.message.content or "")
    except ValueError as error:
        raise _unparsed(f"expected JSON of {kind.__name__}, got {error}", choice, answer, "invalid") from error


_CUTS = {"length": "one that was cut off at its limit of tokens", "content_filter": "one that a content filter cut off"}


def check_end(choice: Choice, answer: Answer) -> None:
    """Check that a choice is complete.

    Raises:
        UnparsedAnswer: it was cut off.
    """
    if choice.finish_reason in _CUTS:
        got = f'{_CUTS[choice.finish_reason]} (finish_reason "{choice.finish_reason}")'
        raise _unparsed(f"expected a whole answer, got {got}", choice, answer, choice.finish_reason)


def _unparsed(text: str, choice: Choice, answer: Answer, code: str) -> UnparsedAnswer:
    winner = answer.report.winner if answer.report is not None else None
    return UnparsedAnswer(text, completion=answer, code=code, endpoint=winner or "", partial=choice.message.content or "")


def _as(kind: type[_Model], model: ResponseModel, **changes: Any) -> _Model:
    """Convert a response to a subclass, with new values for some of the fields."""
    fields = {name: getattr(model, name) for name in model.__struct_fields__ if name in kind.__struct_fields__}
    return with_further(kind(**{**fields, **changes}), further_fields(model))
