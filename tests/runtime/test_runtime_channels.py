import pytest
from muster_runtime.addresses import Address, parse_address, parse_addresses


@pytest.mark.parametrize(
    ("text", "address"),
    [
        ("metadata:7420", Address("metadata", 7420)),
        (" 10.0.0.1:1 ", Address("10.0.0.1", 1)),
        ("[::1]:65535", Address("::1", 65535)),
    ],
)
def test_reads_an_address_and_writes_it_back(text: str, address: Address) -> None:
    assert parse_address(text) == address
    assert str(address) == text.strip()


@pytest.mark.parametrize(
    "text",
    [
        "",
        "host",
        ":1",
        "host:",
        "host:0",
        "host:65536",
        "host:x",
        "::1:5",
        "a b:1",
        "[]:1",
        "h:1e3",
        "h/x:1",
        "h:-1",
    ],
)
def test_refuses_what_is_no_address(text: str) -> None:
    with pytest.raises(ValueError, match=r"address|port|at least one"):
        parse_addresses(text)


def test_port_0_is_only_for_listening() -> None:
    assert parse_address("0.0.0.0:0", lowest_port=0).port == 0


def test_reads_a_list() -> None:
    assert parse_addresses("a:1, b:2,") == (Address("a", 1), Address("b", 2))


@pytest.mark.parametrize("text", ["a:1,a:1", ",".join(f"a:{port}" for port in range(1, 102))])
def test_refuses_repeats_and_endless_lists(text: str) -> None:
    with pytest.raises(ValueError, match=r"repeated|at most 100"):
        parse_addresses(text)
