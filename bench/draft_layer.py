"""How many tokens does a trip to a split server bring, and what does a draft step cost?

Input part, middle part, head and draft layer run in one process, so no link and no server is in these figures. Greedy; the text is the
whole model's. ``tokens a round`` counts the correction, as the paper's Table IV does; a model that drafts nothing makes 1. Prompts that the
draft layer has learned from are left out. Of the kinds marked as absent it has seen none.
"""

from __future__ import annotations

import argparse
import gzip
import json
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import median

import numpy as np
from numpy.typing import NDArray

import streamco
from bench.report import Row, add_arguments, emit
from bench.traces import data_folder
from streamco.engines.llamacpp.bundled_model import packaged_model
from streamco.engines.llamacpp.context import LlamaContext
from streamco.engines.llamacpp.model import LlamaModel
from streamco.engines.llamacpp.model_parts import split_model
from streamco.engines.split.draft_layer import DraftPart
from streamco.engines.split.layers import HeadPart, InputPart, MiddlePart

CELLS = 1024
HELD_OUT = 10  # as in experiments/draft_text.py: of the kinds in FILES that were learned from, every tenth prompt was not
TRAINED = {"gsm8k": "gsm8k_test.jsonl.gz", "Spec-Bench": "spec_bench.jsonl.gz"}
ABSENT = {"HumanEval (absent)": "humaneval_prompts.jsonl.gz", "Alpaca (absent)": "alpaca_5000.jsonl.gz"}
PACKAGED = Path(streamco.__file__).parent / "engines" / "split" / "draft_layers" / "SmolLM2-135M-Instruct.npz"
POLICIES: dict[str, tuple[int, float]] = {"window 3": (3, 0.0), "window 4": (4, 0.0), "threshold 0.3": (8, 0.3), "threshold 0.6": (8, 0.6)}
States = NDArray[np.float32]


class Split:
    """A split model whose parts are all here."""

    def __init__(self, weights: Path, model: Path, folder: str) -> None:
        files = split_model(model, folder)
        self.head = HeadPart(files.head)
        self.input, self.middle = InputPart(files.input, cells=CELLS), MiddlePart(files.middle, cells=CELLS)
        vocabulary = self.head.model.info.vocabulary
        self.draft = DraftPart(weights, input_part=files.input, head_part=files.head, vocabulary=vocabulary, cells=CELLS)
        self.steps: list[float] = []
        """Seconds of each draft step, its input layers included."""

    def read(self, ids: Sequence[int], position: int) -> States:
        """Return the shallow states of tokens."""
        return self.input.run(self.head.embed(ids), position)

    def write(self, prompt: str, most: int, window: int, threshold: float) -> tuple[int, int, list[int]]:
        """Answer a prompt greedily; return rounds, tokens that rounds made, and the answer's ids."""
        tokens = self.head.model.tokenize(self.head.model.apply_template([{"role": "user", "content": prompt}]), special=True)
        for part in (self.input, self.middle, self.draft):
            part.truncate(0)
        shallow = self.read(tokens, 0)
        deep = self.middle.run(shallow, 0)[-1]
        self.draft.extend(np.zeros_like(shallow), shallow, 0)
        made = [int(self.head.logits(deep).argmax())]
        rounds = 0
        while len(made) <= most and made[-1] not in self.head.model.end_ids and len(tokens) + len(made) + 16 < CELLS:
            position = len(tokens) + len(made) - 1
            drafts, rows = self._draft(made[-1], deep, position, window, threshold)
            found = self.middle.run(rows, position)
            accepted = self.head.verify_greedy(found, drafts)
            kept = position + len(accepted)
            self.input.truncate(kept)
            self.middle.truncate(kept)
            before = np.concatenate([deep[None], found[: len(accepted) - 1]])
            self.draft.extend(self.draft.normed(before), rows[: len(accepted)], position)
            deep = found[len(accepted) - 1]
            made += accepted
            rounds += 1
        return rounds, len(made) - 1, made

    def _draft(self, token: int, deep: States, position: int, window: int, threshold: float) -> tuple[list[int], States]:
        """Return a draft after a token, and the shallow states of both."""
        rows, drafts = [self.read([token], position)], []
        before = self.draft.normed(deep)
        while len(drafts) < window:
            started = time.perf_counter()
            step = self.draft.step(before, rows[-1][0], position + len(drafts))
            drafts.append(step.ids[0])
            rows.append(self.read([drafts[-1]], position + len(drafts)))
            self.steps.append(time.perf_counter() - started)
            if step.probabilities[0] < threshold:
                break
            before = step.deep
        return drafts, np.concatenate(rows)

    def close(self) -> None:
        """Free all parts."""
        for part in (self.head, self.input, self.middle, self.draft):
            part.close()


