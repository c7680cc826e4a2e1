"""A split model answers as the whole one does, token for token, with and without drafts, and whatever sessions are lost."""

from __future__ import annotations

import asyncio
import re
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from itertools import count
from pathlib import Path
from typing import Any, Literal

import msgspec
import numpy as np
import pytest
from msgspec.structs import replace

from streamco.config import SamplingOptions
from streamco.engines.base import EngineOptions, GenerationEnd, GenerationRequest
from streamco.engines.llama import LlamaEngine
from streamco.engines.llamacpp.bundled_model import packaged_model
from streamco.engines.llamacpp.draft_model import DraftMeta, draft_layer_folder
from streamco.engines.llamacpp.model_parts import PartFiles, split_model
from streamco.engines.prompt_ids import chat_ids
from streamco.engines.split.drafts import DraftOptions, find_draft_layer
from streamco.engines.split.engine import SplitEngine, device_parts, no_drafts
from streamco.engines.split.layers import HeadPart, InputPart, MiddlePart
from streamco.engines.split.tally import SplitTally
from streamco.errors import ConfigError, EndpointConnectError, EngineError, UsageError
from streamco.policies.window import Threshold
from tests.engines.split.local_link import CELLS, Answering, LocalLink, Woken, read_answer

pytest.importorskip("gguf")
pytest.importorskip("llama_cpp")
pytestmark = [pytest.mark.long, pytest.mark.model]

PROMPTS = ("Name three rivers in France.", "Write a Python function that adds two numbers.", "Why is the sky blue?")
OPTIONS = EngineOptions(threads=1, context_tokens=CELLS, max_sequences=2)
GREEDY = SamplingOptions(temperature=0, max_tokens=16)
Answers = list[tuple[str, list[int], str]]


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> PartFiles:
    return split_model(packaged_model(), tmp_path_factory.mktemp("parts"))


@pytest.fixture(scope="module")
def whole() -> Iterator[LlamaEngine]:
    engine = LlamaEngine(packaged_model(), EngineOptions(threads=1, context_tokens=CELLS, exact=True))
    yield engine
    engine.close()


class Split:
    """A split engine with its link."""

    def __init__(
        self,
        files: PartFiles,
        *,
        size: int = 64,
        propose: Callable[[Sequence[int]], Sequence[int]] = no_drafts,
        drafts: DraftOptions | Literal["auto"] | None = None,
    ) -> None:
        self.link = LocalLink(files, size=size)
        self.engine = SplitEngine(files.stem, lambda _info, _tokens: self.link, OPTIONS, propose=propose, drafts=drafts)

    def close(self) -> None:
        self.engine.close()
        self.link.close()


@pytest.fixture(scope="module")
def split(files: PartFiles) -> Iterator[Split]:
    made = Split(files)
    yield made
    made.close()


def answer(engine: LlamaEngine | SplitEngine, prompt: str, sampling: SamplingOptions = GREEDY) -> tuple[str, list[int], GenerationEnd]:
    request = GenerationRequest(prompt_ids=chat_ids(engine, [{"role": "user", "content": prompt}]), sampling=sampling)
    if isinstance(engine, SplitEngine):
        return read_answer(engine, request)
    woken = Woken()
    generation = engine.submit(request, woken)
    text, made = "", list[int]()
    while True:
        pieces, end = generation.take()
        text += "".join(piece.text for piece in pieces)
        made += [token for piece in pieces for token in piece.ids]
        if end is not None:
            return text, made, end
        woken.wait()


@pytest.mark.parametrize("size", [64, 7])
def test_answers_are_those_of_the_whole_model(files: PartFiles, whole: LlamaEngine, size: int) -> None:
    split = Split(files, size=size)
    for prompt in PROMPTS:
        text, made, end = answer(split.engine, prompt)
        expected, ids, _ = answer(whole, prompt)
        assert (text, made) == (expected, ids)
        assert end.timings.completion_tokens == len(made)
    split.close()


def test_a_prompt_is_planned_with_what_is_known_of_the_device(files: PartFiles) -> None:
    split = Split(files)
    for prompt in PROMPTS[:2]:
        answer(split.engine, prompt)
    (*_, before), *_, (rows, computed, costs) = split.link.plans
    assert before is None, "nothing was run before the first prompt"
    assert computed <= rows
    assert costs is not None
    assert 0 < costs.seconds(1) < costs.seconds(100), "further rows take time, too"
    split.close()


