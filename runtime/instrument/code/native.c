/* Sleeps, and gets the interpreter's lock afterwards without waiting for the thread that has it to give it back (see ticker.py);
 * and looks at the stack of another thread while that stands still. */
#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include <dlfcn.h>
#include <stdint.h>
#include <time.h>

#define SECOND_NS 1000000000

/* How long a thread waits for the lock before it insists, in microseconds; what sys.setswitchinterval sets, without the lock. */
static unsigned long (*get_patience)(void);
static void (*set_patience)(unsigned long);

/* What it was, while it is not; 0 else. */
static unsigned long kept_us;

static int64_t now_ns(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (int64_t)now.tv_sec * SECOND_NS + now.tv_nsec;
}

static PyObject *nap(PyObject *module, PyObject *arguments) {
    (void)module;
    long long length_ns;
    unsigned long patience_us, usual_us;
    if (!PyArg_ParseTuple(arguments, "Lk", &length_ns, &patience_us))
        return NULL;
    struct timespec length = {.tv_sec = length_ns / SECOND_NS, .tv_nsec = length_ns % SECOND_NS};
    int64_t woken_ns;
    PyThreadState *state = PyEval_SaveThread();
    nanosleep(&length, NULL);
    woken_ns = now_ns();
    usual_us = get_patience();
    /* Who begins to wait in the moments until the lock is there insists as early; nobody else notices. */
    kept_us = usual_us;
    set_patience(patience_us);
    PyEval_RestoreThread(state);
    /* Unless somebody has set another one meanwhile, who may have taken this one for the usual one. */
    if (get_patience() == patience_us)
        set_patience(usual_us);
    kept_us = 0;
    return PyLong_FromLongLong(woken_ns);
}

/* In a forked child, which has the memory of a process in the middle of a nap, perhaps, and not its thread. */
static PyObject *forget_nap(PyObject *module, PyObject *unused) {
    (void)module;
    (void)unused;
    if (kept_us != 0)
        set_patience(kept_us);
    kept_us = 0;
    Py_RETURN_NONE;
}

/* The frames of `frame` and its callers, innermost first, `most` of them: a list of (code, line or -1, last instruction). */
static PyObject *walk(PyFrameObject *frame, Py_ssize_t most) {
    PyObject *found = PyList_New(0);
    Py_INCREF(frame);
    while (found != NULL && frame != NULL && PyList_GET_SIZE(found) < most) {
        PyCodeObject *code = PyFrame_GetCode(frame);
        PyObject *one = Py_BuildValue("(Nii)", code, PyFrame_GetLineNumber(frame), PyFrame_GetLasti(frame));
        if (one == NULL || PyList_Append(found, one) < 0)
            Py_CLEAR(found);
        Py_XDECREF(one);
        PyFrameObject *back = PyFrame_GetBack(frame);
        Py_DECREF(frame);
        frame = back;
    }
    Py_XDECREF(frame);
    return found;
}

/* Nothing in here lets another thread run: no code of Python's, and no garbage collection, which would run some.  A frame whose
 * thread goes on while its callers are asked for leads to memory that is somebody else's by then. */
static PyObject *stack(PyObject *module, PyObject *arguments) {
    (void)module;
    PyObject *thread, *found = NULL;
    Py_ssize_t most;
    if (!PyArg_ParseTuple(arguments, "On", &thread, &most))
        return NULL;
    PyObject *current_frames = PySys_GetObject("_current_frames"); /* borrowed */
    if (current_frames == NULL) {
        PyErr_SetString(PyExc_RuntimeError, "this Python does not tell where its threads are");
        return NULL;
    }
    int collects = PyGC_Disable();
    PyObject *frames = PyObject_CallNoArgs(current_frames);
    if (frames != NULL) {
        PyObject *frame = PyDict_GetItemWithError(frames, thread); /* borrowed */
        if (frame != NULL && PyFrame_Check(frame))
            found = walk((PyFrameObject *)frame, most);
        else if (!PyErr_Occurred())
            found = PyList_New(0);
        Py_DECREF(frames);
    }
    if (collects)
        PyGC_Enable();
    return found;
}

static PyMethodDef methods[] = {
    {"stack", stack, METH_VARARGS,
     "stack(thread, most): where a thread is, innermost frame first: a list of (code, line or -1, last instruction); empty if there\n"
     "is no such thread."},
    {"nap", nap, METH_VARARGS,
     "nap(length_ns, patience_us): sleep, then get the interpreter's lock, insisting after `patience_us`.  When it woke up: ns of\n"
     "CLOCK_MONOTONIC, before it had the lock."},
    {"forget_nap", forget_nap, METH_NOARGS, "Undo what a nap has changed, in a forked child that has not its thread."},
    {NULL, NULL, 0, NULL},
};

static struct PyModuleDef definition = {
    PyModuleDef_HEAD_INIT, .m_name = "_native", .m_doc = "A sleep that ends in time, and looks at stacks.", .m_size = -1, .m_methods = methods,
};

PyMODINIT_FUNC PyInit__native(void) {
    /* POSIX lets a pointer to a function be had so.  They are Python's own, and not promised to anybody. */
    *(void **)&get_patience = dlsym(RTLD_DEFAULT, "_PyEval_GetSwitchInterval");
    *(void **)&set_patience = dlsym(RTLD_DEFAULT, "_PyEval_SetSwitchInterval");
    if (get_patience == NULL || set_patience == NULL) {
        PyErr_SetString(PyExc_ImportError, "this Python does not let a thread insist on the interpreter's lock");
        return NULL;
    }
    return PyModule_Create(&definition);
}
