#!/bin/bash
# A Slurm of several nodes in namespaces of its own, beside whatever the machine has. It ends with
# COMMAND. slurm_nodes.py starts it:
#
#   unshare --net --uts --mount --pid --fork --kill-child --mount-proc \
#       bash tools/cluster/slurm_cluster.sh FOLDER COUNT COMMAND...
#
# No key of munge is needed, as nothing is authenticated.
set -euo pipefail
folder=$1
count=$2
shift 2

mount --make-rprivate /
mount -t tmpfs tmpfs /run
mkdir -p /run/netns /run/slurm "$folder/state" "$folder/etc"
mount -t tmpfs tmpfs "$folder/state"
mkdir "$folder/state/controller"

hostname ctl
ip link set lo up
ip link add bridge type bridge
ip addr add 10.77.0.1/16 dev bridge
ip link set bridge up
{
    echo "127.0.0.1 localhost"
    echo "10.77.0.1 ctl"
    for number in $(seq "$count"); do printf '10.77.1.%d node%02d\n' "$number" "$number"; done
} > "$folder/etc/hosts"
mount --bind "$folder/etc/hosts" /etc/hosts

export SLURM_CONF=$folder/etc/slurm.conf
cat > "$SLURM_CONF" <<CONF
ClusterName=test
SlurmctldHost=ctl
SlurmUser=root
SlurmdUser=root
AuthType=auth/none
CredType=cred/none
ProctrackType=proctrack/pgid
TaskPlugin=task/none
SwitchType=switch/none
MpiDefault=none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
StateSaveLocation=$folder/state/controller
SlurmdSpoolDir=$folder/state/%n
SlurmctldPidFile=/run/slurm/ctl.pid
SlurmdPidFile=/run/slurm/%n.pid
SlurmdParameters=config_overrides
ReturnToService=2
KillWait=5
JobRequeue=1
SchedulerType=sched/backfill
SchedulerParameters=bf_interval=1,sched_interval=1,batch_sched_delay=1
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
NodeName=node[01-$(printf %02d "$count")] CPUs=8 RealMemory=1000 State=UNKNOWN
PartitionName=main Nodes=ALL Default=YES MaxTime=INFINITE State=UP
CONF
printf 'CgroupPlugin=cgroup/v1\nCgroupAutomount=no\nCgroupMountpoint=%s\n' \
    "$folder/state/cgroup" > "$folder/etc/cgroup.conf"

slurmctld-wlm -D > "$folder/ctl.log" 2>&1 &
for number in $(seq "$count"); do
    node=$(printf 'node%02d' "$number")
    mkdir "$folder/state/$node"
    ip netns add "$node"
    ip link add "veth$number" type veth peer name eth0 netns "$node"
    ip link set "veth$number" master bridge up
    ip -n "$node" addr add "10.77.1.$number/16" dev eth0
    ip -n "$node" link set eth0 up
    ip -n "$node" link set lo up
    # Not `ip netns exec`, which hides /sys/fs/cgroup.
    nsenter --net="/run/netns/$node" unshare --uts bash -c \
        "hostname $node; exec slurmd-wlm -D -N $node" > "$folder/$node.log" 2>&1 &
done
for _ in {1..100}; do
    if [ "$(sinfo --noheader --states=idle --format=%D 2> /dev/null)" = "$count" ]; then
        "$@"
        exit
    fi
    sleep 0.2
done
echo "the nodes do not come up; see $folder/*.log" >&2
exit 1
