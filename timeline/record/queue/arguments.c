#include "recording.h"

int place(PyObject *const *names, Py_ssize_t most, PyObject *const *values, Py_ssize_t count, PyObject *keywords,
                 PyObject **placed) {
    if (count > most) {
        PyErr_Format(PyExc_TypeError, "at most %zd arguments, not %zd", most, count);
        return -1;
    }
    for (Py_ssize_t i = 0; i < count; i++) placed[i] = values[i];
    for (Py_ssize_t k = 0; keywords && k < PyTuple_GET_SIZE(keywords); k++) {
        PyObject *keyword = PyTuple_GET_ITEM(keywords, k);
        Py_ssize_t i = 0;
        while (i < most && names[i] != keyword) i++;
        if (i == most)
            for (i = 0; i < most && PyUnicode_Compare(names[i], keyword); i++) continue;
        if (i == most || placed[i]) {
            PyErr_Format(PyExc_TypeError, "unexpected argument '%U'", keyword);
            return -1;
        }
        placed[i] = values[count + k];
    }
    return 0;
}

int intern(const char *const *texts, PyObject **names, int count) {
    for (int i = 0; i < count; i++)
        if (!names[i] && !(names[i] = PyUnicode_InternFromString(texts[i]))) return -1;
    return 0;
}
