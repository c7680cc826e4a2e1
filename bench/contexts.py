"""Bare llama.cpp contexts for benches that look inside: sequences of a context written side by side, greedily."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

import numpy as np

from streamco.engines.llamacpp.context import LlamaContext

__all__ = ["prefill", "write"]

Watcher = Callable[[int, int], None]  # key, row of the context's last batch


def prefill(context: LlamaContext, ids: Sequence[int], sequence: int, *, start: int = 0) -> None:
    """Read ids into a sequence behind its first ``start``."""
    for at in range(0, len(ids), context.rows):
        context.add_run(ids[at : at + context.rows], start + at, sequence, wants_logits=0)
        _decode(context)


def write(
    context: LlamaContext,
    lines: Mapping[int, tuple[int, int, Sequence[int]]],
    count: int,
    *,
    end_ids: Iterable[int] = (),
    watch: Watcher | None = None,
) -> dict[int, list[int]]:
    """Up to ``count`` greedy tokens on each line, one batch a step.

    Args:
        context: has the lines' beginnings.
        lines: key -> (sequence, its length, ids that are decoded first, at least one).
        count: tokens of each.
        end_ids: a line ends behind one of these.
        watch: told of each line's row behind every batch, which reads attention then.

    Returns:
        The new tokens of each line.
    """
    ends = frozenset(end_ids)
    written: dict[int, list[int]] = {key: [] for key in lines}
    lengths = {key: length for key, (_, length, _) in lines.items()}
    given = {key: list(ids) for key, (_, _, ids) in lines.items()}
    while running := [key for key in lines if len(written[key]) < count and not ends & {*written[key][-1:]}]:
        rows = {}
        for key in running:
            rows[key] = context.add_run(given[key], lengths[key], lines[key][0], wants_logits=1)
            lengths[key] += len(given[key])
        context.reads_attention = watch is not None
        _decode(context)
        for key, row in rows.items():
            token = int(np.argmax(context.logits(row)))
            written[key].append(token)
            given[key] = [token]
            if watch is not None:
                watch(key, row)
    return written


def _decode(context: LlamaContext) -> None:
    status = context.decode()
    if status:
        raise RuntimeError(f"llama_decode: expected 0, got {status}")
