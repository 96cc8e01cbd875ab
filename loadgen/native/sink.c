/*
 * One thread, one epoll. A connection may ask more than once; every `request_bytes` are one request. The server
 * never closes first: like an HDFS DataNode it leaves that, and the TIME_WAIT, to its client.
 */
#define _GNU_SOURCE /* accept4 */
#include "sink.h"

#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "wait.h"

#define BACKLOG 4096
#define EVENTS_MAX 256
#define ACCEPTS_MAX 64 /* between two looks at the open connections */
#define SCRATCH_BYTES 65536
#define LISTENER (1ull << 63) /* in an event's data: the rest is the number of a listener, not a peer's descriptor */

struct peer {
	bool is_open;
	bool has_finished; /* its FIN has been read */
	uint32_t watched;  /* epoll events asked for; 0 before it is registered */
	size_t request_got;
	size_t reply_left;
};

struct sink {
	size_t request_bytes;
	size_t reply_bytes;
	int *listeners;
	size_t n_listeners;
	int epoll_fd;
	bool is_paused; /* out of descriptors or memory: not accepting until a connection ends */
	struct peer *peers; /* by descriptor */
	size_t n_peers;
	unsigned char *reply;
	unsigned char *scratch;
	struct sink_counters counters;
};

/* --- making and freeing ------------------------------------------------------------------------------------- */

static int watch_listener(struct sink *s, size_t i, int operation, uint32_t events)
{
	struct epoll_event event = {.events = events, .data.u64 = LISTENER | i};

	return epoll_ctl(s->epoll_fd, operation, s->listeners[i], &event) ? -errno : 0;
}

static int watch_listeners(struct sink *s, uint32_t events)
{
	int err = 0;

	for (size_t i = 0; i < s->n_listeners && !err; i++)
		err = watch_listener(s, i, EPOLL_CTL_MOD, events);
	return err;
}

/* Accepted sockets inherit TCP_NODELAY. */
static int listen_on(struct sink *s, uint16_t port)
{
	static const int on = 1;
	struct sockaddr_in at = {.sin_family = AF_INET, .sin_port = htons(port), .sin_addr.s_addr = INADDR_ANY};
	int fd = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);

	if (fd < 0)
		return -errno;
	s->listeners[s->n_listeners++] = fd;
	if (setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on)) ||
	    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on)) || bind(fd, (struct sockaddr *)&at, sizeof(at)) ||
	    listen(fd, BACKLOG))
		return -errno;
	return watch_listener(s, s->n_listeners - 1, EPOLL_CTL_ADD, EPOLLIN);
}

static int sink_init(struct sink *s, uint16_t port, size_t n_ports)
{
	int err = 0;

	s->reply = malloc(s->reply_bytes);
	s->scratch = malloc(SCRATCH_BYTES);
	s->listeners = calloc(n_ports, sizeof(*s->listeners));
	if (!s->reply || !s->scratch || !s->listeners)
		return -ENOMEM;
	memset(s->reply, 'y', s->reply_bytes);
	s->epoll_fd = epoll_create1(EPOLL_CLOEXEC);
	if (s->epoll_fd < 0)
		return -errno;
	for (size_t i = 0; i < n_ports && !err; i++)
		err = listen_on(s, (uint16_t)(port + i));
	return err;
}

struct sink *sink_new(uint16_t port, size_t n_ports, size_t request_bytes, size_t reply_bytes)
{
	struct sink *s = calloc(1, sizeof(*s));
	int err;

	if (!s)
		return NULL;
	s->epoll_fd = -1;
	s->request_bytes = request_bytes;
	s->reply_bytes = reply_bytes;
	err = sink_init(s, port, n_ports);
	if (err) {
		sink_free(s);
		errno = -err;
		return NULL;
	}
	return s;
}

void sink_free(struct sink *s)
{
	for (size_t fd = 0; fd < s->n_peers; fd++)
		if (s->peers[fd].is_open)
			close((int)fd);
	for (size_t i = 0; i < s->n_listeners; i++)
		close(s->listeners[i]);
	if (s->epoll_fd >= 0)
		close(s->epoll_fd);
	free(s->listeners);
	free(s->peers);
	free(s->reply);
	free(s->scratch);
	free(s);
}

uint16_t sink_port(const struct sink *s)
{
	struct sockaddr_in at = {0};
	socklen_t size = sizeof(at);

	getsockname(s->listeners[0], (struct sockaddr *)&at, &size);
	return ntohs(at.sin_port);
}

/* --- one connection ----------------------------------------------------------------------------------------- */

static int hang_up(struct sink *s, int fd)
{
	close(fd);
	s->peers[fd].is_open = false;
	s->counters.open--;
	if (!s->is_paused)
		return 0;
	s->is_paused = false;
	return watch_listeners(s, EPOLLIN);
}

