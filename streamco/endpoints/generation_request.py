"""Turns an endpoint's request into an engine's request: tokenises the prompt and converts the settings.

A request's ``response_format`` becomes a grammar here.
"""

from __future__ import annotations

from collections.abc import Mapping

from msgspec.structs import replace

from streamco.endpoints.base import Request
from streamco.endpoints.continuation import split_trailing_whitespace
from streamco.engines.base import Engine, GenerationRequest
from streamco.engines.llamacpp.json_schema import grammar_of
from streamco.engines.llamacpp.reasoning import ReasoningSplitter, closed_prompt, opens_reasoning
from streamco.engines.prompt_ids import answer_ids, chat_ids, pending_bytes, prompt_ids
from streamco.errors import ConfigError, UsageError
from streamco.events import Partial

__all__ = ["boundary_whitespace", "generation_request", "is_short", "reasoning_splitter", "request_ids", "takes_grammars"]

JSON_WHITESPACE = b" \t\r\n"
INLINE_CHARACTERS = 4096  # tokenising more takes over a millisecond, too long for the loop


def generation_request(engine: Engine, request: Request, ids: list[int], *, top: int) -> GenerationRequest:
    """Return the request to pass to the engine.

    Args:
        engine: the engine.
        request: the request.
        ids: the prompt's token ids, from ``request_ids``.
        top: number of most likely tokens to return with each piece; a drawn token's probability is known only if the token is among them.

    Raises:
        ConfigError: this engine can't follow the request's ``response_format``.
    """
    grammar = None if request.prefill_only else grammar_of(request.extra.get("response_format"))
    if grammar is not None and not takes_grammars(engine):
        raise ConfigError(f"response_format: expected text from this engine, got {request.extra['response_format']['type']}")
    return GenerationRequest(
        prompt_ids=ids,
        sampling=request.sampling,
        top=top,
        ignore_eos=bool(request.extra.get("ignore_eos", False)),
        prefill_only=request.prefill_only,
        max_buffered=request.max_buffered,
        grammar=grammar,
        begun=b"" if grammar is None or request.partial is None else _begun(engine, request, request.partial),
        pending_bytes=pending_bytes(engine, ids),
    )


def takes_grammars(engine: Engine | None) -> bool:
    """Return True if an engine can constrain answers to a grammar."""
    return bool(getattr(engine, "takes_grammars", False))


def _begun(engine: Engine, request: Request, partial: Partial) -> bytes:
    """Return the part of the answer that is already in the prompt, as bytes, without the whitespace that JSON may begin with."""
    if _has_ids(engine, partial):
        begun = engine.detokenize(partial.ids or ())
    else:
        begun = _handed_over(request, partial)[0].encode("utf-8", "surrogatepass")
    return begun.lstrip(JSON_WHITESPACE)


def request_ids(engine: Engine, request: Request) -> list[int]:
    """Return the prompt's token ids. The chat template renders messages, and only its own control tokens are treated as control tokens.

    Raises:
        EngineError: the model has no chat template, or the template rejected these messages.
        UsageError: the request doesn't have exactly one of messages, prompt and prompt_ids.
    """
    if request.partial is not None:
        return _partial_ids(engine, request, request.partial)
    given = [each for each in (request.messages, request.prompt, request.prompt_ids) if each is not None]
    if len(given) != 1:
        raise UsageError(f"request: expected exactly one of messages, prompt and prompt_ids, got {len(given)}")
    if request.prompt_ids is not None:
        return list(request.prompt_ids)
    if request.prompt is not None:
        return prompt_ids(engine, request.prompt)
    if request.messages is None:
        raise AssertionError("one of the three is given")
    ids = chat_ids(engine, request.messages)
    return closed_prompt(engine, ids) if _has_form(request) else ids


def _partial_ids(engine: Engine, request: Request, partial: Partial) -> list[int]:
    """Return the ids of the prompt and the answer so far. The answer's text is tokenised unless its ids are of this vocabulary."""
    begun = request_ids(engine, replace(request, partial=None))
    if not _is_begun(engine, request):
        return begun
    if request.messages is not None:
        begun = closed_prompt(engine, begun)  # reasoning isn't handed over, so the handed-over text comes after it
    return [*begun, *((partial.ids or ()) if _has_ids(engine, partial) else answer_ids(engine, _handed_over(request, partial)[0]))]


def _is_begun(engine: Engine, request: Request) -> bool:
    """Return True if the prompt ends with the beginning of the answer's content."""
    partial = request.partial
    return partial is not None and (_has_ids(engine, partial) or bool(_handed_over(request, partial)[0]))


def _has_ids(engine: Engine, partial: Partial) -> bool:
    return bool(partial.ids) and partial.vocabulary == engine.info.vocabulary


def _handed_over(request: Request, partial: Partial) -> tuple[str, str]:
    """Return the text to hand over, and the whitespace at its end to hold back (none if the answer has a grammar).

    With a grammar the engine might not write optional whitespace again, and 1 and 2 on two lines would become 12.
    """
    return (partial.text, "") if _has_form(request) else split_trailing_whitespace(partial.text)


def _has_form(request: Request) -> bool:
    """Return True if the answer will be constrained to a grammar."""
    form = request.extra.get("response_format")
    return form is not None and not (isinstance(form, Mapping) and form.get("type") == "text")


def boundary_whitespace(engine: Engine, request: Request) -> str:
    """Return the whitespace held back from the end of a handed-over text, which the engine writes again; "" if none was held back."""
    partial = request.partial
    return "" if partial is None or _has_ids(engine, partial) else _handed_over(request, partial)[1]


def reasoning_splitter(engine: Engine, request: Request, ids: list[int]) -> ReasoningSplitter | None:
    """Return a splitter that separates the answer's reasoning from its content, or None if everything is content.

    Args:
        engine: the engine.
        request: the request. An answer that has begun or has a grammar continues with its content; an answer to a plain text isn't split.
        ids: the prompt's token ids, from ``request_ids``.
    """
    if not engine.info.has_reasoning or request.messages is None or _has_form(request) or _is_begun(engine, request):
        return None
    return ReasoningSplitter(is_open=opens_reasoning(engine, ids))


def is_short(request: Request) -> bool:
    """Return True if a request can be passed to an engine in less than a millisecond, so that no thread is needed."""
    if request.extra.get("response_format") is not None:
        return False
    length = len(request.partial.text) if request.partial is not None and request.partial.ids is None else 0
    if request.prompt is not None:
        length += len(request.prompt)
    elif request.prompt_ids is None:
        length += sum(len(str(message)) for message in request.messages or ())
    return length <= INLINE_CHARACTERS
