"""Do the parts of a split model give the whole model's answers?

The whole model writes greedily, one row at a time. Input part, middle part and head read the same tokens, first one row at a time, then in
rounds of four rows of which the last two are wrong and are removed from both parts. ``equal``: positions with the same next token.
``logit difference``: the largest over all positions and the whole vocabulary. ``exact``: all of them compute no row alone, and no more
rows together than give the same bits.
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path

import numpy as np

from bench.prompts import real_prompts
from bench.report import Row, add_arguments, emit
from streamco.engines.llamacpp.bundled_model import packaged_model
from streamco.engines.llamacpp.context import LlamaContext
from streamco.engines.llamacpp.gguf import derived
from streamco.engines.llamacpp.model import LlamaModel
from streamco.engines.llamacpp.model_parts import split_model
from streamco.engines.split.layers import HeadPart, InputPart, MiddlePart

KINDS = ("Q4_1", "F16", "Q4_0", "Q8_0", "Q4_K_M")  # the packaged file is Q4_1
CELLS = 1024
Logits = np.ndarray[tuple[int, ...], np.dtype[np.float32]]


class Both:
    """A whole model and its parts, which read the same tokens."""

    def __init__(self, path: Path, folder: str, input_layers: int, *, exact: bool) -> None:
        files = split_model(path, folder, input_layers=input_layers)
        self.model = LlamaModel(path, repack=False)
        self.whole = LlamaContext(self.model, cells=CELLS, sequences=1, rows=CELLS, threads=2, unified=False)
        self.input = InputPart(files.input, cells=CELLS, threads=2, exact=exact)
        self.middle = MiddlePart(files.middle, cells=CELLS, threads=2, exact=exact)
        self.head = HeadPart(files.head, threads=2, exact=exact)
        self.is_exact = exact
        self.piece = min(self.input.piece, self.middle.piece)

    def read_whole(self, tokens: list[int], position: int) -> Logits:
        """Return the whole model's logits after the last of these tokens."""
        for start in range(0, len(tokens), self.piece):
            piece = tokens[start : start + self.piece]
            row = self.whole.add_run(piece, position + start, 0, wants_logits=1)
            if is_padded := self.is_exact and len(piece) == 1:
                self.whole.add(0, position + start + 1, 0, wants_logits=True)
            if status := self.whole.decode():
                raise SystemExit(f"expected llama.cpp to decode, got status {status}")
            if is_padded:
                self.whole.remove(0, position + start + 1)
        return self.whole.logits(row).copy()

    def read_parts(self, tokens: list[int], position: int, wanted: int) -> list[Logits]:
        """Return the parts' logits after each of the first ``wanted`` tokens."""
        states = self.middle.run(self.input.run(self.head.embed(tokens), position), position)
        return [self.head.logits(state) for state in (states[:wanted] if wanted > 1 else states[-1:])]

    def truncate(self, length: int) -> None:
        """Let both layer parts forget what follows."""
        self.input.truncate(length)
        self.middle.truncate(length)

    def close(self) -> None:
        """Free all models."""
        self.whole.close()
        self.model.close()
        for part in (self.input, self.middle, self.head):
            part.close()


def compare(both: Both, prompt: str, count: int) -> tuple[list[tuple[bool, float]], list[tuple[bool, float]]]:
    """Return (same next token, largest logit difference) of each position: one row at a time, and in rounds of four."""
    tokens = both.model.tokenize(both.model.apply_template([{"role": "user", "content": prompt}]), special=True)
    both.whole.clear()
    both.truncate(0)
    start, made, expected, single = len(tokens), [], [], []
    position = 0
    for _ in range(count):
        expected.append(both.read_whole(tokens, position))
        single.append(difference(expected[-1], both.read_parts(tokens, position, 1)[0]))
        position += len(tokens)
        tokens = [int(expected[-1].argmax())]
        made += tokens
    both.truncate(start)
    rounds = []
    for index in range(0, count - 2, 2):
        right = made[index : index + 2]
        found = both.read_parts([*right, *((token + 7) % both.model.vocabulary_size for token in right)], start + index, 2)
        rounds += [difference(expected[index + 1 + offset], logits) for offset, logits in enumerate(found)]
        both.truncate(start + index + 2)
    return single, rounds


def difference(expected: Logits, found: Logits) -> tuple[bool, float]:
    """Return whether the most likely token is the same, and the largest difference."""
    return bool(expected.argmax() == found.argmax()), float(np.abs(expected - found).max())


def measure(case: str, path: Path, prompts: list[str], count: int, input_layers: int, *, exact: bool) -> list[Row]:
    """Return a model's rows."""
    with tempfile.TemporaryDirectory() as folder:
        both = Both(path, folder, input_layers, exact=exact)
        single: list[tuple[bool, float]] = []
        rounds: list[tuple[bool, float]] = []
        for prompt in prompts:
            found = compare(both, prompt, count)
            single += found[0]
            rounds += found[1]
        both.close()
    rows = []
    mode = ", exact" if exact else ""
    for contender, results in ((f"one row at a time{mode}", single), (f"rounds of four{mode}", rounds)):
        figures = {
            ("positions", ""): float(len(results)),
            ("equal", ""): float(sum(equal for equal, _ in results)),
            ("logit difference", ""): max(gap for _, gap in results),
        }
        rows += [Row("split", case, contender, metric, unit, value, value, value) for (metric, unit), value in figures.items()]
    return rows


def main() -> None:
    """Compare each kind of the packaged model, or the models that are named."""
    parser = argparse.ArgumentParser(description=__doc__)
    add_arguments(parser)
    parser.add_argument("--model", action="append", type=Path, help="a GGUF file instead of the packaged model's kinds; may be given again")
    parser.add_argument("--input-layers", type=int, default=2)
    args = parser.parse_args()
    prompts = [text for _, text in real_prompts(3 if args.quick else 20)]
    count = 24 if args.quick else 64
    models = {path.stem: path for path in args.model or ()}
    if not models:
        source = packaged_model()
        models = {kind: source if kind == "Q4_1" else derived(source, kind) for kind in (KINDS[:2] if args.quick else KINDS)}
    rows = [
        row
        for case, path in models.items()
        for exact in (False, True)
        for row in measure(case, path, prompts, count, args.input_layers, exact=exact)
    ]
    emit(rows, args.json)


if __name__ == "__main__":
    main()
