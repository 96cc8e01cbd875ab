"""resolv.conf as glibc, musl, Go and c-ares read it: leniently a file, strictly a setting.

`parse` reads a file as the resolver does, which skips what it does not know without a word. `from_settings` is for
what somebody wrote into a scenario: there an option that is nobody's, or that this resolver would take for another
one, is a mistake that would be measured as "this option does nothing", so it is refused. What another resolver knows
and this one does not is taken, and does nothing, as in a pod. `complaints` and `strict` are for a file that somebody
points us at. Sources: glibc resolv/res_init.c, musl src/network/resolvconf.c, Go src/net/dnsconfig_unix.go, c-ares
src/lib/ares_sysconfig_files.c.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Iterator, Mapping, Sequence

import msgspec

from loadgen.core import dnswire
from loadgen.core.errors import ConfigError
from loadgen.core.model import Resolver

MAX_SERVERS = 3  # MAXNS; further `nameserver` lines are never asked
NO_LIMIT = 1 << 31

SERVERS = ("service", "nodelocal")
KEYWORDS = ("nameserver", "search", "domain", "options", "sortlist", "lookup", "family")

# In glibc's order, which matters: it compares prefixes, so `single-request-reopen` must come first.
FLAGS = {
    "rotate": "rotate",
    "edns0": "edns0",
    "single-request-reopen": "single_request_reopen",
    "single-request": "single_request",
    "no_tld_query": "no_tld_query",
    "no-tld-query": "no_tld_query",
    "no-reload": "no_reload",
    "use-vc": "use_vc",
    "trust-ad": "trust_ad",
    "no-aaaa": "no_aaaa",
    "strict-error": "strict_error",
}
GLIBC_SINCE = {"no-aaaa": (2, 36), "strict-error": (2, 41)}
MINUS_SINCE = (2, 41)
"""`-option` takes an option back."""


class ResolvConf(msgspec.Struct, frozen=True):
    """What the resolver goes by. `timeout` is in seconds, as it is written."""

    servers: tuple[str, ...] = ("127.0.0.1",)
    search: tuple[str, ...] = ()
    ndots: int = 1
    timeout: int = 5
    attempts: int = 2
    rotate: bool = False
    edns0: bool = False
    single_request: bool = False
    single_request_reopen: bool = False
    no_tld_query: bool = False
    no_reload: bool = False
    """Has no effect on one lookup: this resolver never reads its configuration again."""
    use_vc: bool = False
    trust_ad: bool = False
    no_aaaa: bool = False
    strict_error: bool = False
    ignored: tuple[str, ...] = ()
    """Options, keywords and addresses that the resolver passes over."""


class Dialect(msgspec.Struct, frozen=True):
    """What one resolver makes of options. Numbers beyond a limit are cut by it."""

    name: str
    flags: Mapping[str, str]
    """An option, and the field that it sets."""
    limits: Mapping[str, tuple[int, int]]
    """Of ndots, timeout and attempts: the least that makes sense, and the most."""
    defaults: ResolvConf = ResolvConf()
    max_servers: int = MAX_SERVERS
    release: tuple[int, ...] = ()
    """Of glibc; others have none."""


def glibc(release: tuple[int, ...] = (2, 36)) -> Dialect:
    known = {word: field for word, field in FLAGS.items() if GLIBC_SINCE.get(word, release) <= release}
    limits = {"ndots": (0, 15), "timeout": (1, 30), "attempts": (1, 5)}  # RES_MAXNDOTS, RES_MAXRETRANS, RES_MAXRETRY
    return Dialect("glibc {}.{}".format(*release), known, limits, release=release)


MUSL = Dialect("musl", {}, {"ndots": (0, 15), "timeout": (1, 60), "attempts": (1, 10)})
GO = Dialect(
    "Go",
    {
        **{word: FLAGS[word] for word in ("rotate", "single-request", "trust-ad", "no-reload")},
        "single-request-reopen": "single_request",
        **dict.fromkeys(("use-vc", "usevc", "tcp"), "use_vc"),
    },
    {"ndots": (0, 15), "timeout": (1, NO_LIMIT), "attempts": (1, NO_LIMIT)},
)
CARES = Dialect(
    "c-ares",
    {"rotate": "rotate", "use-vc": "use_vc", "usevc": "use_vc"},
    {"ndots": (0, NO_LIMIT), "timeout": (1, NO_LIMIT), "attempts": (1, NO_LIMIT)},
    ResolvConf(timeout=2, attempts=3),
    max_servers=NO_LIMIT,
)
GLIBC_STUBS = ("java", "node")
"""They call getaddrinfo, and so are what the image's libc is; here glibc 2.36."""


