//! GPUs of several hosts: driven by threads of the agent or by processes, with rings to their own host and to others. Outputs are those
//! of one CPU, bit for bit, also when the host of a GPU is lost and comes back. With Vulkan on the driver at hand.

use std::ffi::OsStr;
use std::path::Path;
use std::time::Duration;

use zbmd_backends::gpu::Device;
use zbmd_backends::vulkan::{Injected, Injection, Site, VulkanDevice, VulkanOptions};
use zbmd_compiler::{CompileOptions, Losses, MachineChoice, compile_str};
use zbmd_executor::{Engine, Isolation, RunOptions};
use zbmd_tests::agents::AgentProcess;
use zbmd_tests::gpu;
use zbmd_tests::harness::Test;
use zbmd_tests::losses::{Feed, Told, live, live_with, options};
use zbmd_tests::other_processes::workers_of;

use super::hosts::{
    LONG_LEASE, host_options, lost_counts, start_agent, start_agent_at, start_agent_in, token_file,
};

pub(super) const TESTS: &[Test] = &[
    ("gpus_beside_and_across", gpus_beside_and_across),
    ("the_host_of_a_gpu_is_lost", the_host_of_a_gpu_is_lost),
    ("a_gpu_that_hangs", a_gpu_that_hangs),
    ("a_gpu_that_is_not_there", a_gpu_that_is_not_there),
];

const GPUS: Isolation = Isolation::GpuProcesses { program: None };
const PROCESSES: Isolation = Isolation::Processes { program: None };
const FEED: Feed = Feed {
    seed: 3,
    iterations: 40_000,
    per_s: None,
};
const BLOCK: u64 = 512;

/// In the environment of an agent: the first GPU that is opened while this names a file that is not there hangs after a while.
const HANG_FILE: &str = "ZBMD_TEST_HANG";

/// Is called with each GPU that this process opens.
pub(super) fn hang_if_told(device: &Device) {
    let Some(file) = std::env::var_os(HANG_FILE) else {
        return;
    };
    if std::fs::File::create_new(file).is_ok()
        && let Some(device) = device.downcast::<VulkanDevice>()
    {
        device.inject(Injection {
            site: Site::Wait,
            after: 50,
            error: Injected::Hang,
        });
    }
}

/// How fast the CPU devices of [`machine`] are.
#[derive(Clone, Copy, PartialEq)]
enum Cpus {
    Ordinary,
    /// So slow that whatever can be elsewhere is.
    Slow,
}

/// Two hosts with a CPU device and a GPU each.
fn machine(cpus: Cpus) -> String {
    let speed = match cpus {
        Cpus::Ordinary => "",
        Cpus::Slow => ", flops: 10000000, bandwidth: 10000000",
    };
    format!(
        r#"Machine(
            devices: [
                Device(name: "left:0", backend: cpu{speed}), Device(name: "left/vulkan:0", backend: vulkan),
                Device(name: "right:0", backend: cpu{speed}), Device(name: "right/vulkan:0", backend: vulkan),
            ],
            hosts: {{ "left": ["left:0", "left/vulkan:0"], "right": ["right:0", "right/vulkan:0"] }},
            links: [
                Link(from: "left", to: "left"), Link(from: "right", to: "right"),
                Link(from: "left", to: "right", both: true, bandwidth: "10GB/s", latency: "1us"),
            ],
        )"#
    )
}

/// Sums and products of single numbers, which every device computes to the same bits, with a state.
fn model(pins: &str) -> String {
    format!(
        r#"Model(
            name: "exact",
            sources: {{ "in": Stream(dtype: f32) }},
            actors: {{
                "pre": Expr("x + 0.5", inputs: {{ "x": f32 }}),
                "scale": Expr("3.0 * x", inputs: {{ "x": f32 }}),
                "sum": Expr("0.5 * s + x", inputs: {{ "x": f32, "s": f32 }}),
                "late": Expr("x - y", inputs: {{ "x": f32, "y": f32 }}),
                "post": Expr("x * 2.0", inputs: {{ "x": f32 }}),
            }},
            channels: [
                (from: "in", to: ["pre"]), (from: "pre", to: ["scale"]), (from: "scale", to: ["sum.x", "late.x"]),
                (from: "sum", to: ["sum.s", "late.y"], initial: [0.0]),
                (from: "late", to: ["post"]), (from: "post", to: ["out"]),
            ],
            sinks: {{ "out": Stream() }},
            pins: {{ {pins} }},
        )"#
    )
}

