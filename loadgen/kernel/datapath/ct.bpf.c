// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
/*
 * Connection tracking as Cilium's datapath does it, reduced to what fills and ages the CT tables.
 *
 * Two tc programs sit on the host side of a pod's veth: from_pod (clsact ingress) sees what the pod sends, to_pod
 * (clsact egress) what it is sent. Both decide nothing (TC_ACT_UNSPEC): every packet goes on to whatever else is
 * attached there, and passes. What they leave behind are entries with the keys, values and lifetimes that Cilium 1.16
 * to 1.18 would leave (bpf/lib/common.h, bpf/lib/conntrack.h).
 * Left out: services and NAT, policy, IPv6, packet and byte counters (accounting is off by default in Cilium too).
 */
#include <stdbool.h>
#include <stddef.h>

#include <linux/bpf.h>
#include <linux/if_ether.h>
#include <linux/in.h>
#include <linux/ip.h>
#include <linux/pkt_cls.h>
#include <linux/tcp.h>

#include <bpf/bpf_endian.h>
#include <bpf/bpf_helpers.h>

#include "ct.h"

struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, 524288);
	__type(key, struct ct_key);
	__type(value, struct ct_entry);
} cilium_ct4_global SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, 262144);
	__type(key, struct ct_key);
	__type(value, struct ct_entry);
} cilium_ct_any4_global SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct ct_stats);
} loadgen_ct_stats SEC(".maps");

/* A section of its own, so that the loader can replace exactly this struct before the program is verified. */
const volatile struct ct_config config SEC(".rodata.config") = {
	.tcp_s = 8000,
	.syn_s = 60,
	.close_s = 10,
	.any_s = 60,
	.report_s = 5,
	.src_sec_id = 0,
};

enum direction { EGRESS, INGRESS };

struct packet {
	struct ct_key forward; /* the entry, if this packet goes from originator to responder */
	struct ct_key reply;   /* the entry, if it goes back */
	enum direction dir;
	__u32 now;
	bool is_tcp;
	bool creates;   /* an ICMP error belongs to an entry or to nothing */
	__u8 tcp_flags; /* byte 13 of the TCP header */
};

static __always_inline void count_create(long err)
{
	__u32 zero = 0;
	struct ct_stats *s = bpf_map_lookup_elem(&loadgen_ct_stats, &zero);

	if (!s)
		return;
	if (err)
		s->create_failed++;
	else
		s->created++;
}

/* Reads addresses, ports and flags; false for what has no entry: not IPv4, unknown protocols, later fragments. */
static __always_inline bool parse(struct __sk_buff *skb, struct packet *p)
{
	__be16 ports[2] = {}; /* source, destination */
	__u8 related = 0;
	struct icmp_echo icmp;
	struct tcphdr tcp;
	struct iphdr ip;
	__u32 l4;

	if (skb->protocol != bpf_htons(ETH_P_IP) || bpf_skb_load_bytes(skb, ETH_HLEN, &ip, sizeof(ip)))
		return false;
	if (ip.frag_off & bpf_htons(IPV4_FRAGMENT_OFFSET))
		return false;
	l4 = ETH_HLEN + ip.ihl * 4;
	p->creates = true;
	switch (ip.protocol) {
	case IPPROTO_TCP:
		if (bpf_skb_load_bytes(skb, l4, &tcp, sizeof(tcp)))
			return false;
		ports[0] = tcp.source;
		ports[1] = tcp.dest;
		p->is_tcp = true;
		p->tcp_flags = ((__u8 *)&tcp)[TCP_FLAGS_OFFSET];
		break;
	case IPPROTO_UDP:
	case IPPROTO_SCTP:
		if (bpf_skb_load_bytes(skb, l4, ports, sizeof(ports)))
			return false;
		break;
	case IPPROTO_ICMP:
		if (bpf_skb_load_bytes(skb, l4, &icmp, sizeof(icmp)))
			return false;
		if (icmp.type == ICMP_ECHO) {
			ports[0] = icmp.id;
		} else if (icmp.type == ICMP_ECHOREPLY) {
			ports[1] = icmp.id;
		} else if (icmp.type == ICMP_DEST_UNREACH || icmp.type == ICMP_TIME_EXCEEDED ||
			   icmp.type == ICMP_PARAMETERPROB) {
			related = TUPLE_F_RELATED;
			p->creates = false;
		}
		break;
	default:
		return false;
	}
	/* An entry names its originator in daddr and sport: the tuple of the reply, whoever sends it. */
	p->forward = (struct ct_key){
		.daddr = ip.saddr, .saddr = ip.daddr, .dport = ports[1], .sport = ports[0], .proto = ip.protocol,
		.flags = (p->dir == EGRESS ? TUPLE_F_OUT : TUPLE_F_IN) | related,
	};
	p->reply = (struct ct_key){
		.daddr = ip.daddr, .saddr = ip.saddr, .dport = ports[0], .sport = ports[1], .proto = ip.protocol,
		.flags = (p->dir == EGRESS ? TUPLE_F_IN : TUPLE_F_OUT) | related,
	};
	return true;
}

/* Both directions of a flow may be on different CPUs: a lost flag would keep a closed entry for hours. */
static __always_inline void set_flags(struct ct_entry *e, __u16 flags)
{
	__sync_fetch_and_or(&e->flags_word, CT_FLAGS_IN_WORD(flags));
}

