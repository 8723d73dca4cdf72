#!/usr/bin/env bash
# What only a machine with an NVIDIA GPU can show, in one table.
#
#   tests/gpu.sh              builds here and runs here
#   tests/gpu.sh pack FILE    builds here and packs what a machine with a GPU but no Rust needs into FILE (.tar.gz);
#                             there: tar xzf FILE && zbmd-gpu/gpu.sh
#
# ROWS=REGEX runs only the rows whose names it is found in, ROW_SECONDS=N gives each N seconds (280 if not said): for machines
# that are lent for minutes. A check that cannot run here is listed as "not run", with the reason. Exit code 1 if one fails,
# 0 otherwise.
set -uo pipefail

here="$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)"
# Packed, the binaries lie beside this script; CARGO stands in for cargo where another is wanted.
packed="$here/bin"
cargo="${CARGO:-cargo}"

# Builds the test binaries into a folder.
build() {
    local to="$1" list
    mkdir -p "$to"
    list="$(cd "$here/.." && "$cargo" test --release --no-run --message-format=json \
        -p zbmd-backends -p zbmd-cuda --lib -p zbmd-tests --test cuda --test gpu_runs --test gpu_variants --test gpu_allocations \
        --bench gpu --bench torch --bench recovery)" || return 1
    # Lines of JSON, of which only the names of executables are wanted.
    printf '%s\n' "$list" | sed -n 's/.*"executable":"\([^"]*\)".*/\1/p' | while read -r binary; do
        case "$(basename "$binary")" in
            zbmd_backends-*) cp "$binary" "$to/backends" ;;
            zbmd_cuda-*) cp "$binary" "$to/driver" ;;
            cuda-*) cp "$binary" "$to/calendars" ;;
            gpu_runs-*) cp "$binary" "$to/runs" ;;
            gpu_variants-*) cp "$binary" "$to/variants" ;;
            gpu_allocations-*) cp "$binary" "$to/allocations" ;;
            torch-*) cp "$binary" "$to/torch" ;;
            recovery-*) cp "$binary" "$to/recovery" ;;
            gpu-*) cp "$binary" "$to/bench" ;;
        esac
    done
    cp "$here/benches/torch_rival.py" "$to/"
    for binary in backends driver calendars runs variants allocations bench torch recovery; do
        [ -x "$to/$binary" ] || return 1
        # Panics name their places even so, and a pack is a tenth of the size.
        strip --strip-debug "$to/$binary" || return 1
    done
}

if [ "${1:-}" = pack ]; then
    file="${2:?where to: tests/gpu.sh pack FILE}"
    folder="$(mktemp -d)"
    trap 'rm -rf "$folder"' EXIT
    build "$folder/zbmd-gpu/bin" || exit 1
    cp "${BASH_SOURCE[0]}" "$folder/zbmd-gpu/gpu.sh"
    cp -r "$here/../graphs" "$folder/zbmd-gpu/graphs"
    tar -C "$folder" -czf "$file" zbmd-gpu
    echo "packed into $file"
    exit 0
fi

if [ -d "$packed" ]; then
    export ZBMD_GRAPHS="$here/graphs"
else
    packed="$(mktemp -d)"
    trap 'rm -rf "$packed"' EXIT
    build "$packed" || exit 1
fi
export ZBMD_REQUIRE=cuda

gpu=""
if command -v nvidia-smi >/dev/null; then
    gpu="$(nvidia-smi --query-gpu=name,driver_version --format=csv,noheader 2>/dev/null | head -n1)"
fi

failed=0
rows=()
row_seconds="${ROW_SECONDS:-280}"
asked() { [[ "$1" =~ ${ROWS:-.} ]]; }
row() { rows+=("$(printf '%-62s %s' "$1" "$2")"); }

