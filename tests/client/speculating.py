"""Helpers of the tests of speculated answers: a target and a draft model as functions, on a device and at a server."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any

from streamco.client.client import Client
from streamco.client.modes.speculation.mode import Speculate
from streamco.client.modes.speculation.options import SpeculationTuning
from streamco.client.stream import Retracted, Settled, Token, TokenStream
from streamco.config import Timeouts
from streamco.endpoints.device import DeviceEndpoint
from streamco.endpoints.verifiers.streamco import VerifierEndpoint
from streamco.engines.base import GenerationRequest
from streamco.server.app import ServeOptions, serving
from streamco.testing import FakeDistribution, FakeEngine, ScriptedVerifier
from streamco.testing.engine import FakeVocabulary
from tests.support.leaks import holding_nothing_new
from tests.support.modes import client_options

SIZE, SAID = 300, 200  # ids of the vocabulary, and those that models say
END = SIZE - 1
PROMPT = "Why is it so?"
ALWAYS = Speculate(is_adaptive=False)
HASTY = Speculate(is_adaptive=False, tuning=SpeculationTuning(last_patience=0.3))  # seconds
QUICK = Timeouts(connect=5, first_token=5, next_token=5, socket=5, cancel=1)


def a_vocabulary() -> FakeVocabulary:
    """Words for all ids that models say."""
    vocabulary = FakeVocabulary("speculating", SIZE)
    for token in range(SAID):
        vocabulary.id_of(f" w{token}")
    return vocabulary


class Ending:
    """A distribution that ends texts of so many tokens, prompt included."""

    def __init__(self, model: FakeDistribution, length: int) -> None:
        self.model = model
        self.length = length

    def __call__(self, ids: Sequence[int]) -> Mapping[int, float]:
        return {END: 1.0} if len(ids) >= self.length else self.model(ids)


class World:
    """A target and a draft model.

    Args:
        noise: between the two.
        spread: how sure they are.
        length: tokens after which the target ends a text, prompt included.
    """

    def __init__(self, *, noise: float = 0.7, spread: float = 2.0, length: int = 60, **device: Any) -> None:
        self.vocabulary = a_vocabulary()
        self.target = Ending(FakeDistribution(5, SAID, spread=spread), length)
        self.drafter = Ending(FakeDistribution(5, SAID, noise=noise, spread=spread), length)
        device.setdefault("mode", "thread")
        device.setdefault("token_s", 0.0005)
        self.engine = FakeEngine(vocabulary=self.vocabulary, successor=self.drafter, name="small", **device)
        self.large = FakeEngine(self._continued, vocabulary=self.vocabulary, successor=self.target, mode="thread", name="large")

    def _continued(self, request: GenerationRequest) -> list[str]:
        """What the target writes by itself."""
        return [self.vocabulary.decode([token]) for token in self.own(request.prompt_ids)]

    def own(self, prompt: Sequence[int], most: int = 200) -> list[int]:
        """The target's own greedy answer, its end left out."""
        ids: list[int] = list(prompt)
        for _ in range(most):
            shares = self.target(ids)
            best = max(shares, key=lambda token: (shares[token], -token))
            if best == END:
                break
            ids.append(best)
        return ids[len(prompt) :]

    def prompt_ids(self, prompt: str = PROMPT) -> list[int]:
        return self.engine.tokenize(self.engine.apply_template([{"role": "user", "content": prompt}]))

    def text(self, prompt: str = PROMPT, most: int = 200) -> str:
        """The target's own greedy answer to a prompt."""
        return self.vocabulary.decode(self.own(self.prompt_ids(prompt), most))

    def scripted(self, **options: Any) -> ScriptedVerifier:
        """A verifier that says what the target would."""
        return ScriptedVerifier(self.target, vocabulary=self.vocabulary.fingerprint, vocabulary_size=SIZE, **options)

    @asynccontextmanager
    async def served(self, **options: Any) -> AsyncIterator[str]:
        """`streamco serve` over the target; its base URL."""
        async with serving(self.large, ServeOptions(**options)) as url:
            yield url

    def wake(self) -> None:
        """Begin the scripted engines' own threads."""
        self.engine.hold().close()
        self.large.hold().close()

    def close(self) -> None:
        self.engine.close()
        self.large.close()

    @asynccontextmanager
    async def speculating(self, verifier: Any, **options: Any) -> AsyncIterator[Client]:
        """A client with this verifier; afterwards nothing of it is left."""
        if isinstance(verifier, ScriptedVerifier):
            verifier = VerifierEndpoint(verifier.url, timeouts=QUICK)
        options.setdefault("mode", "speculate")
        options.setdefault("seed", 1)
        options.setdefault("speculation", ALWAYS)
        self.wake()
        async with (
            holding_nothing_new(),
            Client(DeviceEndpoint(self.engine), **client_options({"verifier": verifier, **options})) as client,
        ):
            yield client


class Screen:
    """What a program shows that follows a stream.

    Attributes:
        text: shown. final: characters of it that are.
        tokens: as they came.
    """

    def __init__(self) -> None:
        self.text = ""
        self.final = 0
        self.tokens: list[Token] = []

    def take(self, token: Token) -> None:
        self.tokens.append(token)
        if isinstance(token, Retracted):
            assert token.characters <= len(self.text) - self.final, "only provisional text is taken back"
            self.text = self.text[: len(self.text) - token.characters]
        elif isinstance(token, Settled):
            self.final += token.characters
        else:
            assert token.origin is not None
            self.text += token.text
            if token.origin != "draft":
                assert self.final == len(self.text) - len(token.text), "final text comes behind final text"
                self.final = len(self.text)

    async def read(self, stream: TokenStream) -> str:
        async for token in stream:
            self.take(token)
        return self.text
