/* Two lists in one array: free slots, singly linked; taken ones, doubly linked from the oldest to the youngest. */
#include "conns.h"

#include <errno.h>
#include <stdlib.h>

#define NOBODY UINT32_MAX

int conns_init(struct conns *cs, uint32_t max)
{
	*cs = (struct conns){.max = max, .oldest = NOBODY, .youngest = NOBODY};
	cs->slots = calloc(max, sizeof(*cs->slots));
	if (!cs->slots)
		return -ENOMEM;
	for (uint32_t i = 0; i < max; i++)
		cs->slots[i].next = i + 1 < max ? i + 1 : NOBODY;
	return 0;
}

struct conn *conns_take(struct conns *cs)
{
	uint32_t at = cs->free;
	struct conn *c = &cs->slots[at];

	cs->free = c->next;
	c->prev = cs->youngest;
	c->next = NOBODY;
	if (c->prev == NOBODY)
		cs->oldest = at;
	else
		cs->slots[c->prev].next = at;
	cs->youngest = at;
	cs->n++;
	return c;
}

void conns_return(struct conns *cs, struct conn *c)
{
	if (c->prev == NOBODY)
		cs->oldest = c->next;
	else
		cs->slots[c->prev].next = c->next;
	if (c->next == NOBODY)
		cs->youngest = c->prev;
	else
		cs->slots[c->next].prev = c->prev;
	c->next = cs->free;
	cs->free = conns_index(cs, c);
	cs->n--;
}

struct conn *conns_oldest(const struct conns *cs)
{
	return cs->n ? &cs->slots[cs->oldest] : NULL;
}
