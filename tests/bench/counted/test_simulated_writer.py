"""A simulated model that knows one answer."""

from __future__ import annotations

import random

import pytest
import simpy

from bench.counted.simulated_writer import Piece, SimulatedWriter, Spelling
from streamco.core.race.commands import ContinueStream, OpenStream, PrepareStream
from streamco.events import Event, Partial, StreamEnded, StreamFailed, TokensReceived
from streamco.sim.race.session import Opening

ANSWER = Spelling("one", [("Hel", (1,)), ("lo", (2,)), (" wor", (3,)), ("ld ", (4,)), ("🦎", (5, 6, 7)), ("!", (8,))])


def make(rng: random.Random | None = None, **options: object) -> SimulatedWriter:
    return SimulatedWriter("writer", ANSWER, rng or random.Random(1), **options)  # type: ignore[arg-type]  # as the tests name them


def run(writer: SimulatedWriter, command: Opening | None = None, *, cancel_at: float | None = None) -> list[tuple[float, Event]]:
    env = simpy.Environment()
    events: list[tuple[float, Event]] = []
    stream = writer.open(env, lambda event: events.append((env.now, event)), command or OpenStream("writer"))
    if cancel_at is not None:
        env.run(until=cancel_at)
        stream.cancel(lambda: events.append((env.now, StreamEnded("released"))))
    env.run()
    return events


def told(events: list[tuple[float, Event]]) -> tuple[str, list[int]]:
    choices = [choice for _, event in events if isinstance(event, TokensReceived) for chunk in event.chunks for choice in chunk.choices]
    return "".join(choice.delta.content or "" for choice in choices), [token for choice in choices for token in choice.token_ids or ()]


def go_on(writer: SimulatedWriter, text: str, *ids: int, vocabulary: str = "one") -> tuple[str, list[int]]:
    partial = Partial(text=text, ids=ids or None, vocabulary=vocabulary if ids else None, tokens=len(ids))
    return told(run(writer, ContinueStream("writer", partial)))


def test_it_writes_its_answer_and_ends() -> None:
    events = run(make(first=0.5))
    assert told(events) == (ANSWER.text, list(ANSWER.ids))
    assert events[0][0] == 0.5
    assert events[-1][1] == StreamEnded("writer", "stop")
    tokens = sum(event.tokens for _, event in events if isinstance(event, TokensReceived))
    assert tokens == len(ANSWER.ids)


def test_bursts_hold_at_most_so_many_chunks() -> None:
    sizes = [len(event.chunks) for _, event in run(make(burst=2)) if isinstance(event, TokensReceived)]
    assert max(sizes) == 2
    assert sum(sizes) == len(ANSWER.pieces) + 2  # the role's chunk and the finish reason's


def test_it_fails_behind_so_many_chunks_each_time_it_is_opened() -> None:
    writer = make(breaks=[3, 0])
    events = run(writer)
    assert told(events) == ("Hello", [1, 2])
    assert isinstance(events[-1][1], StreamFailed)
    assert [type(event) for _, event in run(writer)] == [StreamFailed]
    assert told(run(writer))[0] == ANSWER.text


def test_behind_ids_it_goes_on_with_the_next_one() -> None:
    writer = make()
    assert go_on(writer, "Hello", 1, 2) == (" world 🦎!", [3, 4, 5, 6, 7, 8])
    assert (writer.by_ids, writer.by_text) == (1, 0)


def test_a_code_point_that_ids_end_inside_of_comes_whole() -> None:
    assert go_on(make(), "Hello world ", 1, 2, 3, 4, 5) == ("🦎!", [6, 7, 8])


def test_behind_text_it_writes_the_spaces_again_and_they_are_taken_out() -> None:
    writer = make()
    assert go_on(writer, "Hello world ") == ("🦎!", [5, 6, 7, 8])
    assert go_on(writer, "Hello ")[0] == "world 🦎!"
    assert writer.by_text == 2


def test_text_that_ends_inside_a_token_gets_another_token_for_the_rest() -> None:
    text, ids = go_on(make(), "Hell")
    assert text == "o world 🦎!"
    assert ids[0] not in ANSWER.ids
    assert ids[1:] == [3, 4, 5, 6, 7, 8]


def test_ids_of_another_vocabulary_are_not_its_own() -> None:
    writer = make()
    assert go_on(writer, "Hello", 77, vocabulary="other")[0] == " world 🦎!"
    assert writer.by_text == 1


def test_one_that_tells_no_ids_tells_text() -> None:
    assert told(run(make(sends_ids=False))) == (ANSWER.text, [])


def test_ids_may_be_told_ahead_of_their_text() -> None:
    chunks = [chunk for _, event in run(make(sends_ids_early=True)) if isinstance(event, TokensReceived) for chunk in event.chunks]
    parts = [(chunk.choices[0].delta.content, chunk.choices[0].token_ids) for chunk in chunks]
    assert parts[5:8] == [("", [5]), ("", [6]), ("🦎", [7])]


def test_a_prompt_that_is_only_read_ends_without_an_answer() -> None:
    assert run(make(first=0.2), PrepareStream("writer", Partial(text="Hello"))) == [(0.2, StreamEnded("writer"))]


def test_a_cancelled_one_says_nothing_more() -> None:
    events = run(make(first=0.2, gap=0.1, cancel_takes=0.5), cancel_at=0.25)
    assert events[-1] == (0.75, StreamEnded("released"))
    assert all(at <= 0.25 for at, _ in events[:-1])


@pytest.mark.parametrize("partial", [Partial(text="Hi"), Partial(text="Hello", ids=(1, 3), vocabulary="one", tokens=2)])
def test_a_beginning_that_is_not_its_own_is_an_error(partial: Partial) -> None:
    with pytest.raises(AssertionError, match="of its own answer"):
        run(make(), ContinueStream("writer", partial))


@pytest.mark.parametrize("seed", range(50))
def test_a_thrown_spelling_is_the_text_from_every_place(seed: int) -> None:
    def text_of(pieces: list[Piece]) -> str:
        return "".join(text for text, _ in pieces)

    rng = random.Random(seed)
    text = "".join(rng.choices("ab é日🦎\n", k=rng.randint(1, 40)))
    spelling = Spelling.draw(text, "v", rng)
    assert spelling.text == text
    assert len(set(spelling.ids)) == len(spelling.ids)
    for length in range(len(text) + 1):
        assert text[:length] + text_of(spelling.after_text(length)) == text
    for count in range(len(spelling.ids) + 1):
        rest = spelling.after_ids(count)
        assert spelling.ids[:count] + tuple(token for _, ids in rest for token in ids) == spelling.ids
        assert text.endswith(text_of(rest))
