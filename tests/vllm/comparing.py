"""Drafts of a model here, verified by a server, beside what the server writes by itself.

A server says slightly other things of a token that it reads among others than of one that it writes: sums are added up in another order.
Where its two best tokens are nearly as good, verifying and writing may choose differently. Each such place is listed with how much better
the one was than the other, and beside it by how much any such distance changed between reading and writing.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

from msgspec import Struct, field

from streamco.config import SamplingOptions
from streamco.core.speculation.events import ConnectVerifier, SendDraft, VerdictReceived, VerifierConnected
from streamco.endpoints.openai import OpenAIEndpoint
from streamco.endpoints.verifiers.base import VerifierEvent
from streamco.endpoints.verifiers.logprob import LogprobVerifier
from streamco.engines.base import HoldingEngine, TokenSequence
from streamco.events import common_prefix_length
from streamco.policies.acceptance import Rule

__all__ = ["Comparison", "Difference", "Drafts", "OwnText", "compare", "write_alone"]

_TOP = 5  # ids whose log-probabilities are compared
_GREEDY = SamplingOptions(temperature=0)


class Difference(Struct, frozen=True):
    """A place where verifying chose another token than writing did.

    Args:
        prompt: which one.
        position: in the answer.
        own, verified: the tokens.
        margin: by how much the first was better than the second when it was written, in log-probability.
    """

    prompt: str
    position: int
    own: int
    verified: int
    margin: float


class Comparison(Struct):
    """What came of some prompts.

    Args:
        tokens: compared, of the answers.
        rounds, drafted, accepted: of the verifying.
        differences: all of them.
        largest_shift: the most that the distance between a place's two best tokens changed from writing to reading, in log-probability.
        changed_places: where it changed at all.
    """

    tokens: int = 0
    rounds: int = 0
    drafted: int = 0
    accepted: int = 0
    differences: list[Difference] = field(default_factory=list)
    largest_shift: float = 0.0
    changed_places: int = 0


class OwnText(Struct, frozen=True):
    """What a server wrote by itself, and for each token the log-probabilities of the likeliest at its place."""

    ids: list[int]
    tops: list[dict[int, float]]


class Drafts:
    """Greedy drafts of a model here, for one text at a time."""

    def __init__(self, engine: HoldingEngine) -> None:
        self._sequence: TokenSequence = engine.hold()
        self._held: list[int] = []

    async def write(self, ids: Sequence[int], count: int) -> list[int]:
        """The next tokens behind these ids; fewer at the end of the text."""
        loop, done = asyncio.get_running_loop(), asyncio.Event()
        known = min(common_prefix_length(self._held, ids), len(ids) - 1)
        self._sequence.truncate(known)

        def wake() -> None:
            loop.call_soon_threadsafe(done.set)

        task = self._sequence.draft(count, wake, ids=list(ids[known:]), sampling=_GREEDY)
        drafted: list[int] = []
        while True:
            await done.wait()
            done.clear()
            found, end = task.take()
            drafted += [prediction.token for prediction in found if prediction.token is not None]
            if end is not None:
                assert end.reason in {"done", "stop"}, end
                self._held = [*ids, *drafted]
                return drafted

    def close(self) -> None:
        """Give the sequence back."""
        self._sequence.close()


async def write_alone(remote: OpenAIEndpoint, prompt: Sequence[int], count: int) -> OwnText:
    """The server's own greedy answer: at most ``count`` tokens, an end token among them."""
    body = {"model": remote.model, "prompt": list(prompt), "max_tokens": count, "temperature": 0, "logprobs": _TOP}
    reply = await remote.ask("/v1/completions", {**body, "return_token_ids": True, "return_tokens_as_token_ids": True})
    choice: dict[str, Any] = reply["choices"][0]
    tops = [{int(key.removeprefix("token_id:")): value for key, value in top.items()} for top in choice["logprobs"]["top_logprobs"]]
    return OwnText(choice["token_ids"], tops)


async def compare(
    verifier: LogprobVerifier, engine: HoldingEngine, prompts: Sequence[tuple[str, Sequence[int]]], *, tokens: int, window: int = 4
) -> Comparison:
    """Have drafts of each prompt's answer verified along the server's own answer.

    Behind a difference the server's own token is taken, so that every token of its answers is compared.

    Args:
        verifier: started and probed.
        engine: the draft model.
        prompts: (name, ids) of each.
        tokens: of each answer, at most.
        window: tokens drafted for a round.
    """
    found = Comparison()
    drafts = Drafts(engine)
    remote = verifier.remote
    assert isinstance(remote, OpenAIEndpoint), "a started verifier has one"
    try:
        for name, prompt in prompts:
            own = await write_alone(remote, prompt, tokens)
            found.tokens += len(own.ids)
            await _follow(verifier, drafts, (name, prompt), own, found, window=window)
            await _measure_shift(verifier, prompt, own, found)
    finally:
        drafts.close()
    return found


async def _follow(
    verifier: LogprobVerifier, drafts: Drafts, asked: tuple[str, Sequence[int]], own: OwnText, found: Comparison, *, window: int
) -> None:
    name, prompt = asked
    emitted: asyncio.Queue[VerifierEvent] = asyncio.Queue()
    session = verifier.open(prompt, emitted.put_nowait, rule=Rule())
    session.run(ConnectVerifier(()))
    assert isinstance(await emitted.get(), VerifierConnected)
    settled, given = 0, 0  # tokens of the answer, and of them those the verifier has to be told
    while settled < len(own.ids):
        most = min(window, len(own.ids) - settled - 1)
        drafted = (await drafts.write([*prompt, *own.ids[:settled]], most))[:most] if most else []
        session.run(SendDraft(found.rounds, settled - given, tuple(own.ids[settled - given : settled]), tuple(drafted)))
        verdict = await emitted.get()
        assert isinstance(verdict, VerdictReceived), verdict
        found.rounds += 1
        found.drafted += len(drafted)
        found.accepted += verdict.accepted
        assert verdict.token is not None
        written = [*drafted[: verdict.accepted], verdict.token]
        given = 0
        for token in written:
            if token != own.ids[settled]:
                top = own.tops[settled]
                margin = top[own.ids[settled]] - top.get(token, -float("inf"))
                found.differences.append(Difference(name, settled, own.ids[settled], token, margin))
                settled, given = settled + 1, 1
                break
            settled += 1
    await session.aclose()


async def _measure_shift(verifier: LogprobVerifier, prompt: Sequence[int], own: OwnText, found: Comparison) -> None:
    """Read the answer at once, and see how the distances between the best two have changed."""
    scores, _, _ = await verifier.score([*prompt, *own.ids], len(own.ids), top=_TOP)
    for place, written in zip(scores.positions, own.tops, strict=False):
        first, second, *_ = sorted(written, key=lambda token: -written[token])
        read = dict(zip(place.ids, place.logprobs, strict=True))
        if first in read and second in read:
            shift = abs((read[first] - read[second]) - (written[first] - written[second]))
            found.largest_shift = max(found.largest_shift, shift)
            found.changed_places += shift > 0
