/* One pass over the JSON of trace events, into columns.
 *
 * Only what is beyond doubt is taken here: an event that is not exactly as the format has it, or holds anything unusual (a
 * time in quotes, a key twice, bad UTF-8), is left to the Python code, which sees only those.  So both implementations agree
 * by construction: whatever this one accepts, the other reads the same.
 *
 * The GIL is released while scanning.  The buffer has to be readable PADDING bytes beyond `end`.
 */
#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <stdint.h>
#include <string.h>
#include <unistd.h>
#if defined(__SSE2__)
#include <emmintrin.h>
#endif
#include "numbers.h"
#include "steps.h"
#include "arrays.h"
#include "narrowing.h"
#include "gather.h"

#define PADDING 32
#define MAX_KEYS 32
#define KEY_SLOTS 64
#define MAX_DEPTH 512
#define MAX_US 9000000000000000 /* more does not fit into nanoseconds */
/* Steps are learned until there were so many keys that none has led to. */
#define MAX_SURPRISES 10000
#define SURPRISES_PER_ROW 4

enum { MORE = 0, ODD = 1, CLOSED = 2, STOPPED = 3, TAKEN = 4, NO_MEMORY = 5 };
enum { KIND_INTEGER = 0, KIND_TEXT = 1 };

/* Growing memory. */

typedef struct {
    char *data;
    size_t used, room;
} Growing;

static int grow(Growing *g, size_t more) {
    if (g->used + more <= g->room) return 0;
    size_t room = g->room ? g->room + g->room / 2 : 4096;
    if (room < g->used + more) room = g->used + more;
    char *data = realloc(g->data, room);
    if (!data) return -1;
    g->data = data;
    g->room = room;
    return 0;
}

static int append(Growing *g, const void *data, size_t size) {
    if (!size) return 0;
    if (grow(g, size) < 0) return -1;
    memcpy(g->data + g->used, data, size);
    g->used += size;
    return 0;
}

/* Texts that are kept once each, numbered in the order in which they come.  Behind each, in `text` and where it is looked for, so
 * many bytes can be read. */
#define WORD_NBYTES 8
#define NEAR_SLOTS 64

typedef struct {
    Growing text, ends; /* ends: int64, where each text ends */
    uint32_t *slots;    /* number + 1, 0 for a free slot */
    uint64_t *hashes;
    uint32_t count, mask, room;
    uint32_t last; /* the number that was asked for last */
    uint32_t near[NEAR_SLOTS]; /* number + 1 of the text that was asked for last of those with such a begin and end */
} Texts;

static inline uint64_t load_word(const uint8_t *p) {
    uint64_t word;
    memcpy(&word, p, 8);
    return word;
}

/* The first `n` < 8 bytes of a word that can be read in full. */
static inline uint64_t load_some(const uint8_t *p, size_t n) {
#if defined(__BYTE_ORDER__) && __BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__
    return load_word(p) & ((1ull << 8 * n) - 1);
#else
    uint64_t word = 0;
    memcpy(&word, p, n);
    return word;
#endif
}

static inline uint64_t hash_of(const uint8_t *p, size_t n, int tag) {
    uint64_t h = 0x9E3779B97F4A7C15ull ^ n ^ (uint64_t)tag << 32, g = 0xC2B2AE3D27D4EB4Full;
    for (; n >= 16; p += 16, n -= 16) { /* two words at a time, neither of which waits for the other */
        h = (h ^ load_word(p)) * 0xFF51AFD7ED558CCDull;
        g = (g ^ load_word(p + 8)) * 0xC4CEB9FE1A85EC53ull;
        h ^= h >> 32;
        g ^= g >> 32;
    }
    if (n >= 8) {
        g = (g ^ load_word(p)) * 0xC4CEB9FE1A85EC53ull;
        g ^= g >> 32;
        p += 8;
        n -= 8;
    }
    h = (h ^ load_some(p, n)) * 0xC4CEB9FE1A85EC53ull ^ g;
    return h ^ (h >> 29);
}

/* One of NEAR_SLOTS by the begin and the end of a text: less than a hash of a name of a hundred bytes takes. */
static inline unsigned near_slot(const uint8_t *p, size_t n) {
    uint64_t first = n < 8 ? load_some(p, n) : load_word(p), last = n < 8 ? 0 : load_word(p + n - 8);
    return (unsigned)(((first ^ n) * 0x9E3779B97F4A7C15ull ^ last * 0xC2B2AE3D27D4EB4Full) >> 58);
}

/* Whether two texts of one length are the same. */
static inline int is_same(const uint8_t *a, const uint8_t *b, size_t n) {
    if (n < 8) return load_some(a, n) == load_some(b, n);
    if (n > 32) return !memcmp(a, b, n);
    for (size_t i = 0; i + 8 < n; i += 8)
        if (load_word(a + i) != load_word(b + i)) return 0;
    return load_word(a + n - 8) == load_word(b + n - 8);
}

static int is_utf8(const uint8_t *p, size_t n) {
    const uint8_t *e = p + n;
    while (p < e) {
        uint8_t c = *p;
        size_t length;
        if (c < 0x80) {
            p++;
            continue;
        }
        if (c >= 0xC2 && c <= 0xDF) length = 2;
        else if (c >= 0xE0 && c <= 0xEF) length = 3;
        else if (c >= 0xF0 && c <= 0xF4) length = 4;
        else return 0;
        if ((size_t)(e - p) < length) return 0;
        for (size_t i = 1; i < length; i++)
            if ((p[i] & 0xC0) != 0x80) return 0;
        if (c == 0xE0 && p[1] < 0xA0) return 0;
        if (c == 0xED && p[1] > 0x9F) return 0;
        if (c == 0xF0 && p[1] < 0x90) return 0;
        if (c == 0xF4 && p[1] > 0x8F) return 0;
        p += length;
    }
    return 1;
}

static int64_t text_start(const Texts *t, uint32_t number) {
    return number ? ((const int64_t *)t->ends.data)[number - 1] : 0;
}

static int widen(Texts *t) {
    uint32_t room = t->room ? t->room * 2 : 256;
    uint32_t *slots = calloc(room, sizeof *slots);
    uint64_t *hashes = realloc(t->hashes, room * sizeof *hashes);
    if (hashes) t->hashes = hashes;
    if (!slots || !hashes) {
        free(slots);
        return -1;
    }
    for (uint32_t i = 0; i < t->count; i++) {
        uint32_t at = (uint32_t)t->hashes[i] & (room - 1);
        while (slots[at]) at = (at + 1) & (room - 1);
        slots[at] = i + 1;
    }
    free(t->slots);
    t->slots = slots;
    t->room = room;
    t->mask = room - 1;
    return 0;
}

/* Whether a text is `tag`, unless that is 0, and what follows it. */
static inline int is_text(const Texts *t, uint32_t number, const uint8_t *p, size_t n, int tag) {
    int64_t start = text_start(t, number), end = ((const int64_t *)t->ends.data)[number];
    if ((size_t)(end - start) != n + (tag != 0)) return 0;
    const uint8_t *text = (const uint8_t *)t->text.data + start;
    if (tag && *text++ != tag) return 0;
    return is_same(text, p, n);
}

