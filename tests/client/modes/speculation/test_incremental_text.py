"""Tokens to text: whole code points, stop strings, and what a reader of drafts is told."""

from __future__ import annotations

from random import Random

import pytest

from streamco.client.modes.speculation.incremental_text import IncrementalText, TextAdded, TextCommitted, TextEvent, TextRetracted
from streamco.core.speculation.answer import SpeculativeAnswer
from streamco.core.speculation.events import CommitIds, DeliverIds, RetractIds, SpeculationCommand
from streamco.core.speculation.report import SpeculationReport
from streamco.engines.base import TextPiece

BYTES = {0: b"a", 1: b" b", 2: b"c", 3: "é".encode()[:1], 4: "é".encode()[1:], 5: b"", 6: b"\n", 7: b"ST", 8: b"OP", 9: "🙂".encode()}
EMOJI = [10 + index for index in range(4)]
BYTES |= {token: "🦊".encode()[index : index + 1] for index, token in enumerate(EMOJI)}


def wording(*stops: str, opened: bytes = b"") -> IncrementalText:
    return IncrementalText(BYTES.__getitem__, stops, opened)


class Reader:
    """What a program has that follows what it is told."""

    def __init__(self) -> None:
        self.text = ""
        self.final = 0  # characters of it that stay
        self.pieces: list[int] = []  # lengths of the provisional ones

    def take(self, words: list[TextEvent]) -> None:
        for word in words:
            match word:
                case TextAdded(piece, "draft"):
                    self.text += piece.text
                    self.pieces.append(len(piece.text))
                case TextAdded(piece, _):
                    assert not self.pieces, "final text comes behind final text"
                    self.text += piece.text
                    self.final = len(self.text)
                case TextCommitted(pieces, characters, _):
                    assert sum(self.pieces[:pieces]) == characters
                    del self.pieces[:pieces]
                    self.final += characters
                case TextRetracted(pieces, characters):
                    assert pieces <= len(self.pieces), "only provisional text is taken back"
                    assert sum(self.pieces[len(self.pieces) - pieces :]) == characters
                    del self.pieces[len(self.pieces) - pieces :]
                    self.text = self.text[: len(self.text) - characters]


def texts(words: list[TextEvent]) -> list[str]:
    return [word.piece.text for word in words if isinstance(word, TextAdded)]


def test_final_tokens_become_text_as_whole_code_points_with_their_makers() -> None:
    words = wording()
    assert words.deliver([0, 3], "accepted") == [TextAdded(words_piece("a", 0), "accepted")]
    assert words.deliver([4], "corrected") == [TextAdded(words_piece("é", 3, 4), "corrected")], "who completes a code point is its maker"
    assert texts(words.deliver(EMOJI[:3], "bonus")) == []
    assert texts(words.finish()) == ["\ufffd"], "an open code point at the end"


def words_piece(text: str, *ids: int) -> TextPiece:
    return TextPiece(text, ids)


def test_a_prompt_that_ends_inside_a_code_point_is_gone_on_with() -> None:
    words = wording(opened="é".encode()[:1])
    assert texts(words.deliver([4], "draft")) == ["é"]
    assert words.commit(1, "accepted") == [TextCommitted(1, 1, "accepted")]
    assert texts(words.deliver([0], "draft")) == ["a"]


def test_a_stop_string_ends_the_answer_and_is_not_shown() -> None:
    words = wording("STOP")
    assert texts(words.deliver([0, 7], "accepted")) == ["a"], "what may begin a stop string is held"
    assert texts(words.deliver([0], "accepted")) == ["ST", "a"]
    assert texts(words.deliver([7, 8, 0], "corrected")) == []
    assert words.is_stopped
    assert words.deliver([0], "accepted") == []
    assert words.finish() == []


def test_what_is_held_at_the_end_comes_then() -> None:
    words = wording("STOP")
    words.deliver([7], "bonus")
    assert texts(words.finish()) == ["ST"]
    assert not words.is_stopped


def test_drafts_are_shown_settled_and_taken_back() -> None:
    words, reader = wording(), Reader()
    reader.take(words.deliver([0, 1, 2], "draft"))
    assert reader.text == "a bc"
    told = words.commit(2, "accepted")
    assert told == [TextCommitted(2, 3, "accepted")]
    reader.take(told)
    told = words.retract(1)
    assert told == [TextRetracted(1, 1)]
    reader.take(told)
    reader.take(words.deliver([6], "corrected"))
    assert reader.text == "a b\n"
    assert reader.final == 4


def test_a_code_point_that_is_half_settled_stays_provisional() -> None:
    words, reader = wording(), Reader()
    reader.take(words.deliver(EMOJI, "draft"))
    assert reader.text == "🦊"
    assert words.commit(2, "accepted") == []
    reader.take(words.retract(2))
    assert reader.text == ""
    reader.take(words.deliver(EMOJI[2:], "corrected"))
    assert reader.text == "🦊"


def test_a_provisional_stop_string_hides_what_follows_until_it_is_judged() -> None:
    words, reader = wording("STOP"), Reader()
    reader.take(words.deliver([0, 7, 8, 2], "draft"))
    assert reader.text == "a"
    reader.take(words.commit(2, "accepted"))
    reader.take(words.retract(2))
    reader.take(words.deliver([2], "corrected"))
    assert reader.text == "aSTc"
    assert not words.is_stopped


@pytest.mark.parametrize("emit", ["draft", "verified"])
def test_a_reader_who_follows_ends_with_the_text_of_the_settled_tokens(emit: str) -> None:
    seed = Random().randrange(1 << 30)
    print(f"seed {seed}")
    rng = Random(seed)
    for _ in range(300):
        stops = ("STOP",) if rng.random() < 0.5 else ()
        commands: list[SpeculationCommand] = []
        answer = SpeculativeAnswer(commands.append, SpeculationReport(), shows_drafts=emit == "draft")
        words, reader = wording(*stops), Reader()
        for _ in range(rng.randrange(1, 12)):
            draft = rng.choices(list(BYTES), k=rng.randrange(5))
            answer.propose(draft)
            if rng.random() < 0.7:
                kept = draft[: rng.randrange(len(draft) + 1)]
                answer.commit(kept, "accepted")
                answer.commit([rng.choice(list(BYTES))], "corrected")
            elif rng.random() < 0.3:
                answer.retract()
            for command in commands:
                match command:
                    case DeliverIds(ids, origin):
                        reader.take(words.deliver(ids, origin))
                    case CommitIds(count, origin):
                        reader.take(words.commit(count, origin))
                    case RetractIds(count):
                        reader.take(words.retract(count))
            commands.clear()
        reader.take(words.finish())
        whole = b"".join(BYTES[token] for token in answer.ids).decode(errors="replace")
        if stops:
            whole = whole.split("STOP")[0]
        assert reader.text == whole
        assert reader.final == len(reader.text)
        assert not reader.pieces
