/* loadgen.native.Storm: storm.c for Python. */
#include "binding.h"
#include "storm.h"

#define TIMEOUT_MAX_NS (86400 * NS_PER_S)
#define OPEN_MAX (1 << 20)

struct storm_object {
	PyObject_HEAD
	struct storm *storm; /* NULL once closed */
	bool is_running;     /* in C, without the GIL */
};

/* The storm if this thread may work with it, else NULL with an exception set. */
static struct storm *usable(struct storm_object *self)
{
	if (!self->storm)
		PyErr_SetString(PyExc_ValueError, "the storm is closed");
	else if (self->is_running)
		PyErr_SetString(PyExc_RuntimeError, "the storm is running in another thread");
	else
		return self->storm;
	return NULL;
}

/* --- construction ------------------------------------------------------------------------------------------- */

struct storm_args {
	Py_buffer targets;
	long long request_bytes, reply_bytes, timeout_ns, max_open;
	const char *close;
};

static bool check_targets(const Py_buffer *targets)
{
	const unsigned char *bytes = targets->buf;

	if (targets->len == 0 || targets->len % TARGET_BYTES) {
		PyErr_Format(PyExc_ValueError, "targets are %zd bytes: %u are needed for each, and at least one target",
			     targets->len, TARGET_BYTES);
		return false;
	}
	for (Py_ssize_t i = 0; i < targets->len; i += TARGET_BYTES) {
		if (!bytes[i + 4] && !bytes[i + 5]) {
			PyErr_Format(PyExc_ValueError, "target number %zd has port 0", i / TARGET_BYTES);
			return false;
		}
	}
	return true;
}

static bool check_args(const struct storm_args *a)
{
	if (!check_targets(&a->targets))
		return false;
	if (strcmp(a->close, "fin") && strcmp(a->close, "rst")) {
		PyErr_Format(PyExc_ValueError, "close is \"%s\", allowed are \"fin\" and \"rst\"", a->close);
		return false;
	}
	return is_within("request_bytes", a->request_bytes, 1, BYTES_MAX) &&
	       is_within("reply_bytes", a->reply_bytes, 1, BYTES_MAX) &&
	       is_within("timeout_ns", a->timeout_ns, 1, TIMEOUT_MAX_NS) && is_within("max_open", a->max_open, 1, OPEN_MAX);
}

static PyObject *make(PyTypeObject *type, const struct storm_args *a)
{
	struct storm_config config = {
		.targets = a->targets.buf,
		.n_targets = (size_t)a->targets.len / TARGET_BYTES,
		.request_bytes = (size_t)a->request_bytes,
		.reply_bytes = (size_t)a->reply_bytes,
		.close_rst = !strcmp(a->close, "rst"),
		.timeout_ns = a->timeout_ns,
		.max_open = (uint32_t)a->max_open,
	};
	struct storm_object *self = (struct storm_object *)type->tp_alloc(type, 0);

	if (!self)
		return NULL;
	self->storm = storm_new(&config);
	if (!self->storm) {
		raise_errno(-errno);
		Py_CLEAR(self);
	}
	return (PyObject *)self;
}

static PyObject *storm_type_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
	static char *names[] = {"targets", "request_bytes", "reply_bytes", "close", "timeout_ns", "max_open", NULL};
	struct storm_args a = {0};
	PyObject *self;

	if (!PyArg_ParseTupleAndKeywords(args, kwargs, "$y*LLsLL:Storm", names, &a.targets, &a.request_bytes,
					 &a.reply_bytes, &a.close, &a.timeout_ns, &a.max_open))
		return NULL;
	self = check_args(&a) ? make(type, &a) : NULL;
	PyBuffer_Release(&a.targets);
	return self;
}

static void storm_type_dealloc(struct storm_object *self)
{
	PyTypeObject *type = Py_TYPE(self);

	if (self->storm)
		storm_free(self->storm);
	type->tp_free(self);
	Py_DECREF(type);
}

/* --- methods ------------------------------------------------------------------------------------------------ */