/* The number of a text, with `tag` in front unless that is 0; -1 if it is new and no UTF-8, -2 without memory. */
static int64_t number_of(Texts *t, const uint8_t *p, size_t n, int tag) {
    if (t->last < t->count && is_text(t, t->last, p, n, tag)) return t->last; /* often the same as before */
    uint32_t *near = &t->near[near_slot(p, n)];
    if (*near && is_text(t, *near - 1, p, n, tag)) return t->last = *near - 1;
    uint64_t hash = hash_of(p, n, tag);
    if (!t->slots && widen(t) < 0) return -2;
    uint32_t at = (uint32_t)hash & t->mask;
    while (t->slots[at]) {
        uint32_t number = t->slots[at] - 1;
        if (t->hashes[number] == hash && is_text(t, number, p, n, tag)) {
            *near = number + 1;
            return t->last = number;
        }
        at = (at + 1) & t->mask;
    }
    if (!is_utf8(p, n)) return -1;
    if (t->count >= INT32_MAX - 1) return -2;
    char first = (char)tag;
    if (grow(&t->text, n + 1 + WORD_NBYTES) < 0) return -2;
    append(&t->text, &first, tag != 0);
    append(&t->text, p, n);
    int64_t end = (int64_t)t->text.used;
    if (append(&t->ends, &end, sizeof end) < 0) return -2;
    t->hashes[t->count] = hash;
    *near = t->slots[at] = ++t->count;
    if (t->count * 2 > t->room && widen(t) < 0) return -2;
    return t->count - 1;
}

static void free_texts(Texts *t) {
    free(t->text.data);
    free(t->ends.data);
    free(t->slots);
    free(t->hashes);
    memset(t, 0, sizeof *t);
}

/* Columns. */

enum { PHASE, NAME, CATEGORY, PROCESS, THREAD, ID, START, DURATION, ARGS_START, ARGS_NBYTES, COLUMNS };
static const char *const COLUMN_NAMES[COLUMNS] = {"phase", "name", "category", "process", "thread",
                                                  "id", "start", "duration", "args_start", "args_nbytes"};
static const size_t COLUMN_NBYTES[COLUMNS] = {1, 4, 4, 4, 4, 4, 8, 8, 8, 4};

typedef struct {
    char name[64];
    size_t length;
    int kind;
    Growing rows, values; /* uint32 rows; int64 values, or int32 numbers of texts */
    uint32_t count, room; /* of both */
    Texts texts;
} Key;

typedef struct {
    PyObject_HEAD
    Growing columns[COLUMNS];
    Texts texts[ID + 1]; /* for NAME, CATEGORY, PROCESS, THREAD and ID */
    Key keys[MAX_KEYS];
    int key_count, with_ids;
    uint64_t text_keys; /* a bit a key of KIND_TEXT */
    int8_t first_of[KEY_SLOTS], next_of[MAX_KEYS]; /* keys of a slot, -1 at the end */
    uint32_t rows, room; /* room: of the columns */
    Growing scratch;
    Steps steps;
    Arrays arrays;
    uint64_t surprises; /* keys that no step has led to */
} Scanner;

/* Tells most keys from each other; `p` has at least one byte. */
static inline unsigned slot_of(const uint8_t *p, size_t length) {
    return ((unsigned)length * 7 + p[0] * 3u + p[length - 1]) % KEY_SLOTS;
}

/* A piece of the buffer; for strings without the quotes. */
typedef struct {
    const uint8_t *start, *end;
    int is_string, escaped;
} Slice;

static const uint8_t *skip_spaces(const uint8_t *p, const uint8_t *e) {
#if defined(__SSE2__)
    while (p < e) {
        __m128i bytes = _mm_loadu_si128((const __m128i *)p);
        __m128i spaces = _mm_or_si128(_mm_cmpeq_epi8(bytes, _mm_set1_epi8(' ')), _mm_cmpeq_epi8(bytes, _mm_set1_epi8('\n')));
        spaces = _mm_or_si128(spaces, _mm_cmpeq_epi8(bytes, _mm_set1_epi8('\t')));
        spaces = _mm_or_si128(spaces, _mm_cmpeq_epi8(bytes, _mm_set1_epi8('\r')));
        unsigned others = ~(unsigned)_mm_movemask_epi8(spaces) & 0xFFFF;
        if (others) {
            p += __builtin_ctz(others);
            break;
        }
        p += 16;
    }
    return p < e ? p : e;
#else
    while (p < e && (*p == ' ' || *p == '\n' || *p == '\t' || *p == '\r')) p++;
    return p;
#endif
}

/* Mostly there is none, or one. */
static inline const uint8_t *skip_space(const uint8_t *p, const uint8_t *e) {
    if (p < e && *p > ' ') return p;
    if (p + 1 < e && *p == ' ' && p[1] > ' ') return p + 1;
    return skip_spaces(p, e);
}

static int hex_value(uint8_t c) {
    if (c >= '0' && c <= '9') return c - '0';
    if (c >= 'a' && c <= 'f') return c - 'a' + 10;
    if (c >= 'A' && c <= 'F') return c - 'A' + 10;
    return -1;
}

static int find_far_quote(const uint8_t **position, const uint8_t *e, int *escaped) {
    const uint8_t *p = *position;
    for (;;) {
#if defined(__SSE2__)
        while (p < e) {
            __m128i bytes = _mm_loadu_si128((const __m128i *)p);
            __m128i hits = _mm_or_si128(_mm_cmpeq_epi8(bytes, _mm_set1_epi8('"')), _mm_cmpeq_epi8(bytes, _mm_set1_epi8('\\')));
            hits = _mm_or_si128(hits, _mm_cmpeq_epi8(_mm_min_epu8(bytes, _mm_set1_epi8(0x1F)), bytes));
            int mask = _mm_movemask_epi8(hits);
            if (mask) {
                p += __builtin_ctz((unsigned)mask);
                break;
            }
            p += 16;
        }
#else
        while (p < e && *p != '"' && *p != '\\' && *p >= 0x20) p++;
#endif
        if (p >= e) return MORE;
        if (*p == '"') {
            *position = p;
            return TAKEN;
        }
        if (*p != '\\') return ODD;
        *escaped = 1;
        if (p + 1 >= e) return MORE;
        switch (p[1]) {
        case '"': case '\\': case '/': case 'b': case 'f': case 'n': case 'r': case 't':
            p += 2;
            break;
        case 'u': {
            if (p + 5 >= e) return MORE;
            int first = hex_value(p[2]), second = hex_value(p[3]);
            if (first < 0 || second < 0 || hex_value(p[4]) < 0 || hex_value(p[5]) < 0) return ODD;
            if (first == 13 && second >= 8) { /* surrogates come in pairs */
                if (p + 11 >= e) return MORE;
                if (second >= 12 || p[6] != '\\' || p[7] != 'u' || hex_value(p[8]) != 13 || hex_value(p[9]) < 12 ||
                    hex_value(p[10]) < 0 || hex_value(p[11]) < 0)
                    return ODD;
                p += 6;
            }
            p += 6;
            break;
        }
        default:
            return ODD;
        }
    }
}

/* From behind the opening quote to the closing one, which mostly is near. */
static inline int find_quote(const uint8_t **position, const uint8_t *e, int *escaped) {
#if defined(__SSE2__)
    const uint8_t *p = *position;
    __m128i bytes = _mm_loadu_si128((const __m128i *)p);
    __m128i hits = _mm_or_si128(_mm_cmpeq_epi8(bytes, _mm_set1_epi8('"')), _mm_cmpeq_epi8(bytes, _mm_set1_epi8('\\')));
    hits = _mm_or_si128(hits, _mm_cmpeq_epi8(_mm_min_epu8(bytes, _mm_set1_epi8(0x1F)), bytes));
    int mask = _mm_movemask_epi8(hits);
    if (mask) {
        p += __builtin_ctz((unsigned)mask);
        if (*p == '"' && p < e) {
            *position = p;
            return TAKEN;
        }
    }
#endif
    return find_far_quote(position, e, escaped);
}

static int skip_number(const uint8_t **position, const uint8_t *e) {
    const uint8_t *p = *position;
    if (*p == '-') p++;
    if (p >= e) return MORE;
    if (*p == '0') p++;
    else if (*p >= '1' && *p <= '9') while (p < e && *p >= '0' && *p <= '9') p++;
    else return ODD;
    if (p < e && *p == '.') {
        const uint8_t *digits = ++p;
        while (p < e && *p >= '0' && *p <= '9') p++;
        if (p < e && p == digits) return ODD;
    }
    if (p < e && (*p == 'e' || *p == 'E')) {
        p++;
        if (p < e && (*p == '+' || *p == '-')) p++;
        const uint8_t *digits = p;
        while (p < e && *p >= '0' && *p <= '9') p++;
        if (p < e && p == digits) return ODD;
    }
    if (p >= e) return MORE;
    *position = p;
    return TAKEN;
}

