"""How many tokens does a trip to a split server bring, and what does a draft step cost?

Input part, middle part, head and draft layer run in one process, so no link and no server is in these figures. Greedy; the text is the
whole model's. ``tokens a round`` counts the correction, as the paper's Table IV does; a model that drafts nothing makes 1. Prompts that the
draft layer has learned from are left out. Of the kinds marked as absent it has seen none.

Each prompt is answered once in rounds of ``window 4``. With ``lookup`` what followed the last two tokens or more before is drafted, and
the draft layer guesses only where they are new. The other policies draft again along that text, with its states. Where PyTorch is
installed, its drafts are compared with llama.cpp's, at ``--positions`` positions of these texts. The cost of a draft step (draft layer and
input layers) is a mean over a draft; drafts alternate with as many decode steps of the whole model.
"""

from __future__ import annotations

import argparse
import gzip
import json
import tempfile
from collections.abc import Sequence
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from bench.ratio import ratio
from bench.report import Row, add_arguments, emit, interleave, per_call, rows_from
from bench.timed.draft_answer import Answer
from bench.traces import data_folder
from streamco.engines.llamacpp.bundled_model import packaged_model
from streamco.engines.llamacpp.context import LlamaContext
from streamco.engines.llamacpp.model import LlamaModel
from streamco.engines.llamacpp.model_parts import split_model
from streamco.engines.split.draft_layer import DraftPart
from streamco.engines.split.drafts import find_draft_layer
from streamco.engines.split.layers import HeadPart, InputPart, MiddlePart
from streamco.policies.drafts.prompt_lookup import PromptLookup

CELLS = 1024
HELD_OUT = 10  # as in bench/data/draft_text.py: of the kinds in FILES that were learned from, every tenth prompt was not
TRAINED = {"gsm8k": "gsm8k_test.jsonl.gz", "Spec-Bench": "spec_bench.jsonl.gz"}
HUMANEVAL = "HumanEval (absent)"
ABSENT = {HUMANEVAL: "humaneval_prompts.jsonl.gz", "Alpaca (absent)": "alpaca_5000.jsonl.gz"}
WRITTEN = "window 4"


class Policy(NamedTuple):
    """How long a draft is, and whether earlier text is looked up."""

    window: int
    threshold: float = 0.0
    lookup: bool = False


POLICIES = {
    "window 3": Policy(3),
    WRITTEN: Policy(4),
    "threshold 0.3": Policy(8, 0.3),
    "threshold 0.6": Policy(8, 0.6),
    "window 4, lookup": Policy(4, lookup=True),
    "window 8": Policy(8),
    "window 8, lookup": Policy(8, lookup=True),
}
States = NDArray[np.float32]


