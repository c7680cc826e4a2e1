/* Loops over a row of float32 logits: the highest, the sum of exponentials, the best k. See topk_py.py for what they mean.
 *
 * NaN and -inf are never chosen and weigh nothing; +inf counts as FLT_MAX. Each loop works on lanes that don't depend on one another, so
 * that the compiler may use whatever vectors there are; on x86-64 with glibc each is compiled for AVX-512 and AVX2 too, and the loader
 * picks one.
 */
#ifndef STREAMCO_TOPK_H
#define STREAMCO_TOPK_H

#include <float.h>
#include <math.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#if defined(__GNUC__)
typedef float row_float __attribute__((aligned(1), may_alias)); /* a row need not be aligned */
#define INLINE static inline __attribute__((always_inline))
#else
typedef float row_float;
#define INLINE static __forceinline
#endif

/* A resolver runs before a sanitizer is ready, so sanitized builds have one version only. */
#if defined(__GNUC__) && !defined(__clang__) && defined(__x86_64__) && defined(__GLIBC__) && !defined(STREAMCO_SANITIZE)
#define VERSIONS __attribute__((target_clones("avx512f", "avx2", "default")))
#else
#define VERSIONS
#endif

enum { LANES = 32, STRIDE = 4096 };

typedef struct {
    float logit;
    int32_t id;
} Choice;

/* Is this buffer format a float32 in native order? */
static int is_float32(const char *format) {
#if defined(__BYTE_ORDER__) && __BYTE_ORDER__ == __ORDER_BIG_ENDIAN__
    const char *orders = "@=>!";
#else
    const char *orders = "@=<";
#endif
    if (*format != 0 && strchr(orders, *format) != NULL)
        format++;
    return format[0] == 'f' && format[1] == 0;
}

INLINE float clamped(float x) { return x > FLT_MAX ? FLT_MAX : x; }

/* The highest logit; -inf if there is none. */
VERSIONS static float highest_logit(const row_float *row, ptrdiff_t count) {
    float lanes[LANES], best = -INFINITY;
    ptrdiff_t at = 0;
    for (int lane = 0; lane < LANES; lane++) lanes[lane] = -INFINITY;
    for (; at + LANES <= count; at += LANES)
        for (int lane = 0; lane < LANES; lane++) lanes[lane] = row[at + lane] > lanes[lane] ? row[at + lane] : lanes[lane];
    for (int lane = 0; lane < LANES; lane++) best = lanes[lane] > best ? lanes[lane] : best;
    for (; at < count; at++) best = row[at] > best ? row[at] : best;
    return clamped(best);
}

/* Index of the first logit that is as high as this; count if there is none. */
VERSIONS static ptrdiff_t first_as_high(const row_float *row, ptrdiff_t count, float highest) {
    ptrdiff_t at = 0;
    for (; at + LANES <= count; at += LANES) {
        int any = 0;
        for (int lane = 0; lane < LANES; lane++) any |= row[at + lane] >= highest;
        if (any)
            break;
    }
    while (at < count && !(row[at] >= highest)) at++;
    return at;
}

/* exp(x) for x <= 0 to 2 units in the last place; 0 below -87 and for NaN. Cephes' polynomial; the power of two goes in by its bits. */
INLINE float exp_negative(float x) {
    float shifted = x * 1.44269504f + 12582912.0f; /* 1.5 * 2**23: the nearest whole number of powers is now in the lowest bits */
    float whole = shifted - 12582912.0f;
    float rest = x - whole * 0.693359375f + whole * 2.12194440e-4f;
    float value = 1.9875691500e-4f;
    uint32_t bits, power;
    value = value * rest + 1.3981999507e-3f;
    value = value * rest + 8.3334519073e-3f;
    value = value * rest + 4.1665795894e-2f;
    value = value * rest + 1.6666665459e-1f;
    value = value * rest + 5.0000001201e-1f;
    value = value * rest * rest + rest + 1.0f;
    memcpy(&power, &shifted, 4);
    memcpy(&bits, &value, 4);
    bits += power << 23;
    memcpy(&value, &bits, 4);
    return x >= -87.0f ? value : 0.0f;
}

