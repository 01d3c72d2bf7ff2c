/* Columns in as few bytes a row as hold their numbers, where they lie: no other memory is touched, and what is left over is given back.
 */
#ifndef TLKIT_SCANNING_NARROWING_H
#define TLKIT_SCANNING_NARROWING_H

#include <stddef.h>
#include <stdint.h>
#include <string.h>

/* In fewer integers there is nothing to be saved; as in parts.py. */
#define MIN_ROWS_OF_INTEGERS (1 << 14)

/* What goes through the processor's registers at once; narrow ones are written where wide ones were read already. */
#define NARROWED_AT_ONCE 64

#define NARROW(Wide, Narrow) \
    static void narrow_to_##Narrow(char *data, size_t count) { \
        Wide wide[NARROWED_AT_ONCE]; \
        Narrow narrow[NARROWED_AT_ONCE] = {0}; \
        for (size_t i = 0; i < count; i += NARROWED_AT_ONCE) { \
            size_t some = count - i < NARROWED_AT_ONCE ? count - i : NARROWED_AT_ONCE; \
            memset(wide, 0, sizeof wide); \
            memcpy(wide, data + i * sizeof *wide, some * sizeof *wide); \
            for (size_t k = 0; k < NARROWED_AT_ONCE; k++) narrow[k] = (Narrow)wide[k]; \
            memcpy(data + i * sizeof *narrow, narrow, some * sizeof *narrow); \
        } \
    }
NARROW(int32_t, int8_t)
NARROW(int32_t, int16_t)
NARROW(int64_t, int32_t)

/* Numbers of so many texts, or -1, which have four bytes each; how many bytes they have then. */
static size_t narrow_numbers(char *data, size_t count, uint32_t texts) {
    if (texts <= (uint32_t)INT8_MAX + 1) {
        narrow_to_int8_t(data, count);
        return 1;
    }
    if (texts > (uint32_t)INT16_MAX + 1) return 4;
    narrow_to_int16_t(data, count);
    return 2;
}

/* Integers, which have eight bytes each; how many bytes they have then. */
static size_t narrow_integers(char *data, size_t count) {
    if (count < MIN_ROWS_OF_INTEGERS) return 8;
    uint64_t beyond = 0;
    for (size_t i = 0; i < count; i++) {
        uint64_t number;
        memcpy(&number, data + 8 * i, 8);
        beyond |= number + 0x80000000u; /* of those that fit, the upper half is empty now */
    }
    if (beyond >> 32) return 8;
    narrow_to_int32_t(data, count);
    return 4;
}

#endif
