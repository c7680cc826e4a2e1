"""A loaded model, its properties and its vocabulary. Weights are read-only, so any thread may call everything here."""

from __future__ import annotations

import ctypes
import logging
import re
import stat
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from streamco.engines.base import ModelInfo
from streamco.engines.chat_template import ChatTemplate
from streamco.engines.llamacpp.amx_probe import TILES, Repacking, check_decoding, choose_repacking, tiled_weights
from streamco.engines.llamacpp.control_tokens import ControlTokens
from streamco.engines.llamacpp.gguf import content_mark
from streamco.engines.llamacpp.grammar import MaskTokenizer, TokenGrammar
from streamco.engines.llamacpp.library import collected_errors, extra_buffer, load_library
from streamco.engines.llamacpp.reasoning import TAGS, has_reasoning
from streamco.errors import EngineError, PromptError
from streamco.wire.token_frames import vocabulary_fingerprint

__all__ = ["LlamaModel", "check_file", "check_regular", "context_limit", "load_weights"]

logger = logging.getLogger("streamco.engine")

# Special tokens by the names that templates use for them (``special_tokens_map`` in transformers); GGUF does write "seperator".
_TOKEN_KEYS = {
    "bos_token": "bos",
    "cls_token": "cls",
    "eos_token": "eos",
    "mask_token": "mask",
    "pad_token": "padding",
    "sep_token": "seperator",
    "unk_token": "unknown",
}


