#!/usr/bin/env python3
"""How punctual live runs are on this machine, beside the tools that others measure it with.

    cargo build --release -p zbmdc -p zbmd-run --features zbmd-run/audio
    tests/realtime.py [--seconds N] [ROW...]

Rows, all of them if none is said:

release    a release every millisecond while `stress-ng --cpu 2` runs: how late, with and without --realtime, beside
           `cyclictest` at the same priority in the same seconds
receiver   the FM receiver of graphs/fm at 2.4 MS/s in blocks of 10 ms under the same load: which blocks are late, beside
           how late `cyclictest` ever was
recorder   what --record costs: in throughput of graphs/fm, by turns with runs without it, and in CPU time at 2.4 MS/s
contract   what deadlines, and --realtime, cost in throughput: by turns with a run that has neither
datagrams  10 MS/s of c32 over UDP with the receiver bound to one core, beside GNU Radio receiving the same
sound      a clock bridge into PipeWire's null sink: underruns

A row whose tools are not here is "not run". Needs the rights of --realtime. The programs are looked for in the folder
ZBMD_BIN, target/release if it is not set.
"""

import argparse
import json
import os
import pathlib
import re
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent
BIN = pathlib.Path(os.environ.get("ZBMD_BIN", ROOT / "target/release")).resolve()
# The priority of the threads that move tokens: cyclictest has the same.
PUMP_PRIORITY = 30
PERIOD_US = 1000
# Of runs that are compared by turns.
TURNS = 21

TICK = """Model(
    name: "tick",
    sources: { "in": Stream(dtype: f32, sample_rate: 1000) },
    actors: { "half": Gain(0.5) },
    channels: [(from: "in", to: ["half"]), (from: "half", to: ["out"])],
    sinks: { "out": Stream() },
)
"""
CORE = """Machine(devices: [
    Device(name: "cpu:0", backend: cpu, cores: [%d], memory: "1GiB", flops: "8G", bandwidth: "10GB/s"),
])
"""
COPY = """Model(
    name: "copy",
    sources: { "in": Stream(dtype: c32, sample_rate: 10000000) },
    actors: { "gain": Gain(1.0) },
    channels: [(from: "in", to: ["gain"]), (from: "gain", to: ["out"])],
    sinks: { "out": Stream() },
)
"""
TONE = """Model(
    name: "tone",
    sources: { "in": Stream(dtype: f32, sample_rate: 48000) },
    actors: { "bias": Expr("x + 0.1", inputs: { "x": f32 }) },
    channels: [(from: "in", to: ["bias"]), (from: "bias", to: ["out"])],
    sinks: { "out": Stream() },
)
"""


class NotRun(Exception):
    """Why a row cannot be run here."""


def need(*tools):
    for tool in tools:
        if shutil.which(tool) is None:
            raise NotRun(f"`{tool}` is not installed")


def compile_model(folder, name, text, *options):
    """Compiles the text of a model; the bundle's path."""
    model = folder / f"{name}.ron"
    model.write_text(text)
    bundle = folder / f"{name}.zbmd"
    command = [BIN / "zbmdc", "compile", model, *options, "-o", bundle]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    return bundle


def start(bundle, *options, prefix=(), report):
    command = [*prefix, BIN / "zbmd-run", bundle, "--report-file", report, *options]
    return subprocess.Popen([str(part) for part in command], stderr=subprocess.DEVNULL)


def finish(run, report):
    """Waits for a run; its report, and the seconds of CPU time that it took."""
    _, status, usage = os.wait4(run.pid, 0)
    if status != 0:
        raise RuntimeError(f"zbmd-run ended with {status}: {run.args}")
    return json.loads(report.read_text()), usage.ru_utime + usage.ru_stime


