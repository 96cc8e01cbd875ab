"""`python -m loadgen.lab.agent CONFIG.json`: prints `ready` once it serves, ends with 0 on SIGTERM.

Exit codes: 1 the initial GC pass took too long (profiles up to 1.16, as Cilium), 3 the model itself broke, 4 the
configuration is wrong.
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import sys
from contextlib import AsyncExitStack
from ipaddress import IPv4Address, IPv4Network
from pathlib import Path

from aiohttp import web

from loadgen.core import cilium
from loadgen.core.errors import ConfigError, HarnessError
from loadgen.kernel import netns
from loadgen.kernel.bpf import CtDatapath
from loadgen.lab.agent.admission import Gate
from loadgen.lab.agent.api import Api, Parts
from loadgen.lab.agent.config import AgentConfig, listen_address, load, settings_text
from loadgen.lab.agent.ctgc import Conntrack, GarbageCollector, Table
from loadgen.lab.agent.endpoints import Endpoints, NoMemory
from loadgen.lab.agent.ipam import Ipam
from loadgen.lab.agent.metrics import Metrics
from loadgen.lab.agent.plumbing import Plumbing
from loadgen.lab.agent.restore import EndpointFiles
from loadgen.lab.agent.spans import SpanLog

log = logging.getLogger("agent")


def build(config: AgentConfig, datapath: CtDatapath, stack: AsyncExitStack) -> Parts:
    """All parts of the agent, wired; what they hold is given back by the stack."""
    settings = config.cilium
    profile = cilium.profile(settings.profile)
    spans, metrics = SpanLog(), Metrics(profile)
    sizes = settings.bpf
    conntrack = Conntrack(
        Table("tcp", "ct4_global", datapath.tcp_fd, sizes.ct_tcp_max, profile, spans, metrics),
        Table("any", "ct_any4_global", datapath.any_fd, sizes.ct_any_max, profile, spans, metrics),
    )
    stack.callback(conntrack.close)
    gateway = None if config.chained else IPv4Address(config.gateway)
    plumbing = Plumbing(gateway, datapath if config.attach else None)
    plumbing.open()
    stack.callback(plumbing.close)
    ipam = Ipam(IPv4Network(config.pod_cidr), gateway) if gateway else None
    memory = EndpointFiles(Path(config.state_dir)) if config.state_dir else NoMemory()
    limits = cilium.api_limits(profile, settings.api_rate_limit)
    gates = {call: Gate(call, params, metrics) for call, params in limits.items()}
    permits = cilium.build_permits(profile, os.cpu_count() or 1, settings.build_permits)
    return Parts(
        profile=profile.version,
        settings=settings_text(settings),
        spans_by=config.spans_by,
        endpoints=Endpoints(profile, permits, gates, conntrack, plumbing, ipam, spans, metrics, memory),
        conntrack=conntrack,
        gc=GarbageCollector(conntrack, profile, settings, spans, metrics),
        plumbing=plumbing,
        ipam=ipam,
        gates=gates,
        spans=spans,
        metrics=metrics,
    )


async def serve(config: AgentConfig, stop: asyncio.Event) -> None:
    """Run the agent until `stop`. Raises what broke it."""
    async with AsyncExitStack() as stack:
        sizes = config.cilium.bpf
        datapath = CtDatapath.load(Path(config.pin_dir), sizes.ct_tcp_max, sizes.ct_any_max)
        stack.callback(datapath.close)
        parts = build(config, datapath, stack)
        await parts.endpoints.restore()
        await parts.gc.initial()
        gc = asyncio.create_task(parts.gc.run())
        stack.callback(gc.cancel)
        api = Api(parts)
        runner = web.AppRunner(api.app(), handler_cancellation=True, access_log=None, shutdown_timeout=0)
        await runner.setup()
        if config.metrics_listen:
            await _serve_readings(api, config.metrics_listen, stack)
        # Undone from the last to the first: walks end early, the work that waits for them is dropped unanswered,
        # connections close, threads end.
        stack.push_async_callback(runner.cleanup)
        stack.push_async_callback(api.close)
        stack.callback(parts.conntrack.cancel)
        await web.UnixSite(runner, config.socket).start()
        stack.callback(Path(config.socket).unlink, missing_ok=True)
        sys.stdout.write("ready\n")
        sys.stdout.flush()
        stopped = asyncio.create_task(stop.wait())
        done, _ = await asyncio.wait({stopped, gc, api.broken}, return_when=asyncio.FIRST_COMPLETED)
        for failed in done - {stopped}:
            failed.result()


async def _serve_readings(api: Api, listen: str, stack: AsyncExitStack) -> None:
    runner = web.AppRunner(api.readings(), access_log=None, shutdown_timeout=0)
    await runner.setup()
    stack.push_async_callback(runner.cleanup)
    await web.TCPSite(runner, *listen_address(listen)).start()


async def until_terminated(config: AgentConfig) -> None:
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    await serve(config, stop)


def main(argv: list[str]) -> int:
    logging.basicConfig(
        level=logging.INFO, stream=sys.stderr, format="time=%(asctime)s level=%(levelname)s msg=%(message)s"
    )
    try:
        if len(argv) != 2:
            raise ConfigError("usage: python -m loadgen.lab.agent CONFIG.json")
        config = load(Path(argv[1]))
        if config.netns:
            netns.enter(Path(config.netns))
        asyncio.run(until_terminated(config))
    except TimeoutError as error:
        log.fatal("%s", error)
        return 1
    except ConfigError as error:
        log.error("%s", error)
        return 4
    except (HarnessError, OSError) as error:
        log.error("%s", error)
        return 3
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv))
