"""What the tap copies out of a graph, both twins: tensors laid out here, and a library of two functions that counts its calls."""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Iterator
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from streamco._native.nodetap_py import _Tensor

INT64, FLOAT32, FLOAT16 = 27, 0, 1
Callback = ctypes.CFUNCTYPE(ctypes.c_bool, ctypes.c_void_p, ctypes.c_bool, ctypes.c_void_p)


class Library:
    """``ggml_get_name`` and ``ggml_backend_tensor_get``."""

    def __init__(self) -> None:
        self.reads = 0
        self.shift = 0
        self._name_of = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_void_p)(self._tell_name)
        self._read = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t, ctypes.c_size_t)(self._copy)
        self.name_of = ctypes.cast(self._name_of, ctypes.c_void_p).value or 0
        self.read = ctypes.cast(self._read, ctypes.c_void_p).value or 0

    def _tell_name(self, address: int) -> int:
        return address + _Tensor.name.offset + self.shift

    def _copy(self, address: int, target: int, start: int, size: int) -> None:
        self.reads += 1
        ctypes.memmove(target, _Tensor.from_address(address).data + start, size)


class Graph:
    """Runs nodes past a tap as llama.cpp does."""

    def __init__(self, tap: Any) -> None:
        self._tap = tap
        self._call = Callback(tap.callback)
        self._kept: list[object] = []

    def tensor(self, name: bytes, values: np.ndarray[Any, Any], kind: int, source: Any = None) -> Any:
        tensor = _Tensor(type=kind, name=name, data=values.ctypes.data)
        for axis, length in enumerate((*reversed(values.shape), 1, 1, 1, 1)[:4]):
            tensor.ne[axis] = length
        tensor.nb[0] = values.itemsize
        if source is not None:
            tensor.src[1] = ctypes.pointer(source)
        self._kept += [tensor, values]
        return tensor

    def compute(self, *tensors: Any) -> list[bool]:
        """Which of them the tap wanted."""
        wanted = []
        for tensor in tensors:
            address = ctypes.addressof(tensor)
            wanted.append(self._call(address, True, self._tap.state))
            if wanted[-1]:
                assert self._call(address, False, self._tap.state)
        return wanted


@pytest.fixture
def library() -> Library:
    return Library()


@pytest.fixture
def tap(nodetap: ModuleType, library: Library) -> Iterator[Any]:
    made = nodetap.NodeTap(library.name_of, library.read, b"cache_k_l1 ", [b"kq_soft_max-1", b"kq_soft_max-12"])
    yield made
    made.arm(False)


def values(*shape: int) -> np.ndarray[Any, Any]:
    return np.random.default_rng(3).random(shape, dtype=np.float32)


def test_wanted_nodes_are_copied_with_their_shape_and_others_are_not_even_stopped_at(tap: Any) -> None:
    graph = Graph(tap)
    tap.arm(True)
    first, second = values(2, 3, 5, 4), values(1, 3, 5, 4)
    nodes = [
        graph.tensor(name, data, FLOAT32) for name, data in ((b"kq_soft_max-1", first), (b"kqv-1", first), (b"kq_soft_max-12", second))
    ]
    assert graph.compute(*nodes) == [True, False, True]
    copies = tap.copies()
    assert [(number, shape) for number, shape, _ in copies] == [(1, (4, 5, 3, 2)), (2, (4, 5, 3, 1))]
    assert [data for _, _, data in copies] == [first.tobytes(), second.tobytes()]
    assert tap.is_understood


def test_the_indices_of_a_written_node_are_copied_before_it_is_computed(tap: Any) -> None:
    graph = Graph(tap)
    tap.arm(False)
    cells = np.array([7, 300, 2], dtype=np.int64)
    index = graph.tensor(b"leaf_5", cells, INT64)
    written = graph.tensor(b"cache_k_l1 (reshaped) (view)", values(4, 4), FLOAT16, index)
    assert graph.compute(written, graph.tensor(b"cache_k_l1 (view)", values(4, 4), FLOAT16)) == [False, False]
    assert graph.compute(graph.tensor(b"cache_k_l12 (view)", values(4, 4), FLOAT16, index)) == [False]
    assert tap.copies() == [(0, (3, 1, 1, 1), cells.tobytes())]