static int skip_word(const uint8_t **position, const uint8_t *e, const char *word, size_t length) {
    if ((size_t)(e - *position) < length) return MORE;
    if (memcmp(*position, word, length)) return ODD;
    *position += length;
    return TAKEN;
}

/* Any value; checks that it is JSON. */
static int skip_value(const uint8_t **position, const uint8_t *e) {
    const uint8_t *p = *position;
    uint64_t levels[MAX_DEPTH / 64 + 1]; /* a bit a level: whether it is an object */
    int depth = 0, status, escaped, is_object = 0;
#define PUSH(object) (levels[depth / 64] = (levels[depth / 64] & ~(1ull << depth % 64)) | (uint64_t)(object) << depth % 64, depth++)
#define POP() (depth--, is_object = depth ? (int)(levels[(depth - 1) / 64] >> (depth - 1) % 64 & 1) : 0)
value:
    p = skip_space(p, e);
    if (p >= e) return MORE;
    switch (*p) {
    case '"':
        p++;
        if ((status = find_quote(&p, e, &escaped)) != TAKEN) return status;
        p++;
        break;
    case '{':
    case '[':
        if (depth >= MAX_DEPTH) return ODD;
        is_object = *p == '{';
        PUSH(is_object);
        p = skip_space(p + 1, e);
        if (p >= e) return MORE;
        if (*p == (is_object ? '}' : ']')) {
            p++;
            POP();
            break;
        }
        if (is_object) goto key;
        goto value;
    case 't':
        if ((status = skip_word(&p, e, "true", 4)) != TAKEN) return status;
        break;
    case 'f':
        if ((status = skip_word(&p, e, "false", 5)) != TAKEN) return status;
        break;
    case 'n':
        if ((status = skip_word(&p, e, "null", 4)) != TAKEN) return status;
        break;
    default:
        if (!skip_digits(&p, e) && (status = skip_number(&p, e)) != TAKEN) return status;
    }
after:
    if (!depth) {
        *position = p;
        return TAKEN;
    }
    p = skip_space(p, e);
    if (p >= e) return MORE;
    if (*p == ',') {
        p++;
        if (is_object) goto key;
        goto value;
    }
    if (*p != (is_object ? '}' : ']')) return ODD;
    p++;
    POP();
    goto after;
key:
    p = skip_space(p, e);
    if (p >= e) return MORE;
    if (*p != '"') return ODD;
    p++;
    if ((status = find_quote(&p, e, &escaped)) != TAKEN) return status;
    p = skip_space(p + 1, e);
    if (p >= e) return MORE;
    if (*p != ':') return ODD;
    p++;
    goto value;
}

static inline int take_slice(const uint8_t **position, const uint8_t *e, Slice *slice) {
    const uint8_t *p = *position;
    int status;
    slice->escaped = 0;
    slice->is_string = *p == '"';
    if (slice->is_string) {
        slice->start = ++p;
        if ((status = find_quote(&p, e, &slice->escaped)) != TAKEN) return status;
        slice->end = p++;
    } else {
        slice->start = p;
        if (!skip_digits(&p, e) && (status = skip_value(&p, e)) != TAKEN) return status;
        slice->end = p;
    }
    *position = p;
    return TAKEN;
}

/* A value that nobody asks for: mostly a number, a text, or an array. */
static inline int pass_value(Scanner *s, const uint8_t **position, const uint8_t *e) {
    int status, escaped;
    const uint8_t *p = *position;
    if (*p == '[' && e - p > ARRAY_NBYTES) {
        Array *array = &s->arrays.slots[array_slot(p)];
        if (is_array(array, p)) {
            *position = p + array->length;
            return TAKEN;
        }
        if ((status = skip_value(position, e)) == TAKEN) keep_array(array, p, (size_t)(*position - p));
        return status;
    }
    if (*p != '"') return skip_digits(position, e) ? TAKEN : skip_value(position, e);
    p++;
    if ((status = find_quote(&p, e, &escaped)) == TAKEN) *position = p + 1;
    return status;
}

/* A JSON integer of at most 18 digits; ODD for anything else. */
static int read_integer(Slice slice, int64_t *value) {
    const uint8_t *p = slice.start;
    int negative = *p == '-';
    if (negative) p++;
    if (slice.end - p < 1 || slice.end - p > 18) return ODD;
    int64_t number = 0;
    for (; p < slice.end; p++) {
        if (*p < '0' || *p > '9') return ODD;
        number = number * 10 + (*p - '0');
    }
    *value = negative ? -number : number;
    return TAKEN;
}

/* A time with an exponent: its digits with the point elsewhere. */
static int read_scaled_time(const uint8_t *p, const uint8_t *e, int64_t *ns) {
    const uint8_t *mantissa = p, *end = p;
    int64_t whole = 0, exponent = 0; /* digits before the point */
    int has_point = 0, negative = 0, number_of_digits = 0;
    for (; end < e && (*end == '.' || (*end >= '0' && *end <= '9')); end++) {
        if (*end == '.') has_point = 1;
        else if (!has_point) whole++;
    }
    p = end + 1; /* behind the e */
    if (p < e && (*p == '-' || *p == '+')) negative = *p++ == '-';
    for (; p < e && *p >= '0' && *p <= '9'; p++) {
        if (++number_of_digits > 4) return ODD;
        exponent = exponent * 10 + (*p - '0');
    }
    if (p < e || !number_of_digits) return ODD;
    /* Of the digits so many make up nanoseconds, the next one tells where to round, and the rest is of no account. */
    int64_t wanted = whole + (negative ? -exponent : exponent) + 3, number = 0;
    int up = 0;
    for (p = mantissa; p < end && wanted >= 0; p++) {
        if (*p == '.') continue;
        if (wanted-- == 0) {
            up = *p >= '5';
            break;
        }
        if (number >= MAX_US * 100) return ODD; /* as nanoseconds it would be MAX_US and more */
        number = number * 10 + (*p - '0');
    }
    for (; number && wanted > 0; wanted--) {
        if (number >= MAX_US * 100) return ODD;
        number *= 10;
    }
    *ns = number + up;
    return TAKEN;
}

/* Microseconds in decimal to the nearest nanosecond, halves away from zero. */
static int read_time(Slice slice, int64_t *ns) {
    const uint8_t *p = slice.start;
    int negative = *p == '-', digits = 0, decimals = 0;
    int64_t number = 0;
    if (slice.is_string) return ODD;
    if (negative) p++;
    for (; p < slice.end && *p >= '0' && *p <= '9'; p++) {
        if (++digits > 16) return ODD; /* before it is computed: more than 18 would overflow */
        number = number * 10 + (*p - '0');
    }
    if (digits < 1 || number >= MAX_US) return ODD;
    int up = 0;
    if (p < slice.end && *p == '.')
        for (p++; p < slice.end && *p >= '0' && *p <= '9'; p++) {
            if (decimals < 3) number = number * 10 + (*p - '0');
            else if (decimals == 3) up = *p >= '5';
            decimals++;
        }
    if (p < slice.end) {
        if (*p != 'e' && *p != 'E') return ODD;
        if (read_scaled_time(slice.start + negative, slice.end, ns) != TAKEN) return ODD;
        if (negative) *ns = -*ns;
        return TAKEN;
    }
    for (; decimals < 3; decimals++) number *= 10;
    number += up;
    *ns = negative ? -number : number;
    return TAKEN;
}

