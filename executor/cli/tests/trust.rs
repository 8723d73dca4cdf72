//! What a bundle can do to whoever runs it: nothing but be refused, whatever is in it and whatever becomes of its file.

#[path = "../../tests/common/mod.rs"]
mod common;

use std::io::{Read, Write};
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::Arc;

use bytes::Bytes;
use common::{TestOp, inputs, interpreter, registry, runner, sinks, text, verified, with_tail};
use zbmd_backends::kernel::{Io, Kernel, KernelFault};
use zbmd_backends::op::{Op, OpDoc, OpError, Registry, ResolveCx, ResolvedOp, Signature};
use zbmd_executor::{Engine, EngineError, RunOptions, Unsupported};
use zbmd_ir::memory::available_bytes;
use zbmd_ir::testing::programs;
use zbmd_ir::{
    Actor, BlobId, Contingencies, Contingency, DeviceId, KindId, Loss, Plan, PlanId, Program,
    TiSlice, bundle,
};

/// A program whose only contingency is `spare`; it is for the loss of device 0, in whose place comes device 1.
fn with_contingency(change: impl FnOnce(&mut Program, &mut Plan)) -> Program {
    let mut program = programs::window();
    let mut device = program.machine.devices[DeviceId(0)].clone();
    device.name = "other:0".into();
    program.machine.devices = vec![program.machine.devices[DeviceId(0)].clone(), device].into();
    program.machine.links.clear();

    let mut spare = program.plans[PlanId(0)].clone();
    spare.name = "spare".into();
    spare.placement.iter_mut().for_each(|d| *d = DeviceId(1));
    spare
        .buffers
        .iter_mut()
        .for_each(|b| b.device = DeviceId(1));
    spare.calendars[0].device = DeviceId(1);
    change(&mut program, &mut spare);

    program.contingencies = Contingencies {
        kinds: vec![vec![DeviceId(0)], vec![DeviceId(1)]].into(),
        list: vec![Contingency {
            lost: vec![Loss {
                kind: KindId(0),
                count: 1,
            }],
            main: program.plans.push_and_get_key(spare),
            tail: None,
        }],
        ..Contingencies::default()
    };
    program
}

struct Hungry;

impl Kernel for Hungry {
    fn fire(&self, _: &mut Io<'_>) -> Result<(), KernelFault> {
        Ok(())
    }

    fn scratch_bytes(&self) -> usize {
        128
    }
}

#[test]
fn plans_for_lost_devices_are_checked_at_load() {
    let mut registry = registry();
    registry.add(TestOp("Fir", Box::new(|_| Arc::new(Hungry))));
    // Enough in both plans, then in the main plan alone.
    let with_scratch = |main: u64, spare: u64| {
        let program = with_contingency(|program, plan| {
            let own = &mut program.plans[PlanId(0)].calendars[0];
            for (calendar, bytes) in [(own, main), (&mut plan.calendars[0], spare)] {
                calendar.scratch_offset_bytes = calendar.arena_bytes;
                calendar.arena_bytes += 128;
                calendar.scratch_bytes = bytes;
            }
        });
        Engine::new(verified(program), &registry)
    };
    with_scratch(128, 128).expect("enough in both");
    let Err(EngineError::Scratch {
        plan,
        needed,
        planned,
        ..
    }) = with_scratch(128, 64)
    else {
        panic!("a contingency with too little scratch memory is accepted")
    };
    assert_eq!((plan.as_str(), needed, planned), ("spare", 128, 64));

    let program = with_contingency(|program, _| {
        program.machine.devices[DeviceId(1)].backend = "abacus".into();
    });
    let refused = Engine::new(verified(program), &registry).expect_err("no such backend");
    let EngineError::Unsupported(Unsupported::Backend { plan, backend, .. }) = refused else {
        panic!("{refused}")
    };
    assert_eq!((plan.as_str(), backend.as_str()), ("spare", "abacus"));

    let program = with_contingency(|program, plan| {
        let fir = program.graph.find("fir").expect("its filter");
        plan.variants.insert(fir, "none-such".into());
    });
    let refused = Engine::new(verified(program), &registry).expect_err("no such variant");
    assert!(matches!(refused, EngineError::Kernel { .. }), "{refused}");
}

