/* Arrays that stand in args again and again, as the file has spelled them before.
 *
 * A profiler writes the shapes and types of an operator's tensors, and the grid of a kernel, with every call.  Where the bytes of an
 * array are there again that was read once in full, they are JSON, and where it ends is known: nothing of it has to be read.
 */
#ifndef TLKIT_SCANNING_ARRAYS_H
#define TLKIT_SCANNING_ARRAYS_H

#include <stdint.h>
#include <string.h>
#if defined(__SSE2__)
#include <emmintrin.h>
#endif

#define ARRAY_NBYTES 64
#define ARRAY_SLOTS 128

typedef struct {
    uint8_t text[ARRAY_NBYTES]; /* filled up with zeros */
    uint64_t length;            /* 0 for none */
    uint64_t has;               /* a bit for each byte that the text has */
} Array;

typedef struct {
    Array slots[ARRAY_SLOTS]; /* by the first bytes; the last one that came stays */
} Arrays;

/* From `p` ARRAY_NBYTES can be read, here and below. */
static inline unsigned array_slot(const uint8_t *p) {
    uint64_t words[2];
    memcpy(words, p + 1, sizeof words);
    return (unsigned)((words[0] * 0x9E3779B97F4A7C15ull ^ words[1] * 0xC2B2AE3D27D4EB4Full) >> 57);
}

/* Whether the text of an array is at `p`. */
static inline int is_array(const Array *array, const uint8_t *p) {
    if (!array->length) return 0;
#if defined(__SSE2__)
    uint64_t same = 0;
    for (int at = 0; at < ARRAY_NBYTES; at += 16)
        same |= (uint64_t)(unsigned)_mm_movemask_epi8(_mm_cmpeq_epi8(_mm_loadu_si128((const __m128i *)(p + at)),
                                                                     _mm_loadu_si128((const __m128i *)(array->text + at)))) << at;
    return !(~same & array->has);
#else
    return !memcmp(array->text, p, array->length);
#endif
}

/* Remember an array that was read; one that is too long is not worth it. */
static inline void keep_array(Array *array, const uint8_t *text, size_t length) {
    if (length > ARRAY_NBYTES) return;
    memset(array->text, 0, ARRAY_NBYTES);
    memcpy(array->text, text, length);
    array->length = length;
    array->has = length < 64 ? (1ull << length) - 1 : UINT64_MAX;
}

#endif
