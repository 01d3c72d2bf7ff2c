/* Records on their way from the training to the file.
 *
 * Whoever has the GIL appends; the writer's thread takes all that waits at once, turns what holds Python objects into
 * bytes, and lets go of the GIL to make lines and write them.  So no lock is needed, and nobody waits for the disk.
 */
#include "recording.h"

#include <errno.h>

#define CHUNK_NBYTES (32 * 1024)
/* Chunks that are kept for the next records. */
#define SPARE_CHUNKS 64
/* Chunks whose objects are made bytes in one go: after a long wait for the disk there may be very many. */
#define CHUNKS_AT_ONCE 64
/* What an object that waits may take, roughly. */
#define OBJECT_NBYTES 512

/* Chunks. */

static Chunk *another_chunk(Queue *queue, size_t nbytes) {
    Chunk *chunk;
    if (nbytes <= CHUNK_NBYTES && queue->spare) {
        chunk = queue->spare;
        queue->spare = chunk->next;
        queue->spares--;
    } else {
        size_t room = nbytes > CHUNK_NBYTES ? nbytes : CHUNK_NBYTES;
        chunk = malloc(sizeof(Chunk) + room);
        if (!chunk) return NULL;
        chunk->room = room;
    }
    chunk->used = 0;
    chunk->next = NULL;
    if (queue->last) queue->last->next = chunk;
    else queue->first = chunk;
    queue->last = chunk;
    return chunk;
}

static void put_aside(Queue *queue, Chunk *chunk) {
    if (chunk->room == CHUNK_NBYTES && queue->spares < SPARE_CHUNKS) {
        chunk->next = queue->spare;
        queue->spare = chunk;
        queue->spares++;
    } else {
        free(chunk);
    }
}

void queue_lost(Queue *queue) { queue->lost++; }

/* Room for a record; NULL, and counted, if too much waits.  No Python code may run before it is filled. */
static inline void *append(Queue *queue, uint32_t kind, size_t nbytes, size_t objects) {
    size_t costs = nbytes + objects * OBJECT_NBYTES;
    Chunk *chunk = queue->last;
    if (queue->nbytes + costs > queue->most_nbytes) {
        queue_lost(queue);
        return NULL;
    }
    if (!chunk || chunk->used + nbytes > chunk->room) {
        chunk = another_chunk(queue, nbytes);
        if (!chunk) {
            queue_lost(queue);
            return NULL;
        }
    }
    Head *head = (Head *)((char *)chunk->at + chunk->used);
    chunk->used += nbytes;
    head->nbytes = (uint32_t)nbytes;
    head->kind = kind;
    queue->nbytes += costs;
    __atomic_store_n(&queue->total, queue->total + 1, __ATOMIC_RELAXED);
    return head;
}

#define FOR_RECORDS(chunk, head)                                                                   \
    for (Head *head = (Head *)(chunk)->at; (char *)head < (char *)(chunk)->at + (chunk)->used; \
         head = (Head *)((char *)head + head->nbytes))

/* Records. */

int queue_call(Queue *queue, PyObject *method, PyObject *values) {
    if (!method || !values) {
        Py_XDECREF(method);
        Py_XDECREF(values);
        PyErr_Clear();
        queue_lost(queue);
        return 0;
    }
    CallRecord *record = append(queue, A_CALL, sizeof(CallRecord), 2);
    if (record) {
        record->make = method;
        record->values = values;
    } else {
        Py_DECREF(method);
        Py_DECREF(values);
    }
    return 0;
}

static void call_of_format(Queue *queue, const char *name, PyObject *values) {
    queue_call(queue, PyObject_GetAttrString(queue->format, name), values);
}

static inline int is_near(int64_t ns) { return ns < MAX_NS && ns > -MAX_NS; }

static void plain_span(Queue *queue, PyObject *name, PyObject *category, int64_t tid, int64_t start_ns, int64_t end_ns,
                       PyObject *args) {
    PlainSpan *record = append(queue, PLAIN_SPAN, sizeof(PlainSpan), 1);
    if (!record) return;
    record->name = Py_NewRef(name);
    record->category = Py_NewRef(category);
    record->args = Py_XNewRef(args);
    record->tid = tid;
    record->start_ns = start_ns;
    record->end_ns = end_ns;
}

