/* Columns in as few bytes a row as hold their numbers, where they lie: no other memory is touched, and what is left over is given back.
 */
#ifndef TLKIT_SCANNING_NARROWING_H
#define TLKIT_SCANNING_NARROWING_H

#include <stddef.h>
#include <stdint.h>
#include <string.h>

/* In fewer integers there is nothing to be saved; as in parts.py. */
#define MIN_ROWS_OF_INTEGERS (1 << 14)

/* Numbers of so many texts, or -1, which have four bytes each; how many bytes they have then. */
static size_t narrow_numbers(char *data, size_t count, uint32_t texts) {
    if (texts <= (uint32_t)INT8_MAX + 1) {
        for (size_t i = 0; i < count; i++) {
            int32_t number;
            memcpy(&number, data + 4 * i, 4);
            data[i] = (char)(int8_t)number;
        }
        return 1;
    }
    if (texts > (uint32_t)INT16_MAX + 1) return 4;
    for (size_t i = 0; i < count; i++) {
        int32_t number;
        memcpy(&number, data + 4 * i, 4);
        int16_t narrow = (int16_t)number;
        memcpy(data + 2 * i, &narrow, 2);
    }
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
    for (size_t i = 0; i < count; i++) {
        int64_t number;
        memcpy(&number, data + 8 * i, 8);
        int32_t narrow = (int32_t)number;
        memcpy(data + 4 * i, &narrow, 4);
    }
    return 4;
}

#endif
