/* Collectives through memory that ranks of one host share: what they say to each other, and when each may read (see __init__.py).

Every rank has a seat, with a number that only grows and says how far it has come, and two slots in turn, into which it puts
what the others are to read.  A turn is: put something there, say so, wait until all have said so, read.  A rank writes into a
slot again two turns later; by then all have said that they are past the turn in between, and so have read what was there. */
#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include <errno.h>
#include <linux/futex.h>
#include <limits.h>
#include <stdatomic.h>
#include <stdint.h>
#include <string.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "reduce.h"

#define LINE 128 /* bytes that processors fetch together; two ranks do not write into the same */
#define SPINS 400 /* looks before a waiting rank sleeps: a few microseconds */
#define LOOK_NS 20000000 /* how often a sleeping rank looks whether the others have given up */
#define SECOND_NS 1000000000
#define MAX_RANKS 1024
#define DIRECT_RANKS 3 /* so many ranks each add up everything: one wait instead of two, and no more bytes moved */
#define DIRECT_NBYTES 32768 /* more ranks do so for this much */

typedef struct {
    _Alignas(LINE) _Atomic uint32_t come; /* how many times it has said that it is there */
    _Atomic uint32_t sleepers; /* how many wait for it and sleep */
    int64_t said; /* what it says beside; written before `come`, read after */
} Seat;

typedef struct {
    _Alignas(LINE) _Atomic uint32_t given_up; /* somebody goes, and nobody may wait any longer */
} Head;

typedef struct {
    PyObject_HEAD
    Py_buffer memory;
    Head *head;
    Seat *seats;
    char *slots;
    int rank, size;
    size_t slot_nbytes;
    int64_t timeout_ns;
    uint32_t come; /* what this rank has said last */
    uint32_t turn;
} Segment;

/* What keeps a collective from going on: 0 for nothing. */
enum { FINE = 0, GIVEN_UP = -1, LATE = -2 /* and less: rank -2 - fault did not come */ };

static int64_t now_ns(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (int64_t)time.tv_sec * SECOND_NS + time.tv_nsec;
}

static void relax(void) {
#if defined(__x86_64__) || defined(__i386__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ volatile("yield");
#endif
}

static char *slot_of(const Segment *self, int rank) {
    return self->slots + ((size_t)rank * 2 + self->turn % 2) * self->slot_nbytes;
}

/* Say that this rank is there, and wake those that wait for it. */
static void arrive(Segment *self) {
    Seat *own = &self->seats[self->rank];
    self->come++;
    atomic_store_explicit(&own->come, self->come, memory_order_seq_cst);
    if (atomic_load_explicit(&own->sleepers, memory_order_seq_cst))
        syscall(SYS_futex, &own->come, FUTEX_WAKE, INT_MAX, NULL, NULL, 0);
}

static int has_come(const Seat *seat, uint32_t number) {
    return (int32_t)(atomic_load_explicit(&seat->come, memory_order_acquire) - number) >= 0;
}

static int wait_for(Segment *self, int rank, int64_t *give_up_ns) {
    Seat *seat = &self->seats[rank];
    for (int spins = 0; spins < SPINS; spins++) {
        if (has_come(seat, self->come)) return FINE;
        relax();
    }
    while (!has_come(seat, self->come)) {
        if (atomic_load_explicit(&self->head->given_up, memory_order_relaxed)) return GIVEN_UP;
        int64_t time_ns = now_ns();
        if (*give_up_ns == 0) *give_up_ns = time_ns + self->timeout_ns;
        if (time_ns > *give_up_ns) return LATE - rank;
        atomic_fetch_add_explicit(&seat->sleepers, 1, memory_order_seq_cst);
        uint32_t seen = atomic_load_explicit(&seat->come, memory_order_seq_cst);
        if ((int32_t)(seen - self->come) < 0) {
            struct timespec look = {0, LOOK_NS};
            syscall(SYS_futex, &seat->come, FUTEX_WAIT, seen, &look, NULL, 0);
        }
        atomic_fetch_sub_explicit(&seat->sleepers, 1, memory_order_seq_cst);
    }
    return FINE;
}

