/* Steps: what stands between two values of an event, as the file has spelled it before.
 *
 * A program writes its events alike: behind the value of `ts` there is `, "dur": ` a million times.  A step is such a text, from
 * the end of a value (or the opening brace) to the begin of the next one (or behind the closing brace), read once in full and
 * remembered with the steps that came before it.  Where the bytes of a step that came next before are there again, they mean what
 * they meant, and nothing of them has to be read: no space, quote or colon, and no name to be looked up.
 */
#ifndef TLKIT_SCANNING_STEPS_H
#define TLKIT_SCANNING_STEPS_H

#include <stdint.h>
#include <string.h>
#if defined(__SSE2__)
#include <emmintrin.h>
#endif

#define STEP_NBYTES 64
#define MAX_STEPS 128 /* less than 256, as their numbers are bytes */
#define STEP_SLOTS 256
#define MAX_NEXT 7

/* Without a text: opening braces, and values behind which no step is known. */
enum { EVENT_BEGIN = 0, ARGS_BEGIN = 1, EVENT_SOMEWHERE = 2, ARGS_SOMEWHERE = 3, FIRST_STEP = 4 };

typedef struct {
    uint8_t text[STEP_NBYTES]; /* filled up with zeros */
    uint8_t length, next[MAX_NEXT]; /* numbers of steps, those known first in front, 0 at the end */
    int8_t what, is_args;
    uint32_t first; /* a bit for each of the first 32 bytes that the text has */
} Step;

typedef struct {
    Step steps[MAX_STEPS];
    uint8_t slots[STEP_SLOTS]; /* numbers of steps by their hash, 0 for a free slot */
    unsigned count;
} Steps;

/* Whether the text of a step is at `p`, from where STEP_NBYTES can be read. */
static inline int is_step(const Step *step, const uint8_t *p) {
#if defined(__SSE2__)
    const uint8_t *text = step->text;
#define LIKE_AT(at) \
    (unsigned)_mm_movemask_epi8(_mm_cmpeq_epi8(_mm_loadu_si128((const __m128i *)(p + (at))), \
                                               _mm_loadu_si128((const __m128i *)(text + (at)))))
    /* Most are shorter than 32 bytes, and to compare those at once takes less than to look how long they are. */
    if (~(LIKE_AT(0) | LIKE_AT(16) << 16) & step->first) return 0;
    return step->length <= 32 || !memcmp(text + 32, p + 32, step->length - 32u);
#undef LIKE_AT
#else
    return !memcmp(step->text, p, step->length);
#endif
}

/* Remember that a text came behind a step, and what value it leads to; its number, or that of nowhere in particular. */
static unsigned learn_step(Steps *s, unsigned previous, const uint8_t *text, size_t length, int what, int is_args, uint64_t hash) {
    unsigned number = 0, at = (unsigned)hash % STEP_SLOTS, way = 0;
    if (length > STEP_NBYTES) return is_args ? ARGS_SOMEWHERE : EVENT_SOMEWHERE;
    for (; (number = s->slots[at]); at = (at + 1) % STEP_SLOTS) {
        const Step *step = &s->steps[number];
        if (step->length == length && step->is_args == is_args && !memcmp(step->text, text, length)) break;
    }
    if (!number) {
        if (s->count < FIRST_STEP) s->count = FIRST_STEP;
        if (s->count == MAX_STEPS) return is_args ? ARGS_SOMEWHERE : EVENT_SOMEWHERE;
        number = s->count++;
        s->slots[at] = (uint8_t)number;
        Step *step = &s->steps[number];
        memcpy(step->text, text, length);
        step->length = (uint8_t)length;
        step->first = length < 32 ? (1u << length) - 1 : UINT32_MAX;
        step->what = (int8_t)what;
        step->is_args = (int8_t)is_args;
    }
    uint8_t *next = s->steps[previous].next;
    while (way < MAX_NEXT - 1 && next[way]) way++;
    next[way] = (uint8_t)number;
    return number;
}

#endif
