"""resolv.conf as glibc 2.36 reads it (resolv/res_init.c, resolv.conf(5)): leniently a file, strictly a setting.

`parse` reads a file as glibc does, which skips what it does not know without a word. `from_settings` is for what
somebody wrote into a scenario: there an option that glibc would skip, or take for another one, is a mistake that
would be measured as "this option does nothing", so it is refused.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Sequence

import msgspec

from loadgen.core import dnswire
from loadgen.core.errors import ConfigError
from loadgen.core.model import Resolver

MAX_SERVERS = 3  # MAXNS; further `nameserver` lines are never asked
MAX_NDOTS, MAX_TIMEOUT, MAX_ATTEMPTS = 15, 30, 5  # RES_MAXNDOTS, RES_MAXRETRANS, RES_MAXRETRY: larger ones are cut

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
}
NUMBERS = {"ndots": MAX_NDOTS, "timeout": MAX_TIMEOUT, "attempts": MAX_ATTEMPTS}
LATER = {"strict-error": "2.41"}
SERVERS = ("service", "nodelocal")


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
    ignored: tuple[str, ...] = ()
    """Options, keywords and addresses that glibc passes over."""


def parse(content: str) -> ResolvConf:
    """A whole resolv.conf. Never fails: what glibc passes over is listed in `ignored`.

    Without a `search` or `domain` line glibc takes the domain of the host's own name, which is not known here:
    the list is empty then. LOCALDOMAIN and RES_OPTIONS of the environment are not looked at.
    """
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
        if keyword == "nameserver" and (known := _server(words[0])):
            servers.append(known)
        elif keyword in ("search", "domain"):
            search = words if keyword == "search" else words[:1]
        elif keyword == "options":
            conf = _options(conf, words)
        else:
            ignored.append(line.strip())
    return msgspec.structs.replace(
        conf,
        servers=tuple(servers[:MAX_SERVERS]) or conf.servers,
        search=search,
        ignored=(*ignored, *(f"nameserver {s}" for s in servers[MAX_SERVERS:]), *conf.ignored),
    )


def from_settings(resolver: Resolver, servers: Sequence[str], *, source: str = "resolver") -> ResolvConf:
    """A scenario's resolver settings, which must mean exactly what they say, asking `servers`.

    ConfigError names the setting under `source` and says what is allowed.
    """
    if resolver.server not in SERVERS:
        raise ConfigError(f"{source}.server: {resolver.server!r} is not one of {', '.join(SERVERS)}")
    if not 1 <= len(servers) <= MAX_SERVERS:
        raise ConfigError(f"{source}: glibc asks one to {MAX_SERVERS} name servers, not {len(servers)}")
    for address in servers:
        if _server(address) is None:
            raise ConfigError(f"{source}: name server {address!r} is no IP address")
    for domain in resolver.search:
        known = dnswire.name(domain.removeprefix(".") or ".")
        if isinstance(known, dnswire.Malformed):
            raise ConfigError(f"{source}.search: {known.why}")
    words = tuple(resolver.options.split())
    for word in words:
        _check_option(word, f"{source}.options")
    return msgspec.structs.replace(_options(ResolvConf(), words), servers=tuple(servers), search=resolver.search)


# A keyword starts its line, a blank follows it, and something must follow that. A `sortlist` orders the addresses
# of an answer and changes nothing about how they are asked for.
_KEYWORD = re.compile(r"(nameserver|search|domain|options)[ \t]+(?=[^ \t])(.*)")


def _server(address: str) -> str | None:
    try:
        return str(ipaddress.ip_address(address))
    except ValueError:
        return None


def _options(conf: ResolvConf, words: tuple[str, ...]) -> ResolvConf:
    """Apply options from left to right as res_setoptions does: numbers by atoi, flags by their prefix."""
    changes: dict[str, int | bool] = {}
    ignored = list(conf.ignored)
    for word in words:
        key, colon, value = word.partition(":")
        flag = next((field for known, field in FLAGS.items() if word.startswith(known)), None)
        if colon and key in NUMBERS:
            number = re.match(r"[+-]?\d+", value)
            changes[key] = min(int(number[0]) if number else 0, NUMBERS[key])
        elif flag:
            changes[flag] = True
        else:
            ignored.append(word)
    return msgspec.structs.replace(conf, **changes, ignored=tuple(ignored))


def _check_option(word: str, where: str) -> None:
    key, colon, value = word.partition(":")
    if colon and key in NUMBERS:
        lowest = 0 if key == "ndots" else 1
        if not value.isdecimal() or not lowest <= int(value) <= NUMBERS[key]:
            raise ConfigError(f"{where}: {word!r}: write {key}:{lowest} … {key}:{NUMBERS[key]}")
    elif word in LATER:
        raise ConfigError(f"{where}: {word!r} came with glibc {LATER[word]}; the resolver here behaves as glibc 2.36")
    elif word not in FLAGS:
        known = ", ".join([*(f"{n}:N" for n in NUMBERS), *FLAGS])
        raise ConfigError(f"{where}: {word!r} is not known to glibc 2.36; it knows {known}")
