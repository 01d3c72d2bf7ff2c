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
    PyVarObject_HEAD_INIT(NULL, 0).tp_name = "tlkit.timeline.record.queue._native.TensorLife",
    .tp_basicsize = sizeof(Life),
    .tp_flags = Py_TPFLAGS_DEFAULT,
    .tp_new = Life_new,
    .tp_vectorcall = Life_vectorcall,
    .tp_dealloc = (destructor)Life_dealloc,
    .tp_methods = Life_methods,
    .tp_members = Life_members,
};

/* Entries of the runtime (see portable_queue.py for what they have).
 *
 * Their attributes are slots, which lie at the same place in all objects of a type: read there, an attribute costs a few
 * nanoseconds.  Objects of any other make are asked as Python does it. */

enum { LIFE, REQUEST, SUBMITTED, HANDLE, ENTRY_SLOTS };
enum { CALL, FLOW, HANDLE_SLOTS };

typedef struct {
    PyTypeObject *type; /* kept alive */
    Py_ssize_t offsets[ENTRY_SLOTS]; /* 0: no slot */
} Layout;

static Layout entry_layout, handle_layout;
static PyObject *entry_names[ENTRY_SLOTS], *handle_names[HANDLE_SLOTS];
static PyObject *tensor_name, *nbytes_name, *name_name, *kind_name, *dtype_name, *shape_name;
static Life *recorded; /* what an entry has once it was recorded */
static int64_t numbers;

int64_t another_number(void) { return ++numbers; }

static Py_ssize_t offset_of(PyTypeObject *type, PyObject *name) {
    PyObject *found = PyObject_GetAttr((PyObject *)type, name);
    Py_ssize_t offset = 0;
    if (!found) {
        PyErr_Clear();
        return 0;
    }
    if (Py_IS_TYPE(found, &PyMemberDescr_Type)) {
        const PyMemberDef *member = ((PyMemberDescrObject *)found)->d_member;
        if (member->type == T_OBJECT_EX) offset = member->offset;
    }
    Py_DECREF(found);
    return offset;
}

static void learn(Layout *layout, PyTypeObject *type, PyObject **names, int count) {
    Layout fresh = {(PyTypeObject *)Py_NewRef((PyObject *)type), {0}};
    for (int i = 0; i < count; i++) fresh.offsets[i] = offset_of(type, names[i]);
    PyTypeObject *before = layout->type;
    *layout = fresh;
    Py_XDECREF((PyObject *)before);
}

static inline PyObject **slot_at(Layout *layout, PyObject *object, PyObject **names, int count, int number) {
    if (layout->type != Py_TYPE(object)) learn(layout, Py_TYPE(object), names, count);
    Py_ssize_t offset = layout->offsets[number];
    return offset ? (PyObject **)((char *)object + offset) : NULL;
}

/* An attribute, without a reference to it: its owner has one, or else `*held`. */
static PyObject *borrow(Layout *layout, PyObject *object, PyObject **names, int count, int number, PyObject **held) {
    PyObject **slot = slot_at(layout, object, names, count, number);
    if (slot && *slot) return *slot;
    Py_XSETREF(*held, PyObject_GetAttr(object, names[number]));
    return *held;
}

#define OF_ENTRY(entry, number, held) borrow(&entry_layout, entry, entry_names, ENTRY_SLOTS, number, held)
#define OF_HANDLE(handle, number, held) borrow(&handle_layout, handle, handle_names, HANDLE_SLOTS, number, held)

void forget_origin(Origin *origin) {
    for (int i = 0; i < 3; i++) Py_CLEAR(origin->held[i]);
}

static int read_submitted(PyObject *entry, Origin *origin) {
    PyObject *held = NULL, *found = OF_ENTRY(entry, SUBMITTED, &held);
    long long at_ns;
    int failed = found ? as_integer(found, &at_ns) : -1;
    Py_XDECREF(held);
    if (!failed) origin->submitted_ns = at_ns;
    return failed;
}

