from pathlib import Path

import jinja2
import pytest

from loadgen.core.errors import ConfigError
from loadgen.kube import manifests

ABOUT = {"namespace": "load", "run": "abc", "node": "worker-1", "image": "loadgen:1"}
AWKWARD = 'a "quoted" {brace}: #no\n- comment'


def test_values_stay_what_they_are_whatever_they_hold() -> None:
    found = manifests.render("datanodes", **{**ABOUT, "image": AWKWARD}, elsewhere=True, config=AWKWARD, pods=2)
    config, *pods = found
    assert config["data"] == {"datanode.json": AWKWARD}
    assert [pod["metadata"]["name"] for pod in pods] == ["datanode-0", "datanode-1"]
    assert pods[0]["spec"]["containers"][0]["image"] == AWKWARD


def test_a_placeholder_without_a_value_is_a_mistake_and_not_an_empty_word() -> None:
    with pytest.raises((jinja2.UndefinedError, TypeError), match=r"[Uu]ndefined"):
        manifests.render("namespace", namespace="load")


def test_a_manifest_that_is_not_there_says_where_it_was_looked_for(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(manifests, "FOLDER", tmp_path)
    with pytest.raises(ConfigError, match=r"namespace\.yaml is missing"):
        manifests.render("namespace", **ABOUT)


def test_the_namespace_says_whose_it_is() -> None:
    (namespace,) = manifests.render("namespace", namespace="load", run="abc")
    labels = namespace["metadata"]["labels"]
    assert (namespace["metadata"]["name"], labels["loadgen/run"]) == ("load", "abc")
    assert labels["app.kubernetes.io/managed-by"] == "loadgen"


@pytest.mark.parametrize("elsewhere", [True, False])
def test_datanodes_keep_away_from_the_node_under_test_when_there_is_another(elsewhere: bool) -> None:
    _, pod = manifests.render("datanodes", **ABOUT, elsewhere=elsewhere, config="{}", pods=1)
    away = pod["spec"]["affinity"].get("nodeAffinity")
    term = {"matchFields": [{"key": "metadata.name", "operator": "NotIn", "values": ["worker-1"]}]}
    required = {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [term]}}
    assert away == (required if elsewhere else None)
    assert bool(pod["spec"].get("tolerations")) != elsewhere


def test_a_generator_has_the_variant_s_resolver_and_nothing_else() -> None:
    dns = {"nameservers": ["10.96.0.10"], "searches": ["x"], "options": [{"name": "timeout", "value": "1"}]}
    workers = [{"pod": "generator-a-0", "load": "a", "dns": dns}, {"pod": "generator-b-0", "load": "b", "dns": None}]
    made = manifests.render(
        "generators", **ABOUT, config="{}", services=["x-y"], workers=workers, master="10.0.0.9", locustfile="/l.py"
    )
    _, service, looks_up, other = made
    assert (service["kind"], service["metadata"]["name"]) == ("Service", "x-y")
    assert (looks_up["spec"]["dnsPolicy"], looks_up["spec"]["dnsConfig"]) == ("None", dns)
    assert "dnsPolicy" not in other["spec"]
    (container,) = other["spec"]["containers"]
    assert "--master-host=10.0.0.9" in container["command"]
    assert {"name": "LOADGEN_LOAD", "value": "b"} in container["env"]


def test_no_pod_of_ours_is_root_or_without_limits() -> None:
    values = {"elsewhere": False, "config": "{}", "services": [], "master": "10.0.0.9", "locustfile": "/l.py"}
    workers = [{"pod": "generator-a-0", "load": "a", "dns": None}]
    made = [
        *manifests.render("master", **ABOUT, **values, workers=1),
        *manifests.render("datanodes", **ABOUT, **values, pods=1),
        *manifests.render("generators", **ABOUT, **values, workers=workers),
    ]
    pods = [item for item in made if item["kind"] == "Pod"]
    assert len(pods) == 3
    for pod in pods:
        assert pod["spec"]["securityContext"]["runAsNonRoot"]
        assert pod["spec"]["restartPolicy"] == "Never"
        assert pod["metadata"]["labels"]["loadgen/part"]
        for container in pod["spec"]["containers"]:
            assert container["securityContext"]["capabilities"] == {"drop": ["ALL"]}
            assert container["resources"]["requests"]
            assert container["resources"]["limits"]["memory"]
