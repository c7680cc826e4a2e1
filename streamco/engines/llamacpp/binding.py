"""A ctypes binding of the llama.cpp functions that are called here, for a shared library that comes without its own binding.

llama-cpp-python contains a binding made for the library that it compiles. Every other library is called through this one: the functions
and four structs that the engine needs, as ``llama.h`` declares them at ``COMMIT``. A small binding can be read and checked as a whole,
unlike somebody else's 5,000 lines. Between commits llama.cpp adds fields to its structs, and a library with another layout may answer
for a while and crash later. So a library is compared with this layout before it is trusted (``layout_faults``).
"""

from __future__ import annotations

import ctypes
import platform
from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar

from streamco.errors import EngineError

__all__ = ["COMMIT", "Binding", "layout_faults"]

COMMIT = "0c1e57098"  # of llama.cpp; llama-cpp-python 0.3.36 compiles it

_bool, _float, _int, _uint, _text, _address = (
    ctypes.c_bool,
    ctypes.c_float,
    ctypes.c_int32,
    ctypes.c_uint32,
    ctypes.c_char_p,
    ctypes.c_void_p,
)
_ints, _floats = ctypes.POINTER(ctypes.c_int32), ctypes.POINTER(ctypes.c_float)

_OnProgress = ctypes.CFUNCTYPE(_bool, _float, _address)
_OnNode = ctypes.CFUNCTYPE(_bool, _address, _bool, _address)
_OnLog = ctypes.CFUNCTYPE(None, ctypes.c_int, _text, _address)
_ShouldAbort = ctypes.CFUNCTYPE(_bool, _address)


class _ModelParameters(ctypes.Structure):
    """``llama_model_params``."""

    _fields_ = (
        ("devices", _address),
        ("tensor_buft_overrides", _address),
        ("n_gpu_layers", _int),
        ("split_mode", _int),
        ("load_mode", _int),
        ("lazy_mode", _int),
        ("main_gpu", _int),
        ("tensor_split", _address),
        ("progress_callback", _OnProgress),
        ("progress_callback_user_data", _address),
        ("kv_overrides", _address),
        ("vocab_only", _bool),
        ("check_tensors", _bool),
        ("use_extra_bufts", _bool),
        ("no_host", _bool),
        ("no_alloc", _bool),
        ("load_mtp", _bool),
    )


class _ContextParameters(ctypes.Structure):
    """``llama_context_params``."""

    _fields_ = (
        ("n_ctx", _uint),
        ("n_batch", _uint),
        ("n_ubatch", _uint),
        ("n_seq_max", _uint),
        ("n_rs_seq", _uint),
        ("n_outputs_max", _uint),
        ("n_outputs_max_per_seq", _uint),
        ("n_threads", _int),
        ("n_threads_batch", _int),
        ("ctx_type", _int),
        ("rope_scaling_type", _int),
        ("pooling_type", _int),
        ("attention_type", _int),
        ("flash_attn_type", _int),
        ("rope_freq_base", _float),
        ("rope_freq_scale", _float),
        ("yarn_ext_factor", _float),
        ("yarn_attn_factor", _float),
        ("yarn_beta_fast", _float),
        ("yarn_beta_slow", _float),
        ("yarn_orig_ctx", _uint),
        ("defrag_thold", _float),
        ("cb_eval", _OnNode),
        ("cb_eval_user_data", _address),
        ("type_k", _int),
        ("type_v", _int),
        ("abort_callback", _ShouldAbort),
        ("abort_callback_data", _address),
        ("embeddings", _bool),
        ("offload_kqv", _bool),
        ("no_perf", _bool),
        ("op_offload", _bool),
        ("swa_full", _bool),
        ("kv_unified", _bool),
        ("samplers", _address),
        ("n_samplers", ctypes.c_size_t),
        ("ctx_other", _address),
    )


class _QuantizeParameters(ctypes.Structure):
    """``llama_model_quantize_params``."""

    _fields_ = (
        ("nthread", _int),
        ("ftype", ctypes.c_int),
        ("output_tensor_type", ctypes.c_int),
        ("token_embedding_type", ctypes.c_int),
        ("allow_requantize", _bool),
        ("quantize_output_tensor", _bool),
        ("only_copy", _bool),
        ("pure", _bool),
        ("keep_split", _bool),
        ("dry_run", _bool),
        ("imatrix", _address),
        ("kv_overrides", _address),
        ("tt_overrides", _address),
        ("prune_layers", _ints),
        ("max_buf_size", ctypes.c_size_t),
    )


