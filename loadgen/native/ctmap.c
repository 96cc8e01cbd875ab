/*
 * Two ways to read a whole conntrack map, because Cilium has used both and they cost differently:
 *
 *   key by key   BPF_MAP_GET_NEXT_KEY and BPF_MAP_LOOKUP_ELEM for every entry (Cilium up to 1.17)
 *   in batches   BPF_MAP_LOOKUP_BATCH, which copies whole hash buckets (Cilium from 1.18)
 *
 * Either way each deletion is a BPF_MAP_DELETE_ELEM of its own, as in Cilium pkg/maps/ctmap.
 */
#include "ctmap.h"

#include <errno.h>
#include <linux/bpf.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#define CANCEL_EVERY 1024u
#define LOOKUPS_PER_ENTRY 4u /* Cilium gives a dump up after 4 x max_entries lookups */
#define DOUBLINGS_MAX 3u     /* and a batch buffer after it was doubled three times */
#define TRANSIENT_MAX 1000

/*
 * A hash bucket locked by a program that this very call interrupted makes the kernel return EBUSY (before 6.15)
 * or EDEADLK / ETIMEDOUT (resilient spin locks). All of these, EINTR and EAGAIN pass by themselves.
 */
static bool is_transient(int err)
{
	return err == EINTR || err == EAGAIN || err == EBUSY || err == EDEADLK || err == ETIMEDOUT;
}

static int bpf(int command, union bpf_attr *attr, size_t size)
{
	for (int tries = 0;; tries++) {
		if (syscall(SYS_bpf, command, attr, size) >= 0)
			return 0;
		if (!is_transient(errno) || tries == TRANSIENT_MAX)
			return -errno;
	}
}

/* The batch commands write their progress into `attr`, so a repeated call needs it as it was. */
static int bpf_batch(int command, union bpf_attr *attr)
{
	const union bpf_attr fresh = *attr;

	for (int tries = 0;; tries++) {
		if (syscall(SYS_bpf, command, attr, sizeof(*attr)) >= 0)
			return 0;
		if (!is_transient(errno) || tries == TRANSIENT_MAX)
			return -errno;
		*attr = fresh;
	}
}

static uint64_t pointer(const void *p)
{
	return (uint64_t)(uintptr_t)p;
}

/* --- one entry ---------------------------------------------------------------------------------------------- */

/* As much of the attribute as these commands have; clearing and copying all of it costs a tenth of a lookup. */
#define ELEMENT_ATTR_BYTES (offsetof(union bpf_attr, flags) + sizeof(uint64_t))

/* memset and not an initialiser: the kernel insists on zeros beyond a command's last field, C promises none. */
static void element_attr(union bpf_attr *attr, int fd, const unsigned char *key)
{
	memset(attr, 0, ELEMENT_ATTR_BYTES);
	attr->map_fd = (uint32_t)fd;
	attr->key = pointer(key);
}

static int next_key(int fd, const unsigned char *key, unsigned char *next)
{
	union bpf_attr attr;

	element_attr(&attr, fd, key);
	attr.next_key = pointer(next);
	return bpf(BPF_MAP_GET_NEXT_KEY, &attr, ELEMENT_ATTR_BYTES);
}

static int lookup(int fd, const unsigned char *key, unsigned char *value)
{
	union bpf_attr attr;

	element_attr(&attr, fd, key);
	attr.value = pointer(value);
	return bpf(BPF_MAP_LOOKUP_ELEM, &attr, ELEMENT_ATTR_BYTES);
}

static int delete(int fd, const unsigned char *key)
{
	union bpf_attr attr;

	element_attr(&attr, fd, key);
	return bpf(BPF_MAP_DELETE_ELEM, &attr, ELEMENT_ATTR_BYTES);
}

static bool has_address(const unsigned char *key, uint32_t address_be)
{
	return !memcmp(key, &address_be, 4) || !memcmp(key + 4, &address_be, 4);
}