/// Adds the bytes of a blob, which stay where they are in the bundle.
struct Weigh(Bytes);

impl Kernel for Weigh {
    fn fire(&self, io: &mut Io<'_>) -> Result<(), KernelFault> {
        let weight: f32 = self.0.iter().map(|&byte| f32::from(byte)).sum();
        let input: Vec<f32> = io.input::<f32>(0).to_vec();
        for (y, x) in io.output::<f32>(0).iter_mut().zip(input.chunks(1)) {
            *y = x[0] + weight;
        }
        Ok(())
    }
}

struct WeighOp;

impl Op for WeighOp {
    fn name(&self) -> &str {
        "Gain"
    }

    fn doc(&self) -> OpDoc {
        OpDoc {
            summary: "for tests",
            params: &[],
            ports: "any",
            example: "",
        }
    }

    fn resolve(&self, _: &ResolveCx<'_>) -> Result<ResolvedOp, OpError> {
        Err(OpError::Other {
            message: "tests resolve no models".to_owned(),
            help: String::new(),
        })
    }

    fn resolve_actor(
        &self,
        _: &Actor,
        blobs: &TiSlice<BlobId, Bytes>,
    ) -> Option<Result<ResolvedOp, OpError>> {
        let kernel = Arc::new(Weigh(blobs[BlobId(0)].clone()));
        let signature = Signature::default();
        Some(Ok(ResolvedOp::of_shared_kernel(signature, kernel)))
    }
}

/// Overwrites a file where it is, and then cuts it off.
fn spoil(path: &Path) {
    let length = std::fs::metadata(path).expect("a file").len() as usize;
    std::fs::write(path, vec![0xa5; length]).expect("overwritten");
    std::fs::File::options()
        .write(true)
        .open(path)
        .and_then(|file| file.set_len(1))
        .expect("cut off");
}

#[test]
fn a_bundle_changed_in_place_changes_no_run() {
    let mut program = programs::over();
    program.blobs.push(vec![1; 50_000].into());
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("model.zbmd");
    bundle::write(&path, &verified(program.clone())).expect("written");
    let mut registry: Registry = registry();
    registry.add(WeighOp);

    let run = |spoiled: bool| {
        let program = bundle::open(&path).expect("a bundle");
        let engine = Engine::new(program, &registry).expect("ops that exist");
        let mut session = engine.start(RunOptions::default()).expect("starts");
        let given = inputs(engine.program(), 64);
        let (name, bytes) = given.iter().next().expect("a source");
        let mut source = session.source(name).expect("a source");
        let (before, after) = bytes.split_at(bytes.len() / 2);

        source.push_bytes(before).expect("taken");
        if spoiled {
            spoil(&path);
        }
        source.push_bytes(after).expect("taken");
        drop(source);
        let mut sink = session.sink(&sinks(engine.program())[0]).expect("a sink");
        let mut all = Vec::new();
        let mut piece = [0; 64];
        while let Ok(tokens @ 1..) = sink.pull_some_bytes(&mut piece) {
            all.extend_from_slice(&piece[..tokens as usize * 4]);
        }
        session.join().expect("ends");
        all
    };
    let expected = run(false);
    assert!(!expected.is_empty());
    assert!(run(true) == expected, "other outputs");
}