/* EPOLLOUT only while a reply is stuck: a socket that merely waits would report at once that it can be written. */
static int watch_peer(struct sink *s, int fd)
{
	struct peer *p = &s->peers[fd];
	uint32_t wanted = EPOLLIN | EPOLLRDHUP | EPOLLET | (p->reply_left ? (uint32_t)EPOLLOUT : 0);
	struct epoll_event event = {.events = wanted, .data.u64 = (uint64_t)fd};
	int operation = p->watched ? EPOLL_CTL_MOD : EPOLL_CTL_ADD;

	if (p->watched == wanted)
		return 0;
	p->watched = wanted;
	return epoll_ctl(s->epoll_fd, operation, fd, &event) ? -errno : 0;
}

/* False when the connection is dead. */
static bool send_replies(struct sink *s, int fd)
{
	struct peer *p = &s->peers[fd];

	while (p->reply_left) {
		/* Several replies may be owed, one is in the buffer: what is left of the current one. */
		size_t part = (p->reply_left - 1) % s->reply_bytes + 1;
		ssize_t n = send(fd, s->reply, part, MSG_NOSIGNAL);

		if (n < 0 && errno == EINTR)
			continue;
		if (n < 0)
			return errno == EAGAIN;
		p->reply_left -= (size_t)n;
		s->counters.served += (size_t)n == part;
	}
	return true;
}

/*
 * False when the connection is dead. A read that got less than it asked for has drained the socket, and what comes
 * later makes an edge of its own (epoll(7)); but a FIN that was already reported has to be read now.
 */
static bool read_requests(struct sink *s, int fd, bool to_the_end)
{
	struct peer *p = &s->peers[fd];

	while (!p->has_finished) {
		ssize_t n = recv(fd, s->scratch, SCRATCH_BYTES, 0);

		if (n < 0 && errno == EINTR)
			continue;
		if (n < 0)
			return errno == EAGAIN;
		p->has_finished = n == 0;
		p->request_got += (size_t)n;
		p->reply_left += p->request_got / s->request_bytes * s->reply_bytes;
		p->request_got %= s->request_bytes;
		if (n < SCRATCH_BYTES && !to_the_end)
			break;
	}
	return true;
}

/* A peer that has sent FIN still gets what it is owed before the connection is closed. */
static int serve(struct sink *s, int fd, uint32_t events)
{
	const struct peer *p = &s->peers[fd];
	bool alive = read_requests(s, fd, events & (EPOLLRDHUP | EPOLLHUP | EPOLLERR)) && send_replies(s, fd);

	if (!alive || (p->has_finished && !p->reply_left))
		return hang_up(s, fd);
	return watch_peer(s, fd);
}

/* --- accepting ---------------------------------------------------------------------------------------------- */

static int peers_reserve(struct sink *s, int fd)
{
	size_t size = s->n_peers;
	struct peer *grown;

	if ((size_t)fd < size)
		return 0;
	while (size <= (size_t)fd)
		size = size ? size * 2 : 64;
	grown = realloc(s->peers, size * sizeof(*grown));
	if (!grown)
		return -ENOMEM;
	memset(grown + s->n_peers, 0, (size - s->n_peers) * sizeof(*grown));
	s->peers = grown;
	s->n_peers = size;
	return 0;
}

/* The request has often come by now, so it is served before the socket is registered. */
static int welcome(struct sink *s, int fd)
{
	if (peers_reserve(s, fd)) {
		close(fd);
		return -ENOMEM;
	}
	s->peers[fd] = (struct peer){.is_open = true};
	s->counters.accepted++;
	s->counters.open++;
	return serve(s, fd, 0);
}

/* Out of descriptors or memory, clients wait in the backlog; without any connection to end, nobody would help. */
static int pause_accepting(struct sink *s, int err)
{
	if (!s->counters.open)
		return err;
	s->is_paused = true;
	return watch_listeners(s, 0);
}

static int accept_some(struct sink *s, int listener)
{
	for (int n = 0; n < ACCEPTS_MAX; n++) {
		int fd = accept4(listener, NULL, NULL, SOCK_NONBLOCK | SOCK_CLOEXEC);
		int err;

		if (fd < 0 && errno == EAGAIN)
			return 0;
		if (fd < 0 && (errno == EMFILE || errno == ENFILE || errno == ENOBUFS || errno == ENOMEM))
			return pause_accepting(s, -errno);
		if (fd < 0)
			continue; /* the connection died in the backlog: accept(2) hands out its error */
		err = welcome(s, fd);
		if (err)
			return err;
	}
	return 0;
}

/* --- the loop ----------------------------------------------------------------------------------------------- */

int sink_run(struct sink *s, int64_t until_ns)
{
	struct epoll_event events[EVENTS_MAX];

	do {
		int n = wait_events(s->epoll_fd, events, EVENTS_MAX, until_ns);

		if (n < 0)
			return n;
		for (int i = 0; i < n; i++) {
			uint64_t who = events[i].data.u64;
			int err = who & LISTENER ? accept_some(s, s->listeners[who & ~LISTENER])
						 : serve(s, (int)who, events[i].events);

			if (err)
				return err;
		}
	} while (now_ns() < until_ns);
	return 0;
}

struct sink_counters sink_counters(const struct sink *s)
{
	return s->counters;
}
