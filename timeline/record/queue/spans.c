/* `begin` and `end` (see timeline/record/recorder.py), and what they hand around.
 *
 * Neither takes part in Python's collection of cycles: a span's args are what a line of JSON can hold.
 */
#include "recording.h"

/* Spans that have begun. */

static void OpenSpan_dealloc(OpenSpan *self) {
    Py_XDECREF(self->name);
    Py_XDECREF(self->category);
    Py_XDECREF(self->args);
    Py_XDECREF(self->nvtx);
    Py_XDECREF(self->device);
    Py_XDECREF((PyObject *)self->queue);
    PyObject_Free(self);
}

static void remember(OpenSpan *opened) {
    Queue *queue = opened->queue;
    opened->older = queue->newest;
    if (queue->newest) queue->newest->newer = opened;
    else queue->oldest = opened;
    queue->newest = opened;
    opened->is_listed = 1;
    Py_INCREF(opened);
}

void open_span_forget(OpenSpan *opened) {
    Queue *queue = opened->queue;
    if (!opened->is_listed) return;
    opened->is_listed = 0;
    if (opened->older) opened->older->newer = opened->newer;
    else queue->oldest = opened->newer;
    if (opened->newer) opened->newer->older = opened->older;
    else queue->newest = opened->older;
    opened->older = opened->newer = NULL;
    Py_DECREF(opened);
}

static PyObject *OpenSpan_claim(OpenSpan *self, PyObject *nothing) {
    (void)nothing;
    if (self->is_claimed) Py_RETURN_FALSE;
    self->is_claimed = 1;
    Py_RETURN_TRUE;
}

static PyMethodDef OpenSpan_methods[] = {
    {"claim", (PyCFunction)OpenSpan_claim, METH_NOARGS, NULL},
    {NULL, NULL, 0, NULL},
};

static PyMemberDef OpenSpan_members[] = {
    {"name", T_OBJECT, offsetof(OpenSpan, name), READONLY, NULL},
    {"category", T_OBJECT, offsetof(OpenSpan, category), READONLY, NULL},
    {"args", T_OBJECT, offsetof(OpenSpan, args), 0, NULL},
    {"tid", T_INT, offsetof(OpenSpan, tid), READONLY, NULL},
    {"start_ns", T_LONGLONG, offsetof(OpenSpan, start_ns), 0, NULL},
    {"is_claimed", T_BOOL, offsetof(OpenSpan, is_claimed), READONLY, NULL},
    {NULL, 0, 0, 0, NULL},
};

PyTypeObject OpenSpanType = {
    PyVarObject_HEAD_INIT(NULL, 0).tp_name = "tlkit.timeline.record.queue._native.OpenSpan",
    .tp_basicsize = sizeof(OpenSpan),
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_DISALLOW_INSTANTIATION,
    .tp_dealloc = (destructor)OpenSpan_dealloc,
    .tp_methods = OpenSpan_methods,
    .tp_members = OpenSpan_members,
};

/* The seam. */

#define MAX_LANES 16
#define MAX_PHASES 16

typedef struct {
    PyObject *lane;
    int tid;
} Lane;

typedef struct {
    PyObject *category, *cpu_counter, *starved_counter; /* counters: NULL where the phase is not metered */
    int is_on_device;
} Phase;

struct Spans {
    PyObject_HEAD
    Lane lanes[MAX_LANES];
    Phase phases[MAX_PHASES];
    int lane_count, phase_count;
    PyObject *compute, *communication; /* lanes; borrowed of `lanes` */
    int compute_tid, host_tid;
    PyObject *synchronize;
    PyObject *step_counters[3]; /* names: what the thread got outside of the parts, how long it waited there; the process */
    StepTime step_time;
    Queue *queue;            /* NULL while no timeline is written */
    PyObject *nvtx, *device; /* NULL for none */
    unsigned long training_thread;
    Py_ssize_t depth;  /* spans of the compute lane that are open */
    OpenSpan *metered; /* the phase that is open; its owner keeps it alive, or it is forgotten with its queue */
};

