/* Reads what `cilium-dbg bpf ct list` printed, text or JSON of any version, and counts it as it streams by. */
#ifndef LOADGEN_NATIVE_CTLIST_H
#define LOADGEN_NATIVE_CTLIST_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define CTLIST_SLOTS (1U << 20)
#define CTLIST_FULL (CTLIST_SLOTS / 4 * 3)
#define CTLIST_LINE_MAX 4096
#define CTLIST_COMPLAINTS 16

/* Counts by a key of 16 bytes: open addressing, never grown, so that no input can take more memory than this. */
struct tally_slot {
	uint64_t key[2];
	uint64_t count;
};

struct tally {
	struct tally_slot *slots;
	uint32_t used;
	uint64_t uncounted; /* of keys that came when it was full */
};

enum ctlist_complaint_kind { CTLIST_NOT_AN_ENTRY, CTLIST_TORN, CTLIST_TOO_LONG, CTLIST_COMPLAINT_KINDS };

struct ctlist_complaint {
	uint64_t at; /* text: line, from 1; JSON: offset of the entry's end */
	enum ctlist_complaint_kind kind;
};

/* One entry, the connection's originator as source. `state` is CtState of loadgen/core/ctlist.py. */
struct ctlist_entry {
	uint64_t source[2];
	uint64_t destination[2];
	uint32_t expires;
	uint32_t last_report;
	uint32_t seen; /* fields found, bit by bit */
	uint16_t flags;
	uint16_t port;
	uint8_t protocol;
	uint8_t tuple_flags;
	int64_t now; /* expires - remaining; -1 when the list has no remaining times */
};

struct ctlist {
	bool is_json;
	struct tally states; /* key: expires, state */
	struct tally sources, destinations;
	uint64_t *ports; /* 65536 */
	uint64_t entries, bad, at, offset;
	uint32_t last_report;
	int64_t now;
	struct ctlist_complaint complaints[CTLIST_COMPLAINTS];
	unsigned int complaint_count;
	/* the end of the last chunk */
	char line[CTLIST_LINE_MAX];
	size_t line_used;
	bool skipping;
	/* JSON */
	struct ctlist_entry entry;
	char word[64];
	size_t word_used;
	int depth, key, element;
	bool in_string, in_number, escaped, is_negative;
	uint64_t number;
};

int ctlist_init(struct ctlist *list, bool is_json);
void ctlist_free(struct ctlist *list);
void ctlist_feed(struct ctlist *list, const char *data, size_t size);
void ctlist_finish(struct ctlist *list);

/* Shared by the two readers. */
void ctlist_count(struct ctlist *list, const struct ctlist_entry *entry);
void ctlist_complain(struct ctlist *list, uint64_t at, enum ctlist_complaint_kind kind);
void ctlist_json(struct ctlist *list, const char *data, size_t size);
void ctlist_json_finish(struct ctlist *list);
bool ctlist_address(const char *text, size_t size, uint64_t address[2]);

enum { CTLIST_SOURCE = 1, CTLIST_DESTINATION = 2, CTLIST_EXPIRES = 4, CTLIST_FLAGS = 8 };
#define CTLIST_WHOLE (CTLIST_SOURCE | CTLIST_DESTINATION | CTLIST_EXPIRES | CTLIST_FLAGS)

enum { TUPLE_IN = 1, TUPLE_RELATED = 2, TUPLE_SERVICE = 4 };

#endif
