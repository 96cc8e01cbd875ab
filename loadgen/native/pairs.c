/*
 * One thread, one epoll, no Python.
 *
 *   queued ──due──► open ──what pairs_rules.c says──► finished
 *
 * Open lookups are in order of the beginning of their round, and all rounds last equally long, so the first of the
 * list is always the next to expire. A new socket is not given to epoll at once: under load its answers are there
 * before that pays, and are found by trying the oldest such sockets in turn. Before this thread sleeps, epoll gets the
 * oldest, whose answer comes first as a rule; if it does not, the others are looked at FRESH_NS later.
 */
#include "pairs.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <unistd.h>

#include "pairs_lookup.h"
#include "wait.h"

#define EVENTS_MAX 256
#define STARTS_MAX 32
/* A socket that is older than this is epoll's, also when others are found by trying. */
#define FRESH_NS 100000

#define LOOKUP(node, member) ((struct lookup *)((char *)(node) - offsetof(struct lookup, member)))

/* --- making and freeing --------------------------------------------------------------------------------------- */

static int pairs_init(struct pairs *p)
{
	const struct pairs_config *c = &p->config;
	int err;

	p->bytes = malloc(c->queries_bytes);
	p->slots = calloc(c->max_open, sizeof(*p->slots));
	p->idle = calloc(c->max_open, sizeof(*p->idle));
	if (!p->bytes || !p->slots || !p->idle)
		return -ENOMEM;
	memcpy(p->bytes, c->queries, c->queries_bytes);
	err = queries_read(p);
	if (err)
		return err;
	for (uint32_t i = 0; i < c->max_open; i++)
		list_add(&p->free, &p->slots[i].age);
	p->epoll_fd = epoll_create1(EPOLL_CLOEXEC);
	return p->epoll_fd < 0 ? -errno : 0;
}

struct pairs *pairs_new(const struct pairs_config *config)
{
	struct pairs *p = calloc(1, sizeof(*p));
	int err;

	if (!p)
		return NULL;
	p->config = *config;
	p->queued.last_ns = INT64_MIN;
	p->random = config->seed | 1;
	p->epoll_fd = -1;
	list_init(&p->free);
	list_init(&p->open);
	list_init(&p->fresh);
	err = pairs_init(p);
	if (err) {
		pairs_free(p);
		errno = -err;
		return NULL;
	}
	return p;
}

void pairs_free(struct pairs *p)
{
	for (struct node *n = p->open.next; n != &p->open; n = n->next)
		lookup_close(p, LOOKUP(n, age));
	while (p->n_idle)
		lookup_drop_socket(p, p->idle[--p->n_idle]);
	if (p->epoll_fd >= 0)
		close(p->epoll_fd);
	free(p->bytes);
	free(p->queries);
	free(p->slots);
	free(p->idle);
	free(p->owners);
	free(p->queued.due_ns);
	free(p->finished);
	free(p);
}

/* --- what rules may do ---------------------------------------------------------------------------------------- */

void lookup_restart(struct pairs *p, struct lookup *l)
{
	l->round_ns = now_ns();
	list_remove(&l->age);
	list_add(&p->open, &l->age);
}

static void record(struct pairs *p, const struct lookup *l, int64_t done_ns, enum outcome outcome,
		   enum pairs_detail detail)
{
	p->finished[p->n_finished++] = (struct sample){
		.seq = l->seq,
		.due_ns = l->due_ns,
		.sent_ns = l->sent_ns,
		.done_ns = done_ns,
		.outcome = (uint16_t)outcome,
		.tries = l->rounds,
		.lost = l->lost,
		.detail = (uint16_t)detail,
	};
}

void lookup_finish(struct pairs *p, struct lookup *l, enum outcome outcome, enum pairs_detail detail)
{
	lookup_close(p, l);
	record(p, l, now_ns(), outcome, detail);
	list_remove(&l->age);
	list_add(&p->free, &l->age);
	p->n_open--;
}

/* --- queued → open -------------------------------------------------------------------------------------------- */

/* xorshift64*, whose high bits are good. */
static uint16_t random_id(struct pairs *p)
{
	p->random ^= p->random >> 12;
	p->random ^= p->random << 25;
	p->random ^= p->random >> 27;
	return (uint16_t)((p->random * 0x2545F4914F6CDD1DULL) >> 48);
}

static void start(struct pairs *p, int64_t now)
{
	struct lookup *l = LOOKUP(p->free.next, age);

	list_remove(&l->age);
	*l = (struct lookup){.fd = -1, .seq = p->next_seq++, .due_ns = queue_pop(&p->queued), .sent_ns = now};
	list_init(&l->age);
	list_init(&l->fresh);
	l->queries = &p->queries[(uint64_t)l->seq % p->n_names * p->config.per_lookup];
	for (size_t i = 0; i < p->config.per_lookup; i++)
		l->ids[i] = random_id(p);
	p->n_open++;
	rules_begin(p, l);
}

static bool may_start(const struct pairs *p)
{
	return queue_length(&p->queued) && !list_empty(&p->free);
}

static int start_due(struct pairs *p)
{
	int n = 0;

	while (n < STARTS_MAX && may_start(p)) {
		int64_t now = now_ns();

		if (queue_first(&p->queued) > now)
			break;
		start(p, now);
		n++;
	}
	return n;
}

