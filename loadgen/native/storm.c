/*
 * One thread, one epoll. An operation is: connect, send the request, read the whole reply, close.
 *
 *   queued ──due──► open ──reply, error or timeout──► finished
 *
 * The queue is in order of due time. Open connections are in order of start, so with one timeout for all the
 * first of the list is always the next to time out. Sockets are registered once, edge-triggered, which saves an
 * epoll_ctl per connection; every step therefore goes on until it would block.
 */
#include "storm.h"

#include <errno.h>
#include <netinet/tcp.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <unistd.h>

#include "conns.h"
#include "queue.h"
#include "wait.h"

#define EVENTS_MAX 256
/* At most so many connections are started between two looks at the open ones, whose clocks run meanwhile. */
#define STARTS_MAX 16
#define SCRATCH_BYTES 65536

struct storm {
	struct storm_config config;
	struct sockaddr_in *targets;
	unsigned char *request;
	unsigned char *scratch;
	int epoll_fd;

	struct queue queued;
	struct conns open;
	int64_t next_seq;

	struct sample *finished;
	size_t n_finished, finished_size;
};

/* --- making and freeing ------------------------------------------------------------------------------------- */

/* Written out once, so that starting a connection only points at where it goes. */
static void read_targets(struct sockaddr_in *to, const unsigned char *from, size_t n)
{
	for (size_t i = 0; i < n; i++, from += TARGET_BYTES) {
		to[i].sin_family = AF_INET;
		memcpy(&to[i].sin_addr, from, 4);
		memcpy(&to[i].sin_port, from + 4, 2);
	}
}

static int storm_init(struct storm *s)
{
	const struct storm_config *c = &s->config;

	s->targets = calloc(c->n_targets, sizeof(*s->targets));
	s->request = malloc(c->request_bytes);
	s->scratch = malloc(SCRATCH_BYTES);
	if (!s->targets || !s->request || !s->scratch || conns_init(&s->open, c->max_open))
		return -ENOMEM;
	read_targets(s->targets, c->targets, c->n_targets);
	memset(s->request, 'x', c->request_bytes);
	s->epoll_fd = epoll_create1(EPOLL_CLOEXEC);
	return s->epoll_fd < 0 ? -errno : 0;
}

struct storm *storm_new(const struct storm_config *config)
{
	struct storm *s = calloc(1, sizeof(*s));
	int err;

	if (!s)
		return NULL;
	s->config = *config;
	s->queued.last_ns = INT64_MIN;
	s->epoll_fd = -1;
	err = storm_init(s);
	if (err) {
		storm_free(s);
		errno = -err;
		return NULL;
	}
	s->config.targets = NULL;
	return s;
}

void storm_free(struct storm *s)
{
	for (struct conn *c = conns_oldest(&s->open); c; c = conns_oldest(&s->open)) {
		close(c->fd);
		conns_return(&s->open, c);
	}
	if (s->epoll_fd >= 0)
		close(s->epoll_fd);
	free(s->targets);
	free(s->request);
	free(s->scratch);
	free(s->queued.due_ns);
	free(s->open.slots);
	free(s->finished);
	free(s);
}

/* --- finished ----------------------------------------------------------------------------------------------- */

static void record(struct storm *s, const struct conn *c, int64_t done_ns, enum outcome outcome,
		   enum storm_detail detail)
{
	s->finished[s->n_finished++] = (struct sample){
		.seq = c->seq,
		.due_ns = c->due_ns,
		.sent_ns = c->sent_ns,
		.done_ns = done_ns,
		.outcome = (uint16_t)outcome,
		.tries = 1,
		.detail = (uint16_t)detail,
	};
}

const struct sample *storm_finished(const struct storm *s, size_t *n)
{
	*n = s->n_finished;
	return s->finished;
}

void storm_forget(struct storm *s)
{
	s->n_finished = 0;
}

/* --- open --------------------------------------------------------------------------------------------------- */

