"""The cluster's network: one bridge of the machine, one cable (veth pair) to each node, no route to the outside.

A node's network namespace has no name: it lives and dies with the node's processes, so a crash leaves none behind.
"""

import json
import re
from ipaddress import IPv4Network, ip_network
from pathlib import Path

from slurm_cluster.errors import ClusterError
from slurm_cluster.layout import Cluster, Layout
from slurm_cluster.processes import checked_command, command


def require_free_subnet(layout: Layout, subnet: IPv4Network) -> None:
    """ClusterError if an interface that is not ours already has an address there."""
    for interface in json.loads(checked_command(["ip", "-json", "-4", "address", "show"])):
        for address in interface.get("addr_info", []):
            network = ip_network(f"{address['local']}/{address['prefixlen']}", strict=False)
            if interface["ifname"] != layout.bridge and network.overlaps(subnet):
                raise ClusterError(
                    f"addresses {subnet} are in use: interface {interface['ifname']} has {network}; "
                    "choose another range, like --subnet 10.78.0.0/24"
                )


def create_bridge(cluster: Cluster) -> None:
    bridge = cluster.layout.bridge
    address = f"{cluster.settings.controller_address}/{cluster.settings.subnet.prefixlen}"
    checked_command(["ip", "link", "add", "name", bridge, "type", "bridge"])
    _switch_ipv6_off(bridge)
    checked_command(["ip", "address", "add", address, "dev", bridge])
    checked_command(["ip", "link", "set", "dev", bridge, "up"])


def attach_node(layout: Layout, node: str, pid: int) -> None:
    """Lay the cable between the bridge and eth0 of the network namespace that process `pid` lives in."""
    link = layout.link_of(node)
    add = ["ip", "link", "add", "name", link, "type", "veth", "peer", "name", "eth0", "netns", str(pid)]
    if command(add).returncode != 0:
        # The cable of an earlier life: the kernel takes a dead node's network down some time after its last process.
        command(["ip", "link", "delete", "dev", link])
        checked_command(add)
    _switch_ipv6_off(link)
    checked_command(["ip", "link", "set", "dev", link, "master", layout.bridge, "up"])


def _switch_ipv6_off(interface: str) -> None:
    """No address comes up by itself then, which a library could choose for its traffic. Some kernels have no IPv6."""
    switch = Path(f"/proc/sys/net/ipv6/conf/{interface}/disable_ipv6")
    if switch.exists():
        switch.write_text("1")


def cut(layout: Layout, node: str) -> None:
    """Pull the machine's end of a node's cable: nothing reaches the node or leaves it, and its processes live on."""
    checked_command(["ip", "link", "set", "dev", layout.link_of(node), "down"])


def join(layout: Layout, node: str) -> None:
    """Plug the cable in again."""
    checked_command(["ip", "link", "set", "dev", layout.link_of(node), "up"])


def cut_nodes(layout: Layout) -> set[str]:
    """The nodes whose cable is there but pulled."""
    prefix = layout.link_of("")
    links = json.loads(checked_command(["ip", "-json", "link", "show"]))
    return {
        link["ifname"].removeprefix(prefix)
        for link in links
        if link["ifname"].startswith(prefix) and "UP" not in link["flags"]
    }


def remove_links(layout: Layout) -> None:
    """Remove every interface of this cluster, the bridge included."""
    for name in _links(layout):
        result = command(["ip", "link", "delete", "dev", name])
        # A cable to a node that just died may have gone meanwhile, together with the node's end of it.
        if result.returncode != 0 and name in _links(layout):
            raise ClusterError(f"could not remove the network interface {name}: {result.stderr.strip()}")


def _links(layout: Layout) -> list[str]:
    """Asked of ip and not of /sys, which may show the interfaces of another network namespace than this one."""
    ours = re.compile(re.escape(layout.identity) + r"(-n\d+)?")
    links = json.loads(checked_command(["ip", "-json", "link", "show"]))
    return [link["ifname"] for link in links if ours.fullmatch(link["ifname"])]
