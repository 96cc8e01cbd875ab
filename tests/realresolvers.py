"""Real resolvers, each in a process of its own that looks names up one after the other: libcs, Go, Node.js, Java."""

from __future__ import annotations

import importlib.util
import json
import os
import re
import shutil
import struct
import subprocess
import sys
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory

import msgspec

from loadgen.core.model import StubName
from loadgen.drivers import libc

LIMIT_S = 120

# A namespace of mounts, in which resolv.conf and nsswitch.conf are what we say.
ENTER = 'mount --bind "$1" /etc/resolv.conf && mount --bind "$2" /etc/nsswitch.conf && shift 2 && exec "$@"'

GO = """
package main

import ("context"; "encoding/json"; "errors"; "net"; "os"; "time")

func main() {
	results := [][]any{}
	for _, name := range os.Args[1:] {
		begun := time.Now()
		_, err := net.DefaultResolver.LookupIPAddr(context.Background(), name)
		took, word := time.Since(begun).Seconds(), ""
		var dns *net.DNSError
		if errors.As(err, &dns) && dns.IsNotFound {
			word = "ENOTFOUND"
		} else if errors.As(err, &dns) && (dns.IsTimeout || dns.IsTemporary) {
			word = "EAI_AGAIN"
		} else if err != nil {
			word = "EAI_FAIL"
		}
		results = append(results, []any{word, took})
	}
	json.NewEncoder(os.Stdout).Encode(results)
}
"""
NODE = """
const dns = require("node:dns/promises")
const resolver = new dns.Resolver()
async function resolve(name) {
  const said = await Promise.allSettled([resolver.resolve4(name), resolver.resolve6(name)])
  if (said.every(one => one.status == "rejected")) throw said[0].reason
}
const lookUp = process.argv[1] == "lookup" ? name => dns.lookup(name, {all: true}) : resolve
async function main() {
  const results = []
  for (const name of process.argv.slice(2)) {
    const begun = process.hrtime.bigint()
    const word = await lookUp(name).then(() => "", error => error.code)
    results.push([word, Number(process.hrtime.bigint() - begun) / 1e9])
  }
  console.log(JSON.stringify(results))
}
main()
"""
JAVA = """
import java.net.*;
public class Lookups {
    public static void main(String[] names) {
        StringBuilder out = new StringBuilder();
        for (String name : names) {
            long begun = System.nanoTime();
            String word = "";
            try { InetAddress.getAllByName(name); }
            catch (UnknownHostException e) { word = "UnknownHostException"; }
            double took = (System.nanoTime() - begun) / 1e9;
            out.append(String.format(java.util.Locale.ROOT, ",[\\"%s\\",%f]", word, took));
        }
        System.out.println("[" + out.substring(1) + "]");
    }
}
"""
CARES = """
import json, socket, sys, threading, time, pycares
channel, results = pycares.Channel(), []
for name in sys.argv[1:]:
    done, begun, said = threading.Event(), time.monotonic(), []
    def over(result, error):
        said.append(pycares.errno.errorcode[error].removeprefix("ARES_") if error else "")
        done.set()
    channel.getaddrinfo(name, None, family=socket.AF_UNSPEC, callback=over)
    done.wait()
    results.append([said[0], time.monotonic() - begun])
print(json.dumps(results))
"""
_EAI = {0: "", -2: "ENOTFOUND", -3: "EAI_AGAIN", -4: "EAI_FAIL", -5: "EAI_NODATA", -11: "EAI_SYSTEM"}
_RECORD = struct.Struct("<4qii")


class Looked(msgspec.Struct, frozen=True, array_like=True):
    """What a lookup came to: "" or an error in one of a few words, and how long it took."""

    word: str
    took_s: float


Program = Callable[[], list[str] | None]
"""The command that a runtime is started with, before its names; None when it is not on this machine."""


_folders: list[TemporaryDirectory[str]] = []


def _folder() -> Path:
    """Gone when this process ends."""
    _folders.append(TemporaryDirectory(prefix="loadgen-"))
    return Path(_folders[-1].name)