/* Say that this rank is there, and wait until all are. */
static int meet(Segment *self) {
    int64_t give_up_ns = 0;
    if (atomic_load_explicit(&self->head->given_up, memory_order_relaxed)) return GIVEN_UP;
    arrive(self);
    for (int rank = 0; rank < self->size; rank++) {
        int fault = rank == self->rank ? FINE : wait_for(self, rank, &give_up_ns);
        if (fault) return fault;
    }
    return FINE;
}

static size_t less(size_t one, size_t other) { return one < other ? one : other; }

/* Where the part of a rank begins that adds up `count` elements with others. */
static size_t share_begin(size_t count, int rank, int size) {
    size_t each = ((count + (size_t)size - 1) / (size_t)size + 15) / 16 * 16; /* whole lines of memory */
    return less(each * (size_t)rank, count);
}

/* Reduce a part of what all have put into their slots, in the order of the ranks: everywhere to the same bits. */
static void reduce_slots(const Segment *self, Reduce reduce, char *into, size_t offset, size_t count) {
    reduce(into, slot_of(self, 0) + offset, slot_of(self, 1) + offset, count);
    for (int rank = 2; rank < self->size; rank++) reduce(into, into, slot_of(self, rank) + offset, count);
}

static int allreduce(Segment *self, char *values, size_t count, size_t width, Reduce reduce) {
    size_t most = self->slot_nbytes / width;
    int direct = self->size <= DIRECT_RANKS || count * width <= DIRECT_NBYTES;
    while (count) {
        size_t now = less(count, most);
        char *own = slot_of(self, self->rank);
        memcpy(own, values, now * width);
        int fault = meet(self);
        if (fault) return fault;
        if (direct) {
            reduce_slots(self, reduce, values, 0, now);
        } else {
            size_t begin = share_begin(now, self->rank, self->size), end = share_begin(now, self->rank + 1, self->size);
            reduce_slots(self, reduce, values + begin * width, begin * width, end - begin);
            /* Nobody else reads this part of this slot before all have said so once more. */
            memcpy(own + begin * width, values + begin * width, (end - begin) * width);
            if ((fault = meet(self))) return fault;
            for (int rank = 0; rank < self->size; rank++) {
                if (rank == self->rank) continue;
                begin = share_begin(now, rank, self->size), end = share_begin(now, rank + 1, self->size);
                memcpy(values + begin * width, slot_of(self, rank) + begin * width, (end - begin) * width);
            }
        }
        self->turn++;
        values += now * width;
        count -= now;
    }
    return FINE;
}

static int broadcast(Segment *self, char *values, size_t nbytes, int root) {
    while (nbytes) {
        size_t now = less(nbytes, self->slot_nbytes);
        if (self->rank == root) memcpy(slot_of(self, root), values, now);
        int fault = meet(self);
        if (fault) return fault;
        if (self->rank != root) memcpy(values, slot_of(self, root), now);
        self->turn++;
        values += now;
        nbytes -= now;
    }
    return FINE;
}

/* Every rank's `source` into every rank's `output`, one behind the other; `nbytes` by rank. */
static int allgather(Segment *self, char *output, const char *source, const size_t *nbytes) {
    size_t longest = 0;
    for (int rank = 0; rank < self->size; rank++) longest = nbytes[rank] > longest ? nbytes[rank] : longest;
    for (size_t done = 0; done < longest; done += self->slot_nbytes) {
        size_t own = nbytes[self->rank];
        if (done < own) memcpy(slot_of(self, self->rank), source + done, less(own - done, self->slot_nbytes));
        int fault = meet(self);
        if (fault) return fault;
        char *into = output;
        for (int rank = 0; rank < self->size; rank++) {
            if (done < nbytes[rank])
                memcpy(into + done, slot_of(self, rank), less(nbytes[rank] - done, self->slot_nbytes));
            into += nbytes[rank];
        }
        self->turn++;
    }
    return FINE;
}