static const char *const BEGIN_NAMES[] = {"category", "name", "lane", "args", "payload"};
static PyObject *begin_names[5];
static const char *const END_NAMES[] = {"opened", "args"};
static PyObject *end_names[2];
static PyObject *push_name, *pop_name, *mark_name, *span_name;

static int tid_of(const Spans *self, PyObject *lane) {
    for (int i = 0; i < self->lane_count; i++)
        if (self->lanes[i].lane == lane) return self->lanes[i].tid;
    return -1;
}

static const Phase *phase_of(const Spans *self, PyObject *category) {
    for (int i = 0; i < self->phase_count; i++)
        if (self->phases[i].category == category) return &self->phases[i];
    return NULL;
}

static int is_synchronize(const Spans *self, PyObject *name) {
    return name == self->synchronize || (PyUnicode_Check(name) && PyUnicode_Compare(name, self->synchronize) == 0);
}

static inline PyObject *real(PyObject *object) { return object == Py_None ? NULL : object; }

static OpenSpan *open_span(PyObject *category, PyObject *name, int tid, PyObject *args, Queue *queue) {
    OpenSpan *opened = PyObject_New(OpenSpan, &OpenSpanType);
    if (!opened) return NULL;
    opened->name = Py_NewRef(name);
    opened->category = Py_NewRef(category);
    opened->args = Py_XNewRef(args);
    opened->nvtx = opened->device = NULL;
    opened->queue = (Queue *)Py_XNewRef((PyObject *)queue);
    opened->older = opened->newer = NULL;
    opened->tid = tid;
    opened->is_claimed = opened->is_metered = opened->is_listed = 0;
    opened->start_ns = now_ns();
    return opened;
}

/* Let go of a span that has ended. */
static void leave(Spans *self, OpenSpan *opened) {
    if ((opened->tid == self->compute_tid || opened->tid == self->host_tid) && self->depth > 0) self->depth--;
    open_span_forget(opened);
}

static void stop_metering(Spans *self, OpenSpan *opened) {
    if (self->metered == opened) Py_CLEAR(self->metered);
}

/* What begins beside the span: the meter of the thread, the device's mark. */
static int begin_phase(Spans *self, OpenSpan *opened, int is_on_device) {
    const Phase *phase = phase_of(self, opened->category);
    if (!self->metered && ((phase && phase->cpu_counter) || is_synchronize(self, opened->name))) {
        self->metered = (OpenSpan *)Py_NewRef((PyObject *)opened);
        opened->is_metered = 1;
        part_begin(&opened->begun);
    }
    if (is_on_device && phase && phase->is_on_device) {
        opened->device = PyObject_CallMethodNoArgs(self->device, mark_name);
        if (!opened->device) return -1;
    }
    return 0;
}

static PyObject *begin_span(Spans *self, PyObject *category, PyObject *name, PyObject *lane, PyObject *args,
                            PyObject *payload) {
    Queue *queue = self->queue;
    if (!lane) lane = self->compute;
    int tid = tid_of(self, lane), is_compute = lane == self->compute;
    if (tid < 0) {
        PyErr_SetObject(PyExc_KeyError, lane);
        return NULL;
    }
    if (lane != self->communication) {
        if (PyThread_get_thread_ident() != self->training_thread) queue = NULL;
        else if (is_compute) self->depth++;
    }
    int is_on_device = is_compute && self->device;
    OpenSpan *opened = open_span(category, name, is_on_device ? self->host_tid : tid, args, queue);
    if (!opened) return NULL;
    if (queue) {
        remember(opened);
        if (begin_phase(self, opened, is_on_device) < 0) goto failed;
    }
    if (self->nvtx) {
        opened->nvtx = Py_NewRef(self->nvtx);
        PyObject *pushed = PyObject_CallMethodObjArgs(opened->nvtx, push_name, category, name,
                                                      payload ? payload : Py_None, NULL);
        if (!pushed) goto failed;
        Py_DECREF(pushed);
    }
    return (PyObject *)opened;
failed:
    if (queue) leave(self, opened);
    stop_metering(self, opened);
    Py_DECREF(opened);
    return NULL;
}

