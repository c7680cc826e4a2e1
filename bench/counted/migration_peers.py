"""Hand-overs between our engine and other people's servers on the same file, greedy (see ``bench.counted.migration``).

Their builds of llama.cpp round otherwise than ours, so a close decision may fall the other way. At the first place where a joined answer
leaves an uninterrupted one it is measured how close: by how much the best token's logit is above the second's in our own context. The
yardstick is what our own context makes of the same positions in batches of another shape: the largest difference of any logit.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from bench.counted.migration_live import PROMPTS, Answer, Breaking, answer, load, run_session
from streamco.config import RetryPolicy, SamplingOptions, Timeouts
from streamco.endpoints.base import Capabilities, Endpoint, Request
from streamco.endpoints.device import DeviceEndpoint
from streamco.endpoints.generation_request import request_ids
from streamco.endpoints.openai import OpenAIEndpoint
from streamco.engines.llama import LlamaEngine
from streamco.engines.llamacpp.context import LlamaContext
from streamco.engines.llamacpp.model import LlamaModel
from streamco.engines.prompt_ids import answer_ids
from streamco.errors import EngineError

__all__ = ["FORMS", "FROM_PEER", "TO_PEER", "Form", "Judge", "PeerTally", "Reference", "hand_over_to_peer", "measure_shapes"]

SEED = 47
CELLS = 512
CHUNK = 32
SHAPES = {"one row": (1, 1), "two sequences": (1, 2), "four sequences": (1, 4), "chunks of 8": (8, 1), "chunks of 128": (128, 1)}
PLAIN = {"repeat_penalty": 1.0}  # llama-cpp-python's server punishes repetition unless it is told not to
TEXTS = (
    "The three primary colours are",
    "def add(a, b):\n",
    "Once upon a time there was",
    "The capital of France is Paris. The capital of Japan is",
    "1, 2, 3, 4, 5,",
    "Dear Sir or Madam,\n\nI am writing to",
    "The difference between a list and a tuple in Python is",
    "cafe\u0301, nai\u0308ve, cafe\u0301, nai\u0308ve, cafe\u0301,",
)


FROM_PEER, TO_PEER = "from the peer", "to the peer"
COMPARED = ("ours", "theirs", "uninterrupted")  # joined with our uninterrupted answer, with theirs; theirs with ours


@dataclass(frozen=True, slots=True)
class Form:
    """What is asked of a kind of server, and how it is asked."""

    peer: str
    name: str
    asks: str  # messages | prompt | prompt_ids
    is_target: bool = True


FORMS = (
    Form("llama-cpp-python", "chat", "messages", is_target=False),  # its chat has no way to go on with a message
    Form("llama-cpp-python", "text prompt", "prompt"),
    Form("xllamacpp", "chat", "messages"),
    Form("xllamacpp", "ids", "prompt_ids"),
)


@dataclass(frozen=True, slots=True)
class Reference:
    """An uninterrupted answer, with the ids that our vocabulary has for it."""

    prompt: list[int]
    ids: list[int]
    text: str
    finish_reason: str | None


@dataclass(slots=True)
class PeerTally:
    """What the hand-overs of one form and way came to."""

    hand_overs: int = 0
    otherwise: int = 0  # the target read the beginning in other tokens than the source wrote
    margins: dict[str, list[float]] = field(default_factory=lambda: {what: [] for what in COMPARED})  # where answers part
    compared: dict[str, int] = field(default_factory=lambda: dict.fromkeys(COMPARED, 0))  # tokens
    broken: list[str] = field(default_factory=list)


class Judge:
    """Our own context on the file, one row after the other or in batches of any shape.

    Args:
        path: the GGUF file.
    """

    def __init__(self, path: Path) -> None:
        self._model = LlamaModel(path)
        self._context = LlamaContext(self._model, cells=4 * CELLS, sequences=4, rows=128, threads=1)
        self.ends = self._model.end_ids

    def close(self) -> None:
        """Free the memory."""
        self._context.close()
        self._model.close()

    def margin(self, ids: Sequence[int]) -> float:
        """By how much the best successor's logit is above the second's."""
        best, second = sorted(self._rows(ids, CHUNK, 1, first=len(ids) - 1)[0], reverse=True)[:2]
        return float(best - second)

    def shape_differences(self, ids: Sequence[int], first: int) -> dict[str, float]:
        """For each shape the largest difference of a logit to what chunks of 32 make of it, at positions from ``first`` on."""
        usual = self._rows(ids, CHUNK, 1, first=first)
        return {name: float(np.abs(self._rows(ids, *shape, first=first) - usual).max()) for name, shape in SHAPES.items()}

    def _rows(self, ids: Sequence[int], chunk: int, sequences: int, *, first: int) -> NDArray[np.float32]:
        """Logits of the positions from ``first`` on, decoded so many at a time, in so many equal sequences beside each other."""
        context = self._context
        context.clear()
        kept: list[NDArray[np.float32]] = []
        for start in range(0, len(ids), chunk):
            part = ids[start : start + chunk]
            for sequence in range(sequences):
                for place, token in enumerate(part, start):
                    context.add(token, place, sequence, wants_logits=place >= first)
            if (status := context.decode()) != 0:
                raise EngineError(f"llama_decode: expected 0, got {status}")
            kept += [context.logits(row).copy() for row in range(max(0, first - start), len(part))]
        return np.stack(kept)

    def difference(self, got: Answer, reference: Reference) -> tuple[int, float] | None:
        """Where the answers part, in tokens of the reference, and the margin there; None: they don't.

        Of two answers that the limit of their length ended, one may be longer: its tokens are counted where they aren't known.
        """
        same = next((at for at, (one, other) in enumerate(zip(got.text, reference.text, strict=False)) if one != other), None)
        if same is None:
            same = min(len(got.text), len(reference.text))
            shorter = got if len(got.text) < len(reference.text) else reference
            if got.text == reference.text or shorter.finish_reason == "length":
                return None
        at, text = 0, b""
        while at < len(reference.ids):
            text += self._model.token_bytes(reference.ids[at])
            if len(text.decode(errors="ignore")) > same:
                break
            at += 1
        return at, self.margin([*reference.prompt, *reference.ids[:at]])


def _asked(form: Form, engine: LlamaEngine, count: int, rng: random.Random) -> list[Request]:
    sampling = SamplingOptions(temperature=0, max_tokens=40)
    if form.asks == "prompt":
        return [Request(prompt=text, sampling=sampling, extra=PLAIN) for text in TEXTS[:count]]
    asked = rng.sample(PROMPTS, min(count, len(PROMPTS)))
    if form.asks == "prompt_ids":
        return [Request(prompt_ids=engine.tokenize(text, bos=True), sampling=sampling, extra=PLAIN) for text in asked]
    return [Request(messages=[{"role": "user", "content": text}], sampling=sampling, extra=PLAIN) for text in asked]


def _peer(form: Form, url: str) -> OpenAIEndpoint:
    return OpenAIEndpoint(
        "smollm2",
        base_url=url,
        name="peer",
        api="completions" if form.asks == "prompt" else "chat",
        retry=RetryPolicy(attempts=2, backoff=0.01),  # it closes idle connections
        timeouts=Timeouts(first_token=120),
        capabilities=Capabilities(continuation="continue_final_message") if form.asks == "prompt" else None,  # a text prompt just grows
    )


async def measure_shapes(path: Path, judge: Judge, prompts: int) -> dict[str, float]:
    """The largest difference of a logit by shape, at all positions of our answers to these prompts."""
    engine = load(path)
    largest = dict.fromkeys(SHAPES, 0.0)
    try:
        for text in PROMPTS[:prompts]:
            request = Request(messages=[{"role": "user", "content": text}], sampling=SamplingOptions(temperature=0, max_tokens=64))
            prompt = request_ids(engine, request)
            ids = [*prompt, *(await answer(DeviceEndpoint(engine), request)).ids]
            for shape, difference in judge.shape_differences(ids, len(prompt) - 1).items():
                largest[shape] = max(largest[shape], difference)
    finally:
        engine.close()
    return largest


async def hand_over_to_peer(path: Path, url: str, form: Form, judge: Judge, *, prompts: int, cuts: int) -> dict[str, PeerTally]:
    """Hand answers over, both ways where the peer can go on; what came of it, by way."""
    engine = load(path)
    peer = _peer(form, url)
    try:
        await peer.probe()
        run = _Run(form, engine, peer, judge)
        for request in _asked(form, engine, prompts, random.Random(SEED)):
            await run.one(request, cuts)
        return run.tallies
    finally:
        await peer.aclose()
        engine.close()


class _Run:
    def __init__(self, form: Form, engine: LlamaEngine, peer: OpenAIEndpoint, judge: Judge) -> None:
        self._form = form
        self._engine = engine
        self._peer = peer
        self._device = DeviceEndpoint(engine)
        self._judge = judge
        self._rng = random.Random(f"{SEED}/{form}")
        self.tallies = {way: PeerTally() for way in (FROM_PEER, TO_PEER) if way == FROM_PEER or form.is_target}

    async def one(self, request: Request, cuts: int) -> None:
        """One request: both uninterrupted answers, then the hand-overs."""
        ours, theirs = await answer(self._device, request), await answer(self._peer, request)
        prompt = request_ids(self._engine, request)
        references = {
            "ours": Reference(prompt, ours.ids, ours.text, ours.finish_reason),
            "theirs": Reference(prompt, answer_ids(self._engine, theirs.text), theirs.text, theirs.finish_reason),
        }
        for way, tally in self.tallies.items():
            written = references["theirs" if way == FROM_PEER else "ours"]
            self._compare(tally, "uninterrupted", theirs, references["ours"])
            places = range(1, max(1, len(written.ids)))
            for cut in sorted(self._rng.sample(places, min(cuts, len(places)))):
                await self._hand_over(way, request, cut, references)

    async def _hand_over(self, way: str, request: Request, cut: int, references: dict[str, Reference]) -> None:
        tally = self.tallies[way]
        ends: tuple[Endpoint, Endpoint] = (self._peer, self._device) if way == FROM_PEER else (self._device, self._peer)
        joined, machine = await run_session([Breaking(ends[0], cut), ends[1]], request)
        limit = request.sampling.max_tokens
        assert limit is not None
        made = [each for each in machine.hand_overs if each.position < limit]
        if not made:
            return  # it ended before the break
        tally.hand_overs += 1
        tally.otherwise += way == TO_PEER and self._reads_otherwise(joined.ids[: made[0].position])
        if "\ufffd" in joined.text.removesuffix("\ufffd"):
            tally.broken.append(joined.text)
        for whose, reference in references.items():
            self._compare(tally, whose, joined, reference)

    def _reads_otherwise(self, ids: list[int]) -> bool:
        """Whether ids that our engine wrote are other ones when their text is read."""
        if self._form.asks == "prompt_ids":
            return False
        text = self._engine.detokenize(ids).decode(errors="ignore").rstrip()
        read = answer_ids(self._engine, text)
        return read != ids[: len(read)]

    def _compare(self, tally: PeerTally, what: str, got: Answer, reference: Reference) -> None:
        tally.compared[what] += len(answer_ids(self._engine, got.text))
        if (difference := self._judge.difference(got, reference)) is not None:
            tally.margins[what].append(difference[1])
