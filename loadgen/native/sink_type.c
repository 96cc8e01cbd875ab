/* loadgen.native.Sink: sink.c for Python. */
#include "binding.h"
#include "sink.h"

struct sink_object {
	PyObject_HEAD
	struct sink *sink; /* NULL once closed */
	bool is_running;   /* in run(), without the GIL */
	struct sink_counters last; /* as they were when it was closed */
	uint16_t port;
};

/* --- construction ------------------------------------------------------------------------------------------- */

static PyObject *sink_type_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
	static char *names[] = {"port", "request_bytes", "reply_bytes", "ports", "close", NULL};
	long long port, request_bytes, reply_bytes, ports = 1;
	struct sink_object *self;
	const char *close;

	if (!PyArg_ParseTupleAndKeywords(args, kwargs, "LLL|$Ls:Sink", names, &port, &request_bytes, &reply_bytes, &ports,
					 &close))
		return NULL;
	if (!is_within("port", port, 0, UINT16_MAX) || !is_within("request_bytes", request_bytes, 1, BYTES_MAX) ||
	    !is_within("reply_bytes", reply_bytes, 1, BYTES_MAX) ||
	    !is_within("ports", ports, 1, port ? UINT16_MAX + 1 - port : 1))
		return NULL;
	self = (struct sink_object *)type->tp_alloc(type, 0);
	if (!self)
		return NULL;
	self->sink = sink_new((uint16_t)port, (size_t)ports, (size_t)request_bytes, (size_t)reply_bytes);
	if (!self->sink) {
		raise_errno(-errno);
		Py_DECREF(self);
		return NULL;
	}
	self->port = sink_port(self->sink);
	return (PyObject *)self;
}

static void sink_type_dealloc(struct sink_object *self)
{
	PyTypeObject *type = Py_TYPE(self);

	if (self->sink)
		sink_free(self->sink);
	type->tp_free(self);
	Py_DECREF(type);
}

/* --- methods ------------------------------------------------------------------------------------------------ */

static bool is_usable(const struct sink_object *self)
{
	if (!self->sink)
		PyErr_SetString(PyExc_ValueError, "the sink is closed");
	else if (self->is_running)
		PyErr_SetString(PyExc_RuntimeError, "the sink is running in another thread");
	else
		return true;
	return false;
}

static PyObject *sink_type_run(struct sink_object *self, PyObject *until)
{
	int64_t until_ns = PyLong_AsLongLong(until);
	int err;

	if ((until_ns == -1 && PyErr_Occurred()) || !is_usable(self))
		return NULL;
	do {
		self->is_running = true;
		Py_BEGIN_ALLOW_THREADS;
		err = sink_run(self->sink, until_ns);
		Py_END_ALLOW_THREADS;
		self->is_running = false;
	} while (err == -EINTR && !PyErr_CheckSignals());
	if (PyErr_Occurred())
		return NULL;
	if (err)
		return raise_errno(err);
	Py_RETURN_NONE;
}

static PyObject *sink_type_close(struct sink_object *self, PyObject *Py_UNUSED(none))
{
	if (!self->sink)
		Py_RETURN_NONE;
	if (!is_usable(self))
		return NULL;
	self->last = sink_counters(self->sink);
	self->last.open = 0;
	sink_free(self->sink);
	self->sink = NULL;
	Py_RETURN_NONE;
}

/* Counters may be read while another thread is in run(): each is a word of its own, at worst a moment old. */
static struct sink_counters counters(const struct sink_object *self)
{
	return self->sink ? sink_counters(self->sink) : self->last;
}

static PyObject *sink_type_accepted(struct sink_object *self, void *Py_UNUSED(closure))
{
	return PyLong_FromUnsignedLongLong(counters(self).accepted);
}

static PyObject *sink_type_served(struct sink_object *self, void *Py_UNUSED(closure))
{
	return PyLong_FromUnsignedLongLong(counters(self).served);
}

static PyObject *sink_type_open(struct sink_object *self, void *Py_UNUSED(closure))
{
	return PyLong_FromUnsignedLongLong(counters(self).open);
}

static PyObject *sink_type_port(struct sink_object *self, void *Py_UNUSED(closure))
{
	return PyLong_FromLong(self->port);
}

/* --- the type ----------------------------------------------------------------------------------------------- */

static PyMethodDef methods[] = {
	{"run", (PyCFunction)sink_type_run, METH_O, "Serve until a moment."},
	{"close", (PyCFunction)sink_type_close, METH_NOARGS, "Close every socket; the counters stay."},
	{NULL, NULL, 0, NULL},
};

static PyGetSetDef attributes[] = {
	{"accepted", (getter)sink_type_accepted, NULL, "Connections accepted.", NULL},
	{"served", (getter)sink_type_served, NULL, "Replies handed to the kernel whole.", NULL},
	{"open", (getter)sink_type_open, NULL, "Connections under way.", NULL},
	{"port", (getter)sink_type_port, NULL, "The first port it listens on.", NULL},
	{NULL, NULL, NULL, NULL, NULL},
};

static PyType_Slot slots[] = {
	{Py_tp_doc, "The server that a Storm talks to."},
	{Py_tp_new, sink_type_new},
	{Py_tp_dealloc, sink_type_dealloc},
	{Py_tp_methods, methods},
	{Py_tp_getset, attributes},
	{0, NULL},
};

PyType_Spec sink_spec = {
	.name = "loadgen.native._native.Sink",
	.basicsize = sizeof(struct sink_object),
	.flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_IMMUTABLETYPE,
	.slots = slots,
};