/* A piece of `source` to every rank.  A slot has a place for a part of each; how many turns it takes only all know together. */
static int alltoall(Segment *self, char *output, const char *source, const size_t *received, const size_t *sent) {
    size_t place = self->slot_nbytes / (size_t)self->size / 64 * 64, longest = 0;
    for (int rank = 0; rank < self->size; rank++) longest = sent[rank] > longest ? sent[rank] : longest;
    self->seats[self->rank].said = (int64_t)longest;
    int fault = meet(self);
    if (fault) return fault;
    for (int rank = 0; rank < self->size; rank++) {
        size_t said = (size_t)self->seats[rank].said;
        longest = said > longest ? said : longest;
    }
    /* Nobody says anything else before all have read that. */
    if ((fault = meet(self))) return fault;
    for (size_t done = 0; done < longest; done += place) {
        const char *from = source;
        for (int rank = 0; rank < self->size; rank++) {
            if (done < sent[rank])
                memcpy(slot_of(self, self->rank) + place * (size_t)rank, from + done, less(sent[rank] - done, place));
            from += sent[rank];
        }
        if ((fault = meet(self))) return fault;
        char *into = output;
        for (int rank = 0; rank < self->size; rank++) {
            if (done < received[rank])
                memcpy(into + done, slot_of(self, rank) + place * (size_t)self->rank, less(received[rank] - done, place));
            into += received[rank];
        }
        self->turn++;
    }
    return FINE;
}

/* The sum of all `source`, a piece of it for each rank; `counts` by rank. */
static int reducescatter(
    Segment *self, char *output, const char *source, const size_t *counts, size_t width, Reduce reduce
) {
    size_t place = self->slot_nbytes / (size_t)self->size / 64 * 64, most = place / width, longest = 0;
    for (int rank = 0; rank < self->size; rank++) longest = counts[rank] > longest ? counts[rank] : longest;
    for (size_t done = 0; done < longest; done += most) {
        const char *from = source;
        for (int rank = 0; rank < self->size; rank++) {
            if (done < counts[rank])
                memcpy(
                    slot_of(self, self->rank) + place * (size_t)rank,
                    from + done * width,
                    less(counts[rank] - done, most) * width
                );
            from += counts[rank] * width;
        }
        int fault = meet(self);
        if (fault) return fault;
        size_t own = counts[self->rank];
        if (done < own)
            reduce_slots(
                self, reduce, output + done * width, place * (size_t)self->rank, less(own - done, most)
            );
        self->turn++;
    }
    return FINE;
}

/* What Python sees. */

static PyObject *ended(Segment *self, int fault) {
    if (fault == FINE) Py_RETURN_NONE;
    /* What is under way cannot be taken up again. */
    atomic_store_explicit(&self->head->given_up, 1, memory_order_relaxed);
    if (fault == GIVEN_UP)
        return PyErr_Format(PyExc_RuntimeError, "shared memory: another rank has given up, or its process has ended");
    return PyErr_Format(
        PyExc_RuntimeError,
        "shared memory: rank %d of the process set did not come within %lld s",
        LATE - fault,
        (long long)(self->timeout_ns / SECOND_NS)
    );
}

static int is_open(Segment *self) {
    if (self->memory.buf) return 1;
    PyErr_SetString(PyExc_RuntimeError, "shared memory: it is closed");
    return 0;
}

static int segment_init(Segment *self, PyObject *arguments, PyObject *names) {
    static char *known[] = {"memory", "rank", "size", "slot_nbytes", "timeout_s", NULL};
    PyObject *memory;
    Py_ssize_t slot_nbytes;
    double timeout_s;
    int rank, size;
    if (!PyArg_ParseTupleAndKeywords(arguments, names, "Oiind", known, &memory, &rank, &size, &slot_nbytes, &timeout_s))
        return -1;
    if (self->memory.buf) {
        PyErr_SetString(PyExc_ValueError, "a segment is opened once");
        return -1;
    }
    if (size < 2 || size > MAX_RANKS || rank < 0 || rank >= size || slot_nbytes < 64 * (Py_ssize_t)size || slot_nbytes % 64) {
        PyErr_SetString(PyExc_ValueError, "no such rank, or slots that are too small");
        return -1;
    }
    if (PyObject_GetBuffer(memory, &self->memory, PyBUF_WRITABLE)) return -1;
    size_t head = sizeof(Head) + sizeof(Seat) * (size_t)size;
    if ((size_t)self->memory.len < head + 2 * (size_t)size * (size_t)slot_nbytes || (uintptr_t)self->memory.buf % LINE) {
        PyBuffer_Release(&self->memory);
        self->memory.buf = NULL;
        PyErr_SetString(PyExc_ValueError, "the memory is too small, or begins in the middle of a line");
        return -1;
    }
    self->head = self->memory.buf;
    self->seats = (Seat *)((char *)self->memory.buf + sizeof(Head));
    self->slots = (char *)self->memory.buf + head;
    self->rank = rank, self->size = size;
    self->slot_nbytes = (size_t)slot_nbytes;
    self->timeout_ns = (int64_t)(timeout_s * SECOND_NS);
    return 0;
}