static void plain_counter(Queue *queue, PyObject *name, int64_t at_ns, int64_t value) {
    PlainCounter *record = append(queue, PLAIN_COUNTER, sizeof(PlainCounter), 1);
    if (!record) return;
    record->name = Py_NewRef(name);
    record->at_ns = at_ns;
    record->value = value;
}

void queue_span(Queue *queue, PyObject *name, PyObject *category, int64_t tid, int64_t start_ns, int64_t end_ns,
                PyObject *args) {
    if (queue->is_generic) {
        plain_span(queue, name, category, tid, start_ns, end_ns, args);
        return;
    }
    int has_args = args != NULL && args != Py_None && (!PyDict_CheckExact(args) || PyDict_GET_SIZE(args));
    Template *template = NULL;
    if (PyUnicode_CheckExact(name) && PyUnicode_Check(category) && is_near(start_ns) && is_near(end_ns) &&
        (!has_args || PyDict_CheckExact(args))) {
        template = template_of_span(&queue->templates, queue->format, name, category, tid);
        if (!template) PyErr_Clear();
    }
    if (!template) {
        call_of_format(queue, "span",
                       Py_BuildValue("OOLLLO", name, category, (long long)tid, (long long)start_ns, (long long)end_ns,
                                     args ? args : Py_None));
        return;
    }
    SpanRecord *record = append(queue, A_SPAN, sizeof(SpanRecord), (size_t)has_args);
    if (!record) return;
    record->template = template;
    record->start_ns = start_ns;
    record->end_ns = end_ns;
    record->args = has_args ? Py_NewRef(args) : NULL;
}

void queue_counter(Queue *queue, PyObject *name, int64_t at_ns, int64_t value) {
    if (queue->is_generic) {
        plain_counter(queue, name, at_ns, value);
        return;
    }
    Template *template = NULL;
    if (PyUnicode_CheckExact(name) && is_near(at_ns)) {
        template = template_of_counter(&queue->templates, queue->format, name);
        if (!template) PyErr_Clear();
    }
    if (!template) {
        call_of_format(queue, "counter", Py_BuildValue("OLL", name, (long long)at_ns, (long long)value));
        return;
    }
    CounterRecord *record = append(queue, A_COUNTER, sizeof(CounterRecord), 0);
    if (!record) return;
    record->template = template;
    record->at_ns = at_ns;
    record->value = value;
}

static inline int as_ns(PyObject *object, int64_t *ns) {
    int overflow;
    if (!PyLong_CheckExact(object)) return 0;
    *ns = PyLong_AsLongLongAndOverflow(object, &overflow);
    return !overflow;
}

static int has_count(Py_ssize_t count, Py_ssize_t wanted, const char *name) {
    if (count == wanted) return 1;
    PyErr_Format(PyExc_TypeError, "%s takes %zd arguments, not %zd", name, wanted, count);
    return 0;
}

static PyObject *tuple_of(PyObject *const *values, Py_ssize_t count) {
    PyObject *tuple = PyTuple_New(count);
    for (Py_ssize_t i = 0; tuple && i < count; i++) PyTuple_SET_ITEM(tuple, i, Py_NewRef(values[i]));
    return tuple;
}

static PyObject *Queue_span(Queue *self, PyObject *const *values, Py_ssize_t count) {
    int64_t tid, start_ns, end_ns;
    if (!has_count(count, 6, "span")) return NULL;
    if (as_ns(values[2], &tid) && as_ns(values[3], &start_ns) && as_ns(values[4], &end_ns))
        queue_span(self, values[0], values[1], tid, start_ns, end_ns, values[5]);
    else
        call_of_format(self, "span", tuple_of(values, count));
    Py_RETURN_NONE;
}

static PyObject *Queue_counter(Queue *self, PyObject *const *values, Py_ssize_t count) {
    int64_t at_ns, value;
    if (!has_count(count, 3, "counter")) return NULL;
    if (as_ns(values[1], &at_ns) && as_ns(values[2], &value)) queue_counter(self, values[0], at_ns, value);
    else call_of_format(self, "counter", tuple_of(values, count));
    Py_RETURN_NONE;
}

