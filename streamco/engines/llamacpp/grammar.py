"""The tokens that may come next in an answer that must match a JSON schema; llguidance reads the schema and makes the masks.

A mask of a small model's 49,152 tokens takes 20 to 200 us to compute; reading the vocabulary takes 0.5 s, once for each model.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Protocol, TypeVar

from streamco.engines.llamacpp.library import library_address
from streamco.errors import ConfigError, EngineError, shorten

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

__all__ = ["MaskTokenizer", "Pieces", "TokenGrammar", "check_schema"]

_T = TypeVar("_T")

MAX_SPACES = 20  # of an indentation, because a small model may write whitespace for ever
MAX_STATES = 50_000  # of llguidance's lexer, 1 to 2 kB each; its default is five times as many
STACK = 64 << 20  # bytes; llguidance needs some 10 kB of stack per level of a schema, and a stack overflow ends the process
# They take precedence over what a schema itself says in "x-guidance".
_OPTIONS: dict[str, Any] = {
    "coerce_one_of": True,
    "item_separator": ",",
    "json_allow_general_unicode_escapes": True,
    "json_allowed_escapes": 'nrbtf\\"u',
    "key_separator": ":",
    "lenient": False,
    "whitespace_pattern": rf"( |\n[ \t]{{0,{MAX_SPACES}}})",
}
_building = threading.Lock()
_threads = threading.Lock()


class Pieces(Protocol):
    """The part of a model from which the bytes of its tokens are read."""

    vocabulary_size: int
    end_ids: frozenset[int]

    def token_bytes(self, token: int, /) -> bytes:
        """Return the text of one token as bytes; b"" for control tokens."""
        ...


class MaskTokenizer:
    """A model's vocabulary for llguidance. Each model has one, made when it is needed.

    Args:
        library: llama.cpp.
        handle: llama.cpp's handle of the vocabulary, which must outlive the object.
        model: the model that it belongs to.
    """

    _of_models: ClassVar[weakref.WeakKeyDictionary[Pieces, MaskTokenizer]] = weakref.WeakKeyDictionary()

    def __init__(self, library: Any, handle: int, model: Pieces) -> None:
        guidance = _guidance()
        ends = sorted(model.end_ids)
        pieces = [b"" if token in model.end_ids else model.token_bytes(token) for token in range(model.vocabulary_size)]
        self.tokenizer = guidance.LLTokenizer.from_llamacpp(
            tokens=[piece or b"\xff<%d>" % token for token, piece in enumerate(pieces)],  # 0xff marks a control token, which isn't text
            vocab_ptr=handle,
            tokenize_fptr=library_address(library, "llama_tokenize"),
            eos_token=ends,
        )
        self.of_byte = {piece[0]: token for token, piece in enumerate(pieces) if len(piece) == 1}

    @classmethod
    def of(cls, library: Any, handle: int, model: Pieces) -> MaskTokenizer:
        """Return a model's vocabulary; thread-safe."""
        with _building:
            found = cls._of_models.get(model)
            if found is None:
                found = cls._of_models[model] = cls(library, handle, model)
        return found