/* The text that a string stands for, in `scratch` if it has escapes. */
static int unescape(Scanner *s, Slice slice, const uint8_t **text, size_t *size) {
    if (!slice.escaped) {
        *text = slice.start;
        *size = (size_t)(slice.end - slice.start);
        return 0;
    }
    s->scratch.used = 0;
    if (grow(&s->scratch, (size_t)(slice.end - slice.start) + WORD_NBYTES) < 0) return -1;
    uint8_t *out = (uint8_t *)s->scratch.data;
    for (const uint8_t *p = slice.start; p < slice.end;) {
        if (*p != '\\') {
            *out++ = *p++;
            continue;
        }
        uint8_t c = p[1];
        p += 2;
        switch (c) {
        case 'b': *out++ = '\b'; break;
        case 'f': *out++ = '\f'; break;
        case 'n': *out++ = '\n'; break;
        case 'r': *out++ = '\r'; break;
        case 't': *out++ = '\t'; break;
        case 'u': {
            unsigned code = 0;
            for (int i = 0; i < 4; i++) code = code * 16 + (unsigned)hex_value(*p++);
            if (code >= 0xD800 && code < 0xE000) { /* the first of a pair, as find_quote has seen */
                unsigned low = 0;
                p += 2;
                for (int i = 0; i < 4; i++) low = low * 16 + (unsigned)hex_value(*p++);
                code = 0x10000 + ((code - 0xD800) << 10) + (low - 0xDC00);
                *out++ = (uint8_t)(0xF0 | code >> 18);
                *out++ = (uint8_t)(0x80 | (code >> 12 & 0x3F));
                *out++ = (uint8_t)(0x80 | (code >> 6 & 0x3F));
                *out++ = (uint8_t)(0x80 | (code & 0x3F));
                break;
            }
            if (code < 0x80) *out++ = (uint8_t)code;
            else if (code < 0x800) {
                *out++ = (uint8_t)(0xC0 | code >> 6);
                *out++ = (uint8_t)(0x80 | (code & 0x3F));
            } else {
                *out++ = (uint8_t)(0xE0 | code >> 12);
                *out++ = (uint8_t)(0x80 | (code >> 6 & 0x3F));
                *out++ = (uint8_t)(0x80 | (code & 0x3F));
            }
            break;
        }
        default: *out++ = c;
        }
    }
    *text = (const uint8_t *)s->scratch.data;
    *size = (size_t)(out - (uint8_t *)s->scratch.data);
    return 0;
}

/* The number of a string.  Of a process, thread or id, where 1 and "1" differ, a letter in front tells integers from strings. */
static int64_t number_of_slice(Scanner *s, Texts *texts, Slice slice, int tagged) {
    const uint8_t *text = slice.start;
    size_t size = (size_t)(slice.end - slice.start);
    if (slice.escaped && unescape(s, slice, &text, &size) < 0) return -2;
    return number_of(texts, text, size, !tagged ? 0 : slice.is_string ? 's' : 'i');
}

/* What the value of a key is: a column up to ID, or one of these; in args the number of a key that is kept, or one of the last two. */
enum { TS = ID + 1, DUR, ARGS, END = -1, OTHER = -2 };
#define HAS(what) (1ull << (what))

typedef struct {
    Slice slices[ID + 1];
    int64_t start, duration;
    const uint8_t *args, *args_end;
    Slice values[MAX_KEYS];
    int64_t integers[MAX_KEYS];
    uint64_t has;          /* HAS(...) */
    uint64_t has_keys;     /* a bit a key */
    uint64_t has_integers; /* of those that are in `integers` */
} Found;

static int what_in_event(const uint8_t *key, size_t length) {
    switch (length) {
    case 2:
        if (key[0] == 'p' && key[1] == 'h') return PHASE;
        if (key[0] == 't' && key[1] == 's') return TS;
        if (key[0] == 'i' && key[1] == 'd') return ID;
        break;
    case 3:
        if (!memcmp(key, "cat", 3)) return CATEGORY;
        if (!memcmp(key, "pid", 3)) return PROCESS;
        if (!memcmp(key, "tid", 3)) return THREAD;
        if (!memcmp(key, "dur", 3)) return DUR;
        break;
    case 4:
        if (!memcmp(key, "name", 4)) return NAME;
        if (!memcmp(key, "args", 4)) return ARGS;
        break;
    }
    return OTHER;
}

static int what_in_args(const Scanner *s, const uint8_t *key, size_t length) {
    int which = length ? s->first_of[slot_of(key, length)] : -1;
    while (which >= 0 && (s->keys[which].length != length || memcmp(s->keys[which].name, key, length)))
        which = s->next_of[which];
    return which < 0 ? OTHER : which;
}

/* From behind a value or an opening brace to the next value, or behind the closing brace. */
static int read_key(Scanner *s, const uint8_t **position, const uint8_t *e, int is_first, int is_args, int *what) {
    int status, escaped = 0;
    const uint8_t *p = skip_space(*position, e);
    if (p >= e) return MORE;
    if (*p == '}') {
        *what = END;
        *position = p + 1;
        return TAKEN;
    }
    if (!is_first) {
        if (*p != ',') return ODD;
        p = skip_space(p + 1, e);
        if (p >= e) return MORE;
    }
    if (*p != '"') return ODD;
    const uint8_t *key = ++p;
    if ((status = find_quote(&p, e, &escaped)) != TAKEN) return status;
    size_t length = (size_t)(p - key);
    if (escaped) {
        if (!is_args) return ODD;
        Slice slice = {key, p, 1, 1};
        if (unescape(s, slice, &key, &length) < 0) return NO_MEMORY;
    }
    p = skip_space(p + 1, e);
    if (p >= e) return MORE;
    if (*p != ':') return ODD;
    p = skip_space(p + 1, e);
    if (p >= e) return MORE;
    *what = is_args ? what_in_args(s, key, length) : what_in_event(key, length);
    *position = p;
    return TAKEN;
}

/* Where no step leads on.  A file whose keys are always others is not worth remembering. */
static int read_and_learn(Scanner *s, const uint8_t **position, const uint8_t *e, int is_args, unsigned *step, int *what) {
    const uint8_t *text = *position;
    int is_first = *step < EVENT_SOMEWHERE;
    int status = read_key(s, position, e, is_first, is_args, what);
    if (status != TAKEN) return status;
    unsigned previous = *step;
    *step = is_args ? ARGS_SOMEWHERE : EVENT_SOMEWHERE;
    if (s->surprises++ < MAX_SURPRISES + (uint64_t)s->rows * SURPRISES_PER_ROW) {
        size_t length = (size_t)(*position - text);
        *step = learn_step(&s->steps, previous, text, length, *what, is_args, hash_of(text, length, is_args));
    }
    return TAKEN;
}

/* As read_key, by way of the steps that came next before. */
static inline int next_key(Scanner *s, const uint8_t **position, const uint8_t *e, int is_args, unsigned *step, int *what) {
    const uint8_t *p = *position;
    if (e - p > STEP_NBYTES) {
        const uint8_t *next = s->steps.steps[*step].next;
        for (int way = 0; way < MAX_NEXT && next[way]; way++) {
            const Step *candidate = &s->steps.steps[next[way]];
            if (!is_step(candidate, p)) continue;
            p += candidate->length;
            if (*p <= ' ' && candidate->what != END) break; /* there is more space than there was */
            *step = next[way];
            *what = candidate->what;
            *position = p;
            return TAKEN;
        }
    }
    return read_and_learn(s, position, e, is_args, step, what);
}