static PyObject *Spans_begin(Spans *self, PyObject *const *values, Py_ssize_t count, PyObject *keywords) {
    if (!spans_is_on(self)) Py_RETURN_NONE;
    PyObject *placed[5] = {NULL};
    if (place(begin_names, 5, values, count, keywords, placed) < 0) return NULL;
    if (!placed[0] || !placed[1]) return PyErr_Format(PyExc_TypeError, "a span has a category and a name");
    return begin_span(self, placed[0], placed[1], placed[2], placed[3] ? real(placed[3]) : NULL, placed[4]);
}

PyObject *spans_begin(Spans *self, PyObject *category, PyObject *name, PyObject *lane, PyObject *args) {
    if (!spans_is_on(self)) Py_RETURN_NONE;
    return begin_span(self, category, name, lane, args, NULL);
}

static int pop_range(OpenSpan *opened) {
    if (!opened->nvtx) return 0;
    PyObject *popped = PyObject_CallMethodNoArgs(opened->nvtx, pop_name);
    Py_CLEAR(opened->nvtx);
    Py_XDECREF(popped);
    return popped ? 0 : -1;
}

/* The span's args with those of its end. */
static int add_args(OpenSpan *opened, PyObject *args) {
    if (!args || (PyDict_Check(args) && !PyDict_GET_SIZE(args))) return 0;
    PyObject *whole;
    if (opened->args && PyDict_Check(opened->args) && PyDict_GET_SIZE(opened->args)) {
        whole = PyDict_Copy(opened->args);
        if (!whole || PyDict_Update(whole, args) < 0) {
            Py_XDECREF(whole);
            return -1;
        }
    } else {
        whole = Py_NewRef(args);
    }
    Py_XSETREF(opened->args, whole);
    return 0;
}

static int tell_device(Spans *self, OpenSpan *opened) {
    if (!opened->device || !self->device) return 0;
    PyObject *mark = PyObject_CallMethodNoArgs(self->device, mark_name);
    PyObject *marks = mark ? PyTuple_Pack(2, opened->device, mark) : NULL;
    PyObject *told = NULL;
    if (marks)
        told = PyObject_CallMethodObjArgs(self->device, span_name, self->compute, opened->category, opened->name, marks,
                                          opened->args ? opened->args : Py_None, NULL);
    Py_XDECREF(mark);
    Py_XDECREF(marks);
    Py_XDECREF(told);
    return told ? 0 : -1;
}

/* What the training thread got of the processor in a phase. */
static void count_part(Spans *self, Queue *queue, OpenSpan *opened, int64_t end_ns) {
    PartTime part = part_end(&opened->begun);
    step_time_add(&self->step_time, part);
    const Phase *phase = phase_of(self, opened->category);
    if (!phase || !phase->cpu_counter || is_synchronize(self, opened->name)) return;
    queue_counter(queue, phase->cpu_counter, end_ns, part.ran_ns);
    if (part.waited_ns >= 0) queue_counter(queue, phase->starved_counter, end_ns, part.waited_ns);
}

