"""Whatever is asked, a sequence's memory holds its own ids and nobody else's."""

from __future__ import annotations

from random import Random

import pytest

from streamco.engines.llama import LlamaEngine
from streamco.engines.sequence import HeldSequence
from tests.engines.asking import Answer, asked, draft, extend, verify
from tests.engines.conftest import MakeEngine
from tests.engines.fakes import FakeContext, complete

ASKED = ("extend", "verify", "draft", "truncate", "fork", "close", "generate", "stop", "open")


class Books:
    """What each sequence should hold, kept beside it."""

    def __init__(self, engine: LlamaEngine, seed: int) -> None:
        self.engine = engine
        self.dice = Random(seed)
        self.texts: dict[HeldSequence, list[int]] = {}
        self.evictions = 0

    def ids(self, least: int = 0) -> list[int]:
        return [self.dice.randrange(1, 200) for _ in range(self.dice.randrange(least, 6))]

    def step(self) -> None:
        """Ask something of somebody."""
        if not self.texts:
            self.open()
        sequence = self.dice.choice(list(self.texts))
        what = self.dice.choice(ASKED)
        answer = getattr(self, what)() if what in {"open", "generate"} else getattr(self, what)(sequence, self.texts[sequence])
        if isinstance(answer, Answer) and answer.reason == "evicted":
            self.evictions += 1
            self.close(sequence, [])
        for each in [each for each, text in self.texts.items() if len(text) > 200]:
            self.close(each, [])

    def open(self) -> None:
        sequence = self.engine.hold()
        assert isinstance(sequence, HeldSequence)
        self.texts[sequence] = self.ids(least=1)
        assert extend(sequence, self.texts[sequence]).reason == "done"

    def generate(self) -> None:
        complete(self.engine, self.dice.choice(list(self.texts.values())), max_tokens=3, ignore_eos=True)

    def close(self, sequence: HeldSequence, _text: list[int]) -> None:
        del self.texts[sequence]
        sequence.close()

    def extend(self, sequence: HeldSequence, text: list[int]) -> Answer:
        ids = self.ids()
        answer = extend(sequence, ids)
        text += ids if answer.reason == "done" else []
        return answer

    def verify(self, sequence: HeldSequence, text: list[int]) -> Answer:
        ids = self.ids()
        answer = verify(sequence, ids)
        if answer.reason == "done":
            assert answer.greedy == [(token + 1) % 256 for token in (text[-1], *ids)]
            text += ids
        return answer

    def draft(self, sequence: HeldSequence, text: list[int]) -> Answer:
        ids = self.ids()
        answer = draft(sequence, 3, ids=ids)
        text += [*ids, *answer.tokens] if answer.tokens else []
        return answer

    def stop(self, sequence: HeldSequence, text: list[int]) -> Answer:
        task, answer = asked(sequence, "draft", 4)
        task.cancel()
        answer.read(task)
        text += answer.tokens
        return answer

    def truncate(self, sequence: HeldSequence, text: list[int]) -> Answer:
        length = self.dice.randrange(1, len(text) + 1)
        sequence.truncate(length)
        answer = verify(sequence, b"")
        del text[length:]
        return answer

    def fork(self, sequence: HeldSequence, text: list[int]) -> Answer:
        length = self.dice.randrange(1, len(text) + 1)
        branch = sequence.fork(length)
        answer = draft(branch, 2)
        if answer.reason in {"done", "stop"}:
            self.texts[branch] = text[:length] + answer.tokens
        return answer

    def check(self) -> None:
        """The engine is at rest: what is in memory is what should be."""
        for sequence, text in self.texts.items():
            if sequence.failure is None:
                assert sequence.ids == text
                assert sequence.slot is not None
                assert FakeContext.last.kv[sequence.slot.sequence] == sequence.slot.ids == text[: len(sequence.slot.ids)]


@pytest.mark.parametrize("seed", [1, 2, 3])
@pytest.mark.parametrize("changes", [{}, {"exact": True}])
def test_the_memory_holds_the_sequences_own_ids(make_engine: MakeEngine, seed: int, changes: dict[str, bool]) -> None:
    books = Books(make_engine(held_sequences=4, max_sequences=2, **changes), seed)
    for turn in range(200):
        FakeContext.last.removable = turn % 50 < 40
        books.step()
        complete(books.engine, [turn + 1], max_tokens=1, ignore_eos=True)  # behind it, the engine has put everything away
        books.check()
    assert books.evictions
