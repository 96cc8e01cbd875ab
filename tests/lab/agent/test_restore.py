"""The files that endpoints are kept in."""

from __future__ import annotations

from ipaddress import IPv4Address
from pathlib import Path

from loadgen.lab.agent.endpoints import NewEndpoint
from loadgen.lab.agent.restore import EndpointFiles


def spec(number: int) -> NewEndpoint:
    return NewEndpoint(
        cni_id=f"cni-attachment-id:c{number}:eth0",
        container_id=f"c{number}",
        address=IPv4Address(f"10.0.0.{number}"),
        ifname=f"veth{number}",
        pod="ns/pod",
        ref="ns/pod",
    )


def test_what_was_saved_and_not_forgotten_is_loaded_in_the_order_of_numbers(tmp_path: Path) -> None:
    files = EndpointFiles(tmp_path / "state")
    for number in (10, 9, 8):
        files.save(number, spec(number))
    files.save(9, spec(7))
    files.forget(8)
    files.forget(8)
    assert list(EndpointFiles(tmp_path / "state").load().items()) == [(9, spec(7)), (10, spec(10))]


def test_what_is_no_endpoint_is_dropped_and_strange_files_are_left_alone(tmp_path: Path, caplog) -> None:
    files = EndpointFiles(tmp_path)
    files.save(1, spec(1))
    (tmp_path / "2.json").write_text('{"cni_id": "x"')
    (tmp_path / "3.json").write_text("{}")
    (tmp_path / "notes.json").write_text("{}")
    assert list(files.load()) == [1]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["1.json", "notes.json"]
    assert "Unable to restore endpoint" in caplog.text
