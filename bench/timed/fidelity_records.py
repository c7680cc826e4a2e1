"""What the served model says to real prompts, and what drafts for it are to say: what both sides of ``bench.timed.fidelity`` use.

The served model is SmolLM2 with few of its layers, so that one core keeps to the times that are imposed on it. What it says makes no sense,
and its time is what counts. The fate of the drafts is the real pair's, for the same prompts: where the whole model, in Q8_0, and its draft
model, in Q4_0, agree, the draft has the served model's token, and where not, another, with the confidences and ranks that were recorded.

The served model runs in its exact mode here and there: where it doesn't, a batch of another shape may say another token. Of the fetched
pair's models nothing is translated: the larger one is served whole, and not in exact mode.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, closing
from itertools import islice
from pathlib import Path

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from bench.counted.selective import GREEDY, Waiting
from bench.pairs import TARGET, model_file
from bench.prompts import real_prompts
from streamco.engines.base import EngineOptions
from streamco.engines.llama import LlamaEngine
from streamco.engines.llamacpp.bundled_model import packaged_model
from streamco.engines.llamacpp.gguf import derived
from streamco.sim.workload.workload import SimulatedRequest

__all__ = ["Record", "load_pair_records", "load_records", "pair_model", "served_model"]

LEFT_OUT = tuple(range(1, 29))  # layers, of 30
PAIR_FORMAT = "Q4_0"  # four rows of it cost twice one on a CPU
PROMPT_TOKENS = (18, 60)
SPARE = 12  # tokens of an answer beyond those that are asked for: drafts reach so far
TOP = 8  # choices of the draft model that are kept
SIDE_BY_SIDE = 16
MOST_PROMPTS = 1200
_LAST_RANK = 3


class Record(Struct, frozen=True, kw_only=True):
    """A prompt, the served model's answer, and the drafts' choices (id, probability) in the place of each of its tokens, best first."""

    messages: list[dict[str, str]]
    prompt: list[int]
    answer: list[int]
    choices: list[list[tuple[int, float]]]

    def likely(self, position: int) -> Mapping[int, float]:
        """What a draft says in this place, whatever stands before it."""
        return dict(self.choices[min(position, len(self.choices) - 1)])

    def request(self, number: int, *, device: int, tokens: int | None = None, common: int = 0) -> SimulatedRequest:
        """The same for the simulator; ``tokens``: the answer ends with so many; ``common``: of the prompt, that all begin with."""
        length = len(self.answer) if tokens is None else tokens
        ranks = [
            next((rank for rank, (choice, _) in enumerate(each[:_LAST_RANK]) if choice == token), _LAST_RANK)
            for each, token in zip(self.choices, self.answer, strict=True)
        ]
        return SimulatedRequest(
            number=number,
            arrival=0.0,
            prompt_tokens=len(self.prompt),
            output_tokens=length,
            accepted=bytes(rank == 0 for rank in ranks[:length]),
            confidences=tuple(each[0][1] for each in self.choices[:length]),
            runners_up=tuple(each[1][1] for each in self.choices[:length]),
            ranks=bytes(ranks[:length]),
            device=device,
            common_tokens=common,
        )


def served_model() -> Path:
    """What the server runs."""
    return derived(packaged_model(), TARGET, LEFT_OUT)


def load_records(count: int, tokens: int, draft: str, kept: Path | None = None) -> list[Record]:
    """So many different prompts, with answers of ``tokens`` and some to spare; read from ``kept`` where that holds enough, else kept there.

    Raises:
        SystemExit: the recorded prompts aren't there, or too few of them are fit.
    """
    return _load(count, tokens, kept, served=served_model(), target=model_file(TARGET), drafter=model_file(draft))


def pair_model(name: str) -> Path:
    """Return the file of a model of the fetched pair, 0.5B or 1.5B.

    Raises:
        SystemExit: it was not fetched.
    """
    return model_file(name, PAIR_FORMAT)


def load_pair_records(count: int, tokens: int, kept: Path | None = None) -> list[Record]:
    """The same of the fetched pair: the answers are the served model's own, and so is the fate of the drafts."""
    served = pair_model("1.5B")
    return _load(count, tokens, kept, served=served, target=served, drafter=pair_model("0.5B"))


