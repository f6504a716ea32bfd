# The life of one node, as PID 1 of its namespaces: boot_node.sh NODE ADDRESS HOSTS_FILE TMP_DIRECTORY
#
# slurmd runs in the foreground of this shell and not in its place: a PID 1 has to reap what other processes of the node
# leave behind, and slurmd leaves one zombie for every step.
set -e
node=$1 address=$2 hosts=$3 tmp=$4

echo "$node" >/proc/sys/kernel/hostname
mount --bind "$hosts" /etc/hosts
# Private because Slurm's PMIx plugin names its directories in /tmp by user, job and step only: two nodes that shared it
# would fail with "File exists".
mount --bind "$tmp" /tmp
mount -t tmpfs -o mode=1777,nosuid,nodev shm /dev/shm

tries=0
until ip link show dev eth0 >/dev/null 2>&1; do
    tries=$((tries + 1))
    [ "$tries" -le 200 ] || { echo "$node: no network cable came within 10 s"; exit 1; }
    sleep 0.05
done
ip link set dev lo up
# No address comes up by itself then, which a library could choose for its traffic. Some kernels have no IPv6.
ipv6=/proc/sys/net/ipv6/conf/eth0/disable_ipv6
[ ! -e "$ipv6" ] || echo 1 >"$ipv6"
ip address add "$address" dev eth0
ip link set dev eth0 up

slurmd -D -N "$node"
exit
