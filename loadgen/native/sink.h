/* The server that a storm talks to: reads requests, answers them, closes after its peer did. No Python in here. */
#ifndef LOADGEN_NATIVE_SINK_H
#define LOADGEN_NATIVE_SINK_H

#include "common.h"

struct sink;

struct sink_counters {
	uint64_t accepted; /* connections */
	uint64_t served;   /* replies that were handed to the kernel whole */
	uint64_t open;
};

/*
 * Listens on 0.0.0.0, ports port … port + n_ports - 1 (0: a free one, and only one), in the caller's network namespace.
 * NULL with errno set on failure.
 */
struct sink *sink_new(uint16_t port, size_t n_ports, size_t request_bytes, size_t reply_bytes);
void sink_free(struct sink *s);
uint16_t sink_port(const struct sink *s); /* the first */

/* Serve until CLOCK_MONOTONIC reaches `until_ns`. 0, -EINTR (call again to go on), or another negative errno. */
int sink_run(struct sink *s, int64_t until_ns);
struct sink_counters sink_counters(const struct sink *s);

#endif
