use zbmd_backends::kernel::{Io, Kernel, KernelFault};
use zbmd_backends::op::{CustomActor, Signature};
use zbmd_ir::text::{self, TextOptions};
use zbmd_ir::{Action, DType, Entry, InPort, OutPort, PlanId, Role, TokenType};

use super::*;
use crate::costs::{CostKey, ports_text};
use crate::{CompileOptions, Compiled, MachineChoice, calibrate_str, compile_str};

/// Three kernels, of which two actors share one.
const MODEL: &str = r#"Model(
    sources: { "in": Stream(dtype: f32) },
    actors: { "a": Gain(0.5), "b": Gain(0.5), "c": Gain(0.25), "d": Fir([0.5, 0.5]) },
    sinks: { "out": Stream() },
    channels: [
        (from: "in", to: ["a"]), (from: "a", to: ["b"]), (from: "b", to: ["c"]), (from: "c", to: ["d"]),
        (from: "d", to: ["out"]),
    ],
)
"#;

const CUSTOM: &str = r#"Model(
    sources: { "in": Stream(dtype: f32) },
    actors: { "mine": Custom("half", inputs: { "x": f32 }, outputs: { "y": f32 }) },
    sinks: { "out": Stream() },
    channels: [(from: "in", to: ["mine"]), (from: "mine", to: ["out"])],
)
"#;

fn options(machine: MachineChoice) -> CompileOptions {
    CompileOptions {
        machine,
        ..CompileOptions::default()
    }
}

fn calibrate(text: &str, options: &CompileOptions, cache: Option<&Path>) -> Calibration {
    let how = CalibrateOptions {
        cache: cache.map(Path::to_owned),
        budget_ns: 0,
        ..CalibrateOptions::default()
    };
    calibrate_str("model.ron", text, "", options, &how, &mut |_| {}).expect("a fine model")
}

fn compile(text: &str, machine: MachineChoice) -> Compiled {
    compile_str("model.ron", text, "", &options(machine)).expect("a fine model")
}

fn sources(calibration: &Calibration) -> Vec<String> {
    calibration
        .rows
        .iter()
        .map(|r| format!("{} {} {}", r.actor, r.actors, r.source))
        .collect()
}

#[test]
fn kernels_are_measured_once() {
    let dir = tempfile::tempdir().expect("a folder");
    let options = options(MachineChoice::Uniform(2));
    let first = calibrate(MODEL, &options, Some(dir.path()));
    assert_eq!(
        sources(&first),
        ["a 2 measured", "c 1 measured", "d 1 measured"]
    );
    for row in &first.rows {
        let cost = &row.cost;
        assert!(
            cost.call_ps + cost.firing_ps > 0 && cost.samples >= 5,
            "{row:?}"
        );
        assert_eq!(row.devices.len(), 2, "two like devices: {row:?}");
    }
    let second = calibrate(MODEL, &options, Some(dir.path()));
    assert_eq!(sources(&second), ["a 2 cache", "c 1 cache", "d 1 cache"]);
    assert_eq!(second.to_ron().expect("RON"), first.to_ron().expect("RON"));
    // A changed kernel is measured, its neighbours are not.
    let changed = MODEL.replace("0.25", "0.125");
    let third = calibrate(&changed, &options, Some(dir.path()));
    assert_eq!(sources(&third), ["a 2 cache", "c 1 measured", "d 1 cache"]);
    let how = CalibrateOptions {
        cache: Some(dir.path().to_owned()),
        fresh: true,
        budget_ns: 0,
        ..CalibrateOptions::default()
    };
    let mut told = 0;
    let fresh = calibrate_str("model.ron", MODEL, "", &options, &how, &mut |p| {
        told += 1;
        assert_eq!((p.done + 1, p.total), (told, 3));
    });
    assert_eq!(
        sources(&fresh.expect("a fine model")),
        ["a 2 measured", "c 1 measured", "d 1 measured"]
    );
    assert_eq!(told, 3);
}