/* Count an entry and delete it if the walk is there for that. An entry that is gone already was not our deletion. */
static int judge(const struct ct_walk_options *o, struct ct_walk_result *r, const unsigned char *key,
		 const unsigned char *value)
{
	uint32_t lifetime;
	bool expired;
	int err;

	memcpy(&lifetime, value + CT_LIFETIME_OFFSET, sizeof(lifetime));
	expired = lifetime < o->now;
	r->seen++;
	r->expired += expired;
	if (o->delete == CT_KEEP || (o->delete == CT_EXPIRED && !expired))
		return 0;
	if (o->delete == CT_ADDRESS && !has_address(key, o->address_be))
		return 0;
	err = delete(o->fd, key);
	r->deleted += !err;
	return err == -ENOENT ? 0 : err;
}

/* --- key by key --------------------------------------------------------------------------------------------- */

struct cursor {
	unsigned char prev[CT_KEY_BYTES];
	unsigned char cur[CT_KEY_BYTES];
	unsigned char next[CT_KEY_BYTES];
	bool has_prev;  /* prev may serve as the place to resume from: at most once */
	bool is_repeat; /* cur was judged before: it is only the place to resume from */
	bool is_last;   /* the kernel knew no key after cur */
};

static void step(struct cursor *c)
{
	memcpy(c->prev, c->cur, CT_KEY_BYTES);
	memcpy(c->cur, c->next, CT_KEY_BYTES);
	c->has_prev = true;
	c->is_repeat = false;
}

/*
 * cur has vanished, so what the kernel named as next may be the first key of the whole map. Resume from the key
 * before; if that is no longer possible, take the kernel's answer and possibly see entries twice.
 * Returns false when the map has no more keys.
 */
static bool recover(struct cursor *c, struct ct_walk_result *r)
{
	if (c->has_prev) {
		memcpy(c->cur, c->prev, CT_KEY_BYTES);
		c->has_prev = false;
		c->is_repeat = true;
		r->fallbacks++;
		return true;
	}
	if (c->is_last)
		return false;
	memcpy(c->cur, c->next, CT_KEY_BYTES);
	c->is_repeat = false;
	r->restarts++;
	return true;
}

/* The key after cur is asked for first, while cur is still there: judging it may delete it. */
static int walk_one(const struct ct_walk_options *o, struct ct_walk_result *r, struct cursor *c)
{
	unsigned char value[CT_VALUE_BYTES];
	int err = next_key(o->fd, c->cur, c->next);

	if (err && err != -ENOENT)
		return err;
	c->is_last = err == -ENOENT;
	err = lookup(o->fd, c->cur, value);
	if (err == -ENOENT) {
		r->completed = !recover(c, r);
		return 0;
	}
	if (!err && !c->is_repeat)
		err = judge(o, r, c->cur, value);
	r->completed = !err && c->is_last;
	step(c);
	return err;
}

static int walk_keys(const struct ct_walk_options *o, struct ct_walk_result *r)
{
	struct cursor c = {0};
	int err = next_key(o->fd, NULL, c.cur);

	if (err == -ENOENT) {
		r->completed = true;
		return 0;
	}
	for (uint64_t n = 0; !err && !r->completed && n < LOOKUPS_PER_ENTRY * o->capacity; n++) {
		if (n % CANCEL_EVERY == 0 && is_cancelled(o->cancel)) {
			r->cancelled = true;
			return 0;
		}
		err = walk_one(o, r, &c);
	}
	return err;
}

/* --- in batches --------------------------------------------------------------------------------------------- */

struct batch {
	uint32_t size;
	uint32_t count;
	uint32_t in;  /* position in the table, opaque: the kernel's number of the next bucket */
	uint32_t out;
	bool is_first;
	unsigned doublings;
	unsigned char *keys;
	unsigned char *values;
};

static int batch_alloc(struct batch *b)
{
	free(b->keys);
	free(b->values);
	b->keys = malloc((size_t)b->size * CT_KEY_BYTES);
	b->values = malloc((size_t)b->size * CT_VALUE_BYTES);
	return b->keys && b->values ? 0 : -ENOMEM;
}

