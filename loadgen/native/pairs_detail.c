/* The words for how a lookup ended. */
#include "pairs.h"

#define OF_EACH(at, how) [at] = "A lost, " how, [at + 1] = "AAAA lost, " how, [at + 2] = "A and AAAA lost, " how

const char *const pairs_details[PAIRS_DETAILS] = {
	[PAIRS_NONE] = "",
	[PAIRS_NXDOMAIN] = "NXDOMAIN",
	[PAIRS_NODATA] = "EAI_NODATA",
	[PAIRS_NO_ADDRESS] = "no address",
	[PAIRS_AGAIN] = "EAI_AGAIN",
	[PAIRS_NO_RECOVERY] = "NO_RECOVERY",
	[PAIRS_TRUNCATED] = "truncated, and TCP is not spoken here",
	[PAIRS_NO_PORTS] = "no ports",
	[PAIRS_NO_FILES] = "no file descriptors",
	[PAIRS_NETWORK] = "network error",
	[PAIRS_TOO_MANY_OPEN] = "too many open",
	[PAIRS_ABANDONED] = "abandoned",
	[PAIRS_TIMEOUT] = "timeout",
	OF_EACH(PAIRS_ASKED_AGAIN, "asked again"),
	OF_EACH(PAIRS_FELL_BACK, "single-request fallback"),
	OF_EACH(PAIRS_REOPENED, "single-request-reopen fallback"),
	OF_EACH(PAIRS_WITHOUT, "answered without"),
};
