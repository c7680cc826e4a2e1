"""A grammar that an answer must keep to: llama.cpp's, asked only for tokens that can't end the process.

llama.cpp ends the process if a token is accepted that the grammar doesn't allow. It also takes bytes that aren't UTF-8 for characters,
reads a token up to its first zero byte, and takes the text of control tokens for text, though an answer's text has none of them. So each
token is checked before it is accepted, control tokens and zeros never fit, and bytes must be the beginning of UTF-8.

One token takes some 10 us, all 49,152 of a vocabulary 10 to 30 ms. So tokens that begin with a byte that can't follow are left out first.
"""

from __future__ import annotations

import ctypes
import threading
import weakref
from codecs import getincrementaldecoder
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Protocol

from streamco.errors import ConfigError, EngineError, shorten

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

__all__ = ["Pieces", "TokenGrammar", "VocabularyBytes"]

# kinds of a token's bytes: none that can be text, UTF-8, cut at the end, or cut at the beginning
_NOTHING, _TEXT, _BEGINNING, _REST = range(4)
_UTF8 = getincrementaldecoder("utf-8")
_building = threading.Lock()


class Pieces(Protocol):
    """The part of a model that the bytes of its tokens are read from."""

    vocabulary_size: int
    end_ids: frozenset[int]

    def token_bytes(self, token: int, /) -> bytes:
        """Return the bytes of one token; b"" for control tokens."""
        ...


class VocabularyBytes:
    """Bytes that the tokens of a vocabulary begin with. To read 49,152 tokens takes 0.1 s, so it is made once for a model, when needed.

    Args:
        model: the model.
    """

    _of_models: ClassVar[weakref.WeakKeyDictionary[Pieces, VocabularyBytes]] = weakref.WeakKeyDictionary()

    def __init__(self, model: Pieces) -> None:
        import numpy as np

        pieces = [b"" if token in model.end_ids else model.token_bytes(token) for token in range(model.vocabulary_size)]
        self.kinds = np.array([_kind(piece) for piece in pieces], np.uint8)
        self.first = np.array([piece[0] if piece else 0 for piece in pieces], np.uint8)
        self.of_byte = np.full(256, -1, np.int32)  # the token that is one byte; -1: there is none
        for token, piece in enumerate(pieces):
            if len(piece) == 1:
                self.of_byte[piece[0]] = token

    @classmethod
    def of(cls, model: Pieces) -> VocabularyBytes:
        """Return the bytes of a model's vocabulary; thread-safe."""
        with _building:
            found = cls._of_models.get(model)
            if found is None:
                found = cls._of_models[model] = cls(model)
        return found


