"""Batch invariance: how many rows of one sequence a batch may have and still give the same bits as decoding them one by one.

If a batch has more rows, llama.cpp multiplies with other kernels, which sum in a different order. A single row always has a separate
kernel, so exact mode never decodes one alone. How many rows are safe depends on the quantisation and the build, so it is tested when a
model is loaded. With AVX-512:

- Q8_0, Q4_0 and Q4_1 give the same bits up to 32 rows and more;
- Q2_K gives them up to 7 rows;
- Q4_K_M gives them up to 3 rows (with more, logits differ by up to 1.6);
- F16 never gives them (logits differ by 0.001).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Protocol

from streamco.errors import EngineError

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

__all__ = ["COMPARED", "RowDecoder", "largest_equal_size", "largest_exact_batch"]

COMPARED = 16  # maximum number of rows that are compared, because kernels take blocks of up to 8
SIZES = (2, 3, 4, 5, 6, 7, 8, 9, 12, 16, 17, 24, 31, 32)  # sizes between these have the same blocks and remainders


class RowDecoder(Protocol):
    """The part of a context that ``largest_exact_batch`` needs."""

    def add(self, token: int, position: int, sequence: int, *, wants_logits: bool) -> int:
        """Add a row; see ``LlamaContext.add``."""
        ...

    def decode(self) -> int:
        """Compute the rows."""
        ...

    def logits(self, row: int) -> NDArray[np.float32]:
        """Return the logits of a row of the last decode."""
        ...

    def remove(self, sequence: int, start: int, stop: int = -1) -> bool:
        """Forget positions ``start`` to ``stop`` (exclusive; -1: no limit)."""
        ...

    def clear(self) -> None:
        """Forget all positions of all sequences."""
        ...


def largest_exact_batch(context: RowDecoder, max_rows: int) -> int:
    """Return the largest batch size, up to ``max_rows``, that gives each row the same logits as decoding one by one, bit for bit.

    Raises:
        EngineError: the model does not run.
    """
    tokens = _ordinary_tokens(context, max_rows)
    return largest_equal_size(
        lambda size: _together(context, tokens[:size]) if size > 1 else list(_one_by_one(context, tokens[:COMPARED])), max_rows
    )


def largest_equal_size(compute: Callable[[int], Sequence[bytes]], max_rows: int) -> int:
    """Return the largest batch size, up to ``max_rows``, that gives rows the same bits as computing them one by one.

    Args:
        compute: computes rows, always the same ones, the given number at a time, and returns the results of up to ``COMPARED`` of them.
        max_rows: largest size to try, at least 1.
    """
    wanted = compute(1)
    exact = 1
    for size in (*(size for size in SIZES if size < max_rows), max_rows):
        found = compute(size)
        if list(found) != list(wanted[: len(found)]):
            break
        exact = size
    return min(exact, max_rows)


def _ordinary_tokens(context: RowDecoder, count: int) -> list[int]:
    """Return different tokens from all over the vocabulary, because equal or control tokens would hide differences."""
    context.add(0, 0, 0, wants_logits=True)
    _decode(context)
    size = context.logits(0).shape[0]
    context.clear()
    return [(7919 * index + 1009) % size for index in range(count)]


def _one_by_one(context: RowDecoder, tokens: list[int]) -> Iterator[bytes]:
    for position, token in enumerate(tokens):
        context.add(token, position, 0, wants_logits=True)
        context.add(0, 0, 1, wants_logits=False)
        _decode(context)
        yield context.logits(0).tobytes()
        context.remove(1, 0)
    context.clear()


def _together(context: RowDecoder, tokens: list[int]) -> list[bytes]:
    for position, token in enumerate(tokens):
        context.add(token, position, 0, wants_logits=True)
    _decode(context)
    rows = [context.logits(row).tobytes() for row in range(min(COMPARED, len(tokens)))]
    context.clear()
    return rows


def _decode(context: RowDecoder) -> None:
    status = context.decode()
    if status != 0:
        raise EngineError(f"llama_decode: expected 0 from the first tokens, got {status}")
