"""What the commands that listen on a port share."""

from __future__ import annotations

import gc
import os

import pytest

from streamco.cli.serving import YOUNG_OBJECTS, check_descriptor, tune_collector
from streamco.errors import ConfigError


def test_a_server_collects_less_often_and_leaves_out_what_was_there_before() -> None:
    before, frozen = gc.get_threshold(), gc.get_freeze_count()
    try:
        tune_collector()
        assert gc.get_threshold() == (YOUNG_OBJECTS, *before[1:])
        assert gc.get_freeze_count() > frozen
        assert gc.isenabled()
    finally:
        gc.set_threshold(*before)
        gc.unfreeze()


def test_a_descriptor_that_is_not_open_is_refused() -> None:
    reading, writing = os.pipe()
    check_descriptor(writing)
    check_descriptor(None)
    for number in (reading, writing):
        os.close(number)
    with pytest.raises(ConfigError, match="ready-fd: expected an open file descriptor, got"):
        check_descriptor(writing)
