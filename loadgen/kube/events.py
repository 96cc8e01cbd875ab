"""What Kubernetes says in events about pods that do not start, or do not go, in a few words without ids.

Sources of the wordings: kubelet 1.34 (pkg/kubelet, kuberuntime), containerd 1.6 to 2.3 (internal/cri/server), libcni,
kube-scheduler, cilium-cni, and what they really sent around slow and failing plugins. Pure: texts in, records out.
"""

from __future__ import annotations

import re
from enum import Enum

import msgspec

from loadgen.core.samples import Outcome

AGENT_TIMEOUT = "agent timeout 90s"
"""cilium-cni's own limit (pkg/api ClientTimeout); its message does not say how long it was."""
WORDS_MAX = 60


class About(Enum):
    """What an event speaks of."""

    ADD = "a sandbox that could not be set up"
    STANDS = "a container that is looked after: its sandbox stands"
    DEL = "a sandbox that could not be torn down"
    SCHEDULING = "a pod that found no node"
    IMAGE = "a container's image, after the sandbox"
    OTHER = "anything else that holds up a pod"


class Said(msgspec.Struct, frozen=True):
    """One event, understood. `outcome` is UNKNOWN where the agent may have gone on after its client had left."""

    about: About
    outcome: Outcome
    detail: str
    sandbox: str = ""
    """The container id of the attempt, where the text has it."""


_REASONS = {
    "FailedCreatePodSandBox": About.ADD,
    "FailedKillPod": About.DEL,
    "FailedScheduling": About.SCHEDULING,
    "Pulled": About.STANDS,
    "ErrImageNeverPull": About.IMAGE,
    "InspectFailed": About.IMAGE,
    "Failed": About.IMAGE,
    "BackOff": About.IMAGE,
}

_OTHER = {
    "SandboxChanged": "sandbox changed",
    "NetworkNotReady": "node network not ready",
    "NodeNotReady": "node not ready",
    "TaintManagerEviction": "evicted: node taint",
    "Evicted": "evicted",
    "Preempted": "preempted",
    "FailedMount": "volume not mounted",
    "FailedCreate": "Job could not create a pod",
}

_SANDBOX = re.compile(r'(?:sandbox|sandbox container|for sandbox|network for sandbox) \\?"([0-9a-f]{12,64})\\?"')
_PREFIX = "(combined from similar events): "

_STATUS = re.compile(r"\[(\d{3})\] (?:get|put|post|patch|delete)(?:EndpointId)?(\w*)")
"""As Cilium's generated client prints an answer: `[PUT /endpoint/{id}][429] putEndpointIdTooManyRequests`."""

_RULES: tuple[tuple[re.Pattern[str], Outcome, str], ...] = tuple(
    (re.compile(pattern), outcome, detail)
    for pattern, outcome, detail in (
        (r"is reserved for|failed to reserve sandbox name", Outcome.FAIL, "sandbox name reserved"),
        (r"Cilium API client timeout exceeded", Outcome.UNKNOWN, AGENT_TIMEOUT),
        (r"unable to connect to Cilium agent|cilium agent client after", Outcome.FAIL, "agent unreachable"),
        (r"the agent's pod ended", Outcome.FAIL, "agent ended"),
        (
            r"network not ready|cni plugin not initialized|cni config uninitialized|no network config found",
            Outcome.FAIL,
            "node network not ready",
        ),
        (r"signal: killed", Outcome.UNKNOWN, "plugin killed"),
        (r"code = DeadlineExceeded|context deadline exceeded", Outcome.UNKNOWN, "kubelet deadline"),
        (
            r"code = Unavailable|error reading from server: EOF|transport is closing|containerd\.sock",
            Outcome.UNKNOWN,
            "runtime unavailable",
        ),
        (r"code = Canceled|context canceled", Outcome.UNKNOWN, "canceled"),
        (r"failed to (?:get|pull) (?:and unpack )?(?:sandbox )?image", Outcome.FAIL, "sandbox image missing"),
        (r"failed to find plugin", Outcome.FAIL, "plugin not found"),
    )
)

_PLUGIN = re.compile(r"failed \((?:add|delete)\): (.*)", re.DOTALL)
_NETPLUGIN = re.compile(r"netplugin failed(?: with no error message)?: (.*)", re.DOTALL)
_RPC = re.compile(r"rpc error: code = (\w+) desc = ")
_LEAD = re.compile(
    r"^(?:Failed to create pod sandbox: |error killing pod: |failed to \"KillPodSandbox\" for \"[^\"]*\" with \w+: )+"
)
_IDS = re.compile(
    r"\b[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}\b"  # a pod's uid
    r"|\b[0-9a-f]{12,64}\b"  # a container's
    r"|\b\d+\.\d+\.\d+\.\d+(?:/\d+|:\d+)?\b"
    r"|\\?\"[^\"]*\\?\""
    r"|/(?:proc|run|var|etc)/\S+"
    r"|\b\d{4,}\b"
)