fn engine_on(machine: MachineChoice, pins: &str, contingencies: Losses) -> Engine {
    let options = CompileOptions {
        machine,
        contingencies,
        block: Some(BLOCK),
        ..CompileOptions::default()
    };
    let compiled = compile_str("exact.ron", &model(pins), "", &options);
    let compiled = compiled.unwrap_or_else(|diagnostics| panic!("{diagnostics}"));
    Engine::new(compiled.program, &zbmd_backends::standard_registry()).expect("an engine")
}

fn engine(folder: &Path, cpus: Cpus, pins: &str, contingencies: Losses) -> Engine {
    let file = folder.join("cluster.ron");
    std::fs::write(&file, machine(cpus)).expect("written");
    let pins = format!(r#""in": "left:0", "out": "left:0", {pins}"#);
    engine_on(MachineChoice::File(file), &pins, contingencies)
}

/// What one CPU makes of the feed.
fn on_one_cpu(feed: Feed) -> Told {
    let feed = Feed {
        per_s: None,
        ..feed
    };
    let engine = engine_on(MachineChoice::Uniform(1), "", Losses::None);
    let told = live(&engine, feed, options(Isolation::Threads));
    told.outcome.as_ref().expect("it runs");
    told
}

/// The names of the devices that the main plan uses.
fn devices_used(engine: &Engine) -> Vec<&str> {
    let program = engine.program();
    let calendars = program.plans[zbmd_ir::PlanId(0)].calendars.iter();
    let names = calendars.map(|calendar| program.machine.devices[calendar.device].name.as_str());
    names.collect()
}

fn has_gpu() -> bool {
    gpu::open(false, &VulkanOptions::default()).is_some()
}

fn with_isolation(engine: &Engine, agent: &AgentProcess, isolation: &Isolation) -> RunOptions {
    RunOptions {
        isolation: isolation.clone(),
        ..host_options(engine, agent, LONG_LEASE)
    }
}

/// A GPU that only its own host's CPU gives tokens to; one that is sent them from another host, and sends them back; and two that send
/// to each other.
fn gpus_beside_and_across() {
    if !has_gpu() {
        return;
    }
    let folder = tempfile::tempdir().expect("a folder");
    let agent = start_agent(&token_file(folder.path()));
    let expected = on_one_cpu(FEED);
    let beside = r#""pre": "right:0", "scale": "right/vulkan:0", "sum": "right/vulkan:0", "late": "right/vulkan:0", "post": "right:0""#;
    let across = r#""pre": "left:0", "scale": "right/vulkan:0", "sum": "right/vulkan:0", "late": "right:0", "post": "left:0""#;
    let between = r#""pre": "left:0", "scale": "left/vulkan:0", "sum": "right/vulkan:0", "late": "right/vulkan:0", "post": "left/vulkan:0""#;
    for pins in [beside, across, between] {
        let engine = engine(folder.path(), Cpus::Ordinary, pins, Losses::None);
        assert!(devices_used(&engine).contains(&"right/vulkan:0"), "{pins}");
        for (isolation, checksums) in [
            (Isolation::Threads, false),
            (GPUS, true),
            (PROCESSES, false),
        ] {
            let mut options = with_isolation(&engine, &agent, &isolation);
            options.checksums = checksums;
            let told = live(&engine, FEED, options);
            let outcome = told.outcome;
            let outcome = outcome.unwrap_or_else(|error| panic!("{isolation:?}, {pins}: {error}"));
            assert_eq!(
                outcome.report.recoveries, 0,
                "{isolation:?}, {pins}: {:?}",
                told.events
            );
            assert_eq!(told.sinks, expected.sinks, "{isolation:?}, {pins}");
            let workers = &outcome.report.plans[0].workers;
            let mut gpus = workers
                .iter()
                .filter(|worker| worker.device.contains("vulkan"));
            assert!(
                gpus.all(|gpu| gpu.slots[0].samples > 0),
                "periods are measured"
            );
        }
    }
}

/// The agent is killed, and started again where it was: its GPU is taken in, whoever drives it.
fn the_host_of_a_gpu_is_lost() {
    if !has_gpu() {
        return;
    }
    let folder = tempfile::tempdir().expect("a folder");
    let token_file = token_file(folder.path());
    let feed = Feed {
        iterations: 200_000,
        per_s: Some(50_000.0),
        ..FEED
    };
    let expected = on_one_cpu(feed);
    let pins = r#""pre": "left:0", "post": "left:0""#;
    let engine = engine(folder.path(), Cpus::Slow, pins, Losses::Hosts);
    assert!(
        devices_used(&engine).contains(&"right/vulkan:0")
            || devices_used(&engine).contains(&"left/vulkan:0"),
        "{:?}",
        devices_used(&engine)
    );
    for isolation in [Isolation::Threads, GPUS] {
        let agent = start_agent(&token_file);
        let options = with_isolation(&engine, &agent, &isolation);
        let mut again = None;
        let told = live_with(&engine, feed, options, |_, _| {
            std::thread::sleep(Duration::from_millis(500));
            if isolation == GPUS {
                assert!(!workers_of(agent.pid()).is_empty(), "its GPU is a process");
            }
            let address = agent.address;
            // Killed, and waited for.
            drop(agent);
            again = Some(start_agent_at(&token_file, address));
        });
        told.outcome
            .as_ref()
            .unwrap_or_else(|error| panic!("{isolation:?}: {error}"));
        let lost_counts = lost_counts(&told);
        let is_back = lost_counts.contains(&2) && lost_counts.last() == Some(&0);
        assert!(
            is_back,
            "{isolation:?}, lost in each epoch: {lost_counts:?}"
        );
        assert_eq!(told.sinks, expected.sinks, "{isolation:?}");
    }
}

/// Whoever drives it is given up, or killed, and another one opens it again, without the loss of its host.
fn a_gpu_that_hangs() {
    if !has_gpu() {
        return;
    }
    let folder = tempfile::tempdir().expect("a folder");
    let token_file = token_file(folder.path());
    let feed = Feed {
        iterations: 120_000,
        per_s: Some(50_000.0),
        ..FEED
    };
    let expected = on_one_cpu(feed);
    let pins = r#""pre": "left:0", "scale": "right/vulkan:0", "sum": "right/vulkan:0", "late": "left:0", "post": "left:0""#;
    let engine = engine(folder.path(), Cpus::Ordinary, pins, Losses::None);
    for (isolation, note) in [(Isolation::Threads, "threads"), (GPUS, "processes")] {
        let note = folder.path().join(note);
        let agent = start_agent_in(&token_file, &[(HANG_FILE, note.as_os_str())]);
        let told = live(&engine, feed, with_isolation(&engine, &agent, &isolation));
        let outcome = told.outcome.as_ref();
        let outcome = outcome.unwrap_or_else(|error| panic!("{isolation:?}: {error}"));
        let text = format!("{:?}", told.events);
        assert!(note.exists() && outcome.report.recoveries > 0, "{text}");
        assert!(
            !text.contains("host right is gone"),
            "{isolation:?}: {text}"
        );
        assert_eq!(told.sinks, expected.sinks, "{isolation:?}");
    }
}

/// The agent's computer has no such GPU: the run says which one is missing where.
fn a_gpu_that_is_not_there() {
    if !has_gpu() {
        return;
    }
    let folder = tempfile::tempdir().expect("a folder");
    let no_drivers = ["VK_ICD_FILENAMES", "VK_DRIVER_FILES"];
    let no_drivers = no_drivers.map(|name| (name, OsStr::new("/dev/null")));
    let agent = start_agent_in(&token_file(folder.path()), &no_drivers);
    let pins = r#""pre": "left:0", "scale": "right/vulkan:0", "sum": "left:0", "late": "left:0", "post": "left:0""#;
    let engine = engine(folder.path(), Cpus::Ordinary, pins, Losses::None);
    for isolation in [Isolation::Threads, GPUS] {
        let options = with_isolation(&engine, &agent, &isolation);
        let told = live(&engine, FEED, options);
        let error = told.outcome.expect_err("no such GPU").to_string();
        assert!(error.contains("right/vulkan:0"), "{isolation:?}: {error}");
    }
}