static void segment_dealloc(Segment *self) {
    if (self->memory.buf) PyBuffer_Release(&self->memory);
    Py_TYPE(self)->tp_free((PyObject *)self);
}

/* A size for each rank, in bytes, for the caller to free; NULL with an exception set. */
static size_t *sizes_of(PyObject *list, int size, size_t width) {
    PyObject *items = PySequence_Fast(list, "sizes are a sequence");
    if (!items) return NULL;
    size_t *sizes = NULL;
    if (PySequence_Fast_GET_SIZE(items) != size) {
        PyErr_SetString(PyExc_ValueError, "there is one size for each rank");
    } else if (!(sizes = PyMem_Malloc(sizeof(size_t) * (size_t)size))) {
        PyErr_NoMemory();
    } else {
        for (int rank = 0; rank < size; rank++) {
            size_t elements = PyLong_AsSize_t(PySequence_Fast_GET_ITEM(items, rank));
            if (PyErr_Occurred()) {
                PyMem_Free(sizes);
                sizes = NULL;
                break;
            }
            sizes[rank] = elements * width;
        }
    }
    Py_DECREF(items);
    return sizes;
}

static PyObject *segment_allreduce(Segment *self, PyObject *arguments) {
    unsigned long long address;
    Py_ssize_t count;
    const char *dtype, *op;
    if (!PyArg_ParseTuple(arguments, "Knss", &address, &count, &dtype, &op) || !is_open(self)) return NULL;
    size_t width;
    Reduce reduce = find_reduce(dtype, op, &width);
    if (!reduce) return PyErr_Format(PyExc_ValueError, "no %s of %s", op, dtype);
    int fault;
    Py_BEGIN_ALLOW_THREADS
    fault = allreduce(self, (char *)(uintptr_t)address, (size_t)count, width, reduce);
    Py_END_ALLOW_THREADS
    return ended(self, fault);
}

static PyObject *segment_broadcast(Segment *self, PyObject *arguments) {
    unsigned long long address;
    Py_ssize_t nbytes;
    int root, fault;
    if (!PyArg_ParseTuple(arguments, "Kni", &address, &nbytes, &root) || !is_open(self)) return NULL;
    Py_BEGIN_ALLOW_THREADS
    fault = broadcast(self, (char *)(uintptr_t)address, (size_t)nbytes, root);
    Py_END_ALLOW_THREADS
    return ended(self, fault);
}

static PyObject *segment_allgather(Segment *self, PyObject *arguments) {
    unsigned long long output, source;
    PyObject *list;
    if (!PyArg_ParseTuple(arguments, "KKO", &output, &source, &list) || !is_open(self)) return NULL;
    size_t *nbytes = sizes_of(list, self->size, 1);
    if (!nbytes) return NULL;
    int fault;
    Py_BEGIN_ALLOW_THREADS
    fault = allgather(self, (char *)(uintptr_t)output, (const char *)(uintptr_t)source, nbytes);
    Py_END_ALLOW_THREADS
    PyMem_Free(nbytes);
    return ended(self, fault);
}

static PyObject *segment_alltoall(Segment *self, PyObject *arguments) {
    unsigned long long output, source;
    PyObject *into, *from;
    if (!PyArg_ParseTuple(arguments, "KKOO", &output, &source, &into, &from) || !is_open(self)) return NULL;
    size_t *received = sizes_of(into, self->size, 1), *sent = received ? sizes_of(from, self->size, 1) : NULL;
    if (!sent) {
        PyMem_Free(received);
        return NULL;
    }
    int fault;
    Py_BEGIN_ALLOW_THREADS
    fault = alltoall(self, (char *)(uintptr_t)output, (const char *)(uintptr_t)source, received, sent);
    Py_END_ALLOW_THREADS
    PyMem_Free(received);
    PyMem_Free(sent);
    return ended(self, fault);
}