def classify(reason: str, message: str, *, deadline_s: float | None = None) -> Said | None:
    """What an event means; None for one that tells of nothing gone wrong.

    `deadline_s`: the longest that the kubelet lets a RunPodSandbox take, twice its runtimeRequestTimeout; None when
    it is not known.
    """
    message = message.removeprefix(_PREFIX)
    about = _REASONS.get(reason)
    match about:
        case About.ADD | About.DEL:
            return _sandbox(about, message, deadline_s)
        case About.STANDS:
            return Said(About.STANDS, Outcome.OK, "")
        case About.SCHEDULING:
            return Said(About.SCHEDULING, Outcome.FAIL, scheduling(message))
        case About.IMAGE:
            detail = _image(message)
            return Said(About.IMAGE, Outcome.FAIL, detail) if detail else None
        case _:
            other = _OTHER.get(reason)
            return Said(About.OTHER, Outcome.FAIL, other) if other else None


def _sandbox(about: About, message: str, deadline_s: float | None) -> Said:
    found = _SANDBOX.search(message)
    sandbox = found[1] if found else ""
    if status := _STATUS.search(message):
        return Said(about, Outcome.FAIL, f"{status[1]} {status[2]}".strip(), sandbox)
    for pattern, outcome, detail in _RULES:
        if pattern.search(message):
            if detail == "kubelet deadline" and deadline_s is not None:
                detail = f"kubelet deadline {deadline_s:g}s"
            if detail == "sandbox name reserved":
                sandbox = ""  # the id in that text is the earlier attempt's, which still holds the name
            return Said(about, outcome, detail, sandbox)
    return Said(about, Outcome.FAIL, _words(message), sandbox)


def _words(message: str) -> str:
    """What a text that no rule knows says itself, without what differs from pod to pod."""
    if found := _PLUGIN.search(message):
        message = found[1]
    else:
        message = _RPC.sub("", _LEAD.sub("", message).lstrip('"'), count=1)
    if found := _NETPLUGIN.search(message):
        message = found[1].strip('\\"')
    plain = re.sub(r"\s+", " ", _IDS.sub("…", message)).strip(' ".')
    plain = re.sub(r"(?:\s*…)+", " …", plain).strip()
    if len(plain) > WORDS_MAX:
        plain = plain[:WORDS_MAX].rsplit(" ", 1)[0].rstrip(" :;,")
    return plain or "no reason given"


_TAINTS = {
    "node.kubernetes.io/not-ready": "node not ready",
    "node.kubernetes.io/unreachable": "node not ready",
    "node.kubernetes.io/unschedulable": "node cordoned",
    "node.kubernetes.io/network-unavailable": "node network not ready",
    "node.kubernetes.io/disk-pressure": "node under disk pressure",
    "node.kubernetes.io/memory-pressure": "node under memory pressure",
    "node.kubernetes.io/pid-pressure": "node under PID pressure",
}


def scheduling(message: str) -> str:
    """Why the one node that a pod may go to does not take it, from kube-scheduler's text about all nodes.

    The other nodes are in there too, as those that do not match; they are left out.
    """
    _, _, said = message.partition(" nodes are available: ")
    said = re.split(r"\.(?: |$)|\. preemption:| preemption:", said, maxsplit=1)[0]
    found: list[str] = []
    for part in re.split(r", (?=\d+ )", said):
        why = re.sub(r"^\d+ ", "", part).strip()
        if taint := re.search(r"taint(?:\(s\))? \{([^:}]+)", why):
            why = _TAINTS.get(taint[1].strip(), f"node tainted {taint[1].strip()}")
        elif "were unschedulable" in why:
            why = "node cordoned"
        elif "affinity" in why.lower() or "selector" in why.lower() or not why:
            continue
        if why not in found:
            found.append(why)
    if found:
        return ", ".join(found)
    return "no node fits" if said else _words(message)


def _image(message: str) -> str:
    """Of the kubelet's reasons Failed and BackOff only what concerns images; the rest comes after the image."""
    if "ErrImageNeverPull" in message or "pull policy of Never" in message:
        return "ErrImageNeverPull"
    if "ImagePullBackOff" in message or "pulling image" in message:
        return "ImagePullBackOff"
    if "ErrImagePull" in message or "Failed to pull image" in message:
        return "ErrImagePull"
    return "InvalidImageName" if "InvalidImageName" in message else ""


def made_ns(name: str) -> int | None:
    """When the source of an event made it, by its own clock: client-go puts that into the event's name, in hex."""
    stamp = name.rpartition(".")[2]
    return int(stamp, 16) if re.fullmatch(r"[0-9a-f]{16}", stamp) else None


class Ledger:
    """How often each event has happened, so that what a watch shows again is not counted again.

    A source that says the same twice raises its event's count (or its series') instead of making another; it may
    raise it by several between two looks.
    """

    def __init__(self) -> None:
        self._seen: dict[str, int] = {}

    def fresh(self, uid: str, count: int | None, series: int | None) -> int:
        """Occurrences of event `uid` that have not been counted yet. `count` and `series` as the API has them."""
        total = max(count or 1, series or 1)
        before = self._seen.get(uid, 0)
        self._seen[uid] = max(total, before)
        return max(0, total - before)
