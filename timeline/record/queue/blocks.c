/* `with recorder.span(…)`: a block that is a span.
 *
 * Python's own context managers are generators: in the middle of a training, where nothing of them is in the caches, one costs
 * more than all that is recorded.
 */
#include "recording.h"

typedef struct {
    PyObject_HEAD
    Spans *spans; /* NULL for the block that does nothing, which all share while recording is off */
    PyObject *category, *name, *lane, *args;
    PyObject *opened;
} Block;

static const char *const NAMES[] = {"category", "name", "lane"};
static PyObject *block_names[3];
static PyObject *nothing_recorded, *error_key;

static Block *make_block(Spans *spans, PyObject *category, PyObject *name, PyObject *lane, PyObject *args) {
    Block *block = PyObject_New(Block, &BlockType);
    if (!block) return NULL;
    block->spans = (Spans *)Py_XNewRef((PyObject *)spans);
    block->category = Py_XNewRef(category);
    block->name = Py_XNewRef(name);
    block->lane = Py_XNewRef(lane);
    block->args = Py_XNewRef(args);
    block->opened = NULL;
    return block;
}

static void Block_dealloc(Block *self) {
    Py_XDECREF((PyObject *)self->spans);
    Py_XDECREF(self->category);
    Py_XDECREF(self->name);
    Py_XDECREF(self->lane);
    Py_XDECREF(self->args);
    Py_XDECREF(self->opened);
    PyObject_Free(self);
}

/* Which of the parameters a keyword means; the rest are args of the span. */
static int number_of(PyObject *keyword) {
    for (int i = 0; i < 3; i++)
        if (block_names[i] == keyword || PyUnicode_Compare(block_names[i], keyword) == 0) return i;
    return -1;
}

PyObject *spans_block(Spans *self, PyObject *const *values, Py_ssize_t count, PyObject *keywords) {
    if (!spans_is_on(self)) return Py_NewRef(nothing_recorded);
    if (count > 3) return PyErr_Format(PyExc_TypeError, "at most 3 arguments without a name, not %zd", count);
    PyObject *placed[3] = {NULL}, *args = NULL;
    for (Py_ssize_t i = 0; i < count; i++) placed[i] = values[i];
    for (Py_ssize_t k = 0; keywords && k < PyTuple_GET_SIZE(keywords); k++) {
        PyObject *keyword = PyTuple_GET_ITEM(keywords, k);
        int number = number_of(keyword);
        if (number >= 0 && placed[number]) {
            Py_XDECREF(args);
            return PyErr_Format(PyExc_TypeError, "argument '%U' is given twice", keyword);
        }
        if (number >= 0) {
            placed[number] = values[count + k];
        } else if ((!args && !(args = PyDict_New())) || PyDict_SetItem(args, keyword, values[count + k]) < 0) {
            Py_XDECREF(args);
            return NULL;
        }
    }
    PyObject *block = NULL;
    if (placed[0] && placed[1]) block = (PyObject *)make_block(self, placed[0], placed[1], placed[2], args);
    else PyErr_SetString(PyExc_TypeError, "a span has a category and a name");
    Py_XDECREF(args);
    return block;
}

static PyObject *Block_enter(Block *self, PyObject *nothing) {
    (void)nothing;
    if (self->spans) {
        PyObject *opened = spans_begin(self->spans, self->category, self->name, self->lane, self->args);
        if (!opened) return NULL;
        Py_XSETREF(self->opened, opened);
    }
    Py_RETURN_NONE;
}

static PyObject *args_of_error(PyObject *type) {
    PyObject *name = PyObject_GetAttrString(type, "__name__");
    PyObject *args = name ? PyDict_New() : NULL;
    if (args && PyDict_SetItem(args, error_key, name) < 0) Py_CLEAR(args);
    Py_XDECREF(name);
    return args;
}

static PyObject *Block_exit(Block *self, PyObject *const *values, Py_ssize_t count) {
    PyObject *opened = self->opened;
    if (!opened) Py_RETURN_NONE;
    self->opened = NULL;
    PyObject *args = NULL;
    if (count && values[0] != Py_None && !(args = args_of_error(values[0]))) PyErr_Clear();
    PyObject *ended = spans_end(self->spans, opened, args);
    Py_XDECREF(args);
    Py_DECREF(opened);
    return ended;
}

static PyMethodDef Block_methods[] = {
    {"__enter__", (PyCFunction)Block_enter, METH_NOARGS, NULL},
    {"__exit__", (PyCFunction)(void *)Block_exit, METH_FASTCALL, NULL},
    {NULL, NULL, 0, NULL},
};

PyTypeObject BlockType = {
    PyVarObject_HEAD_INIT(NULL, 0).tp_name = "tlkit.timeline.record.queue._native.Block",
    .tp_basicsize = sizeof(Block),
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_DISALLOW_INSTANTIATION,
    .tp_dealloc = (destructor)Block_dealloc,
    .tp_methods = Block_methods,
};

/* Once the types are ready. */
int blocks_open(void) {
    if (intern(NAMES, block_names, 3) < 0 || !(error_key = PyUnicode_InternFromString("error"))) return -1;
    nothing_recorded = (PyObject *)make_block(NULL, NULL, NULL, NULL, NULL);
    return nothing_recorded ? 0 : -1;
}