/* ENOSPC: not even one bucket fits. The kernel has moved nothing, so the same place is read again. */
static int batch_read(int fd, struct batch *b)
{
	for (;;) {
		union bpf_attr attr;
		int err;

		memset(&attr, 0, sizeof(attr));
		attr.batch.map_fd = (uint32_t)fd;
		attr.batch.in_batch = b->is_first ? 0 : pointer(&b->in);
		attr.batch.out_batch = pointer(&b->out);
		attr.batch.keys = pointer(b->keys);
		attr.batch.values = pointer(b->values);
		attr.batch.count = b->size;
		err = bpf_batch(BPF_MAP_LOOKUP_BATCH, &attr);
		b->count = attr.batch.count;
		if (err != -ENOSPC || b->doublings == DOUBLINGS_MAX)
			return err;
		b->doublings++;
		b->size *= 2;
		err = batch_alloc(b);
		if (err)
			return err;
	}
}

static int batch_judge(const struct ct_walk_options *o, struct ct_walk_result *r, const struct batch *b)
{
	for (uint32_t i = 0; i < b->count; i++) {
		int err = 0;

		if (i % CANCEL_EVERY == 0 && is_cancelled(o->cancel)) {
			r->cancelled = true;
			return 0;
		}
		err = judge(o, r, b->keys + (size_t)i * CT_KEY_BYTES, b->values + (size_t)i * CT_VALUE_BYTES);
		if (err)
			return err;
	}
	return 0;
}

/* The last batch comes together with ENOENT and may hold entries all the same. */
static int walk_batches(const struct ct_walk_options *o, struct ct_walk_result *r)
{
	struct batch b = {.size = o->batch, .is_first = true};
	int err = batch_alloc(&b);

	while (!err && !r->completed && !r->cancelled) {
		err = batch_read(o->fd, &b);
		if (err && err != -ENOENT)
			break;
		r->completed = err == -ENOENT;
		err = batch_judge(o, r, &b);
		b.in = b.out;
		b.is_first = false;
	}
	r->completed = r->completed && !r->cancelled && !err;
	free(b.keys);
	free(b.values);
	return err;
}

/* --- what module.c calls ------------------------------------------------------------------------------------ */

int ct_check(int fd)
{
	struct bpf_map_info info;
	union bpf_attr attr;
	int err;

	memset(&info, 0, sizeof(info));
	memset(&attr, 0, sizeof(attr));
	attr.info.bpf_fd = (uint32_t)fd;
	attr.info.info_len = sizeof(info);
	attr.info.info = pointer(&info);
	err = bpf(BPF_OBJ_GET_INFO_BY_FD, &attr, sizeof(attr));
	if (err)
		return err;
	/* The kernel copies as many bytes as the map has (per-CPU maps: for every CPU), whatever room we left. */
	if (info.type != BPF_MAP_TYPE_LRU_HASH && info.type != BPF_MAP_TYPE_HASH)
		return -EMEDIUMTYPE;
	return info.key_size == CT_KEY_BYTES && info.value_size == CT_VALUE_BYTES ? 0 : -EMEDIUMTYPE;
}

int ct_walk(const struct ct_walk_options *o, struct ct_walk_result *r)
{
	int64_t start = now_ns();
	int err;

	memset(r, 0, sizeof(*r));
	err = o->batch ? walk_batches(o, r) : walk_keys(o, r);
	r->ns = now_ns() - start;
	return err;
}

int ct_fill(const struct ct_fill_options *o, uint64_t *filled)
{
	*filled = 0;
	while (*filled < o->n && !is_cancelled(o->cancel)) {
		uint64_t left = o->n - *filled;
		union bpf_attr attr;
		int err;

		memset(&attr, 0, sizeof(attr));
		attr.batch.map_fd = (uint32_t)o->fd;
		attr.batch.keys = pointer(o->keys + *filled * CT_KEY_BYTES);
		attr.batch.values = pointer(o->values + *filled * CT_VALUE_BYTES);
		attr.batch.count = left < o->batch ? (uint32_t)left : o->batch;
		err = bpf_batch(BPF_MAP_UPDATE_BATCH, &attr);
		if (err)
			return err;
		*filled += attr.batch.count;
	}
	return 0;
}
