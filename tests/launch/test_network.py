"""Which interface ranks use to reach each other."""

from __future__ import annotations

import socket
from collections.abc import Sequence

import pytest

from hpc_train.launch.identity import Identity
from hpc_train.launch.network import Interface, choose_interface, interface_towards, list_interfaces
from hpc_train.launch.rendezvous import rendezvous_address

LO = Interface("lo", "127.0.0.1", 8)
DOCKER = Interface("docker0", "172.17.0.1", 16)  # the same address on every node
ETH = Interface("eno1", "10.0.0.7", 24)
HSN = Interface("hsn0", "192.168.4.7", 22)
BMC = Interface("enp0s20u1u5", "169.254.3.1", 24)  # a board's management controller


@pytest.mark.parametrize(
    ("interfaces", "wanted", "expected"),
    [
        # awslabs/awsome-distributed-training: loopback or docker0 was taken, or "^lo" was given to gloo
        ((LO, DOCKER, ETH, HSN), (), HSN),
        ((LO, DOCKER, ETH), (), ETH),
        ((LO, DOCKER, BMC, ETH), (), ETH),
        ((LO, DOCKER, ETH, HSN), ("eno*",), ETH),  # the site knows better
        ((LO, DOCKER, ETH, HSN), ("ib*", "eno1"), ETH),  # its first choice is absent here
        ((LO, ETH, HSN), ("nothing",), HSN),
        ((LO, DOCKER), (), None),
        ((LO, DOCKER), ("docker0",), DOCKER),
        ((LO, BMC), (), None),
        ((), (), None),
    ],
)
def test_a_real_network_is_chosen(
    interfaces: Sequence[Interface], wanted: Sequence[str], expected: Interface | None
) -> None:
    assert choose_interface(interfaces, wanted) == expected


@pytest.mark.parametrize(
    ("address", "expected"),
    [("192.168.5.1", HSN), ("10.0.0.1", ETH), ("127.0.0.1", LO), ("8.8.8.8", None)],
)
def test_the_interface_on_rank_0s_subnet_is_found(address: str, expected: Interface | None) -> None:
    assert interface_towards([LO, DOCKER, ETH, HSN], address) == expected


def test_the_narrowest_subnet_wins() -> None:
    wide = Interface("eth1", "10.1.0.1", 8)
    assert interface_towards([wide, ETH], "10.0.0.9") == ETH


def test_loopback_is_listed_with_its_subnet() -> None:
    assert LO in list_interfaces()


def test_every_listed_address_can_be_bound() -> None:
    for interface in list_interfaces():
        with socket.socket() as probe:
            probe.bind((interface.address, 0))


@pytest.mark.parametrize(
    ("identity", "is_loopback"),
    [
        (Identity(0, 4, 0, 4, 0, 1), True),
        (Identity(0, 1, 0, 1, 0, 1), True),
        (Identity(0, 2, 0, 1, 0, 2), False),
    ],
)
def test_loopback_serves_one_node_only(identity: Identity, is_loopback: bool) -> None:
    name = list_interfaces()[0].name  # as a site would name it; the machine may have loopback alone
    address, interface = rendezvous_address(identity, (name,))
    assert (address, interface) == ("127.0.0.1", "lo") if is_loopback else interface == name
