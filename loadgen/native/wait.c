#include "wait.h"

#include <errno.h>
#include <limits.h>
#include <linux/time_types.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "common.h"

#define NS_PER_MS 1000000LL

#ifdef SYS_epoll_pwait2
/* Set once by whichever thread learns it first; a second thread learns the same. */
static bool has_no_pwait2;

static int wait_exactly(int epoll_fd, struct epoll_event *events, int max, int64_t left_ns)
{
	struct __kernel_timespec t = {.tv_sec = left_ns / NS_PER_S, .tv_nsec = left_ns % NS_PER_S};
	long n = syscall(SYS_epoll_pwait2, epoll_fd, events, max, &t, NULL, 0);

	return n < 0 ? -errno : (int)n;
}
#endif

static int wait_milliseconds(int epoll_fd, struct epoll_event *events, int max, int64_t left_ns)
{
	int64_t ms = (left_ns + NS_PER_MS - 1) / NS_PER_MS; /* rounded up: late by less than 1 ms, never early */
	int n = epoll_wait(epoll_fd, events, max, ms > INT_MAX ? INT_MAX : (int)ms);

	return n < 0 ? -errno : n;
}

int wait_events(int epoll_fd, struct epoll_event *events, int max, int64_t until_ns)
{
	int64_t left_ns = until_ns - now_ns();

	if (left_ns < 0)
		left_ns = 0;
#ifdef SYS_epoll_pwait2
	if (!__atomic_load_n(&has_no_pwait2, __ATOMIC_RELAXED)) {
		int n = wait_exactly(epoll_fd, events, max, left_ns);

		/* Before Linux 5.11; or a container's seccomp filter that does not know the call. */
		if (n != -ENOSYS && n != -EPERM)
			return n;
		__atomic_store_n(&has_no_pwait2, true, __ATOMIC_RELAXED);
	}
#endif
	return wait_milliseconds(epoll_fd, events, max, left_ns);
}