def dialect(stub: str) -> Dialect:
    """The resolver that a `stub` of a scenario reads its options with."""
    family, _, release = stub.partition("-")
    if family == "glibc":
        major, minor = release.split(".")
        return glibc((int(major), int(minor)))
    return glibc() if stub in GLIBC_STUBS else MUSL if family == "musl" else GO if stub == "go" else CARES


# --- a scenario's settings ------------------------------------------------------------------------------------


def from_settings(resolver: Resolver, servers: Sequence[str], *, source: str = "resolver") -> ResolvConf:
    """A scenario's resolver settings, which must mean exactly what they say, asking `servers`.

    ConfigError names the setting under `source` and says what is allowed.
    """
    reads = dialect(resolver.stub)
    if resolver.server not in SERVERS:
        raise ConfigError(f"{source}.server: {resolver.server!r} is not one of {', '.join(SERVERS)}")
    if not 1 <= len(servers) <= reads.max_servers:
        asks = reads.name.split()[0]
        raise ConfigError(f"{source}: {asks} asks one to {reads.max_servers} name servers, not {len(servers)}")
    for address in servers:
        if ip(address) is None:
            raise ConfigError(f"{source}: name server {address!r} is no IP address")
    for domain in resolver.search:
        known = dnswire.name(domain.removeprefix(".") or ".")
        if isinstance(known, dnswire.Malformed):
            raise ConfigError(f"{source}.search: {known.why}")
    words = tuple(resolver.options.split())
    for word in words:
        _check_option(word, reads, f"{source}.options")
    conf = msgspec.structs.replace(reads.defaults, servers=tuple(servers), search=resolver.search)
    return apply(conf, words, reads)


def _check_option(word: str, reads: Dialect, where: str) -> None:
    key, colon, value = word.partition(":")
    plain = word.removeprefix("-") if reads.release >= MINUS_SINCE else word
    if colon and key in reads.limits:
        lowest, highest = reads.limits[key]
        if not value.isdecimal() or not lowest <= int(value) <= highest:
            most = "" if highest == NO_LIMIT else f" … {key}:{highest}"
            raise ConfigError(f"{where}: {word!r}: write {key}:{lowest}{most or ' or more'}")
    elif reads.release and plain in GLIBC_SINCE and plain not in reads.flags:
        since = "{}.{}".format(*GLIBC_SINCE[plain])
        raise ConfigError(f"{where}: {word!r} came with glibc {since}; the resolver here behaves as {reads.name}")
    elif plain not in reads.flags and (reads.release or plain not in EVERY_FLAG):
        known = ", ".join([*(f"{n}:N" for n in reads.limits), *(reads.flags if reads.release else EVERY_FLAG)])
        raise ConfigError(f"{where}: {word!r} is not known to {reads.name}; it knows {known}")


EVERY_FLAG = tuple(dict.fromkeys([*FLAGS, *GO.flags, *CARES.flags]))


def apply(conf: ResolvConf, words: Sequence[str], reads: Dialect) -> ResolvConf:
    """`conf` with these options, from left to right: numbers by atoi, flags whole (glibc's by their prefix)."""
    changes: dict[str, int | bool] = {}
    ignored = list(conf.ignored)
    for word in words:
        key, colon, value = word.partition(":")
        minus = word.startswith("-") and reads.release >= MINUS_SINCE
        flag = _flag(word[minus:], reads)
        if colon and key in reads.limits:
            number = re.match(r"[+-]?\d+", value)
            changes[key] = min(int(number[0]) if number else 0, reads.limits[key][1])
        elif flag:
            changes[flag] = not minus
        else:
            ignored.append(word)
    return msgspec.structs.replace(conf, **changes, ignored=tuple(ignored))


def _flag(word: str, reads: Dialect) -> str | None:
    """glibc compares no further than its own word goes."""
    if not reads.release:
        return reads.flags.get(word)
    return next((field for known, field in reads.flags.items() if word.startswith(known)), None)


