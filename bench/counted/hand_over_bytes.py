"""How many bytes does a hand-over take on the wire?

Counted by a TCP proxy between an endpoint and ``streamco serve``: whole requests and whole responses, heads and framing included.
The answers are Alpaca's in SmolLM2's tokens; each figure is the mean of 20 runs of text. Nothing is timed, and a busy machine changes
nothing.

- to a server: the request that makes it continue after so many tokens, in the chat and in the completions API.
- from a server: the stream of so many tokens, each sent by itself, which a device may continue.
"""

from __future__ import annotations

import argparse
import asyncio
import gzip
import json
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

from msgspec.structs import replace

from bench.report import Row, add_arguments, emit, summarise
from bench.traces import data_folder
from streamco.config import SamplingOptions
from streamco.endpoints.base import Capabilities, Request
from streamco.endpoints.openai import OpenAIEndpoint
from streamco.engines.base import EngineOptions, GenerationRequest
from streamco.engines.llama import LlamaEngine
from streamco.engines.llamacpp.bundled_model import packaged_model
from streamco.events import Partial, StreamEnded
from streamco.server.app import ServeOptions, serving
from streamco.testing.engine import FakeEngine, FakeVocabulary
from streamco.testing.link_proxy import LinkProxy

BENCH = "hand_over_bytes"
LENGTHS = (4, 16, 64, 400)
SAMPLES = 20
QUESTION = "What should I keep in mind when I plan a garden?"
SAMPLING = SamplingOptions(temperature=0.7, max_tokens=500)

Run = list[tuple[int, str]]
"""Tokens of a text: id and piece."""


class ModelVocabulary(FakeVocabulary):
    """The vocabulary of a real model, for an engine that is none."""

    def __init__(self, model: LlamaEngine) -> None:
        super().__init__(size=model.info.vocabulary_size)
        self._model = model
        self._known: dict[str, int] = {}

    @property
    def fingerprint(self) -> str:
        """The model's."""
        return self._model.info.vocabulary

    def encode(self, text: str) -> list[int]:
        """Return the model's ids."""
        return self._model.tokenize(text)

    def decode(self, ids: Any) -> str:
        """Return the model's text."""
        return self._model.detokenize(ids).decode()

    def id_of(self, word: str) -> int:
        """Return the id of a piece that was learned."""
        return self._known[word]

    def learn(self, run: Run) -> None:
        """Take the pieces that the engine is going to write."""
        self._known.update({piece: token for token, piece in run})


class Scripted(FakeEngine):
    """An engine that writes a run of real tokens, one at each step."""

    def __init__(self, vocabulary: ModelVocabulary) -> None:
        self.run: Run = []
        super().__init__(self._write, mode="manual", vocabulary=vocabulary, context_tokens=8192)

    def _write(self, _request: GenerationRequest) -> list[str]:
        return [piece for _, piece in self.run]


def runs(model: LlamaEngine, length: int) -> Iterator[Run]:
    """Runs of so many tokens of ASCII text, from Alpaca's answers one after the other."""
    with gzip.open(data_folder() / "prompts" / "alpaca_5000.jsonl.gz", "rt", encoding="utf-8") as lines:
        answers = [json.loads(line)["output"] for line in lines]
    text = ""
    for answer in answers:
        text += answer + "\n\n" if answer.isascii() else ""
        ids = model.tokenize(text)[:length]
        pieces = [model.detokenize([token]) for token in ids]
        if len(ids) == length:
            yield [(token, piece.decode("ascii")) for token, piece in zip(ids, pieces, strict=True)]
            text = ""


@asynccontextmanager
async def endpoints(engine: Scripted) -> AsyncIterator[tuple[LinkProxy, Mapping[str, OpenAIEndpoint]]]:
    """Endpoints that differ in the form in which they exchange tokens, all through one counting proxy."""
    async with AsyncExitStack() as stack:
        url = await stack.enter_async_context(serving(engine, ServeOptions(model="smollm2-135m")))
        link = await stack.enter_async_context(LinkProxy(int(url.split(":")[2].split("/")[0])))
        base_url = f"http://127.0.0.1:{link.port}/v1"
        ids = Capabilities(takes_token_ids=True, vocabulary=engine.info.vocabulary, continuation="continue_final_message")
        made = {
            "text": OpenAIEndpoint("smollm2-135m", base_url=base_url, provider="streamco"),
            "JSON ids": OpenAIEndpoint("smollm2-135m", base_url=base_url, provider="streamco", capabilities=ids),
            "base64 in JSON": OpenAIEndpoint("smollm2-135m", base_url=base_url),
            "streamco": OpenAIEndpoint("smollm2-135m", base_url=base_url),
            "text, completions": OpenAIEndpoint("smollm2-135m", base_url=base_url, provider="streamco", api="completions"),
            "streamco, completions": OpenAIEndpoint("smollm2-135m", base_url=base_url, api="completions"),
        }
        for name, endpoint in made.items():
            stack.push_async_callback(endpoint.aclose)
            await endpoint.start()
            if name.startswith(("base64", "streamco")):
                info = await endpoint.probe()
                if name.startswith("base64"):  # a server that doesn't take MessagePack
                    endpoint._apply(replace(info, media_types=()))
        yield link, made


