/* The text of `cilium-dbg bpf ct list`, and the counting that both formats share. See ctlist.h. */
#define _GNU_SOURCE /* memrchr */
#include "ctlist.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <stdlib.h>
#include <string.h>

/* --- counting ----------------------------------------------------------------------------------------------- */

int ctlist_init(struct ctlist *list, bool is_json)
{
	memset(list, 0, sizeof(*list));
	list->is_json = is_json;
	list->now = -1;
	list->states.slots = calloc(CTLIST_SLOTS, sizeof(struct tally_slot));
	list->sources.slots = calloc(CTLIST_SLOTS, sizeof(struct tally_slot));
	list->destinations.slots = calloc(CTLIST_SLOTS, sizeof(struct tally_slot));
	list->ports = calloc(65536, sizeof(*list->ports));
	if (list->states.slots && list->sources.slots && list->destinations.slots && list->ports)
		return 0;
	ctlist_free(list);
	return -1;
}

void ctlist_free(struct ctlist *list)
{
	free(list->states.slots);
	free(list->sources.slots);
	free(list->destinations.slots);
	free(list->ports);
	memset(list, 0, sizeof(*list));
}

static void tally_add(struct tally *tally, const uint64_t key[2])
{
	uint64_t hash = (key[0] * 0x9e3779b97f4a7c15ULL) ^ (key[1] * 0xc2b2ae3d27d4eb4fULL);

	hash ^= hash >> 32;
	hash *= 0x9e3779b97f4a7c15ULL;
	for (uint32_t i = (uint32_t)(hash >> 32);; i++) {
		struct tally_slot *slot = &tally->slots[i & (CTLIST_SLOTS - 1)];

		if (slot->count && slot->key[0] == key[0] && slot->key[1] == key[1]) {
			slot->count++;
			return;
		}
		if (slot->count)
			continue;
		if (tally->used == CTLIST_FULL) {
			tally->uncounted++;
			return;
		}
		tally->used++;
		*slot = (struct tally_slot){.key = {key[0], key[1]}, .count = 1};
		return;
	}
}

/* The bits that loadgen/core/ctlist.py takes apart: closing flags, protocol, RELATED, direction. */
static uint64_t state_of(const struct ctlist_entry *entry)
{
	uint64_t state = (entry->flags & 3U) | ((entry->flags >> 2) & 4U);

	switch (entry->protocol) {
	case IPPROTO_TCP: break;
	case IPPROTO_UDP: state |= 1U << 3; break;
	case IPPROTO_ICMP:
	case IPPROTO_ICMPV6: state |= 2U << 3; break;
	default: state |= 3U << 3;
	}
	if (entry->tuple_flags & TUPLE_RELATED)
		state |= 1U << 5;
	if (entry->tuple_flags & TUPLE_SERVICE)
		state |= 2U << 6;
	else if (entry->tuple_flags & TUPLE_IN)
		state |= 1U << 6;
	return state;
}

void ctlist_count(struct ctlist *list, const struct ctlist_entry *entry)
{
	uint64_t key[2] = {entry->expires, state_of(entry)};

	list->entries++;
	tally_add(&list->states, key);
	tally_add(&list->sources, entry->source);
	tally_add(&list->destinations, entry->destination);
	list->ports[entry->port]++;
	if (entry->last_report > list->last_report)
		list->last_report = entry->last_report;
	if (entry->now > list->now)
		list->now = entry->now;
}

void ctlist_complain(struct ctlist *list, uint64_t at, enum ctlist_complaint_kind kind)
{
	list->bad++;
	if (list->complaint_count < CTLIST_COMPLAINTS)
		list->complaints[list->complaint_count++] = (struct ctlist_complaint){at, kind};
}

/* --- text --------------------------------------------------------------------------------------------------- */

