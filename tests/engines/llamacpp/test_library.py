"""What is asked of llama.cpp's libraries beside their bindings."""

from __future__ import annotations

import ctypes
import os
import re
import subprocess
import sys

import pytest

from streamco.engines.llamacpp.library import extra_buffer, library_address, load_library
from streamco.errors import EngineError


def test_functions_of_ggml_are_found_beside_those_of_llama_cpp() -> None:
    pytest.importorskip("llama_cpp")
    library = load_library()
    assert library_address(library, "ggml_get_name") != library_address(library, "llama_decode") != 0
    time_us = ctypes.CFUNCTYPE(ctypes.c_int64)(library_address(library, "ggml_time_us"))
    assert time_us() <= time_us()


def test_a_function_that_is_not_exported_is_an_error() -> None:
    pytest.importorskip("llama_cpp")
    with pytest.raises(EngineError, match="expected a library that exports ggml_no_such_thing"):
        library_address(load_library(), "ggml_no_such_thing")


@pytest.mark.parametrize(
    ("chosen", "spins"),
    [({}, "3000"), ({"GOMP_SPINCOUNT": "77"}, "77"), ({"OMP_WAIT_POLICY": "passive"}, "0")],
    ids=["ours", "count", "policy"],
)
def test_threads_spin_shortly_unless_somebody_has_chosen_and_the_environment_is_left_alone(chosen: dict[str, str], spins: str) -> None:
    pytest.importorskip("llama_cpp")
    code = (
        "import os, streamco.engines.llamacpp.library as l; before = dict(os.environ); l.load_library(); print(dict(os.environ) == before)"
    )
    clean = {name: value for name, value in os.environ.items() if name not in {"OMP_WAIT_POLICY", "GOMP_SPINCOUNT"}}
    environment = clean | chosen | {"OMP_DISPLAY_ENV": "verbose"}
    said = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True, timeout=60)
    assert said.stdout.strip() == "True"
    told = re.search(r"GOMP_SPINCOUNT = '(\d+)'", said.stderr)
    if told is None:
        pytest.skip("this llama.cpp is built without libgomp")
    assert told[1] == spins


@pytest.mark.model
def test_a_buffer_type_is_found_by_its_name() -> None:
    library = load_library()
    assert extra_buffer(library, "no such buffer") is None
    repack = extra_buffer(library, "CPU_REPACK")
    assert repack is None or repack > 0
