"""`python -m loadgen.kube.worker SPEC.json`: the driver process inside a generator pod."""

from __future__ import annotations

from pathlib import Path

import msgspec

from loadgen.core import resolvconf, stubs
from loadgen.core.errors import HarnessError
from loadgen.core.model import Dns, Storm
from loadgen.core.ports import Driver
from loadgen.core.resolvconf import ResolvConf
from loadgen.drivers import host
from loadgen.kube.exchange import Assignment

RESOLV_CONF = Path("/etc/resolv.conf")


class WorkerSpec(msgspec.Struct, frozen=True, kw_only=True):
    """What one driver process is to do."""

    assignment: Assignment
    phase: str
    source: str
    seed: int


def driver(spec: WorkerSpec) -> Driver:
    """The driver that the load means. Imports only what this process needs."""
    match spec.assignment.load:
        case Storm() as load:
            from loadgen.drivers.storm import StormDriver

            assert spec.assignment.targets is not None
            return StormDriver(load, spec.source, spec.assignment.targets.pairs(load.targets))
        case Dns() as load:
            check_resolver(RESOLV_CONF.read_text(), spec.assignment)
            return _lookups(load, spec)


def _lookups(load: Dns, spec: WorkerSpec) -> Driver:
    if load.via == "wire":
        from loadgen.drivers.dns import DnsDriver

        assert spec.assignment.resolver is not None
        return DnsDriver(load, spec.assignment.resolver, [spec.assignment.server], spec.source)
    if load.via == "fast":
        from loadgen.drivers.pairs import PairsDriver

        assert spec.assignment.resolver is not None
        return PairsDriver(load, spec.assignment.resolver, [spec.assignment.server], spec.source)
    from loadgen.drivers.libc import LibcDriver

    return LibcDriver(load, spec.source)


def check_resolver(content: str, assignment: Assignment) -> None:
    """HarnessError unless the pod's resolv.conf means exactly what the variant asked for.

    A kubelet or an admission webhook that changes it would be measured as "this option does nothing".
    """
    assert assignment.resolver is not None
    has = stubs.parse(assignment.resolver.stub, content)
    asked = resolvconf.from_settings(assignment.resolver, [assignment.server])
    has, asked = (msgspec.structs.replace(conf, ignored=()) for conf in (has, asked))
    if has != asked:
        raise HarnessError(
            f"the pod's /etc/resolv.conf is not what the variant asked for: {_differences(has, asked)}; does a "
            "webhook change pods' dnsConfig?"
        )


def _differences(has: ResolvConf, asked: ResolvConf) -> str:
    fields = [field for field in asked.__struct_fields__ if getattr(has, field) != getattr(asked, field)]
    return ", ".join(f"{field} {getattr(has, field)!r} instead of {getattr(asked, field)!r}" for field in fields)


if __name__ == "__main__":
    host.main(WorkerSpec, driver)
