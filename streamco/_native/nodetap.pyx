# cython: language_level=3
"""The compiled version of ``nodetap_py.py``. The callback doesn't take the GIL, calls no Python code and can't raise.

The gain was measured on two cores on 2026-11-29, with SmolLM2 and four layers whose attention is read (12 interleaved pairs). With
the twin, a token takes 1.13 times as much processor time (1.07 to 1.18), or 1.09 times (1.03 to 1.14) while nothing is read.
"""

from cpython.bytes cimport PyBytes_FromStringAndSize
from libc.stdint cimport int32_t, int64_t, uintptr_t
from libc.stdlib cimport free, malloc
from libc.string cimport strcmp, strlen, strncmp, strncpy

cdef extern from "stdbool.h":
    ctypedef bint c_bool "_Bool"

cdef enum:
    INT64 = 27
    FLOAT32 = 0
    NAME = 64
    MOST_NODES = 512
    MOST_COPIES = 4096

cdef struct Tensor:
    int type
    void *buffer
    int64_t ne[4]
    size_t nb[4]
    int op
    int32_t op_params[16]
    int32_t flags
    Tensor *src[10]
    void *view_src
    size_t view_offs
    void *data
    char name[NAME]

ctypedef const char *(*NameOf)(const Tensor *) noexcept nogil
ctypedef void (*Read)(const Tensor *, void *, size_t, size_t) noexcept nogil

cdef struct Copy:
    int number
    int64_t ne[4]
    size_t size
    char *bytes

cdef struct State:
    NameOf name_of
    Read read
    char indexed[NAME]
    char wanted[MOST_NODES][NAME]
    int nodes
    bint is_armed
    bint is_misread
    bint is_out_of_memory
    Copy copies[MOST_COPIES]
    int count


cdef void keep(State *state, int number, Tensor *tensor, size_t width) noexcept nogil:
    cdef size_t size = <size_t>(tensor.ne[0] * tensor.ne[1] * tensor.ne[2] * tensor.ne[3]) * width
    cdef char *data = <char *>malloc(size + 1) if state.count < MOST_COPIES else NULL
    if data == NULL:
        state.is_out_of_memory = True
        return
    state.read(tensor, data, 0, size)
    cdef Copy *copy = &state.copies[state.count]
    copy.number = number
    copy.ne = tensor.ne
    copy.size = size
    copy.bytes = data
    state.count += 1


cdef int number_of(const State *state, const char *name) noexcept nogil:
    cdef int node
    for node in range(state.nodes):
        if strcmp(state.wanted[node], name) == 0:
            return node + 1
    return 0


cdef c_bool called(Tensor *tensor, c_bool ask, void *data) noexcept nogil:
    cdef State *state = <State *>data
    if state.name_of(tensor) != tensor.name:
        state.is_misread = True
        return False
    if not ask:
        keep(state, number_of(state, tensor.name), tensor, 4)
        return True
    if strncmp(tensor.name, state.indexed, strlen(state.indexed)) == 0 and tensor.src[1] != NULL and tensor.src[1].type == INT64:
        keep(state, 0, tensor.src[1], 8)
    return state.is_armed and number_of(state, tensor.name) != 0 and tensor.type == FLOAT32 and tensor.nb[0] == 4


cdef class NodeTap:
    cdef State *_state
    cdef readonly uintptr_t callback, state

    def __cinit__(self, uintptr_t name_of, uintptr_t read, bytes indexed, wanted):
        cdef int node
        cdef bytes name
        self._state = <State *>malloc(sizeof(State))
        if self._state == NULL:
            raise MemoryError
        self._state.name_of = <NameOf>name_of
        self._state.read = <Read>read
        self._state.is_armed = self._state.is_misread = self._state.is_out_of_memory = False
        self._state.nodes = self._state.count = 0
        strncpy(self._state.indexed, indexed, NAME - 1)
        self._state.indexed[NAME - 1] = 0
        for name in wanted:  # counted here, because a sequence may report a wrong length
            node = self._state.nodes
            if node == MOST_NODES:
                raise ValueError(f"node tap: expected at most {MOST_NODES} nodes, got more")
            strncpy(self._state.wanted[node], name, NAME - 1)
            self._state.wanted[node][NAME - 1] = 0
            self._state.nodes += 1
        self.callback = <uintptr_t>called
        self.state = <uintptr_t>self._state

    def __dealloc__(self):
        if self._state != NULL:
            self._forget()
            free(self._state)

    cdef void _forget(self) noexcept:
        while self._state.count:
            self._state.count -= 1
            free(self._state.copies[self._state.count].bytes)

    @property
    def is_understood(self):
        return not self._state.is_misread

    def arm(self, bint values, /):
        self._forget()
        self._state.is_armed = values
        self._state.is_out_of_memory = False

    def copies(self):
        if self._state.is_out_of_memory:
            raise MemoryError("node tap: expected memory for what the nodes hold, got none")
        found = []
        cdef int at
        cdef Copy *copy
        for at in range(self._state.count):
            copy = &self._state.copies[at]
            shape = (copy.ne[0], copy.ne[1], copy.ne[2], copy.ne[3])
            found.append((copy.number, shape, PyBytes_FromStringAndSize(copy.bytes, copy.size)))
        return found