static int is_plain(Queue *queue, PyObject *lives) {
    if (queue->is_generic || !PyList_CheckExact(lives)) return 0;
    for (Py_ssize_t i = 0; i < PyList_GET_SIZE(lives); i++) {
        Life *life = (Life *)PyList_GET_ITEM(lives, i);
        if (!Py_IS_TYPE((PyObject *)life, &LifeType)) return 0;
        if (!life->name || !PyUnicode_CheckExact(life->name) || !is_near(life->submitted_ns)) return 0;
    }
    return 1;
}

/* The templates of all tensors; Python code may run meanwhile. */
static int find_templates(Queue *queue, PyObject *lives, int64_t process_set, Template **found, Py_ssize_t count) {
    for (Py_ssize_t i = 0; i < count; i++) {
        if (PyList_GET_SIZE(lives) != count) return -1;
        Life *life = (Life *)Py_NewRef(PyList_GET_ITEM(lives, i));
        found[i] = template_of_life(&queue->templates, queue->format, life, process_set);
        Py_DECREF(life);
        if (!found[i]) {
            PyErr_Clear();
            return -1;
        }
    }
    return PyList_GET_SIZE(lives) == count ? 0 : -1;
}

/* A record for so many lives; NULL if there is no room. */
static LivesRecord *append_batch(Queue *queue, Py_ssize_t count, int64_t seq, const int64_t *times_ns) {
    size_t nbytes = sizeof(LivesRecord) + (size_t)count * sizeof(LifeRecord);
    if (nbytes > UINT32_MAX) {
        queue_lost(queue);
        return NULL;
    }
    LivesRecord *record = append(queue, SOME_LIVES, nbytes, 0);
    if (!record) return NULL;
    record->seq = seq;
    record->negotiated_ns = times_ns[0];
    record->start_ns = times_ns[1];
    record->end_ns = times_ns[2];
    record->count = (uint32_t)count;
    return record;
}

static int append_lives(Queue *queue, PyObject *lives, int64_t process_set, int64_t seq, const int64_t *times_ns) {
    Py_ssize_t count = PyList_GET_SIZE(lives);
    Template *few[64], **templates = few;
    if (count > 64 && !(templates = PyMem_Malloc((size_t)count * sizeof *templates))) return -1;
    queue->templates.pins++;
    int error = find_templates(queue, lives, process_set, templates, count);
    queue->templates.pins--;
    LivesRecord *record = error ? NULL : append_batch(queue, count, seq, times_ns);
    if (record) {
        for (Py_ssize_t i = 0; i < count; i++) {
            Life *life = (Life *)PyList_GET_ITEM(lives, i);
            LifeRecord *one = &record->lives[i];
            one->template = templates[i];
            one->number = life->number;
            one->submitted_ns = life->submitted_ns;
            one->flow = (uint32_t)life->flow;
            one->whole = !life->is_claimed;
            life->is_claimed = 1;
        }
    }
    if (templates != few) PyMem_Free(templates);
    return error;
}

static PyObject *Queue_lives(Queue *self, PyObject *const *values, Py_ssize_t count) {
    int64_t process_set, seq, times_ns[3];
    if (!has_count(count, 4, "lives")) return NULL;
    PyObject *lives = values[0], *times = values[3];
    int is_simple = as_ns(values[1], &process_set) && as_ns(values[2], &seq) && PyTuple_CheckExact(times) &&
                    PyTuple_GET_SIZE(times) == 3 && is_plain(self, lives);
    for (int i = 0; i < 3 && is_simple; i++)
        is_simple = as_ns(PyTuple_GET_ITEM(times, i), &times_ns[i]) && is_near(times_ns[i]);
    if (!is_simple || append_lives(self, lives, process_set, seq, times_ns) < 0)
        call_of_format(self, "lives", tuple_of(values, count));
    Py_RETURN_NONE;
}

/* Entries of the runtime, whose lives are made here: see `Queue.carried` in portable_queue.py. */

