"""What Locust's master and workers say to each other for us, and the controller to the master. No Locust in here."""

from __future__ import annotations

from ipaddress import IPv4Address

import msgspec

from loadgen.core.model import Dns, Resolver, Storm
from loadgen.core.units import dec_hook, enc_hook
from loadgen.kube.clocks import Offset
from loadgen.kube.streams import Chunk, Ended

KIND = "loadgen"
"""The type of our Locust messages, in both directions; their data is a ToWorker or a ToMaster as MessagePack."""
WEB = "/loadgen"
"""Where our routes are on Locust's web server."""
LOCUSTFILE = "locustfile.py"
"""Beside this file, and in /opt/loadgen of the image."""
LOOKUPFILE = "lookupfile.py"
"""Likewise, for people who run Locust themselves; nothing of ours starts it."""


class Targets(msgspec.Struct, frozen=True):
    """The storm's peers: each of `ports` ports from `port` on, at each address."""

    addresses: tuple[str, ...]
    port: int
    ports: int

    def pairs(self, n: int) -> list[tuple[IPv4Address, int]]:
        """The first `n`, all different, spread evenly over the addresses."""
        addresses = [IPv4Address(address) for address in self.addresses]
        return [(addresses[i % len(addresses)], self.port + i // len(addresses)) for i in range(n)]


class Assignment(msgspec.Struct, frozen=True, kw_only=True):
    """What the workers of one load are there for."""

    load: Storm | Dns
    targets: Targets | None = None
    resolver: Resolver | None = None
    """What the pod's resolv.conf has to say; None: that does not matter to this load."""
    server: str = ""


class Config(msgspec.Struct, frozen=True):
    """The generators' ConfigMap: assignments by the loads' names."""

    loads: dict[str, Assignment]


def encode_config(config: Config) -> bytes:
    return msgspec.json.encode(config, enc_hook=enc_hook)


def decode_config(data: bytes) -> Config:
    return msgspec.json.decode(data, type=Config, dec_hook=dec_hook)


# --- master → worker ------------------------------------------------------------------------------------------


class Prepare(msgspec.Struct, frozen=True, tag="prepare"):
    """Start a driver process; it waits for Go."""

    job: int
    phase: str
    seed: int


class Go(msgspec.Struct, frozen=True, tag="go"):
    """On the worker's own clock."""

    job: int
    start_ns: int
    end_ns: int


class Stop(msgspec.Struct, frozen=True, tag="stop"):
    job: int


class Close(msgspec.Struct, frozen=True, tag="close"):
    """End the driver process, tally or not."""

    job: int


class Acknowledge(msgspec.Struct, frozen=True, tag="acknowledge"):
    """The controller has all chunks of the job up to this one."""

    job: int
    number: int


class Ping(msgspec.Struct, frozen=True, tag="ping"):
    sent_ns: int


ToWorker = Prepare | Go | Stop | Close | Acknowledge | Ping

# --- worker → master ------------------------------------------------------------------------------------------


class Hello(msgspec.Struct, frozen=True, tag="hello"):
    """A worker's user has started: it can prepare jobs."""

    pod: str
    load: str
    boot_id: str


class Gone(msgspec.Struct, frozen=True, tag="gone"):
    """Its user was stopped, and with it whatever it had at work."""

    pod: str


class Going(msgspec.Struct, frozen=True, tag="going"):
    """Go has reached the driver process."""

    job: int


class Pong(msgspec.Struct, frozen=True, tag="pong"):
    sent_ns: int
    answer_ns: int


ToMaster = Hello | Gone | Going | Pong | Chunk | Ended

# --- controller → master --------------------------------------------------------------------------------------


class PrepareLoad(msgspec.Struct, frozen=True):
    """Worker number i of the load (in the order of their pods' names) gets seed + i."""

    load: str
    phase: str
    seed: int


class Prepared(msgspec.Struct, frozen=True, tag="prepared"):
    job: int
    pods: tuple[str, ...]


class GoJob(msgspec.Struct, frozen=True):
    """By pod: start and end on its own clock."""

    job: int
    windows: dict[str, tuple[int, int]]


class Job(msgspec.Struct, frozen=True):
    job: int


class Clock(msgspec.Struct, frozen=True):
    """The master's, and the name servers that its pod was given: those that a pod gets by default."""

    now_ns: int
    boot_id: str
    nameservers: tuple[str, ...]


class Worker(msgspec.Struct, frozen=True):
    """`offset`: of its clock to the master's."""

    pod: str
    load: str
    boot_id: str
    offset: Offset


class Workers(msgspec.Struct, frozen=True):
    """Those whose users have started."""

    workers: tuple[Worker, ...]


class Done(msgspec.Struct, frozen=True, tag="done"):
    """It was."""


class Problem(msgspec.Struct, frozen=True, tag="problem"):
    """Why the master did not do it."""

    error: str
