/* An open-loop DNS client: an A and an AAAA query per lookup, from new sockets, as a stub resolver sends them. */
#ifndef LOADGEN_NATIVE_PAIRS_H
#define LOADGEN_NATIVE_PAIRS_H

#include <netinet/in.h>

#include "common.h"

enum pairs_resolver { PAIRS_GLIBC, PAIRS_MUSL_OLD, PAIRS_MUSL };

/* loadgen.core.lookup.Mode */
enum pairs_mode { PAIRS_PARALLEL, PAIRS_SERIAL, PAIRS_REOPEN };

/* How a lookup ended. pairs_details[] has the words, in this order; those of loadgen.core.lookup where it has them. */
enum pairs_detail {
	PAIRS_NONE,
	PAIRS_NXDOMAIN,
	PAIRS_NODATA,
	PAIRS_NO_ADDRESS,
	PAIRS_AGAIN,
	PAIRS_NO_RECOVERY,
	PAIRS_TRUNCATED,
	PAIRS_NO_PORTS,
	PAIRS_NO_FILES,
	PAIRS_NETWORK,
	PAIRS_TOO_MANY_OPEN,
	PAIRS_ABANDONED,
	PAIRS_TIMEOUT,
	/* Answered after a loss: of A, of AAAA, or of both. */
	PAIRS_ASKED_AGAIN,
	PAIRS_FELL_BACK = PAIRS_ASKED_AGAIN + 3,
	PAIRS_REOPENED = PAIRS_FELL_BACK + 3,
	PAIRS_WITHOUT = PAIRS_REOPENED + 3,
	PAIRS_DETAILS = PAIRS_WITHOUT + 3,
};

extern const char *const pairs_details[PAIRS_DETAILS];

#define PAIRS_QUERY_MAX 512u

struct pairs_config {
	/* Messages, each after its length in two bytes, `per_lookup` for each name: A first. Copied; ids are put in. */
	const unsigned char *queries;
	size_t queries_bytes;
	size_t per_lookup;
	struct sockaddr_in server;
	enum pairs_resolver resolver;
	enum pairs_mode mode;  /* to begin with; glibc's only */
	bool remembers;	       /* what one lookup learns, all later ones know, as in a thread that lives on */
	bool recycles;	       /* disconnect and connect a socket instead of a new one: a new port all the same */
	int64_t round_ns;      /* glibc's timeout; musl's timeout / attempts */
	uint32_t attempts;
	int64_t limit_ns;      /* a round that ends later than this after the first sending is the last: UNKNOWN */
	uint32_t max_open;
	uint64_t seed;
};

struct pairs;

/* NULL with errno set on failure; EINVAL when `queries` is not made of whole queries. */
struct pairs *pairs_new(const struct pairs_config *config);
void pairs_free(struct pairs *p);

/* The next six are as storm.h has them. */
int pairs_push(struct pairs *p, const int64_t *due_ns, size_t n);
int pairs_run(struct pairs *p, int64_t until_ns);
void pairs_abandon(struct pairs *p);
size_t pairs_open(const struct pairs *p);
size_t pairs_queued(const struct pairs *p);
const struct sample *pairs_finished(const struct pairs *p, size_t *n);
void pairs_forget(struct pairs *p);

/* Queries handed to the kernel, and replies that fitted one, since it was made. */
uint64_t pairs_sent(const struct pairs *p);
uint64_t pairs_answered(const struct pairs *p);

#endif
