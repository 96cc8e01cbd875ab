"""Every wording that a kubelet, containerd, the scheduler or a CNI plugin was seen to use, and what it means."""

from __future__ import annotations

import pytest

from loadgen.core.samples import Outcome
from loadgen.kube.events import About, Ledger, Said, classify, made_ns, scheduling

ID = "3f0c7d5a9b1e42f6a8d7c6b5e4f3a2b19c8d7e6f5a4b3c2d1e0f9a8b7c6d5e4f"
UID = "0b1f6f4e-6d0f-4a53-9a57-3a9f0c1f2d11"
FAILED = "Failed to create pod sandbox: rpc error: code = Unknown desc = "
NETWORK = f'{FAILED}failed to setup network for sandbox "{ID}": plugin type="cilium-cni" name="cilium" failed (add): '
CREATE = f"{NETWORK}unable to create endpoint: "
FAIL, UNKNOWN = Outcome.FAIL, Outcome.UNKNOWN


@pytest.mark.parametrize(
    ("message", "outcome", "detail", "sandbox"),
    [
        (f"{CREATE}[PUT /endpoint/{{id}}][429] putEndpointIdTooManyRequests", FAIL, "429 TooManyRequests", ID),
        (f'{CREATE}[PUT /endpoint/{{id}}][500] putEndpointIdFailed  "timeout"', FAIL, "500 Failed", ID),
        (f"{CREATE}[PUT /endpoint/{{id}}][400] putEndpointIdInvalid", FAIL, "400 Invalid", ID),
        (
            f"{NETWORK}unable to allocate IP via local cilium agent: [POST /ipam][502] postIpamFailure range is full",
            FAIL,
            "502 IpamFailure",
            ID,
        ),
        (f"{CREATE}Cilium API client timeout exceeded", UNKNOWN, "agent timeout 90s", ID),
        (
            f"{NETWORK}unable to connect to Cilium agent: failed to create cilium agent client after 30.000000 "
            'seconds timeout: Get "http://localhost/v1/config": dial unix /var/run/cilium/cilium.sock: connect: no',
            FAIL,
            "agent unreachable",
            ID,
        ),
        (
            "Failed to create pod sandbox: rpc error: code = DeadlineExceeded desc = context deadline exceeded",
            UNKNOWN,
            "kubelet deadline 240s",
            "",
        ),
        (
            f'{FAILED}failed to setup network for sandbox "{ID}": plugin type="cilium-cni" failed (add): netplugin '
            "failed with no error message: signal: killed",
            UNKNOWN,
            "plugin killed",
            ID,
        ),
        (
            f'{FAILED}failed to reserve sandbox name "churn-0_loadgen_{UID}_0": name "churn-0_loadgen_{UID}_0" is '
            f'reserved for "{ID}"',
            FAIL,
            "sandbox name reserved",
            "",  # that id is the earlier attempt's
        ),
        (
            "Failed to create pod sandbox: rpc error: code = Unavailable desc = error reading from server: EOF",
            UNKNOWN,
            "runtime unavailable",
            "",
        ),
        (
            'Failed to create pod sandbox: rpc error: code = Unavailable desc = connection error: desc = "transport: '
            'Error while dialing: dial unix /run/containerd/containerd.sock: connect: connection refused"',
            UNKNOWN,
            "runtime unavailable",
            "",
        ),
        (
            "Failed to create pod sandbox: rpc error: code = Canceled desc = context canceled",
            UNKNOWN,
            "canceled",
            "",
        ),
        (
            f'{FAILED}failed to get sandbox image "registry.k8s.io/pause:3.10": failed to pull image '
            '"registry.k8s.io/pause:3.10": dial tcp: lookup registry.k8s.io: no such host',
            FAIL,
            "sandbox image missing",
            "",
        ),
        (
            f'{FAILED}failed to setup network for sandbox "{ID}": cni plugin not initialized',
            FAIL,
            "node network not ready",
            ID,
        ),
        (
            f'{FAILED}failed to setup network for sandbox "{ID}": failed to find plugin "cilium-cni" in path '
            "[/opt/cni/bin]",
            FAIL,
            "plugin not found",
            ID,
        ),
        # An error that a test's plugin makes, and those of our own plugin.
        (
            f'{FAILED}failed to setup network for sandbox "{ID}": plugin type="slow-cni" name="slow" failed (add): '
            f"injected failure of {ID}",
            FAIL,
            "injected failure of …",
            ID,
        ),
        (
            f'{FAILED}failed to setup network for sandbox "{ID}": plugin type="loadgen-cni" failed (add): unable to '
            "create endpoint: [PUT /endpoint/{id}][429] putEndpointIdTooManyRequests; served too late",
            FAIL,
            "429 TooManyRequests",
            ID,
        ),
        (
            f'{FAILED}failed to setup network for sandbox "{ID}": plugin type="loadgen-cni" failed (add): the '
            "agent's pod ended before it answered: EOF",
            FAIL,
            "agent ended",
            ID,
        ),
        (
            f'{FAILED}failed to setup network for sandbox "{ID}": plugin type="loadgen-cni" failed (add): netplugin '
            'failed: "exit status 1"',
            FAIL,
            "exit status 1",
            ID,
        ),
        (
            f'{FAILED}failed to start sandbox "{ID}": failed to create containerd task: failed to create shim task: '
            "OCI runtime create failed",
            FAIL,
            "failed to start sandbox …: failed to create containerd",
            ID,
        ),
        (
            f"(combined from similar events): {CREATE}Cilium API client timeout exceeded",
            UNKNOWN,
            "agent timeout 90s",
            ID,
        ),
        ("Failed to create pod sandbox: ", FAIL, "no reason given", ""),
    ],
)
def test_sandboxes_that_could_not_be_set_up(message: str, outcome: Outcome, detail: str, sandbox: str) -> None:
    assert classify("FailedCreatePodSandBox", message, deadline_s=240) == Said(About.ADD, outcome, detail, sandbox)