class LlamaModel:
    """A GGUF file in memory.

    Args:
        path: the file.
        on_progress: called with 0.0 to 1.0 while it loads, from the loading thread.
        repack: use kernels that need weights in another order, all of them or only those for tiles of rows; None for all that are safe on
            this CPU (see ``amx_probe``).

    Attributes:
        repacking: the kernels that weights may be repacked for.

    Raises:
        EngineError: llama-cpp-python is missing, the file is missing or not a regular one, llama.cpp can't load it, or it has no
            vocabulary.
    """

    def __init__(self, path: Path, *, on_progress: Callable[[float], None] | None = None, repack: Repacking | None = None) -> None:
        self.path = path
        self.library: Any = load_library()
        check_file(path)
        self.repacking: Repacking = choose_repacking(path, self.library) if repack is None else repack
        if repack is None:
            check_decoding(path, self.library, self.repacking)
        self.handle = load_weights(self.library, path, repack=self.repacking, on_progress=on_progress)
        self._closed_as = ""
        self._changed = threading.Condition()  # around _readers, and around the handle when it is freed
        self._readers = 0  # calls that are using the vocabulary; ``close`` waits for them
        self._vocab = self.library.llama_model_get_vocab(self.handle)
        try:
            self._read()
        except BaseException:
            self.close()
            raise

    def _read(self) -> None:
        """Read what the file says about itself and its vocabulary."""
        library, vocab = self.library, self._vocab
        if library.llama_vocab_type(vocab) == library.LLAMA_VOCAB_TYPE_NONE:  # any other call would end the process
            raise EngineError(f"model {self.path}: expected a file with a vocabulary, got one without (tokenizer.ggml.model is none)")
        self.vocabulary_size = int(library.llama_vocab_n_tokens(vocab))
        self._bytes: list[bytes | None] = [None] * self.vocabulary_size
        self.end_ids = frozenset(i for i in range(self.vocabulary_size) if library.llama_vocab_is_eog(vocab, i))
        self._begin_ids = self._read_begin_ids()
        self.control_tokens = self._read_control_tokens()
        self._template, self._template_fault = self._read_template()
        self.info = self._read_info()

    def close(self, reason: str = "") -> None:
        """Free the memory; idempotent. No context may use it any more.

        Args:
            reason: the reason that errors of later calls give; "" to say that the engine is closed.
        """
        with self._changed:
            self._closed_as = self._closed_as or reason
            handle, self.handle = self.handle, None
            self._changed.wait_for(lambda: not self._readers)
        if handle is not None:
            self.library.llama_model_free(handle)

    # Vocabulary

    def tokenize(self, text: str, *, special: bool = False, bos: bool = False) -> list[int]:
        """Return the token ids of a text.

        Args:
            text: any text; lone surrogates are encoded as bytes.
            special: turn the text of control tokens into those tokens.
            bos: put the model's begin token first, if the model has and uses one; never an end token, which some files request as well.
        """
        data = text.encode("utf-8", "surrogatepass")
        size = len(data) + 2
        ids = (ctypes.c_int32 * size)()
        with self._reading():
            count = self.library.llama_tokenize(self._vocab, data, len(data), ids, size, False, special)
        if count < 0:
            raise EngineError(f"tokenize: expected at most {size} tokens for {len(data)} bytes, got {-count}")
        return [*self._begin_ids, *ids[:count]] if bos else ids[:count]

    def token_bytes(self, token: int) -> bytes:
        """Return the text of one token id as bytes; b"" for control tokens and ids beyond the vocabulary."""
        if not 0 <= token < self.vocabulary_size:
            return b""
        data = self._bytes[token]
        if data is None:
            data = self._bytes[token] = self._read_piece(token)
        return data

    def detokenize(self, ids: Sequence[int]) -> bytes:
        """Return the text of token ids as bytes, without control tokens."""
        return b"".join(map(self.token_bytes, ids))

    def apply_template(self, messages: Sequence[Mapping[str, Any]], *, add_generation_prompt: bool = True) -> str:
        """Return the prompt's text.

        Raises:
            PromptError: the model has no chat template that can be used, or it refused these messages.
        """
        if self._template is None:
            raise PromptError(f"messages: expected a chat model, got {self.info.name}, {self._template_fault}")
        return self._template.render(messages, add_generation_prompt=add_generation_prompt)

    def grammar(self, schema: str, begun: bytes = b"") -> TokenGrammar:
        """Return the grammar of one answer that must match a JSON schema; see ``TokenGrammar``.

        Raises:
            ConfigError: the schema can't be enforced, or llguidance isn't installed.
            EngineError: the beginning doesn't fit it, or the model is closed.
        """
        with self._reading():
            return TokenGrammar(MaskTokenizer.of(self.library, self._vocab, self), self, schema, begun)

    @property
    def can_share_prefixes(self) -> bool:
        """True if sequences can share the memory of a common prefix; False for models with recurrent states or sliding windows."""
        library, handle = self.library, self.handle
        return not (library.llama_model_is_recurrent(handle) or library.llama_model_is_hybrid(handle) or library.llama_model_n_swa(handle))

    # Loading

    def _read_info(self) -> ModelInfo:
        library, handle = self.library, self.handle
        width = int(library.llama_model_n_embd(handle))
        architecture = self._metadata("general.architecture")
        name = self._metadata("general.name") or self.path.stem
        return ModelInfo(
            name=name,
            vocabulary_size=self.vocabulary_size,
            vocabulary=self._fingerprint(),
            context_tokens=int(library.llama_model_n_ctx_train(handle)),
            has_chat_template=self._template is not None,
            parameters=int(library.llama_model_n_params(handle)),
            layers=int(library.llama_model_n_layer(handle)),
            width=width,
            heads=int(library.llama_model_n_head(handle)),
            ffn_width=int(self._metadata(f"{architecture}.feed_forward_length") or 4 * width),
            end_ids=self.end_ids,
            content_mark=content_mark(self.path)[:32],
            has_reasoning=has_reasoning(name, self._template_source()),
        )

    def _fingerprint(self) -> str:
        read = self.library.llama_vocab_get_text
        return vocabulary_fingerprint(read(self._vocab, token) or b"" for token in range(self.vocabulary_size))

    def _read_control_tokens(self) -> ControlTokens:
        """Return the tokens that llama.cpp finds in text only with ``parse_special``."""
        library = self.library
        attributes = {token: int(library.llama_vocab_get_attr(self._vocab, token)) for token in range(self.vocabulary_size)}
        special = library.LLAMA_TOKEN_ATTR_CONTROL | library.LLAMA_TOKEN_ATTR_UNKNOWN
        tokens = [token for token, flags in attributes.items() if flags & special]
        texts = {self._entry(token): token for token in tokens}
        for tag in TAGS:  # a model's tags around its reasoning are text, even in files that call them control tokens
            if tag in texts:
                self._bytes[texts[tag]] = tag.encode()
        return ControlTokens(
            texts,
            left_strips=frozenset(token for token in tokens if attributes[token] & library.LLAMA_TOKEN_ATTR_LSTRIP),
            right_strips=frozenset(token for token in tokens if attributes[token] & library.LLAMA_TOKEN_ATTR_RSTRIP),
        )

    def _read_begin_ids(self) -> list[int]:
        """Return a list with the begin token, or [] if the file doesn't ask for texts to begin with one."""
        begin = int(self.library.llama_vocab_bos(self._vocab))
        return [begin] if self.library.llama_vocab_get_add_bos(self._vocab) and 0 <= begin < self.vocabulary_size else []

    def _read_template(self) -> tuple[ChatTemplate | None, str]:
        """Return the chat template, or None and the reason. Without a template, everything that needs none still works.

        Raises:
            EngineError: the template exceeds its limits.
        """
        source = self._template_source()
        if not source:
            return None, "which has no chat template"
        try:
            template = ChatTemplate(source, self._read_special_tokens())
            left_out = template.check()
        except PromptError as exc:
            fault = f"whose chat template can't be used (a prompt without messages needs none): {exc}"
            logger.warning("model %s: chats are refused, but all else works, because its chat template can't be used: %s", self.path, exc)
            return None, fault
        if left_out:
            level = logging.WARNING if {"assistant", "system"}.intersection(left_out) else logging.INFO
            logger.log(level, "model %s: its chat template leaves out these roles, and chats with one are refused: %s", self.path, left_out)
        return template, ""

    def _template_source(self) -> str:
        return (self.library.llama_model_chat_template(self.handle, None) or b"").decode("utf-8", "replace")

    def _read_special_tokens(self) -> dict[str, str]:
        """Return the texts of the special tokens that the file names, by the names that templates use for them."""
        library, vocab = self.library, self._vocab
        found = {name: self._metadata(f"tokenizer.ggml.{key}_token_id") for name, key in _TOKEN_KEYS.items()}
        ids = {name: int(number) for name, number in found.items() if number.isdecimal()}
        ids |= {"bos_token": library.llama_vocab_bos(vocab), "eos_token": library.llama_vocab_eos(vocab)}  # llama.cpp may know better
        return {name: self._entry(token) for name, token in ids.items() if 0 <= token < self.vocabulary_size}

    def _entry(self, token: int) -> str:
        """Return a token's text in the vocabulary, or "" if there is no such token (-1)."""
        text = self.library.llama_vocab_get_text(self._vocab, token) if token >= 0 else b""
        return (text or b"").decode("utf-8", "replace")

    def _metadata(self, key: str) -> str:
        size = 1024
        buffer = ctypes.create_string_buffer(size)
        length = self.library.llama_model_meta_val_str(self.handle, key.encode(), buffer, size)
        return buffer.value.decode("utf-8", "replace") if length > 0 else ""

    def _read_piece(self, token: int) -> bytes:
        with self._reading():
            size = 64
            while True:
                buffer = ctypes.create_string_buffer(size)
                length = self.library.llama_token_to_piece(self._vocab, token, buffer, size, 0, False)
                if length >= 0:
                    return buffer.raw[:length]
                size = -length  # a negative length is the required size

    @contextmanager
    def _reading(self) -> Iterator[None]:
        """Keep the model open inside the block. Callers don't wait for each other, because one long text must not delay the others."""
        with self._changed:
            if self.handle is None:
                raise EngineError(f"model {self.path.name}: {self._closed_as or 'the engine is closed'}")
            self._readers += 1
        try:
            yield
        finally:
            with self._changed:
                self._readers -= 1
                self._changed.notify_all()


