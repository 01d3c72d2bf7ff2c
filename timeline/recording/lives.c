/* Tensors under way: what is kept of them, and what is read from the runtime's entries. */
#include "recording.h"

static const char *const LIFE_NAMES[] = {"number", "name",         "kind", "nbytes", "dtype",
                                         "shape",  "submitted_ns", "flow", "call"};
static PyObject *life_names[9];
PyObject *unknown_call;

static int as_integer(PyObject *object, long long *value) {
    *value = PyLong_AsLongLong(object);
    return *value == -1 && PyErr_Occurred() ? -1 : 0;
}

static PyObject *Life_vectorcall(PyObject *type, PyObject *const *values, size_t flags, PyObject *keywords) {
    PyObject *placed[9] = {NULL};
    long long number, nbytes, submitted_ns;
    (void)type;
    if (place(life_names, 9, values, PyVectorcall_NARGS(flags), keywords, placed) < 0) return NULL;
    for (int i = 0; i < 8; i++)
        if (!placed[i]) return PyErr_Format(PyExc_TypeError, "'%U' is missing", life_names[i]);
    if (as_integer(placed[0], &number) < 0 || as_integer(placed[3], &nbytes) < 0 ||
        as_integer(placed[6], &submitted_ns) < 0)
        return NULL;
    int flow = PyObject_IsTrue(placed[7]);
    if (flow < 0) return NULL;
    Life *self = PyObject_New(Life, &LifeType);
    if (!self) return NULL;
    self->number = number;
    self->nbytes = nbytes;
    self->submitted_ns = submitted_ns;
    self->name = Py_NewRef(placed[1]);
    self->kind = Py_NewRef(placed[2]);
    self->dtype = Py_NewRef(placed[4]);
    self->shape = Py_NewRef(placed[5]);
    self->call = Py_NewRef(placed[8] ? placed[8] : unknown_call);
    self->flow = (char)flow;
    self->is_claimed = 0;
    return (PyObject *)self;
}

static PyObject *Life_new(PyTypeObject *type, PyObject *args, PyObject *kwargs) {
    (void)type, (void)args, (void)kwargs;
    PyErr_SetString(PyExc_TypeError, "a life is made by calling its type");
    return NULL;
}

static void Life_dealloc(Life *self) {
    Py_XDECREF(self->name);
    Py_XDECREF(self->kind);
    Py_XDECREF(self->dtype);
    Py_XDECREF(self->shape);
    Py_XDECREF(self->call);
    PyObject_Free(self);
}

static PyObject *Life_claim(Life *self, PyObject *nothing) {
    (void)nothing;
    if (self->is_claimed) Py_RETURN_FALSE;
    self->is_claimed = 1;
    Py_RETURN_TRUE;
}

static PyMethodDef Life_methods[] = {
    {"claim", (PyCFunction)Life_claim, METH_NOARGS, NULL},
    {NULL, NULL, 0, NULL},
};

static PyMemberDef Life_members[] = {
    {"number", T_LONGLONG, offsetof(Life, number), READONLY, NULL},
    {"name", T_OBJECT, offsetof(Life, name), READONLY, NULL},
    {"kind", T_OBJECT, offsetof(Life, kind), READONLY, NULL},
    {"nbytes", T_LONGLONG, offsetof(Life, nbytes), READONLY, NULL},
    {"dtype", T_OBJECT, offsetof(Life, dtype), READONLY, NULL},
    {"shape", T_OBJECT, offsetof(Life, shape), READONLY, NULL},
    {"submitted_ns", T_LONGLONG, offsetof(Life, submitted_ns), READONLY, NULL},
    {"flow", T_BOOL, offsetof(Life, flow), 0, NULL},
    {"call", T_OBJECT, offsetof(Life, call), READONLY, NULL},
    {"is_claimed", T_BOOL, offsetof(Life, is_claimed), READONLY, NULL},
    {NULL, 0, 0, 0, NULL},
};

PyTypeObject LifeType = {
    PyVarObject_HEAD_INIT(NULL, 0).tp_name = "tlkit.timeline.recording._native.TensorLife",
    .tp_basicsize = sizeof(Life),
    .tp_flags = Py_TPFLAGS_DEFAULT,
    .tp_new = Life_new,
    .tp_vectorcall = Life_vectorcall,
    .tp_dealloc = (destructor)Life_dealloc,
    .tp_methods = Life_methods,
    .tp_members = Life_members,
};

