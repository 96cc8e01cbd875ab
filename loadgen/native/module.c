/* loadgen.native._native: the functions on conntrack maps, and the module itself. _native.pyi has the contracts. */
#include "binding.h"
#include "ctmap.h"
#include "pairs.h"
#include "storm.h"

struct module_state {
	PyTypeObject *walk_type;
};

/* --- arguments ---------------------------------------------------------------------------------------------- */

/* `object`: None or a writable buffer of at least 4 bytes. False with an exception set. */
static bool take_cancel(PyObject *object, Py_buffer *view, const volatile unsigned char **flag)
{
	if (object == Py_None)
		return true;
	if (PyObject_GetBuffer(object, view, PyBUF_WRITABLE))
		return false;
	if (view->len < 4) {
		PyErr_SetString(PyExc_ValueError, "cancel needs a buffer of at least 4 bytes");
		PyBuffer_Release(view);
		return false;
	}
	*flag = view->buf;
	return true;
}

static PyObject *raise_map_error(int fd, int err)
{
	if (err == -EMEDIUMTYPE)
		return PyErr_Format(PyExc_ValueError,
				    "descriptor %d is no conntrack map: a hash map of %u-byte keys and %u-byte values is needed",
				    fd, CT_KEY_BYTES, CT_VALUE_BYTES);
	return raise_errno(err);
}

/* --- ct_fill ------------------------------------------------------------------------------------------------ */

static bool check_fill(const Py_buffer *keys, const Py_buffer *values, long long batch)
{
	if (keys->len % CT_KEY_BYTES || keys->len / CT_KEY_BYTES * CT_VALUE_BYTES != values->len) {
		PyErr_Format(PyExc_ValueError, "%zd bytes of keys and %zd of values: %u and %u make an entry", keys->len,
			     values->len, CT_KEY_BYTES, CT_VALUE_BYTES);
		return false;
	}
	return is_within("batch", batch, 1, CT_BATCH_MAX);
}

static PyObject *fill(int fd, const Py_buffer *keys, const Py_buffer *values, long long batch, PyObject *cancel)
{
	struct ct_fill_options o = {.fd = fd, .keys = keys->buf, .values = values->buf};
	Py_buffer flag = {0};
	uint64_t filled = 0;
	int err;

	if (!check_fill(keys, values, batch) || !take_cancel(cancel, &flag, &o.cancel))
		return NULL;
	o.n = (uint64_t)keys->len / CT_KEY_BYTES;
	o.batch = (uint32_t)batch;
	Py_BEGIN_ALLOW_THREADS;
	err = ct_check(fd);
	if (!err)
		err = ct_fill(&o, &filled);
	Py_END_ALLOW_THREADS;
	PyBuffer_Release(&flag);
	return err ? raise_map_error(fd, err) : PyLong_FromUnsignedLongLong(filled);
}

static PyObject *native_ct_fill(PyObject *Py_UNUSED(module), PyObject *args, PyObject *kwargs)
{
	static char *names[] = {"fd", "keys", "values", "batch", "cancel", NULL};
	Py_buffer keys, values;
	long long batch = 65536;
	PyObject *cancel = Py_None, *result;
	int fd;

	if (!PyArg_ParseTupleAndKeywords(args, kwargs, "iy*y*|LO:ct_fill", names, &fd, &keys, &values, &batch, &cancel))
		return NULL;
	result = fill(fd, &keys, &values, batch, cancel);
	PyBuffer_Release(&keys);
	PyBuffer_Release(&values);
	return result;
}

/* --- ct_walk ------------------------------------------------------------------------------------------------ */

static PyStructSequence_Field walk_fields[] = {
	{"seen", "entries read; more than the map has when the walk had to restart"},
	{"expired", "of these, with a lifetime before `now`; 0 without `now`"},
	{"deleted", "entries that this walk deleted"},
	{"fallbacks", "times the current key had vanished and the walk resumed from the key before"},
	{"restarts", "times that key had vanished as well"},
	{"cancelled", "the cancel flag ended the walk"},
	{"ns", "how long the walk took"},
	{"completed", "the end of the map was reached"},
	{NULL, NULL},
};

static PyStructSequence_Desc walk_desc = {
	.name = "loadgen.native.CtWalk",
	.doc = "What a walk over a conntrack map saw and did.",
	.fields = walk_fields,
	.n_in_sequence = 7,
};

static PyObject *walk_result(PyTypeObject *type, const struct ct_walk_result *r)
{
	PyObject *result = PyStructSequence_New(type);

	if (!result)
		return NULL;
	PyStructSequence_SetItem(result, 0, PyLong_FromUnsignedLongLong(r->seen));
	PyStructSequence_SetItem(result, 1, PyLong_FromUnsignedLongLong(r->expired));
	PyStructSequence_SetItem(result, 2, PyLong_FromUnsignedLongLong(r->deleted));
	PyStructSequence_SetItem(result, 3, PyLong_FromUnsignedLongLong(r->fallbacks));
	PyStructSequence_SetItem(result, 4, PyLong_FromUnsignedLongLong(r->restarts));
	PyStructSequence_SetItem(result, 5, PyBool_FromLong(r->cancelled));
	PyStructSequence_SetItem(result, 6, PyLong_FromLongLong(r->ns));
	PyStructSequence_SetItem(result, 7, PyBool_FromLong(r->completed));
	if (PyErr_Occurred())
		Py_CLEAR(result);
	return result;
}

struct walk_args {
	int fd;
	long long capacity, batch, now, delete, address;
	PyObject *cancel;
};

