"""Finds the degradations of a split model's answer."""

from __future__ import annotations

from streamco.client.degradation import Degradations
from streamco.client.modes.split.driver import SplitAnswerDriver

__all__ = ["note_inexact", "note_split"]


def note_inexact(degradations: Degradations, notes: list[str], name: str) -> None:
    """Record that the model ``name`` sends states in a format which changes tokens."""
    sentence = f"{name}: the answer is not exactly the model's own, because its states travel in fewer than 32 bits"
    degradations.record(notes, kind="not exact", endpoint=name, sentence=sentence, may_raise=False)


def note_split(degradations: Degradations, driver: SplitAnswerDriver) -> None:
    """Record that the model has failed, or that it worked; nothing while the answer is under way. The caller has the error."""
    progress, name = driver.progress, driver.endpoint.name
    if progress.finished is None:
        return
    if progress.error is not None:
        degradations.record_failure([], progress.error, endpoint=name, instead="no endpoint answered", may_log=False)
    elif progress.first_token is not None:
        degradations.record_success(name)