def _load(count: int, tokens: int, kept: Path | None, *, served: Path, target: Path, drafter: Path) -> list[Record]:
    if kept is not None and kept.exists():
        records = msgspec.json.decode(kept.read_bytes(), type=list[Record])
        if len(records) >= count and len(records[0].answer) >= tokens + SPARE:
            return records[:count]
    options = EngineOptions(threads=1, context_tokens=512, max_sequences=1, held_sequences=SIDE_BY_SIDE)
    with ExitStack() as stack:
        whole, drafting = (stack.enter_context(closing(LlamaEngine(path, options))) for path in (target, drafter))
        serving = whole if served == target else stack.enter_context(closing(LlamaEngine(served, replace(options, exact=True))))
        records = list(islice(_record(serving, whole, drafting, tokens + SPARE), count))
    if len(records) < count:
        raise SystemExit(f"prompts: expected {count} that are fit, got {len(records)}")
    if kept is not None:
        kept.write_bytes(msgspec.json.encode(records))
    return records


def _record(served: LlamaEngine, target: LlamaEngine, drafter: LlamaEngine, tokens: int) -> Iterator[Record]:
    asked = _short_prompts(served)
    while group := list(islice(asked, SIDE_BY_SIDE)):
        prompts = [prompt for _, prompt in group]
        answers = _answer(served, prompts, tokens)
        wholes = answers if served is target else _answer(target, prompts, tokens)
        for (messages, prompt), answer, whole in zip(group, answers, wholes, strict=True):
            if len(answer) == len(whole) == tokens:
                choices = zip(_choose(drafter, prompt, whole), whole, answer, strict=True)
                mapped = [_mapped(each, right, served_right) for each, right, served_right in choices]
                yield Record(messages=messages, prompt=prompt, answer=answer, choices=mapped)


def _short_prompts(engine: LlamaEngine) -> Iterator[tuple[list[dict[str, str]], list[int]]]:
    """They begin differently: nobody finds in the cache what was read for another."""
    least, most = PROMPT_TOKENS
    for number, (_, text) in enumerate(real_prompts(MOST_PROMPTS)):
        messages = [{"role": "system", "content": f"{number}"}, {"role": "user", "content": text}]
        ids = engine.tokenize(engine.apply_template(messages), special=True)
        if least <= len(ids) <= most:
            yield messages, ids


def _answer(engine: LlamaEngine, prompts: Sequence[list[int]], tokens: int) -> list[list[int]]:
    """Greedily, side by side."""
    waiting, held = Waiting(), [engine.hold() for _ in prompts]
    waiting.gather([each.extend(prompt, waiting.wake) for each, prompt in zip(held, prompts, strict=True)])
    with engine.together():
        tasks = [each.draft(tokens, waiting.wake, sampling=GREEDY) for each in held]
    found = waiting.gather(tasks)
    for each in held:
        each.close()
    return [[prediction.greedy for prediction in predictions] for predictions in found]


def _choose(engine: LlamaEngine, prompt: Sequence[int], answer: Sequence[int]) -> list[list[tuple[int, float]]]:
    waiting, held = Waiting(), engine.hold()
    (likely,) = waiting.gather([held.verify(answer, waiting.wake, given=prompt, top=TOP, sampling=GREEDY)])
    held.close()
    return [list(each.likeliest) for each in likely[: len(answer)]]


def _mapped(choices: Sequence[tuple[int, float]], right: int, served: int) -> list[tuple[int, float]]:
    """The same with the served model's token in the place of the whole model's, and nowhere else."""
    others = {choice for choice, _ in choices} | {served}
    spare = next(choice for choice in range(1000, 2000) if choice not in others)
    return [(served if choice == right else spare if choice == served else choice, share) for choice, share in choices]