static PyObject *end_span(Spans *self, OpenSpan *opened, PyObject *args) {
    int64_t end_ns = now_ns();
    if (pop_range(opened) < 0) return NULL;
    Queue *queue = opened->queue;
    if (!queue) Py_RETURN_NONE;
    leave(self, opened);
    opened->queue = NULL; /* a second end says nothing */
    int failed = 1;
    if (add_args(opened, args) < 0 || tell_device(self, opened) < 0) goto done;
    if (!opened->is_claimed) {
        opened->is_claimed = 1;
        queue_span(queue, opened->name, opened->category, opened->tid, opened->start_ns, end_ns, opened->args);
    } else {
        PyObject *values = Py_BuildValue("OOiLO", opened->name, opened->category, opened->tid, (long long)end_ns,
                                         args ? args : Py_None);
        queue_call(queue, PyObject_GetAttrString(queue->format, "end"), values);
    }
    failed = 0;
    if (opened->is_metered) {
        stop_metering(self, opened);
        count_part(self, queue, opened, end_ns);
    }
done:
    Py_DECREF((PyObject *)queue);
    if (failed) return NULL;
    Py_RETURN_NONE;
}

static OpenSpan *as_open_span(PyObject *object) {
    if (object && Py_IS_TYPE(object, &OpenSpanType)) return (OpenSpan *)object;
    PyErr_SetString(PyExc_TypeError, "not a span that `begin` returned");
    return NULL;
}

static PyObject *Spans_end(Spans *self, PyObject *const *values, Py_ssize_t count, PyObject *keywords) {
    if (count && values[0] == Py_None) Py_RETURN_NONE;
    PyObject *placed[2] = {NULL};
    if (place(end_names, 2, values, count, keywords, placed) < 0) return NULL;
    if (placed[0] == Py_None) Py_RETURN_NONE;
    OpenSpan *opened = as_open_span(placed[0]);
    return opened ? end_span(self, opened, placed[1] ? real(placed[1]) : NULL) : NULL;
}

PyObject *spans_end(Spans *self, PyObject *opened, PyObject *args) {
    if (opened == Py_None) Py_RETURN_NONE;
    return end_span(self, (OpenSpan *)opened, args);
}

static PyObject *Spans_discard(Spans *self, PyObject *object) {
    if (object == Py_None) Py_RETURN_NONE;
    OpenSpan *opened = as_open_span(object);
    if (!opened) return NULL;
    if (opened->is_claimed) return end_span(self, opened, NULL);
    opened->is_claimed = 1;
    if (opened->queue) {
        leave(self, opened);
        Py_CLEAR(opened->queue);
    }
    stop_metering(self, opened);
    if (pop_range(opened) < 0) return NULL;
    Py_RETURN_NONE;
}

int spans_is_on(const Spans *self) { return self->queue || self->nvtx; }

static PyObject *Spans_is_on(Spans *self, PyObject *nothing) {
    (void)nothing;
    return PyBool_FromLong(spans_is_on(self));
}

static PyObject *Spans_is_timeline_on(Spans *self, PyObject *nothing) {
    (void)nothing;
    return PyBool_FromLong(self->queue != NULL);
}

static PyObject *Spans_is_training_thread(Spans *self, PyObject *nothing) {
    (void)nothing;
    return PyBool_FromLong(PyThread_get_thread_ident() == self->training_thread);
}

static PyObject *Spans_mark_training_thread(Spans *self, PyObject *nothing) {
    (void)nothing;
    self->training_thread = PyThread_get_thread_ident();
    Py_RETURN_NONE;
}

static PyObject *Spans_in_compute_span(Spans *self, PyObject *nothing) {
    (void)nothing;
    return PyBool_FromLong(self->depth > 0);
}

/* Of a step that another thread knows of, nothing is counted. */
static int counts_steps(const Spans *self) {
    return self->queue && PyThread_get_thread_ident() == self->training_thread;
}

static PyObject *Spans_begin_step(Spans *self, PyObject *nothing) {
    (void)nothing;
    if (counts_steps(self)) step_time_begin(&self->step_time);
    Py_RETURN_NONE;
}

