#!/usr/bin/env bash
# A run over three nodes of Slurm, which is preempted, requeued, and goes on over three others: its output is, bit for bit, that of
# a run that was left alone. Slurm's daemons run here, six `slurmd` on this one computer, in a folder of their own, and are stopped
# at the end.
#
#   apt-get install -y slurm-wlm munge
#   tests/slurm.sh
#
# Exit code 0 if all is well, 1 if not, 77 with the reason if it cannot run here.
set -uo pipefail

. "$(dirname "${BASH_SOURCE[0]}")/launch_script.sh"
for program in slurmctld slurmd sbatch srun squeue scontrol munged; do
    command -v "$program" >/dev/null || PATH="$PATH:/usr/sbin"
    command -v "$program" >/dev/null || skip "no $program here: apt-get install -y slurm-wlm munge"
done
[ "$(id -u)" = 0 ] || skip "Slurm's daemons need root"

find_commands

dir="$(mktemp -d)"
# Before anything is cancelled: no other Slurm is meant.
export SLURM_CONF="$dir/slurm.conf"
pids=()
# Only what was started here.
stop_all() {
    # Jobs first, while there is somebody whom they can tell that they have ended.
    scancel --quiet --signal=KILL --full --user=root 2>/dev/null
    scancel --quiet --user=root 2>/dev/null
    for _ in $(seq 100); do [ -z "$(squeue --noheader 2>/dev/null)" ] && break; sleep 0.1; done
    for ((i = ${#pids[@]} - 1; i >= 0; i--)); do kill "${pids[i]}" 2>/dev/null; done
    sleep 1
    for pid in "${pids[@]}"; do kill -KILL "$pid" 2>/dev/null; done
    rm -rf "$dir"
}
trap stop_all EXIT

host="$(hostname)"
mkdir "$dir/state"
for n in 1 2 3 4 5 6; do mkdir "$dir/spool.n$n"; done
cat > "$SLURM_CONF" <<END
ClusterName=zbmd
SlurmctldHost=$host(127.0.0.1)
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket=$dir/munge.socket,cred_expire=5
CredType=cred/munge
SlurmctldPort=17817
StateSaveLocation=$dir/state
SlurmctldPidFile=$dir/slurmctld.pid
SlurmctldLogFile=$dir/slurmctld.log
SlurmdSpoolDir=$dir/spool.%n
SlurmdPidFile=$dir/slurmd.%n.pid
SlurmdLogFile=$dir/slurmd.%n.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SwitchType=switch/none
MpiDefault=none
SelectType=select/linear
SchedulerType=sched/backfill
SchedulerParameters=bf_interval=1,sched_interval=1
AccountingStorageType=accounting_storage/none
JobAcctGatherType=jobacct_gather/none
PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
KillWait=30
ReturnToService=2
NodeName=n[1-6] NodeHostname=$host NodeAddr=127.0.0.1 Port=17901-17906 CPUs=1 State=UNKNOWN
PartitionName=low Nodes=n[1-6] Default=YES PriorityTier=1 MaxTime=INFINITE State=UP
PartitionName=high Nodes=n[1-6] PriorityTier=10 PreemptMode=OFF MaxTime=INFINITE State=UP
END

head -c 1024 /dev/urandom > "$dir/munge.key"
chmod 600 "$dir/munge.key"
chmod 755 "$dir"
munged --foreground --force --key-file="$dir/munge.key" --socket="$dir/munge.socket" --pid-file="$dir/munge.pid" \
    --seed-file="$dir/munge.seed" --log-file="$dir/munge.log" > "$dir/munged.log" 2>&1 &
pids+=($!)
for _ in $(seq 100); do [ -S "$dir/munge.socket" ] && break; sleep 0.05; done
[ -S "$dir/munge.socket" ] || fail "munged does not start"
slurmctld -D > "$dir/controller.log" 2>&1 &
pids+=($!)
for n in 1 2 3 4 5 6; do
    slurmd -D -N "n$n" > "$dir/node.$n.log" 2>&1 &
    pids+=($!)
done
idle() { sinfo --noheader --format=%D --states=idle --partition=low 2>/dev/null | grep -qx "${1:-6}"; }
for _ in $(seq 300); do idle && break; sleep 0.1; done
idle || fail "six nodes of Slurm do not come up: is slurmd built for several on a computer?"

cd "$dir"
cat > machine.ron <<'END'
Machine(
    devices: [
        Device(name: "first:0", backend: cpu), Device(name: "second:0", backend: cpu), Device(name: "third:0", backend: cpu),
    ],
    hosts: { "first": ["first:0"], "second": ["second:0"], "third": ["third:0"] },
)
END
cat > model.ron <<'END'
Model(
    name: "filters",
    sources: { "in": Stream(dtype: f32) },
    actors: {
        "a": Fir(design: { "kind": "lowpass", "cutoff": 0.2, "rate": 1, "taps": 2000, "window": { "kaiser": 7.9 } }),
        "b": Fir(design: { "kind": "lowpass", "cutoff": 0.3, "rate": 1, "taps": 2000, "window": { "kaiser": 7.9 } }),
    },
    channels: [(from: "in", to: ["a"]), (from: "a", to: ["b"]), (from: "b", to: ["out"])],
    sinks: { "out": Stream() },
    pins: { "in": "first:0", "a": "second:0", "b": "third:0", "out": "first:0" },
)
END
zbmdc compile model.ron --machine machine.ron -o model.zbmd || fail "the model is not compiled"
make_input_and_token "${TOKENS:-12000000}"
zbmd-run model.zbmd -q -i in=in.f32 -o out=expected.f32 || fail "the undisturbed run fails"

field() { scontrol show job "$1" | tr ' ' '\n' | sed -n "s/^$2=//p"; }
state() { field "$1" JobState; }
# WHAT SECONDS COMMAND...: waits until a command succeeds.
wait_for() {
    local what="$1" tries=$(($2 * 10))
    shift 2
    for _ in $(seq "$tries"); do "$@" && return; sleep 0.1; done
    fail "not within $(($tries / 10)) s: $what"
}
is_state() { [ "$(state "$1")" = "$2" ]; }
has_output() { [ "$(stat -c %s out.f32 2>/dev/null || echo 0)" -gt 0 ]; }
has_restarted() { is_state "$1" RUNNING && [ "$(field "$1" Restarts)" = 1 ]; }

job="$(sbatch --parsable --nodes=3 "$root/executor/cli/launch/slurm.sbatch" model.zbmd \
    -i in=in.f32 -o out=out.f32 --join 127.0.0.1:7100 --host-lease 5s)" || fail "sbatch"
wait_for "output" 60 has_output
first_nodes="$(field "$job" NodeList)"
other="$(sbatch --parsable --partition=high --nodelist="$first_nodes" --nodes=3 --output=other.out --wrap 'sleep 600')" ||
    fail "sbatch of the other job"
begun=$(date +%s%3N)
wait_for "the other job runs" 60 is_state "$other" RUNNING
preempted=$(stat -c %s out.f32)
echo "preempted on $first_nodes after $((preempted / 4)) tokens; the other job runs after $(($(date +%s%3N) - begun)) ms"
ls checkpoints > /dev/null || fail "no checkpoints"
wait_for "the job is started again" 60 has_restarted "$job"
second_nodes="$(field "$job" NodeList)"
[ "$first_nodes" != "$second_nodes" ] || fail "the job is on $first_nodes again"
wait_for "the job ends" 300 is_state "$job" COMPLETED
scancel "$other"
cmp out.f32 expected.f32 || fail "the output differs"
echo "resumed on $second_nodes; $(($(stat -c %s out.f32) / 4)) tokens, as of an undisturbed run"
cat "slurm-$job.out"
