# cython: language_level=3
"""The ring of ``pacedring_py.py`` compiled: references in one list, weights and the timeline as C numbers.

``pacedring_py.py`` is the specification. Objects are made before a slot is looked at, because making them may run the collector and so a
finaliser. From there on each operation is one piece under the GIL.
"""

from types import GenericAlias

from cpython.mem cimport PyMem_Free, PyMem_Malloc
from libc.math cimport INFINITY

cdef extern from *:
    """
    #define SLOT(list, index) (((PyListObject *)(list))->ob_item[index])
    /* Put a new reference to item into a slot that holds None. Slots come as a bare pointer: no references to them are counted. */
    static inline void slot_fill(void *slots, Py_ssize_t index, PyObject *item) {
        Py_INCREF(item);
        SLOT(slots, index) = item;
        Py_DECREF(Py_None);
    }
    /* Swap the reference of a slot with one that holds None. */
    static inline void slot_move(void *slots, Py_ssize_t index, void *into, Py_ssize_t place) {
        PyObject *item = SLOT(slots, index);
        SLOT(slots, index) = SLOT(into, place);
        SLOT(into, place) = item;
    }
    """
    void slot_fill(void *slots, Py_ssize_t index, object item)
    void slot_move(void *slots, Py_ssize_t index, void *into, Py_ssize_t place)

cdef enum:
    FEWEST_SLOTS = 16
    MAX_WEIGHT = 2147483647


cdef class PacedRing:
    cdef list _slots  # a (source, item) each, None where there is none
    cdef int *_weights
    cdef Py_ssize_t _head, _count, _mask  # the number of slots is a power of 2, and the mask one less
    cdef readonly double period, min_gap
    cdef readonly long long buffered
    cdef double _first, _last
    cdef long long _released
    cdef int _last_weight
    cdef bint _has_begun

    __class_getitem__ = classmethod(GenericAlias)

    def __cinit__(self, double period, double min_gap):
        if not 0.0 < period < INFINITY:
            raise ValueError(f"paced ring period: expected more than 0 and finitely many seconds, got {period}")
        if not 0.0 <= min_gap <= period:
            raise ValueError(f"paced ring min_gap: expected 0 to {period} seconds, got {min_gap}")
        self.period = period
        self.min_gap = min_gap
        self._mask = -1
        self._grow()

    def __dealloc__(self):
        PyMem_Free(self._weights)

    def __len__(self):
        return self._count

    cdef int _grow(self) except -1:
        """Double the number of slots if all are taken."""
        cdef Py_ssize_t index, old, size = max(2 * (self._mask + 1), <Py_ssize_t>FEWEST_SLOTS)
        cdef list slots = [None] * size
        cdef int *weights
        if self._count <= self._mask or size <= self._mask + 1:  # a finaliser has made room, or more slots, while the list was made
            return 0
        weights = <int *>PyMem_Malloc(size * sizeof(int))
        if weights == NULL:
            raise MemoryError
        for index in range(self._count):
            old = (self._head + index) & self._mask
            weights[index] = self._weights[old]
            slot_move(<void *>self._slots, old, <void *>slots, index)
        PyMem_Free(self._weights)
        self._slots, self._weights = slots, weights
        self._head, self._mask = 0, size - 1
        return 0

    def push(self, Py_ssize_t weight, str source, item, double now, /):
        if not 0 <= weight <= MAX_WEIGHT:
            raise ValueError(f"paced ring weight: expected 0 to {MAX_WEIGHT} tokens, got {weight}")
        cdef tuple slot = (source, item)
        cdef double earliest
        while self._count > self._mask:
            self._grow()
        if weight and not self.buffered:
            if not self._has_begun:
                self._has_begun = True
                self._first = self._last = now
            else:
                earliest = now - self.min_gap * self._last_weight
                if earliest > self._last:
                    self._last = earliest
        cdef Py_ssize_t place = (self._head + self._count) & self._mask
        self._weights[place] = <int>weight
        slot_fill(<void *>self._slots, place, slot)
        self._count += 1
        self.buffered += weight

    cdef inline double _due(self) noexcept:
        """Return when the oldest item is due; there must be one."""
        if not self._has_begun or self._weights[self._head] == 0:
            return self._last
        cdef double on_time = self._first + self._released * self.period
        cdef double after_last = self._last + self.min_gap * self._last_weight
        return after_last if after_last > on_time else on_time

    def next_due(self):
        return self._due() if self._count else None

    cdef int _take(self, list into) except -1:
        """Move the oldest item to the end of a list."""
        into.append(None)
        slot_move(<void *>self._slots, self._head, <void *>into, len(into) - 1)
        self._head = (self._head + 1) & self._mask
        self._count -= 1
        return 0

    def release(self, double now, /):
        cdef list released = []
        cdef double due
        cdef int weight
        while self._count:
            due = self._due()
            if not due <= now:
                break
            weight = self._weights[self._head]
            self._take(released)
            if weight:
                self._last, self._last_weight = due, weight
                self._released += weight
                self.buffered -= weight
        return released

    def flush(self):
        cdef list released = []
        while self._count:
            self._take(released)
        self._released += self.buffered
        self.buffered = 0
        return released
