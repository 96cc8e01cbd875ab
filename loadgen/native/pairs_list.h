/* Lists through the things that they list. A head is a node that points to itself when its list is empty. */
#ifndef LOADGEN_NATIVE_PAIRS_LIST_H
#define LOADGEN_NATIVE_PAIRS_LIST_H

#include <stdbool.h>

struct node {
	struct node *prev, *next;
};

static inline void list_init(struct node *head)
{
	head->prev = head->next = head;
}

static inline bool list_empty(const struct node *head)
{
	return head->next == head;
}

static inline void list_add(struct node *head, struct node *n)
{
	n->prev = head->prev;
	n->next = head;
	n->prev->next = head->prev = n;
}

/* Also of a node that is in no list. */
static inline void list_remove(struct node *n)
{
	n->prev->next = n->next;
	n->next->prev = n->prev;
	list_init(n);
}

#endif
