/* Many numbers looked up in a table: what `take` of NumPy does, which first writes narrow numbers anew with eight bytes each.
 *
 * Numbers less than 0 count from the end.  One that is beyond the table counts as the first, and the result is then not 0.
 */
#ifndef TLKIT_SCANNING_GATHER_H
#define TLKIT_SCANNING_GATHER_H

#include <stddef.h>
#include <stdint.h>

#define GATHER_WITH(Number, Item) \
    static int gather_##Number##_##Item(const void *table, int64_t length, const void *numbers, size_t count, void *out) { \
        const Item *items = table; \
        const Number *number = numbers; \
        Item *found = out; \
        int is_beyond = 0; \
        for (size_t i = 0; i < count; i++) { \
            int64_t at = (int64_t)number[i]; \
            at += at < 0 ? length : 0; \
            int is_wrong = (uint64_t)at >= (uint64_t)length; \
            is_beyond |= is_wrong; \
            found[i] = items[is_wrong ? 0 : at]; \
        } \
        return is_beyond; \
    }
#define GATHER(Number) \
    GATHER_WITH(Number, uint8_t) \
    GATHER_WITH(Number, uint16_t) \
    GATHER_WITH(Number, uint32_t) \
    GATHER_WITH(Number, uint64_t)
GATHER(int8_t)
GATHER(int16_t)
GATHER(int32_t)
GATHER(int64_t)
GATHER(uint8_t)
GATHER(uint16_t)
GATHER(uint32_t)

typedef int (*Gather)(const void *table, int64_t length, const void *numbers, size_t count, void *out);

/* NULL where there is none for these. */
static Gather find_gather(int is_signed, size_t number_nbytes, size_t item_nbytes) {
#define GATHERS_OF(Number) {gather_##Number##_uint8_t, gather_##Number##_uint16_t, gather_##Number##_uint32_t, gather_##Number##_uint64_t}
    static const Gather of_signed[4][4] = {GATHERS_OF(int8_t), GATHERS_OF(int16_t), GATHERS_OF(int32_t), GATHERS_OF(int64_t)};
    static const Gather of_unsigned[3][4] = {GATHERS_OF(uint8_t), GATHERS_OF(uint16_t), GATHERS_OF(uint32_t)};
    static const int places[9] = {-1, 0, 1, -1, 2, -1, -1, -1, 3};
    int number = number_nbytes < 9 ? places[number_nbytes] : -1, item = item_nbytes < 9 ? places[item_nbytes] : -1;
    if (number < 0 || item < 0 || (!is_signed && number == 3)) return NULL;
    return is_signed ? of_signed[number][item] : of_unsigned[number][item];
}

/* Where each number stands first: out[number - low]; the places of others stay as they are.  Not 0 if one is beyond `out`. */
#define FIRST_ROWS(Number) \
    static int first_rows_##Number(const void *numbers, size_t count, int64_t low, int32_t *out, size_t length) { \
        const Number *number = numbers; \
        for (size_t i = count; i--;) { \
            uint64_t at = (uint64_t)(int64_t)number[i] - (uint64_t)low; \
            if (at >= length) return 1; \
            out[at] = (int32_t)i; \
        } \
        return 0; \
    }
FIRST_ROWS(int8_t)
FIRST_ROWS(int16_t)
FIRST_ROWS(int32_t)
FIRST_ROWS(int64_t)
FIRST_ROWS(uint8_t)
FIRST_ROWS(uint16_t)
FIRST_ROWS(uint32_t)

typedef int (*FirstRows)(const void *numbers, size_t count, int64_t low, int32_t *out, size_t length);

static FirstRows find_first_rows(int is_signed, size_t number_nbytes) {
    static const FirstRows of_signed[9] = {[1] = first_rows_int8_t, [2] = first_rows_int16_t, [4] = first_rows_int32_t, [8] = first_rows_int64_t};
    static const FirstRows of_unsigned[9] = {[1] = first_rows_uint8_t, [2] = first_rows_uint16_t, [4] = first_rows_uint32_t};
    return number_nbytes >= 9 ? NULL : is_signed ? of_signed[number_nbytes] : of_unsigned[number_nbytes];
}

/* The rows, and the numbers beside them, whose kind is chosen, one behind the other; how many these are, less than 0 if a row is beyond
 * the kinds, or its kind beyond `chosen`.  The outs have a place for each row: one that is not chosen is written over by the next. */
#define SELECT(Kind, Number) \
    static int64_t select_##Kind##_##Number(const void *kinds, size_t events, const uint8_t *chosen, size_t length, const uint32_t *rows, \
                                            const void *numbers, size_t count, uint32_t *out_rows, void *out_numbers) { \
        const Kind *kind = kinds; \
        const Number *number = numbers; \
        Number *out = out_numbers; \
        size_t found = 0; \
        for (size_t i = 0; i < count; i++) { \
            uint32_t row = rows[i]; \
            if (row >= events || kind[row] >= length) return -1; \
            out_rows[found] = row; \
            out[found] = number[i]; \
            found += chosen[kind[row]] != 0; \
        } \
        return (int64_t)found; \
    }
SELECT(uint8_t, uint32_t)
SELECT(uint8_t, uint64_t)
SELECT(uint16_t, uint32_t)
SELECT(uint16_t, uint64_t)
SELECT(uint32_t, uint32_t)
SELECT(uint32_t, uint64_t)

typedef int64_t (*Select)(const void *kinds, size_t events, const uint8_t *chosen, size_t length, const uint32_t *rows,
                          const void *numbers, size_t count, uint32_t *out_rows, void *out_numbers);

static Select find_select(size_t kind_nbytes, size_t number_nbytes) {
    static const Select of_four[5] = {[1] = select_uint8_t_uint32_t, [2] = select_uint16_t_uint32_t, [4] = select_uint32_t_uint32_t};
    static const Select of_eight[5] = {[1] = select_uint8_t_uint64_t, [2] = select_uint16_t_uint64_t, [4] = select_uint32_t_uint64_t};
    return kind_nbytes >= 5 ? NULL : number_nbytes == 4 ? of_four[kind_nbytes] : number_nbytes == 8 ? of_eight[kind_nbytes] : NULL;
}

#endif