def context_limit(info: ModelInfo, wanted: int) -> int:
    """Return the size of a context in tokens: the wanted size, or the size that the model was trained for, if it is known and smaller."""
    trained = info.context_tokens
    if 0 < trained < wanted:
        logger.warning("%s: expected a context of up to %d tokens, which it was trained for, got %d; it is cut", info.name, trained, wanted)
        return trained
    return wanted


def load_weights(library: Any, path: Path, *, repack: Repacking, on_progress: Callable[[float], None] | None = None) -> Any:
    """Return llama.cpp's handle of a model.

    Args:
        library: llama.cpp.
        path: the GGUF file.
        repack: see ``LlamaModel``.
        on_progress: see ``LlamaModel``.

    Raises:
        EngineError: llama.cpp can't load the file.
    """
    parameters = library.llama_model_default_params()
    parameters.use_extra_bufts = repack is True
    tiles = _tile_overrides(library, path) if repack == "tiles" else None  # it must live until the model is loaded
    if tiles is not None:
        parameters.tensor_buft_overrides = ctypes.cast(tiles, ctypes.c_void_p)
    failures: list[BaseException] = []

    def progress(share: float, _data: object) -> bool:
        try:
            if on_progress is not None:
                on_progress(share)
        except BaseException as exc:  # noqa: BLE001  # must not unwind through C; raised below
            failures.append(exc)
        return not failures

    parameters.progress_callback = callback = library.llama_progress_callback(progress)
    with collected_errors(library) as errors:
        handle = library.llama_model_load_from_file(str(path).encode(), parameters)
    del callback  # it had to live until here
    if failures:
        if handle:
            library.llama_model_free(handle)
        raise failures[0]
    if not handle:
        raise EngineError(f"model {path}: expected a GGUF file that llama.cpp can load, got {'; '.join(errors) or 'no reason'}")
    return handle


