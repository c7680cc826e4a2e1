/* A list as a ring's slots: each holds an item, or None where there is none. Slots come as a bare pointer, so they aren't reference-counted. */
#ifndef STREAMCO_SLOTS_H
#define STREAMCO_SLOTS_H

#include <Python.h>

#define SLOT(list, index) (((PyListObject *)(list))->ob_item[index])

/* Put a new reference to item into a slot that holds None. */
static inline void slot_fill(void *slots, Py_ssize_t index, PyObject *item) {
    Py_INCREF(item);
    SLOT(slots, index) = item;
    Py_DECREF(Py_None);
}

#endif