/* The template of an entry's life; Python code may run. */
static Template *template_of_entry(Queue *queue, PyObject *entry, const Origin *origin, int64_t process_set) {
    Remembered *known = remembered_at(&queue->templates, origin->request);
    if (known->request == origin->request && known->call == origin->call) return known->template;
    PyObject *request = Py_NewRef(origin->request), *call = Py_NewRef(origin->call);
    Life *life = life_of_entry(entry, origin, 0);
    Template *template = NULL;
    if (life && PyUnicode_CheckExact(life->name))
        template = template_of_life(&queue->templates, queue->format, life, process_set);
    if (template) templates_remember(&queue->templates, request, call, template);
    Py_XDECREF(life);
    Py_DECREF(request);
    Py_DECREF(call);
    return template;
}

typedef struct {
    Origin origin;
    int64_t process_set;
    int executed;
} Carrying;

/* Fill in the record of one entry.  Returns 0 if it has none to be written; -1, perhaps with an error, if it cannot be. */
static int carry(Queue *queue, PyObject *entry, Carrying *carrying, LifeRecord *one) {
    int is_recorded;
    Life *life = life_kept(entry, &is_recorded);
    if (is_recorded) return 0;
    if (life) {
        one->number = life->number;
        one->submitted_ns = life->submitted_ns;
        one->flow = life->flow && carrying->executed;
        one->whole = !life->is_claimed;
        life->is_claimed = 1;
        int failed = keep_life(entry, NULL) < 0;
        one->template =
            failed ? NULL : template_of_life(&queue->templates, queue->format, life, carrying->process_set);
        Py_DECREF(life);
    } else {
        int is_known = PyErr_Occurred() ? -1 : read_origin(entry, &carrying->origin);
        if (is_known <= 0) return is_known;
        if (keep_life(entry, NULL) < 0) return -1;
        one->number = another_number();
        one->submitted_ns = carrying->origin.submitted_ns;
        one->flow = carrying->origin.flow && carrying->executed;
        one->whole = 1;
        one->template = template_of_entry(queue, entry, &carrying->origin, carrying->process_set);
    }
    return one->template && is_near(one->submitted_ns) ? 1 : -1;
}

static void carry_all(Queue *queue, PyObject *entries, Carrying *carrying, int64_t seq, const int64_t *times_ns) {
    Py_ssize_t count = PySequence_Fast_GET_SIZE(entries), found = 0;
    LifeRecord few[32], *lives = few;
    if (count > 32 && !(lives = PyMem_Malloc((size_t)count * sizeof *lives))) {
        queue_lost(queue);
        return;
    }
    queue->templates.pins++;
    for (Py_ssize_t i = 0; i < count && i < PySequence_Fast_GET_SIZE(entries); i++) {
        PyObject *entry = Py_NewRef(PySequence_Fast_GET_ITEM(entries, i));
        int result = carry(queue, entry, carrying, &lives[found]);
        Py_DECREF(entry);
        if (result > 0) {
            found++;
        } else if (result < 0) {
            PyErr_Clear();
            queue_lost(queue);
        }
    }
    queue->templates.pins--;
    forget_origin(&carrying->origin);
    LivesRecord *record = found ? append_batch(queue, found, seq, times_ns) : NULL;
    if (record) memcpy(record->lives, lives, (size_t)found * sizeof *lives);
    if (lives != few) PyMem_Free(lives);
}

/* A format that is not known here gets lives as objects. */
static PyObject *lives_of(PyObject *entries, int executed) {
    PyObject *lives = PyList_New(0);
    Origin origin = {0};
    for (Py_ssize_t i = 0; lives && i < PySequence_Fast_GET_SIZE(entries); i++) {
        PyObject *entry = PySequence_Fast_GET_ITEM(entries, i);
        int is_recorded, is_known = 1;
        Life *life = life_kept(entry, &is_recorded);
        if (is_recorded) continue;
        if (!life && !PyErr_Occurred() && (is_known = read_origin(entry, &origin)) > 0)
            life = life_of_entry(entry, &origin, another_number());
        if (is_known == 0) continue;
        int failed = !life || keep_life(entry, NULL) < 0;
        if (!failed && !executed) life->flow = 0;
        if (failed || PyList_Append(lives, (PyObject *)life) < 0) Py_CLEAR(lives);
        Py_XDECREF(life);
    }
    forget_origin(&origin);
    return lives;
}

