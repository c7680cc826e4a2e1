"""Texts that a draft layer learns from and is judged by, written by the whole model itself, with the states of its answers.

    python -m bench.data.draft_text --model model.gguf --out /tmp/draft --kind written --texts 4000
    python -m bench.data.draft_text --model model.gguf --out /tmp/draft --kind gsm8k --prompts gsm8k_test.jsonl.gz

    python -m bench.data.draft_text --model model.gguf --out /tmp/draft --kind begun --begin "Translate German to English:" Who When

Without ``--prompts`` the model writes both sides. A user's turn is sampled after its own chat template, and then answered. ``--begin``
gives the first words of such turns, which take them by turns. With ``--prompts`` the user's turns come from a file of JSON lines. A text
whose number leaves 0 when divided by 10 is held out of training. With the same file all kinds hold out the same prompts, so
``--temperature`` may add other answers to the others.

One file a batch, ``KIND.NUMBER.npz``; those that are there are kept. ``--share 0/2`` and ``--share 1/2`` let two processes divide the work.
"""

from __future__ import annotations

import argparse
import gzip
import json
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from random import Random

import numpy as np
import torch

from bench.data.draft_teacher import Teacher, Written
from streamco.engines.llamacpp.model import LlamaModel

__all__ = ["HELD_OUT", "load", "main"]

HELD_OUT = 10
_BATCH = 96
_TURN, _ANSWER = 64, 192  # most tokens
_PROMPT = (0, 400)  # fewest and most
_MARKER = "@@@"


class Chat:
    """The chat template around one user's turn, as token ids."""

    def __init__(self, path: Path) -> None:
        self._model = LlamaModel(path)
        before, after = self._model.apply_template([{"role": "user", "content": _MARKER}]).split(_MARKER)
        self.before = self._model.tokenize(before, special=True)
        self.after = self._model.tokenize(after, special=True)
        self.ends = sorted(self._model.end_ids)

    def beginning(self, words: str) -> list[int]:
        """Return the ids of a prompt that stops after the first words of the user's turn."""
        return [*self.before, *self._model.tokenize(words)]

    def around(self, turn: str) -> list[int]:
        """Return the ids of a prompt, ready for the answer."""
        return [*self.before, *self._model.tokenize(turn), *self.after]


def read_prompts(path: Path) -> list[str]:
    """Return the prompts in a file of JSON lines, whichever field they are in."""
    data = path.read_bytes()
    text = (gzip.decompress(data) if path.suffix == ".gz" else data).decode()
    records = [json.loads(line) for line in text.splitlines()]
    return [_prompt_of(record) for record in records]


def _prompt_of(record: dict[str, str | list[str]]) -> str:
    for field in ("question", "prompt", "instruction", "article"):
        if isinstance(text := record.get(field), str):
            return f"{text}\n\n{record['input']}" if record.get("input") else text
    return record["turns"][0]


def write_prompts(
    teacher: Teacher, chat: Chat, count: int, seed: int, *, beginnings: Sequence[str] = (), most: int = _TURN, temperature: float = 1.0
) -> list[list[int]]:
    """Return prompts whose user's turns the model has written after its own template. Turns that didn't end are left out.

    Args:
        teacher: writes.
        chat: the template.
        count: prompts to try.
        seed: of the random draws.
        beginnings: first words of turns, used by turns; none: the model writes these, too.
        most: tokens that the model adds to a turn.
        temperature: of the turns.
    """
    openings = [chat.beginning(text) for text in beginnings or [""]]
    begun = [openings[row % len(openings)] for row in range(count)]
    turns = teacher.write(begun, most=most, ends=chat.ends, temperature=temperature, seed=seed)
    start = len(chat.before)
    whole = [turn.ids[start:-1].tolist() for turn in turns if turn.ids[-1] in chat.ends]
    return [[*chat.before, *turn, *chat.after] for turn in whole if len(turn) > 2]


def save(path: Path, texts: Sequence[Written], numbers: Sequence[int]) -> None:
    """Write a batch of texts, whole or not at all."""
    part = path.with_suffix(".part.npz")
    np.savez(
        part,
        ids=np.concatenate([text.ids for text in texts]),
        deep=np.concatenate([text.deep for text in texts]),
        lengths=np.array([len(text.ids) for text in texts]),
        prompts=np.array([text.prompt for text in texts]),
        numbers=np.array(numbers),
    )
    part.replace(path)