def test_the_kubelets_deadline_has_a_number_only_when_it_is_known() -> None:
    message = "Failed to create pod sandbox: rpc error: code = DeadlineExceeded desc = context deadline exceeded"
    assert classify("FailedCreatePodSandBox", message) == Said(About.ADD, UNKNOWN, "kubelet deadline")
    assert classify("FailedCreatePodSandBox", message, deadline_s=30) == Said(
        About.ADD, UNKNOWN, "kubelet deadline 30s"
    )


@pytest.mark.parametrize(
    ("cause", "detail"),
    [
        (
            "unable to delete endpoint: [DELETE /endpoint/{id}][429] deleteEndpointIdTooManyRequests",
            "429 TooManyRequests",
        ),
        (
            "opening netns pinned at : open : no such file or directory",
            "opening netns pinned at : open : no such file or directory",
        ),
        ("Cilium API client timeout exceeded", "agent timeout 90s"),
    ],
)
def test_sandboxes_that_could_not_be_torn_down(cause: str, detail: str) -> None:
    message = (
        f'error killing pod: failed to "KillPodSandbox" for "{UID}" with KillPodSandboxError: "rpc error: code = '
        f'Unknown desc = failed to destroy network for sandbox \\"{ID}\\": plugin type=\\"cilium-cni\\" failed '
        f'(delete): {cause}"'
    )
    said = classify("FailedKillPod", message)
    assert said is not None
    assert (said.about, said.detail, said.sandbox) == (About.DEL, detail, ID)


def test_no_ids_are_left_in_words_that_no_rule_knows() -> None:
    message = (
        f'{FAILED}failed to mount "/run/containerd/io.containerd.grpc.v1.cri/sandboxes/{ID}/shm" for pod {UID} at '
        "10.244.1.17/32, pid 48213"
    )
    said = classify("FailedCreatePodSandBox", message)
    assert said is not None
    assert said.detail == "failed to mount … for pod … at …, pid …"


