"""Finds the degradations of a split model's answer."""

from __future__ import annotations

from streamco.client.degradation import Degradations
from streamco.client.modes.notes import note_inexact
from streamco.client.modes.split.driver import SplitAnswerDriver
from streamco.errors import EndpointError

__all__ = ["note_split"]


def note_split(degradations: Degradations, notes: list[str], driver: SplitAnswerDriver) -> None:
    """Record a format that may change tokens and, when the answer is over, whether the model has failed or worked.

    A failure isn't added to the answer's notes, because the caller gets the error.
    """
    progress, name = driver.progress, driver.endpoint.name
    note_inexact(degradations, notes, name, driver.endpoint.figures_of(driver.tally, driver.made))
    if progress.finished is None:
        return
    if isinstance(progress.error, EndpointError):
        degradations.record_failure([], progress.error, endpoint=name, instead="no endpoint answered", may_log=False)
    elif progress.error is None and progress.first_token is not None:
        degradations.record_success(name)
