/*
 * Datagrams are taken and answered in batches. The answer to a query is the query itself, with the bits of a reply
 * and one address record behind its question; whatever is not a query of type A or AAAA gets no record.
 */
#define _GNU_SOURCE
#include "responder.h"

#include <errno.h>
#include <netinet/in.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#define BATCH 64
#define HEADER_BYTES 12
#define QUERY_MAX 512
#define RECORD_MAX 28 /* a pointer to the name, type, class, TTL, length, and an IPv6 address */
#define RECEIVE_BUFFER (8 << 20)
#define LOOK_NS 50000000LL /* between two looks at the clock */
/* It stays awake so long after a query, so that no client pays for waking it. */
#define AWAKE_NS 200000LL

struct responder {
	int fd;
	uint16_t port;
	_Atomic uint64_t answered;
	struct mmsghdr messages[BATCH];
	struct iovec parts[BATCH];
	struct sockaddr_in from[BATCH];
	unsigned char datagrams[BATCH][QUERY_MAX + RECORD_MAX];
};

static int open_socket(struct responder *r, uint16_t port)
{
	static const int buffer = RECEIVE_BUFFER, on = 1;
	struct sockaddr_in address = {.sin_family = AF_INET, .sin_port = htons(port)};
	socklen_t length = sizeof(address);

	r->fd = socket(AF_INET, SOCK_DGRAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
	/* A burst must not be lost in front of a server that is not meant to lose anything. */
	if (r->fd >= 0 && setsockopt(r->fd, SOL_SOCKET, SO_RCVBUFFORCE, &buffer, sizeof(buffer)))
		setsockopt(r->fd, SOL_SOCKET, SO_RCVBUF, &buffer, sizeof(buffer));
	if (r->fd < 0 || (port && setsockopt(r->fd, SOL_SOCKET, SO_REUSEPORT, &on, sizeof(on))) ||
	    bind(r->fd, (const struct sockaddr *)&address, sizeof(address)) ||
	    getsockname(r->fd, (struct sockaddr *)&address, &length))
		return -errno;
	r->port = ntohs(address.sin_port);
	return 0;
}

struct responder *responder_new(uint16_t port)
{
	struct responder *r = calloc(1, sizeof(*r));
	int err;

	if (!r)
		return NULL;
	r->fd = -1;
	err = open_socket(r, port);
	if (err) {
		responder_free(r);
		errno = -err;
		return NULL;
	}
	return r;
}

void responder_free(struct responder *r)
{
	if (r->fd >= 0)
		close(r->fd);
	free(r);
}

/* The length of the reply that the query in `data` has become; 0 when it is not answered. */
static size_t answer(unsigned char *data, size_t bytes)
{
	size_t at = HEADER_BYTES, rdata;

	if (bytes < HEADER_BYTES + 5 || data[2] & 0x80 || data[4] || data[5] != 1)
		return 0;
	while (at < bytes && data[at] && data[at] < 64)
		at += 1u + data[at];
	if (at + 5 > bytes || data[at])
		return 0;
	at += 5;
	rdata = data[at - 3] == 1 ? 4 : data[at - 3] == 28 ? 16 : 0;
	data[2] = (unsigned char)(0x80 | (data[2] & 0x79)); /* opcode and RD are the query's */
	data[3] = 0x80;
	memset(data + 6, 0, 6);
	if (data[at - 4] || !rdata)
		return at;
	data[7] = 1;
	memcpy(data + at, "\xc0\x0c\0\0\0\1\0\0\0\x1e\0", 11);
	data[at + 3] = data[at - 3];
	data[at + 11] = (unsigned char)rdata;
	memset(data + at + 12, 0, rdata);
	memcpy(data + at + 12, rdata == 4 ? "\xc6\x12\0\1" : "\x20\1\xd\xb8", 4);
	return at + 12 + rdata;
}

static int receive(struct responder *r)
{
	for (int i = 0; i < BATCH; i++) {
		r->parts[i] = (struct iovec){r->datagrams[i], QUERY_MAX};
		r->messages[i].msg_hdr = (struct msghdr){
			.msg_name = &r->from[i], .msg_namelen = sizeof(r->from[i]), .msg_iov = &r->parts[i], .msg_iovlen = 1};
	}
	return recvmmsg(r->fd, r->messages, BATCH, MSG_DONTWAIT, NULL);
}

/* A reply that cannot be sent is lost, as datagrams are. */
static void reply(struct responder *r, int n)
{
	int kept = 0, done = 0;

	for (int i = 0; i < n; i++) {
		size_t bytes = answer(r->datagrams[i], r->messages[i].msg_len);

		if (!bytes)
			continue;
		r->parts[i].iov_len = bytes;
		r->messages[kept++].msg_hdr = r->messages[i].msg_hdr;
	}
	while (done < kept) {
		int sent = sendmmsg(r->fd, r->messages + done, (unsigned)(kept - done), 0);

		if (sent > 0)
			r->answered += (unsigned)sent;
		done += sent > 0 ? sent : 1;
	}
}

int responder_run(struct responder *r, int64_t until_ns)
{
	int64_t now, last = 0;

	while ((now = now_ns()) < until_ns) {
		struct pollfd one = {.fd = r->fd, .events = POLLIN};
		int64_t left = until_ns - now < LOOK_NS ? until_ns - now : LOOK_NS;
		int n = receive(r);

		if (n > 0) {
			reply(r, n);
			last = now;
		} else if (now - last > AWAKE_NS && poll(&one, 1, (int)((left + 999999) / 1000000)) < 0) {
			return -errno;
		}
	}
	return 0;
}

uint16_t responder_port(const struct responder *r)
{
	return r->port;
}

uint64_t responder_answered(const struct responder *r)
{
	return r->answered;
}