def test_drafts_change_no_token_and_save_trips(files: PartFiles, whole: LlamaEngine) -> None:
    _, ids, _ = answer(whole, PROMPTS[0])
    start = len(chat_ids(whole, [{"role": "user", "content": PROMPTS[0]}]))

    def propose(tokens: Sequence[int]) -> Sequence[int]:
        """The next three tokens; every other time the second of them is wrong."""
        next_tokens = ids[len(tokens) - start :][:3]
        return [next_tokens[0], 7, *next_tokens[2:]] if len(tokens) % 2 and len(next_tokens) > 1 else next_tokens

    split = Split(files, propose=propose)
    assert answer(split.engine, PROMPTS[0])[1] == ids
    assert sum(command.wanted > 0 for command, _ in split.link.frames) < len(ids) / 1.5
    split.close()


def test_sampling_draws_the_tokens_that_the_whole_model_draws_with_this_seed(split: Split, whole: LlamaEngine) -> None:
    sampling = SamplingOptions(temperature=0.9, seed=5, max_tokens=16, frequency_penalty=0.5)
    assert answer(split.engine, PROMPTS[1], sampling)[:2] == answer(whole, PROMPTS[1], sampling)[:2]


def test_a_stop_string_ends_the_answer_before_it(split: Split, whole: LlamaEngine) -> None:
    text, _, _ = answer(whole, PROMPTS[2])
    stop = text.split()[4]
    shortened, _, end = answer(split.engine, PROMPTS[2], SamplingOptions(temperature=0, max_tokens=16, stop=(stop,)))
    assert (shortened, end.reason) == (text[: text.index(stop)], "stop")


@pytest.mark.parametrize("may_resume", [True, False])
def test_no_token_is_lost_with_a_session(files: PartFiles, whole: LlamaEngine, *, may_resume: bool) -> None:
    split = Split(files, size=7)
    length = len(chat_ids(split.engine, [{"role": "user", "content": PROMPTS[0]}]))
    split.link.losses = [(9, may_resume), (length, may_resume), (length + 5, may_resume)]
    assert answer(split.engine, PROMPTS[0])[:2] == answer(whole, PROMPTS[0])[:2]
    assert not split.link.losses
    split.close()


def test_if_no_server_is_left_the_answer_fails_with_its_text_so_far(files: PartFiles, whole: LlamaEngine) -> None:
    split = Split(files)
    length = len(chat_ids(split.engine, [{"role": "user", "content": PROMPTS[0]}]))
    split.link.losses = [(length + 5, False)]
    split.link.dies_after_loss = True
    text, _, end = answer(split.engine, PROMPTS[0])
    assert isinstance(end.error, EndpointConnectError)
    assert text
    assert answer(whole, PROMPTS[0])[0].startswith(text)
    split.close()


async def test_a_cancelled_answer_frees_its_place(split: Split) -> None:
    ids = chat_ids(split.engine, [{"role": "user", "content": PROMPTS[0]}])
    for _ in range(5):  # more than there are places
        answering = Answering(split.engine, GenerationRequest(prompt_ids=ids, sampling=SamplingOptions(max_tokens=100)))
        async for pieces, end in answering.batches():
            if pieces:
                answering.driver.leave()
            assert end is None or end.reason == "cancelled"
        while not answering.driver.is_over:
            await asyncio.sleep(0.001)
    assert (await Answering(split.engine, GenerationRequest(prompt_ids=ids, sampling=GREEDY)).read())[2].reason == "length"


async def test_an_answer_that_is_left_while_it_waits_for_its_turn_ends_at_once(split: Split) -> None:
    request = GenerationRequest(prompt_ids=chat_ids(split.engine, [{"role": "user", "content": PROMPTS[0]}]), sampling=GREEDY)
    first, second, third = (Answering(split.engine, request) for _ in range(3))
    third.driver.leave()
    assert (await third.read())[2].reason == "cancelled"
    assert third.driver.tally.counts.sessions == 0
    assert (await first.read())[1] == (await second.read())[1]


def test_an_answer_needs_a_driver(split: Split) -> None:
    with pytest.raises(UsageError, match="expected the driver of a split answer"):
        split.engine.submit(GenerationRequest(prompt_ids=[1]), Woken())


