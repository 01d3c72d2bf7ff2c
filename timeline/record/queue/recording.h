/* What the files of the recorder in C share.
 *
 * Everything here is called with the GIL held, which is what makes one writer of what are many threads; only
 * what says so runs without it.
 */
#ifndef TLKIT_RECORDING_H
#define TLKIT_RECORDING_H

#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <stdint.h>
#include <string.h>
#include <structmember.h>

/* Times beyond this (ns) go the way of the portable recorder: their differences might not fit. */
#define MAX_NS ((int64_t)1 << 62)

/* The text of an event up to what differs from one event to the next, rendered once a name by ShardFormat. */

enum { OF_SPAN, OF_COUNTER, OF_LIFE };

#define LIFE_PIECES 8

typedef struct Template {
    struct Template *next; /* with the same hash, or in the list of those that are no longer found */
    Py_hash_t hash;
    PyObject *name, *about; /* category of a span, Call of a life; both are kept alive, so that pointers compare */
    PyObject *dtype, *shape, *collective; /* of a life; kept alive */
    int64_t number, nbytes; /* lane of a span; process set and size of a tensor */
    int kind;
    uint32_t ends[LIFE_PIECES]; /* of the pieces in `text` */
    char text[];
} Template;

struct Remembered;

typedef struct {
    Template **buckets;
    uint32_t count;
    Template *retired; /* records that wait may still point to them */
    struct Remembered *remembered;
    uint32_t pins;     /* calls under way that hold templates which are in no record yet */
} Templates;

int templates_open(Templates *templates);
void templates_close(Templates *templates);
Template *template_of_span(Templates *templates, PyObject *format, PyObject *name, PyObject *category, int64_t tid);
Template *template_of_counter(Templates *templates, PyObject *format, PyObject *name);
struct Life;
Template *template_of_life(Templates *templates, PyObject *format, struct Life *life, int64_t process_set);
void templates_free(Template *first);

/* Templates of the lives of requests that come again and again, found without looking at what they say. */
#define REMEMBERED 2048

typedef struct Remembered {
    PyObject *request, *call; /* kept alive */
    Template *template;
} Remembered;

static inline Remembered *remembered_at(Templates *templates, PyObject *request) {
    uint64_t bits = (uint64_t)(uintptr_t)request >> 4;
    return &templates->remembered[(bits ^ bits >> 11) % REMEMBERED];
}

void templates_remember(Templates *templates, PyObject *request, PyObject *call, Template *template);

/* Records that wait, in chunks that are used again and again. */

enum { A_SPAN, A_COUNTER, SOME_LIVES, A_CALL, A_TEXT, PLAIN_SPAN, PLAIN_COUNTER, NOTHING };

typedef struct {
    uint32_t nbytes; /* of the whole record */
    uint32_t kind;
} Head;

typedef struct {
    Head head;
    Template *template;
    int64_t start_ns, end_ns;
    PyObject *args; /* a dictionary, or NULL; bytes once it is encoded */
} SpanRecord;

typedef struct {
    Head head;
    Template *template;
    int64_t at_ns, value;
} CounterRecord;

typedef struct {
    Template *template;
    int64_t number, submitted_ns;
    uint32_t flow, whole; /* whether it has an arrow, and whether its first half is not in the file yet */
} LifeRecord;

typedef struct {
    Head head;
    int64_t seq, negotiated_ns, start_ns, end_ns;
    uint32_t count;
    LifeRecord lives[];
} LivesRecord;

typedef struct {
    Head head;
    PyObject *make, *values; /* a function that returns lines, and its arguments; bytes and NULL once it was called */
} CallRecord;

/* For a format that makes its lines itself: what it is called with, when its turn comes. */

typedef struct {
    Head head;
    PyObject *name, *category, *args; /* args: anything, or NULL */
    int64_t tid, start_ns, end_ns;
} PlainSpan;

typedef struct {
    Head head;
    PyObject *name;
    int64_t at_ns, value;
} PlainCounter;

typedef struct Chunk {
    struct Chunk *next;
    size_t used, room;
    uint64_t at[]; /* aligned for any record */
} Chunk;

typedef struct OpenSpan OpenSpan;