/* Read anew each time, for the same reason. */
static __always_inline __u16 get_flags(const struct ct_entry *e)
{
	return *(const volatile __u16 *)&e->flags;
}

static __always_inline bool is_closing(const struct ct_entry *e)
{
	return get_flags(e) & (CT_RX_CLOSING | CT_TX_CLOSING);
}

static __always_inline bool is_alive(const struct ct_entry *e)
{
	return (get_flags(e) & (CT_RX_CLOSING | CT_TX_CLOSING)) != (CT_RX_CLOSING | CT_TX_CLOSING);
}

/* Cilium notes SYN, FIN and RST only, and renews the time stamp on a new flag or after the report interval. */
static __always_inline void report(struct ct_entry *e, const struct packet *p, __u8 tcp_flags)
{
	__u8 *seen = p->dir == EGRESS ? &e->tx_flags_seen : &e->rx_flags_seen;
	__u32 *last = p->dir == EGRESS ? &e->last_tx_report : &e->last_rx_report;
	__u8 now_seen = *seen | (tcp_flags & TCP_REPORTED);

	if (*last + config.report_s < p->now || now_seen != *seen) {
		*seen = now_seen;
		*last = p->now;
	}
}

/* A packet of a living entry: SYN-only entries get a minute, and the first packet without SYN makes it hours. */
static __always_inline void refresh(struct ct_entry *e, const struct packet *p, __u8 tcp_flags)
{
	__u32 timeout = config.any_s;

	if (p->is_tcp) {
		if (!(tcp_flags & TCP_SYN) && !(get_flags(e) & CT_SEEN_NON_SYN))
			set_flags(e, CT_SEEN_NON_SYN);
		timeout = get_flags(e) & CT_SEEN_NON_SYN ? config.tcp_s : config.syn_s;
	}
	e->lifetime = p->now + timeout;
	/* The last FIN may have passed on another CPU since we looked, and its ten seconds must stand. */
	if (!is_alive(e))
		e->lifetime = p->now + config.close_s;
	report(e, p, tcp_flags);
}

/*
 * FIN closes one direction, RST both. Cilium's source means to spare the other side once both SYNs were seen, but
 * compares an 8-bit field with a 32-bit big-endian constant; on little-endian machines RST closes both, always.
 */
static __always_inline void close_entry(struct ct_entry *e, const struct packet *p)
{
	if (p->tcp_flags & TCP_RST)
		set_flags(e, CT_RX_CLOSING | CT_TX_CLOSING);
	else
		set_flags(e, p->dir == EGRESS ? CT_TX_CLOSING : CT_RX_CLOSING);
	if (is_alive(e))
		return; /* half closed: it keeps its hours */
	e->lifetime = p->now + config.close_s;
	report(e, p, p->tcp_flags);
}

/* A new connection on the four numbers of one that ended: the entry starts afresh, in place. */
static __always_inline void reopen(struct ct_entry *e, const struct packet *p)
{
	e->flags &= ~(CT_RX_CLOSING | CT_TX_CLOSING | CT_SEEN_NON_SYN);
	e->rx_flags_seen = 0;
	e->tx_flags_seen = 0;
	refresh(e, p, p->tcp_flags);
}

static __always_inline void update(struct ct_entry *e, const struct packet *p)
{
	if (is_alive(e))
		refresh(e, p, p->tcp_flags);
	if (p->tcp_flags & (TCP_FIN | TCP_RST))
		close_entry(e, p);
	else if (p->tcp_flags & TCP_SYN && is_closing(e))
		reopen(e, p);
}

static __always_inline void create(void *map, const struct packet *p)
{
	struct ct_key related = p->forward;
	struct ct_entry e = {};
	long err;

	e.src_sec_id = config.src_sec_id;
	/* Whatever the first packet of a TCP flow is, Cilium books it as a SYN. */
	refresh(&e, p, p->is_tcp ? p->tcp_flags | TCP_SYN : 0);
	err = bpf_map_update_elem(map, &p->forward, &e, BPF_NOEXIST);
	if (err == -EEXIST_ERRNO)
		return; /* another CPU had the flow's second packet at the same time */
	count_create(err);
	if (err)
		return;

	/* One entry for ICMP errors per address pair, always in the non-TCP table. */
	related.dport = 0;
	related.sport = 0;
	related.proto = IPPROTO_ICMP;
	related.flags |= TUPLE_F_RELATED;
	e.flags |= CT_SEEN_NON_SYN;
	bpf_map_update_elem(&cilium_ct_any4_global, &related, &e, BPF_ANY);
}

static __always_inline int track(struct __sk_buff *skb, enum direction dir)
{
	struct packet p = {.dir = dir};
	struct ct_entry *e;
	void *map;

	if (!parse(skb, &p))
		return TC_ACT_UNSPEC;
	p.now = bpf_ktime_get_ns() / NS_PER_S;
	map = p.is_tcp ? (void *)&cilium_ct4_global : (void *)&cilium_ct_any4_global;
	e = bpf_map_lookup_elem(map, &p.reply);
	if (!e)
		e = bpf_map_lookup_elem(map, &p.forward);
	if (e)
		update(e, &p);
	else if (p.creates)
		create(map, &p);
	return TC_ACT_UNSPEC;
}

SEC("tc")
int from_pod(struct __sk_buff *skb)
{
	return track(skb, EGRESS);
}

SEC("tc")
int to_pod(struct __sk_buff *skb)
{
	return track(skb, INGRESS);
}

char _license[] SEC("license") = "Dual BSD/GPL";