class _Override(ctypes.Structure):
    """``llama_model_tensor_buft_override``: weights whose names match go into this buffer type."""

    _fields_ = (("pattern", ctypes.c_char_p), ("buffer_type", ctypes.c_void_p))


def _tile_overrides(library: Any, path: Path) -> ctypes.Array[_Override] | None:
    """Return a list for llama.cpp that repacks the weights that kernels for tiles support, or None if there are none."""
    names, buffer = tiled_weights(path, library), extra_buffer(library, TILES)
    if not names or buffer is None:
        return None
    pattern = "^({})$".format("|".join(map(re.escape, names)))
    return (_Override * 2)(_Override(pattern.encode(), buffer), _Override(None, None))


def check_regular(path: Path) -> None:
    """Raise an error if a file is a pipe, a socket or a device, because opening one may block forever. A missing file is no error here.

    Raises:
        EngineError: it is a pipe, a socket or a device.
    """
    try:
        kind = path.stat().st_mode
    except OSError:
        return
    if not (stat.S_ISREG(kind) or stat.S_ISDIR(kind)):
        raise EngineError(f"model {path}: expected a regular file, got a pipe, a socket or a device")


def check_file(path: Path) -> None:
    """Raise an error unless the file is a regular one and begins like a GGUF file.

    Raises:
        EngineError: it is another kind of file, or can't be read.
    """
    try:
        check_regular(path)
        with path.open("rb") as file:
            magic = file.read(4)
    except OSError as exc:
        raise EngineError(f"model {path}: expected a file that can be read, got {exc.strerror or exc}") from exc
    if magic != b"GGUF":
        raise EngineError(f"model {path}: expected a GGUF file (it begins with GGUF), got one that begins with {magic!r}")