static PyObject *storm_type_push(struct storm_object *self, PyObject *due)
{
	struct storm *storm = usable(self);
	Py_buffer view;
	int err;

	if (!storm || PyObject_GetBuffer(due, &view, PyBUF_FORMAT | PyBUF_C_CONTIGUOUS))
		return NULL;
	if (!is_int64(&view)) {
		PyErr_SetString(PyExc_TypeError, "due_ns has to be a buffer of 64-bit integers");
		PyBuffer_Release(&view);
		return NULL;
	}
	err = storm_push(storm, view.buf, (size_t)view.len / 8);
	PyBuffer_Release(&view);
	if (err == -EINVAL)
		return PyErr_Format(PyExc_ValueError, "due times have to ascend, from one push to the next as well");
	if (err)
		return raise_errno(err);
	Py_RETURN_NONE;
}

static PyObject *storm_type_run(struct storm_object *self, PyObject *until)
{
	struct storm *storm = usable(self);
	int64_t until_ns = PyLong_AsLongLong(until);
	int err;

	if (!storm || (until_ns == -1 && PyErr_Occurred()))
		return NULL;
	do {
		self->is_running = true;
		Py_BEGIN_ALLOW_THREADS;
		err = storm_run(storm, until_ns);
		Py_END_ALLOW_THREADS;
		self->is_running = false;
	} while (err == -EINTR && !PyErr_CheckSignals());
	if (PyErr_Occurred())
		return NULL;
	if (err)
		return raise_errno(err);
	Py_RETURN_NONE;
}

static PyObject *storm_type_drain(struct storm_object *self, PyObject *Py_UNUSED(none))
{
	struct storm *storm = usable(self);
	const struct sample *rows;
	PyObject *bytes;
	size_t n;

	if (!storm)
		return NULL;
	rows = storm_finished(storm, &n);
	bytes = PyBytes_FromStringAndSize((const char *)rows, (Py_ssize_t)(n * sizeof(*rows)));
	if (bytes)
		storm_forget(storm);
	return bytes;
}

static PyObject *storm_type_abandon(struct storm_object *self, PyObject *Py_UNUSED(none))
{
	struct storm *storm = usable(self);

	if (!storm)
		return NULL;
	self->is_running = true;
	Py_BEGIN_ALLOW_THREADS;
	storm_abandon(storm);
	Py_END_ALLOW_THREADS;
	self->is_running = false;
	Py_RETURN_NONE;
}

static PyObject *storm_type_close(struct storm_object *self, PyObject *Py_UNUSED(none))
{
	if (!self->storm)
		Py_RETURN_NONE;
	if (!usable(self))
		return NULL;
	storm_free(self->storm);
	self->storm = NULL;
	Py_RETURN_NONE;
}

static PyObject *storm_type_open(struct storm_object *self, void *Py_UNUSED(closure))
{
	return PyLong_FromSize_t(self->storm ? storm_open(self->storm) : 0);
}

static PyObject *storm_type_queued(struct storm_object *self, void *Py_UNUSED(closure))
{
	return PyLong_FromSize_t(self->storm ? storm_queued(self->storm) : 0);
}

/* --- the type ----------------------------------------------------------------------------------------------- */

static PyMethodDef methods[] = {
	{"push", (PyCFunction)storm_type_push, METH_O, "Queue operations by due time."},
	{"run", (PyCFunction)storm_type_run, METH_O, "Start what is due and drive what is open, until a moment."},
	{"drain", (PyCFunction)storm_type_drain, METH_NOARGS, "Take the samples of what has ended."},
	{"abandon", (PyCFunction)storm_type_abandon, METH_NOARGS, "End everything open or queued, now."},
	{"close", (PyCFunction)storm_type_close, METH_NOARGS, "Close every socket and free everything."},
	{NULL, NULL, 0, NULL},
};

static PyGetSetDef attributes[] = {
	{"open", (getter)storm_type_open, NULL, "Connections under way.", NULL},
	{"queued", (getter)storm_type_queued, NULL, "Operations not started.", NULL},
	{NULL, NULL, NULL, NULL, NULL},
};

static PyType_Slot slots[] = {
	{Py_tp_doc, "An open-loop TCP client: a new connection per operation."},
	{Py_tp_new, storm_type_new},
	{Py_tp_dealloc, storm_type_dealloc},
	{Py_tp_methods, methods},
	{Py_tp_getset, attributes},
	{0, NULL},
};

PyType_Spec storm_spec = {
	.name = "loadgen.native._native.Storm",
	.basicsize = sizeof(struct storm_object),
	.flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_IMMUTABLETYPE,
	.slots = slots,
};