typedef struct {
    PyObject_HEAD
    PyObject *format; /* ShardFormat or HorovodFormat */
    int is_generic;   /* a format whose lines are not known here: every record is a call of its methods */
    int64_t pid, origin_ns;
    Templates templates;
    Chunk *first, *last, *spare; /* spare: free ones, at most SPARE_CHUNKS */
    unsigned spares;
    size_t nbytes, most_nbytes; /* what waits, and how much may */
    uint64_t total, taken;      /* records so far, and when they were last taken; read without the GIL */
    uint64_t lost;
    OpenSpan *oldest, *newest;  /* spans that have begun and not ended */
    PyThread_type_lock wake;
    int is_writing;
} Queue;

extern PyTypeObject QueueType;
void queue_span(Queue *queue, PyObject *name, PyObject *category, int64_t tid, int64_t start_ns, int64_t end_ns,
                PyObject *args);
void queue_counter(Queue *queue, PyObject *name, int64_t at_ns, int64_t value);
int queue_call(Queue *queue, PyObject *method, PyObject *values);
void queue_lost(Queue *queue);

/* Spans that have begun, and tensors under way. */

/* What the calling thread got of the processor (thread_time.c). */

typedef struct {
    int64_t ran_ns, waited_ns; /* since the thread began, or of a part of a step; waited: negative if it is unknown */
} PartTime;

typedef struct {
    PartTime begun, in_parts;
    int64_t process_ns;
    int is_begun;
} StepTime;

void part_begin(PartTime *part);
PartTime part_end(const PartTime *begun);
void step_time_begin(StepTime *step);
void step_time_add(StepTime *step, PartTime part);
/* What the thread got outside of the parts, and the process altogether; 0 if the step's beginning was not seen. */
int step_time_end(StepTime *step, PartTime *other, int64_t *process_ns);

struct OpenSpan {
    PyObject_HEAD
    PyObject *name, *category, *args, *nvtx, *device;
    Queue *queue; /* NULL for a span that is an NVTX range only */
    OpenSpan *older, *newer;
    long long start_ns;
    PartTime begun;
    int tid;
    char is_claimed, is_metered, is_listed;
};

typedef struct Life {
    PyObject_HEAD
    PyObject *name, *kind, *dtype, *shape, *call;
    long long number, nbytes, submitted_ns;
    char flow, is_claimed;
} Life;

extern PyTypeObject OpenSpanType, LifeType, SpansType, BlockType;
extern PyObject *unknown_call; /* of a tensor whose maker says nothing */
void open_span_forget(OpenSpan *opened);
int spans_open(void);

/* The seam, and blocks that are spans (blocks.c). */

typedef struct Spans Spans;

int spans_is_on(const Spans *self);
PyObject *spans_begin(Spans *self, PyObject *category, PyObject *name, PyObject *lane, PyObject *args);
PyObject *spans_end(Spans *self, PyObject *opened, PyObject *args);
PyObject *spans_block(Spans *self, PyObject *const *values, Py_ssize_t count, PyObject *keywords);
int blocks_open(void);
int lives_open(void);

/* What the timeline says of an entry of the runtime (runtime/core/work.py).
 *
 * Nothing of it is touched that is not needed: with hundreds of tensors, what costs is the memory that no cache has. */
typedef struct {
    PyObject *request, *handle, *call; /* valid while the entry is, and until another one is read */
    int64_t submitted_ns;
    int flow;
    PyObject *held[3]; /* what Python code returned for them */
} Origin;

int read_origin(PyObject *entry, Origin *origin);
void forget_origin(Origin *origin);
Life *life_of_entry(PyObject *entry, const Origin *origin, int64_t number);
Life *life_kept(PyObject *entry, int *is_recorded);
int keep_life(PyObject *entry, Life *life); /* NULL: it was recorded */
int64_t another_number(void);
PyObject *origins(PyObject *module, PyObject *entries);

/* Arguments by position or by name: `placed` gets them in the order of `names`, which are interned. */
int place(PyObject *const *names, Py_ssize_t most, PyObject *const *values, Py_ssize_t count, PyObject *keywords,
          PyObject **placed);
int intern(const char *const *texts, PyObject **names, int count);

int64_t now_ns(void);
int thread_time_open(void);
void thread_time_forget(void);

/* Lines, made without the GIL. */

typedef struct {
    char *data;
    size_t used, room;
    int descriptor; /* < 0: everything is kept in `data` */
    int error;      /* errno of the first write that failed; ENOMEM */
    uint64_t written, lines;
} Output;

void output_open(Output *output, int descriptor);
void output_close(Output *output);
void output_record(Output *output, const Head *head, int64_t origin_ns, const char *pid);
void output_flush(Output *output);

#endif
