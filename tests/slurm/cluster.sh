#!/usr/bin/env bash
# A SLURM of one node on this machine, for tests: cluster.sh start FOLDER | stop FOLDER. Needs root, slurm-wlm and munge.
set -euo pipefail
action=$1
folder=$(realpath -m "$2")
export SLURM_CONF=$folder/slurm.conf

start() {
  mkdir -p "$folder/state" "$folder/spool" /run/munge
  chown munge: /run/munge
  [ -s /etc/munge/munge.key ] || { dd if=/dev/urandom of=/etc/munge/munge.key bs=1 count=1024 status=none; chown munge: /etc/munge/munge.key; chmod 400 /etc/munge/munge.key; }
  munge -n >/dev/null 2>&1 || runuser -u munge -- munged --force
  cat >"$SLURM_CONF" <<CONF
ClusterName=test
SlurmctldHost=localhost(127.0.0.1)
SlurmUser=root
AuthType=auth/munge
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SchedulerParameters=sched_interval=1
MpiDefault=none
ReturnToService=2
JobRequeue=1
KillWait=5
MinJobAge=300
StateSaveLocation=$folder/state
SlurmdSpoolDir=$folder/spool
SlurmctldPidFile=$folder/slurmctld.pid
SlurmdPidFile=$folder/slurmd.pid
SlurmctldLogFile=$folder/slurmctld.log
SlurmdLogFile=$folder/slurmd.log
NodeName=localhost NodeAddr=127.0.0.1 CPUs=$(nproc) State=UNKNOWN
PartitionName=test Nodes=localhost Default=YES MaxTime=INFINITE State=UP
CONF
  slurmctld -c
  slurmd -N localhost
  for _ in $(seq 60); do
    if sinfo --noheader --format=%T 2>/dev/null | grep -q '^idle$'; then return; fi
    sleep 0.5
  done
  tail -n 20 "$folder"/slurm*.log >&2
  exit 1
}

stop() {
  for name in slurmd slurmctld; do
    [ ! -s "$folder/$name.pid" ] || kill "$(cat "$folder/$name.pid")" || true
  done
}

"$action"
