#!/bin/bash
# Inside a guest: an RDMA device (Soft-RoCE on one end of a veth pair), then the tests of a tier. /out/settings has CHECKOUT,
# UCX, TIER, ONLY and SECONDS_FOR_TESTS; results go to /out. Ends with the guest.
export PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin HOME=/root LC_ALL=C.UTF-8
. /out/settings
ulimit -l unlimited
ulimit -n 65536
hostname guest
ip link set lo up
echo "guest: up after $(cut -d' ' -f1 /proc/uptime) s, Linux $(uname -r)"
{
    [ "$TIER" = live ] || modprobe -a rdma_rxe veth sch_netem
    ip link add rdma0 type veth peer name rdma1
    ip addr add 198.18.7.1/24 dev rdma0
    ip link set rdma0 up
    ip link set rdma1 up
    rdma link add rxe0 type rxe netdev rdma0
    chmod 666 /dev/infiniband/*
} >/out/device.log 2>&1 || { echo "guest: no RDMA device:"; cat /out/device.log; }
# Some tests run as nobody, who may not look into a home directory. This changes nothing on the host.
for place in "$CHECKOUT" "$UCX"; do
    while [ "$place" != / ]; do
        chmod o+rx "$place"
        place=$(dirname "$place")
    done
done
export LD_LIBRARY_PATH=$UCX/lib RAPIDS_LIBUCX_PREFER_SYSTEM_LIBRARY=true HOPLITE_RDMA_TIER=$TIER
export PYTHONDONTWRITEBYTECODE=1 PYTHONUNBUFFERED=1 TMPDIR=/dev/shm PYTEST_DISABLE_PLUGIN_AUTOLOAD=1
export HOPLITE_CHECKS_SLOWER=10
cd "$CHECKOUT" || exit
timeout -k 10 "$SECONDS_FOR_TESTS" .venv/bin/python -m pytest -q -c tests/rdma/inside/pytest.ini --confcutdir tests/rdma/inside \
    tests/rdma/inside ${ONLY:+-k "$ONLY"} </dev/null >/out/pytest.log 2>&1
echo $? >/out/status
dmesg >/out/dmesg 2>/dev/null
sync
if [ "$TIER" = live ]; then echo o >/proc/sysrq-trigger; fi
poweroff -f 2>/dev/null || echo o >/proc/sysrq-trigger
sleep 10