static void finish(struct storm *s, struct conn *c, int64_t done_ns, enum outcome outcome, enum storm_detail detail)
{
	static const struct linger reset = {.l_onoff = 1, .l_linger = 0};

	if (s->config.close_rst && c->fd >= 0)
		setsockopt(c->fd, SOL_SOCKET, SO_LINGER, &reset, sizeof(reset));
	if (c->fd >= 0)
		close(c->fd);
	record(s, c, done_ns, outcome, detail);
	conns_return(&s->open, c);
}

/* Only silence, here as the kernel's own ETIMEDOUT, is UNKNOWN; an operation that was told no has failed. */
static void fail(struct storm *s, struct conn *c, int err)
{
	enum storm_detail detail = storm_detail_of(err);

	finish(s, c, now_ns(), detail == DETAIL_TIMEOUT ? OUTCOME_UNKNOWN : OUTCOME_FAIL, detail);
}

/* False when that ended the operation: an error of connect() that came later shows here. */
static bool send_request(struct storm *s, struct conn *c)
{
	while (c->to_send) {
		ssize_t n = send(c->fd, s->request, c->to_send, MSG_NOSIGNAL);

		if (n < 0 && errno == EINTR)
			continue;
		if (n < 0 && errno == EAGAIN)
			return true;
		if (n < 0) {
			fail(s, c, errno);
			return false;
		}
		c->to_send -= (size_t)n;
	}
	return true;
}

static void read_reply(struct storm *s, struct conn *c)
{
	while (c->to_read) {
		ssize_t n = recv(c->fd, s->scratch, c->to_read < SCRATCH_BYTES ? c->to_read : SCRATCH_BYTES, 0);

		if (n < 0 && errno == EINTR)
			continue;
		if (n < 0 && errno != EAGAIN)
			fail(s, c, errno);
		if (n == 0)
			finish(s, c, now_ns(), OUTCOME_FAIL, DETAIL_SHORT_REPLY);
		if (n <= 0)
			return;
		c->to_read -= (size_t)n;
	}
	finish(s, c, now_ns(), OUTCOME_OK, DETAIL_NONE);
}

/* Writable alone means that the request may go on; anything else is news from the peer, good or bad. */
static void advance(struct storm *s, struct conn *c, uint32_t events)
{
	if (send_request(s, c) && !c->to_send && events & ~(uint32_t)EPOLLOUT)
		read_reply(s, c);
}

/* --- queued → open ------------------------------------------------------------------------------------------ */

static int open_socket(const struct storm *s, const struct conn *c)
{
	static const int on = 1;
	const struct sockaddr_in *to = &s->targets[(uint64_t)c->seq % s->config.n_targets];
	int fd = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);

	if (fd < 0)
		return -errno;
	if (setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on)) ||
	    (connect(fd, (const struct sockaddr *)to, sizeof(*to)) && errno != EINPROGRESS)) {
		int err = errno;

		close(fd);
		return -err;
	}
	return fd;
}

/*
 * Registered after the request was tried, so that a socket which only waits for its reply does not report once
 * that it can be written to. Whatever has come by then is reported at once.
 */
static void watch(struct storm *s, struct conn *c)
{
	struct epoll_event event = {.events = EPOLLIN | EPOLLRDHUP | EPOLLET};

	event.events |= c->to_send ? (uint32_t)EPOLLOUT : 0;
	event.data.u32 = conns_index(&s->open, c);
	if (epoll_ctl(s->epoll_fd, EPOLL_CTL_ADD, c->fd, &event))
		fail(s, c, errno);
}

/* The request is tried at once: to a peer on this machine the handshake is over when connect() returns. */
static void start(struct storm *s, int64_t now)
{
	struct conn *c = conns_take(&s->open);

	c->seq = s->next_seq++;
	c->due_ns = queue_pop(&s->queued);
	c->sent_ns = now;
	c->to_send = s->config.request_bytes;
	c->to_read = s->config.reply_bytes;
	c->fd = open_socket(s, c);
	if (c->fd < 0)
		fail(s, c, -c->fd);
	else if (send_request(s, c))
		watch(s, c);
}

