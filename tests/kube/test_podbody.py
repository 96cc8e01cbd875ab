from __future__ import annotations

import json

from loadgen.kube import podbody


def test_a_pod_is_filled_with_its_number_and_nothing_else() -> None:
    template = podbody.pod("run7", "abc", "node-1", "pause:3")
    first, second = template.fill(3), template.fill(41)
    assert first.replace(b"churn-abc-3", b"churn-abc-41") == second
    pod = json.loads(first)
    assert pod["metadata"]["name"] == podbody.name("abc", 3) == "churn-abc-3"
    labels = pod["metadata"]["labels"]
    assert labels == {"app.kubernetes.io/managed-by": "loadgen", "loadgen/run": "run7", "loadgen/churn": "abc"}
    assert podbody.selector("run7", "abc") == ",".join(f"{k}={v}" for k, v in labels.items() if "loadgen/" in k)


def test_a_pod_is_scheduled_to_its_node_and_asks_for_next_to_nothing() -> None:
    spec = json.loads(podbody.pod("run7", "abc", "node-1", "pause:3").fill(0))["spec"]
    assert "nodeName" not in spec  # the scheduler is part of what is measured
    (term,) = spec["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]["nodeSelectorTerms"]
    assert term == {"matchFields": [{"key": "metadata.name", "operator": "In", "values": ["node-1"]}]}
    assert spec["automountServiceAccountToken"] is False
    # 0 would have the API forget the pod before its sandbox is torn down.
    assert spec["terminationGracePeriodSeconds"] == 1
    (container,) = spec["containers"]
    assert (container["image"], container["imagePullPolicy"]) == ("pause:3", "Never")
    assert container["resources"] == {"requests": {"cpu": "1m", "memory": "1Mi"}}


def test_a_job_makes_all_its_pods_at_once_by_their_index() -> None:
    job = json.loads(podbody.job("run7", "abc", "node-1", "pause:3", 50).fill(2))
    assert job["metadata"]["name"] == "churn-abc-2"
    spec = job["spec"]
    assert (spec["completions"], spec["parallelism"], spec["completionMode"]) == (50, 50, "Indexed")
    pod = json.loads(podbody.pod("run7", "abc", "node-1", "pause:3").fill(2))
    assert spec["template"]["spec"] == pod["spec"]
    assert spec["template"]["metadata"]["labels"] == pod["metadata"]["labels"]
