/*
 * What glibc and musl do after a reply, an error or a silence: loadgen/core/glibc.py and musl.py in C, for names as
 * they stand, one server and UDP. There every rule names its source; the same tests hold both to the real resolvers.
 */
#include <ctype.h>
#include <errno.h>
#include <string.h>

#include "pairs_lookup.h"

#define HEADER_BYTES 12
enum { NOERROR, FORMERR, SERVFAIL, NXDOMAIN, NOTIMP, REFUSED };

static bool is_musl(const struct pairs *p)
{
	return p->config.resolver != PAIRS_GLIBC;
}

/* --- the end of a round, and of a lookup ---------------------------------------------------------------------- */

static void end_round(struct lookup *l, bool waited)
{
	uint8_t silent = waited ? l->sent & (uint8_t)~l->answered : 0;

	if (!l->sent)
		return;
	l->rounds++;
	l->lost = (uint16_t)(l->lost + __builtin_popcount(silent));
	if (silent && !l->first_lost)
		l->first_lost = silent;
	l->sent = 0;
}

static enum verdict fail(struct pairs *p, struct lookup *l, enum pairs_detail detail)
{
	lookup_finish(p, l, OUTCOME_FAIL, detail);
	return IS_OVER;
}

/* In the order of pairs_details. */
static enum pairs_detail account(const struct lookup *l, bool without)
{
	int which = l->first_lost == 3 ? 2 : l->first_lost - 1;

	if (!l->first_lost)
		return PAIRS_NONE;
	if (without)
		return PAIRS_WITHOUT + which;
	if (l->fell_back)
		return (l->fell_back == PAIRS_SERIAL ? PAIRS_FELL_BACK : PAIRS_REOPENED) + which;
	return PAIRS_ASKED_AGAIN + which;
}

/* __res_context_query: all replies are in. */
static enum verdict settle(struct pairs *p, struct lookup *l, bool without)
{
	uint8_t rcode = l->first_rcode ? l->first_rcode : l->last_rcode;

	if (l->has_records) {
		lookup_finish(p, l, OUTCOME_OK, account(l, without));
		return IS_OVER;
	}
	if (rcode == NXDOMAIN)
		return fail(p, l, PAIRS_NXDOMAIN);
	if (rcode == NOERROR)
		return fail(p, l, p->config.resolver == PAIRS_MUSL_OLD ? PAIRS_NO_ADDRESS : PAIRS_NODATA);
	return fail(p, l, rcode == SERVFAIL ? PAIRS_AGAIN : PAIRS_NO_RECOVERY);
}

/* --- sending -------------------------------------------------------------------------------------------------- */

static enum verdict send_round(struct pairs *p, struct lookup *l);

/* Nothing to use from this try. glibc asks again, from a new socket if this one was closed; musl has no such thing. */
static enum verdict next_attempt(struct pairs *p, struct lookup *l)
{
	if (++l->attempt >= p->config.attempts)
		return fail(p, l, PAIRS_AGAIN);
	return send_round(p, l);
}

static enum verdict give_up_round(struct pairs *p, struct lookup *l, bool waited)
{
	end_round(l, waited);
	lookup_close(p, l);
	return next_attempt(p, l);
}

static enum verdict no_socket(struct pairs *p, struct lookup *l, int err)
{
	if (err == -EMFILE || err == -ENFILE)
		return fail(p, l, PAIRS_NO_FILES);
	/* connect(2) of UDP says EAGAIN when the port range is used up. */
	return fail(p, l, err == -EAGAIN || err == -EADDRNOTAVAIL ? PAIRS_NO_PORTS : PAIRS_NETWORK);
}

static enum verdict send_round(struct pairs *p, struct lookup *l)
{
	uint8_t missing = is_musl(p) ? all_queries(p) & (uint8_t)~l->good : all_queries(p);
	int err = l->fd < 0 ? lookup_reopen(p, l) : 0;

	if (err)
		return no_socket(p, l, err);
	if (!is_musl(p)) {
		l->answered = l->good = 0;
		l->has_reply = l->has_records = false;
		if (l->mode < p->learned)
			l->mode = p->learned;
	}
	l->resends = (uint8_t)(2 * p->config.per_lookup);
	lookup_restart(p, l);
	if (!lookup_send(p, l, l->mode ? 1 : missing) && !is_musl(p))
		return give_up_round(p, l, true);
	return GOES_ON;
}

enum verdict rules_begin(struct pairs *p, struct lookup *l)
{
	l->mode = p->config.mode;
	return send_round(p, l);
}

/* --- a reply -------------------------------------------------------------------------------------------------- */

static bool same_question(const struct query *q, const unsigned char *reply, size_t bytes)
{
	if (bytes < HEADER_BYTES + (size_t)q->question_bytes || reply[4] || reply[5] != 1)
		return false;
	for (size_t i = HEADER_BYTES; i < HEADER_BYTES + (size_t)q->question_bytes; i++)
		if (reply[i] != q->wire[i] && tolower(reply[i]) != tolower(q->wire[i]))
			return false;
	return true;
}

