/* CtList in Python: feed bytes, finish, read the counts. */
#include "binding.h"
#include "ctlist.h"

struct ctlist_object {
	PyObject_HEAD
	struct ctlist list;
	bool is_busy;
};

static PyObject *ctlist_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
	static char *names[] = {"json", NULL};
	struct ctlist_object *self;
	int json = 0;

	if (!PyArg_ParseTupleAndKeywords(args, kwargs, "|$p:CtList", names, &json))
		return NULL;
	self = (struct ctlist_object *)type->tp_alloc(type, 0);
	if (self && ctlist_init(&self->list, json)) {
		Py_DECREF(self);
		return PyErr_NoMemory();
	}
	return (PyObject *)self;
}

static void ctlist_dealloc(PyObject *object)
{
	PyTypeObject *type = Py_TYPE(object);

	ctlist_free(&((struct ctlist_object *)object)->list);
	type->tp_free(object);
	Py_DECREF(type);
}

static PyObject *method_feed(PyObject *object, PyObject *data)
{
	struct ctlist_object *self = (struct ctlist_object *)object;
	Py_buffer buffer;

	if (PyObject_GetBuffer(data, &buffer, PyBUF_SIMPLE))
		return NULL;
	if (self->is_busy) {
		PyBuffer_Release(&buffer);
		PyErr_SetString(PyExc_RuntimeError, "another thread is feeding this list");
		return NULL;
	}
	self->is_busy = true;
	Py_BEGIN_ALLOW_THREADS;
	ctlist_feed(&self->list, buffer.buf, (size_t)buffer.len);
	Py_END_ALLOW_THREADS;
	self->is_busy = false;
	PyBuffer_Release(&buffer);
	Py_RETURN_NONE;
}

static PyObject *method_finish(PyObject *object, PyObject *Py_UNUSED(none))
{
	ctlist_finish(&((struct ctlist_object *)object)->list);
	Py_RETURN_NONE;
}

/* The used slots as bytes: rows of 16 bytes key and 8 bytes count. */
static PyObject *rows(const struct tally *tally)
{
	PyObject *bytes = PyBytes_FromStringAndSize(NULL, (Py_ssize_t)(tally->used * sizeof(struct tally_slot)));
	struct tally_slot *row = bytes ? (struct tally_slot *)PyBytes_AS_STRING(bytes) : NULL;

	for (uint32_t i = 0; row && i < CTLIST_SLOTS; i++)
		if (tally->slots[i].count)
			*row++ = tally->slots[i];
	return bytes;
}

static PyObject *get_states(PyObject *object, void *Py_UNUSED(closure))
{
	return rows(&((struct ctlist_object *)object)->list.states);
}

static PyObject *get_sources(PyObject *object, void *Py_UNUSED(closure))
{
	return rows(&((struct ctlist_object *)object)->list.sources);
}

static PyObject *get_destinations(PyObject *object, void *Py_UNUSED(closure))
{
	return rows(&((struct ctlist_object *)object)->list.destinations);
}

static PyObject *get_ports(PyObject *object, void *Py_UNUSED(closure))
{
	return PyBytes_FromStringAndSize((char *)((struct ctlist_object *)object)->list.ports, 65536 * 8);
}

static PyObject *get_counts(PyObject *object, void *Py_UNUSED(closure))
{
	const struct ctlist *list = &((struct ctlist_object *)object)->list;

	return Py_BuildValue("{s:K,s:K,s:K,s:I,s:L}", "entries", list->entries, "bad", list->bad, "uncounted",
			     list->states.uncounted + list->sources.uncounted + list->destinations.uncounted,
			     "last_report", list->last_report, "now", (long long)list->now);
}

static PyObject *get_complaints(PyObject *object, void *Py_UNUSED(closure))
{
	static const char *const words[CTLIST_COMPLAINT_KINDS] = {[CTLIST_NOT_AN_ENTRY] = "not a conntrack entry",
		[CTLIST_TORN] = "a torn conntrack entry", [CTLIST_TOO_LONG] = "a line of more than 4096 bytes"};
	const struct ctlist *list = &((struct ctlist_object *)object)->list;
	PyObject *all = PyList_New(0);

	for (unsigned int i = 0; all && i < list->complaint_count; i++) {
		PyObject *one = Py_BuildValue("(Ks)", list->complaints[i].at, words[list->complaints[i].kind]);

		if (!one || PyList_Append(all, one))
			Py_CLEAR(all);
		Py_XDECREF(one);
	}
	return all;
}

static PyMethodDef methods[] = {
	{"feed", method_feed, METH_O, "Read the next bytes."},
	{"finish", method_finish, METH_NOARGS, "There are no more bytes: what is left over is a whole or a torn entry."},
	{NULL, NULL, 0, NULL},
};

static PyGetSetDef getters[] = {
	{"states", get_states, NULL, NULL, NULL},
	{"sources", get_sources, NULL, NULL, NULL},
	{"destinations", get_destinations, NULL, NULL, NULL},
	{"ports", get_ports, NULL, NULL, NULL},
	{"counts", get_counts, NULL, NULL, NULL},
	{"complaints", get_complaints, NULL, NULL, NULL},
	{NULL, NULL, NULL, NULL, NULL},
};

static PyType_Slot slots[] = {
	{Py_tp_new, ctlist_new},   {Py_tp_dealloc, ctlist_dealloc}, {Py_tp_methods, methods},
	{Py_tp_getset, getters},   {0, NULL},
};

PyType_Spec ctlist_spec = {
	.name = "loadgen.native._native.CtList",
	.basicsize = sizeof(struct ctlist_object),
	.flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_IMMUTABLETYPE,
	.slots = slots,
};
