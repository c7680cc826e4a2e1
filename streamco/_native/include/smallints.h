/* Converts between lists of Python ints and arrays of 32-bit ids, without a call for each int that is small enough for one digit. */
#ifndef STREAMCO_SMALLINTS_H
#define STREAMCO_SMALLINTS_H

#include <Python.h>
#include <stdint.h>

#if PY_VERSION_HEX >= 0x030C0000
#define IS_COMPACT(o) PyUnstable_Long_IsCompact((PyLongObject *)(o))
#define COMPACT_VALUE(o) PyUnstable_Long_CompactValue((PyLongObject *)(o))
#else
#define IS_COMPACT(o) (Py_SIZE(o) == 0 || Py_SIZE(o) == 1)
#define COMPACT_VALUE(o) (Py_SIZE(o) ? (Py_ssize_t)((PyLongObject *)(o))->ob_digit[0] : 0)
#endif

/* Copy ints of 0 <= value < 2**bits (bits <= 32). Returns how many come before the first item that is anything else. Runs no Python code. */
static Py_ssize_t ids_from_objects(PyObject **items, Py_ssize_t count, unsigned bits, uint32_t *ids) {
    for (Py_ssize_t index = 0; index < count; index++) {
        PyObject *item = items[index];
        long long value;
        int overflow = 0;
        if (!PyLong_Check(item))
            return index;
        value = IS_COMPACT(item) ? (long long)COMPACT_VALUE(item) : PyLong_AsLongLongAndOverflow(item, &overflow);
        if (overflow || value >> bits) /* a negative value stays negative */
            return index;
        ids[index] = (uint32_t)value;
    }
    return count;
}

/* Make an int of each id, in slots that are empty. Returns 0, or -1 with MemoryError set and the rest of the slots empty. */
static int objects_from_ids(const uint32_t *ids, Py_ssize_t count, PyObject **items) {
    for (Py_ssize_t index = 0; index < count; index++) {
        items[index] = sizeof(long) > 4 ? PyLong_FromLong((long)ids[index]) : PyLong_FromUnsignedLong(ids[index]);
        if (items[index] == NULL)
            return -1;
    }
    return 0;
}

#endif
