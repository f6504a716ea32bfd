"""Which address and interface ranks use to reach each other.

Apart because "the first address" is the commonest way to a hang: loopback, a container bridge, or the slow management
network. Pure choice on a list of interfaces; one function asks the kernel. Standard library only, Linux only.
"""

from __future__ import annotations

import fcntl
import fnmatch
import ipaddress
import socket
import struct
from collections.abc import Sequence
from dataclasses import dataclass

__all__ = ["Interface", "choose_interface", "interface_towards", "list_interfaces"]

_SIOCGIFFLAGS, _SIOCGIFADDR, _SIOCGIFNETMASK = 0x8913, 0x8915, 0x891B  # netdevice(7)
_IFF_UP = 0x1
_LINK_LOCAL = ipaddress.IPv4Network("169.254.0.0/16")  # a board's management controller, or no DHCP answer
# Bridges and tunnels of containers, machines and private networks: often the same address on every node.
_VIRTUAL = (
    "lo", "docker*", "virbr*", "br-*", "cni*", "podman*", "veth*", "tun*", "tap*", "wg*", "cali*", "cilium*",
    "flannel*", "vxlan*", "lxc*", "lxdbr*", "kube-*", "dummy*", "tailscale*", "usb*", "idrac*",
)  # fmt: skip
_FAST = ("hsn*", "ib*")  # Slingshot and InfiniBand names; a site file may say better


@dataclass(frozen=True)
class Interface:
    """A network interface with its IPv4 address and prefix length [bits]."""

    name: str
    address: str
    prefix: int

    @property
    def network(self) -> ipaddress.IPv4Network:
        """The subnet that the address lies in."""
        return ipaddress.IPv4Network(f"{self.address}/{self.prefix}", strict=False)


def list_interfaces() -> list[Interface]:
    """The interfaces of this host that are up and have an IPv4 address, in kernel order."""
    found = []
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        for _, name in socket.if_nameindex():
            request = struct.pack("256s", name.encode()[:15])
            try:
                (flags,) = struct.unpack("=H", fcntl.ioctl(probe.fileno(), _SIOCGIFFLAGS, request)[16:18])
                if not flags & _IFF_UP:
                    continue
                address = socket.inet_ntoa(fcntl.ioctl(probe.fileno(), _SIOCGIFADDR, request)[20:24])
                mask = struct.unpack("!I", fcntl.ioctl(probe.fileno(), _SIOCGIFNETMASK, request)[20:24])[0]
            except OSError:  # no IPv4 address on it
                continue
            found.append(Interface(name, address, bin(mask).count("1")))
    return found


def choose_interface(interfaces: Sequence[Interface], wanted: Sequence[str] = ()) -> Interface | None:
    """The interface by which other nodes should reach this one; None where there is only loopback.

    Args:  wanted: the site's names or globs, best first; they beat every rule of ours.
    """
    for pattern in (*wanted, *_FAST):
        for interface in interfaces:
            if fnmatch.fnmatchcase(interface.name, pattern):
                return interface
    return next((interface for interface in interfaces if not _is_virtual(interface)), None)


def _is_virtual(interface: Interface) -> bool:
    by_name = any(fnmatch.fnmatchcase(interface.name, pattern) for pattern in _VIRTUAL)
    return by_name or ipaddress.IPv4Address(interface.address) in _LINK_LOCAL


def interface_towards(interfaces: Sequence[Interface], address: str) -> Interface | None:
    """The interface whose subnet holds `address`, so that all nodes use one network; None if no subnet does."""
    target = ipaddress.IPv4Address(address)
    holding = [interface for interface in interfaces if target in interface.network]
    return max(holding, key=lambda interface: interface.prefix, default=None)