@cache
def _go() -> list[str] | None:
    if not shutil.which("go"):
        return None
    folder = _folder()
    (folder / "lookups.go").write_text(GO)
    # A program is built with the defaults of the Go release that its go.mod names; without one, with very old ones.
    (folder / "go.mod").write_text("module lookups\n\ngo 1.23\n")
    environment = {**os.environ, "CGO_ENABLED": "0", "GOTOOLCHAIN": "local", "GOFLAGS": "-mod=mod"}
    command = ["go", "build", "-o", "lookups", "."]
    subprocess.run(command, cwd=folder, env=environment, check=True, timeout=LIMIT_S)
    return [str(folder / "lookups")]


@cache
def _java() -> list[str] | None:
    if not (shutil.which("java") and shutil.which("javac")):
        return None
    folder = _folder()
    (folder / "Lookups.java").write_text(JAVA)
    subprocess.run(["javac", "Lookups.java"], cwd=folder, check=True, timeout=LIMIT_S)
    return ["java", "-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", "-Xmx64m", "-cp", str(folder)]


def _java_uncached() -> list[str] | None:
    java = _java()
    return java and [*java, "-Dsun.net.inetaddr.ttl=0", "-Dsun.net.inetaddr.negative.ttl=0", "Lookups"]


def _java_cached() -> list[str] | None:
    java = _java()
    return java and [*java, "Lookups"]


def _node(how: str) -> Program:
    return lambda: ["node", "-e", NODE, "--", how] if shutil.which("node") else None


@cache
def _node_resolve() -> list[str] | None:
    """c-ares chooses sockets in another way from 1.34.7 on; the model is of 1.34.6."""
    if not shutil.which("node"):
        return None
    said = subprocess.run(["node", "-p", "process.versions.ares"], check=True, capture_output=True, text=True).stdout
    version = tuple(int(n) for n in said.strip().split("."))
    return _node("resolve")() if (1, 34) <= version <= (1, 34, 6) else None


@cache
def musl_stub() -> StubName:
    """What this machine's musl is to a scenario. Run by itself, its loader says its version, and fails."""
    loader = next(Path("/lib").glob("ld-musl-*.so.1"), None)
    said = subprocess.run([loader], capture_output=True, text=True).stderr if loader else ""
    version = re.search(r"Version (\d+)\.(\d+)\.(\d+)", said)
    return "musl-1.2.5" if version and tuple(map(int, version.groups())) >= (1, 2, 4) else "musl-1.2.3"


def _cares() -> list[str] | None:
    return [sys.executable, "-c", CARES] if importlib.util.find_spec("pycares") else None


def _libc(name: str) -> Program:
    path = libc.program(name)
    return lambda: [str(path), "reuse"] if path.exists() else None


RUNTIMES: dict[str, Program] = {
    "glibc": _libc("glibc"),
    "musl": _libc("musl"),
    "go": _go,
    "c-ares": _cares,
    "node": _node("lookup"),
    "node-resolve": _node_resolve,
    "java": _java_cached,
    "java without its cache": _java_uncached,
}


def real(runtime: str, folder: Path, namespace: Path, resolv_conf: str, names: Sequence[str]) -> list[Looked]:
    """Look `names` up in the network namespace, by a new process whose /etc/resolv.conf is this."""
    conf, nss = folder / "resolv.conf", folder / "nsswitch.conf"
    conf.write_text(resolv_conf)
    nss.write_text("hosts: dns\n")
    program = RUNTIMES[runtime]()
    assert program is not None
    inside = ["unshare", "--mount", "sh", "-c", ENTER, "sh", str(conf), str(nss)]
    command = ["nsenter", f"--net={namespace}", *inside, *program, *names]
    if runtime in ("glibc", "musl"):
        return _by_libc(command, len(names))
    done = subprocess.run(command, check=True, capture_output=True, timeout=LIMIT_S)
    return msgspec.convert(json.loads(done.stdout), list[Looked])


def _by_libc(command: list[str], times: int) -> list[Looked]:
    """loadgen/drivers/lookup.c: a due time in, a record out; the next is due when the one before has ended."""
    looked = []
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=0) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        for _ in range(times):
            process.stdin.write(struct.pack("<q", 0))
            _, _, sent_ns, done_ns, result, _ = _RECORD.unpack(process.stdout.read(_RECORD.size))
            looked.append(Looked(_EAI[result], (done_ns - sent_ns) / 1e9))
    return looked
