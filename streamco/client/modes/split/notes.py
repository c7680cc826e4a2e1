"""Finds the degradations of a split model's answer."""

from __future__ import annotations

from streamco.client.degradation import Degradations
from streamco.client.modes.split.driver import SplitAnswerDriver
from streamco.errors import EndpointError

__all__ = ["note_split"]


def note_split(degradations: Degradations, driver: SplitAnswerDriver) -> None:
    """Record that the model has failed, or that it worked; nothing while the answer is under way. The caller has the error."""
    progress, name = driver.progress, driver.endpoint.name
    if progress.finished is None:
        return
    if isinstance(progress.error, EndpointError):
        degradations.record_failure([], progress.error, endpoint=name, instead="no endpoint answered", may_log=False)
    elif progress.error is None and progress.first_token is not None:
        degradations.record_success(name)
