"""Answers of a draft model and a target in one process are those of the live client."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from random import Random

import pytest
from msgspec.structs import replace

from bench.counted.selective import Pair
from bench.papers.synera.answers import Chunk, Profile, WrittenAnswer, load_models, make_steering, profile_of, replay, write_answers
from bench.papers.synera.rules import Cell, cells_of, live_options
from streamco.client.client import Client
from streamco.endpoints.device import DeviceEndpoint
from streamco.endpoints.openai import OpenAIEndpoint
from streamco.engines.base import EngineOptions
from streamco.engines.llamacpp.bundled_model import packaged_model
from streamco.engines.llamacpp.gguf import derived
from streamco.policies.importance import LAYERS
from streamco.policies.offload import OffloadSteering
from streamco.testing import running_server
from tests.support.leaks import holding_nothing_new
from tests.support.pair import pair_model

PROMPTS = ("Why is the sky blue?", "Write two lines about a fox and the sea.")
LENGTH = 40
CELLS = (Cell("combined", 0.5), Cell("confidence", 0.3), Cell("hybrid", 0.5), Cell("device", 0.0), Cell("server", 1.0))


@pytest.fixture(scope="module")
def small_pair() -> tuple[Path, Path]:
    """The packaged model in two bits, and in eight."""
    return derived(packaged_model(), "Q2_K"), derived(packaged_model(), "Q8_0")


@pytest.fixture(scope="module")
def models(small_pair: tuple[Path, Path]) -> Iterator[Pair]:
    """Both, loaded."""
    with closing(load_models(*small_pair, cells=6, context_tokens=512)) as loaded:
        yield loaded


def prompt_of(models: Pair, text: str) -> list[int]:
    return models.target.tokenize(models.target.apply_template([{"role": "user", "content": text}]), special=True)


def written(models: Pair, cell: Cell) -> list[str]:
    """What the contender writes to each prompt in turn, with the random draws of a live client of seed 1."""
    steering = make_steering(cell, Profile())
    answers = [
        write_answers(models, prompt_of(models, text), {cell: steering}, LENGTH, f"1/{number}")[cell]
        for number, text in enumerate(PROMPTS, 1)
    ]
    return [models.target.detokenize(answer.ids).decode() for answer in answers]


async def live(small: Path, large: Path, cell: Cell) -> list[str]:
    """What the live client writes, over a socket, without branches, which would move the ends of chunks."""
    async with running_server("--model", str(large), "--threads", "1", "--exact", "--port", "0", "--context", "512") as url:
        options = EngineOptions(context_tokens=512, threads=1, held_sequences=8, attention_layers=LAYERS)
        device = DeviceEndpoint(small, options=options)
        server = OpenAIEndpoint("large", base_url=url, name="server")
        speculation = replace(live_options(cell), max_branches=0)
        async with holding_nothing_new(), Client(device, server, mode=speculation, seed=1) as client:
            return ["".join([token.text async for token in client.stream(text, temperature=0, max_tokens=LENGTH)]) for text in PROMPTS]


@pytest.mark.long
@pytest.mark.model
@pytest.mark.timeout(180)
@pytest.mark.parametrize("cell", [*CELLS[:3], Cell("tolerant", 0.5)], ids=lambda cell: cell.name)
async def test_the_text_is_the_live_clients(small_pair: tuple[Path, Path], cell: Cell) -> None:
    with closing(load_models(*small_pair, cells=1, context_tokens=512)) as fresh:  # a draft model's arithmetic depends on its cells
        texts = written(fresh, cell)
    assert texts == await live(*small_pair, cell)


@pytest.mark.long
@pytest.mark.pair
@pytest.mark.timeout(400)
async def test_the_text_of_a_real_pair_is_the_live_clients() -> None:
    small, large = pair_model("0.5B"), pair_model("1.5B")
    with closing(load_models(small, large, cells=1, context_tokens=512)) as loaded:
        texts = written(loaded, CELLS[0])
    assert texts == await live(small, large, CELLS[0])


@pytest.mark.long
@pytest.mark.model
@pytest.mark.timeout(180)
def test_ends_are_the_models_own_and_budgets_are_kept_between_them(models: Pair) -> None:
    steerings = {cell: make_steering(cell, Profile()) for cell in CELLS}
    prompt = prompt_of(models, PROMPTS[0])
    answers = write_answers(models, prompt, steerings, LENGTH, "1")
    again = write_answers(models, prompt, {cell: make_steering(cell, Profile()) for cell in CELLS[3:]}, LENGTH, "2")
    assert {cell: answers[cell].ids for cell in CELLS[3:]} == {cell: again[cell].ids for cell in CELLS[3:]}
    device, server = answers[CELLS[3]], answers[CELLS[4]]
    assert (device.server_tokens, device.sent_share, server.sent_share) == (0, 0.0, 1.0)
    assert device.ids != server.ids
    assert len(device.beginning) == 16
    assert 0.0 < answers[CELLS[0]].sent_share < 1.0
    assert all(chunk.importance is not None for chunk in answers[CELLS[0]].chunks if chunk.tokens > 1)
    assert all(chunk.tokens == 1 for chunk in answers[CELLS[2]].chunks)
    late = [chunk for chunk in answers[CELLS[0]].chunks if not chunk.may_be_sent]
    assert all(chunk.accepted is None for chunk in late)
    assert sum(chunk.tokens for chunk in late) <= 0.2 * LENGTH + 4


def test_a_replayed_steering_decides_as_the_one_that_went_on() -> None:
    rng = Random(7)
    chunks = [Chunk(rng.random(), rng.random(), 4, may_be_sent=rng.random() < 0.9) for _ in range(80)]
    first, again = (OffloadSteering(0.4, chunks=((0.5, 0.5), (0.7, 0.2))) for _ in range(2))
    for steering in (first, again):
        replay(steering, chunks, Random("question"))
    decided = [[steering.decide(0.5, 0.4, 4, Random(3)) for _ in range(5)] for steering in (first, again)]
    assert decided[0] == decided[1]
    assert (first.tokens, first.offloaded_tokens, first.plan) == (again.tokens, again.offloaded_tokens, again.plan)


def test_the_profile_is_of_chunks_that_were_accepted_whole() -> None:
    chunks = [Chunk(0.9, 0.1, 4, 4), Chunk(0.7, None, 2, 2), Chunk(0.3, 0.2, 4, 1)]
    profile = profile_of([WrittenAnswer(chunks=chunks)])
    assert profile.confidence_threshold == pytest.approx(0.8)
    assert profile.chunks == ((0.9, 0.1), (0.7, None), (0.3, 0.2))
    assert profile_of([]) == Profile()


def test_tokens_of_the_server_are_those_it_verifies_and_one_more_each_time() -> None:
    answer = WrittenAnswer(chunks=[Chunk(0.9, 0.1, 4, 4), Chunk(0.9, 0.1, 4), Chunk(0.9, 0.1, 2, 0)])
    assert answer.server_tokens == 8
    assert answer.sent_share == pytest.approx(0.6)


def test_cells_have_both_ends_and_every_rule_between() -> None:
    names = [cell.name for cell in cells_of(("combined", "hybrid"), (0.0, 0.2, 1.0))]
    assert names == ["device", "server", "combined 0.2", "hybrid 0.2"]