# NAME, then a command of the suite, which says of what it has run that it is ok; the last lines of what fails are shown.
check() {
    local name="$1" output status
    shift
    asked "$name" || return
    if [ -z "$gpu" ]; then
        row "$name" "not run: no GPU here"
        return
    fi
    output="$(timeout -k 5 "$row_seconds" "$@" 2>&1)"
    status=$?
    if [ "$status" = 124 ]; then
        row "$name" "not ended within $row_seconds s"
        failed=1
    elif [ "$status" = 0 ] && grep -qE '\.\.\. ok|period/bare|recoveries|by the device|of the floor' <<<"$output"; then
        # What a device cannot do is said by tests whose output is not held back.
        row "$name" "$(sed -n 's/.*SKIPPED: /not run: /p' <<<"$output" | grep . || echo passed)"
    elif grep -q 'SKIPPED, no Vulkan' <<<"$output"; then
        row "$name" "$(sed -n 's/.*SKIPPED, no Vulkan device: /not run: /p' <<<"$output" | head -n1)"
    else
        row "$name" "FAILED"
        failed=1
        printf '== %s\n%s\n' "$name" "$(tail -n 25 <<<"$output")" >&2
    fi
}

# Batch 1 beside PyTorch: the whole table is printed below; a row here for each model in it.
beside_torch() {
    local name="beside PyTorch, batch 1" output model
    asked "$name" || return
    if [ -z "$gpu" ]; then
        row "$name: five models, four types" "not run: no GPU here"
        return
    fi
    export ZBMD_TORCH_SCRIPT="$packed/torch_rival.py"
    if ! output="$(timeout -k 5 "$((2 * row_seconds))" "$packed/torch" 2>&1)"; then
        row "$name" "FAILED"
        failed=1
        printf '== %s\n%s\n' "$name" "$(tail -n 25 <<<"$output")" >&2
        return
    fi
    printf '%s\n' "$output" >"$packed/torch.txt"
    for model in mobilenet_v2 light_resnet50 bert_tiny encoder mlp; do
        if grep -q "^$model .*not run" <<<"$output"; then
            row "$name: $model" "not run: its file is not here (ZBMD_DATA)"
        elif grep -q '^not run' <<<"$output"; then
            row "$name: $model" "ours alone: $(sed -n 's/^not run beside PyTorch: //p' <<<"$output")"
        else
            row "$name: $model" "run: see the table"
        fi
    done
}

# Products by cuBLASLt, which need not be installed: NAME, then a command of the suite.
library() {
    local name="$1"
    shift
    asked "$name" || return
    if [ -n "$gpu" ] && grep -q 'not installed' <<<"$("$@" --nocapture 2>&1)"; then
        row "$name" "not run: cuBLASLt is not installed"
    else
        check "$name" "$@"
    fi
}

# NAME, and what is missing before it can run anywhere.
missing() { ! asked "$1" || row "$1" "not run: $2"; }

backends="$packed/backends"
driver="$packed/driver"
calendars="$packed/calendars"
runs="$packed/runs"

check "driver: loaded, devices listed" \
    "$driver" --exact api::tests::loading_never_panics
check "ops: every kernel of the catalogue beside its CPU kernel" \
    "$backends" --exact tests::cuda::suite::every_op_agrees_with_its_cpu_kernel_on_a_gpu
check "calendars: models beside the interpreter" \
    "$calendars" --exact models_run_on_a_gpu_as_in_the_interpreter
if command -v compute-sanitizer >/dev/null; then
    check "compute-sanitizer: memory errors in all kernels" \
        compute-sanitizer --error-exitcode 9 "$backends" --exact \
        tests::cuda::suite::every_op_agrees_with_its_cpu_kernel_on_a_gpu
    check "compute-sanitizer: races in shared memory" \
        compute-sanitizer --tool racecheck --error-exitcode 9 "$backends" --exact \
        tests::cuda::suite::every_op_agrees_with_its_cpu_kernel_on_a_gpu
else
    missing "compute-sanitizer: memory errors in all kernels" "compute-sanitizer is not installed"
    missing "compute-sanitizer: races in shared memory" "compute-sanitizer is not installed"
