#!/usr/bin/env bash
# What is proved of placements, how many arena layouts fit their capacity, and how long plans for many devices take: one
# table after the other. About six minutes after the build; meant for a quiet machine.
set -euo pipefail
cd "$(dirname "$0")/.."

bench() { cargo bench -q --workspace --bench "$@"; }

uptime
bench placement -- exact
bench dsa -- cut
bench many_devices
uptime
