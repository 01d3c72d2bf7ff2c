/* The recorder in C: what timeline/record/queue/portable.py does, without holding up the training.
 *
 * queue.c    records that wait for the writer's thread
 * lines.c    records to JSON, without the GIL
 * lives.c    tensors under way, and what is read of the runtime's entries
 * templates.c  the texts that are the same for every record of a name
 * spans.c    begin and end
 * blocks.c   blocks that are spans
 * thread_time.c  what a thread got of the processor
 *
 * One process, one interpreter, one GIL: all state hangs on it.
 */
#include "recording.h"

static PyObject *use_unknown_call(PyObject *module, PyObject *call) {
    (void)module;
    Py_XSETREF(unknown_call, Py_NewRef(call));
    Py_RETURN_NONE;
}

static PyMethodDef functions[] = {
    {"origins", origins, METH_O, NULL},
    {"use_unknown_call", use_unknown_call, METH_O, NULL},
    {NULL, NULL, 0, NULL},
};

static struct PyModuleDef definition = {
    PyModuleDef_HEAD_INIT,
    .m_name = "_native",
    .m_size = -1,
    .m_methods = functions,
};

#if !defined(__linux__) || defined(Py_GIL_DISABLED)

PyMODINIT_FUNC PyInit__native(void) {
    PyErr_SetString(PyExc_ImportError, "the recorder in C needs Linux's clocks and an interpreter lock");
    return NULL;
}

#else

PyMODINIT_FUNC PyInit__native(void) {
    static PyTypeObject *const types[] = {&QueueType, &OpenSpanType, &LifeType, &SpansType, &BlockType};
    unknown_call = Py_NewRef(Py_None);
    if (thread_time_open() < 0 || lives_open() < 0 || spans_open() < 0) return NULL;
    PyObject *module = PyModule_Create(&definition);
    for (size_t i = 0; module && i < sizeof types / sizeof *types; i++)
        if (PyModule_AddType(module, types[i]) < 0) Py_CLEAR(module);
    if (module && blocks_open() < 0) Py_CLEAR(module);
    return module;
}

#endif