class Load:
    """Two busy cores."""

    def __enter__(self):
        self.stress = subprocess.Popen(
            ["stress-ng", "--quiet", "--cpu", "2"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        time.sleep(1)

    def __exit__(self, *_):
        self.stress.send_signal(signal.SIGINT)
        self.stress.wait()


def start_cyclictest(folder, seconds, priority, cpu=None):
    policy = [f"-p{priority}"] if priority else ["--policy=other"]
    if cpu is not None:
        policy.append(f"-a{cpu}")
    output = open(folder / f"cyclictest-{priority}-{cpu}", "w")
    command = ["cyclictest", "-q", "-t1", *policy, f"-i{PERIOD_US}", f"-D{seconds}", "-h500000", "-m"]
    return subprocess.Popen(command, stdout=output, stderr=subprocess.DEVNULL), output.name


def cyclictest_latencies(cyclictest):
    """Microseconds of each cycle. Those that a late one made cyclictest leave out are put in, as late as they were."""
    process, path = cyclictest
    process.wait()
    latencies = []
    for line in open(path):
        bucket = re.match(r"^(\d+)\s+(\d+)$", line)
        if bucket:
            latency, count = int(bucket[1]), int(bucket[2])
            for left_out in range(latency, -1, -PERIOD_US):
                latencies += count * [left_out]
    return sorted(latencies)


def quantile(sorted_values, q):
    return sorted_values[min(len(sorted_values) - 1, int(q * len(sorted_values)))]


def show(name, p50, p99, p99_9, most):
    print(f"  {name:44} p50 {p50:9.0f}  p99 {p99:9.0f}  p99.9 {p99_9:9.0f}  most {most:9.0f} us")


def release(folder, seconds):
    need("cyclictest", "stress-ng", "taskset")
    seconds = seconds or 60
    samples = folder / "in.f32"
    samples.write_bytes(bytes(4 * 1000 * seconds))

    # CPUs differ: one may have to serve the machine's own daemons. So both programs are bound to the same, and to each in
    # turn; without a priority they run where the system puts them.
    cpus = sorted(os.sched_getaffinity(0))
    variants = [(f"--realtime, CPU {cpu}", ["--realtime"], PUMP_PRIORITY, cpu) for cpu in cpus]
    variants.append(("without", [], 0, None))
    p99 = {}
    for name, options, priority, cpu in variants:
        report = folder / "report.json"
        bound = () if cpu is None else ("taskset", "-c", str(cpu))
        machine = folder / "machine.ron"
        machine.write_text(CORE % (cpu or 0))
        bundle = compile_model(folder, "tick", TICK, "--machine", machine, "--block", "1")
        with Load():
            cyclictest = start_cyclictest(folder, seconds, priority, cpu)
            run = start(
                bundle, "-i", f"in=paced:{samples}?piece=1", "-o", "out=/dev/null", *options, prefix=bound, report=report
            )
            found, _ = finish(run, report)
            theirs = cyclictest_latencies(cyclictest)
        ours = found["live"][0]["release_lateness"]
        ours = [ours[key] / 1000 for key in ("p50_ns", "p99_ns", "p99_9_ns", "max_ns")]
        rival = [quantile(theirs, q) for q in (0.5, 0.99, 0.999, 1)]
        show(f"zbmd-run {name}", *ours)
        show("cyclictest" + (f", priority {priority}" if priority else ", ordinary"), *rival)
        print(f"  ratio: p99 {ours[1] / rival[1]:.2f}, p99.9 {ours[2] / rival[2]:.2f}")
        p99[name] = ours[1]
    with_realtime = max(p99[name] for name, *_ in variants[:-1])
    print(f"  p99 without / with --realtime, on the worst CPU: {p99['without'] / with_realtime:.1f}")


def receiver(folder, seconds):
    need("cyclictest", "stress-ng")
    seconds = seconds or 600
    model = (ROOT / "graphs/fm/model.ron").read_text()
    # 50 samples of I/Q make one of audio: 480 of these are 10 ms.
    bundle = compile_model(folder, "fm", model, "--devices", "1", "--block", "480")
    report = folder / "report.json"
    url = "iq=paced:/dev/zero?rate=2.4e6&piece=24000"
    with Load():
        cyclictest = start_cyclictest(folder, seconds, PUMP_PRIORITY)
        run = start(
            bundle, "-i", url, "-n", 48_000 * seconds, "-o", "audio=/dev/null",
            "--deadline", "audio=20ms", "--realtime", report=report,
        )
        found, cpu = finish(run, report)
        theirs = cyclictest_latencies(cyclictest)
    deadline = found["deadlines"][0]
    response = [deadline["response"][key] / 1000 for key in ("p50_ns", "p99_ns", "p99_9_ns", "max_ns")]
    show("response of blocks of 10 ms", *response)
    show("cyclictest", *[quantile(theirs, q) for q in (0.5, 0.99, 0.999, 1)])
    blocks = deadline["response"]["count"]
    slack_us = 20_000 - response[0]
    late = sum(latency > slack_us for latency in theirs)
    print(f"  {deadline['missed']} of {blocks} blocks later than 20 ms; {cpu / seconds:.3f} of a core")
    print(f"  cyclictest was later than the slack of {slack_us / 1000:.1f} ms for {late} ms of {seconds} s")


def recorder(folder, seconds):
    seconds = seconds or 2
    model = (ROOT / "graphs/fm/model.ron").read_text()
    bundle = compile_model(folder, "fm", model, "--devices", "1", "--block", "480")
    samples = folder / "iq.u8"
    with open(samples, "wb") as file:
        for _ in range(100 * seconds):
            file.write(os.urandom(2_000_000))

    # --record implies --supervise: what that costs alone is told apart.
    variants = {
        "neither": [],
        "--supervise": ["--supervise"],
        "--record": ["--record", folder / "box", "--record-replace", "--keep", "256MiB"],
    }
    report = folder / "report.json"
    # All of it is due long before it can be read, or it is played at its rate for ten seconds.
    for name, rate, turns in [("as fast as it can be", "1e12", TURNS), ("at 2.4 MS/s", "2.4e6", 3)]:
        url = f"iq=paced:{samples}?rate={rate}&piece=24000&full=wait"
        limit = [] if rate == "1e12" else ["-n", 48_000 * 10]
        elapsed = {variant: [] for variant in variants}
        cpu = {variant: [] for variant in variants}
        for turn in range(turns):
            # Whoever is first has the caches as the last one of the turn before left them.
            names = list(variants)
            for variant in names[turn % 3 :] + names[: turn % 3]:
                run = start(bundle, "-i", url, "-o", "audio=/dev/null", *limit, *variants[variant], report=report)
                found, cpu_s = finish(run, report)
                elapsed[variant].append(found["elapsed_ns"] / 1e9)
                cpu[variant].append(cpu_s)
        for variant in variants:
            slower = [mine / base for mine, base in zip(elapsed[variant], elapsed["neither"])]
            more_cpu = [mine / base for mine, base in zip(cpu[variant], cpu["neither"])]
            cores = [mine / took for mine, took in zip(cpu[variant], elapsed[variant])]
            print(
                f"  {name}, {variant:12} {statistics.median(elapsed[variant]):7.3f} s, {statistics.median(cores):.4f} cores; beside "
                f"neither, in the median of {turns} turns, {statistics.median(slower):.3f} of the time and "
                f"{statistics.median(more_cpu):.3f} of the CPU time"
            )


def contract(folder, seconds):
    seconds = seconds or 2
    model = (ROOT / "graphs/fm/model.ron").read_text()
    bundle = compile_model(folder, "fm", model, "--devices", "1", "--block", "480")
    samples = folder / "iq.u8"
    count = 200_000_000 * seconds
    with open(samples, "wb") as file:
        for _ in range(count // 2_000_000):
            file.write(bytes(2_000_000))

    # Due long before it can be read: the run is as fast as it can be.
    url = f"iq=paced:{samples}?rate=1e12&piece=24000&full=wait"
    variants = {
        "neither": [],
        "a deadline": ["--deadline", "audio=1h"],
        "a deadline and --realtime": ["--deadline", "audio=1h", "--realtime"],
    }
    rates = {name: [] for name in variants}
    report = folder / "report.json"
    for _ in range(TURNS):
        for name, options in variants.items():
            run = start(bundle, "-i", url, "-o", "audio=/dev/null", *options, report=report)
            found, _ = finish(run, report)
            rates[name].append(found["sources"][0]["tokens"] / found["elapsed_ns"] * 1e3)
    for name, found in rates.items():
        ratios = [with_it / without for with_it, without in zip(found, rates["neither"])]
        print(
            f"  {name:28} {statistics.median(found):7.1f} MS/s, most {max(found):7.1f}; "
            f"beside neither, in the median of {TURNS} turns {statistics.median(ratios):.3f}"
        )


GNU_RADIO = """
import os, resource, sys, time
from gnuradio import blocks, gr, network
graph = gr.top_block()
source = network.udp_source(gr.sizeof_gr_complex, 1, int(sys.argv[1]), 1, 8192, True, False, False)
gain = blocks.multiply_const_cc(1.0)
graph.connect(source, gain, blocks.null_sink(gr.sizeof_gr_complex))
graph.start()
time.sleep(float(sys.argv[2]))
usage = resource.getrusage(resource.RUSAGE_SELF)
print(gain.nitems_written(0), usage.ru_utime + usage.ru_stime, flush=True)
# A source that waits for its network would hold up the graph's end.
os._exit(0)
"""


def datagrams(folder, seconds):
    need("taskset")
    seconds = seconds or 60
    bundle = compile_model(folder, "copy", COPY, "--devices", "1", "--block", "8192")
    samples = 10_000_000 * seconds
    # A datagram of 8192 bytes: a header of 8, and 1023 samples.
    samples -= samples % (8192 * 1023)

    def send(port):
        return start(
            bundle, "-i", "in=paced:/dev/zero?rate=1e7&piece=10230", "-n", samples,
            "-o", f"out=udp://127.0.0.1:{port}?header=seq&packet=8192", prefix=("taskset", "-c", "1"),
            report=folder / "sent.json",
        )

    def ours():
        report = folder / "received.json"
        url = "in=udp://127.0.0.1:47001?header=seq&silence=stall"
        run = start(bundle, "-i", url, "-o", "out=/dev/null", "-n", samples, prefix=("taskset", "-c", "0"), report=report)
        time.sleep(1)
        sender = send(47001)
        found, cpu = finish(run, report)
        sender.wait()
        live = found["live"][0]
        filled = sum(live["filled"].values())
        print(
            f"  zbmd-run on one core: {live['received']} of {samples} samples, {filled} filled, {live['dropped']} dropped in "
            f"our queues, {live['kernel_drops']} by the system; {cpu:.1f} s of CPU time"
        )

    def theirs():
        python = os.environ.get("ZBMD_PYTHON", "/usr/bin/python3")
        if subprocess.run([python, "-c", "import gnuradio.network"], stderr=subprocess.DEVNULL).returncode:
            print("  GNU Radio: not run: it is not installed")
            return
        command = ["taskset", "-c", "0", python, "-c", GNU_RADIO, "47002", str(seconds + 4)]
        run = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        time.sleep(2)
        sender = send(47002)
        received, cpu = run.communicate()[0].splitlines()[-1].split()
        sender.wait()
        print(f"  GNU Radio on one core: {received} of {samples} samples; {float(cpu):.1f} s of CPU time")

    ours()
    theirs()


SOUND_SERVER = """
trap 'kill $server $session' EXIT
pipewire & server=$!
sleep 1
wireplumber & session=$!
sleep 2
pw-cli create-node adapter "{ factory.name=support.null-audio-sink media.class=Audio/Sink node.name=null_sink \\
object.linger=true audio.position=[FL FR] }"
sleep 1
"$@"
"""


def sound(folder, seconds):
    need("pipewire", "wireplumber", "pw-cli", "dbus-run-session")
    seconds = seconds or 600
    bundle = compile_model(folder, "tone", TONE, "--devices", "1", "--block", "480")
    report = folder / "report.json"
    command = ["dbus-run-session", "sh", "-c", SOUND_SERVER, "sound", BIN / "zbmd-run", bundle, "--realtime", "--report-file", report]
    command += ["-i", "in=paced:/dev/zero?rate=48000", "-n", 48_000 * seconds]
    command += ["-o", "out=audio:pipewire?rate=48000&latency=100ms"]
    quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    subprocess.run(
        [str(part) for part in command], check=True, env={**os.environ, "XDG_RUNTIME_DIR": str(folder)}, **quiet
    )
    out = next(live for live in json.loads(report.read_text())["live"] if live["is_sink"])
    print(f"  {out['sent']} of {48_000 * seconds} frames played, {out['dropped']} dropped; {out['bridge']}")


ROWS = {row.__name__: row for row in (release, receiver, recorder, contract, datagrams, sound)}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=int, help="of each measurement, in place of what the row has")
    parser.add_argument("rows", nargs="*", metavar="ROW", choices=[[], *ROWS])
    options = parser.parse_args()
    if not (BIN / "zbmd-run").exists():
        sys.exit(f"{BIN} has no zbmd-run: cargo build --release -p zbmdc -p zbmd-run, or set ZBMD_BIN")

    for name in options.rows or ROWS:
        print(f"{name}: load {os.getloadavg()[0]:.1f}", flush=True)
        with tempfile.TemporaryDirectory() as folder:
            try:
                ROWS[name](pathlib.Path(folder), options.seconds)
            except NotRun as reason:
                print(f"  not run: {reason}")


main()