int pairs_push(struct pairs *p, const int64_t *due_ns, size_t n)
{
	size_t needed = p->n_finished + p->n_open + queue_length(&p->queued) + n;

	if (needed > p->finished_size) {
		struct sample *grown = realloc(p->finished, needed * sizeof(*grown));

		if (!grown)
			return -ENOMEM;
		p->finished = grown;
		p->finished_size = needed;
	}
	return queue_push(&p->queued, due_ns, n);
}

/* --- the loop ------------------------------------------------------------------------------------------------- */

static void watch(struct pairs *p, struct lookup *l)
{
	struct epoll_event event = {.events = EPOLLIN | EPOLLET, .data.fd = l->fd};

	list_remove(&l->fresh);
	if (epoll_ctl(p->epoll_fd, EPOLL_CTL_ADD, l->fd, &event)) {
		lookup_finish(p, l, OUTCOME_FAIL, PAIRS_NETWORK);
		return;
	}
	p->owners[l->fd].watched = true;
	p->n_watched++;
}

/* Try the oldest sockets that epoll does not know, until one has nothing. Returns how many had something. */
static int try_fresh(struct pairs *p)
{
	int64_t now = now_ns();
	int n = 0;

	while (n < EVENTS_MAX && !list_empty(&p->fresh)) {
		struct lookup *l = LOOKUP(p->fresh.next, fresh);

		if (lookup_receive(p, l))
			n++;
		else if (now - l->round_ns > FRESH_NS)
			watch(p, l);
		else
			break;
	}
	return n;
}

static void expire(struct pairs *p)
{
	int64_t now = now_ns();

	while (!list_empty(&p->open)) {
		struct lookup *l = LOOKUP(p->open.next, age);

		if (l->round_ns + p->config.round_ns > now)
			return;
		rules_expired(p, l);
	}
}

static int64_t next_wake(const struct pairs *p, int64_t until_ns)
{
	int64_t wake = until_ns;

	if (may_start(p) && queue_first(&p->queued) < wake)
		wake = queue_first(&p->queued);
	if (!list_empty(&p->open)) {
		int64_t deadline = LOOKUP(p->open.next, age)->round_ns + p->config.round_ns;

		wake = deadline < wake ? deadline : wake;
	}
	return wake;
}

static int look_around(struct pairs *p, int64_t until_ns)
{
	struct epoll_event events[EVENTS_MAX];
	int n = wait_events(p->epoll_fd, events, EVENTS_MAX, until_ns);

	for (int i = 0; i < n; i++) {
		struct lookup *l = p->owners[events[i].data.fd].lookup;

		if (l)
			lookup_receive(p, l);
	}
	return n;
}

/* Until when there is nothing to do but wait. Sockets that epoll does not know are looked at again before long. */
static int64_t idle_until(struct pairs *p, int64_t until_ns)
{
	int64_t wake = next_wake(p, until_ns);

	if (!list_empty(&p->fresh))
		watch(p, LOOKUP(p->fresh.next, fresh));
	if (!list_empty(&p->fresh)) {
		int64_t again = now_ns() + FRESH_NS;

		wake = again < wake ? again : wake;
	}
	return wake;
}

static int drive(struct pairs *p, int64_t until_ns)
{
	while (p->n_open || queue_length(&p->queued)) {
		bool busy = start_due(p);
		int n = 0;

		busy |= try_fresh(p) > 0;
		if (!busy || p->n_watched)
			n = look_around(p, busy ? 0 : idle_until(p, until_ns));
		if (n < 0)
			return n;
		if (n < EVENTS_MAX)
			expire(p);
		if (now_ns() >= until_ns)
			break;
	}
	return 0;
}

int pairs_run(struct pairs *p, int64_t until_ns)
{
	int slack_ns = prctl(PR_GET_TIMERSLACK);
	int err;

	prctl(PR_SET_TIMERSLACK, 1);
	err = drive(p, until_ns);
	if (slack_ns > 0)
		prctl(PR_SET_TIMERSLACK, slack_ns);
	return err;
}

void pairs_abandon(struct pairs *p)
{
	int64_t now = now_ns();
	bool full = list_empty(&p->free);

	while (!list_empty(&p->open)) {
		struct lookup *l = LOOKUP(p->open.next, age);

		l->lost = (uint16_t)(l->lost + __builtin_popcount(l->sent & (uint8_t)~l->answered));
		l->rounds++;
		lookup_finish(p, l, OUTCOME_UNKNOWN, now - l->sent_ns < p->config.limit_ns ? PAIRS_ABANDONED : PAIRS_TIMEOUT);
	}
	while (queue_length(&p->queued)) {
		struct lookup l = {.seq = p->next_seq++, .due_ns = queue_pop(&p->queued), .sent_ns = now};

		record(p, &l, now, OUTCOME_UNKNOWN, full && l.due_ns <= now ? PAIRS_TOO_MANY_OPEN : PAIRS_ABANDONED);
	}
}

/* --- what a caller may ask ------------------------------------------------------------------------------------ */

size_t pairs_open(const struct pairs *p)
{
	return p->n_open;
}

size_t pairs_queued(const struct pairs *p)
{
	return queue_length(&p->queued);
}

const struct sample *pairs_finished(const struct pairs *p, size_t *n)
{
	*n = p->n_finished;
	return p->finished;
}

void pairs_forget(struct pairs *p)
{
	p->n_finished = 0;
}

uint64_t pairs_sent(const struct pairs *p)
{
	return p->sent;
}

uint64_t pairs_answered(const struct pairs *p)
{
	return p->received;
}
