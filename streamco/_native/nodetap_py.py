"""Reads nodes of llama.cpp's graphs while they are computed; the specification of ``nodetap.pyx``.

``llama_context_params.cb_eval`` is called for every node: first with ``ask``, before it is computed, then, where the answer was yes, with
its values. A SmolLM2 graph has 1,086 of them: a Python function that says no to each adds 3 ms to a token of 16 (more where another thread
has the GIL), the compiled one nothing that can be measured.

The compiled twin and this one read the head of ``ggml_tensor`` as ggml.h has it. Whether it is so in the library at hand is checked by
the place of the name (``is_understood``).
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence

__all__ = ["NodeTap"]

INT64 = 27  # GGML_TYPE_I64
FLOAT32 = 0  # GGML_TYPE_F32


class _Tensor(ctypes.Structure):
    """The head of ``ggml_tensor``."""


_Tensor._fields_ = [
    ("type", ctypes.c_int),
    ("buffer", ctypes.c_void_p),
    ("ne", ctypes.c_int64 * 4),
    ("nb", ctypes.c_size_t * 4),
    ("op", ctypes.c_int),
    ("op_params", ctypes.c_int32 * 16),
    ("flags", ctypes.c_int32),
    ("src", ctypes.POINTER(_Tensor) * 10),
    ("view_src", ctypes.c_void_p),
    ("view_offs", ctypes.c_size_t),
    ("data", ctypes.c_void_p),
    ("name", ctypes.c_char * 64),
]


class NodeTap:
    """Copies what some nodes hold, and what one node is indexed by.

    Args:
        name_of: address of ``ggml_get_name``.
        read: address of ``ggml_backend_tensor_get``.
        indexed: with what the names of nodes begin whose second source is copied where it has 64-bit integers, before they are
            computed: the cells that the keys of a batch are written to.
        wanted: names of the nodes whose values are copied, 32-bit floats without gaps; number 1 and so on in the copies.

    Attributes:
        callback: address of the function for ``cb_eval``; the tap must outlive its contexts.
        state: for ``cb_eval_user_data``.
        is_understood: False: a node was met that is not laid out as ggml.h has it, and nothing was read.
    """

    def __init__(self, name_of: int, read: int, indexed: bytes, wanted: Sequence[bytes]) -> None:
        if not all(isinstance(name, bytes) for name in (indexed, *wanted)):
            raise TypeError(f"node tap: expected names in bytes, got {indexed!r} and {wanted!r}")
        self._name_of = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_void_p)(name_of)
        self._read = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t, ctypes.c_size_t)(read)
        self._indexed = indexed
        self._wanted = {name: number for number, name in enumerate(wanted, start=1)}
        self._copies: list[tuple[int, tuple[int, int, int, int], bytes]] = []
        self._is_armed = False
        self.is_understood = True
        self._function = ctypes.CFUNCTYPE(ctypes.c_bool, ctypes.c_void_p, ctypes.c_bool, ctypes.c_void_p)(self._called)
        self.callback = ctypes.cast(self._function, ctypes.c_void_p).value or 0
        self.state = 0

    def arm(self, values: bool, /) -> None:
        """Forget all copies. ``values``: copy those of the wanted nodes too, from now on."""
        self._copies.clear()
        self._is_armed = values

    def copies(self) -> list[tuple[int, tuple[int, int, int, int], bytes]]:
        """(number, shape with the innermost axis first, bytes) in the order of computing, since ``arm``; number 0: the indices.

        Raises:
            MemoryError: there was not enough for one of them.
        """
        return list(self._copies)

    def _called(self, address: int, ask: bool, _state: int) -> bool:
        """Never raises: nothing in here can fail but the memory, and ctypes keeps exceptions from C."""
        if self._name_of(address) != address + _Tensor.name.offset:
            self.is_understood = False
            return False
        tensor = _Tensor.from_address(address)
        if not ask:
            self._copy(self._wanted[tensor.name], tensor, 4)
            return True
        if tensor.name.startswith(self._indexed) and tensor.src[1] and tensor.src[1].contents.type == INT64:
            self._copy(0, tensor.src[1].contents, 8)
        return self._is_armed and tensor.name in self._wanted and tensor.type == FLOAT32 and tensor.nb[0] == 4

    def _copy(self, number: int, tensor: _Tensor, width: int) -> None:
        shape = tuple(tensor.ne)
        data = ctypes.create_string_buffer(shape[0] * shape[1] * shape[2] * shape[3] * width)
        self._read(ctypes.addressof(tensor), ctypes.addressof(data), 0, len(data))
        self._copies.append((number, shape, data.raw))