/* Entries of the runtime (see portable_queue.py for what they have). */

static PyObject *life_name, *request_name, *submitted_name, *handle_name, *call_name, *flow_name, *tensor_name,
    *nbytes_name, *name_name, *kind_name, *dtype_name, *shape_name;
static Life *recorded; /* what an entry has once it was recorded */
static int64_t numbers;

int64_t another_number(void) { return ++numbers; }

static int read_integer(PyObject *object, PyObject *name, int64_t *value) {
    PyObject *found = PyObject_GetAttr(object, name);
    if (!found) return -1;
    long long number;
    int failed = as_integer(found, &number);
    Py_DECREF(found);
    *value = number;
    return failed;
}

/* What an entry says of itself; `*handle` is the handle of the entry before, of which most entries are, too.
 * Returns 0 if it was submitted while nothing was recorded. */
int read_origin(PyObject *entry, PyObject **handle, Origin *origin) {
    PyObject *request = PyObject_GetAttr(entry, request_name), *of_entry = PyObject_GetAttr(entry, handle_name);
    int result = -1;
    if (!request || !of_entry || read_integer(entry, submitted_name, &origin->submitted_ns) < 0) goto done;
    origin->request = request;
    if (of_entry != *handle) {
        PyObject *call = PyObject_GetAttr(of_entry, call_name), *flow = PyObject_GetAttr(of_entry, flow_name);
        origin->call = call;
        origin->flow = flow ? PyObject_IsTrue(flow) : -1;
        Py_XDECREF(call);
        Py_XDECREF(flow);
        if (!call || origin->flow < 0) goto done;
        *handle = of_entry;
    }
    result = origin->call != Py_None;
done:
    Py_XDECREF(request); /* the entry keeps it */
    Py_XDECREF(of_entry);
    return result;
}

Life *life_of_entry(PyObject *entry, const Origin *origin, int64_t number) {
    int64_t nbytes;
    PyObject *tensor = PyObject_GetAttr(entry, tensor_name);
    int failed = tensor ? read_integer(tensor, nbytes_name, &nbytes) : -1;
    Py_XDECREF(tensor);
    if (failed) return NULL;
    Life *life = PyObject_New(Life, &LifeType);
    if (!life) return NULL;
    life->number = number;
    life->nbytes = nbytes;
    life->submitted_ns = origin->submitted_ns;
    life->flow = (char)origin->flow;
    life->is_claimed = 0;
    life->call = Py_NewRef(origin->call);
    life->name = PyObject_GetAttr(origin->request, name_name);
    life->kind = PyObject_GetAttr(origin->request, kind_name);
    life->dtype = PyObject_GetAttr(origin->request, dtype_name);
    life->shape = PyObject_GetAttr(origin->request, shape_name);
    if (!life->name || !life->kind || !life->dtype || !life->shape) Py_CLEAR(life);
    return life;
}

/* The life that an entry has: NULL without an error if it has none yet, `*is_recorded` if it needs none any more. */
Life *life_kept(PyObject *entry, int *is_recorded) {
    PyObject *kept = PyObject_GetAttr(entry, life_name);
    *is_recorded = kept == (PyObject *)recorded;
    if (!kept || (Py_IS_TYPE(kept, &LifeType) && !*is_recorded)) return (Life *)kept;
    Py_DECREF(kept);
    return NULL;
}

int keep_life(PyObject *entry, Life *life) {
    return PyObject_SetAttr(entry, life_name, (PyObject *)(life ? life : recorded));
}

int lives_open(void) {
    static const char *const TEXTS[] = {"life",   "request", "submitted_ns", "handle", "call",  "flow",
                                        "tensor", "nbytes",  "name",         "kind",   "dtype", "shape"};
    PyObject *names[12] = {NULL};
    if (intern(LIFE_NAMES, life_names, 9) < 0 || intern(TEXTS, names, 12) < 0) return -1;
    life_name = names[0], request_name = names[1], submitted_name = names[2], handle_name = names[3];
    call_name = names[4], flow_name = names[5], tensor_name = names[6], nbytes_name = names[7];
    name_name = names[8], kind_name = names[9], dtype_name = names[10], shape_name = names[11];
    recorded = PyObject_New(Life, &LifeType);
    if (!recorded) return -1;
    memset((char *)recorded + sizeof(PyObject), 0, sizeof(Life) - sizeof(PyObject));
    recorded->is_claimed = 1;
    return 0;
}
