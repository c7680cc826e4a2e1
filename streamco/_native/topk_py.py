"""Softmax, top-k and sampling for one row of logits. This is the specification and pure twin of ``topk.pyx``.

A row is a contiguous one-dimensional buffer of float32 in native order, with one logit for each token id. It may be a numpy row, an
``array("f")``, or memory that somebody else owns (``row_at``). In every function:

- NaN and -inf are never chosen and have probability 0 (log-probability -inf); +inf counts as the largest finite float32.
- A row without a number above -inf is an error.
- Among equal logits, the lower id comes first.

The compiled twin adds up exponentials in float32 and double. Its probabilities agree with the ones here to within a relative 1e-5.
"""

from __future__ import annotations

import sys
from array import array
from heapq import nsmallest
from math import exp, inf, isnan, log
from typing import Any

__all__ = ["argmax", "log_probability", "row_at", "sample_row", "softmax_into", "top_k"]

_HIGHEST = (2 - 2**-23) * 2.0**127  # the largest finite float32
_ORDERS = {"@", "=", "<"} if sys.byteorder == "little" else {"@", "=", ">", "!"}


def row_at(address: int, length: int, /) -> memoryview[float]:
    """Return the row of ``length`` float32 values at an address. They aren't copied, so the memory must outlive the view.

    Raises:
        ValueError: the address is 0, or the length is not 1 to 2**31 - 1.
    """
    if address <= 0 or not 1 <= length < 1 << 31:
        raise ValueError(f"row: expected an address and 1 to 2**31 - 1 logits, got address {address} and length {length}")
    import ctypes

    return memoryview((ctypes.c_float * length).from_address(address)).cast("B").cast("f")


def argmax(row: Any, /) -> int:
    """Return the id of the highest logit.

    Raises:
        ValueError: no logit is above -inf, or the row is empty.
        TypeError: ``row`` is not a row of float32.
    """
    logits = _logits(row)
    return logits.index(max(logits))


def softmax_into(row: Any, out: Any, /) -> None:
    """Write the probability of every id to ``out``, a writable row of the same length. ``out`` may be the row itself.

    Raises:
        ValueError: as in ``argmax``, or the lengths differ.
        TypeError: ``row`` or ``out`` is not a row of float32, or ``out`` is read-only.
    """
    logits = _logits(row)
    target = _view(out, "out")
    if target.readonly:
        raise TypeError(f"out: expected a writable buffer, got a read-only {type(out).__name__}")
    if len(target) != len(logits):
        raise ValueError(f"out: expected room for {len(logits)} probabilities, got {len(target)}")
    highest = max(logits)
    weights = [exp(logit - highest) for logit in logits]
    total = sum(weights)
    for index, weight in enumerate(weights):
        target[index] = weight / total


def top_k(row: Any, k: int, /) -> tuple[tuple[int, float], ...]:
    """Return the ``k`` likeliest ids with their probabilities among all ids, likeliest first. Ids without a logit above -inf are left out.

    Raises:
        ValueError: as in ``argmax``, or k is below 1.
        TypeError: ``row`` is not a row of float32.
    """
    if k < 1:
        raise ValueError(f"k: expected at least 1, got {k}")
    logits = _logits(row)
    highest = max(logits)
    total = sum(exp(logit - highest) for logit in logits)
    return tuple((choice, exp(logits[choice] - highest) / total) for choice in _best(logits, k))


def log_probability(row: Any, choice: int, /) -> float:
    """Return the natural logarithm of one id's probability.

    Raises:
        ValueError: as in ``argmax``, or the id is not in the row.
        TypeError: ``row`` is not a row of float32.
    """
    logits = _logits(row)
    if not 0 <= choice < len(logits):
        raise ValueError(f"id: expected 0 to {len(logits) - 1}, got {choice}")
    highest = max(logits)
    return logits[choice] - highest - log(sum(exp(logit - highest) for logit in logits))


def sample_row(row: Any, temperature: float, top_k: int, top_p: float, min_p: float, u: float, /) -> int:  # noqa: PLR0917 - no keywords to parse
    """Sample an id. Of the ids that pass the filters, best first, this is the first one whose cumulative share is above ``u``.

    The logits are divided by the temperature before any filter, as in OpenAI's API, vLLM and transformers. Both top_p and min_p apply to
    the probabilities of the ids that top_k leaves, and the stricter one counts.

    Args:
        row: the logits.
        temperature: 0 or more; 0 for ``argmax``.
        top_k: keep only this many best ids; 0 for all.
        top_p: keep only the smallest set of best ids with at least this share; 1 for all.
        min_p: keep only ids whose probability is at least this share of the best id's; 0 for all.
        u: a random number, uniform in [0, 1).

    Raises:
        ValueError: as in ``argmax``, or a number is out of range.
        TypeError: ``row`` is not a row of float32.
    """
    if not 0 <= temperature < inf or top_k < 0 or not 0 <= top_p <= 1 or not 0 <= min_p <= 1 or not 0 <= u < 1:
        raise ValueError(
            "sampling: expected temperature >= 0, top_k >= 0, top_p and min_p of 0 to 1 and u from 0 to below 1, "
            f"got {temperature}, {top_k}, {top_p}, {min_p} and {u}"
        )
    logits = _logits(row)
    if temperature == 0:
        return logits.index(max(logits))
    choices = _best(logits, top_k or len(logits))
    highest = logits[choices[0]]
    weights = [exp((logits[choice] - highest) / temperature) for choice in choices]
    kept, share = 0, 0.0
    total = sum(weights)
    for weight in weights:
        if kept and (weight < min_p or (top_p < 1 and share >= top_p * total)):
            break
        kept, share = kept + 1, share + weight
    drawn = 0.0
    for choice, weight in zip(choices[:kept], weights, strict=False):
        drawn += weight
        if drawn > u * share:
            return choice
    return choices[kept - 1]


def _best(logits: list[float], count: int) -> list[int]:
    """Return the ids of the highest logits above -inf, best first."""
    return nsmallest(count, (index for index, logit in enumerate(logits) if logit > -inf), key=lambda index: (-logits[index], index))


def _logits(row: Any) -> list[float]:
    logits = [-inf if isnan(logit) else min(logit, _HIGHEST) for logit in _view(row, "row")]
    if not logits:
        raise ValueError("row: expected at least one logit, got none")
    if max(logits) == -inf:
        raise ValueError(f"row: expected a logit above -inf, got none in {len(logits)}")
    return logits


def _view(source: Any, name: str) -> memoryview[float]:
    try:
        view = memoryview(source)
    except TypeError:
        raise TypeError(f"{name}: expected a buffer of float32, got {type(source).__name__}") from None
    code = view.format[1:] if view.format[:1] in _ORDERS else view.format
    if code != "f" or view.ndim != 1 or not view.c_contiguous:
        raise TypeError(
            f"{name}: expected one contiguous dimension of native float32, got {view.ndim} of format {view.format!r}"
            f"{'' if view.c_contiguous else ', strided'}"
        )
    return view.cast("B").cast("f") if view.nbytes else memoryview(array("f"))