async def answer(engine: Scripted, endpoint: OpenAIEndpoint, request: Request) -> None:
    """One answer, each token by itself."""
    engine.generations.clear()
    stream = endpoint.open(request)
    reading = asyncio.ensure_future(stream.receive())
    while True:
        while not engine.generations:  # noqa: ASYNC110  the engine has no event for it
            await asyncio.sleep(0)
        engine.step(1)
        if isinstance(await reading, StreamEnded):
            return
        reading = asyncio.ensure_future(stream.receive())


async def count(engine: Scripted, link: LinkProxy, endpoint: OpenAIEndpoint, request: Request) -> tuple[int, int]:
    """Bytes to the server and from it, of one answer."""
    await answer(engine, endpoint, request)  # the connection is there from now on
    await asyncio.sleep(0.01)
    up, down = link.bytes_up, link.bytes_down
    await answer(engine, endpoint, request)
    await asyncio.sleep(0.01)
    return link.bytes_up - up, link.bytes_down - down


async def measure(model: LlamaEngine, samples: int) -> list[Row]:
    vocabulary = ModelVocabulary(model)
    engine = Scripted(vocabulary)
    rows: list[Row] = []
    question = model.tokenize(QUESTION)
    chat, prompt = Request(messages=[{"role": "user", "content": QUESTION}], sampling=SAMPLING), Request(prompt=QUESTION, sampling=SAMPLING)
    async with endpoints(engine) as (link, made):
        for length in LENGTHS:
            sizes: dict[tuple[str, str], list[float]] = {}
            for _, run in zip(range(samples), runs(model, length), strict=False):
                vocabulary.learn(run)
                text, ids = "".join(piece for _, piece in run), tuple(token for token, _ in run)
                partial = Partial(text=text, ids=ids, vocabulary=vocabulary.fingerprint, tokens=length)
                engine.run = run[:1]
                asked = {
                    ("to a server, chat", "text"): (made["text"], chat),
                    ("to a server, chat", "base64 in JSON"): (made["base64 in JSON"], chat),
                    ("to a server, chat", "streamco"): (made["streamco"], chat),
                    ("to a server, completions", "text"): (made["text, completions"], prompt),
                    ("to a server, completions", "JSON ids"): (
                        made["JSON ids"],
                        replace(prompt, prompt=None, prompt_ids=question),
                    ),
                    ("to a server, completions", "streamco"): (made["streamco, completions"], prompt),
                }
                for key, (endpoint, request) in asked.items():
                    up, _ = await count(engine, link, endpoint, replace(request, partial=partial))
                    sizes.setdefault(key, []).append(up)
                engine.run = run
                for contender, name in (("text", "text"), ("JSON ids", "base64 in JSON"), ("streamco", "streamco")):
                    _, down = await count(engine, link, made[name], chat)
                    sizes.setdefault(("from a server, chat", contender), []).append(down)
            for (way, contender), values in sizes.items():
                rows.append(mean_row(values, f"{way}, {length} tokens", contender))
    return rows


def mean_row(values: list[float], case: str, contender: str) -> Row:
    row = summarise(values, bench=BENCH, case=case, contender=contender, metric="bytes on the wire, mean", unit="B")
    return Row(**{**{name: getattr(row, name) for name in row.__slots__}, "median": sum(values) / len(values)})


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_arguments(parser)
    options = parser.parse_args()
    model = LlamaEngine(packaged_model(), EngineOptions(context_tokens=512, max_sequences=1))
    try:
        emit(asyncio.run(measure(model, 3 if options.quick else SAMPLES)), options.json)
    finally:
        model.close()


if __name__ == "__main__":
    main()
