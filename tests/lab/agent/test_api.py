"""The REST API over its socket: Cilium's paths and answers, refusals, and metrics that a parser reads."""

from __future__ import annotations

import pytest
from prometheus_client.parser import text_string_to_metric_families

pytestmark = pytest.mark.kernel


def test_reading_health_configuration_and_endpoints(agent):
    assert agent.request("GET", "/v1/healthz")[1]["cilium"]["state"] == "Ok"
    _, config = agent.request("GET", "/v1/config")
    assert config["status"]["addressing"]["ipv4"]["ip"] == "10.244.0.1"
    assert agent.request("GET", "/v1/endpoint") == (200, [])
    agent.create(2)
    _, (listed,) = agent.request("GET", "/v1/endpoint")
    for name in ("cni-attachment-id:c2:eth0", "container-id:c2", "ipv4:10.244.0.2", str(listed["id"])):
        status, endpoint = agent.request("GET", f"/v1/endpoint/{name}")
        assert (status, endpoint) == (200, listed)
    assert listed["status"]["state"] == "ready"
    assert agent.request("GET", "/v1/endpoint/container-id:c3") == (404, "endpoint not found")
    assert agent.delete(2) == 200


def test_ipam(agent):
    status, answer = agent.request("POST", "/v1/ipam?family=ipv4&owner=default/web")
    address = answer["address"]["ipv4"]
    assert (status, answer["ipv4"]["ip"], answer["ipv4"]["gateway"]) == (201, address, "10.244.0.1")
    assert agent.request("POST", "/v1/ipam?family=ipv6&owner=default/web")[0] == 502
    assert agent.request("POST", f"/v1/ipam/{address}")[0] == 409
    assert agent.request("POST", "/v1/ipam/10.244.0.77")[0] == 200
    assert [agent.request("DELETE", f"/v1/ipam/{address}")[0] for _ in range(2)] == [200, 404]
    assert agent.request("DELETE", "/v1/ipam/rubbish")[0] == 400


def test_delete_of_an_endpoint_gives_its_address_back(agent):
    assert agent.request("POST", "/v1/ipam/10.244.0.66")[0] == 200
    assert agent.create(66) == 201
    assert agent.delete(66) == 200
    assert agent.request("DELETE", "/v1/ipam/10.244.0.66")[0] == 404


@pytest.mark.parametrize(
    ("method", "path", "body"),
    [
        ("PUT", "/v1/endpoint/x", {"addressing": {"ipv4": "300.1.1.1"}}),
        ("PUT", "/v1/endpoint/x", {"addressing": 4}),
        ("POST", "/v1/loadgen/link", {"netns": "/x"}),
        ("GET", "/v1/loadgen/spans?after=-1", None),
    ],
)
def test_bad_requests_are_refused_with_a_reason(agent, method, path, body):
    status, why = agent.request(method, path, body)
    assert status == 400
    assert why


def test_foreseen_wait_is_refused_at_once(start_agent):
    limits = {"rate-limit": 0.001, "rate-burst": 1, "max-wait-duration": "1s", "auto-adjust": False}
    agent = start_agent(apiRateLimit={"endpoint-create": limits})
    # Four are let in unlimited (skip-initial), one has the token, the sixth would wait for 1000 s.
    assert [agent.create(number) for number in range(2, 8)] == [201] * 5 + [429]
    refused = [s for s in agent.spans() if s.stage == "total" and s.outcome == "429"]
    assert [s.ref for s in refused] == ["c7"]
    assert agent.request("GET", "/v1/endpoint/container-id:c7")[0] == 404
    labels = 'api_call="endpoint-create",outcome="fail-limit-wait",return_code="429"'
    assert f"processed_requests_total{{{labels}}} 1.0" in agent.request("GET", "/metrics")[1].decode()


def test_wait_for_a_place_is_refused_at_its_limit(start_agent):
    limits = {"rate-limit": 0, "parallel-requests": 1, "max-wait-duration": "50ms", "auto-adjust": False}
    agent = start_agent(apiRateLimit={"endpoint-create": limits}, buildPermits=1)
    agent.fill(100_000)
    answers = list(agent.pool.map(agent.create, range(2, 9)))
    assert answers.count(201) == 5
    assert answers.count(429) == 2
    labels = 'api_call="endpoint-create",outcome="fail-parallel-wait",return_code="429"'
    assert f"processed_requests_total{{{labels}}} 2.0" in agent.request("GET", "/metrics")[1].decode()


def test_client_that_leaves_the_limiter_was_never_there(start_agent):
    limits = {"rate-limit": 0.1, "rate-burst": 1, "auto-adjust": False}
    agent = start_agent(apiRateLimit={"endpoint-create": limits})
    for number in range(2, 7):
        agent.create(number)
    client = agent.send("PUT", *agent.spec(7))
    agent.until(lambda state: state.limiters["endpoint-create"].queued == 1)
    client.close()
    agent.until(lambda state: state.limiters["endpoint-create"].queued == 0)
    assert "c7" not in {s.ref for s in agent.walks("endpoint-create")}
    assert [s.outcome for s in agent.spans() if s.ref == "c7" and s.stage == "total"] == ["429"]


def test_metrics_are_text_that_the_parser_reads(start_agent):
    agent = start_agent(profile="1.18")
    agent.create(2)
    agent.delete(2)
    agent.delete(2)
    text = agent.request("GET", "/metrics")[1].decode()
    families = {family.name: family for family in text_string_to_metric_families(text)}
    api = {
        (s.labels["path"], s.labels["method"], s.labels["return_code"]): s.value
        for s in families["cilium_agent_api_process_time_seconds"].samples
        if s.name.endswith("_count")
    }
    assert api["/v1/endpoint", "PUT", "201"] == 1
    assert api["/v1/endpoint", "DELETE", "200"] == 1
    assert api["/v1/endpoint", "DELETE", "404"] == 1
    scopes = {s.labels["scope"] for s in families["cilium_endpoint_regeneration_time_stats_seconds"].samples}
    assert scopes == {"buildPermitAcquisition", "waitingForCTClean", "bpfLoadProg", "total"}