class Split:
    """A split model whose parts are all here.

    Args:
        weights: the draft layer; None: the one for this model that is packaged or in the cache folder.
        model: the whole model's file.
        folder: for the parts.
    """

    def __init__(self, weights: Path | None, model: Path, folder: str) -> None:
        files = split_model(model, folder)
        self.head = HeadPart(files.head)
        self.input, self.middle = InputPart(files.input, cells=CELLS), MiddlePart(files.middle, cells=CELLS)
        vocabulary = self.head.model.info.vocabulary
        found = weights or find_draft_layer(vocabulary, self.input.info.width, self.input.info.layers)
        if found is None:
            raise SystemExit(f"{model.name}: expected a draft layer in the package, in the cache folder or as --weights, got none")
        self.weights = found
        self.draft = DraftPart(found, input_part=files.input, head_part=files.head, vocabulary=vocabulary, cells=CELLS)

    def read(self, ids: Sequence[int], position: int) -> States:
        """Return the shallow states of tokens."""
        return self.input.run(self.head.embed(ids), position)

    def write(self, prompt: str, most: int) -> Answer:
        """Answer a prompt greedily, in rounds of the policy ``WRITTEN``."""
        tokens = self.head.model.tokenize(self.head.model.apply_template([{"role": "user", "content": prompt}]), special=True)
        for part in (self.input, self.middle, self.draft):
            part.truncate(0)
        shallow, ids, rounds = [self.read(tokens, 0)], list(tokens), 0
        states = self.middle.run(shallow[0], 0)[-1:]
        deep = [np.zeros((len(tokens) - 1, states.shape[1]), np.float32), self.draft.normed(states)]
        self.draft.extend(np.zeros_like(shallow[0]), shallow[0], 0)
        ids.append(int(self.head.logits(states[0]).argmax()))
        while len(ids) <= len(tokens) + most and ids[-1] not in self.head.model.end_ids and len(ids) + 16 < CELLS:
            position = len(ids) - 1
            drafts, rows = self._draft(ids[-1], deep[-1][-1], position)
            found = self.middle.run(rows, position)
            accepted = self.head.verify_greedy(found, drafts)
            kept = len(accepted)
            self.input.truncate(position + kept)
            self.middle.truncate(position + kept)
            states = self.draft.normed(found[:kept])
            self.draft.extend(np.concatenate([deep[-1][-1:], states[:-1]]), rows[:kept], position)
            shallow.append(rows[:kept])
            deep.append(states)
            ids += accepted
            rounds += 1
        return Answer(ids, len(tokens), np.concatenate(shallow), np.concatenate(deep), rounds)

    def _draft(self, token: int, deep: States, position: int) -> tuple[list[int], States]:
        """Return a draft after a token, and the shallow states of both."""
        rows, drafts = [self.read([token], position)], list[int]()
        while len(drafts) < POLICIES[WRITTEN].window:
            step = self.draft.step(deep, rows[-1][0], position + len(drafts))
            drafts.append(step.ids[0])
            rows.append(self.read([drafts[-1]], position + len(drafts)))
            deep = step.deep
        return drafts, np.concatenate(rows)

    def rounds(self, answer: Answer, policy: Policy) -> int:
        """Return how many rounds a policy needs for an answer that is written."""
        ids, position, rounds, lookup = answer.ids, answer.prompt, 0, PromptLookup()
        self.draft.extend(np.zeros_like(answer.shallow[:position]), answer.shallow[:position], 0)
        while position < len(ids) - 1:
            lookup.extend(ids[len(lookup) : position + 1])
            accepted = self._accepted(answer, position, policy, lookup)
            kept = min(accepted + 1, len(ids) - 1 - position)
            self.draft.extend(answer.deep[position - 1 : position - 1 + kept], answer.shallow[position : position + kept], position)
            position += kept
            rounds += 1
        return rounds

    def _accepted(self, answer: Answer, position: int, policy: Policy, lookup: PromptLookup) -> int:
        """Return the right tokens of a draft after a position. After looked up tokens the layer doesn't go on."""
        deep, rest, is_looked_up = answer.deep[position - 1], answer.ids[position + 1 :], False
        for accepted, token in enumerate(rest[: policy.window]):
            match, sure = lookup.next_token(rest[:accepted]) if policy.lookup else None, 1.0
            if match is not None:
                guess, is_looked_up = match.token, True
            elif is_looked_up:
                return accepted
            else:
                step = self.draft.step(deep, answer.shallow[position + accepted], position + accepted)
                guess, sure, deep = step.ids[0], step.probabilities[0], step.deep
            if guess != token:
                return accepted
            if sure < policy.threshold:
                return accepted + 1
        return min(policy.window, len(rest))

    def drafts(self, answer: Answer) -> list[int]:
        """Return the token that the draft layer guesses after each token of an answer except the last."""
        deep, shallow, start = answer.deep, answer.shallow, answer.prompt
        self.draft.extend(np.zeros_like(shallow[:start]), shallow[:start], 0)
        return [self.draft.step(deep[at - 1], shallow[at], at).ids[0] for at in range(start, len(answer.ids) - 1)]

    def close(self) -> None:
        """Free all parts."""
        for part in (self.head, self.input, self.middle, self.draft):
            part.close()


def prompts_of(name: str, *, is_absent: bool, count: int) -> list[str]:
    """Prompts of a file that the draft layer hasn't learned from, up to 1,200 characters; questions that are also in another file that it
    learned from are left out.
    """
    prompts = _prompts_in(name)
    held_out = prompts if is_absent else prompts[::HELD_OUT]
    learned = {text.strip() for other in TRAINED.values() if other != name for at, text in enumerate(_prompts_in(other)) if at % HELD_OUT}
    return [text for text in held_out if len(text) <= 1200 and text.strip() not in learned][:count]


def _prompts_in(name: str) -> list[str]:
    """All prompts of a file."""
    with gzip.open(data_folder() / "prompts" / name, "rt", encoding="utf-8") as lines:
        return [prompt_of(json.loads(line)) for line in lines]


def prompt_of(record: dict[str, str]) -> str:
    """The prompt of a record, whichever field it is in."""
    if "instruction" in record:
        return f"{record['instruction']}\n\n{record['input']}" if record.get("input") else record["instruction"]
    return record.get("question") or record.get("prompt") or record["turns"][0]


def answers_of(split: Split, count: int, most: int) -> dict[str, list[Answer]]:
    """Answers by kind of prompt."""
    found = {}
    for kind, name in {**TRAINED, **ABSENT}.items():
        answers = [split.write(prompt, most) for prompt in prompts_of(name, is_absent=kind in ABSENT, count=count)]
        found[kind] = [answer for answer in answers if answer.rounds]
    return found


