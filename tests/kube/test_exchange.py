"""What controller, master and workers tell each other survives the way, and Locust stays where it belongs."""

import re
from pathlib import Path

import msgspec
import pytest

from loadgen.core.model import Burst, Dns, Resolver, Storm, seconds
from loadgen.kube import exchange
from loadgen.kube.exchange import Assignment, Config, Targets
from loadgen.kube.streams import Chunk, Ended

PACKAGE = Path(exchange.__file__).parents[1]


def test_a_configuration_comes_out_as_it_went_in() -> None:
    targets = Targets(("10.0.0.1", "10.0.0.2"), 50010, 250)
    lookups = Dns(pace=Burst(size=3, every=seconds(0.5), count=2), via="musl", timeout=seconds(1.5))
    config = Config(
        {
            "storm": Assignment(load=Storm(), targets=targets),
            "lookups": Assignment(load=lookups, resolver=Resolver("timeout:1", ("a",)), server="10.96.0.10"),
        }
    )
    assert exchange.decode_config(exchange.encode_config(config)) == config


@pytest.mark.parametrize(
    ("message", "kind"),
    [
        (exchange.Prepare(1, "main", 7), exchange.ToWorker),
        (exchange.Go(1, 2**62, 2**62 + 1), exchange.ToWorker),
        (exchange.Close(1), exchange.ToWorker),
        (exchange.Hello("p", "storm", "id"), exchange.ToMaster),
        (Chunk(1, "p", 0, bytes(range(256))), exchange.ToMaster),
        (Ended(1, "p", 3, "killed"), exchange.ToMaster),
    ],
)
def test_a_message_is_known_by_its_tag(message: msgspec.Struct, kind: type) -> None:
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(message), type=kind) == message


def test_the_locustfiles_alone_know_locust_and_nobody_imports_them() -> None:
    assert (exchange.LOCUSTFILE, exchange.LOOKUPFILE) == ("locustfile.py", "lookupfile.py")
    sources = {path: path.read_text() for path in PACKAGE.rglob("*.py")}
    knows = [
        path for path, text in sources.items() if re.search(r"^(from|import) (locust|gevent|flask)\b", text, re.M)
    ]
    kube = Path(exchange.__file__).parent
    assert sorted(knows) == [kube / name for name in (exchange.LOCUSTFILE, "locuststats.py", "lookupfile.py")]
    sources = {path: text for path, text in sources.items() if path not in knows}
    imported = r"^(from loadgen\.kube import .*|from loadgen\.kube\.|import loadgen\.kube\.)(locust|lookupfile)"
    assert not [path for path, text in sources.items() if re.search(imported, text, re.M)]
