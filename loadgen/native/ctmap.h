/* Walking and filling a conntrack map from user space, with bare bpf(2) calls. No Python in here. */
#ifndef LOADGEN_NATIVE_CTMAP_H
#define LOADGEN_NATIVE_CTMAP_H

#include "common.h"

#define CT_KEY_BYTES 14u   /* struct ipv4_ct_tuple: daddr saddr dport sport nexthdr flags (Cilium bpf/lib/common.h) */
#define CT_VALUE_BYTES 56u /* struct ct_entry */
#define CT_LIFETIME_OFFSET 32u
#define CT_BATCH_MAX (1u << 20)

enum ct_delete { CT_KEEP, CT_EXPIRED, CT_ADDRESS };

struct ct_walk_options {
	int fd;
	uint64_t capacity;      /* max_entries of the map; bounds a walk that never gets anywhere */
	uint32_t batch;         /* entries per BPF_MAP_LOOKUP_BATCH; 0 walks key by key */
	uint32_t now;           /* in the clock of `lifetime`; 0 judges nothing as expired */
	enum ct_delete delete;
	uint32_t address_be;    /* CT_ADDRESS: the address, in network order */
	const volatile unsigned char *cancel;
};

struct ct_walk_result {
	uint64_t seen;
	uint64_t expired;
	uint64_t deleted;
	uint64_t fallbacks;
	uint64_t restarts;
	bool cancelled;
	bool completed;
	int64_t ns;
};

struct ct_fill_options {
	int fd;
	const unsigned char *keys;
	const unsigned char *values;
	uint64_t n;
	uint32_t batch;
	const volatile unsigned char *cancel;
};

/* All return 0 or a negative errno. */
int ct_check(int fd); /* -EMEDIUMTYPE: a map whose keys and values are not those of a CT map */
int ct_walk(const struct ct_walk_options *o, struct ct_walk_result *r);
int ct_fill(const struct ct_fill_options *o, uint64_t *filled);

#endif
