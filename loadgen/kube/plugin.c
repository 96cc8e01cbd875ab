/*
 * A CNI plugin for nodes that have no Python: a static program that hands its call to the relay in the agent's pod
 * (relay.py), which runs lab/cni.py there, and passes that program's answer and exit code on.
 *
 * The call travels over a unix socket as
 *     u32 length, CNI_* variables as "NAME=VALUE\0" each; u32 length, stdin
 * and the answer as
 *     u32 exit code; u32 length, stdout
 * all u32 in network byte order. Whoever kills this program closes the socket: the relay then kills its child.
 *
 * While no relay listens (its pod is being restarted), ADD waits for it as long as cilium-cni waits for its agent, and
 * then says what cilium-cni says; a DEL has nothing to delete that an absent agent would still have.
 */
#define _GNU_SOURCE

#include <arpa/inet.h>
#include <ctype.h>
#include <errno.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

extern char **environ;

#define RELAY_SOCKET "/run/loadgen/cni.sock"
#define AGENT_SOCKET "/run/loadgen/cilium.sock"
#define CONNECT_TIMEOUT_S 30.0 /* Cilium pkg/defaults ClientConnectTimeout */
#define RETRY_MS 100
#define VERSIONS "\"0.3.1\", \"0.4.0\", \"1.0.0\", \"1.1.0\"" /* those of lab/cni.py */

enum { MAX_ENVIRONMENT = 64 << 10, MAX_CONFIG = 1 << 20, MAX_ANSWER = 1 << 20 };

/* Codes of the CNI spec, section 4; from 100 on those of lab/cni.py. */
enum { IO_FAILURE = 5, BAD_CONFIG = 7, NOT_AVAILABLE = 50, AGENT_UNREACHABLE = 100 };

struct text {
	const char *at;
	size_t len;
};

/* --- errors ---------------------------------------------------------------------------------------------------- */

/* Ends the program with a CNI error. `message` is the inside of a JSON string, escaped already. */
static _Noreturn void fail(int code, const char *message, ...)
{
	va_list arguments;

	printf("{\"cniVersion\": \"1.0.0\", \"code\": %d, \"msg\": \"", code);
	va_start(arguments, message);
	vprintf(message, arguments);
	va_end(arguments);
	printf("\"}\n");
	fflush(stdout);
	exit(1);
}

/* As cilium-cni prints errno: all in lower case. */
static const char *lower_error(int code)
{
	static char words[128];
	size_t i;

	snprintf(words, sizeof(words), "%s", strerror(code));
	for (i = 0; words[i]; i++)
		words[i] = (char)tolower((unsigned char)words[i]);
	return words;
}

/* --- JSON: only what finds a key of the outermost object ---------------------------------------------------------- */

static const char *skip_space(const char *p, const char *end)
{
	while (p < end && (*p == ' ' || *p == '\t' || *p == '\n' || *p == '\r'))
		p++;
	return p;
}

/* Past the string that begins at p, or NULL when it does not end. */
static const char *skip_string(const char *p, const char *end)
{
	for (p++; p < end; p++) {
		if (*p == '\\')
			p++;
		else if (*p == '"')
			return p + 1;
	}
	return NULL;
}

/* Past the value that begins at p, or NULL. Brackets are counted, not matched: lab/cni.py is who judges the JSON. */
static const char *skip_value(const char *p, const char *end)
{
	int depth = 0;

	while (p && p < end) {
		if (*p == '"') {
			p = skip_string(p, end);
		} else if (*p == '{' || *p == '[') {
			depth++;
			p++;
		} else if (*p == '}' || *p == ']') {
			if (depth == 0)
				return p;
			depth--;
			p++;
		} else if (depth == 0 && *p == ',') {
			return p;
		} else {
			p++;
			continue;
		}
		if (p && depth == 0)
			return p;
	}
	return p;
}