static PyObject *Queue_carried(Queue *self, PyObject *const *values, Py_ssize_t count) {
    Carrying carrying = {0};
    int64_t seq, times_ns[3];
    if (!has_count(count, 5, "carried")) return NULL;
    PyObject *times = values[3];
    carrying.executed = PyObject_IsTrue(values[4]);
    int is_simple = as_ns(values[1], &carrying.process_set) && as_ns(values[2], &seq) && PyTuple_CheckExact(times) &&
                    PyTuple_GET_SIZE(times) == 3 && carrying.executed >= 0;
    for (int i = 0; i < 3 && is_simple; i++)
        is_simple = as_ns(PyTuple_GET_ITEM(times, i), &times_ns[i]) && is_near(times_ns[i]);
    if (!is_simple) {
        if (!PyErr_Occurred()) PyErr_SetString(PyExc_TypeError, "numbers of the collective are needed");
        return NULL;
    }
    PyObject *entries = PySequence_Fast(values[0], "not a sequence of entries");
    if (!entries) return NULL;
    if (self->is_generic) {
        PyObject *lives = lives_of(entries, carrying.executed);
        if (!lives) {
            PyErr_Clear();
            queue_lost(self);
        } else if (PyList_GET_SIZE(lives)) {
            call_of_format(self, "lives", Py_BuildValue("OOOO", lives, values[1], values[2], times));
        }
        Py_XDECREF(lives);
    } else {
        carry_all(self, entries, &carrying, seq, times_ns);
    }
    Py_DECREF(entries);
    Py_RETURN_NONE;
}

static PyObject *Queue_begin_life(Queue *self, PyObject *entry) {
    int is_recorded;
    Origin origin = {0};
    Life *life = life_kept(entry, &is_recorded);
    (void)self;
    if (PyErr_Occurred()) return NULL;
    if (life || is_recorded) {
        Py_XDECREF(life); /* an earlier flush wrote it */
        Py_RETURN_NONE;
    }
    int is_known = read_origin(entry, &origin);
    if (is_known > 0) life = life_of_entry(entry, &origin, another_number());
    forget_origin(&origin);
    if (PyErr_Occurred()) return NULL;
    if (!life) Py_RETURN_NONE;
    life->is_claimed = 1;
    /* Its size may have been asked of Python code, during which it may have been recorded. */
    Life *meanwhile = life_kept(entry, &is_recorded);
    if (meanwhile || is_recorded || PyErr_Occurred() || keep_life(entry, life) < 0) {
        Py_XDECREF(meanwhile);
        Py_DECREF(life);
        if (PyErr_Occurred()) return NULL;
        Py_RETURN_NONE;
    }
    return (PyObject *)life;
}

static PyObject *Queue_call(Queue *self, PyObject *const *values, Py_ssize_t count) {
    if (count < 1) {
        PyErr_SetString(PyExc_TypeError, "call takes a function and its arguments");
        return NULL;
    }
    queue_call(self, Py_NewRef(values[0]), tuple_of(values + 1, count - 1));
    Py_RETURN_NONE;
}

/* What the writer's thread does. */

static PyObject *as_bytes(PyObject *text) {
    PyObject *bytes = text && PyUnicode_Check(text) ? PyUnicode_AsUTF8String(text) : NULL;
    Py_XDECREF(text);
    return bytes;
}

static void drop_objects(Head *head) {
    if (head->kind == A_SPAN) {
        Py_CLEAR(((SpanRecord *)head)->args);
    } else if (head->kind == A_CALL || head->kind == A_TEXT) {
        Py_CLEAR(((CallRecord *)head)->make);
        Py_CLEAR(((CallRecord *)head)->values);
    } else if (head->kind == PLAIN_SPAN) {
        PlainSpan *record = (PlainSpan *)head;
        Py_CLEAR(record->name);
        Py_CLEAR(record->category);
        Py_CLEAR(record->args);
    } else if (head->kind == PLAIN_COUNTER) {
        Py_CLEAR(((PlainCounter *)head)->name);
    }
}