static int take_args(Scanner *s, const uint8_t **position, const uint8_t *e, Found *found) {
    unsigned step = ARGS_BEGIN;
    int status, what = OTHER;
    if (**position != '{' || !s->key_count) return skip_value(position, e);
    const uint8_t *p = *position + 1;
    for (;;) {
        if ((status = next_key(s, &p, e, 1, &step, &what)) != TAKEN) return status;
        if (what == END) {
            *position = p;
            return TAKEN;
        }
        if (what == OTHER) status = pass_value(s, &p, e);
        else {
            uint64_t bit = 1ull << what;
            found->has_keys |= bit; /* of two the last counts */
            if (s->keys[what].kind == KIND_INTEGER && take_integer(&p, e, &found->integers[what])) {
                found->has_integers |= bit;
                continue;
            }
            found->has_integers &= ~bit;
            status = take_slice(&p, e, &found->values[what]);
        }
        if (status != TAKEN) return status;
    }
}

static int take_event(Scanner *s, const uint8_t **position, const uint8_t *e, Found *found) {
    const uint8_t *p = *position + 1;
    unsigned step = EVENT_BEGIN;
    int status, what = OTHER;
    found->has = found->has_keys = found->has_integers = 0;
    found->args = found->args_end = p;
    for (;;) {
        if ((status = next_key(s, &p, e, 0, &step, &what)) != TAKEN) return status;
        if (what == END) {
            *position = p;
            return TAKEN;
        }
        if (what == OTHER) {
            if ((status = pass_value(s, &p, e)) != TAKEN) return status;
            continue;
        }
        if (found->has & HAS(what)) return ODD;
        found->has |= HAS(what);
        if (what <= ID) {
            Slice *slice = &found->slices[what];
            if ((status = take_slice(&p, e, slice)) != TAKEN) return status;
            if (what == PROCESS || what == THREAD || what == ID) {
                int64_t value;
                if (!slice->is_string && (read_integer(*slice, &value) != TAKEN || (*slice->start == '-' && !value)))
                    return ODD;
            } else if (!slice->is_string) return ODD;
        } else if (what == ARGS) {
            found->args = p;
            if ((status = take_args(s, &p, e, found)) != TAKEN) return status;
            found->args_end = p;
        } else {
            int64_t *ns = what == TS ? &found->start : &found->duration;
            if (take_time(&p, e, MAX_US, ns)) continue;
            Slice slice;
            if ((status = take_slice(&p, e, &slice)) != TAKEN) return status;
            if (read_time(slice, ns) != TAKEN) return ODD;
        }
    }
}

static int widen_columns(Scanner *s) {
    size_t room = s->room ? s->room + s->room / 2 : 512;
    if (room > UINT32_MAX) room = UINT32_MAX;
    for (int i = 0; i < COLUMNS; i++) {
        if (i == ID && !s->with_ids) continue;
        char *data = realloc(s->columns[i].data, room * COLUMN_NBYTES[i]);
        if (!data) return -1;
        s->columns[i].data = data;
    }
    s->room = (uint32_t)room;
    return 0;
}

static size_t value_nbytes(const Key *key) { return key->kind == KIND_TEXT ? 4 : 8; }

static int widen_key(Key *key) {
    size_t room = key->room ? key->room + key->room / 2 : 512;
    if (room > UINT32_MAX) room = UINT32_MAX;
    char *rows = realloc(key->rows.data, room * 4);
    if (rows) key->rows.data = rows;
    char *values = realloc(key->values.data, room * value_nbytes(key));
    if (values) key->values.data = values;
    if (!rows || !values) return -1;
    key->room = (uint32_t)room;
    return 0;
}

/* Room for so many rows at once: each time that a column grows the system has to tell all cores that its memory has moved.  Where there
 * is no room for so many, the columns grow as they do otherwise. */
static void expect_rows(Scanner *s, uint64_t rows) {
    if (rows <= s->room || rows > UINT32_MAX || !s->rows) return;
    int all = 1;
    for (int i = 0; i < COLUMNS; i++) {
        if (i == ID && !s->with_ids) continue;
        char *data = realloc(s->columns[i].data, rows * COLUMN_NBYTES[i]);
        if (data) s->columns[i].data = data;
        else all = 0;
    }
    if (all) s->room = (uint32_t)rows;
    for (int i = 0; i < s->key_count; i++) {
        Key *key = &s->keys[i];
        uint64_t room = (rows - 1) * key->count / s->rows + 1;
        if (!key->count || room <= key->room) continue;
        char *of_rows = realloc(key->rows.data, room * 4);
        if (of_rows) key->rows.data = of_rows;
        char *values = realloc(key->values.data, room * value_nbytes(key));
        if (values) key->values.data = values;
        if (of_rows && values) key->room = (uint32_t)room;
    }
}

/* Everything is looked up before anything is stored: an odd event leaves no row, though texts of it may stay. */
static int store_event(Scanner *s, Found *found, int64_t args_start) {
    int32_t numbers[ID + 1];
    int32_t texts_of_keys[MAX_KEYS];
    static const uint8_t none[1 + WORD_NBYTES] = "0";
    static const Slice empty = {none, none, 1, 0}, zero = {none, none + 1, 0, 0};
    uint8_t phase = 0;
    if (found->has & HAS(PHASE)) {
        Slice slice = found->slices[PHASE];
        if (slice.escaped) { /* of those a backslash or a quote can only be written so */
            const uint8_t *text;
            size_t size;
            if (unescape(s, slice, &text, &size) < 0) return NO_MEMORY;
            if (size != 1 || *text < ' ' || *text >= 0x7F) return ODD;
            phase = *text;
        } else if (slice.end - slice.start == 1) phase = *slice.start;
        if (phase >= 0x7F) return ODD;
        if (slice.end - slice.start > 1 && !is_utf8(slice.start, (size_t)(slice.end - slice.start))) return ODD;
    }
    for (int column = NAME; column <= ID; column++) {
        int tagged = column == PROCESS || column == THREAD || column == ID;
        Slice slice;
        numbers[column] = -1;
        if (found->has & HAS(column)) slice = found->slices[column];
        else if (column == ID) continue;
        else slice = tagged ? zero : empty;
        if (column == ID && slice.is_string && slice.start == slice.end) continue;
        if (column == ID && !s->with_ids) {
            const uint8_t *text;
            size_t size;
            if (unescape(s, slice, &text, &size) < 0) return NO_MEMORY;
            if (!is_utf8(text, size)) return ODD;
            continue;
        }
        int64_t number = number_of_slice(s, &s->texts[column], slice, tagged);
        if (number == -1) return ODD;
        if (number == -2) return NO_MEMORY;
        numbers[column] = (int32_t)number;
    }
    for (uint64_t rest = found->has_keys & s->text_keys; rest; rest &= rest - 1) {
        int i = __builtin_ctzll(rest);
        Slice slice = found->values[i];
        if (!slice.is_string && *slice.start == 'n') { /* null: as if it were not there */
            found->has_keys &= ~(1ull << i);
            continue;
        }
        if (!slice.is_string && slice.end - slice.start == 2 && !memcmp(slice.start, "-0", 2)) slice.start++;
        int64_t number = number_of_slice(s, &s->keys[i].texts, slice, 0);
        if (number == -1) return ODD;
        if (number == -2) return NO_MEMORY;
        texts_of_keys[i] = (int32_t)number;
    }
    int64_t nbytes = found->has & HAS(ARGS) ? found->args_end - found->args : 0;
    int32_t args_nbytes = (int32_t)nbytes;
    int64_t start = found->has & HAS(TS) ? found->start : 0, duration = found->has & HAS(DUR) ? found->duration : 0;
    if (!nbytes) args_start = -1;
    if (s->rows == UINT32_MAX || (s->rows == s->room && widen_columns(s) < 0)) return NO_MEMORY;
    uint32_t row = s->rows;
    ((uint8_t *)s->columns[PHASE].data)[row] = phase;
    ((int64_t *)s->columns[START].data)[row] = start;
    ((int64_t *)s->columns[DURATION].data)[row] = duration;
    ((int64_t *)s->columns[ARGS_START].data)[row] = args_start;
    ((int32_t *)s->columns[ARGS_NBYTES].data)[row] = args_nbytes;
    for (int column = NAME; column < ID + s->with_ids; column++) ((int32_t *)s->columns[column].data)[row] = numbers[column];
    for (uint64_t rest = found->has_keys; rest; rest &= rest - 1) {
        int i = __builtin_ctzll(rest);
        Key *key = &s->keys[i];
        if (key->count == key->room && widen_key(key) < 0) return NO_MEMORY; /* at most one for each of the rows */
        if (key->kind == KIND_TEXT) ((int32_t *)key->values.data)[key->count] = texts_of_keys[i];
        else {
            int64_t value = found->integers[i];
            if (!(found->has_integers >> i & 1) &&
                (found->values[i].is_string || read_integer(found->values[i], &value) != TAKEN))
                continue;
            ((int64_t *)key->values.data)[key->count] = value;
        }
        ((uint32_t *)key->rows.data)[key->count++] = row;
    }
    s->rows++;
    return TAKEN;
}

