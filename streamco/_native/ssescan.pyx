# cython: language_level=3
"""The scanner of ``ssescan_py.py`` compiled: two ``memchr`` calls and one new bytes object for each event."""

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from libc.string cimport memchr, memcmp


def scan_events(bytes data not None, Py_ssize_t limit):
    cdef const char *start = PyBytes_AS_STRING(data)
    cdef const char *end = start + PyBytes_GET_SIZE(data)
    cdef const char *at = start
    cdef const char *first
    cdef const char *line_feed
    cdef const char *last
    cdef const char *after
    cdef list payloads = []
    while end - at >= 7 and memcmp(at, b"data:", 5) == 0:
        first = at + 5
        if first[0] == b" ":
            first += 1
        line_feed = <const char *>memchr(first, 10, end - first)
        if line_feed == NULL:
            break
        if line_feed > first and (line_feed - 1)[0] == 13:
            last = line_feed - 1
            if end - line_feed < 3 or line_feed[1] != 13 or line_feed[2] != 10:
                break
            after = line_feed + 3
        else:
            last = line_feed
            if end - line_feed < 2 or line_feed[1] != 10:
                break
            after = line_feed + 2
        if last - at > limit or memchr(first, 13, last - first) != NULL:
            break
        payloads.append(PyBytes_FromStringAndSize(first, last - first))
        at = after
    return payloads, at - start