class TokenGrammar:
    """The tokens that may come next in one answer. Once it is made, it belongs to one thread.

    Args:
        vocabulary: the model's vocabulary.
        model: the model.
        schema: the JSON schema, as text.
        begun: the beginning of the answer, which must fit.

    Raises:
        ConfigError: the schema can't be enforced.
        EngineError: the beginning doesn't fit.
    """

    def __init__(self, vocabulary: MaskTokenizer, model: Pieces, schema: str, begun: bytes = b"") -> None:
        self._model = model
        self._ends = sorted(model.end_ids)
        self._matcher = _matcher(vocabulary.tokenizer, schema)
        for index, byte in enumerate(begun):
            token = vocabulary.of_byte.get(byte)
            if token is None or not self._matcher.try_consume_tokens([token]):
                got = begun[max(0, index - 20) : index + 1].decode("utf-8", "replace")
                raise EngineError(f"response_format: expected an answer that begins as asked for, got {got!r} at its byte {index + 1}")
        self._mask: NDArray[np.bool_] | None = None  # of the tokens that may come next; None if not computed since the last one

    def fits(self, ids: Sequence[int] | NDArray[np.integer[Any]]) -> NDArray[np.bool_]:
        """Return an array that says for each token whether it may come next; end tokens may if the answer is complete.

        Raises:
            EngineError: at this point, the schema takes more time or memory than an answer may use.
        """
        import numpy as np

        found: NDArray[np.bool_] = self._allowed()[np.asarray(ids, np.int64)]
        return found

    def allowed(self) -> NDArray[np.integer[Any]]:
        """Return all tokens that may come next, in ascending order; end tokens if the answer is complete.

        Raises:
            EngineError: see ``fits``.
        """
        return self._allowed().nonzero()[0]

    def accept(self, token: int) -> None:
        """Add a token to the answer; it must fit, and nothing may come after an end token.

        Raises:
            EngineError: see ``fits``.
        """
        if not self._allowed()[token]:
            raise AssertionError(f"token {token} was not checked")
        if token in self._model.end_ids:
            return
        self._mask = None
        if not self._matcher.consume_token(token):
            raise self._failed()

    @property
    def is_over(self) -> bool:
        """True if the answer is complete, and nothing may follow."""
        return bool(self._matcher.is_stopped() and self._matcher.is_accepting())

    def _allowed(self) -> NDArray[np.bool_]:
        import numpy as np

        if self._mask is None:
            bits = np.frombuffer(self._matcher.compute_bitmask(), np.uint8)
            if self._matcher.is_error():
                raise self._failed()
            mask = np.unpackbits(bits, count=self._model.vocabulary_size, bitorder="little").view(np.bool_)
            mask[self._ends] = self._matcher.is_accepting()
            self._mask = mask
        return self._mask

    def _failed(self) -> EngineError:
        return EngineError(f"response_format: expected a schema that fits in the limits of llguidance, got {_reason(self._matcher)}")


def check_schema(schema: str) -> None:
    """Check without a model that answers can be made to match a JSON schema; if llguidance isn't installed, nothing is checked.

    Raises:
        ConfigError: the schema can't be enforced, or no answer fits it.
    """
    try:
        guidance = _guidance()
    except ConfigError:
        return
    _matcher(guidance.LLTokenizer("byte"), schema)


def _matcher(tokenizer: Any, schema: str) -> Any:
    """Return llguidance's object for one answer.

    Raises:
        ConfigError: the schema can't be enforced, or no answer fits.
    """
    guidance = _guidance()
    limits = guidance.LLParserLimits(max_lexer_states=MAX_STATES, verbose_errors=False)
    try:
        grammar = guidance.LLMatcher.grammar_from_json_schema(schema, overrides=_OPTIONS)
    except ValueError as exc:
        raise _refused(str(exc)) from exc
    matcher = _on_large_stack(lambda: guidance.LLMatcher(tokenizer, grammar, log_level=0, limits=limits))
    if not matcher.is_error():
        matcher.compute_bitmask()  # a schema that only refers to itself fails here
    if matcher.is_error():
        raise _refused(_reason(matcher))
    return matcher


def _refused(reason: str) -> ConfigError:
    return ConfigError(f"response_format: schema: expected one that answers can be held to, got {shorten(reason)}")


def _reason(matcher: Any) -> str:
    return shorten(next(iter(str(matcher.get_error()).strip().splitlines()), "no reason"))


def _on_large_stack(call: Callable[[], _T]) -> _T:
    """Run a call in a thread with a large stack, and return its result."""
    found: list[_T] = []
    thread = threading.Thread(target=lambda: found.append(call()), name="streamco schema")
    with _threads:
        before = threading.stack_size(STACK)
        try:
            thread.start()
        finally:
            threading.stack_size(before)
    thread.join()
    return found[0]


def _guidance() -> Any:
    """Return the module ``llguidance``.

    Raises:
        ConfigError: it isn't installed.
    """
    try:
        import llguidance
    except ImportError as exc:
        raise ConfigError("response_format: needs the package llguidance: pip install 'streamco[prebuilt]'") from exc
    return llguidance
