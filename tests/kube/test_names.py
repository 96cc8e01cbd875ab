import pytest

from loadgen.core.errors import ConfigError
from loadgen.kube import names


@pytest.mark.parametrize(
    ("name", "service", "asked"),
    [
        ("datanode.hdfs.svc.cluster.local.", "datanode-hdfs", "datanode-hdfs.load.svc.cluster.local."),
        ("datanode.hdfs.svc.cluster.local", "datanode-hdfs", "datanode-hdfs.load.svc.cluster.local"),
        ("API.Payments.svc.Cluster.Local.", "api-payments", "api-payments.load.svc.cluster.local."),
        # Not a Service of a namespace: it goes as it is.
        ("www.example.com.", None, "www.example.com."),
        ("datanode.hdfs", None, "datanode.hdfs"),
        ("0.datanode.hdfs.svc.cluster.local.", None, "0.datanode.hdfs.svc.cluster.local."),
        ("datanodexhdfs.svc.cluster.local.", None, "datanodexhdfs.svc.cluster.local."),
    ],
)
def test_a_service_of_any_namespace_has_one_in_ours(name: str, service: str | None, asked: str) -> None:
    assert (names.service(name), names.lookup(name, "load")) == (service, asked)


@pytest.mark.parametrize(
    "name", ["9p.x.svc.cluster.local.", f"{'a' * 60}.hdfs.svc.cluster.local.", "_x.y.svc.cluster.local"]
)
def test_what_no_service_can_be_called_is_refused(name: str) -> None:
    with pytest.raises(ConfigError, match="no name for one"):
        names.service(name)


def test_each_service_is_needed_once() -> None:
    asked = ["b.x.svc.cluster.local.", "example.com.", "a.x.svc.cluster.local.", "b.x.svc.cluster.local"]
    assert names.services(asked) == ["a-x", "b-x"]


def test_pods_are_called_after_their_load() -> None:
    assert names.pods([("storm", 2), ("DNS_lookups!", 1)]) == {
        "storm": ("generator-storm-0", "generator-storm-1"),
        "DNS_lookups!": ("generator-dns-lookups-0",),
    }
    (pod,) = names.pods([("x" * 200, 1)])["x" * 200]
    assert len(pod) <= names.LABEL_MAX


def test_loads_whose_pods_would_share_a_name_are_refused() -> None:
    with pytest.raises(ConfigError, match="loads a_b and a-b"):
        names.pods([("a_b", 1), ("a-b", 1)])
