"""`python -m loadgen.kube.lookupprocess SPEC.json`: the driver process of a Locust user that looks names up.

Unlike loadgen.kube.worker it has no scenario: whom to ask, and how, is what its user says.
"""

from __future__ import annotations

import msgspec

from loadgen.core import resolvconf
from loadgen.core.errors import ConfigError
from loadgen.core.model import Constant, Dns, Resolver, StubName
from loadgen.core.ports import Driver
from loadgen.drivers import host

DNS_PORT = 53


class LookupSpec(msgspec.Struct, frozen=True, kw_only=True):
    """What one user's process is to do."""

    load: Dns
    resolver: Resolver
    servers: tuple[str, ...]
    port: int = DNS_PORT
    phase: str = "locust"
    source: str = "lookups"
    seed: int = 0


def spec(
    *,
    names: tuple[str, ...],
    rate: float,
    stub: StubName,
    fresh: bool,
    fast: bool,
    content: str,
    where: str,
    options: str | None = None,
    server: str = "",
    seed: int = 0,
) -> LookupSpec:
    """A user's settings over the resolv.conf `content`, a file called `where`.

    `options` stand in for the file's, `server` (ADDRESS or ADDRESS:PORT) for its name servers. ConfigError says
    which line of the file, or which setting, cannot be honoured.
    """
    conf = resolvconf.strict(content, where, stub)
    said = " ".join(words.strip() for words in _options(content)) if options is None else options
    address, _, port = server.partition(":") if server.count(":") == 1 else (server, "", "")
    if port and not (port.isdecimal() and 0 < int(port) < 65_536):
        raise ConfigError(f"host: {server!r}: {port!r} is no port")
    resolver = Resolver(said, conf.search, stub=stub)
    servers = (address,) if address else conf.servers[:1] if fast else conf.servers
    resolvconf.from_settings(resolver, servers, source="host" if address else where)
    load = Dns(
        pace=Constant(rate=rate),
        names=names,
        state="fresh" if fresh else "long-lived",
        via="fast" if fast else "wire",
    )
    made = LookupSpec(load=load, resolver=resolver, servers=servers, port=int(port or DNS_PORT), seed=seed)
    driver(made)  # it opens nothing before it runs
    return made


def _options(content: str) -> list[str]:
    return [line.removeprefix("options") for line in content.splitlines() if line.startswith("options")]


def driver(spec: LookupSpec) -> Driver:
    """The driver that the load means. Imports only what this process needs."""
    if spec.load.via == "fast":
        from loadgen.drivers.pairs import PairsDriver

        return PairsDriver(spec.load, spec.resolver, spec.servers, spec.source, port=spec.port)
    from loadgen.drivers.dns import DnsDriver

    return DnsDriver(spec.load, spec.resolver, spec.servers, spec.source, port=spec.port)


if __name__ == "__main__":
    host.main(LookupSpec, driver)