def load(folder: Path, kinds: Sequence[str], *, is_held_out: bool) -> Iterator[Written]:
    """Give the texts of some kinds, those held out of training or the others, in the order of their files."""
    for kind in kinds:
        for path in sorted(folder.glob(f"{kind}.[0-9]*.npz")):
            if ".part" in path.name:
                continue
            with np.load(path) as found:
                ids, deep = found["ids"], found["deep"]
                ends = np.cumsum(found["lengths"])
                answers = np.cumsum(found["lengths"] - found["prompts"])
                for row, number in enumerate(found["numbers"]):
                    if (number % HELD_OUT == 0) == is_held_out:
                        length, prompt = int(found["lengths"][row]), int(found["prompts"][row])
                        yield Written(ids[ends[row] - length : ends[row]], prompt, deep[answers[row] - (length - prompt) : answers[row]])


def write_batches(teacher: Teacher, chat: Chat, args: argparse.Namespace) -> None:
    """Write all batches of this process's share that aren't there."""
    share, of = map(int, args.share.split("/"))
    if args.prompts is None:
        batches = [list(range(start, start + _BATCH)) for start in range(0, args.texts, _BATCH)]
        prompts: dict[int, list[int]] = {}
    else:
        found = [chat.around(text) for text in read_prompts(args.prompts)][: args.texts]
        shortest, longest = args.prompt_tokens
        prompts = {number: ids for number, ids in enumerate(found) if shortest <= len(ids) <= longest}
        order = sorted(prompts, key=lambda number: len(prompts[number]))
        batches = [order[start : start + _BATCH] for start in range(0, len(order), _BATCH)]
        Random(args.seed).shuffle(batches)
        batches = batches[: args.batches]
    written, started = 0, time.process_time()
    for place, numbers in enumerate(batches):
        path = args.out / f"{args.kind}.{place:04}.npz"
        if place % of != share or path.exists():
            continue
        if prompts:
            batch = [prompts[number] for number in numbers]
        else:
            options = {"beginnings": args.begin, "most": args.turn_tokens, "temperature": args.turn_temperature}
            batch = write_prompts(teacher, chat, len(numbers), args.seed + place, **options)
        texts = teacher.write(batch, most=args.answer_tokens, ends=chat.ends, temperature=args.temperature, seed=args.seed + place)
        kept = [(text, number) for text, number in zip(texts, numbers[: len(texts)], strict=True) if len(text.ids) - text.prompt >= 4]
        save(path, [text for text, _ in kept], [number for _, number in kept])
        written += sum(len(text.ids) - text.prompt for text, _ in kept)
        spent = time.process_time() - started
        print(f"{path.name}: {written} answer tokens, {spent:.0f} s of processor time, {written / spent:.0f} tokens/s", flush=True)


def main() -> None:
    """Write texts; see the module."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=Path, required=True, help="the whole model's GGUF file")
    parser.add_argument("--out", type=Path, required=True, help="folder for the texts")
    parser.add_argument("--kind", required=True, help="name of this kind of text")
    parser.add_argument("--prompts", type=Path, help="JSON lines with prompts (default: the model writes them)")
    parser.add_argument("--begin", nargs="*", default=[], help="first words of the user's turns that the model writes")
    parser.add_argument("--turn-tokens", type=int, default=_TURN, help="most tokens that the model adds to a turn (default: %(default)s)")
    parser.add_argument("--turn-temperature", type=float, default=1.0, help="of the turns that the model writes (default: %(default)s)")
    parser.add_argument(
        "--prompt-tokens", nargs=2, type=int, default=_PROMPT, help="fewest and most (default: %(default)s); others are left out"
    )
    parser.add_argument("--answer-tokens", type=int, default=_ANSWER, help="most tokens of an answer (default: %(default)s)")
    parser.add_argument("--texts", type=int, default=4000, help="at most so many (default: %(default)s)")
    parser.add_argument("--batches", type=int, help="at most so many, of prompts from a file (default: all)")
    parser.add_argument("--temperature", type=float, default=0.0, help="of the answers (default: %(default)s, the likeliest token)")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--share", default="0/1", help="this process's share of the batches (default: %(default)s)")
    args = parser.parse_args()
    if args.begin and args.prompts:
        parser.error("expected --prompts or --begin, got both")
    torch.set_num_threads(1)
    args.out.mkdir(parents=True, exist_ok=True)
    write_batches(Teacher(args.model), Chat(args.model), args)


if __name__ == "__main__":
    main()
