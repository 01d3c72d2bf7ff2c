/* Texts that are rendered once a name, found by the identity of what they are about. */
#include "recording.h"

/* Rendered texts are kept for so many names (see ShardFormat): unnamed operations get a new name each time. */
#define MAX_TEMPLATES 8192
#define BUCKETS 2048

int templates_open(Templates *templates) {
    templates->buckets = PyMem_Calloc(BUCKETS, sizeof(Template *));
    templates->remembered = PyMem_Calloc(REMEMBERED, sizeof(Remembered));
    return templates->buckets && templates->remembered ? 0 : -1;
}

void templates_free(Template *first) {
    while (first) {
        Template *next = first->next;
        Py_XDECREF(first->name);
        Py_XDECREF(first->about);
        Py_XDECREF(first->dtype);
        Py_XDECREF(first->shape);
        Py_XDECREF(first->collective);
        PyMem_Free(first);
        first = next;
    }
}

/* Let none be found any more; those who have pointers to them may go on using them. */
static void retire(Templates *templates) {
    for (int i = 0; i < BUCKETS; i++) {
        Template *template = templates->buckets[i];
        templates->buckets[i] = NULL;
        while (template) {
            Template *next = template->next;
            template->next = templates->retired;
            templates->retired = template;
            template = next;
        }
    }
    templates->count = 0;
    for (int i = 0; i < REMEMBERED; i++) {
        Remembered before = templates->remembered[i];
        templates->remembered[i] = (Remembered){NULL, NULL, NULL};
        Py_XDECREF(before.request);
        Py_XDECREF(before.call);
    }
}

void templates_remember(Templates *templates, PyObject *request, PyObject *call, Template *template) {
    Remembered *place = remembered_at(templates, request), before = *place;
    *place = (Remembered){Py_NewRef(request), Py_NewRef(call), template};
    Py_XDECREF(before.request);
    Py_XDECREF(before.call);
}

void templates_close(Templates *templates) {
    if (templates->buckets && templates->remembered) retire(templates);
    templates_free(templates->retired);
    templates->retired = NULL;
    PyMem_Free(templates->buckets);
    PyMem_Free(templates->remembered);
    templates->buckets = NULL;
    templates->remembered = NULL;
}

static inline int same_text(PyObject *a, PyObject *b) {
    if (a == b) return 1;
    if (!a || !b || !PyUnicode_Check(a) || !PyUnicode_Check(b)) return 0;
    return PyUnicode_Compare(a, b) == 0;
}

static inline Template **bucket(Templates *templates, Py_hash_t hash, int64_t number, int kind) {
    uint64_t mixed = ((uint64_t)hash ^ (uint64_t)number * 0x9E3779B97F4A7C15u ^ (uint64_t)kind << 7);
    return &templates->buckets[(mixed ^ mixed >> 23) % BUCKETS];
}

static Template *find(Template *template, int kind, Py_hash_t hash, PyObject *name, PyObject *about, int64_t number) {
    for (; template; template = template->next) {
        if (template->hash != hash || template->kind != kind || template->number != number) continue;
        if (!same_text(template->name, name)) continue;
        if (template->about == about || same_text(template->about, about)) return template;
    }
    return NULL;
}

/* Shapes are tuples of integers; of any other only one and the same is the same. */
static int same_shape(PyObject *a, PyObject *b) {
    if (a == b) return 1;
    if (!PyTuple_CheckExact(a) || !PyTuple_CheckExact(b)) return 0;
    int same = PyObject_RichCompareBool(a, b, Py_EQ);
    if (same < 0) PyErr_Clear();
    return same > 0;
}

static Template *find_life(Template *template, Py_hash_t hash, const Life *life, int64_t process_set) {
    for (; template; template = template->next) {
        if (template->hash != hash || template->kind != OF_LIFE || template->number != process_set) continue;
        if (template->about != life->call || template->nbytes != life->nbytes) continue;
        if (same_text(template->name, life->name) && same_text(template->dtype, life->dtype) &&
            same_text(template->collective, life->kind) && same_shape(template->shape, life->shape))
            return template;
    }
    return NULL;
}