bool ctlist_address(const char *text, size_t size, uint64_t address[2])
{
	char copy[INET6_ADDRSTRLEN + 1];
	unsigned char *bytes = (unsigned char *)address;
	uint32_t part = 0, parts = 0, digits = 0;
	bool dotted = true;

	address[0] = address[1] = 0;
	for (size_t i = 0; i < size && dotted; i++) {
		if (text[i] >= '0' && text[i] <= '9' && digits < 3) {
			part = part * 10 + (uint32_t)(text[i] - '0');
			digits++;
		} else if (text[i] == '.' && digits && parts < 3 && part < 256) {
			bytes[12 + parts++] = (unsigned char)part;
			part = digits = 0;
		} else {
			dotted = false;
		}
	}
	if (dotted && parts == 3 && digits && part < 256) {
		bytes[15] = (unsigned char)part;
		bytes[10] = bytes[11] = 0xff; /* as ::ffff:a.b.c.d */
		return true;
	}
	if (size >= sizeof(copy))
		return false;
	memcpy(copy, text, size);
	copy[size] = 0;
	return inet_pton(AF_INET6, copy, address) == 1;
}

static bool decimal(const char *text, const char *end, uint64_t *value)
{
	*value = 0;
	for (const char *p = text; p < end; p++) {
		if (*p < '0' || *p > '9' || p - text > 10)
			return false;
		*value = *value * 10 + (uint64_t)(*p - '0');
	}
	return text < end;
}

/* `10.0.0.1:80`, `[fd00::1]:80`, and `fd00::1:80` as some versions print it. */
static bool endpoint(const char *text, const char *end, uint64_t address[2], uint16_t *port)
{
	const char *colon = memrchr(text, ':', (size_t)(end - text));
	uint64_t number;

	if (!colon || !decimal(colon + 1, end, &number) || number > 65535)
		return false;
	*port = (uint16_t)number;
	if (*text == '[' && colon > text + 1 && colon[-1] == ']')
		return ctlist_address(text + 1, (size_t)(colon - text) - 2, address);
	return ctlist_address(text, (size_t)(colon - text), address);
}

static const char *token(const char **at, const char *end)
{
	const char *start = *at, *space;

	while (start < end && *start == ' ')
		start++;
	space = memchr(start, ' ', (size_t)(end - start));
	*at = space ? space : end;
	return start;
}

static bool is_word(const char *start, const char *end, const char *word)
{
	size_t size = strlen(word);

	return (size_t)(end - start) == size && !memcmp(start, word, size);
}

static bool protocol(const char *start, const char *end, uint8_t *number)
{
	static const struct {
		const char *name;
		uint8_t number;
	} known[] = {{"TCP", 6}, {"UDP", 17}, {"ICMP", 1}, {"ICMPv6", 58}, {"SCTP", 132}};
	uint64_t value;

	for (size_t i = 0; i < sizeof(known) / sizeof(known[0]); i++)
		if (is_word(start, end, known[i].name)) {
			*number = known[i].number;
			return true;
		}
	if (!decimal(start, end, &value) || value > 255)
		return false;
	*number = (uint8_t)value;
	return true;
}

/* True when the line begins as an entry does: `TCP OUT a:p -> b:p`. `at` is left behind what was read. */
static bool tuple(const char **at, const char *end, struct ctlist_entry *entry)
{
	uint16_t source_port;
	const char *start = token(at, end);

	if (!protocol(start, *at, &entry->protocol))
		return false;
	start = token(at, end);
	if (is_word(start, *at, "IN"))
		entry->tuple_flags |= TUPLE_IN;
	else if (is_word(start, *at, "SVC"))
		entry->tuple_flags |= TUPLE_SERVICE;
	else if (!is_word(start, *at, "OUT"))
		return false;
	start = token(at, end);
	if (!endpoint(start, *at, entry->source, &source_port))
		return false;
	start = token(at, end);
	if (!is_word(start, *at, "->"))
		return false;
	start = token(at, end);
	return endpoint(start, *at, entry->destination, &entry->port);
}