static PyObject *Spans_end_step(Spans *self, PyObject *time) {
    PartTime other;
    int64_t process_ns, end_ns = PyLong_AsLongLong(time);
    if (end_ns == -1 && PyErr_Occurred()) return NULL;
    if (counts_steps(self) && step_time_end(&self->step_time, &other, &process_ns)) {
        queue_counter(self->queue, self->step_counters[0], end_ns, other.ran_ns);
        if (other.waited_ns >= 0) queue_counter(self->queue, self->step_counters[1], end_ns, other.waited_ns);
        queue_counter(self->queue, self->step_counters[2], end_ns, process_ns);
    }
    Py_RETURN_NONE;
}

static PyObject *Spans_forget_threads(Spans *self, PyObject *nothing) {
    (void)nothing;
    thread_time_forget();
    self->step_time.is_begun = 0;
    Py_RETURN_NONE;
}

static PyObject *Spans_record_into(Spans *self, PyObject *queue) {
    if (queue != Py_None && !Py_IS_TYPE(queue, &QueueType)) {
        PyErr_SetString(PyExc_TypeError, "not a Queue");
        return NULL;
    }
    if (queue != Py_None) {
        self->depth = 0;
        Py_CLEAR(self->metered);
    }
    PyObject *before = (PyObject *)self->queue;
    self->queue = (Queue *)Py_XNewRef(real(queue));
    Py_XDECREF(before);
    Py_RETURN_NONE;
}

static PyObject *Spans_use_nvtx(Spans *self, PyObject *nvtx) {
    Py_XSETREF(self->nvtx, Py_XNewRef(real(nvtx)));
    Py_RETURN_NONE;
}

static PyObject *Spans_use_device(Spans *self, PyObject *device) {
    Py_XSETREF(self->device, Py_XNewRef(real(device)));
    Py_RETURN_NONE;
}

static int add_lanes(Spans *self, PyObject *tids, PyObject *compute, PyObject *communication, PyObject *host) {
    PyObject *lane, *tid;
    for (Py_ssize_t at = 0; PyDict_Next(tids, &at, &lane, &tid);) {
        if (self->lane_count == MAX_LANES) {
            PyErr_SetString(PyExc_ValueError, "too many lanes");
            return -1;
        }
        int number = (int)PyLong_AsLong(tid);
        if (number == -1 && PyErr_Occurred()) return -1;
        self->lanes[self->lane_count++] = (Lane){Py_NewRef(lane), number};
    }
    self->compute = compute;
    self->communication = communication;
    self->compute_tid = tid_of(self, compute);
    self->host_tid = tid_of(self, host);
    if (self->compute_tid >= 0 && self->host_tid >= 0 && tid_of(self, communication) >= 0) return 0;
    PyErr_SetString(PyExc_ValueError, "a lane has no number");
    return -1;
}

static int add_phases(Spans *self, PyObject *categories, PyObject *cpu, PyObject *starved, PyObject *on_device) {
    PyObject *iterator = PyObject_GetIter(categories), *category;
    while (iterator && (category = PyIter_Next(iterator))) {
        Phase *phase = &self->phases[self->phase_count];
        if (self->phase_count == MAX_PHASES) {
            PyErr_SetString(PyExc_ValueError, "too many phases");
            Py_DECREF(category);
            break;
        }
        self->phase_count++;
        phase->category = category;
        phase->cpu_counter = PyObject_GetItem(cpu, category);
        phase->starved_counter = PyObject_GetItem(starved, category);
        phase->is_on_device = PySequence_Contains(on_device, category) == 1;
    }
    Py_XDECREF(iterator);
    return PyErr_Occurred() ? -1 : 0;
}

