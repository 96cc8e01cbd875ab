// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
/*
 * What a packet costs with and without a state of its flow. Each program is one kind of state; all draw their flows
 * themselves, one after the other, so that BPF_PROG_TEST_RUN, which gives every run the same packet, meets other
 * flows all the same. Whoever loads this keeps one program and its map and leaves the others out.
 */
#include <linux/bpf.h>
#include <linux/in.h>

#include <bpf/bpf_endian.h>
#include <bpf/bpf_helpers.h>

#include "ct.h"

#define LOOP_MAX 4096

struct cost_config { /* loadgen/kernel/costprogs.py writes it before load */
	__u32 flows;
	__u32 loop;
};

const volatile struct cost_config config SEC(".rodata.config") = { .flows = 1, .loop = 0 };

struct progress {
	__u64 packets;
	__u64 found;
	__u64 inserted;
	__u64 failed;
	__u64 work;
};

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct progress);
} progress SEC(".maps");

#define TABLE(name, kind, bits)                       \
	struct {                                      \
		__uint(type, kind);                   \
		__uint(map_flags, bits);              \
		__uint(max_entries, 1);               \
		__type(key, struct ct_key);           \
		__type(value, struct ct_entry);       \
	} name SEC(".maps")

TABLE(t_hash, BPF_MAP_TYPE_HASH, 0);
TABLE(t_lru, BPF_MAP_TYPE_LRU_HASH, 0);
TABLE(t_lru_own, BPF_MAP_TYPE_LRU_HASH, BPF_F_NO_COMMON_LRU);
TABLE(t_lru_percpu, BPF_MAP_TYPE_LRU_PERCPU_HASH, 0);

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct ct_entry);
} t_array SEC(".maps");

/* The next flow: multiples of the golden ratio fill a range evenly (Knuth, The Art of Computer Programming, 6.4). */
static __always_inline __u32 next(struct progress *p)
{
	__u32 spread = (__u32)p->packets * 2654435769u;

	p->packets++;
	return ((__u64)spread * config.flows) >> 32;
}

/* So many rounds of what a program that looks into packets would do. */
static __always_inline void work(struct progress *p)
{
	__u64 sum = p->packets;

	for (__u32 i = 0; i < LOOP_MAX && i < config.loop; i++)
		sum = sum * 31 + i;
	p->work = sum;
}

static __always_inline struct progress *begin(void)
{
	__u32 zero = 0;

	return bpf_map_lookup_elem(&progress, &zero);
}

static __always_inline void touch(struct ct_entry *entry)
{
	entry->packets++;
	entry->lifetime = (__u32)(bpf_ktime_get_ns() / NS_PER_S) + 60;
}

static __always_inline int tracked(void *table)
{
	struct progress *p = begin();
	struct ct_entry *entry, fresh = { .packets = 1 };
	struct ct_key key = { .daddr = bpf_htonl(0x0a800001), .dport = bpf_htons(50010), .proto = IPPROTO_UDP };
	__u32 flow;

	if (!p)
		return XDP_ABORTED;
	flow = next(p);
	key.saddr = bpf_htonl(0x0a000000 | flow >> 16);
	key.sport = (__u16)flow;
	work(p);
	entry = bpf_map_lookup_elem(table, &key);
	if (entry) {
		p->found++;
		touch(entry);
		return XDP_PASS;
	}
	if (bpf_map_update_elem(table, &key, &fresh, BPF_ANY))
		p->failed++;
	else
		p->inserted++;
	return XDP_PASS;
}

SEC("xdp") int empty(struct xdp_md *ctx)
{
	return XDP_PASS;
}

/* Everything but the state: what the others are compared with. */
SEC("xdp") int pass(struct xdp_md *ctx)
{
	struct progress *p = begin();

	if (!p)
		return XDP_ABORTED;
	p->found += next(p) < config.flows;
	work(p);
	return XDP_PASS;
}

SEC("xdp") int hash(struct xdp_md *ctx)
{
	return tracked(&t_hash);
}

SEC("xdp") int lru(struct xdp_md *ctx)
{
	return tracked(&t_lru);
}

SEC("xdp") int lru_own(struct xdp_md *ctx)
{
	return tracked(&t_lru_own);
}

SEC("xdp") int lru_percpu(struct xdp_md *ctx)
{
	return tracked(&t_lru_percpu);
}

SEC("xdp") int array(struct xdp_md *ctx)
{
	struct progress *p = begin();
	struct ct_entry *entry;
	__u32 flow;

	if (!p)
		return XDP_ABORTED;
	flow = next(p);
	work(p);
	entry = bpf_map_lookup_elem(&t_array, &flow);
	if (!entry) {
		p->failed++;
		return XDP_PASS;
	}
	p->found++;
	touch(entry);
	return XDP_PASS;
}

char _license[] SEC("license") = "Dual BSD/GPL";
