/* Adds up what two ranks have, over a connection: each sends all of its values and adds what comes (see __init__.py).

One thread does both in turn, without the interpreter's lock.  A thread of its own for the connection, as Gloo has, would be woken
for each piece that comes, and would wake the one that waits. */
#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include <errno.h>
#include <poll.h>
#include <stdint.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>

#include "../shared_memory/reduce.h"

#define PIECE_NBYTES ((size_t)128 * 1024) /* at a time in one direction, so that what is under way stays in a cache */
#define ROOM_NBYTES ((size_t)256 * 1024) /* for what has come and cannot be added yet */
#define SPIN_NS 20000 /* how long to look before going to sleep: about as long as waking takes */
#define SECOND_NS 1000000000

/* What keeps it from going on. */
enum { FINE = 0, CLOSED, LATE, BROKEN /* see errno */ };

typedef struct {
    PyObject_HEAD
    int descriptor, first; /* whether this rank's values are the first operands */
    int64_t timeout_ns;
    char *room;
} Pair;

typedef struct {
    char *values;
    size_t nbytes, sent, come, added;
    size_t width;
    Reduce reduce;
} Sum;

static int64_t now_ns(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (int64_t)time.tv_sec * SECOND_NS + time.tv_nsec;
}

static size_t less(size_t one, size_t other) { return one < other ? one : other; }

static int is_fault(void) { return errno != EAGAIN && errno != EWOULDBLOCK && errno != EINTR; }

/* Send a piece if the connection takes it. */
static int send_some(const Pair *self, Sum *sum) {
    size_t most = less(sum->nbytes - sum->sent, PIECE_NBYTES);
    if (!most) return FINE;
    ssize_t count = send(self->descriptor, sum->values + sum->sent, most, MSG_DONTWAIT | MSG_NOSIGNAL);
    if (count < 0) return !is_fault() ? FINE : errno == EPIPE || errno == ECONNRESET ? CLOSED : BROKEN;
    sum->sent += (size_t)count;
    return FINE;
}

/* Take what has come, as far as there is room. */
static int receive_some(const Pair *self, Sum *sum) {
    size_t place = sum->come % ROOM_NBYTES;
    size_t most = less(less(sum->nbytes - sum->come, ROOM_NBYTES - (sum->come - sum->added)), ROOM_NBYTES - place);
    most = less(most, PIECE_NBYTES);
    if (!most) return FINE;
    ssize_t count = recv(self->descriptor, self->room + place, most, MSG_DONTWAIT);
    if (count == 0) return CLOSED;
    if (count < 0) return !is_fault() ? FINE : errno == ECONNRESET ? CLOSED : BROKEN;
    sum->come += (size_t)count;
    return FINE;
}

/* Add what has come to values that are sent already, in the order of the ranks: on both to the same bits. */
static void add_some(const Pair *self, Sum *sum) {
    size_t ready = less(sum->come, sum->sent) / sum->width * sum->width;
    while (sum->added < ready) {
        size_t place = sum->added % ROOM_NBYTES, span = less(ready - sum->added, ROOM_NBYTES - place);
        char *own = sum->values + sum->added, *other = self->room + place;
        sum->reduce(own, self->first ? own : other, self->first ? other : own, span / sum->width);
        sum->added += span;
    }
}

static int wait_for_more(const Pair *self, const Sum *sum, int64_t give_up_ns) {
    int64_t left_ns = give_up_ns - now_ns();
    if (left_ns <= 0) return LATE;
    short events = 0;
    if (sum->come < sum->nbytes && sum->come - sum->added < ROOM_NBYTES) events |= POLLIN;
    if (sum->sent < sum->nbytes) events |= POLLOUT;
    struct pollfd connection = {self->descriptor, events, 0};
    int64_t left_ms = left_ns / 1000000 + 1;
    if (poll(&connection, 1, left_ms > 60000 ? 60000 : (int)left_ms) < 0 && errno != EINTR) return BROKEN;
    return FINE;
}

static int allreduce(const Pair *self, Sum *sum) {
    int64_t moved_ns = now_ns();
    while (sum->added < sum->nbytes) {
        size_t before = sum->sent + sum->come;
        int fault = send_some(self, sum);
        if (!fault) fault = receive_some(self, sum);
        if (fault) return fault;
        add_some(self, sum);
        int64_t time_ns = now_ns();
        if (sum->sent + sum->come != before) {
            moved_ns = time_ns;
        } else if (time_ns - moved_ns > SPIN_NS) {
            if ((fault = wait_for_more(self, sum, moved_ns + self->timeout_ns))) return fault;
        }
    }
    return FINE;
}

