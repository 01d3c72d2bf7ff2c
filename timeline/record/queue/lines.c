/* Records to lines, without the GIL: the same bytes as ShardFormat (timeline/record/shard_format.py). */
#include "recording.h"

#include <errno.h>
#include <math.h>
#include <unistd.h>

/* Written when there is this much: little enough to stay in the cache. */
#define ENOUGH (512 * 1024)
#define LONGEST_NUMBER 32

void output_open(Output *output, int descriptor) {
    memset(output, 0, sizeof *output);
    output->descriptor = descriptor;
}

void output_close(Output *output) {
    free(output->data);
    output->data = NULL;
}

void output_flush(Output *output) {
    size_t done = 0;
    if (output->descriptor < 0) return;
    while (done < output->used && !output->error) {
        ssize_t count = write(output->descriptor, output->data + done, output->used - done);
        if (count >= 0) {
            done += (size_t)count;
            output->written += (uint64_t)count;
        } else if (errno != EINTR) {
            output->error = errno;
        }
    }
    output->used = 0;
}

/* Where `most` bytes may be written; NULL if there is no memory. */
static char *reserve(Output *output, size_t most) {
    if (output->descriptor >= 0 && output->used >= ENOUGH) output_flush(output);
    if (output->used + most > output->room) {
        size_t room = output->room + output->room / 2;
        if (room < output->used + most) room = output->used + most;
        if (room < 2 * ENOUGH) room = 2 * ENOUGH;
        char *data = realloc(output->data, room);
        if (!data) {
            output->error = ENOMEM;
            return NULL;
        }
        output->data = data;
        output->room = room;
    }
    return output->data + output->used;
}

static inline char *put(char *at, const char *text, size_t nbytes) {
    memcpy(at, text, nbytes);
    return at + nbytes;
}

#define PUT(at, text) put(at, text, sizeof(text) - 1)

static const char DIGITS[] =
    "00010203040506070809101112131415161718192021222324252627282930313233343536373839404142434445464748495051525354"
    "5556575859606162636465666768697071727374757677787980818283848586878889909192939495969798"
    "99";

static char *put_unsigned(char *at, uint64_t value) {
    char text[20], *p = text + sizeof text;
    while (value >= 100) {
        p -= 2;
        memcpy(p, DIGITS + value % 100 * 2, 2);
        value /= 100;
    }
    if (value >= 10) {
        p -= 2;
        memcpy(p, DIGITS + value * 2, 2);
    } else {
        *--p = (char)('0' + value);
    }
    return put(at, p, (size_t)(text + sizeof text - p));
}

static char *put_integer(char *at, int64_t value) {
    if (value >= 0) return put_unsigned(at, (uint64_t)value);
    *at++ = '-';
    return put_unsigned(at, 0 - (uint64_t)value);
}

/* What Python makes of f"{ns / 1e3:.3f}".  Up to 2**52 that is exact: the error of the quotient is less than half a
 * nanosecond.  Beyond, the quotient is a multiple of 1/1024, so that its third decimal can be rounded exactly, too. */
static char *put_us(char *at, int64_t ns) {
    uint64_t left = ns < 0 ? 0 - (uint64_t)ns : (uint64_t)ns;
    uint64_t whole, thousandths;
    if (left < (uint64_t)1 << 52) {
        whole = left / 1000;
        thousandths = left % 1000;
    } else {
        double us = (double)left / 1e3;
        double floored = floor(us);
        whole = (uint64_t)floored;
        thousandths = (uint64_t)rint((us - floored) * 1000);
        if (thousandths == 1000) {
            whole++;
            thousandths = 0;
        }
    }
    if (ns < 0) *at++ = '-';
    at = put_unsigned(at, whole);
    *at++ = '.';
    *at++ = (char)('0' + thousandths / 100);
    return put(at, DIGITS + thousandths % 100 * 2, 2);
}

static char *put_piece(char *at, const Template *template, int number) {
    uint32_t start = number ? template->ends[number - 1] : 0;
    return put(at, template->text + start, template->ends[number] - start);
}

static void span_line(Output *output, const SpanRecord *record, int64_t origin_ns) {
    const Template *template = record->template;
    const char *args = record->args ? PyBytes_AS_STRING(record->args) : NULL;
    size_t nbytes = record->args ? (size_t)PyBytes_GET_SIZE(record->args) : 0;
    char *at = reserve(output, template->ends[0] + nbytes + 3 * LONGEST_NUMBER);
    if (!at) return;
    at = put_piece(at, template, 0);
    at = put_us(at, record->start_ns - origin_ns);
    at = PUT(at, ",\"dur\":");
    at = put_us(at, record->end_ns - record->start_ns);
    if (args) {
        at = PUT(at, ",\"args\":");
        at = put(at, args, nbytes);
    }
    at = PUT(at, "},\n");
    output->used = (size_t)(at - output->data);
    output->lines++;
}

static void counter_line(Output *output, const CounterRecord *record, int64_t origin_ns) {
    char *at = reserve(output, record->template->ends[0] + 3 * LONGEST_NUMBER);
    if (!at) return;
    at = put_piece(at, record->template, 0);
    at = put_us(at, record->at_ns - origin_ns);
    at = PUT(at, ",\"args\":{\"value\":");
    at = put_integer(at, record->value);
    at = PUT(at, "}},\n");
    output->used = (size_t)(at - output->data);
    output->lines++;
}

