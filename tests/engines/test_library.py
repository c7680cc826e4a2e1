"""What is asked of llama.cpp's libraries beside their bindings."""

from __future__ import annotations

import ctypes

import pytest

from streamco.engines.library import library_address, load_library
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
