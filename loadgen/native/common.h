/* What the C files of this extension share: the clock, the layout of a sample, and how a caller cancels. */
#ifndef LOADGEN_NATIVE_COMMON_H
#define LOADGEN_NATIVE_COMMON_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <time.h>

#define NS_PER_S 1000000000LL

enum outcome { OUTCOME_OK, OUTCOME_FAIL, OUTCOME_UNKNOWN };

/* One finished operation, as a row of SAMPLE_DTYPE (loadgen/core/samples.py) has it in memory. */
struct sample {
	int64_t seq;
	int64_t due_ns;
	int64_t sent_ns;
	int64_t done_ns;
	uint16_t outcome;
	uint16_t tries;
	uint16_t lost;
	uint16_t detail;
};

_Static_assert(sizeof(struct sample) == 40, "SAMPLE_DTYPE rows have 40 bytes");
_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "SAMPLE_DTYPE and CT values are little-endian here");

static inline int64_t now_ns(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return t.tv_sec * NS_PER_S + t.tv_nsec;
}

/*
 * The caller's cancel flag: 4 bytes that another thread makes non-zero. Read byte by byte because a Python
 * buffer has no alignment, and through volatile because nothing here would otherwise read it twice.
 */
static inline bool is_cancelled(const volatile unsigned char *flag)
{
	return flag && (flag[0] | flag[1] | flag[2] | flag[3]);
}

#endif
