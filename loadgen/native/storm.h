/* An open-loop TCP client: a new connection per operation, started when it is due. No Python in here. */
#ifndef LOADGEN_NATIVE_STORM_H
#define LOADGEN_NATIVE_STORM_H

#include <netinet/in.h>

#include "common.h"

/* Why an operation did not end well. storm_details[] has the words, in this order. */
enum storm_detail {
	DETAIL_NONE,
	DETAIL_TIMEOUT,
	DETAIL_REFUSED,
	DETAIL_RESET,
	DETAIL_NO_PORTS,
	DETAIL_NO_FILES,
	DETAIL_UNREACHABLE,
	DETAIL_SHORT_REPLY,
	DETAIL_TOO_MANY_OPEN,
	DETAIL_ABANDONED,
	DETAIL_ERROR,
	DETAIL_COUNT,
};

extern const char *const storm_details[DETAIL_COUNT];
enum storm_detail storm_detail_of(int err);

/* A target as a caller writes it: IPv4 address and port, both in network order. */
#define TARGET_BYTES 6u

struct storm_config {
	const unsigned char *targets; /* operation `seq` connects to number seq % n_targets; copied */
	size_t n_targets;
	size_t request_bytes;
	size_t reply_bytes;
	bool close_rst; /* end a connection with RST instead of FIN */
	int64_t timeout_ns;
	uint32_t max_open;
};

struct storm;

/* NULL with errno set on failure. */
struct storm *storm_new(const struct storm_config *config);
/* Close every socket and free everything, samples not taken included. */
void storm_free(struct storm *s);

/*
 * Queue operations. Due times must ascend, also from one call to the next: else -EINVAL, and nothing is queued.
 * Room for the samples is made here, so that no later step can fail to record how an operation ended.
 */
int storm_push(struct storm *s, const int64_t *due_ns, size_t n);

/*
 * Start what is due and drive what is open until `until_ns`, or until nothing is queued and nothing is open.
 * Returns 0, -EINTR when a signal arrived (call again to go on), or another negative errno of epoll itself.
 */
int storm_run(struct storm *s, int64_t until_ns);

/* End everything that is open or queued, now. */
void storm_abandon(struct storm *s);

size_t storm_open(const struct storm *s);
size_t storm_queued(const struct storm *s);

/* Samples of the operations that have ended since the last storm_forget(). */
const struct sample *storm_finished(const struct storm *s, size_t *n);
void storm_forget(struct storm *s);

#endif
