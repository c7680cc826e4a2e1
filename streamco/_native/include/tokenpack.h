/* Blocks of eight ids: eight ids of b bits are b whole bytes, so every block starts on a byte. See tokenpack_py.py for the bit order.
 *
 * The width is a constant in each case of the switches below, so that all shifts, offsets and masks are. Ids are read and written with
 * memcpy, because a buffer need not be aligned. Nothing here reads or writes outside a block.
 */
#ifndef STREAMCO_TOKENPACK_H
#define STREAMCO_TOKENPACK_H

#include <stddef.h>
#include <stdint.h>
#include <string.h>

#if defined(__GNUC__)
#define INLINE static inline __attribute__((always_inline))
#define UNROLL _Pragma("GCC unroll 8")
#else
#define INLINE static __forceinline
#define UNROLL
#endif

#if defined(__BYTE_ORDER__) && __BYTE_ORDER__ == __ORDER_BIG_ENDIAN__
#define LITTLE64(x) __builtin_bswap64(x)
#define NATIVE_ORDERS "@=>!"
#else
#define LITTLE64(x) (x)
#define NATIVE_ORDERS "@=<"
#endif

#define EVERY_WIDTH(X) \
    X(1) X(2) X(3) X(4) X(5) X(6) X(7) X(8) X(9) X(10) X(11) X(12) X(13) X(14) X(15) X(16) \
    X(17) X(18) X(19) X(20) X(21) X(22) X(23) X(24) X(25) X(26) X(27) X(28) X(29) X(30) X(31) X(32)

/* How many bits of an item can hold a non-negative value, by its buffer format; 0 if it isn't an integer of 2, 4 or 8 native bytes. */
static int value_bits(const char *format, ptrdiff_t itemsize) {
    if (format != NULL && *format != 0 && strchr(NATIVE_ORDERS, *format) != NULL)
        format++;
    if (format == NULL || format[0] == 0 || format[1] != 0 || !(itemsize == 2 || itemsize == 4 || itemsize == 8))
        return 0;
    if (strchr("hilq", *format) != NULL)
        return (int)(8 * itemsize - 1);
    return strchr("HILQ", *format) != NULL ? (int)(8 * itemsize) : 0;
}

/* The bytes of an item (2, 4 or 8) as an unsigned number, so a negative one becomes a large one. */
INLINE uint64_t load_item(const uint8_t *from, int itemsize) {
    uint16_t half;
    uint32_t word;
    uint64_t wide;
    switch (itemsize) {
    case 2: memcpy(&half, from, 2); return half;
    case 4: memcpy(&word, from, 4); return word;
    default: memcpy(&wide, from, 8); return wide;
    }
}

INLINE void store_item(uint8_t *to, uint64_t id, int itemsize) {
    uint16_t half = (uint16_t)id;
    uint32_t word = (uint32_t)id;
    switch (itemsize) {
    case 2: memcpy(to, &half, 2); break;
    case 4: memcpy(to, &word, 4); break;
    default: memcpy(to, &id, 8);
    }
}

/* Eight ids into bits bytes. Returns all ids or-ed together: one too large shows there, and then the bytes are worthless. */
INLINE uint64_t pack_block(const uint8_t *ids, int itemsize, unsigned bits, uint8_t *out) {
    uint64_t word = 0, seen = 0;
    unsigned fill = 0;
    UNROLL
    for (int k = 0; k < 8; k++) {
        uint64_t id = load_item(ids + k * itemsize, itemsize);
        seen |= id;
        word |= id << fill;
        fill += bits;
        if (fill >= 64) {
            word = LITTLE64(word);
            memcpy(out, &word, 8);
            out += 8;
            fill -= 64;
            word = fill ? id >> (bits - fill) : 0;
        }
    }
    word = LITTLE64(word);
    memcpy(out, &word, fill / 8);
    return seen;
}

/* Bits bytes into eight ids. Each id lies inside one 8-byte load, moved back where it would pass the end of the block. */
INLINE void unpack_block(const uint8_t *in, unsigned bits, uint8_t *ids, int itemsize) {
    const uint64_t mask = (1ULL << bits) - 1;
    const unsigned size = bits < 8 ? bits : 8;
    UNROLL
    for (unsigned k = 0; k < 8; k++) {
        unsigned start = k * bits / 8;
        if (start > bits - size)
            start = bits - size;
        uint64_t word = 0;
        memcpy(&word, in + start, size);
        store_item(ids + k * itemsize, LITTLE64(word) >> (k * bits - 8 * start) & mask, itemsize);
    }
}

static uint64_t pack_blocks(const uint8_t *ids, int itemsize, ptrdiff_t blocks, unsigned bits, uint8_t *out) {
    uint64_t seen = 0;
    switch (bits) {
#define PACK(b) \
    case b: \
        if (itemsize == 4) \
            for (; blocks > 0; blocks--, ids += 32, out += b) seen |= pack_block(ids, 4, b, out); \
        else \
            for (; blocks > 0; blocks--, ids += 64, out += b) seen |= pack_block(ids, 8, b, out); \
        break;
        EVERY_WIDTH(PACK)
#undef PACK
    }
    return seen;
}

static void unpack_blocks(const uint8_t *in, unsigned bits, ptrdiff_t blocks, uint8_t *ids, int itemsize) {
    switch (bits) {
#define UNPACK(b) \
    case b: \
        if (itemsize == 4) \
            for (; blocks > 0; blocks--, in += b, ids += 32) unpack_block(in, b, ids, 4); \
        else \
            for (; blocks > 0; blocks--, in += b, ids += 64) unpack_block(in, b, ids, 8); \
        break;
        EVERY_WIDTH(UNPACK)
#undef UNPACK
    }
}

/* Any number of items. Blocks of 16-bit items and the last, broken block go through a block beside the buffers, completed with zeros. */
static uint64_t pack_ids(const uint8_t *items, int itemsize, ptrdiff_t count, unsigned bits, uint8_t *out) {
    ptrdiff_t done = itemsize == 2 ? 0 : count / 8 * 8;
    uint64_t seen = pack_blocks(items, itemsize, done / 8, bits, out);
    for (; done < count; done += 8) {
        int part = count - done < 8 ? (int)(count - done) : 8;
        uint8_t from[64] = {0}, to[32];
        for (int k = 0; k < part; k++) store_item(from + 8 * k, load_item(items + (done + k) * itemsize, itemsize), 8);
        seen |= pack_blocks(from, 8, 1, bits, to);
        memcpy(out + done / 8 * bits, to, ((size_t)part * bits + 7) / 8);
    }
    return seen;
}

static void unpack_ids(const uint8_t *in, unsigned bits, ptrdiff_t count, uint8_t *items, int itemsize) {
    ptrdiff_t done = itemsize == 2 ? 0 : count / 8 * 8;
    unpack_blocks(in, bits, done / 8, items, itemsize);
    for (; done < count; done += 8) {
        int part = count - done < 8 ? (int)(count - done) : 8;
        uint8_t from[32] = {0}, to[64];
        memcpy(from, in + done / 8 * bits, ((size_t)part * bits + 7) / 8);
        unpack_blocks(from, bits, 1, to, 8);
        for (int k = 0; k < part; k++) store_item(items + (done + k) * itemsize, load_item(to + 8 * k, 8), itemsize);
    }
}

#endif