def rounds_rows(split: Split, answers: dict[str, list[Answer]]) -> list[Row]:
    """Tokens a round by kind of prompt and policy, with how many rounds that is and the standard error."""
    rows = []
    for kind, written in answers.items():
        for name, policy in POLICIES.items():
            counts = [(answer.tokens, split.rounds(answer, policy)) for answer in written]
            if name == WRITTEN and [rounds for _, rounds in counts] != [answer.rounds for answer in written]:
                raise SystemExit(f"{kind}: expected the rounds of {WRITTEN} again, got {counts}")
            mean, error = ratio(counts)
            each = [tokens / rounds for tokens, rounds in counts]
            rows.append(Row("draft_layer", kind, name, "tokens a round", "tokens", mean, min(each), max(each)))
            if name == WRITTEN:
                rounds = [float(rounds) for _, rounds in counts]
                about = f"rounds of {len(counts)} answers"
                rows.append(Row("draft_layer", kind, name, "standard error", "tokens", error, error, error))
                rows.append(Row("draft_layer", kind, name, about, "rounds", sum(rounds), min(rounds), max(rounds)))
    return rows


def agreement_rows(split: Split, weights: Path, model: Path, answers: dict[str, list[Answer]], positions: int) -> list[Row]:
    """Share of equal drafts in PyTorch and llama.cpp, at the first positions of answers of all kinds by turns; none without PyTorch."""
    if find_spec("torch") is None:
        print("drafts of PyTorch and llama.cpp: not compared, PyTorch is missing\n")
        return []
    torch_drafts = import_module("bench.timed.draft_agreement").torch_drafts  # PyTorch has no types where it isn't
    chosen: list[Answer] = []
    for together in zip(*answers.values(), strict=False):
        chosen += together
    pairs = zip(torch_drafts(weights, model, chosen), map(split.drafts, chosen), strict=True)
    equal = [one == other for theirs, ours in pairs for one, other in zip(theirs, ours, strict=True)][:positions]
    share = sum(equal) / len(equal)
    error = (share * (1 - share) / len(equal)) ** 0.5
    case = f"PyTorch and llama.cpp at {len(equal)} positions"
    return [
        Row("draft_layer", case, "equal drafts", "share", "share", share, share, share),
        Row("draft_layer", case, "equal drafts", "standard error", "share", error, error, error),
    ]


def step_rows(split: Split, model: Path, answer: Answer, repeats: int) -> list[Row]:
    """Times of a draft step and of a decode step of the whole model, at the same positions, a draft's length of each by turns."""
    window = POLICIES[WRITTEN].window
    position = len(answer.shallow) - window
    split.draft.extend(np.concatenate([np.zeros_like(answer.deep[:1]), answer.deep[: position - 1]]), answer.shallow[:position], 0)
    split.input.truncate(0)
    split.read(answer.ids[:position], 0)
    whole = LlamaModel(model, repack=False)
    context = LlamaContext(whole, cells=CELLS, sequences=1, rows=CELLS, threads=1, unified=False)
    context.add_run(answer.ids[:position], 0, 0, wants_logits=1)
    _decode(context)

    def draft() -> None:
        split.input.truncate(position)
        split.draft.truncate(position)
        deep = answer.deep[position - 1]
        for at in range(position, position + window):
            deep = split.draft.step(deep, split.read([answer.ids[at]], at)[0], at).deep

    def decode() -> None:
        context.remove(0, position)
        for at in range(position, position + window):
            context.add_run([answer.ids[at]], at, 0, wants_logits=1)
            _decode(context)

    contenders = {
        "whole decode step": per_call(decode, 1, scale=1e3 / window),
        "draft step": per_call(draft, 1, scale=1e3 / window),
    }
    samples = interleave(contenders, repeats)
    context.close()
    whole.close()
    return rows_from("draft_layer", f"one token after {position}", "wall time", "ms", samples)


def _decode(context: LlamaContext) -> None:
    if status := context.decode():
        raise SystemExit(f"expected llama.cpp to decode, got status {status}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_arguments(parser)
    parser.add_argument("--weights", type=Path, help="a draft layer (default: the model's, packaged or in the cache folder)")
    parser.add_argument("--model", type=Path, help="the GGUF file that it was trained for (default: the packaged model)")
    parser.add_argument("--prompts", type=int, default=16, help="of each kind (default: %(default)s)")
    parser.add_argument("--tokens", type=int, default=64, help="of each answer (default: %(default)s)")
    parser.add_argument("--positions", type=int, default=300, help="at which PyTorch and llama.cpp are compared (default: %(default)s)")
    args = parser.parse_args()
    count, most = (3, 32) if args.quick else (args.prompts, args.tokens)
    model = args.model or Path(packaged_model())
    with tempfile.TemporaryDirectory() as folder:
        split = Split(args.weights, model, folder)
        answers = answers_of(split, count, most)
        rows = rounds_rows(split, answers)
        rows += agreement_rows(split, split.weights, model, answers, args.positions)
        rows += step_rows(split, model, answers["gsm8k"][0], 40 if args.quick else 200)
        split.close()
    emit([row for row in rows if row.contender in POLICIES], args.json, against=WRITTEN)
    emit([row for row in rows if row.contender not in POLICIES], args.json, against="whole decode step")


if __name__ == "__main__":
    main()
