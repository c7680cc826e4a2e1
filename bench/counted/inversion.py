"""How much text does a split server get back from the states that it is sent?

The server knows the model's public weights. It makes text with the model itself, computes that text's states, and trains a map from states
to tokens (a linear one, and a small network); or it searches the vocabulary for the token that gives the state. ``recovered``: share of the
tokens of real conversations, from the user's first token on. Noise is in parts of a state's root mean square. ``unchanged`` is the share of
positions where the model's next token stays the same with the states as they arrive.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from bench.counted.inversion_attacks import Classifier, Floats, Ids, LinearMap, Search, Wire, nearest, unit
from bench.prompts import real_prompts
from bench.report import Row, add_arguments, emit
from streamco.engines.llamacpp.bundled_model import packaged_model
from streamco.engines.llamacpp.context import LlamaContext
from streamco.engines.llamacpp.model import LlamaModel
from streamco.engines.llamacpp.model_parts import EmbeddingTable, split_model
from streamco.engines.split.layers import HeadPart, InputPart, MiddlePart
from streamco.wire.tensors import StateFormat

CELLS = 512
SEQUENCES = 32  # answers that are written at once
FORMATS: tuple[StateFormat, ...] = ("f32", "f16", "i8")
NOISES = (0.1, 0.2, 0.4, 0.8)
SEED = 20
DEPTHS = (1, 2, 3, 5, 10)  # input layers


class Writer:
    """The whole model, which writes several texts at once, sampled at temperature 1."""

    def __init__(self, path: Path, threads: int) -> None:
        self.model = LlamaModel(path, repack=False)
        self._context = LlamaContext(
            self.model, cells=CELLS * SEQUENCES, sequences=SEQUENCES, rows=CELLS * 4, threads=threads, unified=False
        )
        self._rng = np.random.default_rng(SEED)

    def write(self, prompts: Sequence[Sequence[int]], tokens: int) -> list[list[int]]:
        """Return each prompt with so many tokens more; control tokens don't end a text."""
        texts: list[list[int]] = []
        for start in range(0, len(prompts), SEQUENCES):
            texts += self._write([list(prompt) for prompt in prompts[start : start + SEQUENCES]], tokens)
        return texts

    def _write(self, texts: list[list[int]], tokens: int) -> list[list[int]]:
        self._context.clear()
        for sequence, text in enumerate(texts):  # all but the last token
            self._context.add_run(text[:-1], 0, sequence, wants_logits=0) if len(text) > 1 else None
            self._decode()
        for _ in range(tokens):
            rows = [self._context.add(text[-1], len(text) - 1, sequence, wants_logits=True) for sequence, text in enumerate(texts)]
            self._decode()
            for row, text in zip(rows, texts, strict=True):
                text.append(self._draw(self._context.logits(row)))
        return texts

    def _decode(self) -> None:
        if self._context.count and (status := self._context.decode()):
            raise SystemExit(f"expected llama.cpp to decode, got status {status}")

    def _draw(self, logits: Floats) -> int:
        sums = np.cumsum(np.exp(logits - logits.max()))
        return int(min(np.searchsorted(sums, self._rng.random() * sums[-1]), len(sums) - 1))

    def close(self) -> None:
        """Free the memory."""
        self._context.close()
        self.model.close()


class Device:
    """A model's parts; the attacker has the same input layers."""

    def __init__(self, path: Path, folder: str, input_layers: int, threads: int) -> None:
        files = split_model(path, folder, input_layers=input_layers)
        self.table = EmbeddingTable(files.head)
        self.input = InputPart(files.input, cells=CELLS, threads=threads)
        self.middle = MiddlePart(files.middle, cells=CELLS, threads=threads)
        self.head = HeadPart(files.head, threads=threads)

    def shallow(self, tokens: Sequence[int]) -> Floats:
        """Return the states after the input layers."""
        self.input.truncate(0)
        return self.input.run(self.table.rows(np.asarray(tokens, np.int64)), 0)

    def next_tokens(self, shallow: Floats, start: int) -> list[int]:
        """Return the model's next token after each position from ``start`` on."""
        self.middle.truncate(0)
        return [int(self.head.logits(state).argmax()) for state in self.middle.run(shallow, 0)[start:]]

    def close(self) -> None:
        """Free the memory."""
        for part in (self.input, self.middle, self.head):
            part.close()


