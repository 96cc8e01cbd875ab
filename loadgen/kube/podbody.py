"""The pods of a churn as the API wants them: JSON that is made once and filled with a name a pod.

A pod goes to the node under test through the scheduler, bound to the node's name and not to a label that a cluster
may lack. Its grace is one second: the pause image ends at once, and with a grace of 0 the API would forget the pod
before the kubelet has torn it down. No image is ever pulled: the kubelet tells of a sandbox only when it is done with
the pod's containers, so that a pull would be measured as a slow sandbox.
"""

from __future__ import annotations

from typing import Any

import msgspec

MANAGED = "app.kubernetes.io/managed-by"
RUN = "loadgen/run"
CHURN = "loadgen/churn"
"""Of this worker alone, so that it deletes nobody else's pods."""
JOB = "job-name"
INDEX = "batch.kubernetes.io/job-completion-index"

_MARK = "@@"
_GRACE_S = 1
_BACKOFF_LIMIT = 1000
"""A Job that reaches it kills its other pods, which would be nobody's failure but ours."""


class Template:
    """JSON with holes for a number."""

    def __init__(self, item: dict[str, Any]) -> None:
        self._parts = [part.decode() for part in msgspec.json.encode(item).split(_MARK.encode())]

    def fill(self, number: int) -> bytes:
        return str(number).join(self._parts).encode()


def labels(run: str, token: str) -> dict[str, str]:
    return {MANAGED: "loadgen", RUN: run, CHURN: token}


def selector(run: str, token: str) -> str:
    """Finds the pods and Jobs of one worker."""
    return f"{RUN}={run},{CHURN}={token}"


def name(token: str, number: int | str) -> str:
    return f"churn-{token}-{number}"


def pod(run: str, token: str, node: str, image: str) -> Template:
    """Pod number N of this worker."""
    metadata = {"name": name(token, _MARK), "labels": labels(run, token)}
    return Template({"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": _spec(node, image)})


def job(run: str, token: str, node: str, image: str, size: int) -> Template:
    """Job number N: `size` pods at once, each known by its completion index."""
    return Template(
        {
            "apiVersion": "batch/v1",
            "kind": "Job",
            "metadata": {"name": name(token, _MARK), "labels": labels(run, token)},
            "spec": {
                "completions": size,
                "parallelism": size,
                "completionMode": "Indexed",
                "backoffLimit": _BACKOFF_LIMIT,
                "template": {"metadata": {"labels": labels(run, token)}, "spec": _spec(node, image)},
            },
        }
    )


def _spec(node: str, image: str) -> dict[str, Any]:
    here = {"matchFields": [{"key": "metadata.name", "operator": "In", "values": [node]}]}
    required = {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [here]}}
    return {
        "affinity": {"nodeAffinity": required},
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        "restartPolicy": "Never",
        "terminationGracePeriodSeconds": _GRACE_S,
        "securityContext": {
            "runAsNonRoot": True,
            "runAsUser": 65535,
            "runAsGroup": 65535,
            "seccompProfile": {"type": "RuntimeDefault"},
        },
        "containers": [
            {
                "name": "pause",
                "image": image,
                "imagePullPolicy": "Never",
                "resources": {"requests": {"cpu": "1m", "memory": "1Mi"}},
                "securityContext": {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}},
            }
        ],
    }