/* The lines that the format makes of a plain record. */
static PyObject *lines_of(Queue *queue, const Head *head) {
    if (head->kind == PLAIN_SPAN) {
        const PlainSpan *record = (const PlainSpan *)head;
        return PyObject_CallMethod(queue->format, "span", "OOLLLO", record->name, record->category,
                                   (long long)record->tid, (long long)record->start_ns, (long long)record->end_ns,
                                   record->args ? record->args : Py_None);
    }
    const PlainCounter *record = (const PlainCounter *)head;
    return PyObject_CallMethod(queue->format, "counter", "OLL", record->name, (long long)record->at_ns,
                               (long long)record->value);
}

/* Turn the objects of a record into bytes; one that cannot be written is left out and counted. */
static void to_bytes(Queue *queue, Head *head) {
    PyObject *bytes, **place;
    if (head->kind == A_SPAN) {
        place = &((SpanRecord *)head)->args;
        if (!*place) return;
        bytes = as_bytes(PyObject_CallMethod(queue->format, "encode_args", "(O)", *place));
    } else if (head->kind == A_CALL) {
        CallRecord *record = (CallRecord *)head;
        place = &record->make;
        bytes = as_bytes(PyObject_CallObject(record->make, record->values));
        Py_CLEAR(record->values);
        head->kind = A_TEXT;
    } else if (head->kind == PLAIN_SPAN || head->kind == PLAIN_COUNTER) {
        CallRecord *record = (CallRecord *)head; /* no larger than these */
        bytes = as_bytes(lines_of(queue, head));
        drop_objects(head);
        record->make = record->values = NULL;
        head->kind = A_TEXT;
        place = &record->make;
    } else {
        return;
    }
    if (bytes) {
        Py_XSETREF(*place, bytes);
        return;
    }
    PyErr_Clear();
    queue_lost(queue);
    drop_objects(head);
    head->kind = NOTHING;
}

/* Make lines of some chunks, write them, and put the chunks aside. */
static void emit_some(Queue *queue, Chunk *chunks, Output *output) {
    char pid[24];
    snprintf(pid, sizeof pid, "%lld", (long long)queue->pid);
    for (Chunk *chunk = chunks; chunk; chunk = chunk->next)
        FOR_RECORDS(chunk, head) to_bytes(queue, head);
    Py_BEGIN_ALLOW_THREADS;
    for (Chunk *chunk = chunks; chunk; chunk = chunk->next)
        FOR_RECORDS(chunk, head) {
            if (output->error) break;
            output_record(output, head, queue->origin_ns, pid);
        }
    Py_END_ALLOW_THREADS;
    while (chunks) {
        Chunk *next = chunks->next;
        FOR_RECORDS(chunks, head) drop_objects(head);
        put_aside(queue, chunks);
        chunks = next;
    }
}

static int emit(Queue *queue, Output *output) {
    if (queue->is_writing) {
        PyErr_SetString(PyExc_RuntimeError, "the records are being written by another thread");
        return -1;
    }
    queue->is_writing = 1;
    /* Only what waits now can point to templates that are no longer found now. */
    Template *unused = NULL;
    if (!queue->templates.pins) {
        unused = queue->templates.retired;
        queue->templates.retired = NULL;
    }
    Chunk *chunks = queue->first;
    queue->first = queue->last = NULL;
    queue->nbytes = 0;
    __atomic_store_n(&queue->taken, queue->total, __ATOMIC_RELAXED);
    while (chunks) {
        Chunk *last = chunks, *rest;
        for (int i = 1; i < CHUNKS_AT_ONCE && last->next; i++) last = last->next;
        rest = last->next;
        last->next = NULL;
        emit_some(queue, chunks, output);
        chunks = rest;
    }
    Py_BEGIN_ALLOW_THREADS;
    output_flush(output);
    Py_END_ALLOW_THREADS;
    templates_free(unused);
    queue->is_writing = 0;
    return 0;
}