class TokenGrammar:
    """The tokens that may come next in one answer. Belongs to one thread after it is made.

    Args:
        library: the module ``llama_cpp``.
        vocabulary: llama.cpp's handle of the model's vocabulary, which must outlive the object.
        model: the model that it is of.
        text: the grammar in llama.cpp's form (GBNF); its first rule is ``root``.
        begun: what the answer has already, which must fit.

    Raises:
        ConfigError: llama.cpp can't read the grammar.
        EngineError: the beginning doesn't fit.
    """

    def __init__(self, library: Any, vocabulary: Any, model: Pieces, text: str, begun: bytes = b"") -> None:
        self._model = model
        self._library = library
        self._bytes = VocabularyBytes.of(model)
        self._ends = sorted(model.end_ids)
        self._pending = b""  # beginning of a character
        if "\0" in text or not text.strip():
            raise ConfigError(f"grammar: expected text, got {shorten(repr(text))}")
        handle = self._library.llama_sampler_init_grammar(vocabulary, text.encode(), b"root")
        if not handle:
            raise ConfigError(f"grammar: expected one that llama.cpp can read, got {shorten(text)}")
        self._handle = handle
        self._free = weakref.finalize(self, self._library.llama_sampler_free, handle)
        self._free.atexit = False  # an engine's thread may still use it then
        for index, byte in enumerate(begun):
            token = int(self._bytes.of_byte[byte])
            if token < 0 or not self.fits([token])[0]:
                got = begun[max(0, index - 20) : index + 1].decode("utf-8", "replace")
                raise EngineError(f"response_format: expected an answer that begins as asked for, got {got!r} at its byte {index + 1}")
            self.accept(token)

    def fits(self, ids: Sequence[int] | NDArray[np.integer[Any]]) -> NDArray[np.bool_]:
        """Return for each token whether it may come next; end tokens may if the answer is whole."""
        import numpy as np

        tokens = np.asarray(ids, np.int32)
        kinds = self._bytes.kinds[tokens]
        possible: NDArray[np.bool_]
        if self._pending:
            possible = kinds == _REST
            possible[possible] = [self._continues(int(token)) for token in tokens[possible]]
        else:
            possible = (kinds == _TEXT) | (kinds == _BEGINNING) | np.isin(tokens, self._ends)
        possible[possible] = self._apply(tokens[possible])
        return possible

    def allowed(self) -> NDArray[np.int32]:
        """Return all tokens that may come next, in ascending order; end tokens if the answer is whole."""
        import numpy as np

        known = np.flatnonzero(self._bytes.of_byte >= 0)
        begins = np.ones(256, bool)  # a byte without a token of its own can't be tried
        begins[known] = self._apply(self._bytes.of_byte[known])
        likely = begins[self._bytes.first]
        likely[self._ends] = True
        tokens = np.flatnonzero(likely).astype(np.int32)
        return tokens[self.fits(tokens)]

    def accept(self, token: int) -> None:
        """Go on after a token, which must fit; nothing may come after an end token."""
        if not self.fits([token])[0]:
            raise AssertionError(f"token {token} was not checked: llama.cpp would end the process")
        if token in self._model.end_ids:
            return
        self._pending = _unfinished(self._pending + self._model.token_bytes(token))
        self._library.llama_sampler_accept(self._handle, token)

    @property
    def is_over(self) -> bool:
        """True if the answer is whole, and nothing may follow."""
        import numpy as np

        if not len(self._ends) or not self.fits(self._ends[:1])[0]:
            return False
        return bool(np.isin(self.allowed(), self._ends).all())

    def _continues(self, token: int) -> bool:
        """Return True if a token goes on with the character that is not whole."""
        return _kind(self._pending + self._model.token_bytes(token)) in {_TEXT, _BEGINNING}

    def _apply(self, tokens: NDArray[np.int32]) -> NDArray[np.bool_]:
        """Return for each token whether llama.cpp keeps it."""
        import numpy as np

        library = self._library
        rows = np.zeros(len(tokens), [("id", np.int32), ("logit", np.float32), ("p", np.float32)])
        rows["id"] = tokens
        data = rows.ctypes.data_as(ctypes.POINTER(library.llama_token_data))
        candidates = library.llama_token_data_array(data=data, size=len(rows), selected=-1, sorted=False)
        library.llama_sampler_apply(self._handle, ctypes.byref(candidates))
        kept: NDArray[np.bool_] = rows["logit"] == 0
        return kept


def _kind(piece: bytes) -> int:
    if b"\0" in piece or not piece:  # llama.cpp doesn't read on after a zero
        return _NOTHING
    try:
        rest = _unfinished(piece)
    except UnicodeDecodeError:
        return _REST
    if rest[:1] == b"\xed" and rest[1:2] > b"\x9f":  # of a surrogate, which Python's decoder takes until it is whole
        return _REST
    return _BEGINNING if rest else _TEXT


def _unfinished(data: bytes) -> bytes:
    """Return the beginning of a character at the end of bytes that are UTF-8 up to there."""
    decoder = _UTF8()
    decoder.decode(data, final=False)
    return decoder.getstate()[0]
