"""resolv.conf files as musl, Go and c-ares read them; glibc's reading is `resolvconf.parse`.

None of them fails, whatever is in the file. What each passes over is listed in `ignored`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

import msgspec

from loadgen.core.resolvconf import CARES, GO, MAX_SERVERS, MUSL, ResolvConf, apply, ip

MUSL_LINE = 255
"""Longer lines are left out (1.2.4 and later)."""


def parse_musl(content: str) -> ResolvConf:
    """musl looks for its three numbers anywhere in an `options` line, takes no environment, knows no flag."""
    conf, servers, ignored = MUSL.defaults, list[str](), list[str]()
    for line in content.split("\n"):
        keyword, *words = line.split() or [""]
        if not keyword or line[0] in ";#":
            continue
        if line[0].isspace() or len(line) >= MUSL_LINE or not words:
            ignored.append(line.strip())
        elif keyword == "options":
            conf = _musl_options(conf, line)
            ignored += [word for word in words if not re.match(r"(ndots|attempts|timeout):\d", word)]
        elif keyword == "nameserver" and len(servers) < MAX_SERVERS and (found := ip(words[0])):
            servers.append(found)
        elif keyword in ("search", "domain"):
            conf = msgspec.structs.replace(conf, search=tuple(words))
        else:
            ignored.append(line.strip())
    return msgspec.structs.replace(conf, servers=tuple(servers) or conf.servers, ignored=tuple(ignored))


def _musl_options(conf: ResolvConf, line: str) -> ResolvConf:
    for key, (_, most) in MUSL.limits.items():
        found = re.search(rf"{key}:(\d+)", line)
        if found and line.find(f"{key}:") == found.start():  # only the first that is there is looked at
            conf = msgspec.structs.replace(conf, **{key: min(int(found[1]), most)})
    # It divides by the attempts: none would end the process.
    return msgspec.structs.replace(conf, attempts=max(1, conf.attempts))


def parse_go(content: str) -> ResolvConf:
    """Go: the last search list counts, "." is no domain of one, numbers are at least 1, no environment."""
    conf, servers, ignored = GO.defaults, list[str](), list[str]()
    for line in content.split("\n"):
        keyword, *words = line.split() or [""]
        if not keyword or line[0] in ";#":
            continue
        if keyword == "nameserver" and words and len(servers) < MAX_SERVERS and (found := ip(words[0])):
            servers.append(found)
        elif keyword == "domain" and words:
            conf = msgspec.structs.replace(conf, search=tuple(words[:1]))
        elif keyword == "search":
            conf = msgspec.structs.replace(conf, search=tuple(word for word in words if word != "."))
        elif keyword == "options":
            conf = apply(conf, [word for word in words if word != "edns0"], GO)
        else:
            ignored.append(line.strip())
    return msgspec.structs.replace(
        conf,
        servers=tuple(servers) or ("127.0.0.1", "::1"),
        ndots=max(0, conf.ndots),
        timeout=max(1, conf.timeout),
        attempts=max(1, conf.attempts),
        ignored=(*ignored, *conf.ignored),
    )


def parse_cares(content: str, environ: Mapping[str, str] | None = None) -> ResolvConf:
    """c-ares: `search` wins over `domain` wherever it stands, options that make no sense are left out, no limit to
    the servers; LOCALDOMAIN and RES_OPTIONS of `environ` come last."""
    conf, servers, ignored, searched = CARES.defaults, list[str](), list[str](), False
    for line in content.split("\n"):
        keyword, *words = line.split() or [""]
        if not keyword or keyword[0] in ";#":
            continue
        if keyword == "nameserver" and words and (found := ip(words[0])):
            servers.append(found)
        elif keyword == "search" and words:
            conf, searched = msgspec.structs.replace(conf, search=tuple(words)), True
        elif keyword == "domain" and words:
            conf = conf if searched else msgspec.structs.replace(conf, search=tuple(words[:1]))
        elif keyword == "options":
            conf = _cares_options(conf, words)
        else:
            ignored.append(line.strip())
    if environ and "LOCALDOMAIN" in environ:
        conf = msgspec.structs.replace(conf, search=tuple(environ["LOCALDOMAIN"].split()[:1]))
    conf = _cares_options(conf, (environ or {}).get("RES_OPTIONS", "").split())
    return msgspec.structs.replace(conf, servers=tuple(servers) or conf.servers, ignored=(*ignored, *conf.ignored))


def _cares_options(conf: ResolvConf, words: list[str]) -> ResolvConf:
    synonyms = {"retrans": "timeout", "retry": "attempts"}
    for word in words:
        key, colon, value = word.partition(":")
        key = synonyms.get(key, key)
        if colon and key in ("timeout", "attempts") and not re.match(r"0*[1-9]", value):
            conf = msgspec.structs.replace(conf, ignored=(*conf.ignored, word))
        else:
            conf = apply(conf, [f"{key}{colon}{value}"], CARES)
    return conf
