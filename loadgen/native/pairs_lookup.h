/* What pairs.c (sockets, time, order) and pairs_rules.c (what a resolver does next) share. */
#ifndef LOADGEN_NATIVE_PAIRS_LOOKUP_H
#define LOADGEN_NATIVE_PAIRS_LOOKUP_H

#include <sys/types.h>

#include "pairs.h"
#include "pairs_list.h"
#include "queue.h"

struct query {
	const unsigned char *wire;
	uint16_t bytes;
	uint16_t question_bytes;
};

struct lookup {
	struct node age;   /* all that are open, by the beginning of their round */
	struct node fresh; /* those whose socket epoll does not know yet */
	int fd;
	int64_t seq, due_ns, sent_ns, round_ns;
	const struct query *queries;
	uint16_t ids[2];
	uint8_t sent, answered, good; /* of this round, a bit for each query */
	uint8_t first_lost;	      /* the bits that the first lossy round lost */
	uint8_t mode, fell_back;
	uint8_t first_rcode, last_rcode, resends;
	bool has_reply, has_records;
	uint16_t attempt, rounds, lost;
};

struct owner;

struct pairs {
	struct pairs_config config;
	unsigned char *bytes;
	struct query *queries;
	size_t n_names;
	struct lookup *slots;
	struct node free, open, fresh;
	size_t n_open, n_watched;
	int epoll_fd;
	int *idle; /* sockets that have given their port back */
	size_t n_idle;
	struct owner *owners; /* by descriptor */
	size_t n_owners;
	struct queue queued;
	int64_t next_seq;
	uint64_t random;
	enum pairs_mode learned;
	uint64_t sent, received;
	struct sample *finished;
	size_t n_finished, finished_size;
};

struct owner {
	struct lookup *lookup; /* NULL while the socket is idle */
	bool watched;	       /* by epoll */
};

enum verdict { GOES_ON, IS_OVER };

/* --- pairs_socket.c ------------------------------------------------------------------------------------------ */

/* A new socket, connected where the resolver's is. 0 or a negative errno. */
int lookup_reopen(struct pairs *p, struct lookup *l);
void lookup_close(struct pairs *p, struct lookup *l);
void lookup_drop_socket(struct pairs *p, int fd);
/* Send the queries of these bits. False when the first could not be sent. */
bool lookup_send(struct pairs *p, struct lookup *l, uint8_t which);
/* Take what has come, and act on it. False when nothing was there. */
bool lookup_receive(struct pairs *p, struct lookup *l);

/* --- pairs.c ------------------------------------------------------------------------------------------------- */

/* The round's clock starts now: it is the youngest. */
void lookup_restart(struct pairs *p, struct lookup *l);
void lookup_finish(struct pairs *p, struct lookup *l, enum outcome outcome, enum pairs_detail detail);

/* --- pairs_queries.c ------------------------------------------------------------------------------------------ */

/* 0, -ENOMEM, or -EINVAL when `bytes` is not made of whole queries, `per_lookup` for each name. */
int queries_read(struct pairs *p);

/* --- pairs_rules.c ------------------------------------------------------------------------------------------- */

enum verdict rules_begin(struct pairs *p, struct lookup *l);
enum verdict rules_reply(struct pairs *p, struct lookup *l, const unsigned char *reply, size_t bytes);
enum verdict rules_expired(struct pairs *p, struct lookup *l);
enum verdict rules_failed(struct pairs *p, struct lookup *l, int err);

static inline uint8_t all_queries(const struct pairs *p)
{
	return p->config.per_lookup == 2 ? 3 : 1;
}

#endif
