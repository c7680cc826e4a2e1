"""Asking for mutants through the SDK, streamed and whole, and with a second server that continues what breaks off."""

from __future__ import annotations

from typing import Any

from streamco.client.client import Client
from streamco.errors import StreamcoError
from tests.mutants.mutant import Mutant
from tests.mutants.oracle.reading import Reading
from tests.mutants.tcp.forms import add_chunk, read_completion
from tests.mutants.tcp.observed import Observed
from tests.mutants.tcp.servers import TAIL, question_of

__all__ = ["hand_over_differences", "read_stream", "read_whole"]


async def read_stream(client: Client, mutant: Mutant) -> Observed:
    """Return what a program reads that iterates over the chunks."""
    seen = Observed()
    try:
        stream = await client.chat.completions.create(messages=_asked(mutant), stream=True, stream_options={"include_usage": True})
        async for chunk in stream:
            add_chunk(seen, chunk.to_dict())
        seen.reason = stream.report.finish_reason
    except StreamcoError as error:
        seen.error = error
    if isinstance(seen.error, StreamcoError) and seen.error.partial != seen.text:
        raise AssertionError(f"expected an error with the text that came, {seen.text!r}, got {seen.error.partial!r}")
    return seen


async def read_whole(client: Client, mutant: Mutant) -> Observed:
    """Return what a program reads that asks for the whole answer. Of one that fails it has the text alone."""
    seen = Observed()
    try:
        read_completion(seen, (await client.chat.completions.create(messages=_asked(mutant))).to_dict())
    except StreamcoError as error:
        seen.error = error
        seen.text = error.partial
    return seen


def _asked(mutant: Mutant) -> list[Any]:
    return [{"role": "user", "content": question_of(mutant)}]


def hand_over_differences(expected: Reading, seen: Observed, *, has_audio: bool) -> list[str]:
    """Return in what a failing answer that another server should finish isn't finished exactly.

    A call or a refusal that has begun is handed to nobody. Neither is audio, which may come before the failure or after it.
    """
    if expected.calls or expected.refusal or (has_audio and seen.error is not None):
        if seen.error is None:
            return [f"expected an error, because half a call or refusal can't be continued, got {seen.text!r}"]
        return [] if seen.text == expected.text else [f"text: expected {expected.text!r}, got {seen.text!r}"]
    if seen.error is not None:
        return [f"expected the answer to be continued, got {seen.error}"]
    wanted = expected.text + TAIL, "stop"
    got = seen.text, seen.reason
    return [] if wanted == got else [f"text and reason: expected {wanted}, got {got}"]