#[test]
fn links_and_streams_cost_what_hand_overs_were_measured_to() {
    let dir = tempfile::tempdir().expect("a folder");
    let options = options(MachineChoice::Uniform(2));
    let first = calibrate(MODEL, &options, Some(dir.path()));
    let [cores] = &first.cores[..] else {
        panic!("two like devices: {:?}", first.cores)
    };
    assert_eq!(cores.devices, ["cpu:0", "cpu:1"]);
    for device in &first.machine.devices {
        assert_eq!(device.bytes_per_s, cores.bytes_per_s);
    }

    // A computer with one core has no hand-overs to measure, and keeps what links cost before.
    let Ok(hand_over) = &cores.hand_over else {
        eprintln!("SKIPPED: {:?}", cores.hand_over);
        return;
    };
    for link in first.machine.links.iter() {
        assert_eq!(link.bytes_per_s, hand_over.bytes_per_s());
        assert_eq!(link.latency_ns, hand_over.latency_ns());
    }
    let again = calibrate(MODEL, &options, Some(dir.path()));
    assert_eq!(again.cores[0].hand_over, cores.hand_over, "from the cache");

    // A source reads what another core has written, four bytes a firing, and a plan has it.
    let machine = first.to_ron().expect("RON");
    let is_source_cost = |line: &&str| line.contains("op: \"Source\"");
    let source_cost = machine.lines().find(is_source_cost).expect("a cost");
    let firing_ps = hand_over.read_kib_ps * 4 / 1024;
    let source_call_ps = hand_over::STREAM_LINES * hand_over.latency_ps;
    let numbers = format!("call_ps: {source_call_ps}, firing_ps: {firing_ps},");
    assert!(source_cost.contains(&numbers), "{source_cost}");

    let file = dir.path().join("machine.ron");
    std::fs::write(&file, &machine).expect("a file");
    let program = compile(MODEL, MachineChoice::File(file)).program;
    let (source, _) = program.graph.sources().next().expect("a source");
    let lanes = program.plans[PlanId(0)]
        .calendars
        .iter()
        .flat_map(|calendar| &calendar.lanes);
    let fired = lanes
        .flat_map(|lane| &lane.entries)
        .filter_map(|entry| match entry {
            Entry::Slot(slot) => match slot.action {
                Action::Fire { actor, count, .. } if actor == source => {
                    Some((slot.duration_ns, count))
                }
                _ => None,
            },
            Entry::Loop { .. } => None,
        });
    let fired: Vec<(u64, u64)> = fired.collect();
    assert!(!fired.is_empty(), "a source outside of loops");
    for (duration_ns, count) in fired {
        let call_ps = source_call_ps + count * firing_ps;
        assert_eq!(duration_ns, call_ps.div_ceil(1000).max(1));
    }
}

/// Halves.
struct Half {
    fault: bool,
}

impl Kernel for Half {
    fn fire(&self, io: &mut Io<'_>) -> Result<(), KernelFault> {
        if self.fault {
            return Err(KernelFault("out of order"));
        }
        let (x, y) = (io.input::<f32>(0), io.output::<f32>(0));
        y.iter_mut().zip(x).for_each(|(y, x)| *y = x / 2.0);
        Ok(())
    }
}

impl CustomActor for Half {
    fn ports(&self) -> Signature {
        let token = TokenType::scalar(DType::F32);
        let input = InPort {
            name: "x".into(),
            token: token.clone(),
            rate: 1,
            window: 1,
        };
        let output = OutPort {
            name: "y".into(),
            token,
            rate: 1,
        };
        Signature {
            inputs: vec![input],
            outputs: vec![output],
            states: Vec::new(),
        }
    }
}

#[test]
fn what_cannot_be_measured_is_left_to_the_model() {
    let dir = tempfile::tempdir().expect("a folder");
    let mut options = options(MachineChoice::Uniform(1));
    let unknown = calibrate(CUSTOM, &options, Some(dir.path()));
    assert_eq!(sources(&unknown), ["mine 1 model"]);
    options
        .registry
        .register("half", |_| Ok(Half { fault: true }));
    let faulty = calibrate(CUSTOM, &options, Some(dir.path()));
    let row = &faulty.rows[0];
    let CostSource::Model(reason) = &row.source else {
        panic!("{row:?}")
    };
    assert!(reason.contains("out of order"), "{reason}");
    assert!(row.cost.call_ps > 0, "the modelled cost is shown");
    let machine = faulty.to_ron().expect("RON");
    assert!(
        !machine.contains("Custom"),
        "and not written as a measured one: {machine}"
    );
    options
        .registry
        .register("half", |_| Ok(Half { fault: false }));
    for _ in 0..2 {
        let fine = calibrate(CUSTOM, &options, Some(dir.path()));
        assert_eq!(
            sources(&fine),
            ["mine 1 measured"],
            "code of a program is not cached"
        );
        assert!(!fine.costs.is_empty());
    }
}

