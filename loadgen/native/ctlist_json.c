/* The JSON of `cilium-dbg bpf ct list -o json`: an array of {"Key": {…}, "Value": {…}}, however it is indented.
 *
 * Keys are stored as the reply has them: DestAddr and SourcePort belong to the originator (but in SERVICE entries).
 * Ports are in network order and printed as the machine reads them: 80 stands there as 20480.
 */
#include "ctlist.h"

#include <arpa/inet.h>
#include <string.h>

enum json_key { KEY_NONE, DEST_ADDR, SOURCE_ADDR, DEST_PORT, SOURCE_PORT, NEXT_HEADER, FLAGS, LIFETIME, LAST_RX, LAST_TX };

static int key_of(const char *word, size_t size)
{
	static const char *const names[] = {[DEST_ADDR] = "DestAddr", [SOURCE_ADDR] = "SourceAddr",
		[DEST_PORT] = "DestPort", [SOURCE_PORT] = "SourcePort", [NEXT_HEADER] = "NextHeader",
		[FLAGS] = "Flags", [LIFETIME] = "Lifetime", [LAST_RX] = "LastRxReport", [LAST_TX] = "LastTxReport"};

	for (int i = DEST_ADDR; i <= LAST_TX; i++)
		if (strlen(names[i]) == size && !memcmp(names[i], word, size))
			return i;
	return KEY_NONE;
}

/* IPv4 addresses are arrays of 4, IPv6 of 16; the bytes go in as they come and are moved at the end. */
static void address_byte(struct ctlist *list, uint64_t address[2], uint32_t bit)
{
	unsigned char *bytes = (unsigned char *)address;

	if (list->number > 255 || list->element > 15)
		return;
	bytes[list->element++] = (unsigned char)list->number;
	if (list->element == 4 || list->element == 16)
		list->entry.seen |= bit << (list->element == 4 ? 8 : 0);
}

static void take_number(struct ctlist *list)
{
	struct ctlist_entry *entry = &list->entry;
	uint32_t value = list->number > UINT32_MAX || list->is_negative ? 0 : (uint32_t)list->number;

	switch (list->key) {
	case DEST_ADDR: address_byte(list, entry->source, CTLIST_SOURCE); break;
	case SOURCE_ADDR: address_byte(list, entry->destination, CTLIST_DESTINATION); break;
	case DEST_PORT: entry->port = ntohs((uint16_t)value); break;
	case NEXT_HEADER: entry->protocol = (uint8_t)value; break;
	case LIFETIME:
		entry->expires = value;
		entry->seen |= CTLIST_EXPIRES;
		break;
	case LAST_RX:
	case LAST_TX:
		if (value > entry->last_report)
			entry->last_report = value;
		break;
	case FLAGS: /* of the tuple in Key, which comes first; of the entry in Value */
		if (entry->seen & CTLIST_EXPIRES) {
			entry->flags = (uint16_t)value;
			entry->seen |= CTLIST_FLAGS;
		} else {
			entry->tuple_flags = (uint8_t)value;
		}
		break;
	default: break;
	}
}

/* An IPv4 address has been read into the first four bytes; give it the form that text has. */
static void settle(struct ctlist_entry *entry, uint64_t address[2], uint32_t bit)
{
	unsigned char *bytes = (unsigned char *)address;
	unsigned char v4[4];

	if ((entry->seen & bit) || !(entry->seen & bit << 8))
		return;
	memcpy(v4, bytes, sizeof(v4));
	memset(bytes, 0, 16);
	bytes[10] = bytes[11] = 0xff;
	memcpy(bytes + 12, v4, sizeof(v4));
	entry->seen |= bit;
}

static void entry_ends(struct ctlist *list)
{
	struct ctlist_entry *entry = &list->entry;

	settle(entry, entry->source, CTLIST_SOURCE);
	settle(entry, entry->destination, CTLIST_DESTINATION);
	if ((entry->seen & CTLIST_WHOLE) != CTLIST_WHOLE) {
		ctlist_complain(list, list->offset, CTLIST_TORN);
		return;
	}
	if (entry->tuple_flags & TUPLE_SERVICE) {
		uint64_t client[2] = {entry->destination[0], entry->destination[1]};

		memcpy(entry->destination, entry->source, sizeof(client));
		memcpy(entry->source, client, sizeof(client));
	}
	ctlist_count(list, entry);
}

static void punctuation(struct ctlist *list, char c)
{
	switch (c) {
	case '{':
	case '[':
		list->element = 0;
		if (list->depth < 64)
			list->depth++;
		if (c == '{' && list->depth == 2) {
			memset(&list->entry, 0, sizeof(list->entry));
			list->entry.now = -1;
		}
		break;
	case '}':
	case ']':
		if (c == '}' && list->depth == 2)
			entry_ends(list);
		if (list->depth)
			list->depth--;
		list->key = KEY_NONE;
		break;
	case ':':
		list->key = key_of(list->word, list->word_used);
		list->element = 0;
		break;
	default: break;
	}
}

/* Inside a string; the chunk is scanned up to its end. Returns where to go on. */
static const char *string(struct ctlist *list, const char *p, const char *end)
{
	for (; p < end; p++) {
		if (list->escaped)
			list->escaped = false;
		else if (*p == '\\')
			list->escaped = true;
		else if (*p == '"') {
			list->in_string = false;
			return p + 1;
		}
		if (list->word_used < sizeof(list->word))
			list->word[list->word_used++] = *p;
	}
	return p;
}

static const char *number(struct ctlist *list, const char *p, const char *end)
{
	for (; p < end; p++) {
		if (*p < '0' || *p > '9') {
			list->in_number = false;
			take_number(list);
			return p;
		}
		if (list->number <= UINT32_MAX)
			list->number = list->number * 10 + (uint64_t)(*p - '0');
	}
	return p;
}

void ctlist_json(struct ctlist *list, const char *data, size_t size)
{
	const char *p = data, *end = data + size;
	uint64_t before = list->offset;
	bool is_negative = false;

	while (p < end) {
		if (list->in_string) {
			p = string(list, p, end);
			continue;
		}
		if (list->in_number) {
			p = number(list, p, end);
			continue;
		}
		if (*p == '"') {
			list->in_string = true;
			list->word_used = 0;
		} else if (*p >= '0' && *p <= '9') {
			list->in_number = true;
			list->is_negative = is_negative;
			list->number = 0;
			continue;
		} else if (*p > ' ') {
			list->offset = before + (uint64_t)(p - data);
			punctuation(list, *p);
		}
		is_negative = *p == '-';
		p++;
	}
	list->offset = before + size;
}

void ctlist_json_finish(struct ctlist *list)
{
	if (list->depth)
		ctlist_complain(list, list->offset, CTLIST_TORN);
	list->depth = 0;
	list->in_string = list->in_number = false;
}
