/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* What is in the CT tables, and what the loader tells the programs. The Python mirror is loadgen/core/conntrack.py. */
#ifndef LOADGEN_CT_H
#define LOADGEN_CT_H

#include <linux/types.h>

#define NS_PER_S 1000000000ULL
#define IPV4_FRAGMENT_OFFSET 0x1fff
#define EEXIST_ERRNO 17

#define TCP_FLAGS_OFFSET 13
#define TCP_FIN 0x01
#define TCP_SYN 0x02
#define TCP_RST 0x04
#define TCP_REPORTED (TCP_FIN | TCP_SYN | TCP_RST)

/* linux/icmp.h cannot be had without the C library's sockets, which a BPF target lacks. */
#define ICMP_ECHOREPLY 0
#define ICMP_DEST_UNREACH 3
#define ICMP_ECHO 8
#define ICMP_TIME_EXCEEDED 11
#define ICMP_PARAMETERPROB 12

struct icmp_echo {
	__u8 type;
	__u8 code;
	__be16 checksum;
	__be16 id;
	__be16 sequence;
};

/* ct_key.flags */
#define TUPLE_F_OUT 0
#define TUPLE_F_IN 1
#define TUPLE_F_RELATED 2

/* ct_entry.flags */
#define CT_RX_CLOSING (1 << 0)
#define CT_TX_CLOSING (1 << 1)
#define CT_SEEN_NON_SYN (1 << 4)

/* Atomic operations need 32 bits: `flags` shares its word with rev_nat_index, which must stay as it is. */
#if __BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__
#define CT_FLAGS_IN_WORD(flags) ((__u32)(flags))
#else
#define CT_FLAGS_IN_WORD(flags) ((__u32)(flags) << 16)
#endif

struct ct_key { /* struct ipv4_ct_tuple */
	__be32 daddr; /* originator */
	__be32 saddr; /* responder */
	__be16 dport; /* responder's port */
	__be16 sport; /* originator's port */
	__u8 proto;
	__u8 flags;
} __attribute__((packed));

struct ct_entry { /* struct ct_entry as of Cilium 1.16 */
	__u64 reserved;
	__u64 backend_id;
	__u64 packets;
	__u64 bytes;
	__u32 lifetime; /* CLOCK_MONOTONIC seconds; expired when smaller than now */
	union {
		struct {
			__u16 flags;
			__be16 rev_nat_index;
		};
		__u32 flags_word;
	};
	__u16 ifindex;
	__u8 tx_flags_seen;
	__u8 rx_flags_seen;
	__u32 src_sec_id;
	__u32 last_tx_report;
	__u32 last_rx_report;
};

struct ct_config { /* loadgen/kernel/bpf.py writes it before load */
	__u32 tcp_s;
	__u32 syn_s;
	__u32 close_s;
	__u32 any_s;
	__u32 report_s;
	__u32 src_sec_id;
};

struct ct_stats {
	__u64 created;
	__u64 create_failed;
};

_Static_assert(sizeof(struct ct_key) == 14, "ct_key is 14 bytes in every Cilium version");
_Static_assert(sizeof(struct ct_entry) == 56, "ct_entry is 56 bytes in every Cilium version");

#endif