class _Batch(ctypes.Structure):
    """``llama_batch``."""

    _fields_ = (
        ("n_tokens", _int),
        ("token", _ints),
        ("embd", _floats),
        ("pos", _ints),
        ("n_seq_id", _ints),
        ("seq_id", ctypes.POINTER(_ints)),
        ("logits", ctypes.POINTER(ctypes.c_int8)),
    )


# Fields of the default parameters that aren't zero.
_MODEL_DEFAULTS: dict[str, Any] = {"n_gpu_layers": -1, "split_mode": 1, "load_mode": -1, "lazy_mode": 1, "use_extra_bufts": True}
_CONTEXT_DEFAULTS: dict[str, Any] = (
    {"n_ctx": 512, "n_batch": 2048, "n_ubatch": 512, "n_seq_max": 1, "n_outputs_max_per_seq": 1, "n_threads": 4, "n_threads_batch": 4}
    | dict.fromkeys(("rope_scaling_type", "pooling_type", "attention_type", "flash_attn_type"), -1)
    | dict.fromkeys(("yarn_ext_factor", "yarn_attn_factor", "yarn_beta_fast", "yarn_beta_slow", "defrag_thold"), -1.0)
    | {"type_k": 1, "type_v": 1}
    | dict.fromkeys(("offload_kqv", "no_perf", "op_offload", "swa_full"), True)
)

# Each function's return type and argument types.
_FUNCTIONS: Mapping[str, tuple[Any, ...]] = {
    "llama_backend_init": (None,),
    "llama_context_default_params": (_ContextParameters,),
    "llama_decode": (_int, _address, _Batch),
    "llama_free": (None, _address),
    "llama_get_embeddings_ith": (_floats, _address, _int),
    "llama_get_logits_ith": (_floats, _address, _int),
    "llama_get_memory": (_address, _address),
    "llama_init_from_model": (_address, _address, _ContextParameters),
    "llama_log_set": (None, _OnLog, _address),
    "llama_memory_clear": (None, _address, _bool),
    "llama_memory_seq_cp": (None, _address, _int, _int, _int, _int),
    "llama_memory_seq_rm": (_bool, _address, _int, _int, _int),
    "llama_model_chat_template": (_text, _address, _text),
    "llama_model_default_params": (_ModelParameters,),
    "llama_model_free": (None, _address),
    "llama_model_get_vocab": (_address, _address),
    "llama_model_is_hybrid": (_bool, _address),
    "llama_model_is_recurrent": (_bool, _address),
    "llama_model_load_from_file": (_address, _text, _ModelParameters),
    "llama_model_meta_val_str": (_int, _address, _text, _text, ctypes.c_size_t),
    "llama_model_n_ctx_train": (_int, _address),
    "llama_model_n_embd": (_int, _address),
    "llama_model_n_head": (_int, _address),
    "llama_model_n_layer": (_int, _address),
    "llama_model_n_params": (ctypes.c_uint64, _address),
    "llama_model_n_swa": (_int, _address),
    "llama_model_quantize": (_uint, _text, _text, ctypes.POINTER(_QuantizeParameters)),
    "llama_model_quantize_default_params": (_QuantizeParameters,),
    "llama_n_ctx_seq": (_uint, _address),
    "llama_print_system_info": (_text,),
    "llama_set_abort_callback": (None, _address, _ShouldAbort, _address),
    "llama_set_embeddings": (None, _address, _bool),
    "llama_set_n_threads": (None, _address, _int, _int),
    "llama_supports_gpu_offload": (_bool,),
    "llama_token_to_piece": (_int, _address, _int, _text, _int, _int, _bool),
    "llama_tokenize": (_int, _address, _text, _int, _ints, _int, _bool, _bool),
    "llama_vocab_bos": (_int, _address),
    "llama_vocab_eos": (_int, _address),
    "llama_vocab_get_add_bos": (_bool, _address),
    "llama_vocab_get_attr": (_int, _address, _int),
    "llama_vocab_get_text": (_text, _address, _int),
    "llama_vocab_is_eog": (_bool, _address, _int),
    "llama_vocab_n_tokens": (_int, _address),
    "llama_vocab_type": (_int, _address),
}