static bool parse_walk(PyObject *args, PyObject *kwargs, struct walk_args *a)
{
	static char *names[] = {"fd", "capacity", "batch", "now", "delete", "address", "cancel", NULL};

	if (!PyArg_ParseTupleAndKeywords(args, kwargs, "iL|$LLLLO:ct_walk", names, &a->fd, &a->capacity, &a->batch,
					 &a->now, &a->delete, &a->address, &a->cancel))
		return false;
	if (!is_within("capacity", a->capacity, 1, UINT32_MAX) || !is_within("batch", a->batch, 0, CT_BATCH_MAX) ||
	    !is_within("now", a->now, 0, UINT32_MAX) || !is_within("delete", a->delete, CT_KEEP, CT_ADDRESS) ||
	    !is_within("address", a->address, 0, UINT32_MAX))
		return false;
	/* Zero is how both are left out: a walk that can match nothing is a mistake of its caller. */
	if (a->delete == CT_EXPIRED)
		return is_within("now, with delete=CT_EXPIRED,", a->now, 1, UINT32_MAX);
	if (a->delete == CT_ADDRESS)
		return is_within("address, with delete=CT_ADDRESS,", a->address, 1, UINT32_MAX);
	return true;
}

static PyObject *native_ct_walk(PyObject *module, PyObject *args, PyObject *kwargs)
{
	struct module_state *state = PyModule_GetState(module);
	struct walk_args a = {.cancel = Py_None};
	struct ct_walk_options o = {0};
	struct ct_walk_result r;
	Py_buffer flag = {0};
	int err;

	if (!parse_walk(args, kwargs, &a) || !take_cancel(a.cancel, &flag, &o.cancel))
		return NULL;
	o.fd = a.fd;
	o.capacity = (uint64_t)a.capacity;
	o.batch = (uint32_t)a.batch;
	o.now = (uint32_t)a.now;
	o.delete = (enum ct_delete)a.delete;
	o.address_be = htonl((uint32_t)a.address);
	Py_BEGIN_ALLOW_THREADS;
	err = ct_check(o.fd);
	if (!err)
		err = ct_walk(&o, &r);
	Py_END_ALLOW_THREADS;
	PyBuffer_Release(&flag);
	return err ? raise_map_error(o.fd, err) : walk_result(state->walk_type, &r);
}

/* --- the module --------------------------------------------------------------------------------------------- */

static int add_details(PyObject *module, const char *name, const char *const *details, Py_ssize_t n)
{
	PyObject *words = PyTuple_New(n);

	for (Py_ssize_t i = 0; words && i < n; i++) {
		PyObject *word = PyUnicode_FromString(details[i]);

		if (!word)
			Py_CLEAR(words);
		else
			PyTuple_SET_ITEM(words, i, word);
	}
	if (!words)
		return -1;
	int failed = PyModule_AddObjectRef(module, name, words);
	Py_DECREF(words);
	return failed;
}

static int add_type(PyObject *module, PyType_Spec *spec)
{
	PyObject *type = PyType_FromModuleAndSpec(module, spec, NULL);
	int failed = type ? PyModule_AddType(module, (PyTypeObject *)type) : -1;

	Py_XDECREF(type);
	return failed;
}

static int module_exec(PyObject *module)
{
	struct module_state *state = PyModule_GetState(module);

	state->walk_type = PyStructSequence_NewType(&walk_desc);
	if (!state->walk_type || PyModule_AddObjectRef(module, "CtWalk", (PyObject *)state->walk_type))
		return -1;
	if (add_type(module, &storm_spec) || add_type(module, &sink_spec) || add_type(module, &ctlist_spec) ||
	    add_type(module, &pairs_spec) || add_type(module, &responder_spec))
		return -1;
	if (add_details(module, "STORM_DETAILS", storm_details, DETAIL_COUNT) ||
	    add_details(module, "PAIRS_DETAILS", pairs_details, PAIRS_DETAILS))
		return -1;
	return PyModule_AddIntMacro(module, CT_KEEP) || PyModule_AddIntMacro(module, CT_EXPIRED) ||
			       PyModule_AddIntMacro(module, CT_ADDRESS)
		       ? -1
		       : 0;
}

static int module_traverse(PyObject *module, visitproc visit, void *arg)
{
	struct module_state *state = PyModule_GetState(module);

	Py_VISIT(state->walk_type);
	return 0;
}

static int module_clear(PyObject *module)
{
	struct module_state *state = PyModule_GetState(module);

	Py_CLEAR(state->walk_type);
	return 0;
}

#define KEYWORDS METH_VARARGS | METH_KEYWORDS

static PyMethodDef module_methods[] = {
	{"ct_fill", (PyCFunction)(void (*)(void))native_ct_fill, KEYWORDS, "Write entries into a conntrack map."},
	{"ct_walk", (PyCFunction)(void (*)(void))native_ct_walk, KEYWORDS, "Read a conntrack map from end to end."},
	{NULL, NULL, 0, NULL},
};

static PyModuleDef_Slot module_slots[] = {{Py_mod_exec, module_exec}, {0, NULL}};

static struct PyModuleDef module_def = {
	PyModuleDef_HEAD_INIT,
	.m_name = "loadgen.native._native",
	.m_doc = "The hot loops: conntrack map walk and fill, TCP storm and sink, DNS lookups. They run without the GIL.",
	.m_size = sizeof(struct module_state),
	.m_methods = module_methods,
	.m_slots = module_slots,
	.m_traverse = module_traverse,
	.m_clear = module_clear,
};

PyMODINIT_FUNC PyInit__native(void)
{
	return PyModuleDef_Init(&module_def);
}
