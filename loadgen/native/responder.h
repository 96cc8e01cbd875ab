/* A name server that says yes to everything, by UDP, as fast as one thread can. No Python in here. */
#ifndef LOADGEN_NATIVE_RESPONDER_H
#define LOADGEN_NATIVE_RESPONDER_H

#include "common.h"

struct responder;

/* Bound to every IPv4 address; port 0 takes a free one. NULL with errno set on failure. */
struct responder *responder_new(uint16_t port);
void responder_free(struct responder *r);
/* Serve until the clock reaches `until_ns`. 0, -EINTR when a signal arrived, or another negative errno. */
int responder_run(struct responder *r, int64_t until_ns);
uint16_t responder_port(const struct responder *r);
/* May be called from any thread. */
uint64_t responder_answered(const struct responder *r);

#endif
