"""Top-k distributions as integers of 16 bits: the rows of drafts and verdicts, one row for each position.

A row is a list of ids, best first, each with a weight, and the weight of all other ids together (``rest``). The probability of an id is its
weight divided by the sum of all weights and the rest. A device draws its draft from the row's own ``distribution``, so the verifier knows
that distribution exactly. Speculative sampling then keeps the target's distribution, however coarse the weights are. Ids come best first,
so a greedy verdict reads the first one, and no rounding can change it.

A row has these bytes, where numbers are little-endian and ``bits`` is the width of an id (see ``VerifyCodec``)::

    bytes                       field
    1                           count: number of ids, 1 to 255
    2                           rest
    2 x count                   weights, 1 to 65535, none above the one before it
    ceil(count x bits / 8)      ids, all different, packed as streamco._native.tokenpack_py specifies

Rows follow each other without gaps. Source: Synera section 4.2, "Compression before transmission".
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from struct import Struct as Layout
from struct import error as LayoutError  # noqa: N812
from typing import TYPE_CHECKING

from msgspec import Struct

from streamco._native import pack, packed_size, unpack
from streamco.wire.verify.errors import FrameSizeError, MalformedFrameError

if TYPE_CHECKING:
    from streamco.policies.acceptance import Distribution

__all__ = ["MAX_WEIGHT", "MAX_IDS", "TopK", "pack_rows", "quantise", "row_size", "unpack_rows"]

MAX_WEIGHT = (1 << 16) - 1
MAX_IDS = 255  # ids in one row

_HEAD = Layout("<BH")


class TopK(Struct, frozen=True, gc=False):
    """A quantised distribution: the ids, best first, their weights, and the weight of all other ids together."""

    ids: tuple[int, ...]
    weights: tuple[int, ...]
    rest: int = 0

    def distribution(self) -> Distribution:
        """Return the ids' probabilities, which add up to 1 if ``rest`` is 0. Both sides get bit-identical numbers."""
        from streamco.policies.acceptance import Distribution

        total = sum(self.weights) + self.rest
        return Distribution(self.ids, [weight / total for weight in self.weights])


def quantise(pairs: Sequence[tuple[int, float]], *, is_whole: bool) -> TopK:
    """Round probabilities to weights. No weight is 0, because the smallest probabilities are rounded up to one step of 1/65535.

    Args:
        pairs: 1 to 255 different ids with probabilities above 0, best first, as ``top_k`` returns them.
        is_whole: True if tokens are drawn only from these ids, so that only their ratios count and ``rest`` is 0. Otherwise the
            probabilities are shares of the whole vocabulary, and ``rest`` is the share of all other ids.
    """
    scale = MAX_WEIGHT / pairs[0][1] if is_whole else MAX_WEIGHT
    weights = tuple(min(max(1, round(share * scale)), MAX_WEIGHT) for _, share in pairs)
    rest = 0 if is_whole else max(0, round((1 - sum(share for _, share in pairs)) * MAX_WEIGHT))
    return TopK(tuple(token for token, _ in pairs), weights, rest)


def row_size(count: int, bits: int) -> int:
    """Return the size in bytes of a row with ``count`` ids of ``bits`` bits."""
    return _HEAD.size + 2 * count + packed_size(count, bits)


def pack_rows(rows: Sequence[TopK], bits: int) -> bytes:
    """Encode rows of at most 255 ids each, one after the other.

    Raises:
        MalformedFrameError: a weight, a rest or an id doesn't fit its field, or a row has more weights than ids or fewer.
    """
    parts: list[bytes] = []
    for row in rows:
        try:
            parts += (_HEAD.pack(len(row.ids), row.rest), Layout(f"<{len(row.ids)}H").pack(*row.weights), pack(row.ids, bits))
        except (LayoutError, ValueError, TypeError) as error:
            raise MalformedFrameError(f"{row}: expected 1 to 255 ids of {bits} bits with 16-bit weights, got {error}") from None
    return b"".join(parts)


def unpack_rows(data: bytes, bits: int, *, vocabulary_size: int, max_rows: int, max_ids: int) -> tuple[TopK, ...]:
    """Decode bytes that consist of whole rows.

    Raises:
        FrameSizeError: there are more than ``max_rows`` rows, or more than ``max_ids`` ids in a row.
        MalformedFrameError: the bytes break another rule of the format.
    """
    rows: list[TopK] = []
    offset = 0
    while offset < len(data):
        if len(rows) == max_rows:
            raise FrameSizeError(f"rows: expected at most {max_rows} rows, got more")
        if len(data) - offset < _HEAD.size:
            raise MalformedFrameError(f"row {len(rows)}: expected {_HEAD.size} bytes to begin it, got {len(data) - offset}")
        count, rest = _HEAD.unpack_from(data, offset)
        if count > max_ids:
            raise FrameSizeError(f"row {len(rows)}: expected at most {max_ids} ids, got {count}")
        end = offset + row_size(count, bits)
        if not count or len(data) < end:
            raise MalformedFrameError(f"row {len(rows)}: expected at least 1 id and all bytes of {count}, got {len(data) - offset} bytes")
        rows.append(_unpack_row(data[offset + _HEAD.size : end], bits, count, rest, vocabulary_size))
        offset = end
    return tuple(rows)


def _unpack_row(data: bytes, bits: int, count: int, rest: int, vocabulary_size: int) -> TopK:
    weights = Layout(f"<{count}H").unpack_from(data)
    try:
        ids = tuple(unpack(data[2 * count :], bits, count))
    except ValueError as error:
        raise MalformedFrameError(f"row, {error}") from None
    if max(ids) >= vocabulary_size:
        raise MalformedFrameError(f"row: expected ids below {vocabulary_size}, got {max(ids)}")
    if len(set(ids)) < count:
        raise MalformedFrameError(f"row: expected {count} different ids, got {len(set(ids))}")
    if not weights[-1] or any(first < second for first, second in pairwise(weights)):
        raise MalformedFrameError(f"row: expected weights above 0, none above the one before it, got {weights}")
    return TopK(ids, weights, rest)