/* What Python sees. */

static PyObject *ended(const Pair *self, int fault, int error) {
    if (fault == FINE) Py_RETURN_NONE;
    if (fault == CLOSED) return PyErr_Format(PyExc_RuntimeError, "the other rank has closed its connection, or its process has ended");
    if (fault == LATE)
        return PyErr_Format(
            PyExc_RuntimeError, "the other rank did not send within %lld s", (long long)(self->timeout_ns / SECOND_NS)
        );
    return PyErr_Format(PyExc_RuntimeError, "the connection to the other rank is broken: %s", strerror(error));
}

static int pair_init(Pair *self, PyObject *arguments, PyObject *names) {
    static char *known[] = {"descriptor", "first", "timeout_s", NULL};
    double timeout_s;
    if (!PyArg_ParseTupleAndKeywords(arguments, names, "ipd", known, &self->descriptor, &self->first, &timeout_s)) return -1;
    self->timeout_ns = (int64_t)(timeout_s * SECOND_NS);
    if (!self->room && !(self->room = PyMem_RawMalloc(ROOM_NBYTES))) {
        PyErr_NoMemory();
        return -1;
    }
    return 0;
}

static void pair_dealloc(Pair *self) {
    PyMem_RawFree(self->room);
    Py_TYPE(self)->tp_free((PyObject *)self);
}

static PyObject *pair_allreduce(Pair *self, PyObject *arguments) {
    unsigned long long address;
    Py_ssize_t count;
    const char *dtype, *op;
    if (!PyArg_ParseTuple(arguments, "Knss", &address, &count, &dtype, &op)) return NULL;
    Sum sum = {.values = (char *)(uintptr_t)address};
    sum.reduce = find_reduce(dtype, op, &sum.width);
    if (!sum.reduce || !self->room || count < 0) return PyErr_Format(PyExc_ValueError, "no %s of %s", op, dtype);
    sum.nbytes = (size_t)count * sum.width;
    int fault, error;
    Py_BEGIN_ALLOW_THREADS
    fault = allreduce(self, &sum);
    error = errno;
    Py_END_ALLOW_THREADS
    return ended(self, fault, error);
}

static PyMethodDef pair_methods[] = {
    {"allreduce", (PyCFunction)pair_allreduce, METH_VARARGS, "Reduce `count` values at an address over both ranks."},
    {NULL, NULL, 0, NULL},
};

static PyTypeObject pair_type = {
    PyVarObject_HEAD_INIT(NULL, 0)
    .tp_name = "tlkit.runtime.torch.data_plane.transports.pair._native.Pair",
    .tp_basicsize = sizeof(Pair),
    .tp_flags = Py_TPFLAGS_DEFAULT,
    .tp_doc = "Pair(descriptor, first, timeout_s): one end of a connection of two ranks, which the caller keeps open.",
    .tp_new = PyType_GenericNew,
    .tp_init = (initproc)pair_init,
    .tp_dealloc = (destructor)pair_dealloc,
    .tp_methods = pair_methods,
};

static PyObject *can_reduce(PyObject *Py_UNUSED(module), PyObject *arguments) {
    const char *dtype, *op;
    size_t width;
    if (!PyArg_ParseTuple(arguments, "ss", &dtype, &op)) return NULL;
    return PyBool_FromLong(find_reduce(dtype, op, &width) != NULL);
}

static PyMethodDef functions[] = {
    {"can_reduce", can_reduce, METH_VARARGS, "Whether values of a type can be reduced by an operation."},
    {NULL, NULL, 0, NULL},
};

static struct PyModuleDef definition = {
    PyModuleDef_HEAD_INIT,
    .m_name = "_native",
    .m_doc = "Adds up what two ranks have, over a connection.",
    .m_size = -1,
    .m_methods = functions,
};

PyMODINIT_FUNC PyInit__native(void) {
    if (PyType_Ready(&pair_type)) return NULL;
    PyObject *module = PyModule_Create(&definition);
    if (module && PyModule_AddObjectRef(module, "Pair", (PyObject *)&pair_type)) Py_CLEAR(module);
    return module;
}