/// Workers that are started after the file was changed map what the first ones did.
#[cfg(target_os = "linux")]
#[test]
fn workers_started_later_have_the_bundle_that_was_opened() {
    let program = with_tail(programs::chain());
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("model.zbmd");
    bundle::write(&path, &verified(program.clone())).expect("written");
    let given = inputs(&program, 4000);
    let mut expected = interpreter(&program).run(&given, None).expect("runs");
    let expected = expected.outputs.remove("out").expect("a sink");

    let mut child = Command::new(runner())
        .arg(&path)
        .args([
            "-i",
            "in=-",
            "-o",
            "out=-",
            "--isolation",
            "processes",
            "--supervise",
            "-q",
        ])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("started");
    let mut stdin = child.stdin.take().expect("piped");
    let mut stdout = child.stdout.take().expect("piped");
    stdin.write_all(&given["in"][..16]).expect("written");
    let mut all = vec![0; 32];
    stdout.read_exact(&mut all).expect("a block");

    spoil(&path);
    for worker in workers_of(child.id()) {
        let killed = Command::new("kill")
            .args(["-9", &worker.to_string()])
            .status();
        assert!(killed.expect("kill").success());
    }
    let rest = given["in"][16..].to_vec();
    let writer = std::thread::spawn(move || stdin.write_all(&rest));
    stdout.read_to_end(&mut all).expect("the rest");
    writer.join().expect("no panic").expect("written");
    let output = child.wait_with_output().expect("ends");
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
    assert!(all == expected, "other outputs");
}

/// Processes whose environment says that they work for a process of this number.
#[cfg(target_os = "linux")]
fn workers_of(parent: u32) -> Vec<u32> {
    let mark = format!("ZBMD_WORKER={parent}\0");
    let processes = std::fs::read_dir("/proc").expect("on Linux").flatten();
    let numbers = processes.filter_map(|p| p.file_name().to_str()?.parse::<u32>().ok());
    let is_ours = |p: &u32| {
        let environment = std::fs::read(format!("/proc/{p}/environ")).unwrap_or_default();
        String::from_utf8_lossy(&environment).contains(&mark)
    };
    numbers.filter(is_ours).collect()
}

/// No part of it is more than the machine has, but all together are: without the sum, pages would be taken until the
/// system kills somebody.
#[test]
fn memory_is_added_up_before_any_is_taken() {
    let Some(available) = available_bytes() else {
        println!("skipped: this system does not say how much memory it has");
        return;
    };
    let each = (available / 3 * 2).next_multiple_of(64);
    let mut program = programs::two_devices();
    for device in &mut program.machine.devices {
        device.memory_bytes = u64::MAX;
    }
    for calendar in &mut program.plans[PlanId(0)].calendars {
        calendar.arena_bytes = each;
    }
    let engine = Engine::new(verified(program.clone()), &registry()).expect("ops that exist");
    let refused = engine.start(RunOptions::default()).expect_err("too much");
    let EngineError::Demand {
        plan,
        needed,
        available,
        ..
    } = &refused
    else {
        panic!("{refused}")
    };
    assert_eq!(plan, "main");
    assert!(*needed > 2 * u128::from(each) && *needed > u128::from(*available));
    assert!(
        refused
            .to_string()
            .contains(&format!("arenas {}", 2 * each)),
        "{refused}"
    );
    assert_eq!(refused.class(), zbmd_executor::exit::REFUSED);
}

/// Sizes of queues follow from tokens of a block and stages, whose product need not fit any memory.
#[test]
fn queues_of_absurd_size_are_refused() {
    let engine = Engine::new(verified(programs::chain()), &registry()).expect("ops that exist");
    let options = RunOptions {
        queue_bytes: u64::MAX,
        ..RunOptions::default()
    };
    let refused = engine.start(options).expect_err("too much");
    assert!(matches!(refused, EngineError::Demand { .. }), "{refused}");
}

/// The structure of a bundle may be hundreds of times as large in memory as in the file.
#[test]
fn a_structure_that_takes_much_memory_is_refused_unless_it_is_allowed() {
    const FIRINGS: u64 = 250_000;
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("long.zbmd");
    std::fs::write(&path, bundle::encode(&programs::long(FIRINGS))).expect("written");

    let refused = Command::new(runner()).arg(&path).output().expect("runs");
    assert_eq!(refused.status.code(), Some(5), "{}", text(&refused.stderr));
    assert!(
        text(&refused.stderr).contains("--max-structure"),
        "{}",
        text(&refused.stderr)
    );

    // It is read, and the sources have no files.
    let read = Command::new(runner())
        .arg(&path)
        .args(["--max-structure", "200"])
        .output()
        .expect("runs");
    assert_eq!(read.status.code(), Some(2), "{}", text(&read.stderr));
}
