"""The times of a prompt's chunks on the device, on the link and in a split server's stages, each of which handles one chunk at a time."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from functools import cache
from math import ceil, inf
from typing import NamedTuple, Self

from msgspec import Struct

from streamco.profiles.row_costs import RowCosts

__all__ = ["ChunkTimes", "TimedBatch", "TimedChunk", "check_rates"]

_SAME = 1e-9  # seconds; times closer together than this count as the same


class TimedChunk(NamedTuple):
    """A chunk of a prompt: its rows, the latest time for the device to begin it, and the time when the link has sent it, in seconds."""

    rows: int
    begins: float
    arrives: float


class TimedBatch(NamedTuple):
    """A batch of the server: its rows of the prompt, and the time when they have been computed and have come back, in seconds."""

    rows: int
    returns: float


class ChunkTimes(Struct, frozen=True, kw_only=True):
    """The times that rows take on the device, the link and the server, without the round trip.

    Args:
        input_seconds: function from a chunk's number of rows to the seconds that the device's layers take for it.
        upload_seconds, download_seconds: seconds per row.
        batch_seconds: function from the number of this prompt's rows in a batch to the seconds that the batch takes over all stages.
        stages: number of the server's pipeline stages.
        room: maximum number of this prompt's rows in a batch.
        is_merged: True if the server computes in one batch all chunks that have arrived, False if it computes one after the other.
    """

    input_seconds: Callable[[int], float]
    upload_seconds: float
    download_seconds: float
    batch_seconds: Callable[[int], float]
    stages: int
    room: int
    is_merged: bool

    @classmethod
    def from_costs(
        cls,
        *,
        costs: RowCosts,
        row_bytes: float,
        upload_rate: float,
        load_rows: float = 0.0,
        stages: int = 1,
        room: int | None = None,
        is_merged: bool = False,
        input_costs: RowCosts | None = None,
        download_rate: float = inf,
    ) -> Self:
        """Return the times that follow from these costs and rates.

        Args:
            costs: seconds that the server takes for a batch, by number of rows.
            row_bytes: bytes of a row's state on the wire.
            upload_rate: bytes per second from the device to the server.
            load_rows: other requests' rows, which are in each of the server's batches anyway.
            stages: number of the server's pipeline stages, at least 1.
            room: maximum number of rows in a batch, including the other requests' rows, or None for no limit.
            is_merged: True if the server computes in one batch all chunks that have arrived, False if it computes one after the other.
            input_costs: seconds that the device's layers take for a chunk, by number of rows, or None if they take no time.
            download_rate: bytes per second of the states that come back; inf if only one row comes back, which takes no time.

        Raises:
            ValueError: an argument is out of range.
        """
        check_rates(stages, row_bytes, upload_rate)
        if not download_rate > 0:
            raise ValueError(f"chunk size: expected a download of more than 0 bytes/s, got {download_rate}")
        return cls(
            input_seconds=(lambda _: 0.0) if input_costs is None else cache(input_costs.seconds),
            upload_seconds=row_bytes / upload_rate,
            download_seconds=row_bytes / download_rate,
            batch_seconds=cache(lambda rows: costs.seconds(load_rows + rows)),
            stages=stages,
            room=sys.maxsize if room is None else max(1, room - ceil(load_rows)),
            is_merged=is_merged,
        )

    def chunks(self, prompt: int, size: int, computed: int = 0) -> list[TimedChunk]:
        """Return the chunks of a prompt. The device computes each one while it sends the ones before it.

        Args:
            prompt: rows of the prompt, at least 1.
            size: rows of a chunk, at least 1.
            computed: number of rows at the beginning that the device has computed already.
        """
        rows = [min(size, prompt - start) for start in range(0, prompt, size)]
        missing = [min(each, max(0, index * size + each - computed)) for index, each in enumerate(rows)]
        seconds = [self.input_seconds(each) if each else 0.0 for each in missing]
        ready = sent = 0.0
        begins, arrives = [], []
        for each, taken in zip(rows, seconds, strict=True):
            ready += taken
            begins.append(max(ready, sent) - taken)
            sent = max(ready, sent) + each * self.upload_seconds
            arrives.append(sent)
        for index in range(len(rows) - 2, -1, -1):  # the next one begins after this one
            begins[index] = min(begins[index], begins[index + 1] - seconds[index])
        return [*map(TimedChunk, rows, begins, arrives)]

    def batches(self, chunks: Sequence[TimedChunk]) -> list[TimedBatch]:
        """Return the batches in which the server computes these chunks. All chunks but the last one must have the same size."""
        size, prompt, free = chunks[0].rows, sum(chunk.rows for chunk in chunks), [0.0] * self.stages
        read = come = 0  # rows, chunks
        returns, found = 0.0, []
        while read < prompt:
            moment = max(free[0], chunks[read // size].arrives)
            come = max(come, read // size + 1)
            while self.is_merged and come < len(chunks) and chunks[come].arrives <= moment + _SAME:
                come += 1
            rows = min(self.room, min(prompt, size * come) - read)
            read += rows
            each = self.batch_seconds(rows) / self.stages
            for stage in range(self.stages):
                moment = free[stage] = max(moment, free[stage]) + each
            returns = max(returns, moment) + rows * self.download_seconds
            found.append(TimedBatch(rows, returns))
        return found

    def most_unanswered(self, chunks: Sequence[TimedChunk], late: float) -> int:
        """Return the largest number of begun but unanswered chunks at any time, if neither the device nor the link waits for answers.

        Args:
            chunks: the chunks.
            late: seconds from the end of a batch until the device has its answer, in addition to the download.
        """
        batches = iter(self.batches(chunks))
        batch, read = next(batches), 0
        most = answered = 0
        for index, chunk in enumerate(chunks):
            while batch.returns + late <= chunk.begins:  # not the last one, which returns after all chunks have begun
                read += batch.rows
                answered = read // chunks[0].rows
                batch = next(batches)
            most = max(most, index + 1 - answered)
        return most


def check_rates(stages: int, row_bytes: float, upload_rate: float) -> None:
    """Check the figures that every plan of chunks needs.

    Raises:
        ValueError: a figure is out of range.
    """
    if stages < 1 or not row_bytes > 0 or not upload_rate > 0:
        got = f"{stages}, {row_bytes} bytes a row and {upload_rate} bytes/s"
        raise ValueError(f"chunk size: expected stages of at least 1 and rates above 0, got {got}")
