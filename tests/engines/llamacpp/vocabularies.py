"""A small vocabulary of llama.cpp's without a model: the 256 bytes, some words, cut characters, a control token and an end token."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from streamco.engines.llamacpp.grammar import MaskTokenizer, TokenGrammar
from streamco.engines.llamacpp.library import load_library

WORDS = [
    *(b"{", b'{"', b'":', b'": ', b'",', b'", "', b"}", b"}}", b"[[", b"]]", b"],", b"\n", b"\n\n", b"\n  ", b"  ", b' "', b"\\", b'\\"'),
    *(b"true", b"false", b"null", b"name", b"nam", b"age", b"red", b"green", b"10", b"12", b"-1", b".5", b"e9", b"00", b"a\x00", b"\x00"),
    *("é".encode(), "€".encode(), "€".encode()[:2], "€".encode()[1:], "😀".encode()[:3], b'\xc3"', b'\xa9"', b"\xff", b"a\xc3", b'a"'),
    *(b"\xed\xa0\x80", b"\xc0\xaf", b"\x7f", b"\\u", b"\\ud8", b"d800", b"]" * 5, b"{" * 9, b"2024-", b"T10:", b"Z"),
]
CONTROL, END = "<|im_start|>", "<|end|>"


class SmallVocabulary:
    """Implements ``Pieces``, and makes grammars as ``LlamaModel`` does."""

    def __init__(self, folder: Path) -> None:
        self.library: Any = load_library()
        path = folder / "vocabulary.gguf"
        self._write(path)
        parameters = self.library.llama_model_default_params()
        parameters.vocab_only = True
        self._handle = self.library.llama_model_load_from_file(str(path).encode(), parameters)
        assert self._handle
        self.vocab = self.library.llama_model_get_vocab(self._handle)
        self.vocabulary_size = int(self.library.llama_vocab_n_tokens(self.vocab))
        self.end_ids = frozenset(token for token in range(self.vocabulary_size) if self.library.llama_vocab_is_eog(self.vocab, token))
        assert self.end_ids == {self.vocabulary_size - 1}
        self.end = self.vocabulary_size - 1
        self.control = self.vocabulary_size - 2

    def close(self) -> None:
        self.library.llama_model_free(self._handle)

    def token_bytes(self, token: int) -> bytes:
        import ctypes

        buffer = ctypes.create_string_buffer(64)
        length = self.library.llama_token_to_piece(self.vocab, token, buffer, 64, 0, False)
        return buffer.raw[: max(0, length)]

    def id_of(self, piece: bytes) -> int:
        return next(token for token in range(self.vocabulary_size) if self.token_bytes(token) == piece)

    def ids_of(self, text: str) -> list[int]:
        return [self.id_of(bytes([byte])) for byte in text.encode()]

    def grammar(self, text: str, begun: bytes = b"") -> TokenGrammar:
        return TokenGrammar(MaskTokenizer.of(self.library, self.vocab, self), self, text, begun)

    @staticmethod
    def _write(path: Path) -> None:
        import gguf

        writer = gguf.GGUFWriter(path, "llama")
        add_vocabulary(writer)
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()


def add_vocabulary(writer: Any) -> int:
    """Return the number of its tokens; the last two are the control tokens ``CONTROL`` and ``END``."""
    import gguf

    letters = _byte_letters()
    pieces = [bytes([byte]) for byte in range(256)] + [word for word in WORDS if len(word) > 1]
    tokens = ["".join(letters[byte] for byte in piece) for piece in pieces]
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("gpt-2")
    writer.add_token_list([*tokens, CONTROL, END])
    writer.add_token_types([gguf.TokenType.NORMAL] * len(tokens) + [gguf.TokenType.CONTROL] * 2)
    writer.add_token_merges([f"{letters[ord('a')]} {letters[ord('b')]}"])
    writer.add_eos_token_id(len(tokens) + 1)
    return len(tokens) + 2


def _byte_letters() -> dict[int, str]:
    """Return the letters that a byte-level vocabulary writes for bytes (GPT-2's encoder)."""
    plain = [*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), ord("ÿ") + 1)]
    letters = {byte: chr(byte) for byte in plain}
    others = [byte for byte in range(256) if byte not in letters]
    return letters | {byte: chr(256 + index) for index, byte in enumerate(others)}
