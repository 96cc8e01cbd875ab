#include "queue.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

/* Move what is queued to the front of its memory, and grow that, so that `n` more fit. */
static int make_room(struct queue *q, size_t n)
{
	size_t used = queue_length(q);
	int64_t *grown;

	if (q->head)
		memmove(q->due_ns, q->due_ns + q->head, used * sizeof(*q->due_ns));
	q->head = 0;
	q->tail = used;
	if (used + n <= q->size)
		return 0;
	grown = realloc(q->due_ns, (used + n) * sizeof(*grown));
	if (!grown)
		return -ENOMEM;
	q->due_ns = grown;
	q->size = used + n;
	return 0;
}

int queue_push(struct queue *q, const int64_t *due_ns, size_t n)
{
	int64_t last = q->last_ns;

	for (size_t i = 0; i < n; i++) {
		if (due_ns[i] < last)
			return -EINVAL;
		last = due_ns[i];
	}
	if (n == 0)
		return 0;
	if (make_room(q, n))
		return -ENOMEM;
	memcpy(q->due_ns + q->tail, due_ns, n * sizeof(*due_ns));
	q->tail += n;
	q->last_ns = last;
	return 0;
}