class Binding:
    """One shared library, with the same names as the module ``llama_cpp``.

    Args:
        path: the library's file.
        version: its name and version, for reports and cache keys.

    Attributes:
        missing: functions that the library lacks. Using one of them raises an ``EngineError`` that says so.

    Raises:
        EngineError: it can't be loaded.
    """

    LLAMA_FLASH_ATTN_TYPE_DISABLED: ClassVar[int] = 0
    LLAMA_POOLING_TYPE_NONE: ClassVar[int] = 0
    LLAMA_TOKEN_ATTR_UNKNOWN: ClassVar[int] = 1
    LLAMA_TOKEN_ATTR_CONTROL: ClassVar[int] = 1 << 3
    LLAMA_TOKEN_ATTR_LSTRIP: ClassVar[int] = 1 << 7
    LLAMA_TOKEN_ATTR_RSTRIP: ClassVar[int] = 1 << 8
    LLAMA_VOCAB_TYPE_NONE: ClassVar[int] = 0
    llama_batch = _Batch
    llama_log_callback = _OnLog
    llama_progress_callback = _OnProgress
    ggml_abort_callback = _ShouldAbort

    def __init__(self, path: Path, version: str) -> None:
        self.__file__ = str(path)
        self.__version__ = version
        try:
            self.handle = ctypes.CDLL(str(path))
        except OSError as exc:
            raise EngineError(f"llama.cpp: expected a library that loads on this system, got {path}: {exc}") from exc
        missing = []
        for name, (returned, *taken) in _FUNCTIONS.items():
            try:
                function = getattr(self.handle, name)
            except AttributeError:
                missing.append(name)
                continue
            function.restype, function.argtypes = returned, taken
            setattr(self, name, function)
        self.missing = tuple(missing)

    def __getattr__(self, name: str) -> Any:
        if name in _FUNCTIONS:
            raise EngineError(f"llama.cpp: expected a library that exports {name}, got {self.__version__}, which doesn't: {self.__file__}")
        raise AttributeError(name)


def layout_faults(binding: Binding) -> list[str]:
    """Return the differences between a library's default parameters and the layout declared here, or [] if there are none.

    A missing function that every model needs is a fault, too.
    """
    faults = [f"{name} is missing" for name in binding.missing if "quantize" not in name]
    for name, struct, defaults in (
        ("llama_model_default_params", _ModelParameters, _MODEL_DEFAULTS),
        ("llama_context_default_params", _ContextParameters, _CONTEXT_DEFAULTS),
    ):
        if name in binding.missing:
            continue
        written = _written(binding.handle, name)
        if written is None:  # this processor's calling convention hides the size
            data = bytes(getattr(binding, name)())
        else:
            data, size = written
            whole = ctypes.sizeof(struct)
            if not whole - _tail(struct) <= size <= whole:
                faults.append(f"{name} returns {size} bytes, not {whole}")
        got = struct.from_buffer_copy(data[: ctypes.sizeof(struct)])
        for field, kind in struct._fields_:
            offset, length = getattr(struct, field).offset, ctypes.sizeof(kind)
            expected = bytes(kind(defaults[field])) if field in defaults else bytes(length)
            if bytes(got)[offset : offset + length] != expected:
                faults.append(f"{name}: {field} is {bytes(got)[offset : offset + length].hex()}, not {expected.hex()}")
    return faults


def _tail(struct: type[ctypes.Structure]) -> int:
    """Return the number of padding bytes at the end of a struct, which some compilers write and others don't."""
    last = getattr(struct, list(struct._fields_)[-1][0])
    return ctypes.sizeof(struct) - int(last.offset) - int(last.size)


def _written(handle: ctypes.CDLL, name: str) -> tuple[bytes, int] | None:
    """Return the bytes of the struct that a function without arguments returns, and their number; None if not known for this processor.

    On x86-64, the caller passes the address of a large struct as a hidden first argument. So the function is called twice with the address
    of a buffer that is long enough for a larger struct. It has written the bytes that are the same after both calls.
    """
    if platform.machine().lower() not in {"x86_64", "amd64"}:
        return None
    call = ctypes.CFUNCTYPE(_address, _address)((name, handle))
    buffers = [ctypes.create_string_buffer(bytes([fill]) * 1024, 1024) for fill in (0x55, 0xAA)]
    for buffer in buffers:
        call(ctypes.addressof(buffer))
    first, second = (buffer.raw for buffer in buffers)
    written = [index for index in range(1024) if first[index] == second[index]]
    return first, max(written, default=-1) + 1
