"""A tap that copies nodes of llama.cpp's graphs while they are computed. This is the specification of ``nodetap.pyx``.

llama.cpp calls ``llama_context_params.cb_eval`` for every node: first with ``ask``, before the node is computed, then with its values if
the answer was yes. A SmolLM2 graph has 1,086 nodes. A Python function that answers no to each of them adds 3 ms to a token of 16 ms (more
if another thread holds the GIL). The compiled function adds nothing measurable.

Both twins read the leading fields of ``ggml_tensor`` as in ggml.h. The offset of the name shows whether the loaded library has the same
layout (``is_understood``).
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from itertools import islice

__all__ = ["NodeTap"]

INT64 = 27  # GGML_TYPE_I64
FLOAT32 = 0  # GGML_TYPE_F32
MOST_NODES = 512


class _Tensor(ctypes.Structure):
    """The leading fields of the C struct ``ggml_tensor``."""


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
    """Copies the values of some nodes, and the indices of one kind of node.

    Args:
        name_of: address of ``ggml_get_name``.
        read: address of ``ggml_backend_tensor_get``.
        indexed: a prefix of node names. If a node has this prefix, and 64-bit integers as its second source, that source is copied before
            the node is computed. It lists the cells to which the keys of a batch are written.
        wanted: names of the nodes to copy, at most 512, whose values are contiguous 32-bit floats. The copies number them 1, 2, ... in
            this order.

    Attributes:
        callback: address of the function for ``cb_eval``; the tap must outlive its contexts.
        state: value for ``cb_eval_user_data``.
        is_understood: False once a node did not have the layout of ggml.h. Nothing is read from such a node.
    """

    def __init__(self, name_of: int, read: int, indexed: bytes, wanted: Sequence[bytes]) -> None:
        wanted = tuple(islice(wanted, MOST_NODES + 1))
        if len(wanted) > MOST_NODES:
            raise ValueError(f"node tap: expected at most {MOST_NODES} nodes, got more")
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
        """Drop all copies. If ``values`` is True, copy the values of the wanted nodes from now on, otherwise only the indices."""
        self._copies.clear()
        self._is_armed = values

    def copies(self) -> list[tuple[int, tuple[int, int, int, int], bytes]]:
        """Return (number, shape with the innermost axis first, bytes) for each copy since ``arm``, in the order of computation.

        The number is 0 for indices.

        Raises:
            MemoryError: there was not enough memory for a copy.
        """
        return list(self._copies)

    def _called(self, address: int, ask: bool, _state: int) -> bool:
        """Answer llama.cpp's call. The only possible error here is running out of memory, and ctypes never lets exceptions reach C."""
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