static PyObject *Queue_write(Queue *self, PyObject *argument) {
    Output output;
    long descriptor = PyLong_AsLong(argument);
    if (descriptor == -1 && PyErr_Occurred()) return NULL;
    if (descriptor < 0 || descriptor > INT32_MAX) {
        PyErr_SetString(PyExc_ValueError, "not a descriptor of a file");
        return NULL;
    }
    output_open(&output, (int)descriptor);
    int failed = emit(self, &output);
    output_close(&output);
    if (failed) return NULL;
    if (output.error) {
        errno = output.error;
        return PyErr_SetFromErrno(PyExc_OSError);
    }
    return Py_BuildValue("KK", (unsigned long long)output.written, (unsigned long long)output.lines);
}

static PyObject *Queue_take(Queue *self, PyObject *nothing) {
    Output output;
    (void)nothing;
    output_open(&output, -1);
    PyObject *taken = NULL;
    if (emit(self, &output) == 0)
        taken = output.error ? PyErr_NoMemory()
                             : PyBytes_FromStringAndSize(output.data ? output.data : "", (Py_ssize_t)output.used);
    output_close(&output);
    return taken;
}

static void drop_chunks(Chunk *chunks, uint64_t *count) {
    while (chunks) {
        Chunk *next = chunks->next;
        FOR_RECORDS(chunks, head) {
            drop_objects(head);
            ++*count;
        }
        free(chunks);
        chunks = next;
    }
}

static PyObject *Queue_drop(Queue *self, PyObject *nothing) {
    (void)nothing;
    Chunk *chunks = self->first;
    self->first = self->last = NULL;
    self->nbytes = 0;
    __atomic_store_n(&self->taken, self->total, __ATOMIC_RELAXED);
    drop_chunks(chunks, &self->lost);
    Py_RETURN_NONE;
}

/* Block until it is time to write, without the GIL. */
static PyObject *Queue_wait(Queue *self, PyObject *const *values, Py_ssize_t count) {
    if (!has_count(count, 2, "wait")) return NULL;
    double most_s = PyFloat_AsDouble(values[0]), tick_s = PyFloat_AsDouble(values[1]);
    if (PyErr_Occurred()) return NULL;
    Py_BEGIN_ALLOW_THREADS;
    int64_t left_ns, deadline_ns = now_ns() + (int64_t)(most_s * 1e9);
    uint64_t seen = __atomic_load_n(&self->total, __ATOMIC_RELAXED);
    while ((left_ns = deadline_ns - now_ns()) > 0) {
        int64_t tick_ns = (int64_t)(tick_s * 1e9);
        PY_TIMEOUT_T us = (left_ns < tick_ns ? left_ns : tick_ns) / 1000 + 1;
        if (PyThread_acquire_lock_timed(self->wake, us, 0) == PY_LOCK_ACQUIRED) break;
        uint64_t total = __atomic_load_n(&self->total, __ATOMIC_RELAXED);
        if (total == seen && total != __atomic_load_n(&self->taken, __ATOMIC_RELAXED)) break;
        seen = total;
    }
    Py_END_ALLOW_THREADS;
    Py_RETURN_NONE;
}

static PyObject *Queue_wake(Queue *self, PyObject *nothing) {
    (void)nothing;
    /* Released whether or not somebody waits; free already means that a wish is noted. */
    PyThread_acquire_lock(self->wake, NOWAIT_LOCK);
    PyThread_release_lock(self->wake);
    Py_RETURN_NONE;
}

static PyObject *Queue_open_spans(Queue *self, PyObject *nothing) {
    (void)nothing;
    PyObject *found = PyList_New(0);
    for (OpenSpan *opened = self->oldest; found && opened; opened = opened->newer)
        if (PyList_Append(found, (PyObject *)opened) < 0) Py_CLEAR(found);
    return found;
}

/* Take nothing more, and let go of spans that are open, each of which holds on to the queue. */
static PyObject *Queue_close(Queue *self, PyObject *nothing) {
    (void)nothing;
    self->most_nbytes = 0;
    while (self->oldest) open_span_forget(self->oldest);
    Py_RETURN_NONE;
}

/* The type. */

