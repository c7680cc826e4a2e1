"""What an answer says, and how the oracle collects it: texts, calls, counts and the question whether the answer is whole."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any, Literal

Json = dict[str, Any]
Ends = Literal["clean", "cut", "stall"]
FailureKind = Literal["failed", "cut", "malformed"]

NOT_KNOWN = None
"""No believable count came: an estimate takes its place, and is marked as one."""

FAILING = frozenset(
    {
        "abort",
        "aborted",
        "error",
        "network_error",
        "insufficient_system_resource",
        "error_finish",
        "timeout",
        "cancelled",
        "canceled",
        "failed",
    }
)
"""Finish reasons by which a server says that it gave up, in lower case."""


@dataclass(frozen=True, slots=True)
class Call:
    """One tool call.

    Args:
        name: the tool's name, "" if none came.
        arguments: the arguments as JSON text, "{}" for none; the input of a custom tool.
        id: the id that the server gave it; None if it gave none, so that any will do.
        is_custom: it calls a custom tool.
        is_exact: the arguments came as text, so each character counts; if not, an object came and only its value counts.
    """

    name: str
    arguments: str
    id: str | None = None
    is_custom: bool = False
    is_exact: bool = True


@dataclass(frozen=True, slots=True)
class Reading:
    """The right reading of an answer; of one that isn't whole it has what came before the failure.

    Args:
        whole: nothing is missing.
        failure: why it isn't whole: the server said so, it was cut short (or fell silent), or it can't be understood.
        word: a part of the server's own words about its failure, "" if it has none.
        reason: the finish reason by the chat API's names; None if none came, so that a reader may take the one that fits, and if the answer
            isn't whole.
        prompt_tokens, completion_tokens: the counts, or NOT_KNOWN.
        logprobs: the log-probability of each token of the chat API's text.
    """

    text: str = ""
    reasoning: str = ""
    refusal: str = ""
    calls: tuple[Call, ...] = ()
    reason: str | None = None
    prompt_tokens: int | None = NOT_KNOWN
    completion_tokens: int | None = NOT_KNOWN
    logprobs: tuple[float, ...] = ()
    whole: bool = True
    failure: FailureKind | None = None
    word: str = ""


class AnswerFailed(Exception):
    """The answer can't become whole any more."""

    def __init__(self, kind: FailureKind, word: str = "") -> None:
        super().__init__(kind, word)
        self.kind: FailureKind = kind
        self.word = word


class Texts:
    """Pieces of texts in the order of their arrival; halves of a character wait for the next piece of the same text."""

    def __init__(self) -> None:
        self._pieces: list[str] = []
        self._waiting: dict[object, str] = {}
        self.given: dict[object, str] = {}

    def add(self, piece: str, place: object = None) -> None:
        piece = self._waiting.pop(place, "") + piece
        if piece and "\ud800" <= piece[-1] <= "\udbff":
            self._waiting[place] = piece[-1]
            piece = piece[:-1]
        piece = _replace_halves(piece)
        self._pieces.append(piece)
        self.given[place] = self.given.get(place, "") + piece

    def complete(self, whole: str, place: object = None) -> bool:
        """Add what the pieces of a text lack of its whole form; return True if there was something."""
        given = self.given.get(place, "")
        if whole == given or not whole.startswith(given):
            return False
        self._waiting.pop(place, None)
        self.add(whole[len(given) :], place)
        return True

    def join(self, *, is_whole: bool) -> str:
        """Return the text. A half that is left alone is U+FFFD in a whole answer, and nobody has it of a broken one."""
        return "".join([*self._pieces, *(["\ufffd"] * len(self._waiting) if is_whole else [])])


def _replace_halves(text: str) -> str:
    """Join the halves that meet, and put U+FFFD for each that is alone."""
    return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")


