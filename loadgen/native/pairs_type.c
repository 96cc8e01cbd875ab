/* loadgen.native.Pairs: pairs.c for Python. */
#include "binding.h"
#include "pairs.h"

#define TIMEOUT_MAX_NS (86400 * NS_PER_S)
#define OPEN_MAX (1 << 20)
#define ATTEMPTS_MAX 1000

struct pairs_object {
	PyObject_HEAD
	struct pairs *pairs; /* NULL once closed */
	bool is_running;     /* in C, without the GIL */
};

static struct pairs *usable(struct pairs_object *self)
{
	if (!self->pairs)
		PyErr_SetString(PyExc_ValueError, "these pairs are closed");
	else if (self->is_running)
		PyErr_SetString(PyExc_RuntimeError, "these pairs are running in another thread");
	else
		return self->pairs;
	return NULL;
}

/* --- construction ------------------------------------------------------------------------------------------- */

struct pairs_args {
	Py_buffer queries, server;
	const char *resolver;
	int remembers, recycles;
	long long per_lookup, mode, round_ns, attempts, limit_ns, max_open;
	unsigned long long seed;
};

static int resolver_of(const char *name)
{
	static const char *const names[] = {"glibc", "musl-1.2.3", "musl"};

	for (int i = 0; i < 3; i++)
		if (!strcmp(name, names[i]))
			return i;
	PyErr_Format(PyExc_ValueError, "resolver is \"%s\", allowed are \"glibc\", \"musl-1.2.3\" and \"musl\"", name);
	return -1;
}

static bool check_args(const struct pairs_args *a)
{
	if (a->server.len != 6 || (!((const char *)a->server.buf)[4] && !((const char *)a->server.buf)[5])) {
		PyErr_SetString(PyExc_ValueError, "server has to be 6 bytes: IPv4 address and port, which is not 0");
		return false;
	}
	return is_within("per_lookup", a->per_lookup, 1, 2) &&
	       is_within("mode", a->mode, PAIRS_PARALLEL, PAIRS_REOPEN) &&
	       is_within("round_ns", a->round_ns, 1, TIMEOUT_MAX_NS) &&
	       is_within("attempts", a->attempts, 1, ATTEMPTS_MAX) &&
	       is_within("limit_ns", a->limit_ns, 1, TIMEOUT_MAX_NS) && is_within("max_open", a->max_open, 1, OPEN_MAX);
}

static PyObject *make(PyTypeObject *type, const struct pairs_args *a, int resolver)
{
	struct pairs_config config = {
		.queries = a->queries.buf,
		.queries_bytes = (size_t)a->queries.len,
		.per_lookup = (size_t)a->per_lookup,
		.server = {.sin_family = AF_INET},
		.resolver = (enum pairs_resolver)resolver,
		.mode = (enum pairs_mode)a->mode,
		.remembers = a->remembers,
		.recycles = a->recycles,
		.round_ns = a->round_ns,
		.attempts = (uint32_t)a->attempts,
		.limit_ns = a->limit_ns,
		.max_open = (uint32_t)a->max_open,
		.seed = a->seed,
	};
	struct pairs_object *self = (struct pairs_object *)type->tp_alloc(type, 0);

	if (!self)
		return NULL;
	memcpy(&config.server.sin_addr, a->server.buf, 4);
	memcpy(&config.server.sin_port, (const char *)a->server.buf + 4, 2);
	self->pairs = pairs_new(&config);
	if (!self->pairs) {
		if (errno == EINVAL)
			PyErr_SetString(PyExc_ValueError, "queries have to be whole messages, each after its length");
		else
			raise_errno(-errno);
		Py_CLEAR(self);
	}
	return (PyObject *)self;
}

static PyObject *pairs_type_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
	static char *names[] = {"queries",   "per_lookup", "server",   "resolver", "mode", "remembers",
				"recycles", "round_ns",	  "attempts", "limit_ns", "max_open", "seed", NULL};
	struct pairs_args a = {0};
	PyObject *self = NULL;
	int resolver;

	if (!PyArg_ParseTupleAndKeywords(args, kwargs, "$y*Ly*sLppLLLLK:Pairs", names, &a.queries, &a.per_lookup, &a.server,
					 &a.resolver, &a.mode, &a.remembers, &a.recycles, &a.round_ns, &a.attempts,
					 &a.limit_ns, &a.max_open, &a.seed))
		return NULL;
	resolver = resolver_of(a.resolver);
	if (resolver >= 0 && check_args(&a))
		self = make(type, &a, resolver);
	PyBuffer_Release(&a.queries);
	PyBuffer_Release(&a.server);
	return self;
}

static void pairs_type_dealloc(struct pairs_object *self)
{
	PyTypeObject *type = Py_TYPE(self);

	if (self->pairs)
		pairs_free(self->pairs);
	type->tp_free(self);
	Py_DECREF(type);
}

/* --- methods ------------------------------------------------------------------------------------------------ */