/* Python. */

/* Takes what lies from `*position` to `e` in a buffer that begins at `origin`, and in the file at `base`. */
static int take_events(Scanner *self, const uint8_t *origin, const uint8_t **position, const uint8_t *e, int64_t base, int64_t stop) {
    const uint8_t *p = *position;
    int status = MORE;
    Found found;
    for (;;) {
        while (p < e && (*p == ',' || *p == '\n' || *p == ' ' || *p == '\r' || *p == '\t')) p++;
        if (p >= e) break;
        if (*p != '{') {
            status = *p == ']' ? CLOSED : ODD;
            break;
        }
        if (base + (p - origin) >= stop) {
            status = STOPPED;
            break;
        }
        const uint8_t *event = p;
        status = take_event(self, &p, e, &found);
        if (status == TAKEN) status = store_event(self, &found, base + (found.args - origin));
        if (status != TAKEN) {
            p = event;
            break;
        }
        status = MORE;
    }
    *position = p;
    return status;
}

static int reaches_beyond(const Py_buffer *buffer, Py_ssize_t start, Py_ssize_t end) {
    if (start >= 0 && start <= end && end <= buffer->len - PADDING) return 1;
    PyErr_SetString(PyExc_ValueError, "the buffer must reach 32 bytes beyond the end");
    return 0;
}

static PyObject *Scanner_feed(Scanner *self, PyObject *arguments) {
    Py_buffer buffer;
    Py_ssize_t start, end;
    long long base, stop;
    if (!PyArg_ParseTuple(arguments, "y*nnLL", &buffer, &start, &end, &base, &stop)) return NULL;
    if (!reaches_beyond(&buffer, start, end)) {
        PyBuffer_Release(&buffer);
        return NULL;
    }
    const uint8_t *origin = buffer.buf, *p = origin + start;
    int status;
    Py_BEGIN_ALLOW_THREADS;
    status = take_events(self, origin, &p, origin + end, base, stop);
    Py_END_ALLOW_THREADS;
    Py_ssize_t position = p - origin;
    PyBuffer_Release(&buffer);
    if (status == NO_MEMORY) return PyErr_NoMemory();
    return Py_BuildValue("in", status, position);
}

/* The same, and reads on by itself: the interpreter is taken once in many blocks, not twice in each. */
static PyObject *Scanner_feed_file(Scanner *self, PyObject *arguments) {
    Py_buffer buffer;
    Py_ssize_t start, end, block_nbytes, nbytes = 0;
    long long base, stop;
    int descriptor, blocks, status, failed = 0;
    if (!PyArg_ParseTuple(arguments, "iw*nnLLni", &descriptor, &buffer, &start, &end, &base, &stop, &block_nbytes, &blocks)) return NULL;
    if (!reaches_beyond(&buffer, start, end)) {
        PyBuffer_Release(&buffer);
        return NULL;
    }
    uint8_t *origin = buffer.buf;
    Py_BEGIN_ALLOW_THREADS;
    for (;;) {
        const uint8_t *p = origin + start;
        status = take_events(self, origin, &p, origin + end, base, stop);
        start = p - origin;
        Py_ssize_t rest = end - start, room = buffer.len - PADDING - rest;
        if (status != MORE || blocks-- <= 0 || room <= 0) break;
        memmove(origin, p, (size_t)rest);
        base += start;
        start = 0;
        end = rest;
        ssize_t count = read(descriptor, origin + rest, (size_t)(room < block_nbytes ? room : block_nbytes));
        if (count <= 0) {
            failed = count < 0 && errno != EINTR ? errno : 0;
            break; /* at the end of the file whoever has called finds so, too */
        }
        end += count;
        nbytes += count;
    }
    Py_END_ALLOW_THREADS;
    PyBuffer_Release(&buffer);
    if (status == NO_MEMORY) return PyErr_NoMemory();
    if (failed) {
        errno = failed;
        return PyErr_SetFromErrno(PyExc_OSError);
    }
    return Py_BuildValue("innLn", status, start, end, base, nbytes);
}

/* A column, handed out without a copy: the memory that it has grown in, with the buffer protocol. */
typedef struct {
    PyObject_HEAD
    Growing memory;
    Py_ssize_t exports;
} Column;

static int Column_getbuffer(Column *self, Py_buffer *view, int flags) {
    static uint64_t nothing[1];
    void *data = self->memory.data ? (void *)self->memory.data : nothing;
    if (PyBuffer_FillInfo(view, (PyObject *)self, data, (Py_ssize_t)self->memory.used, 0, flags) < 0) return -1;
    self->exports++;
    return 0;
}

static void Column_releasebuffer(Column *self, Py_buffer *Py_UNUSED(view)) { self->exports--; }

static void Column_dealloc(Column *self) {
    free(self->memory.data);
    PyObject_Free(self);
}

/* Large ones are not copied: the system puts their pages elsewhere. */
static PyObject *Column_grow(Column *self, PyObject *argument) {
    Py_ssize_t nbytes = PyLong_AsSsize_t(argument);
    if (nbytes == -1 && PyErr_Occurred()) return NULL;
    if (nbytes < 0 || (size_t)nbytes < self->memory.used) {
        PyErr_SetString(PyExc_ValueError, "a column does not shrink");
        return NULL;
    }
    if (self->exports) {
        PyErr_SetString(PyExc_BufferError, "a column that is looked at cannot grow");
        return NULL;
    }
    if (grow(&self->memory, (size_t)nbytes - self->memory.used) < 0) return PyErr_NoMemory();
    self->memory.used = (size_t)nbytes;
    Py_RETURN_NONE;
}

static PyBufferProcs Column_buffer = {(getbufferproc)Column_getbuffer, (releasebufferproc)Column_releasebuffer};

static PyMethodDef Column_methods[] = {
    {"grow", (PyCFunction)Column_grow, METH_O, "grow(nbytes): room for more, which whoever asks fills; nobody may look at it meanwhile."},
    {NULL},
};

static PyTypeObject ColumnType = {
    PyVarObject_HEAD_INIT(NULL, 0).tp_name = "tlkit.timeline.scanning._native.Column",
    .tp_basicsize = sizeof(Column),
    .tp_flags = Py_TPFLAGS_DEFAULT,
    .tp_doc = "The bytes of a column.",
    .tp_dealloc = (destructor)Column_dealloc,
    .tp_as_buffer = &Column_buffer,
    .tp_methods = Column_methods,
};

static PyObject *bytes_of(Growing *g) {
    Column *column = PyObject_New(Column, &ColumnType);
    if (!column) return NULL;
    char *shrunk = g->data ? realloc(g->data, g->used ? g->used : 1) : NULL;
    if (shrunk) {
        g->data = shrunk;
        g->room = g->used;
    }
    column->memory = *g;
    column->exports = 0;
    memset(g, 0, sizeof *g);
    return (PyObject *)column;
}

