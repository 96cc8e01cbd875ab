/*
 * lookup fresh|reuse NAME...: real getaddrinfo(3) calls of the libc that this is built with, each begun when it is due.
 *
 * stdin:  due times, int64 nanoseconds of CLOCK_MONOTONIC, ascending; lookup number i asks for NAME number i modulo
 *         their count. Its end means that there are no more.
 * stdout: a struct record for each lookup, in the order in which they end.
 *
 * getaddrinfo blocks, so every lookup under way has a thread. A thread's resolver state is its own: with `fresh` each
 * lookup has a new thread and so knows nothing of earlier ones, as a new process would; with `reuse` idle threads are
 * taken again and remember what glibc remembers, as a server's thread pool does. While THREADS_MAX are under way, what
 * is due waits, and its record shows it.
 */
#include <errno.h>
#include <netdb.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#define NS_PER_S 1000000000LL
#define THREADS_MAX 2000
#define STACK_BYTES (512 << 10) /* glibc's answers may be on it, 64 KiB at a time */

struct record {
	int64_t seq;
	int64_t due_ns;
	int64_t sent_ns;
	int64_t done_ns;
	int32_t result; /* 0 or EAI_...; the numbers are the same in glibc and in musl */
	int32_t unused;
};

static struct {
	pthread_mutex_t lock;
	pthread_cond_t work;  /* something is queued */
	pthread_cond_t ended; /* a thread has ended its lookup */
	struct record *queued; /* by `seq`, a ring of one for each thread that may exist */
	size_t head, tail;
	int idle, busy;
	bool reuse;
	char **names;
	size_t n_names;
} pool = {.lock = PTHREAD_MUTEX_INITIALIZER, .work = PTHREAD_COND_INITIALIZER, .ended = PTHREAD_COND_INITIALIZER};

static void die(const char *what)
{
	fprintf(stderr, "lookup: %s: %s\n", what, strerror(errno));
	_exit(1);
}

static int64_t now_ns(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return t.tv_sec * NS_PER_S + t.tv_nsec;
}

static void sleep_until(int64_t t_ns)
{
	const struct timespec t = {.tv_sec = t_ns / NS_PER_S, .tv_nsec = t_ns % NS_PER_S};

	while (clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &t, NULL) == EINTR)
		;
}

static void look_up(struct record *r)
{
	static const struct addrinfo hints = {.ai_family = AF_UNSPEC, .ai_socktype = SOCK_STREAM};
	struct addrinfo *found = NULL;

	r->sent_ns = now_ns();
	r->result = getaddrinfo(pool.names[(size_t)r->seq % pool.n_names], NULL, &hints, &found);
	r->done_ns = now_ns();
	if (!r->result)
		freeaddrinfo(found);
}

/* A pipe takes so few bytes in one piece. The reader gone, nobody wants the rest. */
static void report(const struct record *r)
{
	if (write(STDOUT_FILENO, r, sizeof(*r)) != sizeof(*r))
		die("stdout");
}

static struct record next_queued(void)
{
	return pool.queued[pool.head++ % THREADS_MAX];
}

/* Holds the lock except while it looks up. */
static void *run(void *unused)
{
	struct record r;

	(void)unused;
	pthread_mutex_lock(&pool.lock);
	do {
		while (pool.head == pool.tail) {
			pool.idle++;
			pthread_cond_wait(&pool.work, &pool.lock);
			pool.idle--;
		}
		r = next_queued();
		pthread_mutex_unlock(&pool.lock);
		look_up(&r);
		report(&r);
		pthread_mutex_lock(&pool.lock);
		pool.busy--;
		pthread_cond_signal(&pool.ended);
	} while (pool.reuse);
	pthread_mutex_unlock(&pool.lock);
	return NULL;
}

static int start_thread(void)
{
	pthread_attr_t attr;
	pthread_t thread;
	int err;

	pthread_attr_init(&attr);
	pthread_attr_setstacksize(&attr, STACK_BYTES);
	pthread_attr_setdetachstate(&attr, PTHREAD_CREATE_DETACHED);
	err = pthread_create(&thread, &attr, run, NULL);
	pthread_attr_destroy(&attr);
	return err;
}

/* Hand a lookup to a thread; wait for one to end its own first when there may be no more of them. */
static void begin(const struct record *r)
{
	pthread_mutex_lock(&pool.lock);
	while (pool.busy == THREADS_MAX)
		pthread_cond_wait(&pool.ended, &pool.lock);
	pool.queued[pool.tail++ % THREADS_MAX] = *r;
	pool.busy++;
	if (pool.idle >= (int)(pool.tail - pool.head))
		pthread_cond_signal(&pool.work);
	else {
		/* The machine's limit, below ours: of the threads there are, one has to end first. */
		while ((errno = start_thread()) == EAGAIN && pool.busy > 1)
			pthread_cond_wait(&pool.ended, &pool.lock);
		if (errno)
			die("no thread");
	}
	pthread_mutex_unlock(&pool.lock);
}

static bool read_due(int64_t *due_ns)
{
	size_t got = 0;

	while (got < sizeof(*due_ns)) {
		ssize_t n = read(STDIN_FILENO, (char *)due_ns + got, sizeof(*due_ns) - got);

		if (n < 0 && errno == EINTR)
			continue;
		if (n < 0)
			die("stdin");
		if (n == 0)
			return false;
		got += (size_t)n;
	}
	return true;
}

int main(int argc, char **argv)
{
	struct record r = {0};

	if (argc < 3 || (strcmp(argv[1], "fresh") && strcmp(argv[1], "reuse"))) {
		fprintf(stderr, "usage: %s fresh|reuse NAME...\n", argv[0]);
		return 2;
	}
	pool.reuse = !strcmp(argv[1], "reuse");
	pool.names = argv + 2;
	pool.n_names = (size_t)argc - 2;
	pool.queued = calloc(THREADS_MAX, sizeof(*pool.queued));
	if (!pool.queued)
		die("memory");
	for (; read_due(&r.due_ns); r.seq++) {
		sleep_until(r.due_ns);
		begin(&r);
	}
	pthread_mutex_lock(&pool.lock);
	while (pool.busy)
		pthread_cond_wait(&pool.ended, &pool.lock);
	pthread_mutex_unlock(&pool.lock);
	return 0;
}