static PyObject *pairs_type_push(struct pairs_object *self, PyObject *due)
{
	struct pairs *pairs = usable(self);
	Py_buffer view;
	int err;

	if (!pairs || PyObject_GetBuffer(due, &view, PyBUF_FORMAT | PyBUF_C_CONTIGUOUS))
		return NULL;
	if (!is_int64(&view)) {
		PyErr_SetString(PyExc_TypeError, "due_ns has to be a buffer of 64-bit integers");
		PyBuffer_Release(&view);
		return NULL;
	}
	err = pairs_push(pairs, view.buf, (size_t)view.len / 8);
	PyBuffer_Release(&view);
	if (err == -EINVAL)
		return PyErr_Format(PyExc_ValueError, "due times have to ascend, from one push to the next as well");
	if (err)
		return raise_errno(err);
	Py_RETURN_NONE;
}

static PyObject *pairs_type_run(struct pairs_object *self, PyObject *until)
{
	struct pairs *pairs = usable(self);
	int64_t until_ns = PyLong_AsLongLong(until);
	int err;

	if (!pairs || (until_ns == -1 && PyErr_Occurred()))
		return NULL;
	do {
		self->is_running = true;
		Py_BEGIN_ALLOW_THREADS;
		err = pairs_run(pairs, until_ns);
		Py_END_ALLOW_THREADS;
		self->is_running = false;
	} while (err == -EINTR && !PyErr_CheckSignals());
	if (PyErr_Occurred())
		return NULL;
	if (err)
		return raise_errno(err);
	Py_RETURN_NONE;
}

static PyObject *pairs_type_drain(struct pairs_object *self, PyObject *Py_UNUSED(none))
{
	struct pairs *pairs = usable(self);
	const struct sample *rows;
	PyObject *bytes;
	size_t n;

	if (!pairs)
		return NULL;
	rows = pairs_finished(pairs, &n);
	bytes = PyBytes_FromStringAndSize((const char *)rows, (Py_ssize_t)(n * sizeof(*rows)));
	if (bytes)
		pairs_forget(pairs);
	return bytes;
}

static PyObject *pairs_type_abandon(struct pairs_object *self, PyObject *Py_UNUSED(none))
{
	struct pairs *pairs = usable(self);

	if (!pairs)
		return NULL;
	pairs_abandon(pairs);
	Py_RETURN_NONE;
}

static PyObject *pairs_type_close(struct pairs_object *self, PyObject *Py_UNUSED(none))
{
	if (!self->pairs)
		Py_RETURN_NONE;
	if (!usable(self))
		return NULL;
	pairs_free(self->pairs);
	self->pairs = NULL;
	Py_RETURN_NONE;
}

static PyObject *pairs_type_count(struct pairs_object *self, void *which)
{
	const char *name = which;

	if (!self->pairs)
		return PyLong_FromLong(0);
	if (!strcmp(name, "open"))
		return PyLong_FromSize_t(pairs_open(self->pairs));
	if (!strcmp(name, "queued"))
		return PyLong_FromSize_t(pairs_queued(self->pairs));
	return PyLong_FromUnsignedLongLong(strcmp(name, "sent") ? pairs_answered(self->pairs) : pairs_sent(self->pairs));
}

/* --- the type ----------------------------------------------------------------------------------------------- */

static PyMethodDef methods[] = {
	{"push", (PyCFunction)pairs_type_push, METH_O, "Queue lookups by due time."},
	{"run", (PyCFunction)pairs_type_run, METH_O, "Start what is due and drive what is open, until a moment."},
	{"drain", (PyCFunction)pairs_type_drain, METH_NOARGS, "Take the samples of what has ended."},
	{"abandon", (PyCFunction)pairs_type_abandon, METH_NOARGS, "End everything open or queued, now."},
	{"close", (PyCFunction)pairs_type_close, METH_NOARGS, "Close every socket and free everything."},
	{NULL, NULL, 0, NULL},
};

static PyGetSetDef attributes[] = {
	{"open", (getter)pairs_type_count, NULL, "Lookups under way.", "open"},
	{"queued", (getter)pairs_type_count, NULL, "Lookups not started.", "queued"},
	{"sent", (getter)pairs_type_count, NULL, "Queries handed to the kernel.", "sent"},
	{"answered", (getter)pairs_type_count, NULL, "Replies that fitted a query.", "answered"},
	{NULL, NULL, NULL, NULL, NULL},
};

static PyType_Slot slots[] = {
	{Py_tp_doc, "An open-loop DNS client: pairs of queries from new sockets, as a stub resolver sends them."},
	{Py_tp_new, pairs_type_new},
	{Py_tp_dealloc, pairs_type_dealloc},
	{Py_tp_methods, methods},
	{Py_tp_getset, attributes},
	{0, NULL},
};

PyType_Spec pairs_spec = {
	.name = "loadgen.native._native.Pairs",
	.basicsize = sizeof(struct pairs_object),
	.flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_IMMUTABLETYPE,
	.slots = slots,
};
