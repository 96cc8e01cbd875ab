import pytest

from loadgen.kube.options import ClusterOptions
from loadgen.kube.touched import touches
from loadgen.scenarios import loader


@pytest.mark.parametrize(
    ("testbed", "options", "says", "not_a_word_of"),
    [
        ("cluster", ClusterOptions(), ["cilium-config", "DaemonSet kube-system/cilium", "2,000,000 entries"], "kind"),
        ("kind", ClusterOptions(cni="model"), ["kind cluster", "deleted at the end", "CNI configuration"], "Helm"),
        ("kind", ClusterOptions(cni="none", keep=True, node="w2"), ["kept", "node w2: 3 generator pods"], "CNI conf"),
    ],
)
def test_everything_that_a_run_would_touch_is_said(
    testbed: str, options: ClusterOptions, says: list[str], not_a_word_of: str
) -> None:
    told = "\n".join(touches(testbed, options, loader.load("chaos")))
    assert [text for text in ["namespace loadgen", "0.5% of racing DNS queries", *says] if text not in told] == []
    assert not_a_word_of not in told