static void start_due(struct storm *s)
{
	for (int n = 0; n < STARTS_MAX && queue_length(&s->queued) && s->open.n < s->open.max; n++) {
		int64_t now = now_ns();

		if (queue_first(&s->queued) > now)
			return;
		start(s, now);
	}
}

static int finished_reserve(struct storm *s, size_t n)
{
	size_t needed = s->n_finished + s->open.n + queue_length(&s->queued) + n;
	struct sample *grown;

	if (needed <= s->finished_size)
		return 0;
	grown = realloc(s->finished, needed * sizeof(*grown));
	if (!grown)
		return -ENOMEM;
	s->finished = grown;
	s->finished_size = needed;
	return 0;
}

int storm_push(struct storm *s, const int64_t *due_ns, size_t n)
{
	int err = finished_reserve(s, n);

	return err ? err : queue_push(&s->queued, due_ns, n);
}

/* --- the loop ----------------------------------------------------------------------------------------------- */

static int64_t deadline(const struct storm *s, const struct conn *c)
{
	return c->sent_ns + s->config.timeout_ns;
}

static void expire(struct storm *s, int64_t now)
{
	struct conn *c;

	while ((c = conns_oldest(&s->open)) && deadline(s, c) <= now)
		finish(s, c, now, OUTCOME_UNKNOWN, DETAIL_TIMEOUT);
}

/* When something has to happen even if the network stays silent. */
static int64_t next_wake(const struct storm *s, int64_t until_ns)
{
	const struct conn *c = conns_oldest(&s->open);
	int64_t wake = until_ns;

	if (queue_length(&s->queued) && s->open.n < s->open.max && queue_first(&s->queued) < wake)
		wake = queue_first(&s->queued);
	if (c && deadline(s, c) < wake)
		wake = deadline(s, c);
	return wake;
}

/* Replies that have arrived are read before anything is timed out: being slow ourselves is not a timeout. */
static int drive(struct storm *s, int64_t until_ns)
{
	struct epoll_event events[EVENTS_MAX];

	while (s->open.n || queue_length(&s->queued)) {
		int n = wait_events(s->epoll_fd, events, EVENTS_MAX, next_wake(s, until_ns));
		int64_t now;

		if (n < 0)
			return n;
		for (int i = 0; i < n; i++)
			advance(s, &s->open.slots[events[i].data.u32], events[i].events);
		now = now_ns();
		if (n < EVENTS_MAX)
			expire(s, now);
		start_due(s);
		if (now >= until_ns)
			break;
	}
	return 0;
}

/* A thread's timers are late by up to 50 us unless it asks for better, and latency counts from the due time. */
int storm_run(struct storm *s, int64_t until_ns)
{
	int slack_ns = prctl(PR_GET_TIMERSLACK);
	int err;

	prctl(PR_SET_TIMERSLACK, 1);
	err = drive(s, until_ns);
	if (slack_ns > 0)
		prctl(PR_SET_TIMERSLACK, slack_ns);
	return err;
}

/* Due, but held back because max_open connections were under way, is another reason than not yet due. */
void storm_abandon(struct storm *s)
{
	int64_t now = now_ns();
	bool full = s->open.n == s->open.max;
	struct conn *open;

	while ((open = conns_oldest(&s->open)))
		finish(s, open, now, OUTCOME_UNKNOWN, DETAIL_ABANDONED);
	while (queue_length(&s->queued)) {
		struct conn c = {.seq = s->next_seq++, .due_ns = queue_pop(&s->queued), .sent_ns = now};
		bool held = full && c.due_ns <= now;

		record(s, &c, now, OUTCOME_UNKNOWN, held ? DETAIL_TOO_MANY_OPEN : DETAIL_ABANDONED);
	}
}

size_t storm_open(const struct storm *s)
{
	return s->open.n;
}

size_t storm_queued(const struct storm *s)
{
	return queue_length(&s->queued);
}
