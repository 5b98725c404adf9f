#!/bin/bash
# A real Slurm with three nodes on this machine; tools/cluster/slurm.py starts and ends it.
#
#   unshare --net --uts --mount --pid --fork --kill-child --mount-proc \
#       bash tools/cluster/slurm_cluster.sh FOLDER COMMAND...
#
# Needs root, and Debian's packages: installed (apt-get install slurmctld slurmd slurm-client), or else
# unpacked into FOLDER and shown to the cluster alone. No key of munge is needed, as nothing is
# authenticated. All of it runs in namespaces of its own, beside whatever the machine has, and ends
# with COMMAND.
set -euo pipefail
folder=$1
shift
plugins=/usr/lib/x86_64-linux-gnu/slurm-wlm

mkdir -p "$folder"
stepd=()
if [ -d "$folder/root" ]; then
    mount --make-rprivate /
    mount -t overlay overlay -o "lowerdir=$folder/root/usr:/usr" /usr
    stepd=(-d /usr/sbin/slurmstepd-wlm)
elif ! [ -x /usr/sbin/slurmctld-wlm ] || ! [ -x /usr/sbin/slurmd-wlm ]; then
    echo "$folder has no packages yet; fetch them outside of the name spaces, with a network:" >&2
    echo "  mkdir -p $folder/debs && cd $folder/debs && apt-get download slurmctld slurmd" \
        "slurm-client slurm-wlm-basic-plugins libhwloc15 liblua5.1-0 libmunge2 munge" >&2
    echo "  for deb in *.deb; do dpkg -x \$deb ../root; done" >&2
    exit 2
fi

mount --make-rprivate /
mount -t tmpfs tmpfs /run
mkdir -p /run/netns /run/slurm "$folder/state" "$folder/etc"
mount -t tmpfs tmpfs "$folder/state"
mkdir "$folder/state/controller"

hostname ctl
ip link set lo up
ip link add bridge type bridge
ip addr add 10.77.0.1/24 dev bridge
ip link set bridge up
{
    echo "127.0.0.1 localhost"
    echo "10.77.0.1 ctl"
    for number in 1 2 3; do echo "10.77.0.1$number node0$number"; done
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
PluginDir=$plugins
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
NodeName=node[01-03] CPUs=8 RealMemory=1000 State=UNKNOWN
PartitionName=main Nodes=ALL Default=YES MaxTime=INFINITE State=UP
CONF
printf 'CgroupPlugin=cgroup/v1\nCgroupAutomount=no\nCgroupMountpoint=%s\n' \
    "$folder/state/cgroup" > "$folder/etc/cgroup.conf"

slurmctld-wlm -D > "$folder/ctl.log" 2>&1 &
for number in 1 2 3; do
    node=node0$number
    mkdir "$folder/state/$node"
    ip netns add "$node"
    ip link add "veth$number" type veth peer name eth0 netns "$node"
    ip link set "veth$number" master bridge up
    ip -n "$node" addr add "10.77.0.1$number/24" dev eth0
    ip -n "$node" link set eth0 up
    ip -n "$node" link set lo up
    # Not `ip netns exec`, which hides /sys/fs/cgroup.
    nsenter --net="/run/netns/$node" unshare --uts bash -c \
        "hostname $node; exec slurmd-wlm -D ${stepd[*]} -N $node" \
        > "$folder/$node.log" 2>&1 &
done
for _ in {1..100}; do
    if [ "$(sinfo --noheader --states=idle --format=%D 2> /dev/null)" = 3 ]; then
        "$@"
        exit
    fi
    sleep 0.2
done
echo "the nodes do not come up; see $folder/*.log" >&2
exit 1
