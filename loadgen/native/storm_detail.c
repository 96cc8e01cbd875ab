/* What an errno means for an operation. */
#include <errno.h>

#include "storm.h"

const char *const storm_details[DETAIL_COUNT] = {
	[DETAIL_NONE] = "",
	[DETAIL_TIMEOUT] = "timeout",
	[DETAIL_REFUSED] = "refused",
	[DETAIL_RESET] = "reset",
	[DETAIL_NO_PORTS] = "no ports",
	[DETAIL_NO_FILES] = "no files",
	[DETAIL_UNREACHABLE] = "unreachable",
	[DETAIL_SHORT_REPLY] = "short reply",
	[DETAIL_TOO_MANY_OPEN] = "too many open",
	[DETAIL_ABANDONED] = "abandoned",
	[DETAIL_ERROR] = "error",
};

enum storm_detail storm_detail_of(int err)
{
	switch (err) {
	case ETIMEDOUT:
		return DETAIL_TIMEOUT;
	case ECONNREFUSED:
		return DETAIL_REFUSED;
	case ECONNRESET:
	case ECONNABORTED:
	case EPIPE:
		return DETAIL_RESET;
	case EADDRNOTAVAIL:
		return DETAIL_NO_PORTS;
	case EMFILE:
	case ENFILE:
		return DETAIL_NO_FILES;
	case ENETUNREACH:
	case EHOSTUNREACH:
	case ENETDOWN:
	case EHOSTDOWN:
		return DETAIL_UNREACHABLE;
	default:
		return DETAIL_ERROR;
	}
}
