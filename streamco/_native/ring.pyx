# cython: language_level=3
"""The ring of ``ring_py.py`` compiled: slots in one list, a position and a count, each operation in one piece under the GIL.

``ring_py.py`` is the specification. No foreign code runs between a check and the change that rests on it: a push only takes a reference,
a drain only moves references, and ``close`` lets go of the items after the ring is empty.
"""

from types import GenericAlias

from cpython.list cimport PyList_New
from cpython.sequence cimport PySequence_Fast_GET_ITEM, PySequence_Fast_GET_SIZE

cdef extern from *:
    """
    #define SLOT(list, index) (((PyListObject *)(list))->ob_item[index])
    /* Put a new reference to item into a slot that holds None. Slots come as a bare pointer, or each call would count a reference to them. */
    static inline void slot_fill(void *slots, Py_ssize_t index, PyObject *item) {
        Py_INCREF(item);
        SLOT(slots, index) = item;
        Py_DECREF(Py_None);
    }
    /* Move the reference of a slot into a list under construction; None takes its place. */
    static inline void slot_move(void *slots, Py_ssize_t index, PyObject *into, Py_ssize_t place) {
        SLOT(into, place) = SLOT(slots, index);
        Py_INCREF(Py_None);
        SLOT(slots, index) = Py_None;
    }
    """
    void slot_fill(void *slots, Py_ssize_t index, object item)
    void slot_move(void *slots, Py_ssize_t index, list into, Py_ssize_t place)

cdef enum:
    FULL = 0
    ACCEPTED = 1
    WAKE = 2
    FILLED = 4
    CLOSED = 8


cdef class Ring:
    cdef list _slots
    cdef Py_ssize_t _first, _count
    cdef readonly Py_ssize_t capacity, low_water
    cdef bint _armed, _starved, _finished, _closed

    __class_getitem__ = classmethod(GenericAlias)

    def __cinit__(self, Py_ssize_t capacity, low_water=None):
        if capacity < 1:
            raise ValueError(f"ring capacity: expected at least 1 item, got {capacity}")
        cdef Py_ssize_t mark = capacity // 2 if low_water is None else low_water
        if not 0 <= mark < capacity:
            raise ValueError(f"ring low_water: expected 0 to {capacity - 1} items, got {mark}")
        self.capacity = capacity
        self.low_water = mark
        self._slots = [None] * capacity
        self._armed = True

    def __len__(self):
        return self._count

    @property
    def is_closed(self):
        return self._closed

    @property
    def is_finished(self):
        return self._finished and self._count == 0

    cdef inline int _admit(self, Py_ssize_t wanted) noexcept:
        """ACCEPTED when there is room for ``wanted`` items, else the refusal."""
        if self._closed or self._finished:
            return CLOSED
        if self._count + wanted > self.capacity:
            self._starved = True
            return FULL
        return ACCEPTED

    cdef inline void _keep(self, object item) noexcept:
        cdef Py_ssize_t place = self._first + self._count
        slot_fill(<void *>self._slots, place - self.capacity if place >= self.capacity else place, item)
        self._count += 1

    cdef inline int _kept(self) noexcept:
        """The flags of a push that kept something."""
        cdef int flags = ACCEPTED
        if self._count == self.capacity:
            self._starved = True
            flags |= FILLED
        if self._armed:
            self._armed = False
            flags |= WAKE
        return flags

    def push(self, item, /):
        cdef int answer = self._admit(1)
        if answer != ACCEPTED:
            return answer
        self._keep(item)
        answer = self._kept()
        return 1 if answer == ACCEPTED else answer  # a constant costs less than a conversion, and this is the usual answer

    def push_many(self, items, /):
        if not isinstance(items, (list, tuple)):
            raise TypeError(f"ring push_many: expected a list or tuple, got {type(items).__name__}")
        cdef Py_ssize_t count = PySequence_Fast_GET_SIZE(items)
        if count > self.capacity:
            raise ValueError(f"ring push_many: expected at most {self.capacity} items, got {count}")
        cdef int answer = self._admit(count)
        if answer != ACCEPTED or count == 0:
            return answer
        cdef Py_ssize_t index
        for index in range(count):
            self._keep(<object>PySequence_Fast_GET_ITEM(items, index))
        return self._kept()

    def finish(self):
        if self._finished or self._closed:
            return 0
        self._finished = True
        if not self._armed:
            return 0
        self._armed = False
        return WAKE

    def drain(self, Py_ssize_t limit=0, /):
        if limit < 0:
            raise ValueError(f"ring drain: expected a limit of 0 (all) or more items, got {limit}")
        cdef Py_ssize_t index, present = self._count
        cdef Py_ssize_t count = limit if 0 < limit < present else present
        cdef list taken = PyList_New(count)
        if self._count != present:  # allocating may run the collector, that a finaliser, and that lets other threads push or drain
            return self.drain(limit)
        for index in range(count):
            slot_move(<void *>self._slots, self._first, taken, index)
            self._first += 1
            if self._first == self.capacity:
                self._first = 0
        self._count -= count
        self._armed = self._count == 0
        return taken

    def take_unpark(self):
        if not self._starved or self._count > self.low_water:
            return False
        self._starved = False
        return True

    def close(self):
        self._closed = True
        self.drain()