/// Takes ones and twos only.
struct OnesAndTwos;

impl Kernel for OnesAndTwos {
    fn fire(&self, io: &mut Io<'_>) -> Result<(), KernelFault> {
        let (x, y) = (io.input::<f32>(0), io.output::<f32>(0));
        y.copy_from_slice(x);
        match x.iter().all(|x| [1.0, 2.0].contains(x)) {
            true => Ok(()),
            false => Err(KernelFault("neither one nor two")),
        }
    }
}

impl CustomActor for OnesAndTwos {
    fn ports(&self) -> Signature {
        Half { fault: false }.ports()
    }
}

#[test]
fn actors_of_the_program_are_measured_with_what_comes_to_them() {
    let model = CUSTOM
        .replace("actors: {", r#"actors: { "gain": Gain(0.5),"#)
        .replace(
            r#"to: ["mine"])"#,
            r#"to: ["gain"]), (from: "gain", to: ["mine"])"#,
        );
    let mut options = options(MachineChoice::Uniform(1));
    options.registry.register("half", |_| Ok(OnesAndTwos));
    let mut how = CalibrateOptions {
        budget_ns: 0,
        ..CalibrateOptions::default()
    };
    let measure = |how: &CalibrateOptions| {
        let found = calibrate_str("model.ron", &model, "", &options, how, &mut |_| {});
        found
            .map(|found| sources(&found))
            .map_err(|e| e.to_string())
    };
    let without = measure(&how).expect("a fine model");
    assert_eq!(without, ["gain 1 measured", "mine 1 model"]);

    let tokens = [2.0f32, 4.0, 4.0].repeat(7);
    let tokens = tokens.into_iter().flat_map(f32::to_le_bytes);
    how.inputs = [("in".to_owned(), tokens.collect())].into();
    let with = measure(&how).expect("a fine model");
    assert_eq!(with, ["gain 1 measured", "mine 1 measured"]);

    how.inputs = [("on".to_owned(), vec![0; 64])].into();
    let refusal = measure(&how).expect_err("the model has no such source");
    assert!(
        refusal.contains("a source `on`") && refusal.contains("`in`"),
        "{refusal}"
    );
    how.inputs = [("in".to_owned(), vec![0; 3])].into();
    let refusal = measure(&how).expect_err("less than one token");
    assert!(
        refusal.contains("given 3 bytes, an iteration takes 4"),
        "{refusal}"
    );
}

#[test]
fn another_variant_must_be_clearly_better() {
    let cost = |variant: Option<&str>, (call_ps, firing_ps), spread_percent| MeasuredCost {
        op: "Fir".into(),
        ports: String::new(),
        call_ps,
        firing_ps,
        spread_percent,
        samples: 9,
        variant: variant.map(str::to_owned),
    };
    for (default, a, b, expect) in [
        // Calls and firings in picoseconds, spread; the default one first.
        (((0, 1000), 1.0), ((0, 980), 1.0), ((0, 990), 1.0), None),
        (
            ((0, 1000), 1.0),
            ((0, 960), 1.0),
            ((0, 990), 1.0),
            Some("a"),
        ),
        (
            ((0, 1000), 1.0),
            ((0, 960), 1.0),
            ((0, 900), 1.0),
            Some("b"),
        ),
        (((0, 1000), 11.0), ((0, 960), 1.0), ((0, 900), 1.0), None),
        (((0, 1000), 1.0), ((0, 1100), 1.0), ((0, 900), 300.0), None),
        // Better for one firing, worse for many; and better for all.
        (
            ((1000, 100), 0.0),
            ((900, 110), 0.0),
            ((1000, 101), 0.0),
            None,
        ),
        (
            ((1000, 100), 0.0),
            ((500, 100), 0.0),
            ((1000, 101), 0.0),
            Some("a"),
        ),
    ] {
        let costs = [cost(None, default.0, default.1), cost(Some("a"), a.0, a.1)];
        let costs = [&costs[..], &[cost(Some("b"), b.0, b.1)]].concat();
        assert_eq!(
            best_cost(&costs, None).and_then(|c| c.variant.as_deref()),
            expect,
            "{costs:?}"
        );
    }
    assert_eq!(best_cost(&[], None), None);

    // Which is the better one depends on the length of calls.
    let costs = [
        cost(None, (1000, 100), 0.0),
        cost(Some("a"), (900, 110), 0.0),
    ];
    let best = |firings| best_cost(&costs, Some(firings)).and_then(|c| c.variant.as_deref());
    assert_eq!([best(1), best(64)], [Some("a"), None]);
}

/// The model's costs, all of them the same.
fn costs_of(compiled: &Compiled, call_ps: u64, firing_ps: u64) -> MeasuredCosts {
    let program = &compiled.program;
    let mut costs = MeasuredCosts::default();
    for actor in program
        .graph
        .actors
        .iter()
        .filter(|a| a.role == Role::Compute)
    {
        let cost = MeasuredCost {
            op: actor.op.clone(),
            ports: ports_text(actor),
            call_ps,
            firing_ps,
            spread_percent: 0.0,
            samples: 5,
            variant: None,
        };
        for device in &program.machine.devices {
            costs.insert(
                &device.name,
                CostKey::of(actor, &program.blobs),
                cost.clone(),
            );
        }
    }
    costs
}

#[test]
fn measured_costs_override_the_model() {
    let period = |compiled: &Compiled| compiled.program.plans[PlanId(0)].period_ns;
    let machine = machine::uniform(1);
    let fixed = |machine| {
        let options = CompileOptions {
            block: Some(1),
            ..options(machine)
        };
        compile_str("model.ron", MODEL, "", &options).expect("a fine model")
    };
    let modelled = fixed(MachineChoice::Given(machine.clone()));
    let costs = costs_of(&modelled, 2_000_000, 1_000_000);
    let measured = fixed(MachineChoice::Measured(machine.clone(), costs.clone()));
    // Four kernels of one firing each, 3 us a call.
    let rest = period(&measured).checked_sub(4 * 3_000);
    assert!(
        rest.is_some_and(|rest| rest <= period(&modelled)),
        "{}",
        period(&measured)
    );
    assert!(period(&modelled) < 3_000, "the model thinks they are quick");
    // Costs of other kernels are of no use.
    let other = compile(CUSTOM, MachineChoice::Given(machine.clone()));
    let strange = costs_of(&other, 2_000_000, 1_000_000);
    let unmoved = fixed(MachineChoice::Measured(machine, strange));
    assert_eq!(period(&unmoved), period(&modelled));
}

#[test]
fn the_same_machine_file_gives_the_same_bytes() {
    let dir = tempfile::tempdir().expect("a folder");
    let path = dir.path().join("machine.ron");
    let found = calibrate(MODEL, &options(MachineChoice::Uniform(2)), None);
    found.write(&path).expect("it is written");
    let bytes = || {
        let compiled = compile(MODEL, MachineChoice::File(path.clone()));
        let bundle = dir.path().join("x.zbmd");
        compiled.write(&bundle).expect("it is written");
        std::fs::read(bundle).expect("a bundle")
    };
    assert_eq!(bytes(), bytes());
    let shown = |compiled: &Compiled| {
        let program = &compiled.program;
        text::calendar(
            program,
            &program.plans[PlanId(0)],
            TextOptions { times: true },
        )
    };
    let given = MachineChoice::Measured(found.machine.clone(), found.costs.clone());
    let from_file = compile(MODEL, MachineChoice::File(path.clone()));
    assert_eq!(shown(&compile(MODEL, given)), shown(&from_file));
}

#[test]
fn costs_of_other_models_are_kept() {
    let machine = machine::uniform(1);
    let other = compile(CUSTOM, MachineChoice::Given(machine.clone()));
    let costs = costs_of(&other, 1, 1);
    let options = options(MachineChoice::Measured(machine, costs));
    let found = calibrate(MODEL, &options, None);
    let mine = other
        .program
        .graph
        .actors
        .iter()
        .find(|a| a.name == "mine")
        .expect("the actor");
    let key = CostKey::of(mine, &other.program.blobs);
    assert!(found.costs.get("cpu:0", key).is_some());
    assert!(found.rows.iter().all(|row| row.cost.op != "Custom"));
}

#[test]
fn wrong_models_are_refused() {
    let how = CalibrateOptions::default();
    let options = options(MachineChoice::Uniform(1));
    let wrong = MODEL.replace("\"b\": Gain(0.5)", "\"b\": Gian(0.5)");
    let refused = calibrate_str("model.ron", &wrong, "", &options, &how, &mut |_| {});
    assert_eq!(
        refused.map(|_| ()).map_err(|d| d.list[0].code.name()),
        Err("E0210")
    );
}
