"""Notes on answers, for use by several modes."""

from __future__ import annotations

from streamco.client.degradation import Degradations
from streamco.client.modes.base import AskedAnswer
from streamco.core.report_parts import SplitFigures
from streamco.policies.eligibility import RequestFacts

__all__ = ["note_inexact", "note_shortened", "note_unpaced"]


def note_inexact(degradations: Degradations, notes: list[str], name: str, figures: SplitFigures) -> None:
    """If a split model's states were sent in a format that may change tokens, record that.

    Args:
        degradations: the client's degradations.
        notes: the answer's notes.
        name: the model's name.
        figures: says how much the model has sent for the answer, and in which format.
    """
    if figures.rows_up and not figures.is_exact:
        sentence = f"{name}: the answer is not exactly the model's own, because its states travel in fewer than 32 bits"
        degradations.record(notes, kind="not exact", endpoint=name, sentence=sentence, may_raise=False)


def note_shortened(asked: AskedAnswer, facts: RequestFacts, *, device: str, tokens: int) -> None:
    """Record that the device can only give a shorter answer than the request allows.

    Args:
        asked: the answer.
        facts: facts about the request.
        device: the device's name.
        tokens: length of the longest answer that it can give.

    Raises:
        DegradedError: the client's rule is "raise".
    """
    most = f"{tokens} of {facts.max_tokens} tokens"
    sentence = f"{device} can give at most {most} (max_tokens), because its context ends there"
    asked.settings.degradations.record(asked.notes, kind="shortened", endpoint=device, sentence=sentence)


def note_unpaced(asked: AskedAnswer) -> None:
    """Record that the client's pace has no effect, if the answer isn't streamed."""
    if asked.settings.pace is not None and not asked.is_streamed:
        sentence = "the client's pace has no effect on an answer that is not streamed"
        asked.settings.degradations.record(asked.notes, kind="no effect", endpoint="pace", sentence=sentence, may_raise=False)