static PyObject *list_of(Texts *t, int tagged) {
    PyObject *list = PyList_New(t->count);
    if (!list) return NULL;
    for (uint32_t i = 0; i < t->count; i++) {
        int64_t start = text_start(t, i), end = ((int64_t *)t->ends.data)[i];
        const char *text = t->text.data + start;
        PyObject *item;
        if (tagged && text[0] == 'i') {
            char digits[32] = {0};
            memcpy(digits, text + 1, (size_t)(end - start - 1));
            item = PyLong_FromString(digits, NULL, 10);
        } else item = PyUnicode_DecodeUTF8(text + tagged, end - start - tagged, "strict");
        if (!item) {
            Py_DECREF(list);
            return NULL;
        }
        PyList_SET_ITEM(list, i, item);
    }
    free_texts(t);
    return list;
}

static int set_item(PyObject *dictionary, const char *name, PyObject *value) {
    if (!value) return -1;
    int result = PyDict_SetItemString(dictionary, name, value);
    Py_DECREF(value);
    return result;
}

/* What mostly has few values, or small ones, in fewer bytes; how many of its memory each column uses then. */
static void narrow_all(Scanner *s) {
    for (int i = CATEGORY; i <= THREAD; i++)
        if (s->rows) s->columns[i].used = s->rows * narrow_numbers(s->columns[i].data, s->rows, s->texts[i].count);
    for (int i = 0; i < s->key_count; i++) {
        Key *key = &s->keys[i];
        key->rows.used = (size_t)key->count * 4;
        key->values.used = !key->count ? 0
                           : key->count * (key->kind == KIND_TEXT ? narrow_numbers(key->values.data, key->count, key->texts.count)
                                                                  : narrow_integers(key->values.data, key->count));
    }
}

/* Hands out the columns and begins anew. */
static PyObject *Scanner_finish(Scanner *self, PyObject *Py_UNUSED(none)) {
    PyObject *columns = PyDict_New(), *texts = PyDict_New(), *keys = PyDict_New();
    if (!columns || !texts || !keys) goto failed;
    for (int i = 0; i < COLUMNS; i++) self->columns[i].used = i == ID && !self->with_ids ? 0 : self->rows * COLUMN_NBYTES[i];
    Py_BEGIN_ALLOW_THREADS;
    narrow_all(self);
    Py_END_ALLOW_THREADS;
    self->rows = self->room = 0;
    for (int i = 0; i < COLUMNS; i++)
        if (set_item(columns, COLUMN_NAMES[i], bytes_of(&self->columns[i])) < 0) goto failed;
    for (int i = NAME; i <= ID; i++)
        if (set_item(texts, COLUMN_NAMES[i], list_of(&self->texts[i], i == PROCESS || i == THREAD || i == ID)) < 0) goto failed;
    for (int i = 0; i < self->key_count; i++) {
        Key *key = &self->keys[i];
        key->count = key->room = 0;
        PyObject *rows = bytes_of(&key->rows), *values = bytes_of(&key->values), *list = list_of(&key->texts, 0);
        if (!rows || !values || !list) {
            Py_XDECREF(rows);
            Py_XDECREF(values);
            Py_XDECREF(list);
            goto failed;
        }
        PyObject *item = Py_BuildValue("NNN", rows, values, list);
        if (set_item(keys, key->name, item) < 0) goto failed;
    }
    return Py_BuildValue("NNN", columns, texts, keys);
failed:
    Py_XDECREF(columns);
    Py_XDECREF(texts);
    Py_XDECREF(keys);
    return NULL;
}

static int Scanner_init(Scanner *self, PyObject *arguments, PyObject *keywords) {
    static char *names[] = {"integers", "texts", "with_ids", NULL};
    PyObject *lists[2];
    int with_ids = 0;
    if (!PyArg_ParseTupleAndKeywords(arguments, keywords, "O!O!|p", names, &PyTuple_Type, &lists[0], &PyTuple_Type, &lists[1],
                                     &with_ids))
        return -1;
    self->with_ids = with_ids;
    self->key_count = 0;
    self->text_keys = 0;
    memset(self->first_of, -1, sizeof self->first_of);
    for (int kind = KIND_INTEGER; kind <= KIND_TEXT; kind++)
        for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(lists[kind]); i++) {
            Py_ssize_t size;
            const char *name = PyUnicode_AsUTF8AndSize(PyTuple_GET_ITEM(lists[kind], i), &size);
            if (!name) return -1;
            if (self->key_count >= MAX_KEYS || size < 1 || size >= 64) {
                PyErr_SetString(PyExc_ValueError, "at most 32 keys of 1 to 63 bytes");
                return -1;
            }
            Key *key = &self->keys[self->key_count++];
            memcpy(key->name, name, (size_t)size + 1);
            key->length = (size_t)size;
            key->kind = kind;
            if (kind == KIND_TEXT) self->text_keys |= HAS(self->key_count - 1);
            /* Of two of one name the first counts. */
            int8_t *link = &self->first_of[slot_of((const uint8_t *)name, (size_t)size)];
            while (*link >= 0) link = &self->next_of[*link];
            *link = (int8_t)(self->key_count - 1);
            self->next_of[*link] = -1;
        }
    return 0;
}

static void Scanner_dealloc(Scanner *self) {
    for (int i = 0; i < COLUMNS; i++) free(self->columns[i].data);
    for (int i = 0; i <= ID; i++) free_texts(&self->texts[i]);
    for (int i = 0; i < MAX_KEYS; i++) {
        free(self->keys[i].rows.data);
        free(self->keys[i].values.data);
        free_texts(&self->keys[i].texts);
    }
    free(self->scratch.data);
    Py_TYPE(self)->tp_free((PyObject *)self);
}

static PyObject *Scanner_rows(Scanner *self, void *Py_UNUSED(closure)) { return PyLong_FromUnsignedLong(self->rows); }

static PyObject *Scanner_distinct(Scanner *self, void *Py_UNUSED(closure)) {
    uint64_t count = 0;
    for (int i = 0; i <= ID; i++) count += self->texts[i].count;
    for (int i = 0; i < self->key_count; i++) count += self->keys[i].texts.count;
    return PyLong_FromUnsignedLongLong(count);
}

static PyObject *Scanner_expect(Scanner *self, PyObject *argument) {
    unsigned long long rows = PyLong_AsUnsignedLongLong(argument);
    if (rows == (unsigned long long)-1 && PyErr_Occurred()) return NULL;
    expect_rows(self, rows);
    Py_RETURN_NONE;
}

static PyMethodDef Scanner_methods[] = {
    {"expect", (PyCFunction)Scanner_expect, METH_O, "expect(rows): make room for so many events in all, judging by those taken already."},
    {"feed", (PyCFunction)Scanner_feed, METH_VARARGS,
     "feed(buffer, start, end, base, stop) -> (status, position): take events; see scanning/native.c."},
    {"feed_file", (PyCFunction)Scanner_feed_file, METH_VARARGS,
     "feed_file(descriptor, buffer, start, end, base, stop, block_nbytes, blocks) -> (status, start, end, base, nbytes): as feed, "
     "and up to so many times, when there are no more events in the buffer, read on."},
    {"finish", (PyCFunction)Scanner_finish, METH_NOARGS, "Hand out the columns and begin anew."},
    {NULL},
};

static PyGetSetDef Scanner_properties[] = {
    {"rows", (getter)Scanner_rows, NULL, "Events taken.", NULL},
    {"distinct", (getter)Scanner_distinct, NULL, "Texts that are kept.", NULL},
    {NULL},
};

static PyTypeObject ScannerType = {
    PyVarObject_HEAD_INIT(NULL, 0).tp_name = "tlkit.timeline.scanning._native.Scanner",
    .tp_basicsize = sizeof(Scanner),
    .tp_flags = Py_TPFLAGS_DEFAULT,
    .tp_doc = "Scanner(integers, texts, with_ids=False): columns of trace events.",
    .tp_new = PyType_GenericNew,
    .tp_init = (initproc)Scanner_init,
    .tp_dealloc = (destructor)Scanner_dealloc,
    .tp_methods = Scanner_methods,
    .tp_getset = Scanner_properties,
};