class Case:
    """One model cut after so many layers: states of the attacker's texts and of the users'."""

    def __init__(self, device: Device, own: Sequence[Sequence[int]], users: Sequence[Sequence[int]], quick: bool) -> None:
        self.device, self.users = device, users
        self.start = _common(users)
        self.rng = np.random.default_rng(SEED)
        self.embeddings = device.table.rows(np.arange(device.table.size))
        self.units = unit(self.embeddings)
        once = self.rng.permutation(device.table.size)[: 8192 if quick else None]
        rows = [once[at : at + CELLS - 1].tolist() for at in range(0, len(once), CELLS - 1)]
        self.own = self._trained_on(own)
        more = self._trained_on([[own[0][0], *row] for row in rows])  # every token once, in any order
        self.full = np.concatenate([self.own[0], more[0]]), np.concatenate([self.own[1], more[1]])
        linear = LinearMap(*self.full, self.embeddings)
        self.classifier = Classifier(linear, *self.full, self.units, epochs=1 if quick else 2, seed=SEED)
        self.guide = linear if quick else self.classifier  # orders the search's candidates; a small sample trains no good network
        self.shallow = [device.shallow(text) for text in users]
        self.expected: list[list[int]] = []  # the model's next tokens in each text, as they are needed
        self.ids = np.concatenate([np.asarray(text[self.start :], np.int64) for text in users])

    def _trained_on(self, texts: Sequence[Sequence[int]]) -> tuple[Floats, Ids]:
        """Return states and tokens of texts; the first position has a state like no other and is left out."""
        states = np.concatenate([self.device.shallow(text)[1:] for text in texts])
        return states, np.concatenate([np.asarray(text[1:], np.int64) for text in texts])

    def recovered(self, wire: Wire) -> dict[str, float]:
        """Return the share of tokens that each attack recovers without a search; the linear maps are trained on states with the noise."""
        own, full = (LinearMap(wire.sent(states, self.rng), ids, self.embeddings) for states, ids in (self.own, self.full))
        states = np.concatenate([wire.sent(shallow, self.rng)[self.start :] for shallow in self.shallow])
        guesses = {
            "nearest embedding": nearest(states, self.units),
            "linear map, its own text": nearest(own.map(states), self.units),
            "linear map, and every token once": nearest(full.map(states), self.units),
            "small network": nearest(self.classifier.map(states), self.units),
        }
        return {name: float((guess == self.ids).mean()) for name, guess in guesses.items()}

    def searched(self, wire: Wire, texts: int, positions: int) -> tuple[float, float]:
        """Return the share of tokens that the search recovers at each text's first positions, and its candidates a token."""
        search, right, count = Search(self.device.input, self.embeddings, wire), 0, 0
        for text, shallow in zip(self.users[:texts], self.shallow, strict=False):
            received = wire.sent(shallow, self.rng)[self.start :][:positions]
            found = search.run(text[: self.start], received, self.guide.map(received), self.units)
            right += sum(a == b for a, b in zip(found, text[self.start :], strict=False))
            count += len(received)
        return right / count, search.tried / count

    def unchanged(self, wire: Wire, texts: int) -> float:
        """Return the share of positions whose next token stays the same with the states as they arrive."""
        same: list[bool] = []
        for number, shallow in enumerate(self.shallow[:texts]):
            arrived = np.concatenate([shallow[:1], wire.sent(shallow[1:], self.rng)])  # the first state's size is like no other's
            if number == len(self.expected):
                self.expected.append(self.device.next_tokens(shallow, self.start))
            found = self.device.next_tokens(arrived, self.start)
            same += [a == b for a, b in zip(self.expected[number], found, strict=True)]
        return sum(same) / len(same)


