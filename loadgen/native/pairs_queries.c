/* The queries of a Pairs object, as its caller wrote them: whole messages whose ids are put in when they are sent. */
#include <errno.h>
#include <stdlib.h>

#include "pairs_lookup.h"

#define HEADER_BYTES 12

/* The length of a name and its type and class, from `at` on; 0 when that does not end within the message. */
static size_t question_bytes(const unsigned char *wire, size_t bytes)
{
	size_t at = HEADER_BYTES;

	while (at < bytes && wire[at] && wire[at] < 64)
		at += 1u + wire[at];
	return at + 5 <= bytes && !wire[at] ? at + 5 - HEADER_BYTES : 0;
}

int queries_read(struct pairs *p)
{
	size_t at = 0, n = 0, all = p->config.queries_bytes;

	p->queries = calloc(all / (HEADER_BYTES + 5) + 1, sizeof(*p->queries));
	if (!p->queries)
		return -ENOMEM;
	while (at + 2 <= all) {
		size_t bytes = (size_t)p->bytes[at] << 8 | p->bytes[at + 1];
		struct query *q = &p->queries[n++];

		if (bytes > PAIRS_QUERY_MAX || at + 2 + bytes > all)
			return -EINVAL;
		q->wire = p->bytes + at + 2;
		q->bytes = (uint16_t)bytes;
		q->question_bytes = (uint16_t)question_bytes(q->wire, bytes);
		if (!q->question_bytes)
			return -EINVAL;
		at += 2 + bytes;
	}
	p->n_names = n / p->config.per_lookup;
	return at == all && n && n % p->config.per_lookup == 0 ? 0 : -EINVAL;
}