@pytest.mark.parametrize(
    ("message", "why"),
    [
        (
            "0/2 nodes are available: 1 Too many pods, 1 node(s) didn't satisfy plugin(s) [NodeAffinity]. no new "
            "claims to deallocate, preemption: 0/2 nodes are available: 1 No preemption victims found.",
            "Too many pods",
        ),
        (
            "0/3 nodes are available: 1 Insufficient cpu, 1 Insufficient memory, 2 node(s) didn't match Pod's node "
            "affinity/selector. preemption: 0/3 nodes are available: 3 Preemption is not helpful for scheduling.",
            "Insufficient cpu, Insufficient memory",
        ),
        (
            "0/1 nodes are available: 1 node(s) had untolerated taint {node.kubernetes.io/not-ready: }.",
            "node not ready",
        ),
        (
            "0/2 nodes are available: 1 node(s) had untolerated taint {node.kubernetes.io/unreachable: }, 1 node(s) "
            "didn't satisfy plugin(s) [NodeAffinity].",
            "node not ready",
        ),
        ("0/1 nodes are available: 1 node(s) were unschedulable. preemption: none", "node cordoned"),
        (
            "0/1 nodes are available: 1 node(s) had untolerated taint {example.com/gpu: true}.",
            "node tainted example.com/gpu",
        ),
        ("0/2 nodes are available: 2 node(s) didn't match Pod's node affinity/selector.", "no node fits"),
        ("no nodes available to schedule pods", "no nodes available to schedule pods"),
    ],
)
def test_pods_that_find_no_node(message: str, why: str) -> None:
    assert scheduling(message) == why
    assert classify("FailedScheduling", message) == Said(About.SCHEDULING, FAIL, why)


@pytest.mark.parametrize(
    ("reason", "message", "detail"),
    [
        (
            "ErrImageNeverPull",
            'Container image "pause:9" is not present with pull policy of Never',
            "ErrImageNeverPull",
        ),
        ("Failed", "Error: ErrImageNeverPull", "ErrImageNeverPull"),
        ("Failed", 'Failed to pull image "pause:9": rpc error: code = NotFound', "ErrImagePull"),
        ("Failed", "Error: ErrImagePull", "ErrImagePull"),
        ("Failed", "Error: ImagePullBackOff", "ImagePullBackOff"),
        ("BackOff", 'Back-off pulling image "pause:9"', "ImagePullBackOff"),
        ("InspectFailed", 'Failed to apply default image tag ":": InvalidImageName', "InvalidImageName"),
    ],
)
def test_images_are_another_matter_than_sandboxes(reason: str, message: str, detail: str) -> None:
    assert classify(reason, message) == Said(About.IMAGE, FAIL, detail)


@pytest.mark.parametrize(
    ("reason", "message", "detail"),
    [
        ("SandboxChanged", "Pod sandbox changed, it will be killed and re-created.", "sandbox changed"),
        ("NetworkNotReady", "network is not ready: container runtime network not ready", "node network not ready"),
        ("NodeNotReady", "Node is not ready", "node not ready"),
        ("TaintManagerEviction", "Marking for deletion Pod x/y", "evicted: node taint"),
        ("FailedMount", 'MountVolume.SetUp failed for volume "x"', "volume not mounted"),
    ],
)
def test_what_else_holds_up_a_pod(reason: str, message: str, detail: str) -> None:
    assert classify(reason, message) == Said(About.OTHER, FAIL, detail)


@pytest.mark.parametrize(
    ("reason", "message"),
    [
        ("Scheduled", "Successfully assigned x/y to node"),
        ("Started", "Started container pause"),
        ("Failed", "Error: context deadline exceeded"),  # of a container, long after its sandbox
        ("BackOff", "Back-off restarting failed container"),
    ],
)
def test_what_says_nothing_about_sandboxes(reason: str, message: str) -> None:
    assert classify(reason, message) is None


def test_a_container_that_is_cared_for_has_a_sandbox() -> None:
    message = 'Container image "registry.k8s.io/pause:3.10" already present on machine'
    assert classify("Pulled", message) == Said(About.STANDS, Outcome.OK, "")


@pytest.mark.parametrize(
    ("name", "made"),
    [
        ("churn-abc-0.1877a5b2c3d4e5f6", 0x1877A5B2C3D4E5F6),  # client-go's
        ("churn-abc-0.5", None),
        ("churn-abc-0", None),
        ("a1b2c3d4e5f60718.x", None),
    ],
)
def test_when_an_event_was_made(name: str, made: int | None) -> None:
    assert made_ns(name) == made


def test_each_occurrence_is_counted_once() -> None:
    ledger = Ledger()
    assert [ledger.fresh("a", count, None) for count in (None, 1, 1, 3, 2, 3, 4)] == [1, 0, 0, 2, 0, 0, 1]
    # events.k8s.io: no series at first, then one that counts all of them.
    assert [ledger.fresh("b", None, series) for series in (None, 2, 2, 5)] == [1, 1, 0, 3]
    assert ledger.fresh("c", 7, None) == 7