/* Whether what a buffer holds are integers, and those with a sign, as its format says; both for bytes without a format. */
static int is_signed_integer(const Py_buffer *view, int *is_signed) {
    const char *format = view->format ? view->format : "B";
    if (*format == '<' || *format == '=' || *format == '@') format++;
    *is_signed = *format && strchr("bhilq", *format) != NULL;
    return *format && !format[1] && strchr("bhilqBHILQ?", *format) != NULL;
}

/* Whether it can be read item by item; where there is none, it may lie anywhere. */
static int is_aligned(const Py_buffer *view) { return !view->len || (uintptr_t)view->buf % (size_t)view->itemsize == 0; }

static PyObject *native_gather(PyObject *Py_UNUSED(module), PyObject *arguments) {
    PyObject *objects[3], *result = NULL;
    Py_buffer views[3]; /* table, numbers, out */
    int held = 0, is_signed, is_beyond = 0;
    if (!PyArg_ParseTuple(arguments, "OOO", &objects[0], &objects[1], &objects[2])) return NULL;
    for (; held < 3; held++)
        if (PyObject_GetBuffer(objects[held], &views[held], PyBUF_C_CONTIGUOUS | PyBUF_FORMAT | (held == 2 ? PyBUF_WRITABLE : 0)) < 0)
            goto done;
    size_t item = (size_t)views[0].itemsize, number = (size_t)views[1].itemsize;
    Gather gather = is_signed_integer(&views[1], &is_signed) ? find_gather(is_signed, number, item) : NULL;
    if (!gather || item != (size_t)views[2].itemsize || !is_aligned(&views[0]) || !is_aligned(&views[1]) || !is_aligned(&views[2])) {
        PyErr_SetString(PyExc_TypeError, "a table and a result of one type, and integers");
        goto done;
    }
    size_t count = (size_t)views[1].len / number;
    if ((size_t)views[2].len / item != count) {
        PyErr_SetString(PyExc_ValueError, "there is not one place for each number");
        goto done;
    }
    Py_ssize_t length = views[0].len / (Py_ssize_t)item;
    if (count && length) {
        Py_BEGIN_ALLOW_THREADS;
        is_beyond = gather(views[0].buf, length, views[1].buf, count, views[2].buf);
        Py_END_ALLOW_THREADS;
    } else is_beyond = count != 0;
    if (is_beyond) PyErr_SetString(PyExc_IndexError, "a number is beyond the table");
    else result = Py_NewRef(Py_None);
done:
    while (held) PyBuffer_Release(&views[--held]);
    return result;
}

static PyObject *native_first_rows(PyObject *Py_UNUSED(module), PyObject *arguments) {
    PyObject *objects[2], *result = NULL;
    Py_buffer views[2]; /* numbers, out */
    long long low;
    int held = 0, is_signed, is_beyond;
    if (!PyArg_ParseTuple(arguments, "OLO", &objects[0], &low, &objects[1])) return NULL;
    for (; held < 2; held++)
        if (PyObject_GetBuffer(objects[held], &views[held], PyBUF_C_CONTIGUOUS | PyBUF_FORMAT | (held == 1 ? PyBUF_WRITABLE : 0)) < 0)
            goto done;
    size_t number = (size_t)views[0].itemsize, count = (size_t)views[0].len / number;
    FirstRows first_rows = is_signed_integer(&views[0], &is_signed) ? find_first_rows(is_signed, number) : NULL;
    if (!first_rows || views[1].itemsize != 4 || !is_aligned(&views[0]) || !is_aligned(&views[1]) || count > INT32_MAX) {
        PyErr_SetString(PyExc_TypeError, "integers, not too many, and places of four bytes");
        goto done;
    }
    Py_BEGIN_ALLOW_THREADS;
    is_beyond = first_rows(views[0].buf, count, low, views[1].buf, (size_t)views[1].len / 4);
    Py_END_ALLOW_THREADS;
    if (is_beyond) PyErr_SetString(PyExc_IndexError, "a number is beyond the places");
    else result = Py_NewRef(Py_None);
done:
    while (held) PyBuffer_Release(&views[--held]);
    return result;
}

static PyObject *native_select(PyObject *Py_UNUSED(module), PyObject *arguments) {
    enum { KINDS, CHOSEN, ROWS, NUMBERS, OUT_ROWS, OUT_NUMBERS, VIEWS };
    PyObject *objects[VIEWS], *result = NULL;
    Py_buffer views[VIEWS];
    int held = 0, is_signed, is_plain = 1;
    if (!PyArg_ParseTuple(arguments, "OOOOOO", &objects[0], &objects[1], &objects[2], &objects[3], &objects[4], &objects[5])) return NULL;
    for (; held < VIEWS; held++) {
        int flags = PyBUF_C_CONTIGUOUS | PyBUF_FORMAT | (held >= OUT_ROWS ? PyBUF_WRITABLE : 0);
        if (PyObject_GetBuffer(objects[held], &views[held], flags) < 0) goto done;
        is_plain = is_plain && is_signed_integer(&views[held], &is_signed) && is_aligned(&views[held]);
    }
    size_t kind = (size_t)views[KINDS].itemsize, number = (size_t)views[NUMBERS].itemsize, count = (size_t)views[ROWS].len / 4;
    Select select = is_plain ? find_select(kind, number) : NULL;
    if (!select || views[CHOSEN].itemsize != 1 || views[ROWS].itemsize != 4 || views[OUT_ROWS].itemsize != 4 ||
        (size_t)views[OUT_NUMBERS].itemsize != number || (size_t)views[NUMBERS].len / number != count ||
        (size_t)views[OUT_ROWS].len / 4 < count || (size_t)views[OUT_NUMBERS].len / number < count) {
        PyErr_SetString(PyExc_TypeError, "rows of four bytes, a number beside each, and as many places");
        goto done;
    }
    int64_t found;
    Py_BEGIN_ALLOW_THREADS;
    found = select(views[KINDS].buf, (size_t)views[KINDS].len / kind, views[CHOSEN].buf, (size_t)views[CHOSEN].len, views[ROWS].buf,
                   views[NUMBERS].buf, count, views[OUT_ROWS].buf, views[OUT_NUMBERS].buf);
    Py_END_ALLOW_THREADS;
    if (found < 0) PyErr_SetString(PyExc_IndexError, "a row, or a kind, is beyond the table");
    else result = PyLong_FromLongLong(found);
done:
    while (held) PyBuffer_Release(&views[--held]);
    return result;
}

static PyMethodDef module_methods[] = {
    {"select", native_select, METH_VARARGS,
     "select(kinds, chosen, rows, numbers, out_rows, out_numbers) -> count: the rows whose kind is chosen; see scanning/gather.h."},
    {"first_rows", native_first_rows, METH_VARARGS, "first_rows(numbers, low, out): out[number - low] = where it stands first."},
    {"gather", native_gather, METH_VARARGS, "gather(table, numbers, out): out[:] = table[numbers]; see scanning/gather.h."},
    {NULL},
};

static struct PyModuleDef module = {PyModuleDef_HEAD_INIT, "_native", "The compiled scanner of trace events.", -1, module_methods};

PyMODINIT_FUNC PyInit__native(void) {
    PyObject *result;
    if (PyType_Ready(&ColumnType) < 0 || PyType_Ready(&ScannerType) < 0 || !(result = PyModule_Create(&module))) return NULL;
    Py_INCREF(&ScannerType);
    if (PyModule_AddObject(result, "Scanner", (PyObject *)&ScannerType) < 0) {
        Py_DECREF(&ScannerType);
        Py_DECREF(result);
        return NULL;
    }
    return result;
}