/* The value of `key`: of a string what is between its quotes, escapes untouched. False when there is none. */
static bool find(struct text json, const char *key, struct text *value)
{
	const char *end = json.at + json.len, *p = skip_space(json.at, end), *name, *begin;
	size_t len;

	if (p == end || *p++ != '{')
		return false;
	while ((p = skip_space(p, end)) < end && *p == '"') {
		name = p + 1;
		if (!(p = skip_string(p, end)))
			return false;
		len = (size_t)(p - name) - 1;
		p = skip_space(p, end);
		if (p == end || *p++ != ':')
			return false;
		begin = skip_space(p, end);
		if (!(p = skip_value(begin, end)))
			return false;
		if (len == strlen(key) && memcmp(name, key, len) == 0) {
			*value = (struct text){begin, (size_t)(p - begin)};
			if (value->len >= 2 && *begin == '"')
				*value = (struct text){begin + 1, value->len - 2};
			return true;
		}
		p = skip_space(p, end);
		if (p == end || *p++ != ',')
			return false;
	}
	return false;
}

static double number(struct text json, const char *key, double otherwise)
{
	char digits[32] = "", *end = digits;
	struct text value;
	double found;

	if (!find(json, key, &value) || value.len == 0 || value.len >= sizeof(digits))
		return otherwise;
	memcpy(digits, value.at, value.len);
	found = strtod(digits, &end);
	return end == digits ? otherwise : found;
}

/* --- bytes -------------------------------------------------------------------------------------------------------- */

/* Reads until `len` bytes or the end: how many there were, or -1 and errno. */
static ssize_t read_up_to(int fd, void *to, size_t len)
{
	size_t have = 0;
	ssize_t n;

	while (have < len) {
		n = read(fd, (char *)to + have, len - have);
		if (n == 0)
			break;
		if (n < 0 && errno != EINTR)
			return -1;
		if (n > 0)
			have += (size_t)n;
	}
	return (ssize_t)have;
}

/* Sockets only: no SIGPIPE. */
static bool send_all(int fd, const void *from, size_t len)
{
	size_t done = 0;
	ssize_t n;

	while (done < len) {
		n = send(fd, (const char *)from + done, len - done, MSG_NOSIGNAL);
		if (n < 0 && errno != EINTR)
			return false;
		if (n > 0)
			done += (size_t)n;
	}
	return true;
}

static bool send_block(int fd, struct text block)
{
	uint32_t len = htonl((uint32_t)block.len);

	return send_all(fd, &len, sizeof(len)) && send_all(fd, block.at, block.len);
}

static bool receive_u32(int fd, uint32_t *value)
{
	if (read_up_to(fd, value, sizeof(*value)) != sizeof(*value))
		return false;
	*value = ntohl(*value);
	return true;
}

static struct text read_config(void)
{
	static char config[MAX_CONFIG + 1];
	ssize_t n = read_up_to(STDIN_FILENO, config, sizeof(config));

	if (n < 0)
		fail(IO_FAILURE, "the network config cannot be read from stdin: %s", lower_error(errno));
	if (n > MAX_CONFIG)
		fail(BAD_CONFIG, "the network config on stdin is longer than %d bytes", MAX_CONFIG);
	return (struct text){config, (size_t)n};
}

static struct text cni_environment(void)
{
	static char block[MAX_ENVIRONMENT];
	size_t have = 0, len;
	char **variable;

	for (variable = environ; *variable; variable++) {
		if (strncmp(*variable, "CNI_", 4) != 0)
			continue;
		len = strlen(*variable) + 1;
		if (len > sizeof(block) - have)
			fail(IO_FAILURE, "the CNI_* environment is longer than %d bytes", MAX_ENVIRONMENT);
		memcpy(block + have, *variable, len);
		have += len;
	}
	return (struct text){block, have};
}

/* --- the call ------------------------------------------------------------------------------------------------------ */