/* The bit of the query that this answers; 0 for none. musl looks at the id alone, glibc at the question too. */
static uint8_t match(const struct pairs *p, const struct lookup *l, const unsigned char *reply, size_t bytes)
{
	bool bare = bytes == HEADER_BYTES && !reply[4] && !reply[5] && (reply[3] & 15);

	for (size_t i = 0; i < p->config.per_lookup; i++) {
		uint8_t bit = (uint8_t)(1u << i);

		if (l->answered & bit || l->ids[i] != (reply[0] << 8 | reply[1]))
			continue;
		if (is_musl(p) || same_question(&l->queries[i], reply, bytes))
			return bit;
		if (bare && ((reply[3] & 15) == SERVFAIL || (reply[3] & 15) >= NOTIMP))
			return bit;
	}
	return 0;
}

static void keep(struct lookup *l, const unsigned char *reply, uint8_t bit)
{
	uint8_t rcode = reply[3] & 15;

	l->answered |= bit;
	if (!l->has_reply)
		l->first_rcode = rcode;
	l->has_reply = true;
	l->last_rcode = rcode;
	l->good |= bit;
	l->has_records |= rcode == NOERROR && (reply[6] | reply[7]);
}

static bool is_lame(const unsigned char *reply)
{
	return !(reply[3] & 15) && !(reply[6] | reply[7]) && !(reply[10] | reply[11]) && !(reply[2] & 4) &&
	       !(reply[3] & 128);
}

/* send_dg, one datagram. */
static enum verdict glibc_reply(struct pairs *p, struct lookup *l, const unsigned char *reply, size_t bytes)
{
	uint8_t rcode = reply[3] & 15, bit, all = all_queries(p);

	if (bytes < HEADER_BYTES)
		return give_up_round(p, l, true);
	bit = match(p, l, reply, bytes);
	if (!bit)
		return GOES_ON;
	p->received++;
	if (rcode == SERVFAIL || rcode == NOTIMP || rcode == REFUSED || is_lame(reply)) {
		bool alone = !l->answered && (all == 1 || l->mode);

		l->answered |= bit;
		if (alone)
			return give_up_round(p, l, false);
		if (l->answered == all && !l->good) {
			end_round(l, false);
			return next_attempt(p, l); /* at once, from the same port */
		}
	} else if (reply[2] & 2) {
		end_round(l, false);
		return fail(p, l, PAIRS_TRUNCATED);
	} else {
		keep(l, reply, bit);
	}
	if (l->answered == all) {
		end_round(l, false);
		return settle(p, l, false);
	}
	if (!l->mode || l->sent == all)
		return GOES_ON;
	if (l->mode == PAIRS_REOPEN) {
		int err;

		lookup_close(p, l);
		err = lookup_reopen(p, l);
		if (err)
			return no_socket(p, l, err);
	}
	return lookup_send(p, l, all & (uint8_t)~l->sent) ? GOES_ON : give_up_round(p, l, true);
}

/* __res_msend_rc, one datagram. */
static enum verdict musl_reply(struct pairs *p, struct lookup *l, const unsigned char *reply, size_t bytes)
{
	uint8_t rcode, bit;

	if (bytes < 4)
		return GOES_ON;
	rcode = reply[3] & 15;
	bit = match(p, l, reply, bytes);
	if (!bit)
		return GOES_ON;
	p->received++;
	if (rcode == SERVFAIL && l->resends) {
		l->resends--;
		lookup_send(p, l, bit);
	}
	if ((rcode != NOERROR && rcode != NXDOMAIN) || bytes < HEADER_BYTES)
		return GOES_ON;
	if (reply[2] & 2 && p->config.resolver == PAIRS_MUSL) {
		end_round(l, false);
		return fail(p, l, PAIRS_TRUNCATED);
	}
	keep(l, reply, bit);
	if (l->good != all_queries(p))
		return GOES_ON;
	end_round(l, false);
	return settle(p, l, false);
}

enum verdict rules_reply(struct pairs *p, struct lookup *l, const unsigned char *reply, size_t bytes)
{
	return is_musl(p) ? musl_reply(p, l, reply, bytes) : glibc_reply(p, l, reply, bytes);
}

/* --- silence, and errors -------------------------------------------------------------------------------------- */

static bool is_late(struct pairs *p, struct lookup *l)
{
	if (now_ns() - l->sent_ns < p->config.limit_ns)
		return false;
	lookup_finish(p, l, OUTCOME_UNKNOWN, PAIRS_TIMEOUT);
	return true;
}

enum verdict rules_expired(struct pairs *p, struct lookup *l)
{
	end_round(l, true);
	if (is_late(p, l))
		return IS_OVER;
	if (is_musl(p) || !l->good)
		return next_attempt(p, l);
	if (l->mode == PAIRS_REOPEN)
		return settle(p, l, true);
	/* One of two answers: the fallbacks, which do not count as tries. */
	l->mode++;
	l->fell_back = l->mode;
	if (p->config.remembers && p->learned < l->mode)
		p->learned = l->mode;
	if (l->mode == PAIRS_REOPEN)
		lookup_close(p, l);
	return send_round(p, l);
}

/* An ICMP error. musl's socket hears of none. */
enum verdict rules_failed(struct pairs *p, struct lookup *l, int err)
{
	(void)err;
	return is_musl(p) ? GOES_ON : give_up_round(p, l, true);
}
