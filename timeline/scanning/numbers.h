/* Numbers, eight digits at a time.
 *
 * Each function takes the usual spellings at `*position` and returns 1, or returns 0 and leaves everything as it was: then the code
 * that goes digit by digit decides.  It reads up to 32 bytes from `*position`, so those must be readable beyond `e`, and never takes
 * a number that may continue behind `e`.
 */
#ifndef TLKIT_SCANNING_NUMBERS_H
#define TLKIT_SCANNING_NUMBERS_H

#include <stdint.h>
#include <string.h>

#if defined(__BYTE_ORDER__) && __BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__

/* How many of the eight bytes are digits before the first one that is none; `word` has '0' taken from each by exclusive or. */
static inline unsigned count_digits(uint64_t word) {
    /* A byte of more than 9 carries into its top bit or beyond, which can only spoil bytes behind it. */
    uint64_t others = ((word + 0x7676767676767676ull) | word) & 0x8080808080808080ull;
    return others ? (unsigned)__builtin_ctzll(others) / 8 : 8;
}

/* The number that the first 1 to 8 bytes of `word` spell: pairs of digits, then fours, then all. */
static inline uint64_t number_in(uint64_t word, unsigned digits) {
    word <<= 64 - 8 * digits;
    word = word * 10 + (word >> 8);
    return ((word & 0x000000FF000000FFull) * 0x000F424000000064ull +
            (word >> 16 & 0x000000FF000000FFull) * 0x0000271000000001ull) >> 32;
}

static inline uint64_t load_digits(const uint8_t *p) {
    uint64_t word;
    memcpy(&word, p, 8);
    return word ^ 0x3030303030303030ull;
}

/* Digits at `p`, and what they spell: at most 16; more of them, or a zero in front of others, count as none. */
static inline unsigned read_digits(const uint8_t *p, uint64_t *value) {
    static const uint32_t powers[] = {1, 10, 100, 1000, 10000, 100000, 1000000, 10000000, 100000000};
    uint64_t word = load_digits(p);
    unsigned digits = count_digits(word);
    if (!digits) return 0;
    *value = number_in(word, digits);
    if (digits == 8) {
        word = load_digits(p + 8);
        unsigned more = count_digits(word);
        if (more) {
            *value = *value * powers[more] + number_in(word, more);
            digits += more;
            if (more == 8 && p[16] >= '0' && p[16] <= '9') return 0;
        }
    }
    return *p == '0' && digits > 1 ? 0 : digits;
}

/* A whole number without a sign. */
static inline int take_integer(const uint8_t **position, const uint8_t *e, int64_t *value) {
    const uint8_t *p = *position;
    uint64_t number;
    unsigned digits = read_digits(p, &number);
    p += digits;
    if (!digits || p >= e || *p == '.' || *p == 'e' || *p == 'E') return 0;
    *value = (int64_t)number;
    *position = p;
    return 1;
}

/* Microseconds as nanoseconds, halves away from zero; less than `end`. */
static inline int take_time(const uint8_t **position, const uint8_t *e, int64_t end, int64_t *ns) {
    const uint8_t *p = *position;
    uint64_t number;
    unsigned digits = read_digits(p, &number);
    p += digits;
    if (!digits || p >= e || number >= (uint64_t)end) return 0;
    number *= 1000;
    if (*p == '.') {
        uint64_t word = load_digits(++p);
        unsigned decimals = count_digits(word);
        p += decimals;
        if (!decimals || decimals == 8 || p >= e) return 0;
        if (decimals < 3) word &= (1ull << 8 * decimals) - 1;
        number += number_in(word, 3) + (decimals > 3 && (word >> 24 & 0xFF) >= 5);
    }
    if (*p == 'e' || *p == 'E') return 0;
    *ns = (int64_t)number;
    *position = p;
    return 1;
}

/* Any number without a sign and an exponent. */
static inline int skip_digits(const uint8_t **position, const uint8_t *e) {
    const uint8_t *p = *position;
    unsigned digits = count_digits(load_digits(p));
    if (!digits || digits == 8) {
        uint64_t number;
        digits = read_digits(p, &number);
        if (!digits) return 0;
    } else if (*p == '0' && digits > 1) return 0;
    p += digits;
    if (p >= e) return 0;
    if (*p == '.') {
        digits = count_digits(load_digits(++p));
        p += digits;
        if (!digits || digits == 8 || p >= e) return 0;
    }
    if (*p == 'e' || *p == 'E') return 0;
    *position = p;
    return 1;
}

#else

static inline int take_integer(const uint8_t **position, const uint8_t *e, int64_t *value) {
    (void)position, (void)e, (void)value;
    return 0;
}

static inline int take_time(const uint8_t **position, const uint8_t *e, int64_t end, int64_t *ns) {
    (void)position, (void)e, (void)end, (void)ns;
    return 0;
}

static inline int skip_digits(const uint8_t **position, const uint8_t *e) {
    (void)position, (void)e;
    return 0;
}

#endif
#endif