def _common(texts: Sequence[Sequence[int]]) -> int:
    """Return the number of tokens at the start that all texts have."""
    shortest = min(map(len, texts))
    return next((at for at in range(shortest) if len({text[at] for text in texts}) > 1), shortest)


def measure(name: str, case: Case, wires: Sequence[Wire], texts: int, with_answer: bool) -> list[Row]:
    """Return the rows of one model and depth: each path, each attack, and if ``with_answer`` what the path does to the answer."""
    rows: list[Row] = []
    for wire in wires:
        label = f"noise {wire.noise}" if wire.noise else wire.form
        shares = case.recovered(wire)
        shares["search"], tried = case.searched(wire, texts, 5 if wire.noise else 25)
        figures = [(contender, "recovered", "share", share) for contender, share in shares.items()]
        figures.append(("search", "candidates", "a token", tried))
        if with_answer:
            figures.append(("the answer", "unchanged", "share", case.unchanged(wire, texts)))
        found = [Row("inversion", f"{name}, {label}", *figure, figure[3], figure[3]) for figure in figures]
        print(f"{name}, {label}: " + ", ".join(f"{row.contender} {row.median:.3f}" for row in found), file=sys.stderr)
        rows += found
    return rows


def attacked_texts(writer: Writer, quick: bool) -> tuple[list[list[int]], list[list[int]]]:
    """Return the attacker's own texts and the users' conversations."""
    model = writer.model
    opening = model.apply_template([{"role": "user", "content": "\0"}], add_generation_prompt=False).split("\0")[0]
    own = writer.write([model.tokenize(opening, special=True)] * (16 if quick else 96), 24 if quick else 192)
    prompts = [text for _, text in real_prompts(200) if len(text) < 500][: 3 if quick else 16]
    asked = [model.tokenize(model.apply_template([{"role": "user", "content": text}]), special=True) for text in prompts]
    return own, writer.write(asked, 12 if quick else 48)


def main() -> None:
    """Attack the packaged model, or the model that is named."""
    parser = argparse.ArgumentParser(description=__doc__)
    add_arguments(parser)
    parser.add_argument("--model", type=Path, help="a GGUF file instead of the packaged model")
    parser.add_argument("--input-layers", type=int, action="append", help=f"may be given again; default {', '.join(map(str, DEPTHS))}")
    parser.add_argument("--noise-at", type=int, default=2, help="number of input layers at which noise is added, too")
    parser.add_argument("--threads", type=int, default=1)
    args = parser.parse_args()
    if args.quick:
        print("quick: a small sample, one depth, one format and one noise; the shares are rough", file=sys.stderr)
    path = args.model or packaged_model()
    writer = Writer(path, args.threads)
    own, users = attacked_texts(writer, args.quick)
    writer.close()
    formats = [Wire(form) for form in (FORMATS[1:2] if args.quick else FORMATS)]
    noises = [Wire("f32", noise) for noise in (NOISES[2:3] if args.quick else NOISES)]
    rows: list[Row] = []
    for layers in args.input_layers or ((2,) if args.quick else DEPTHS):
        with tempfile.TemporaryDirectory() as folder:
            device = Device(path, folder, layers, args.threads)
            case = Case(device, own, users, args.quick)
            has_noise = layers == args.noise_at
            found = measure(f"{layers} layers", case, formats + noises * has_noise, 2 if args.quick else 12, has_noise)
            device.close()
        known = np.isin(case.ids, np.concatenate([np.asarray(text) for text in own]))
        figures = {("tokens attacked", ""): float(len(case.ids)), ("not in the attacker's text", "share"): float((~known).mean())}
        rows += [Row("inversion", f"{layers} layers", "users", *metric, value, value, value) for metric, value in figures.items()] + found
    emit(rows, args.json)


if __name__ == "__main__":
    main()