/* A number and a time, which are always side by side: `12","ts":345.678`. */
typedef struct {
    char text[2 * LONGEST_NUMBER + 8];
    size_t nbytes;
} Moment;

static void set_time(Moment *moment, int64_t ns) {
    char *at = PUT(moment->text, "\",\"ts\":");
    moment->nbytes = (size_t)(put_us(at, ns) - moment->text);
}

typedef struct {
    char text[LONGEST_NUMBER];
    size_t nbytes;
} Number;

static inline char *put_moment(char *at, const Number *number, const Moment *moment) {
    at = put(at, number->text, number->nbytes);
    return put(at, moment->text, moment->nbytes);
}

/* The constant texts of the lives of one rank. */
typedef struct {
    Moment negotiated, start, end;
    char seq_args[2 * LONGEST_NUMBER];
    size_t seq_nbytes;
    const char *pid;
    size_t pid_nbytes;
} Batch;

static char *put_flow(char *at, const Batch *batch, const Number *number, const Moment *submitted) {
    at = PUT(at, "{\"name\":\"tensor\",\"cat\":\"flow\",\"pid\":");
    at = put(at, batch->pid, batch->pid_nbytes);
    at = PUT(at, ",\"ph\":\"s\",\"tid\":1,\"id\":\"");
    at = put(at, batch->pid, batch->pid_nbytes);
    *at++ = '.';
    at = put_moment(at, number, submitted);
    at = PUT(at, "},\n{\"name\":\"tensor\",\"cat\":\"flow\",\"pid\":");
    at = put(at, batch->pid, batch->pid_nbytes);
    at = PUT(at, ",\"ph\":\"f\",\"bp\":\"e\",\"tid\":3,\"id\":\"");
    at = put(at, batch->pid, batch->pid_nbytes);
    *at++ = '.';
    at = put_moment(at, number, &batch->start);
    return PUT(at, "},\n");
}

static char *put_life(char *at, const Batch *batch, const LifeRecord *life, int64_t origin_ns) {
    const Template *template = life->template;
    Moment submitted;
    Number number;
    set_time(&submitted, life->submitted_ns - origin_ns);
    number.nbytes = (size_t)(put_integer(number.text, life->number) - number.text);
    if (life->whole) {
        at = put_piece(at, template, 0);
        at = put_moment(at, &number, &submitted);
        at = put_piece(at, template, 1);
        at = put_moment(at, &number, &submitted);
        at = PUT(at, "},\n");
    }
    at = put_piece(at, template, 2);
    at = put_moment(at, &number, &batch->negotiated);
    at = put_piece(at, template, 3);
    at = put_moment(at, &number, &batch->negotiated);
    at = put_piece(at, template, 4);
    at = put_moment(at, &number, &batch->start);
    at = put_piece(at, template, 5);
    at = put_moment(at, &number, &batch->start);
    at = put_piece(at, template, 6);
    at = put_moment(at, &number, &batch->end);
    at = put(at, batch->seq_args, batch->seq_nbytes);
    at = put_piece(at, template, 7);
    at = put_moment(at, &number, &batch->end);
    at = PUT(at, "},\n");
    if (life->flow) at = put_flow(at, batch, &number, &submitted);
    return at;
}

static void lives_lines(Output *output, const LivesRecord *record, int64_t origin_ns, const char *pid) {
    Batch batch;
    set_time(&batch.negotiated, record->negotiated_ns - origin_ns);
    set_time(&batch.start, record->start_ns - origin_ns);
    set_time(&batch.end, record->end_ns - origin_ns);
    char *at = PUT(batch.seq_args, ",\"args\":{\"seq\":");
    at = put_integer(at, record->seq);
    *at++ = '}';
    batch.seq_nbytes = (size_t)(at - batch.seq_args);
    batch.pid = pid;
    batch.pid_nbytes = strlen(pid);
    for (uint32_t i = 0; i < record->count; i++) {
        const LifeRecord *life = &record->lives[i];
        at = reserve(output, life->template->ends[LIFE_PIECES - 1] + 12 * sizeof(Moment) + 4 * LONGEST_NUMBER + 256);
        if (!at) return;
        at = put_life(at, &batch, life, origin_ns);
        output->used = (size_t)(at - output->data);
        output->lines += 6 + 2 * (life->whole != 0) + 2 * (life->flow != 0);
    }
}

static void call_lines(Output *output, const CallRecord *record) {
    const char *text = PyBytes_AS_STRING(record->make);
    size_t nbytes = (size_t)PyBytes_GET_SIZE(record->make);
    char *at = reserve(output, nbytes);
    if (!at) return;
    memcpy(at, text, nbytes);
    output->used += nbytes;
    for (const char *p = text; (p = memchr(p, '\n', (size_t)(text + nbytes - p))); p++) output->lines++;
}

void output_record(Output *output, const Head *head, int64_t origin_ns, const char *pid) {
    switch (head->kind) {
        case A_SPAN: span_line(output, (const SpanRecord *)head, origin_ns); break;
        case A_COUNTER: counter_line(output, (const CounterRecord *)head, origin_ns); break;
        case SOME_LIVES: lives_lines(output, (const LivesRecord *)head, origin_ns, pid); break;
        case A_TEXT: call_lines(output, (const CallRecord *)head); break;
        default: break;
    }
}
