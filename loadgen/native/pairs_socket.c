/* The sockets of lookups: opened as the resolver opens them, and the system calls that each makes. */
#define _GNU_SOURCE
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "pairs_lookup.h"

#define REPLY_MAX 4096

/* Room for it in the table of who has which socket. */
static int owners_reserve(struct pairs *p, int fd)
{
	size_t size = (size_t)fd + 1;
	struct owner *grown;

	if (size <= p->n_owners)
		return 0;
	size += size / 2;
	grown = realloc(p->owners, size * sizeof(*grown));
	if (!grown)
		return -ENOMEM;
	memset(grown + p->n_owners, 0, (size - p->n_owners) * sizeof(*grown));
	p->owners = grown;
	p->n_owners = size;
	return 0;
}

static int connect_socket(struct pairs *p, int fd)
{
	static const struct sockaddr_in any = {.sin_family = AF_INET};

	if (p->config.resolver == PAIRS_GLIBC)
		return connect(fd, (const struct sockaddr *)&p->config.server, sizeof(p->config.server));
	return bind(fd, (const struct sockaddr *)&any, sizeof(any));
}

/* A socket from the pool may be watched already: epoll goes by the descriptor, and its owner is looked up. */
int lookup_reopen(struct pairs *p, struct lookup *l)
{
	int fd = p->n_idle ? p->idle[--p->n_idle] : socket(AF_INET, SOCK_DGRAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
	int err = fd < 0 ? -errno : owners_reserve(p, fd);

	if (!err && connect_socket(p, fd))
		err = -errno;
	if (err) {
		if (fd >= 0)
			lookup_drop_socket(p, fd);
		return err;
	}
	l->fd = fd;
	p->owners[fd].lookup = l;
	if (!p->owners[fd].watched)
		list_add(&p->fresh, &l->fresh);
	return 0;
}

void lookup_drop_socket(struct pairs *p, int fd)
{
	close(fd);
	if ((size_t)fd >= p->n_owners)
		return;
	p->n_watched -= p->owners[fd].watched;
	p->owners[fd] = (struct owner){0};
}

/* Disconnected, a socket gives its port back. One whose lookup was not the simplest may have something left to read. */
static bool keep_socket(struct pairs *p, const struct lookup *l)
{
	static const struct sockaddr nobody = {.sa_family = AF_UNSPEC};
	bool clean = l->good == all_queries(p) && !l->lost && l->attempt == 0;

	if (!p->config.recycles || !clean || connect(l->fd, &nobody, sizeof(nobody)))
		return false;
	p->owners[l->fd].lookup = NULL;
	p->idle[p->n_idle++] = l->fd;
	return true;
}

void lookup_close(struct pairs *p, struct lookup *l)
{
	if (l->fd >= 0 && !keep_socket(p, l))
		lookup_drop_socket(p, l->fd);
	l->fd = -1;
	list_remove(&l->fresh);
}

/* Both with one system call, as glibc sends them; two calls would be two for musl, and differ in nothing else. */
bool lookup_send(struct pairs *p, struct lookup *l, uint8_t which)
{
	struct mmsghdr messages[2];
	unsigned char ids[2][2];
	struct iovec parts[2][2];
	unsigned n = 0, done = 0;

	for (size_t i = 0; i < p->config.per_lookup; i++) {
		if (!(which & 1u << i))
			continue;
		ids[n][0] = (unsigned char)(l->ids[i] >> 8);
		ids[n][1] = (unsigned char)l->ids[i];
		parts[n][0] = (struct iovec){ids[n], 2};
		parts[n][1] = (struct iovec){(void *)(uintptr_t)(l->queries[i].wire + 2), l->queries[i].bytes - 2u};
		messages[n].msg_hdr = (struct msghdr){.msg_iov = parts[n], .msg_iovlen = 2};
		if (p->config.resolver != PAIRS_GLIBC) {
			messages[n].msg_hdr.msg_name = &p->config.server;
			messages[n].msg_hdr.msg_namelen = sizeof(p->config.server);
		}
		n++;
	}
	/* An ICMP error of the first ends the call before the second; glibc then sends that alone. */
	while (done < n) {
		int sent = sendmmsg(l->fd, messages + done, n - done, MSG_NOSIGNAL);

		if (sent < 0 && errno == EINTR)
			continue;
		if (sent <= 0)
			return false;
		done += (unsigned)sent;
	}
	l->sent |= which;
	p->sent += done;
	return true;
}

static bool is_from_server(const struct pairs *p, const struct sockaddr_in *from)
{
	return from->sin_addr.s_addr == p->config.server.sin_addr.s_addr && from->sin_port == p->config.server.sin_port;
}

/* Two datagrams at a time, which are all there are as a rule; -1 with errno set when there is none. */
static int take(struct pairs *p, struct lookup *l)
{
	unsigned char replies[2][REPLY_MAX];
	struct sockaddr_in from[2];
	struct mmsghdr messages[2];
	struct iovec parts[2];
	bool connected = p->config.resolver == PAIRS_GLIBC; /* then the kernel lets in only what the server sent */
	int fd = l->fd, n;

	for (int i = 0; i < 2; i++) {
		parts[i] = (struct iovec){replies[i], REPLY_MAX};
		messages[i].msg_hdr = (struct msghdr){.msg_iov = &parts[i], .msg_iovlen = 1};
		if (!connected) {
			messages[i].msg_hdr.msg_name = &from[i];
			messages[i].msg_hdr.msg_namelen = sizeof(from[i]);
		}
	}
	n = recvmmsg(fd, messages, 2, MSG_DONTWAIT, NULL);
	/* What was left on a socket that the first reply closed is nobody's. */
	for (int i = 0; i < n && l->fd == fd; i++)
		if ((connected || is_from_server(p, &from[i])) && rules_reply(p, l, replies[i], messages[i].msg_len) == IS_OVER)
			break;
	return n;
}

/* To the end, because epoll tells of every arrival once. */
bool lookup_receive(struct pairs *p, struct lookup *l)
{
	int fd = l->fd, n;

	do
		n = take(p, l);
	while (n == 2 && l->fd == fd);
	if (n >= 0)
		return true;
	if (errno == EAGAIN || errno == EINTR)
		return false;
	rules_failed(p, l, errno);
	return l->fd != fd;
}