/* The sum over a row of exp((x - highest) * scale); the terms themselves go to out where it is not NULL. */
VERSIONS static double sum_weights(const row_float *row, ptrdiff_t count, float highest, float scale, row_float *out) {
    double total = 0.0;
    for (ptrdiff_t start = 0; start < count; start += STRIDE) { /* short sums in float, their sum in double */
        ptrdiff_t end = count - start < STRIDE ? count : start + STRIDE, at = start;
        float lanes[LANES] = {0};
        if (out == NULL)
            for (; at + LANES <= end; at += LANES)
                for (int lane = 0; lane < LANES; lane++) lanes[lane] += exp_negative((clamped(row[at + lane]) - highest) * scale);
        else
            for (; at + LANES <= end; at += LANES)
                for (int lane = 0; lane < LANES; lane++) {
                    float term = exp_negative((clamped(row[at + lane]) - highest) * scale);
                    lanes[lane] += term;
                    out[at + lane] = term;
                }
        for (; at < end; at++) {
            float term = exp_negative((clamped(row[at]) - highest) * scale);
            lanes[0] += term;
            if (out != NULL)
                out[at] = term;
        }
        for (int lane = 0; lane < LANES; lane++) total += lanes[lane];
    }
    return total;
}

VERSIONS static void multiply(row_float *row, ptrdiff_t count, float factor) {
    for (ptrdiff_t at = 0; at < count; at++) row[at] *= factor;
}

/* Is a worse than b: lower, or as high with a higher id? */
INLINE int is_worse(Choice a, Choice b) { return a.logit < b.logit || (a.logit == b.logit && a.id > b.id); }

/* Put a choice at the root of a heap whose root is the worst, and let it sink. */
static void sink(Choice *heap, ptrdiff_t count, Choice choice) {
    ptrdiff_t at = 0, child;
    while ((child = 2 * at + 1) < count) {
        if (child + 1 < count && is_worse(heap[child + 1], heap[child]))
            child++;
        if (!is_worse(heap[child], choice))
            break;
        heap[at] = heap[child];
        at = child;
    }
    heap[at] = choice;
}

/* Does anything in these lanes beat the worst that is kept? Mostly not, so this is where the time goes. */
INLINE int any_above(const row_float *row, float worst) {
    int any = 0;
    for (int lane = 0; lane < LANES; lane++) any |= row[lane] > worst;
    return any;
}

/* Put the best room choices of a row into kept, best first, equal ones by id; return how many there are. */
VERSIONS static ptrdiff_t best_choices(const row_float *row, ptrdiff_t count, Choice *kept, ptrdiff_t room) {
    const Choice nothing = {-INFINITY, INT32_MAX};
    ptrdiff_t found = 0;
    for (ptrdiff_t at = 0; at < room; at++) kept[at] = nothing;
    for (ptrdiff_t start = 0; start < count; start += LANES) {
        ptrdiff_t end = count - start < LANES ? count : start + LANES;
        if (end - start == LANES && !any_above(row + start, kept[0].logit))
            continue;
        for (ptrdiff_t at = start; at < end; at++) {
            Choice choice = {clamped(row[at]), (int32_t)at};
            if (choice.logit > kept[0].logit) {
                found += kept[0].logit == -INFINITY;
                sink(kept, room, choice);
            }
        }
    }
    for (ptrdiff_t last = room - 1; last > 0; last--) { /* the worst goes to the end, again and again */
        Choice worst = kept[0], moved = kept[last];
        sink(kept, last, moved);
        kept[last] = worst;
    }
    return found;
}

/* Draw from the best choices of a row. is_all: no others may be drawn; else total is the weight of all that may, and -1 asks for more. */
static ptrdiff_t draw_choice(const Choice *best, ptrdiff_t found, int is_all, double total, double temperature,
                             double top_p, double min_p, double u) {
    double share = 0.0, drawn = 0.0;
    ptrdiff_t kept = 0, at = 0;
    if (is_all)
        for (total = 0.0; at < found; at++) total += exp(((double)best[at].logit - best[0].logit) / temperature);
    for (; kept < found; kept++) {
        double weight = exp(((double)best[kept].logit - best[0].logit) / temperature);
        if (kept > 0 && (weight < min_p || (top_p < 1.0 && share >= top_p * total)))
            break;
        share += weight;
    }
    if (kept == found && !is_all) { /* nothing was cut: the share is known only where nothing will be */
        if (top_p < 1.0 || min_p > 0.0)
            return -1;
        share = total;
    }
    for (at = 0; at < kept; at++) {
        drawn += exp(((double)best[at].logit - best[0].logit) / temperature);
        if (drawn > u * share)
            return at;
    }
    return kept == found && !is_all ? -1 : kept - 1;
}

#endif