static PyObject *segment_reducescatter(Segment *self, PyObject *arguments) {
    unsigned long long output, source;
    PyObject *list;
    const char *dtype;
    if (!PyArg_ParseTuple(arguments, "KKOs", &output, &source, &list, &dtype) || !is_open(self)) return NULL;
    size_t width;
    Reduce reduce = find_reduce(dtype, "sum", &width);
    if (!reduce) return PyErr_Format(PyExc_ValueError, "no sum of %s", dtype);
    size_t *counts = sizes_of(list, self->size, 1);
    if (!counts) return NULL;
    int fault;
    Py_BEGIN_ALLOW_THREADS
    fault = reducescatter(
        self, (char *)(uintptr_t)output, (const char *)(uintptr_t)source, counts, width, reduce
    );
    Py_END_ALLOW_THREADS
    PyMem_Free(counts);
    return ended(self, fault);
}

static PyObject *segment_give_up(Segment *self, PyObject *Py_UNUSED(nothing)) {
    if (self->memory.buf) atomic_store_explicit(&self->head->given_up, 1, memory_order_relaxed);
    Py_RETURN_NONE;
}

static PyMethodDef segment_methods[] = {
    {"allreduce", (PyCFunction)segment_allreduce, METH_VARARGS, "Reduce `count` values at an address over all ranks."},
    {"broadcast", (PyCFunction)segment_broadcast, METH_VARARGS, "Copy bytes at an address from a rank to all."},
    {"allgather", (PyCFunction)segment_allgather, METH_VARARGS, "Gather bytes of all ranks, so many of each."},
    {"alltoall", (PyCFunction)segment_alltoall, METH_VARARGS, "Send so many bytes to every rank, and take so many."},
    {"reducescatter", (PyCFunction)segment_reducescatter, METH_VARARGS, "Add up values, so many for each rank."},
    {"give_up", (PyCFunction)segment_give_up, METH_NOARGS, "Have every rank that waits, or will, raise RuntimeError."},
    {NULL, NULL, 0, NULL},
};

static PyTypeObject segment_type = {
    PyVarObject_HEAD_INIT(NULL, 0)
    .tp_name = "tlkit.runtime.torch.data_plane.transports.shared_memory._native.Segment",
    .tp_basicsize = sizeof(Segment),
    .tp_flags = Py_TPFLAGS_DEFAULT,
    .tp_doc = "Segment(memory, rank, size, slot_nbytes, timeout_s): one rank's place at memory that is shared.",
    .tp_new = PyType_GenericNew,
    .tp_init = (initproc)segment_init,
    .tp_dealloc = (destructor)segment_dealloc,
    .tp_methods = segment_methods,
};

static PyObject *nbytes_for(PyObject *Py_UNUSED(module), PyObject *arguments) {
    int size;
    Py_ssize_t slot_nbytes;
    if (!PyArg_ParseTuple(arguments, "in", &size, &slot_nbytes)) return NULL;
    return PyLong_FromSize_t(sizeof(Head) + (size_t)size * (sizeof(Seat) + 2 * (size_t)slot_nbytes));
}

static PyMethodDef functions[] = {
    {"nbytes_for", nbytes_for, METH_VARARGS, "How much memory so many ranks with slots of so many bytes share."},
    {NULL, NULL, 0, NULL},
};

static struct PyModuleDef definition = {
    PyModuleDef_HEAD_INIT,
    .m_name = "_native",
    .m_doc = "Collectives through memory that ranks of one host share.",
    .m_size = -1,
    .m_methods = functions,
};

PyMODINIT_FUNC PyInit__native(void) {
    if (PyType_Ready(&segment_type)) return NULL;
    PyObject *module = PyModule_Create(&definition);
    if (module && PyModule_AddObjectRef(module, "Segment", (PyObject *)&segment_type)) Py_CLEAR(module);
    return module;
}
