/* epoll_wait with a deadline on CLOCK_MONOTONIC, never returning "timed out" before it. */
#ifndef LOADGEN_NATIVE_WAIT_H
#define LOADGEN_NATIVE_WAIT_H

#include <stdint.h>
#include <sys/epoll.h>

/* Number of events, 0 once `until_ns` has passed (at once if it has already), or a negative errno. */
int wait_events(int epoll_fd, struct epoll_event *events, int max, int64_t until_ns);

#endif