/* A number of the format; 0 where it does not fit, -1 after an error. */
static int number_of(PyObject *format, const char *name, int64_t *value) {
    PyObject *found = PyObject_GetAttrString(format, name);
    if (!found) return -1;
    int fits = as_ns(found, value);
    Py_DECREF(found);
    return fits && is_near(*value);
}

/* Whether lines are made here, rather than by calls of the format's methods. */
static int read_format(Queue *self) {
    PyObject *templated = PyObject_GetAttrString(self->format, "is_templated");
    int is_templated = templated ? PyObject_IsTrue(templated) : -1;
    Py_XDECREF(templated);
    if (is_templated <= 0) return is_templated;
    int has_pid = number_of(self->format, "pid", &self->pid);
    return has_pid <= 0 ? has_pid : number_of(self->format, "origin_ns", &self->origin_ns);
}

static PyObject *Queue_new(PyTypeObject *type, PyObject *args, PyObject *kwargs) {
    static char *keywords[] = {"format", "most_nbytes", NULL};
    PyObject *format;
    Py_ssize_t most_nbytes;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "On", keywords, &format, &most_nbytes)) return NULL;
    Queue *self = (Queue *)type->tp_alloc(type, 0);
    if (!self) return NULL;
    self->format = Py_NewRef(format);
    self->most_nbytes = most_nbytes > 0 ? (size_t)most_nbytes : 0;
    self->wake = PyThread_allocate_lock();
    int is_templated = read_format(self);
    self->is_generic = is_templated == 0;
    if (is_templated < 0 || !self->wake || templates_open(&self->templates) < 0) {
        if (!PyErr_Occurred()) PyErr_NoMemory();
        Py_DECREF(self);
        return NULL;
    }
    PyThread_acquire_lock(self->wake, NOWAIT_LOCK);
    return (PyObject *)self;
}

static void Queue_dealloc(Queue *self) {
    uint64_t count = 0;
    drop_chunks(self->first, &count);
    drop_chunks(self->spare, &count);
    templates_close(&self->templates);
    if (self->wake) PyThread_free_lock(self->wake);
    Py_XDECREF(self->format);
    Py_TYPE(self)->tp_free((PyObject *)self);
}

static PyMethodDef Queue_methods[] = {
    {"span", (PyCFunction)(void *)Queue_span, METH_FASTCALL, NULL},
    {"counter", (PyCFunction)(void *)Queue_counter, METH_FASTCALL, NULL},
    {"lives", (PyCFunction)(void *)Queue_lives, METH_FASTCALL, NULL},
    {"carried", (PyCFunction)(void *)Queue_carried, METH_FASTCALL, NULL},
    {"begin_life", (PyCFunction)Queue_begin_life, METH_O, NULL},
    {"call", (PyCFunction)(void *)Queue_call, METH_FASTCALL, NULL},
    {"write", (PyCFunction)Queue_write, METH_O, NULL},
    {"take", (PyCFunction)Queue_take, METH_NOARGS, NULL},
    {"drop", (PyCFunction)Queue_drop, METH_NOARGS, NULL},
    {"wait", (PyCFunction)(void *)Queue_wait, METH_FASTCALL, NULL},
    {"wake", (PyCFunction)Queue_wake, METH_NOARGS, NULL},
    {"close", (PyCFunction)Queue_close, METH_NOARGS, NULL},
    {"open_spans", (PyCFunction)Queue_open_spans, METH_NOARGS, NULL},
    {NULL, NULL, 0, NULL},
};

static PyMemberDef Queue_members[] = {
    {"lost", T_ULONGLONG, offsetof(Queue, lost), READONLY, NULL},
    {"total", T_ULONGLONG, offsetof(Queue, total), READONLY, NULL},
    {NULL, 0, 0, 0, NULL},
};

PyTypeObject QueueType = {
    PyVarObject_HEAD_INIT(NULL, 0).tp_name = "tlkit.timeline.record.queue._native.Queue",
    .tp_basicsize = sizeof(Queue),
    .tp_flags = Py_TPFLAGS_DEFAULT,
    .tp_new = Queue_new,
    .tp_dealloc = (destructor)Queue_dealloc,
    .tp_methods = Queue_methods,
    .tp_members = Queue_members,
};