/* Most entries are of the same handle as the one before.  Returns 0 if nothing was recorded when it was submitted. */
static int read_handle(PyObject *entry, Origin *origin) {
    PyObject *handle = OF_ENTRY(entry, HANDLE, &origin->held[0]), *held = NULL;
    if (!handle) return -1;
    if (handle != origin->handle) {
        origin->call = OF_HANDLE(handle, CALL, &origin->held[1]);
        PyObject *flow = origin->call ? OF_HANDLE(handle, FLOW, &held) : NULL;
        origin->flow = flow ? PyObject_IsTrue(flow) : -1;
        Py_XDECREF(held);
        if (origin->flow < 0) return -1;
        origin->handle = handle;
    }
    return origin->call != Py_None;
}

/* What an entry says of itself.  `origin` is that of the entry before, or zeros.
 * Returns 0 if it was submitted while nothing was recorded. */
int read_origin(PyObject *entry, Origin *origin) {
    origin->request = OF_ENTRY(entry, REQUEST, &origin->held[2]);
    return !origin->request || read_submitted(entry, origin) < 0 ? -1 : read_handle(entry, origin);
}

static int take_integer(PyObject *found, int64_t *value) {
    if (!found) return -1;
    long long number;
    int failed = as_integer(found, &number);
    Py_DECREF(found);
    *value = number;
    return failed;
}

Life *life_of_entry(PyObject *entry, const Origin *origin, int64_t number) {
    int64_t nbytes;
    PyObject *tensor = PyObject_GetAttr(entry, tensor_name);
    int failed = tensor ? take_integer(PyObject_GetAttr(tensor, nbytes_name), &nbytes) : -1;
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
    PyObject *held = NULL, *kept = OF_ENTRY(entry, LIFE, &held);
    Py_XINCREF(kept);
    Py_XDECREF(held);
    *is_recorded = kept == (PyObject *)recorded;
    if (!kept || (Py_IS_TYPE(kept, &LifeType) && !*is_recorded)) return (Life *)kept;
    Py_DECREF(kept);
    return NULL;
}

int keep_life(PyObject *entry, Life *life) {
    PyObject *kept = (PyObject *)(life ? life : recorded);
    PyObject **slot = slot_at(&entry_layout, entry, entry_names, ENTRY_SLOTS, LIFE);
    if (!slot) return PyObject_SetAttr(entry, entry_names[LIFE], kept);
    Py_XSETREF(*slot, Py_NewRef(kept));
    return 0;
}

/* The calls that entries come of, and when the last of them was submitted (ns). */
PyObject *origins(PyObject *module, PyObject *entries) {
    Origin origin = {0};
    PyObject *last = NULL, *calls = PySet_New(NULL);
    PyObject *items = calls ? PySequence_Fast(entries, "not a sequence of entries") : NULL;
    int64_t last_ns = 0;
    int failed = !items;
    (void)module;
    for (Py_ssize_t i = 0; !failed && i < PySequence_Fast_GET_SIZE(items); i++) {
        PyObject *entry = PySequence_Fast_GET_ITEM(items, i);
        int is_known = read_handle(entry, &origin);
        failed = is_known < 0 || read_submitted(entry, &origin) < 0 ||
                 (is_known && origin.handle != last && PySet_Add(calls, origin.call) < 0);
        last = origin.handle;
        if (!i || origin.submitted_ns > last_ns) last_ns = origin.submitted_ns;
    }
    forget_origin(&origin);
    Py_XDECREF(items);
    PyObject *result = failed ? NULL : Py_BuildValue("OL", calls, (long long)last_ns);
    Py_XDECREF(calls);
    return result;
}

int lives_open(void) {
    static const char *const ENTRY[] = {"life", "request", "submitted_ns", "handle"};
    static const char *const HANDLE_[] = {"call", "flow"};
    static const char *const TEXTS[] = {"tensor", "nbytes", "name", "kind", "dtype", "shape"};
    PyObject *names[6] = {NULL};
    if (intern(LIFE_NAMES, life_names, 9) < 0 || intern(TEXTS, names, 6) < 0 ||
        intern(ENTRY, entry_names, ENTRY_SLOTS) < 0 || intern(HANDLE_, handle_names, HANDLE_SLOTS) < 0)
        return -1;
    tensor_name = names[0], nbytes_name = names[1], name_name = names[2], kind_name = names[3];
    dtype_name = names[4], shape_name = names[5];
    recorded = PyObject_New(Life, &LifeType);
    if (!recorded) return -1;
    memset((char *)recorded + sizeof(PyObject), 0, sizeof(Life) - sizeof(PyObject));
    recorded->is_claimed = 1;
    return 0;
}