# --- glibc's reading of a file --------------------------------------------------------------------------------


def parse(content: str, release: tuple[int, ...] = (2, 36), environ: Mapping[str, str] | None = None) -> ResolvConf:
    """A whole resolv.conf. Never fails: what glibc passes over is listed in `ignored`.

    Without a `search` or `domain` line glibc takes the domain of the host's own name, which is not known here: the
    list is empty then. Of `environ`, LOCALDOMAIN stands in for every search list and RES_OPTIONS comes last.
    """
    reads, environ = glibc(release), environ or {}
    servers: list[str] = []
    search: tuple[str, ...] = ()
    conf = ResolvConf()
    ignored: list[str] = []
    for line in content.split("\n"):
        found = _KEYWORD.match(line)
        keyword, rest = found.groups() if found else ("", "")
        words = tuple(re.findall(r"[^ \t]+", rest))
        if not line.strip() or line[0] in ";#":
            continue
        if keyword == "nameserver" and (known := ip(words[0])):
            servers.append(known)
        elif keyword in ("search", "domain"):
            search = words if keyword == "search" else words[:1]
        elif keyword == "options":
            conf = apply(conf, words, reads)
        else:
            ignored.append(line.strip())
    if "LOCALDOMAIN" in environ:
        search = tuple(environ["LOCALDOMAIN"].split())
    conf = apply(conf, environ.get("RES_OPTIONS", "").split(), reads)
    return msgspec.structs.replace(
        conf,
        servers=tuple(servers[:MAX_SERVERS]) or conf.servers,
        search=search,
        ignored=(*ignored, *(f"nameserver {s}" for s in servers[MAX_SERVERS:]), *conf.ignored),
    )


# A keyword starts its line, a blank follows it, and something must follow that. A `sortlist` orders the addresses
# of an answer and changes nothing about how they are asked for.
_KEYWORD = re.compile(r"(nameserver|search|domain|options)[ \t]+(?=[^ \t])(.*)")


def ip(address: str) -> str | None:
    """The address as it is usually written; None when it is none."""
    try:
        return str(ipaddress.ip_address(address))
    except ValueError:
        return None


# --- a file that somebody points us at ------------------------------------------------------------------------


def strict(content: str, source: str, stub: str = "glibc-2.36") -> ResolvConf:
    """The file as glibc reads it, if there is nothing in it to pass over and it names a server.

    ConfigError says which line of `source` it is, what the line says, and what is wrong with it.
    """
    reads = dialect(stub)
    for number, line, why in complaints(content, reads):
        raise ConfigError(f"{source}, line {number}: {why}: {line.strip()!r}")
    conf = parse(content, reads.release or (2, 36))
    if not re.search(r"^nameserver[ \t]", content, re.M):
        raise ConfigError(f"{source}: there is no `nameserver` line, so there is nobody to ask")
    return conf


def complaints(content: str, reads: Dialect) -> Iterator[tuple[int, str, str]]:
    """(number, line, what is wrong) for every line that would be passed over, whole or in part."""
    for number, line in enumerate(content.split("\n"), 1):
        keyword, *words = line.split() or [""]
        if not keyword or line[0] in ";#" or keyword in ("sortlist", "lookup", "family"):
            continue
        why = "it must begin at the start of its line" if line[0].isspace() else ""
        if keyword not in KEYWORDS:
            why = f"{keyword!r} is no keyword; there are {', '.join(KEYWORDS)}"
        elif not words:
            why = f"nothing follows {keyword!r}"
        elif keyword == "nameserver" and ip(words[0]) is None:
            why = f"{words[0]!r} is no IP address"
        elif keyword in ("search", "domain"):
            bad = (dnswire.name(word.removeprefix(".") or ".") for word in words)
            why = next((b.why for b in bad if isinstance(b, dnswire.Malformed)), why)
        elif keyword == "options":
            why = _option_complaint(words, reads) or why
        if why:
            yield number, line, why


def _option_complaint(words: Sequence[str], reads: Dialect) -> str:
    for word in words:
        try:
            _check_option(word, reads, "")
        except ConfigError as error:
            return str(error).removeprefix(": ")
    return ""
