"""Sampled answers of a real pair have the target's distribution: a drafter, a socket, a server that verifies.

The first two tokens of many texts after one beginning, against the target's own probabilities: 6 ids may be drawn at each place, so 6
first tokens and 36 pairs. A chi-square may exceed its 99.9 % point in one of a thousand faultless builds, once for all, for the seeds are
fixed.

200 texts are enough to find a wrong build: the draft model's own first tokens have a sum of (q - p)^2 / p of 0.48, and so a chi-square
of about 96 where the limit is 20.5, not to speak of the 41 % that the target would not draw at all. The test shows that it is so.

``STREAMCO_SAMPLED_ANSWERS`` sets how many answers are written.
"""

from __future__ import annotations

import asyncio
import os
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

import pytest

from streamco.config import SamplingOptions
from streamco.core.speculation.events import (
    CloseVerifier,
    ConnectVerifier,
    DraftRefused,
    DraftToken,
    DraftTokens,
    SendDraft,
    TokensDrafted,
    VerdictReceived,
    VerifierConnected,
    VerifierLost,
)
from streamco.endpoints.device_drafter import DeviceDrafter, DrafterEvent
from streamco.endpoints.verifiers.base import VerifierEvent
from streamco.endpoints.verifiers.streamco import VerifierEndpoint
from streamco.engines.base import EngineOptions
from streamco.engines.llama import LlamaEngine
from streamco.engines.llamacpp.bundled_model import packaged_model
from streamco.engines.llamacpp.gguf import derived
from streamco.errors import EngineError
from streamco.policies.acceptance import Rule, RuleKind
from tests.engines.asking import extend
from tests.server.verifying import serving
from tests.support.surprise import surprise

pytestmark = pytest.mark.model

ANSWERS = int(os.environ.get("STREAMCO_SAMPLED_ANSWERS", "200"))
AT_ONCE = 3
IDS = 6
SAMPLING = SamplingOptions(temperature=1.3, top_k=IDS, top_p=1.0, min_p=0.0)


@dataclass
class Pair:
    draft: LlamaEngine
    target: LlamaEngine

    @property
    def prompt(self) -> list[int]:
        return self.target.tokenize("Today I")

    def shares(self, ids: list[int]) -> dict[int, float]:
        """What the target itself would draw from."""
        sequence = self.target.hold()
        (prediction,) = extend(sequence, ids, top=IDS, sampling=SAMPLING).predictions
        sequence.close()
        assert prediction.is_complete
        return dict(prediction.drawable)


@pytest.fixture(scope="module")
def pair() -> Iterator[Pair]:
    pytest.importorskip("llama_cpp")
    try:
        paths = [derived(packaged_model(), kind) for kind in ("Q2_K", "Q8_0")]
    except EngineError as exc:
        pytest.skip(str(exc))
    draft, target = [
        LlamaEngine(
            path,
            EngineOptions(threads=1, context_tokens=64, max_sequences=1, held_sequences=AT_ONCE + 2, held_tokens=1024, exact=is_exact),
        )
        for path, is_exact in zip(paths, (False, True), strict=True)
    ]
    yield Pair(draft, target)
    draft.close()
    target.close()


