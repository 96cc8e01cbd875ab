/* The operations of a storm that have not been started, by due time. */
#ifndef LOADGEN_NATIVE_QUEUE_H
#define LOADGEN_NATIVE_QUEUE_H

#include "common.h"

struct queue {
	int64_t *due_ns; /* due_ns[head .. tail) */
	size_t head;
	size_t tail;
	size_t size;
	int64_t last_ns; /* the latest due time that was ever queued */
};

/* 0, -ENOMEM, or -EINVAL when the due times do not ascend; then nothing was queued. */
int queue_push(struct queue *q, const int64_t *due_ns, size_t n);

static inline size_t queue_length(const struct queue *q)
{
	return q->tail - q->head;
}

/* The next two need a queue that is not empty. */
static inline int64_t queue_first(const struct queue *q)
{
	return q->due_ns[q->head];
}

static inline int64_t queue_pop(struct queue *q)
{
	return q->due_ns[q->head++];
}

#endif
