"""Ports for servers that start in a moment."""

import socket
from pathlib import Path

import pytest
from muster_server.dev.ports import LOOPBACK, PORTS_VARIABLE, free_ports, is_free


@pytest.fixture(autouse=True)
def _from_all_ports(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(PORTS_VARIABLE, raising=False)


def test_ports_are_different_and_free() -> None:
    ports = free_ports(50)
    assert len(set(ports)) == 50
    assert all(is_free(port) for port in ports)


@pytest.mark.slow
def test_a_port_that_nobody_has_taken_yet_is_not_drawn_again() -> None:
    ports = [port for _ in range(20) for port in free_ports(100)]  # by chance alone 110 would be drawn twice
    assert len(set(ports)) == 2_000


def test_a_port_with_a_listener_is_not_free() -> None:
    with socket.socket() as listener:
        listener.bind((LOOPBACK, 0))
        listener.listen()
        assert not is_free(listener.getsockname()[1])


def test_no_outgoing_connection_takes_a_drawn_port() -> None:
    table = Path("/proc/sys/net/ipv4/ip_local_port_range")
    if not table.exists():
        pytest.skip("this system does not say which ports outgoing connections get")
    first = int(table.read_text().split()[0])
    assert max(free_ports(50)) < first


@pytest.mark.slow
def test_more_than_there_are_is_refused() -> None:
    with pytest.raises(OSError, match="no 100000 free ports from 15000 to 32767"):
        free_ports(100_000)


def test_they_come_from_the_range_that_is_given(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(PORTS_VARIABLE, "20000-20099")
    drawn = [port for _ in range(20) for port in free_ports(10)]
    assert set(drawn) <= set(range(20_000, 20_100))
    assert all(len(set(drawn[first : first + 40])) == 40 for first in range(160)), "the latest are not drawn"
    monkeypatch.setenv(PORTS_VARIABLE, "20000")
    with pytest.raises(ValueError, match="MUSTER_DEV_PORTS='20000' is no range of ports"):
        free_ports(1)