def prompts_of(name: str, *, is_absent: bool, count: int) -> list[str]:
    """Prompts of a file that the draft layer hasn't learned from."""
    with gzip.open(data_folder() / "prompts" / name, "rt", encoding="utf-8") as lines:
        records = [json.loads(line) for line in lines]
    held_out = records if is_absent else records[::HELD_OUT]
    return [text for record in held_out if len(text := prompt_of(record)) <= 1200][:count]


def prompt_of(record: dict[str, str]) -> str:
    """The prompt of a record, whichever field it is in."""
    if "instruction" in record:
        return f"{record['instruction']}\n\n{record['input']}" if record.get("input") else record["instruction"]
    return record.get("question") or record.get("prompt") or record["turns"][0]


def whole_step(model: Path, count: int) -> list[float]:
    """Seconds of decode steps of the whole model."""
    whole = LlamaModel(model, repack=False)
    context = LlamaContext(whole, cells=CELLS, sequences=1, rows=CELLS, threads=1, unified=False)
    spent = []
    for position in range(count):
        context.add_run([position % 1000 + 100], position, 0, wants_logits=1)
        started = time.perf_counter()
        if status := context.decode():
            raise SystemExit(f"expected llama.cpp to decode, got status {status}")
        spent.append(time.perf_counter() - started)
    context.close()
    whole.close()
    return spent


def measure(split: Split, count: int, most: int) -> list[Row]:
    """Tokens a round by kind of prompt and policy; all policies take turns on each prompt, and must write the same text."""
    rows = []
    for kind, name in {**TRAINED, **ABSENT}.items():
        found: dict[str, list[tuple[int, int]]] = {policy: [] for policy in POLICIES}
        for prompt in prompts_of(name, is_absent=kind in ABSENT, count=count):
            texts = set()
            for policy, (window, threshold) in POLICIES.items():
                rounds, tokens, made = split.write(prompt, most, window, threshold)
                found[policy].append((rounds, tokens))
                texts.add(tuple(made[:most]))
            if len(texts) > 1:
                raise SystemExit(f"{kind}: expected the same text with every policy, got {len(texts)} texts for {prompt[:60]!r}")
        for policy, answers in found.items():
            ratios = [tokens / rounds for rounds, tokens in answers if rounds]
            mean = sum(tokens for _, tokens in answers) / max(1, sum(rounds for rounds, _ in answers))
            rows.append(Row("draft_layer", kind, policy, "tokens a round", "tokens", mean, min(ratios), max(ratios)))
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    add_arguments(parser)
    parser.add_argument("--weights", type=Path, help="a draft layer (default: the packaged one)")
    parser.add_argument("--prompts", type=int, default=24, help="of each kind (default: %(default)s)")
    parser.add_argument("--tokens", type=int, default=96, help="of each answer (default: %(default)s)")
    args = parser.parse_args()
    count, most = (3, 32) if args.quick else (args.prompts, args.tokens)
    model = Path(packaged_model())
    with tempfile.TemporaryDirectory() as folder:
        split = Split(args.weights or PACKAGED, model, folder)
        rows = measure(split, count, most)
        times: dict[str, Callable[[], list[float]]] = {
            "draft step": lambda: split.steps,
            "whole decode step": lambda: whole_step(model, 100),
        }
        for name, take in times.items():
            spent = [seconds * 1e3 for seconds in take()]
            rows.append(Row("draft_layer", "one token", name, "wall time", "ms", median(spent), min(spent), max(spent)))
        split.close()
    emit(rows, args.json, against="window 3")


if __name__ == "__main__":
    main()
