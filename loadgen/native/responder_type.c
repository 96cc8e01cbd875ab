/* loadgen.native.Responder: responder.c for Python. */
#include "binding.h"
#include "responder.h"

struct responder_object {
	PyObject_HEAD
	struct responder *responder; /* NULL once closed */
	uint64_t answered;	     /* by then */
	bool is_running;
};

static PyObject *responder_type_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
	static char *names[] = {"port", NULL};
	struct responder_object *self;
	long long port = 0;

	if (!PyArg_ParseTupleAndKeywords(args, kwargs, "|L:Responder", names, &port) ||
	    !is_within("port", port, 0, UINT16_MAX))
		return NULL;
	self = (struct responder_object *)type->tp_alloc(type, 0);
	if (!self)
		return NULL;
	self->responder = responder_new((uint16_t)port);
	if (!self->responder) {
		raise_errno(-errno);
		Py_CLEAR(self);
	}
	return (PyObject *)self;
}

static void responder_type_dealloc(struct responder_object *self)
{
	PyTypeObject *type = Py_TYPE(self);

	if (self->responder)
		responder_free(self->responder);
	type->tp_free(self);
	Py_DECREF(type);
}

static PyObject *responder_type_run(struct responder_object *self, PyObject *until)
{
	int64_t until_ns = PyLong_AsLongLong(until);
	int err;

	if (until_ns == -1 && PyErr_Occurred())
		return NULL;
	if (!self->responder)
		return PyErr_Format(PyExc_ValueError, "the responder is closed");
	if (self->is_running)
		return PyErr_Format(PyExc_RuntimeError, "the responder is running in another thread");
	do {
		self->is_running = true;
		Py_BEGIN_ALLOW_THREADS;
		err = responder_run(self->responder, until_ns);
		Py_END_ALLOW_THREADS;
		self->is_running = false;
	} while (err == -EINTR && !PyErr_CheckSignals());
	if (PyErr_Occurred())
		return NULL;
	if (err)
		return raise_errno(err);
	Py_RETURN_NONE;
}

static PyObject *responder_type_close(struct responder_object *self, PyObject *Py_UNUSED(none))
{
	if (self->is_running)
		return PyErr_Format(PyExc_RuntimeError, "the responder is running in another thread");
	if (self->responder) {
		self->answered = responder_answered(self->responder);
		responder_free(self->responder);
		self->responder = NULL;
	}
	Py_RETURN_NONE;
}

static PyObject *responder_type_port(struct responder_object *self, void *Py_UNUSED(closure))
{
	return PyLong_FromLong(self->responder ? responder_port(self->responder) : 0);
}

static PyObject *responder_type_answered(struct responder_object *self, void *Py_UNUSED(closure))
{
	return PyLong_FromUnsignedLongLong(self->responder ? responder_answered(self->responder) : self->answered);
}

static PyMethodDef methods[] = {
	{"run", (PyCFunction)responder_type_run, METH_O, "Serve until a moment."},
	{"close", (PyCFunction)responder_type_close, METH_NOARGS, "Close the socket; the counter stays."},
	{NULL, NULL, 0, NULL},
};

static PyGetSetDef attributes[] = {
	{"port", (getter)responder_type_port, NULL, "Where it listens; 0 once closed.", NULL},
	{"answered", (getter)responder_type_answered, NULL, "Replies handed to the kernel.", NULL},
	{NULL, NULL, NULL, NULL, NULL},
};

static PyType_Slot slots[] = {
	{Py_tp_doc, "A name server that has an address for every name."},
	{Py_tp_new, responder_type_new},
	{Py_tp_dealloc, responder_type_dealloc},
	{Py_tp_methods, methods},
	{Py_tp_getset, attributes},
	{0, NULL},
};

PyType_Spec responder_spec = {
	.name = "loadgen.native._native.Responder",
	.basicsize = sizeof(struct responder_object),
	.flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_IMMUTABLETYPE,
	.slots = slots,
};
