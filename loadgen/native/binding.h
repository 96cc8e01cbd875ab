/* What the Python-facing files share. Each binding parses arguments, releases the GIL and calls plain C. */
#ifndef LOADGEN_NATIVE_BINDING_H
#define LOADGEN_NATIVE_BINDING_H

#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <stdbool.h>
#include <stdint.h>
#include <string.h>

#define BYTES_MAX (1LL << 30)

extern PyType_Spec storm_spec;
extern PyType_Spec sink_spec;
extern PyType_Spec ctlist_spec;
extern PyType_Spec pairs_spec;
extern PyType_Spec responder_spec;

/* False, with ValueError set, when `value` of the argument `name` is outside [low, high]. */
static inline bool is_within(const char *name, int64_t value, int64_t low, int64_t high)
{
	if (value >= low && value <= high)
		return true;
	PyErr_Format(PyExc_ValueError, "%s is %lld, allowed are %lld to %lld", name, (long long)value, (long long)low,
		     (long long)high);
	return false;
}

/* Whether a buffer, taken with PyBUF_FORMAT, holds what due times are made of. */
static inline bool is_int64(const Py_buffer *view)
{
	const char *format = view->format ? view->format : "B";

	if (*format == '@' || *format == '=' || *format == '<')
		format++;
	return view->itemsize == 8 && (!strcmp(format, "q") || !strcmp(format, "l"));
}

/* Sets OSError from a negative errno (MemoryError for ENOMEM) and returns NULL. */
static inline PyObject *raise_errno(int err)
{
	if (err == -ENOMEM)
		return PyErr_NoMemory();
	errno = -err;
	return PyErr_SetFromErrno(PyExc_OSError);
}

#endif
