"""The small binding: its layout is that of the header, and a library with another one is found out."""

from __future__ import annotations

import ctypes
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from streamco.engines.llamacpp import binding as declared
from streamco.engines.llamacpp.binding import Binding, layout_faults
from streamco.errors import EngineError

MODEL = "int64_t a, b; int32_t gpu, split, load, lazy, main; int64_t ts, cb, ud, kv; bool v[{flags}];"
CONTEXT = (
    "uint32_t a[7]; int32_t t[2], e[5]; float f[6]; uint32_t o; float d; int64_t cb, ud; int32_t k, v; int64_t ab, ad; "
    "bool b[{flags}]; int64_t s, n, x;"
)
SOURCE = """
#include <stdbool.h>
#include <stdint.h>
struct model {{ {model} }};
struct context {{ {context} }};
struct model llama_model_default_params(void) {{
    struct model m = {{.gpu = -1, .split = 1, .load = -1, .lazy = 1}};
    m.v[2] = true;
    return m;
}}
struct context llama_context_default_params(void) {{
    struct context c = {{.a = {{512, 2048, 512, 1, 0, 0, 1}}, .t = {{4, 4}}, .e = {{0, -1, -1, -1, -1}}, .d = -1}};
    c.f[2] = c.f[3] = c.f[4] = c.f[5] = -1;
    c.k = c.v = 1;
    c.b[{first}] = c.b[{first} + 1] = c.b[{first} + 2] = c.b[{first} + 3] = true;
    return c;
}}
{others}
"""


def compiled(folder: Path, *, model_flags: int = 6, context_flags: int = 6, first: int = 1, leave_out: str = "") -> Path:
    """A library that has nothing but default parameters, with so many flags; other functions do nothing."""
    compiler = shutil.which("gcc") or shutil.which("cc")
    if compiler is None:
        pytest.skip("no C compiler")
    others = "\n".join(
        f"void {name}(void) {{}}" for name in declared._FUNCTIONS if not name.endswith("_default_params") and name != leave_out
    )
    source = SOURCE.format(model=MODEL.format(flags=model_flags), context=CONTEXT.format(flags=context_flags), first=first, others=others)
    (folder / "stub.c").write_text(source, encoding="utf-8")
    target = folder / "libstub.so"
    subprocess.run([compiler, "-shared", "-fPIC", "-o", str(target), str(folder / "stub.c")], check=True, capture_output=True, timeout=60)
    return target


@pytest.mark.parametrize(
    ("struct", "name"),
    [
        (declared._ModelParameters, "llama_model_params"),
        (declared._ContextParameters, "llama_context_params"),
        (declared._QuantizeParameters, "llama_model_quantize_params"),
        (declared._Batch, "llama_batch"),
    ],
)
def test_structs_are_laid_out_as_in_the_binding_of_the_compiled_library(struct: Any, name: str) -> None:
    theirs = getattr(pytest.importorskip("llama_cpp"), name)
    assert [(field, getattr(struct, field).offset, getattr(struct, field).size) for field, _ in struct._fields_] == [
        (field, getattr(theirs, field).offset, getattr(theirs, field).size) for field, _ in theirs._fields_
    ]
    assert ctypes.sizeof(struct) == ctypes.sizeof(theirs)


def test_functions_take_and_return_what_the_other_binding_says() -> None:
    library = pytest.importorskip("llama_cpp")
    for name, (returned, *taken) in declared._FUNCTIONS.items():
        theirs = getattr(library.llama_cpp._lib, name)
        assert len(taken) == len(theirs.argtypes), name
        sizes = [0 if kind is None else ctypes.sizeof(kind) for kind in (returned, *taken)]
        assert sizes == [0 if kind is None else ctypes.sizeof(kind) for kind in (theirs.restype, *theirs.argtypes)], name


def test_the_compiled_library_has_no_faults() -> None:
    package = Path(pytest.importorskip("llama_cpp").__file__).parent
    library = Binding(next((package / "lib").glob("libllama.so")), "compiled")
    assert layout_faults(library) == []
    assert library.missing == ()


def test_a_stub_with_this_layout_has_no_faults(tmp_path: Path) -> None:
    assert layout_faults(Binding(compiled(tmp_path), "stub")) == []


@pytest.mark.parametrize(
    ("changes", "fault"),
    [
        ({"context_flags": 9}, "llama_context_default_params returns 168 bytes, not 160"),
        ({"context_flags": 7, "first": 2}, "llama_context_default_params: offload_kqv is 00, not 01"),
        ({"model_flags": 9}, "llama_model_default_params returns 88 bytes, not 80"),
        ({"leave_out": "llama_decode"}, "llama_decode is missing"),
    ],
)
def test_another_layout_is_a_fault(tmp_path: Path, changes: Any, fault: str) -> None:
    assert fault in layout_faults(Binding(compiled(tmp_path, **changes), "stub"))


def test_a_missing_function_is_an_error_when_it_is_asked_for(tmp_path: Path) -> None:
    library = Binding(compiled(tmp_path, leave_out="llama_model_quantize"), "stub")
    assert "llama_model_quantize" in library.missing
    assert layout_faults(library) == [], "models run without it"
    with pytest.raises(EngineError, match="expected a library that exports llama_model_quantize, got stub, which doesn't"):
        _ = library.llama_model_quantize
    with pytest.raises(AttributeError):
        _ = library.llama_no_such_thing


def test_a_file_that_is_no_library_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "libllama.so").write_bytes(b"no library")
    with pytest.raises(EngineError, match="expected a library that loads on this system"):
        Binding(tmp_path / "libllama.so", "broken")