@dataclass(slots=True)
class CallDraft:
    """A call while it is read."""

    name: str | None = None
    id: str | None = None
    is_custom: bool = False
    is_exact: bool = True
    is_hosted: bool = False
    arguments: Texts = field(default_factory=Texts)

    def add(self, value: object) -> bool:
        """Add a piece of the arguments; return True if it holds something."""
        if isinstance(value, str):
            self.arguments.add(value)
        elif value is not None:
            self.arguments.add(json.dumps(value, ensure_ascii=False))
            self.is_exact = False
        return value not in (None, "")

    def may_end_before(self, name: str | None) -> bool:
        """Return True if the name begins another call: nobody knows where the input of a custom tool ends, except by another name."""
        if self.is_custom:
            return name != self.name and self.arguments.join(is_whole=True) != ""
        return self.has_complete_arguments()

    def has_complete_arguments(self) -> bool:
        try:
            json.loads(self.arguments.join(is_whole=True))
        except ValueError:
            return False
        return True

    def call(self, *, is_whole: bool) -> Call:
        arguments = self.arguments.join(is_whole=is_whole)
        if is_whole and not self.is_custom and not arguments.strip():
            arguments = "{}"
        return Call(self.name or "", arguments, self.id, self.is_custom, self.is_exact)


class Counts:
    """The counts of the usage: the last one that can be true."""

    _PROMPT = ("prompt_tokens", "input_tokens")
    _COMPLETION = ("completion_tokens", "output_tokens")

    def __init__(self) -> None:
        self.prompt: int | None = None
        self.completion: int | None = None

    def read(self, usage: object, *, has_completion: bool = True) -> None:
        if not isinstance(usage, dict):
            return
        self.prompt = self._count(usage, self._PROMPT) or self.prompt
        if has_completion:
            self.completion = self._count(usage, self._COMPLETION) or self.completion

    @staticmethod
    def _count(usage: Json, names: tuple[str, ...]) -> int | None:
        for name in names:
            value = usage.get(name)
            if isinstance(value, int) and not isinstance(value, bool):
                if name == "input_tokens":  # Anthropic's count leaves out what its cache holds
                    value += sum(usage.get(key) or 0 for key in ("cache_creation_input_tokens", "cache_read_input_tokens"))
                if value > 0:
                    return value
        return None


class Ending:
    """The question whether an answer is whole."""

    def __init__(self) -> None:
        self.last_reason: str | None = None
        self.is_standing = False
        self.was_taken_back = False
        self.has_content = False
        self.is_marked = False
        self.has_other_keys = False

    def record_content(self) -> None:
        if self.is_standing:
            self.is_standing = False
            self.was_taken_back = True
        self.has_content = True

    def record_reason(self, reason: object) -> None:
        if not isinstance(reason, str) or reason.strip() in ("", "null"):
            return
        if reason.strip().lower() in FAILING:
            raise AnswerFailed("failed", reason)
        self.last_reason = reason
        self.is_standing = True

    def record_mark(self) -> None:
        self.is_marked = True

    def failure(self, ends: Ends, *, is_torn: bool) -> FailureKind | None:
        """Return why the answer isn't whole, None if it is. A torn body ends in half an event."""
        is_final = self.is_marked or (ends == "clean" and not is_torn and self.last_reason is not None)
        if is_final:
            is_explained = self.last_reason is not None and self.last_reason.strip().lower() in ("content_filter", "length")
            if self.has_content or is_explained or (self.last_reason is not None and not self.has_other_keys):
                return None
            return "malformed"
        if self.is_standing and not self.was_taken_back and self.has_content:
            return None
        return "cut"


class Answer:
    """What has been read of an answer."""

    def __init__(self) -> None:
        self.text = Texts()
        self.reasoning = Texts()
        self.refusal = Texts()
        self.calls: list[CallDraft] = []
        self.counts = Counts()
        self.logprobs: list[float] = []
        self.ending = Ending()

    def add(self, texts: Texts, piece: object, place: object = None) -> None:
        """Add a piece of a text, if it is one."""
        if isinstance(piece, str) and piece:
            self.ending.record_content()
            texts.add(piece, place)

    def complete(self, texts: Texts, whole: object, place: object = None) -> None:
        """Add what the pieces of a text lack, if its whole form is one."""
        if isinstance(whole, str) and texts.complete(whole, place):
            self.ending.record_content()

    def reading(self, failure: FailureKind | None, word: str = "") -> Reading:
        is_whole = failure is None
        return Reading(
            text=self.text.join(is_whole=is_whole),
            reasoning=self.reasoning.join(is_whole=is_whole),
            refusal=self.refusal.join(is_whole=is_whole),
            calls=tuple(draft.call(is_whole=is_whole) for draft in self.calls if not draft.is_hosted),
            reason=self.ending.last_reason if is_whole else None,
            prompt_tokens=self.counts.prompt,
            completion_tokens=self.counts.completion,
            logprobs=tuple(self.logprobs),
            whole=is_whole,
            failure=failure,
            word=word,
        )