async def test_an_error_in_the_link_ends_the_answer(split: Split, monkeypatch: pytest.MonkeyPatch) -> None:
    def send(*_: object) -> None:
        raise ValueError("no such row")

    monkeypatch.setattr("tests.engines.split.local_link.LocalSession.send", send)
    request = GenerationRequest(prompt_ids=chat_ids(split.engine, [{"role": "user", "content": PROMPTS[0]}]), sampling=GREEDY)
    _, _, end = await Answering(split.engine, request).read()
    assert str(end.error) == "no such row"


def test_only_states_leave_the_device(split: Split) -> None:
    text, _, _ = answer(split.engine, PROMPTS[0])
    assert text
    width = split.engine.info.width
    assert all(states.shape == (command.stop - command.start, split.link.middle.info.width) for command, states in split.link.frames), width


def test_missing_parts_and_options_without_effect_are_refused(tmp_path: Path, files: PartFiles) -> None:
    with pytest.raises(ConfigError, match=r"none\.input\.gguf"):
        device_parts(tmp_path / "none")
    with pytest.raises(ConfigError, match="held_sequences: expected 0 for a split model, got 3"):
        SplitEngine(files.stem, lambda _info, _tokens: LocalLink(files), EngineOptions(held_sequences=3))


def test_the_error_of_missing_parts_says_what_is_there_instead(tmp_path: Path, files: PartFiles) -> None:
    folder, stem = files.stem.parent, files.stem
    for path, text in (
        (folder, f"is a folder, with the parts {stem}"),
        (files.input, f"is one file of the parts, which are named by their beginning: {stem}"),
        (files.middle, f"named by their beginning: {stem}"),
        (tmp_path, "is a folder, with the parts of no model"),
        (Path(__file__), "is a file of its own: streamco split cuts a whole model"),
        (tmp_path / "none", "got no such file"),
    ):
        with pytest.raises(ConfigError, match=re.escape(text) + "$"):
            device_parts(path)


def test_a_prompt_that_does_not_fit_is_refused(split: Split) -> None:
    with pytest.raises(EngineError, match=f"expected 1 to {CELLS - 1} ids"):
        read_answer(split.engine, GenerationRequest(prompt_ids=[1] * CELLS))


# With the draft layer


@pytest.fixture(scope="module")
def drafting(files: PartFiles) -> Iterator[Split]:
    made = Split(files, drafts=DraftOptions(packaged(files), window=4))
    yield made
    made.close()


def trips(split: Split) -> int:
    """Frames whose states came back, since the last call."""
    frames, split.link.frames = split.link.frames, []
    return sum(command.wanted > 0 for command, _ in frames)


@pytest.mark.parametrize("prompt", PROMPTS)
def test_the_draft_layer_changes_no_token_and_saves_trips(drafting: Split, whole: LlamaEngine, prompt: str) -> None:
    trips(drafting)
    longer = SamplingOptions(temperature=0, max_tokens=48)
    made = answer(drafting.engine, prompt, longer)[1]
    assert made == answer(whole, prompt, longer)[1]
    assert trips(drafting) < 0.85 * len(made)


def test_samples_are_those_of_the_whole_model_with_drafts_too(drafting: Split, whole: LlamaEngine) -> None:
    sampling = SamplingOptions(temperature=0.9, seed=5, max_tokens=24, frequency_penalty=0.5)
    assert answer(drafting.engine, PROMPTS[1], sampling)[:2] == answer(whole, PROMPTS[1], sampling)[:2]


@pytest.mark.parametrize("most", [1, 2, 3, 5])
def test_drafts_keep_to_the_answers_limit(drafting: Split, whole: LlamaEngine, most: int) -> None:
    sampling = SamplingOptions(temperature=0, max_tokens=most)
    assert answer(drafting.engine, PROMPTS[2], sampling)[:2] == answer(whole, PROMPTS[2], sampling)[:2]


def test_no_token_is_lost_with_a_session_in_mid_draft(files: PartFiles, whole: LlamaEngine) -> None:
    split = Split(files, size=7, drafts="auto")
    length = len(chat_ids(split.engine, [{"role": "user", "content": PROMPTS[0]}]))
    split.link.losses = [(9, True), (length, False), (length + 6, True)]
    assert answer(split.engine, PROMPTS[0])[:2] == answer(whole, PROMPTS[0])[:2]
    split.close()


def test_answers_at_the_same_time_do_not_mix_their_drafts(drafting: Split, whole: LlamaEngine) -> None:
    assert [made for made, _ in answer_together(drafting.engine, PROMPTS)] == [answer(whole, prompt)[1] for prompt in PROMPTS]


