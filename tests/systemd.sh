#!/usr/bin/env bash
# An agent that systemd starts, and starts again when it is killed: the run over it goes on, and its output is, bit for bit, that of a
# run on one host. A manager of systemd is started here for that, which is the first process of namespaces of its own and sees nothing
# of the computer's; all that it has started ends with it. The unit that is shipped is checked, and so are the manifests for Kubernetes.
#
#   apt-get install -y systemd; pip install kubernetes-validate
#   tests/systemd.sh
#
# Exit code 0 if all is well, 1 if not, 77 with the reason if it cannot run here.
set -uo pipefail

. "$(dirname "${BASH_SOURCE[0]}")/launch_script.sh"
[ -x /lib/systemd/systemd ] && command -v systemd-run > /dev/null || skip "no systemd here: apt-get install -y systemd"
[ "$(id -u)" = 0 ] || skip "namespaces of its own need root"

find_commands

if [ -z "${ZBMD_SYSTEMD_INSIDE:-}" ]; then
    manifests="$root/executor/cli/launch/kubernetes.yaml"
    if command -v kubernetes-validate > /dev/null; then
        for version in 1.27 1.33; do
            kubernetes-validate --quiet --strict -k "$version" "$manifests" || exit 1
        done
        echo "the manifests are right for Kubernetes 1.27 and 1.33"
    else
        echo "skipped: the manifests, for want of kubernetes-validate (pip install kubernetes-validate)"
    fi
    ZBMD_SYSTEMD_INSIDE=1 ZBMD_BIN="$bin" exec unshare --mount --pid --fork --kill-child --mount-proc "$0"
fi

# What tells systemd that it may run is in this namespace alone.
mount -t tmpfs tmpfs /run && mkdir -p /run/systemd/system /run/user || skip "no mounts of its own"
dir="$(mktemp -d)"
trap 'rm -rf "$dir"' EXIT
export XDG_RUNTIME_DIR="/run/user" DBUS_SESSION_BUS_ADDRESS="unix:path=/run/user/bus"
chmod 700 "$XDG_RUNTIME_DIR"
/lib/systemd/systemd --user --log-target=console > "$dir/systemd.log" 2>&1 &
is_up() { systemctl --user show --property=Version > /dev/null 2>&1; }
for _ in $(seq 100); do is_up && break; sleep 0.1; done
is_up || skip "systemd does not start here: $(tail -n 1 "$dir/systemd.log")"

sed "s|/usr/local/bin/zbmd-run|$bin/zbmd-run|" "$root/executor/cli/launch/zbmd-agent.service" > "$dir/zbmd-agent.service"
systemd-analyze verify "$dir/zbmd-agent.service" > "$dir/verify.log" 2>&1 || fail "the unit that is shipped is not right"
[ -s "$dir/verify.log" ] && fail "systemd has something to say of the unit that is shipped"

cd "$dir"
cat > cluster.ron <<'END'
Machine(
    devices: [Device(name: "left:0", backend: cpu), Device(name: "right:0", backend: cpu)],
    hosts: { "left": ["left:0"], "right": ["right:0"] },
)
END
cat > model.ron <<'END'
Model(
    name: "sum",
    sources: { "in": Stream(dtype: f32) },
    actors: { "sum": Expr("s + x", inputs: { "s": f32, "x": f32 }) },
    channels: [(from: "in", to: ["sum.x"]), (from: "sum", to: ["sum.s"], initial: [0.0]), (from: "sum", to: ["out"])],
    sinks: { "out": Stream() },
    pins: { "in": "left:0", "sum": "right:0", "out": "left:0" },
)
END
zbmdc compile model.ron --machine cluster.ron -o model.zbmd || fail "the model is not compiled"
make_input_and_token 300000
zbmd-run model.zbmd -q -i in=in.f32 -o out=expected.f32 || fail "the run on one host fails"

agent="zbmd-run agent --listen 127.0.0.1:7195 --token-file $dir/cluster.token"
systemd-run --user --quiet --unit=zbmd-agent --property=Restart=always --property=RestartSec=0.2 \
    --setenv=PATH="$PATH" $agent || fail "systemd-run"
zbmd-run model.zbmd -q --host right=127.0.0.1:7195 --token-file cluster.token --host-lease 1s \
    -i "in=paced:in.f32?rate=50000" -o out=out.f32 > run.log 2>&1 &
run=$!
has_output() { [ "$(stat -c %s out.f32 2> /dev/null || echo 0)" -gt 100000 ]; }
for _ in $(seq 200); do has_output && break; sleep 0.1; done
has_output || fail "no output"
systemctl --user kill --signal=KILL zbmd-agent || fail "the agent is not killed"
killed=$(($(stat -c %s out.f32) / 4))
wait "$run" || fail "the run fails"
restarts="$(systemctl --user show --property=NRestarts --value zbmd-agent)"
[ "$restarts" -ge 1 ] || fail "the agent was not started again"
cmp out.f32 expected.f32 || fail "the output differs"
echo "killed after $killed of 300000 tokens, started again by systemd, and the output is that of one host"