static int try_connect(const char *path)
{
	struct sockaddr_un address = {.sun_family = AF_UNIX};
	int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0), code;

	if (fd < 0)
		return -1;
	snprintf(address.sun_path, sizeof(address.sun_path), "%s", path);
	if (connect(fd, (struct sockaddr *)&address, sizeof(address)) == 0)
		return fd;
	code = errno;
	close(fd);
	errno = code;
	return -1;
}

static double now(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return (double)t.tv_sec + (double)t.tv_nsec / 1e9;
}

/* What an absent relay means to each command: see the top. */
static int connect_relay(const char *command, const char *path, struct text config)
{
	const struct timespec pause = {0, RETRY_MS * 1000000L};
	double timeout = number(config, "connectTimeout", CONNECT_TIMEOUT_S), deadline = now() + timeout;
	struct text agent = {AGENT_SOCKET, strlen(AGENT_SOCKET)};
	int fd;

	while ((fd = try_connect(path)) < 0) {
		if (strcmp(command, "DEL") == 0 || strcmp(command, "GC") == 0)
			exit(0);
		find(config, "agentSocket", &agent);
		if (strcmp(command, "STATUS") == 0)
			fail(NOT_AVAILABLE, "the agent is not running: dial unix %.*s: connect: %s", (int)agent.len, agent.at,
			     lower_error(errno));
		if (now() >= deadline)
			fail(AGENT_UNREACHABLE,
			     "unable to connect to Cilium agent: failed to create cilium agent client after %f seconds "
			     "timeout: Get \\\"http://localhost/v1/config\\\": dial unix %.*s: connect: %s",
			     timeout, (int)agent.len, agent.at, lower_error(errno));
		nanosleep(&pause, NULL);
	}
	return fd;
}

/* The relay's answer to stdout; returns the exit code. The relay gone in the middle is what an agent's end is. */
static int pass_answer(int fd)
{
	static char answer[MAX_ANSWER];
	uint32_t code, len;

	if (!receive_u32(fd, &code) || !receive_u32(fd, &len))
		fail(AGENT_UNREACHABLE, "the agent's pod ended before it answered: EOF");
	if (len > sizeof(answer))
		fail(IO_FAILURE, "the answer is longer than %d bytes", MAX_ANSWER);
	if (read_up_to(fd, answer, len) != (ssize_t)len)
		fail(AGENT_UNREACHABLE, "the agent's pod ended in the middle of its answer: EOF");
	if (fwrite(answer, 1, len, stdout) != len || fflush(stdout) != 0)
		return 1; /* nobody reads */
	return (int)code;
}

static int version(struct text config)
{
	struct text asked = {"1.0.0", 5};

	find(config, "cniVersion", &asked);
	printf("{\"cniVersion\": \"%.*s\", \"supportedVersions\": [%s]}\n", (int)asked.len, asked.at, VERSIONS);
	return fflush(stdout) == 0 ? 0 : 1;
}

int main(void)
{
	const char *command = getenv("CNI_COMMAND");
	struct text config = read_config(), variables = cni_environment();
	struct text socket_path = {RELAY_SOCKET, strlen(RELAY_SOCKET)};
	char path[sizeof(((struct sockaddr_un *)0)->sun_path)];
	int fd;

	if (command && strcmp(command, "VERSION") == 0)
		return version(config);
	find(config, "relaySocket", &socket_path);
	if (socket_path.len == 0 || socket_path.len >= sizeof(path))
		fail(BAD_CONFIG, "relaySocket must have 1 to %d characters", (int)sizeof(path) - 1);
	memcpy(path, socket_path.at, socket_path.len);
	path[socket_path.len] = '\0';
	fd = connect_relay(command ? command : "", path, config);
	if (!send_block(fd, variables) || !send_block(fd, config))
		fail(AGENT_UNREACHABLE, "the agent's pod ended while it was being asked: %s", lower_error(errno));
	return pass_answer(fd);
}
