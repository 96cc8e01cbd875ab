/* The open connections of a storm: slots taken in order of start, returned in any order. */
#ifndef LOADGEN_NATIVE_CONNS_H
#define LOADGEN_NATIVE_CONNS_H

#include "common.h"

struct conn {
	int fd;
	uint32_t prev; /* the one started before; of a free slot: unused */
	uint32_t next; /* the one started after; of a free slot: the next free one */
	int64_t seq;
	int64_t due_ns;
	int64_t sent_ns;
	size_t to_send;
	size_t to_read;
};

struct conns {
	struct conn *slots;
	uint32_t max;
	uint32_t n;
	uint32_t free;
	uint32_t oldest;
	uint32_t youngest;
};

int conns_init(struct conns *cs, uint32_t max); /* 0 or -ENOMEM */
struct conn *conns_take(struct conns *cs);      /* the caller knows that n < max */
void conns_return(struct conns *cs, struct conn *c);
struct conn *conns_oldest(const struct conns *cs); /* NULL when none is open */

static inline uint32_t conns_index(const struct conns *cs, const struct conn *c)
{
	return (uint32_t)(c - cs->slots);
}

#endif
