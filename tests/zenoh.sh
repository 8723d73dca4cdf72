#!/usr/bin/env bash
# Builds the bridge to Zenoh, which is a workspace of its own, and runs its tests: formatting, lints, units, two bridges with a router
# between them that are killed, ordinary and hostile peers, and the bridge beside the real zbmd-run. All of Zenoh's network is on this
# computer, and the sessions on the other side are in the test programs.
#
#   tests/zenoh.sh           some minutes the first time
#   tests/zenoh.sh bench     also what it costs beside a bare publisher and subscriber
#
# Takes zbmdc and zbmd-run from the folder ZBMD_BIN, or builds them. Exit code 0 if all is well, 1 if not.
set -uo pipefail

dir="$(mktemp -d)"
trap 'rm -rf "$dir"' EXIT
. "$(dirname "${BASH_SOURCE[0]}")/launch_script.sh"
find_commands
export ZBMD_BIN="$bin"
for program in zbmdc zbmd-run; do
    [ -x "$bin/$program" ] || fail "no $program in $bin"
done

cd "$root/executor/zenoh-bridge" || exit 1
cargo fmt --check || fail "formatting"
cargo clippy --locked --all-targets -- -D warnings || fail "lints"
RUSTDOCFLAGS="-D warnings" cargo doc --locked --no-deps --quiet || fail "documentation"
cargo test --locked --no-fail-fast -- --show-output 2>&1 | tee "$dir/tests.log"
[ "${PIPESTATUS[0]}" = 0 ] || fail "tests"
if grep -q SKIPPED "$dir/tests.log"; then
    fail "something was skipped, although ZBMD_BIN is $bin"
fi
echo "SKIPPED: a node of ROS 2, for want of ROS 2: a publisher of the test's sends what rmw_zenoh is documented to"
echo "SKIPPED: endpoints with TLS (--features tls): no test has certificates"
[ "${1:-}" = bench ] && { cargo bench --locked --bench throughput || fail "bench"; }
echo "the bridge to Zenoh is well"