fi
check "runs: models on a CPU and the GPU beside the interpreter" "$runs" "cuda models"
check "runs: twenty exchanges with a CPU in a period" "$runs" "cuda exchanges"
check "runs: kernels launched early, as a machine file asks" "$runs" "cuda early"
check "runs: the same bits in threads and processes, with checksums" "$runs" "cuda anywhere"
check "runs: CPU + Vulkan + CUDA in one calendar" "$runs" three
check "vulkan: every kernel of the catalogue beside its CPU kernel" \
    env ZBMD_REQUIRE=vulkan "$backends" vulkan
check "vulkan: models, exchanges, a killed, stopped, lost worker: the same bits" \
    env ZBMD_REQUIRE=cuda,vulkan "$runs" vulkan
check "losses: a killed worker, the same bits" "$runs" "cuda killed"
check "losses: a stopped worker, the same bits" "$runs" "cuda stopped"
check "losses: corrupted transfers, the same bits" "$runs" "cuda corrupted"
check "losses: illegal address, trap, endless kernel: the same bits" "$runs" "cuda lost"
check "losses: an illegal address loses the worker only" "$driver" --ignored --nocapture --exact \
    tests::faults::an_illegal_address_on_a_gpu_is_a_loss_of_the_worker_only
check "losses: a trap loses the worker only" "$driver" --ignored --nocapture --exact \
    tests::faults::a_trap_on_a_gpu_is_a_loss_of_the_worker_only
check "losses: a kernel that never ends is a hang" "$driver" --ignored --nocapture --exact \
    tests::faults::a_kernel_on_a_gpu_that_does_not_end_is_a_hang
check "replay of 10, 100, 1,000 slots: bare graph, host cost, programmatic edges" \
    bash -c "'$packed/bench' cuda | tee '$packed/bench.txt'; test -s '$packed/bench.txt'"
check "exchange: round trips of 4 KiB and 1 MiB, by host and by device" \
    bash -c "'$packed/bench' cuda exchange | tee '$packed/exchange.txt'; test -s '$packed/exchange.txt'"
check "allocations in steady state: none" \
    "$packed/allocations" --exact steady_periods_on_a_gpu_allocate_nothing
check "losses: time to swap and to restart, standby or not" \
    bash -c "'$packed/recovery' gpu 20 | tee '$packed/recovery.txt'"
check "tensor cores: products in tf32, f16, bf16" "$backends" --exact \
    tests::cuda::math::rounded_products_agree_with_products_of_rounded_factors_on_a_gpu
check "tensor cores: attention in tf32, f16, bf16" "$backends" --exact \
    tests::cuda::attention::rounded_attention_agrees_with_its_definition_on_a_gpu
check "programmatic edges: models beside the interpreter" \
    "$calendars" --nocapture --exact kernels_that_wait_themselves_run_on_a_gpu_as_in_the_interpreter
beside_torch
check "products and convolutions in every variant" "$backends" --exact \
    tests::cuda::products::products_agree_in_every_variant_on_a_gpu
library "cuBLASLt: its products beside ours" "$backends" --exact \
    tests::cuda::products::products_agree_in_every_variant_on_a_gpu
library "cuBLASLt: bundles that name it, in whole runs" "$packed/variants" "cuda library"
check "variants: calibrated, then run" "$packed/variants" "cuda calibrated"
check "products: ours / cuBLASLt, and of the floor at 8192^3" \
    bash -c "'$packed/bench' cuda products | tee '$packed/products.txt' && grep -q 8192 '$packed/products.txt'"

printf '\n%-62s %s\n' "on ${gpu:-a machine without a GPU}" "result"
printf '%s\n' "${rows[@]}"
for table in bench exchange products recovery torch; do
    if [ -s "$packed/$table.txt" ]; then
        printf '\n'
        cat "$packed/$table.txt"
    fi
done
exit "$failed"