/* `expires=N`, `Flags=0x…`, `LastTxReport=N`, `(remaining: N sec(s))`, `related`; others are of no interest. */
static bool field(const char *start, const char **at, const char *end, struct ctlist_entry *entry)
{
	const char *equals = memchr(start, '=', (size_t)(*at - start));
	uint64_t value;

	if (*start == '(' && is_word(start, *at, "(remaining:")) {
		const char *left = token(at, end);
		bool is_negative = left < *at && *left == '-';

		if (!decimal(left + is_negative, *at, &value))
			return false;
		entry->now = is_negative ? entry->expires + (int64_t)value : entry->expires - (int64_t)value;
		return true;
	}
	if (!equals) {
		if (is_word(start, *at, "related"))
			entry->tuple_flags |= TUPLE_RELATED;
		else if (is_word(start, *at, "service"))
			entry->tuple_flags |= TUPLE_SERVICE;
		return true;
	}
	if (is_word(start, equals, "expires")) {
		if (!decimal(equals + 1, *at, &value) || value > UINT32_MAX)
			return false;
		entry->expires = (uint32_t)value;
		entry->seen |= CTLIST_EXPIRES;
	} else if (is_word(start, equals, "LastTxReport") || is_word(start, equals, "LastRxReport")) {
		if (!decimal(equals + 1, *at, &value) || value > UINT32_MAX)
			return false;
		if (value > entry->last_report)
			entry->last_report = (uint32_t)value;
	} else if (is_word(start, equals, "Flags")) {
		unsigned int flags = 0;

		if (*at - equals != 7 || memcmp(equals + 1, "0x", 2))
			return false;
		for (const char *p = equals + 3; p < *at; p++) {
			int digit = *p <= '9' ? *p - '0' : (*p | 32) - 'a' + 10;

			if (digit < 0 || digit > 15)
				return false;
			flags = flags << 4 | (unsigned int)digit;
		}
		entry->flags = (uint16_t)flags;
		entry->seen |= CTLIST_FLAGS;
	}
	return true;
}

static void text_line(struct ctlist *list, const char *line, const char *end)
{
	struct ctlist_entry entry = {.now = -1};
	const char *at = line;
	bool whole = true;

	list->at++;
	while (end > line && (end[-1] == '\r' || end[-1] == ' '))
		end--;
	if (end == line || *line == '#' || *line == '`')
		return; /* cilium-bugtool puts the command's name before the list and fences around it */
	if (!tuple(&at, end, &entry)) {
		ctlist_complain(list, list->at, CTLIST_NOT_AN_ENTRY);
		return;
	}
	while (whole && at < end) {
		const char *start = token(&at, end);

		whole = start == end || field(start, &at, end, &entry);
	}
	if (!whole || (entry.seen & (CTLIST_EXPIRES | CTLIST_FLAGS)) != (CTLIST_EXPIRES | CTLIST_FLAGS))
		ctlist_complain(list, list->at, CTLIST_TORN);
	else
		ctlist_count(list, &entry);
}

/* Keeps the end of a chunk that is no whole line; more than CTLIST_LINE_MAX of it is skipped to the next line. */
static void keep(struct ctlist *list, const char *data, size_t size)
{
	if (list->skipping)
		return;
	if (list->line_used + size > sizeof(list->line)) {
		ctlist_complain(list, list->at + 1, CTLIST_TOO_LONG);
		list->skipping = true;
		list->line_used = 0;
		return;
	}
	memcpy(list->line + list->line_used, data, size);
	list->line_used += size;
}

void ctlist_feed(struct ctlist *list, const char *data, size_t size)
{
	const char *end = data + size, *newline;

	if (list->is_json) {
		ctlist_json(list, data, size);
		return;
	}
	while (data < end && (newline = memchr(data, '\n', (size_t)(end - data)))) {
		if (list->skipping) {
			list->skipping = false;
			list->at++;
		} else if (list->line_used || newline - data > CTLIST_LINE_MAX) {
			keep(list, data, (size_t)(newline - data));
			if (!list->skipping)
				text_line(list, list->line, list->line + list->line_used);
			else
				list->at++;
			list->skipping = false;
			list->line_used = 0;
		} else {
			text_line(list, data, newline);
		}
		data = newline + 1;
	}
	if (data < end)
		keep(list, data, (size_t)(end - data));
}

void ctlist_finish(struct ctlist *list)
{
	if (list->is_json)
		ctlist_json_finish(list);
	else if (list->line_used)
		text_line(list, list->line, list->line + list->line_used);
	list->line_used = 0;
	list->skipping = false;
}