class Answer:
    """Two tokens, by rounds of a drafter and a verifier."""

    def __init__(self, pair: Pair, verifier: VerifierEndpoint, seed: int) -> None:
        sampling = SamplingOptions(temperature=1.3, top_k=IDS, top_p=1.0, min_p=0.0, seed=seed)
        self.drafted: asyncio.Queue[TokensDrafted] = asyncio.Queue()
        self.verify: asyncio.Queue[VerifierEvent] = asyncio.Queue()
        self.drafter = DeviceDrafter(pair.draft, pair.prompt, emit=self.emit, sampling=sampling, row_ids=IDS)
        rule = Rule(RuleKind.SAMPLE, 1.3, top_k=IDS, seed=seed)
        self.session = verifier.open(pair.prompt, self.verify.put_nowait, rule=rule, reserve=len(pair.prompt) + 8)
        self.first_drafted = self.round = -1

    def emit(self, event: DrafterEvent) -> None:
        assert isinstance(event, TokensDrafted), event
        self.drafted.put_nowait(event)

    async def draft(self, version: int, ids: tuple[int, ...], count: int) -> list[DraftToken]:
        self.drafter.run(DraftTokens(version, 0, ids, count))
        tokens: list[DraftToken] = []
        while True:
            event = await self.drafted.get()
            tokens += event.tokens
            if event.is_finished:
                return tokens

    async def connect(self, text: list[int]) -> None:
        self.session.run(ConnectVerifier(tuple(text)))
        assert isinstance(await self.verify.get(), VerifierConnected)

    async def judge(self, draft: list[DraftToken], text: list[int]) -> VerdictReceived:
        """Asks again where this machine is too slow for six answers at once, as the server sees it."""
        while True:
            self.round += 1
            ids, rows = tuple(token.id for token in draft), tuple(token.row for token in draft)
            self.session.run(SendDraft(self.round, len(text), (), ids, rows))
            match await self.verify.get():
                case VerdictReceived() as verdict:
                    return verdict
                case DraftRefused(retry_after=seconds):
                    await asyncio.sleep(seconds or 0.01)
                case VerifierLost():
                    await self.connect(text)
                case event:
                    raise AssertionError(f"expected a verdict, got {event}")

    async def write(self) -> tuple[int, int]:
        await self.connect([])
        text: list[int] = []
        while len(text) < 2:
            draft = await self.draft(len(text) + 1, tuple(text), 2 - len(text))
            self.first_drafted = self.first_drafted if text else draft[0].id
            verdict = await self.judge(draft, text)
            assert verdict.token is not None
            text += [*(token.id for token in draft[: verdict.accepted]), verdict.token]
        self.session.run(CloseVerifier())
        await self.session.aclose()
        await self.drafter.aclose()
        return text[0], text[1]


@pytest.mark.long
@pytest.mark.timeout(100 + ANSWERS)
async def test_answers_of_a_pair_are_distributed_as_the_targets_own(pair: Pair) -> None:
    firsts = await asyncio.to_thread(pair.shares, pair.prompt)
    seconds = {token: await asyncio.to_thread(pair.shares, [*pair.prompt, token]) for token in firsts}
    pairs = {(first, second): firsts[first] * share for first in firsts for second, share in seconds[first].items()}
    seen: Counter[tuple[int, int]] = Counter()
    drafted: Counter[int] = Counter()
    async with serving(pair.target) as server:
        verifier = VerifierEndpoint(server.url)
        await verifier.start(pair.draft)
        seeds = iter(range(ANSWERS))

        async def write_on() -> None:
            for seed in seeds:
                answer = Answer(pair, verifier, seed)
                seen[await answer.write()] += 1
                drafted[answer.first_drafted] += 1

        await asyncio.gather(*(write_on() for _ in range(AT_ONCE)))
        assert verifier.facts is not None
        assert verifier.facts.is_exact(Rule(RuleKind.SAMPLE, 1.3, top_k=IDS))
        figures = server.figures
        await verifier.aclose()
    seen_firsts = Counter({first: sum(count for (each, _), count in seen.items() if each == first) for first in firsts})
    print(figures["refused"], seen, drafted, [surprise(each, firsts, ANSWERS) for each in (seen_firsts, drafted)])
    assert sum(seen.values()) == ANSWERS
    assert set(seen) <= set(pairs)
    assert surprise(seen_firsts, firsts, ANSWERS) < 1.0
    assert surprise(seen, pairs, ANSWERS) < 1.0
    assert surprise(Counter({token: drafted[token] for token in firsts}), firsts, ANSWERS) > 3.0
