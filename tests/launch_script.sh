# What scripts begin with that start runs by launchers which are really there. To be sourced: `root` is the repository then, and `dir` is a
# folder of the script's own, whose logs are shown where it fails.

root="$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)"

skip() {
    echo "SKIPPED: $*"
    exit 77
}

fail() {
    echo "FAILED: $*"
    for log in "$dir"/*.log "$dir"/slurm-*.out; do
        [ -s "$log" ] && echo "--- $log" && grep -v pmix "$log" | tail -n 10
    done
    exit 1
}

# ZBMD_BIN names a folder with zbmdc and zbmd-run; without it they are built. `bin` is where they are then.
find_commands() {
    bin="${ZBMD_BIN:-$root/target/release}"
    if [ -z "${ZBMD_BIN:-}" ]; then
        (cd "$root" && cargo build --release --bins) || exit 1
    fi
    export PATH="$bin:$PATH"
}

# COUNT: so many numbers as in.f32, and a token, in the present folder.
make_input_and_token() {
    cat > noise.ron <<'END'
Model(
    name: "noise",
    actors: { "noise": Noise(seed: 1, amplitude: 0.3, dtype: f32) },
    channels: [(from: "noise", to: ["out"])],
    sinks: { "out": Stream() },
)
END
    zbmdc compile noise.ron -o noise.zbmd && zbmd-run noise.zbmd -q --iterations "$1" -o out=in.f32 || fail "no input"
    head -c 32 /dev/urandom | base64 > cluster.token
    chmod 600 cluster.token
}