static PyObject *Spans_new(PyTypeObject *type, PyObject *args, PyObject *kwargs) {
    static char *keywords[] = {"tids",         "compute",          "communication", "host",        "phases",
                               "cpu_counters", "starved_counters", "on_device",     "synchronize", "step_counters", NULL};
    PyObject *tids, *compute, *communication, *host, *phases, *cpu, *starved, *on_device, *synchronize, *counters[3];
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "O!OOOOOOOU(UUU)", keywords, &PyDict_Type, &tids, &compute,
                                     &communication, &host, &phases, &cpu, &starved, &on_device, &synchronize,
                                     &counters[0], &counters[1], &counters[2]))
        return NULL;
    Spans *self = (Spans *)type->tp_alloc(type, 0);
    if (!self) return NULL;
    self->synchronize = Py_NewRef(synchronize);
    for (int i = 0; i < 3; i++) self->step_counters[i] = Py_NewRef(counters[i]);
    if (add_lanes(self, tids, compute, communication, host) < 0 ||
        add_phases(self, phases, cpu, starved, on_device) < 0)
        Py_CLEAR(self);
    return (PyObject *)self;
}

static void Spans_dealloc(Spans *self) {
    for (int i = 0; i < self->lane_count; i++) Py_XDECREF(self->lanes[i].lane);
    for (int i = 0; i < self->phase_count; i++) {
        Py_XDECREF(self->phases[i].category);
        Py_XDECREF(self->phases[i].cpu_counter);
        Py_XDECREF(self->phases[i].starved_counter);
    }
    Py_XDECREF(self->synchronize);
    for (int i = 0; i < 3; i++) Py_XDECREF(self->step_counters[i]);
    Py_XDECREF((PyObject *)self->queue);
    Py_XDECREF(self->nvtx);
    Py_XDECREF(self->device);
    Py_XDECREF((PyObject *)self->metered);
    Py_TYPE(self)->tp_free((PyObject *)self);
}

static PyMethodDef Spans_methods[] = {
    {"begin", (PyCFunction)(void *)Spans_begin, METH_FASTCALL | METH_KEYWORDS, NULL},
    {"end", (PyCFunction)(void *)Spans_end, METH_FASTCALL | METH_KEYWORDS, NULL},
    {"span", (PyCFunction)(void *)spans_block, METH_FASTCALL | METH_KEYWORDS, NULL},
    {"begin_step", (PyCFunction)Spans_begin_step, METH_NOARGS, NULL},
    {"end_step", (PyCFunction)Spans_end_step, METH_O, NULL},
    {"forget_threads", (PyCFunction)Spans_forget_threads, METH_NOARGS, NULL},
    {"discard", (PyCFunction)Spans_discard, METH_O, NULL},
    {"is_on", (PyCFunction)Spans_is_on, METH_NOARGS, NULL},
    {"is_timeline_on", (PyCFunction)Spans_is_timeline_on, METH_NOARGS, NULL},
    {"is_training_thread", (PyCFunction)Spans_is_training_thread, METH_NOARGS, NULL},
    {"mark_training_thread", (PyCFunction)Spans_mark_training_thread, METH_NOARGS, NULL},
    {"in_compute_span", (PyCFunction)Spans_in_compute_span, METH_NOARGS, NULL},
    {"record_into", (PyCFunction)Spans_record_into, METH_O, NULL},
    {"use_nvtx", (PyCFunction)Spans_use_nvtx, METH_O, NULL},
    {"use_device", (PyCFunction)Spans_use_device, METH_O, NULL},
    {NULL, NULL, 0, NULL},
};

PyTypeObject SpansType = {
    PyVarObject_HEAD_INIT(NULL, 0).tp_name = "tlkit.timeline.record.queue._native.Spans",
    .tp_basicsize = sizeof(Spans),
    .tp_flags = Py_TPFLAGS_DEFAULT,
    .tp_new = Spans_new,
    .tp_dealloc = (destructor)Spans_dealloc,
    .tp_methods = Spans_methods,
};

int spans_open(void) {
    static const char *const TEXTS[] = {"push", "pop", "mark", "span"};
    PyObject *names[4] = {NULL};
    if (intern(BEGIN_NAMES, begin_names, 5) < 0 ||
        intern(END_NAMES, end_names, 2) < 0 || intern(TEXTS, names, 4) < 0)
        return -1;
    push_name = names[0], pop_name = names[1], mark_name = names[2], span_name = names[3];
    return 0;
}