/* A template of what Python rendered: a text, or a tuple of LIFE_PIECES of them. */
static Template *made_of(PyObject *rendered) {
    PyObject *alone[1] = {rendered}, **pieces = alone;
    Py_ssize_t count = 1, nbytes = 0;
    if (PyTuple_Check(rendered)) {
        pieces = ((PyTupleObject *)rendered)->ob_item;
        count = PyTuple_GET_SIZE(rendered);
    }
    if (count != 1 && count != LIFE_PIECES) {
        PyErr_SetString(PyExc_ValueError, "a template has one piece, or those of a tensor's life");
        return NULL;
    }
    for (Py_ssize_t i = 0; i < count; i++) {
        Py_ssize_t more;
        if (!PyUnicode_Check(pieces[i])) {
            PyErr_SetString(PyExc_TypeError, "a template is text");
            return NULL;
        }
        if (!PyUnicode_AsUTF8AndSize(pieces[i], &more)) return NULL;
        nbytes += more;
    }
    if (nbytes > INT32_MAX) {
        PyErr_SetString(PyExc_ValueError, "a name is too long");
        return NULL;
    }
    Template *template = PyMem_Calloc(1, sizeof(Template) + (size_t)nbytes);
    if (!template) {
        PyErr_NoMemory();
        return NULL;
    }
    uint32_t end = 0;
    for (Py_ssize_t i = 0; i < count; i++) {
        Py_ssize_t more;
        const char *text = PyUnicode_AsUTF8AndSize(pieces[i], &more);
        memcpy(template->text + end, text, (size_t)more);
        end += (uint32_t)more;
        template->ends[i] = end;
    }
    return template;
}

/* Keep what was rendered (a reference that is taken over, or NULL after an error). */
static Template *keep(Templates *templates, PyObject *rendered, int kind, Py_hash_t hash, PyObject *name,
                      PyObject *about, int64_t number) {
    Template *template = rendered ? made_of(rendered) : NULL;
    Py_XDECREF(rendered);
    if (!template) return NULL;
    template->kind = kind;
    template->hash = hash;
    template->name = Py_NewRef(name);
    template->about = Py_XNewRef(about);
    template->number = number;
    if (templates->count >= MAX_TEMPLATES) retire(templates);
    Template **place = bucket(templates, hash, number, kind);
    template->next = *place;
    *place = template;
    templates->count++;
    return template;
}

Template *template_of_span(Templates *templates, PyObject *format, PyObject *name, PyObject *category, int64_t tid) {
    Py_hash_t hash = PyObject_Hash(name);
    if (hash == -1) return NULL;
    Template *found = find(*bucket(templates, hash, tid, OF_SPAN), OF_SPAN, hash, name, category, tid);
    if (found) return found;
    PyObject *rendered = PyObject_CallMethod(format, "render_span", "OOL", name, category, (long long)tid);
    return keep(templates, rendered, OF_SPAN, hash, name, category, tid);
}

Template *template_of_counter(Templates *templates, PyObject *format, PyObject *name) {
    Py_hash_t hash = PyObject_Hash(name);
    if (hash == -1) return NULL;
    Template *found = find(*bucket(templates, hash, 0, OF_COUNTER), OF_COUNTER, hash, name, NULL, 0);
    if (found) return found;
    PyObject *rendered = PyObject_CallMethod(format, "render_counter", "O", name);
    return keep(templates, rendered, OF_COUNTER, hash, name, NULL, 0);
}

Template *template_of_life(Templates *templates, PyObject *format, Life *life, int64_t process_set) {
    Py_hash_t hash = PyObject_Hash(life->name);
    if (hash == -1) return NULL;
    Template *found = find_life(*bucket(templates, hash, process_set, OF_LIFE), hash, life, process_set);
    if (found) return found;
    PyObject *rendered = PyObject_CallMethod(format, "render_life", "OL", (PyObject *)life, (long long)process_set);
    Template *made = keep(templates, rendered, OF_LIFE, hash, life->name, life->call, process_set);
    if (!made) return NULL;
    made->nbytes = life->nbytes;
    made->dtype = Py_NewRef(life->dtype);
    made->shape = Py_NewRef(life->shape);
    made->collective = Py_NewRef(life->kind);
    return made;
}