def test_a_threshold_ends_a_draft(files: PartFiles) -> None:
    layer = packaged(files)
    for window, most in ((4, 5), (Threshold(0.0, 4), 5), (Threshold(1.0, 4), 2)):
        split = Split(files, drafts=DraftOptions(layer, window=window))
        answer(split.engine, PROMPTS[0])
        assert max(command.stop - command.start for command, _ in split.link.frames if command.start > 40) == most
        split.close()


def test_a_confident_draft_ends_when_rows_cost_more_than_they_give(
    files: PartFiles, whole: LlamaEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = count()
    monkeypatch.setattr("streamco.engines.split.drafts.monotonic", lambda: next(clock) / 1000)
    layer, longer = packaged(files), SamplingOptions(temperature=0, max_tokens=48)
    for cost, is_drafting in ((0.0, True), (10.0, False)):
        split = Split(files, drafts=DraftOptions(layer, window="confident"))
        split.link.cost = cost
        assert answer(split.engine, PROMPTS[0], longer)[1] == answer(whole, PROMPTS[0], longer)[1]
        sizes = [command.stop - command.start for command, _ in split.link.frames if command.start > 40]
        assert (sum(size > 1 for size in sizes) > len(sizes) / 2) is is_drafting
        split.close()


def packaged(files: PartFiles) -> Path:
    with HeadPart(files.head) as head:
        path = find_draft_layer(head.model.info.vocabulary, 576, 2)
    assert path is not None
    return path


def test_the_packaged_layer_drafts_as_far_as_its_tokens_are_worth(files: PartFiles) -> None:
    split = Split(files, drafts="auto")
    assert split.engine.drafts == DraftOptions(packaged(files), window="confident")
    split.close()


def test_weights_that_are_not_given_are_the_packaged_ones(files: PartFiles, monkeypatch: pytest.MonkeyPatch) -> None:
    split = Split(files, drafts=DraftOptions(window=2, parallel=1))
    assert split.engine.drafts == DraftOptions(packaged(files), window=2, parallel=1)
    split.close()
    monkeypatch.setattr("streamco.engines.split.engine.find_draft_layer", lambda *_: None)
    split = Split(files, drafts="auto")
    assert split.engine.drafts is None
    split.close()
    with pytest.raises(
        ConfigError,
        match=r"drafts: expected the weights .*, because none for .* are packaged or in the cache folder, got none",
    ):
        Split(files, drafts=DraftOptions(window=2))


def branching(files: PartFiles, *, branches: Literal["ranked", "last"], parallel: int | Literal["auto"] = 3) -> Split:
    """A split engine whose verdicts come when it has nothing more to draft, over a link that takes long."""
    split = Split(files, drafts=DraftOptions(packaged(files), window=3, parallel=parallel, branches=branches))
    split.link.round_trip = 60.0
    running = split.engine._running
    split.link.is_slow = lambda: any(answer.can_predraft for answer in [*running.values()])
    return split


@pytest.mark.parametrize("branches", ["ranked", "last"])
@pytest.mark.parametrize("parallel", [3, "auto"])
def test_branches_change_no_token(
    files: PartFiles, whole: LlamaEngine, branches: Literal["ranked", "last"], parallel: int | Literal["auto"]
) -> None:
    split = branching(files, branches=branches, parallel=parallel)
    length = len(chat_ids(split.engine, [{"role": "user", "content": PROMPTS[0]}]))
    split.link.losses = [(length + 3, True), (length + 9, False)]
    for prompt in PROMPTS[:2]:
        assert answer(split.engine, prompt)[1] == answer(whole, prompt)[1]
    assert not split.link.losses
    sampling = SamplingOptions(temperature=0.9, seed=5, max_tokens=16)
    assert answer(split.engine, PROMPTS[1], sampling)[:2] == answer(whole, PROMPTS[1], sampling)[:2]
    split.close()


@pytest.mark.parametrize("parallel", [3, "auto"])
def test_answers_at_the_same_time_do_not_mix_their_branches(files: PartFiles, whole: LlamaEngine, parallel: int | Literal["auto"]) -> None:
    split = branching(files, branches="ranked", parallel=parallel)
    found = answer_together(split.engine, PROMPTS[:2])
    assert [made for made, _ in found] == [answer(whole, prompt)[1] for prompt in PROMPTS[:2]]
    assert all(tally.branches.begun > 0 for _, tally in found)
    split.close()


def answer_together(engine: SplitEngine, prompts: Sequence[str]) -> list[tuple[list[int], SplitTally]]:
    """Return the ids and the tallies of answers that are asked for at the same time."""

    async def ask() -> list[tuple[list[int], SplitTally]]:
        ids = [chat_ids(engine, [{"role": "user", "content": prompt}]) for prompt in prompts]
        asked = [Answering(engine, GenerationRequest(prompt_ids=each, sampling=GREEDY)) for each in ids]
        made = await asyncio.gather(*(each.read() for each in asked))
        return [(ids, each.driver.tally) for (_, ids, _), each in zip(made, asked, strict=True)]

    return asyncio.run(ask())


def test_a_layer_in_the_cache_folder_is_found_for_its_model_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert find_draft_layer("other", 64, 2) is None
    path = draft_layer_folder() / "other.npz"
    meta = DraftMeta("other", "other", 64, 2)
    np.savez(path, meta=np.frombuffer(msgspec.json.encode(meta), np.uint8))
    assert find_draft_layer("other", 64, 2) == path
    assert [find_draft_layer(*wrong) for wrong in (("others", 64, 2), ("other", 32, 2), ("other", 64, 3))] == [None] * 3
    path.with_name("a.npz").write_bytes(b"no archive")
    assert find_draft_layer("other", 64, 2) == path
    assert "a.npz: expected weights" in caplog.text
    (tmp_path / "file").touch()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    assert find_draft_layer("other", 64, 2) is None
    assert "can't be looked into" in caplog.text


def test_the_packaged_layer_comes_before_the_cache_folder(files: PartFiles, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    found = packaged(files)
    (draft_layer_folder() / found.name).write_bytes(found.read_bytes())
    assert packaged(files) == found


@pytest.mark.parametrize("window", [0, 17, True, "long", None, 2.5])
def test_windows_that_can_not_be_are_refused(window: Any) -> None:
    with pytest.raises(ConfigError, match="drafts: expected a window of 1 to 16"):
        DraftOptions(Path("x"), window=window)


def test_sampled_texts_have_the_whole_models_distribution(files: PartFiles, whole: LlamaEngine) -> None:
    """Three tokens out of three that are allowed: a chi-square test over 27 texts; drafts are right in a part of the rounds."""
    few = whole.tokenize(" the a my")
    assert len(few) == 3
    prompt = whole.tokenize("I went to")
    sampling = SamplingOptions(temperature=1.0, max_tokens=3, logit_bias=tuple((token, 60.0) for token in few))
    split = Split(files, propose=lambda tokens: [few[0], few[0]][: len(prompt) + 2 - len(tokens)])
    found = Counter(tuple(draws(split.engine, prompt, replace(sampling, seed=seed))) for seed in range(SEEDS))
    assert sum(command.wanted > 1 for command, _ in split.link.frames) > SEEDS / 2, "drafts were verified"
    split.close()
    expected = {text: SEEDS * share for text, share in shares(files, prompt, few).items()}
    usual = {text: count for text, count in expected.items() if count >= 5}
    rest = SEEDS - sum(usual.values())
    terms = [(found[text] - count) ** 2 / count for text, count in usual.items()]
    terms.append((SEEDS - sum(found[text] for text in usual) - rest) ** 2 / max(rest, 1.0))
    freedom = len(terms) - 1
    assert freedom >= 4
    assert sum(terms) < freedom + 3.5 * (2 * freedom) ** 0.5, f"{found} against {expected}"


SEEDS = 250


def draws(engine: SplitEngine, prompt: list[int], sampling: SamplingOptions) -> list[int]:
    return read_answer(engine, GenerationRequest(prompt_ids=prompt, sampling=sampling))[1]


def shares(files: PartFiles, prompt: list[int], few: list[int]) -> dict[tuple[int, ...], float]:
    """The probability of each text of three tokens, by the parts themselves."""
    found: dict[tuple[int, ...], float] = {(): 1.0}
    with InputPart(files.input) as first, MiddlePart(files.middle) as middle, HeadPart(files.head) as head:
        for _ in range(3):
            longer = dict[tuple[int, ...], float]()
            for text, share in found.items():
                first.truncate(0)
                middle.truncate(0)
                logits = head.logits(middle.run(first.run(head.embed([*prompt, *text]), 0), 0)[-1])[few].astype(float)
                weights = np.exp(logits - logits.max())
                longer |= {(*text, token): share * float(weight) for token, weight in zip(few, weights / weights.sum(), strict=True)}
            found = longer
    return found