def test_a_second_source_that_is_no_index_is_left_alone(tap: Any) -> None:
    graph = Graph(tap)
    other = graph.tensor(b"leaf_6", values(3), FLOAT32)
    assert graph.compute(graph.tensor(b"cache_k_l1 (view)", values(4, 4), FLOAT16, other)) == [False]
    assert tap.copies() == []


def test_values_are_copied_only_where_the_tap_is_armed_for_them(tap: Any, library: Library) -> None:
    graph = Graph(tap)
    node = graph.tensor(b"kq_soft_max-1", values(2, 2), FLOAT32)
    assert graph.compute(node) == [False]
    tap.arm(True)
    assert graph.compute(node, node) == [True, True]
    assert library.reads == len(tap.copies()) == 2
    tap.arm(False)
    assert tap.copies() == []
    assert graph.compute(node) == [False]


@pytest.mark.parametrize(("kind", "stride"), [(FLOAT16, 2), (FLOAT32, 8)])
def test_a_node_that_is_not_plain_floats_is_not_read(tap: Any, kind: int, stride: int) -> None:
    graph = Graph(tap)
    tap.arm(True)
    node = graph.tensor(b"kq_soft_max-1", values(2, 2), kind)
    node.nb[0] = stride
    assert graph.compute(node) == [False]


def test_nodes_laid_out_otherwise_are_never_read(tap: Any, library: Library) -> None:
    graph = Graph(tap)
    tap.arm(True)
    library.shift = 8
    assert graph.compute(graph.tensor(b"kq_soft_max-1", values(2, 2), FLOAT32)) == [False]
    assert not tap.is_understood
    assert library.reads == 0


def test_many_copies_are_kept_and_forgotten(tap: Any) -> None:
    graph = Graph(tap)
    node = graph.tensor(b"kq_soft_max-12", values(64, 9), FLOAT32)
    for _ in range(20):
        tap.arm(True)
        graph.compute(*[node] * 50)
        assert [number for number, _, _ in tap.copies()] == [2] * 50


def test_a_tap_that_goes_takes_its_copies_along(nodetap: ModuleType, library: Library) -> None:
    for _ in range(50):
        tap = nodetap.NodeTap(library.name_of, library.read, b"x", [b"kq_soft_max-1"])
        tap.arm(True)
        graph = Graph(tap)
        graph.compute(graph.tensor(b"kq_soft_max-1", values(100, 100), FLOAT32))


def test_it_may_be_called_from_another_thread(tap: Any) -> None:
    graph = Graph(tap)
    tap.arm(True)
    node = graph.tensor(b"kq_soft_max-1", values(2, 2), FLOAT32)
    thread = threading.Thread(target=graph.compute, args=(node,))
    thread.start()
    thread.join()
    assert len(tap.copies()) == 1


@pytest.mark.parametrize("arguments", [(1, 2, "text", [b"a"]), (1, 2, b"a", [b"a", 3]), (1, 2, b"a", None)])
def test_names_are_bytes(nodetap: ModuleType, arguments: tuple[Any, ...]) -> None:
    with pytest.raises(TypeError):
        nodetap.NodeTap(*arguments)


class Liar(list[bytes]):
    """A list that says another length than it has."""

    def __len__(self) -> int:
        return 1


def test_names_are_counted_while_they_are_copied(nodetap: ModuleType) -> None:
    for names in (Liar([b"a"] * 6000), [b"a"] * 513):
        with pytest.raises(ValueError, match="node tap: expected at most 512 nodes, got more"):
            nodetap.NodeTap(1, 2, b"", names)
    nodetap.NodeTap(1, 2, b"", [b"a"] * 512)
