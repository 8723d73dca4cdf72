//! Models whose weights are two and four times a device's memory: fetched from a tier in every period, with the bits of
//! the interpreter, also when workers are lost; and what the verifier says of fetches that are wrong.
//!
//! No test harness: this program is its own worker process, so `main` first asks whether it is one.

#[cfg(not(target_os = "linux"))]
fn main() {
    println!("skipped: weights are fetched from sealed files, which need Linux");
}

#[cfg(target_os = "linux")]
fn main() {
    linux::main();
}

#[cfg(target_os = "linux")]
mod linux {
    use zbmd_backends::standard_registry;
    use zbmd_compiler::{Compiled, Losses};
    use zbmd_executor::{Engine, Isolation};
    use zbmd_ir::verify::{check, verify};
    use zbmd_ir::{Action, ActorId, DeviceId, Entry, PlanId, Program, bundle, walk};
    use zbmd_tests::harness::{self, Test};
    use zbmd_tests::losses::{Feed, HARDY, live, options, supervised};
    use zbmd_tests::run::{interpret_program, random_inputs, replay_program};
    use zbmd_tests::tiers::{Layers, compile, machine};

    fn compiled(layers: &Layers, devices: usize, memory_bytes: u64, losses: Losses) -> Compiled {
        let folder = tempfile::tempdir().expect("a folder");
        let model = layers.write(folder.path());
        let machine = machine(devices, memory_bytes);
        compile(&model, folder.path(), machine, losses, &standard_registry())
            .unwrap_or_else(|d| panic!("{layers:?} in {memory_bytes} bytes: {d}"))
    }

    const SMALL: Layers = Layers {
        rows: 3,
        width: 64,
        count: 12,
        quantised: false,
    };

    fn fetch_count(program: &Program, plan: PlanId) -> usize {
        let calendars = program.plans[plan].calendars.iter();
        let slots = calendars
            .flat_map(|c| &c.lanes)
            .flat_map(|l| walk::top_slots(&l.entries));
        slots
            .filter(|slot| matches!(slot.action, Action::Fetch { .. }))
            .count()
    }

    fn bits_of_the_interpreter() {
        let registry = standard_registry();
        for (rows, width, quantised) in [(1, 64, false), (5, 96, false), (4, 160, true)] {
            let layers = Layers {
                rows,
                width,
                count: 12,
                quantised,
            };
            // Packed integers take more than they do in the model.
            for factor in [2, 4] {
                let memory = layers.weight_bytes() / factor;
                let Compiled {
                    program, fetched, ..
                } = compiled(&layers, 1, memory, Losses::None);
                let [fetched] = fetched.as_slice() else {
                    panic!("{layers:?} in {memory}: {fetched:?}");
                };
                assert!(fetched.weight_bytes >= memory, "{fetched}");
                assert!(
                    fetched.fetched_bytes >= fetched.weight_bytes - memory,
                    "{fetched}"
                );
                assert!(fetched.period_ns >= fetched.transfer_ns, "{fetched}");
                let arena: u64 = program.plans[PlanId(0)].calendars[0].arena_bytes;
                assert!(arena <= memory, "{arena} of {memory}");

                let inputs = random_inputs(&program, 37, 7);
                let (expected, _) = interpret_program(&program, &registry, &inputs, Some(37));
                let (found, _) = replay_program(program, &registry, &inputs, Some(37), None);
                assert_eq!(found, expected, "{layers:?} in {memory}");
            }
        }
    }

    fn random_layers_and_memories() {
        let registry = standard_registry();
        let mut with_fetches = 0;
        for seed in 0..40 {
            let mut rng = fastrand::Rng::with_seed(seed);
            let layers = Layers {
                rows: rng.usize(1..5),
                width: 16 * rng.usize(2..8),
                count: rng.usize(4..14),
                quantised: rng.bool(),
            };
            let devices = rng.usize(1..4);
            // Enough for the tokens of a few iterations and for two layers, which may be padded.
            let least = 40_000 + 4 * layers.weight_bytes() / layers.count as u64;
            let memory = least.max(layers.weight_bytes() / rng.u64(1..6)) + rng.u64(0..1000);
            let folder = tempfile::tempdir().expect("a folder");
            let model = layers.write(folder.path());
            let machine = machine(devices, memory);
            let compiled = compile(&model, folder.path(), machine, Losses::None, &registry);
            let program = match compiled {
                Ok(compiled) => compiled.program,
                Err(error) => panic!("seed {seed}: {layers:?} on {devices} of {memory}: {error}"),
            };
            with_fetches += usize::from(fetch_count(&program, PlanId(0)) > 0);

            let iterations = rng.u64(1..60);
            let inputs = random_inputs(&program, iterations, seed);
            let (expected, _) = interpret_program(&program, &registry, &inputs, Some(iterations));
            let (found, _) = replay_program(program, &registry, &inputs, Some(iterations), None);
            assert_eq!(
                found, expected,
                "seed {seed}: {layers:?} on {devices} of {memory}"
            );
        }
        assert!(with_fetches >= 10, "{with_fetches} of 40 with fetches");
    }

    fn what_fits_is_compiled_as_without_a_tier() {
        let registry = standard_registry();
        let folder = tempfile::tempdir().expect("a folder");
        let model = SMALL.write(folder.path());
        let with = machine(2, 1 << 30);
        let mut without = with.clone();
        without.tiers.clear();
        let [with, without] = [with, without].map(|machine| {
            let compiled = compile(&model, folder.path(), machine, Losses::Single, &registry);
            compiled.unwrap_or_else(|d| panic!("{d}"))
        });
        assert!(with.fetched.is_empty());
        assert_eq!(with.program.plans, without.program.plans);
        assert_eq!(with.program.blobs, without.program.blobs);
    }

    fn too_little_memory_is_refused() {
        let folder = tempfile::tempdir().expect("a folder");
        let model = SMALL.write(folder.path());
        // One layer and a half.
        let memory = 3 * SMALL.weight_bytes() / SMALL.count as u64 / 2;
        let small = machine(1, memory);
        let refused = compile(
            &model,
            folder.path(),
            small,
            Losses::None,
            &standard_registry(),
        );
        let text = refused.expect_err("too little").to_string();
        assert!(text.contains("E0504") && text.contains("`cpu:0`"), "{text}");

        let mut no_room = machine(1, SMALL.weight_bytes() / 2);
        let tiers = no_room.tiers.values_mut();
        tiers.for_each(|tier| tier.memory_bytes = SMALL.weight_bytes() / 4);
        let refused = compile(
            &model,
            folder.path(),
            no_room,
            Losses::None,
            &standard_registry(),
        );
        let text = refused.expect_err("too little").to_string();
        assert!(
            text.contains("E0504") && text.contains("whose tier has"),
            "{text}"
        );
    }

    /// A bundle with a tier is mapped from a disk, and its workers read the same file.
    fn bundles_on_disks() {
        let registry = standard_registry();
        let program = compiled(&SMALL, 1, SMALL.weight_bytes() / 2, Losses::None).program;
        let folder = tempfile::tempdir_in(".").expect("a folder");
        let path = folder.path().join("layers.zbmd");
        bundle::write(&path, &program).expect("written");
        let opened = bundle::open(&path).expect("opened");
        assert_eq!(opened.machine.tiers, program.machine.tiers);
        assert_eq!(opened.plans, program.plans);

        // What becomes of the bundle is of no concern to the run.
        std::fs::write(&path, b"gone").expect("written over");
        let inputs = random_inputs(&opened, 20, 3);
        let (expected, _) = interpret_program(&program, &registry, &inputs, Some(20));
        let (found, _) = replay_program(opened, &registry, &inputs, Some(20), None);
        assert_eq!(found, expected);
    }

    /// The run's own copy of the bundle is cut off at the last weights, which a layer fetches.
    fn files_that_cannot_be_read() {
        let registry = standard_registry();
        let program = compiled(&SMALL, 1, SMALL.weight_bytes() / 4, Losses::None).program;
        let folder = tempfile::tempdir_in(".").expect("a folder");
        let path = folder.path().join("layers.zbmd");
        bundle::write(&path, &program).expect("written");
        let opened = bundle::open(&path).expect("opened");

        let image = bundle::image_of(&opened).expect("an image");
        let entries = &opened.plans[PlanId(0)].calendars[0].lanes[0].entries;
        let fetched = walk::top_slots(entries).filter_map(|slot| match slot.action {
            Action::Fetch { actor, .. } => Some(actor),
            _ => None,
        });
        let places = fetched.map(|actor| {
            let (blob, _) = opened.graph.actors[actor]
                .packed_weights()
                .expect("weights");
            let offset = image.offset_of(&opened.blobs[blob]).expect("in the file");
            (offset, opened.graph.actors[actor].name.clone())
        });
        let (offset, name) = places.max().expect("weights are fetched");
        let engine = Engine::new(opened, &registry).expect("an engine");
        if image.file().set_len(offset + 100).is_err() {
            println!("skipped: no copy on a disk can be made here");
            return;
        }

        let feed = Feed {
            seed: 1,
            iterations: 100,
            per_s: None,
        };
        let told = live(&engine, feed, options(Isolation::Threads));
        let error = told.outcome.expect_err("weights are missing");
        let text = error.to_string();
        assert!(
            text.contains("cannot read") && text.contains(&format!("weights of `{name}`")),
            "{text}"
        );
        assert_eq!(error.class(), zbmd_executor::exit::FAULT);
    }

    /// Workers in processes of their own, of which some are killed, and devices that others stand in for.
    fn losses() {
        let registry = standard_registry();
        let memory = SMALL.weight_bytes() / 4;
        let program = compiled(&SMALL, 2, memory, Losses::Single).program;
        for plan in program.plans.keys() {
            assert!(
                fetch_count(&program, plan) > 0,
                "{}",
                program.plans[plan].name
            );
        }
        let engine = Engine::new(program, &registry).expect("an engine");
        let mut feed = Feed {
            seed: 4,
            iterations: 2_000,
            per_s: None,
        };
        let mut plain = live(&engine, feed, options(Isolation::Threads));
        while plain.elapsed.as_millis() < 400 {
            feed.iterations *= 2;
            plain = live(&engine, feed, options(Isolation::Threads));
        }
        plain.outcome.expect("an undisturbed run ends well");

        let mut recoveries = 0;
        for isolation in [Isolation::Threads, Isolation::Processes { program: None }] {
            let is_threads = isolation == Isolation::Threads;
            let mut options = options(isolation);
            // Threads cannot be killed.
            let kind = if is_threads { "delay" } else { "kill" };
            let faults = format!("Inject(at: [(\"60ms\", {kind}), (\"200ms\", {kind})])");
            options.supervised = Some(supervised(&engine, HARDY, Some(&faults)));
            let told = live(&engine, feed, options);
            let outcome = told.outcome.expect("a supervised run ends well");
            assert_eq!(told.sinks, plain.sinks, "other bits after {faults}");
            recoveries += outcome.report.recoveries;
        }
        assert!(recoveries > 0, "nothing was lost");
    }

    /// The first entry of a device that is like this.
    fn position(program: &Program, is_it: impl Fn(Action) -> bool) -> usize {
        let entries = &program.plans[PlanId(0)].calendars[0].lanes[0].entries;
        let found = entries
            .iter()
            .position(|entry| matches!(entry, Entry::Slot(slot) if is_it(slot.action)));
        found.expect("the calendar has one")
    }

    fn is_fetch(action: Action) -> bool {
        matches!(action, Action::Fetch { .. })
    }

    /// An actor whose weights are fetched for the same period, with its fetch, its wait and its firing.
    fn fetched_actor(program: &Program) -> (ActorId, usize, usize, usize) {
        let entries = &program.plans[PlanId(0)].calendars[0].lanes[0].entries;
        for slot in walk::top_slots(entries) {
            let Action::Fetch { actor, .. } = slot.action else {
                continue;
            };
            let fetch = position(program, |a| is_fetch(a) && a == slot.action);
            let wait = position(program, |a| a == Action::Await { actor });
            let fire = position(
                program,
                |a| matches!(a, Action::Fire { actor: id, .. } if id == actor),
            );
            if fetch < wait {
                return (actor, fetch, wait, fire);
            }
        }
        panic!("all weights are fetched for the next period");
    }

    /// Moves an entry to another place, and lets the times of the lane stay in order.
    fn move_entry(entries: &mut Vec<Entry>, from: usize, to: usize) {
        let starts: Vec<u64> = entries.iter().map(walk::start_ns).collect();
        let entry = entries.remove(from);
        entries.insert(to, entry);
        for (entry, start_ns) in entries.iter_mut().zip(starts) {
            walk::start_at(entry, start_ns);
            if let Entry::Slot(slot) = entry {
                slot.duration_ns = 0;
            }
        }
    }

    type Mutation = fn(&mut Program);

    fn lane(program: &mut Program) -> &mut Vec<Entry> {
        &mut program.plans[PlanId(0)].calendars[0].lanes[0].entries
    }

    fn mutants() {
        let program = compiled(&SMALL, 1, SMALL.weight_bytes() / 3, Losses::None).program;
        let program = program.into_inner();
        assert_eq!(check(&program), Ok(()));
        let mutations: [(&str, Mutation); 12] = [
            ("V1204", |p| {
                let fetch = position(p, is_fetch);
                lane(p).remove(fetch);
            }),
            ("V1204", |p| {
                let wait = position(p, |a| matches!(a, Action::Await { .. }));
                lane(p).remove(wait);
            }),
            ("V1204", |p| {
                let fetch = position(p, is_fetch);
                let twice = lane(p)[fetch].clone();
                lane(p).insert(fetch, twice);
            }),
            // Too late: the firing comes before the wait.
            ("V1205", |p| {
                let (_, _, wait, fire) = fetched_actor(p);
                move_entry(lane(p), wait, fire);
            }),
            // The fetch comes between the wait and the firing.
            ("V1206", |p| {
                let (_, fetch, wait, _) = fetched_actor(p);
                move_entry(lane(p), fetch, wait);
            }),
            // Too early: the place still has what another actor needs.
            ("V0601", |p| {
                let (_, fetch, ..) = fetched_actor(p);
                move_entry(lane(p), fetch, 0);
            }),
            // Into the buffers.
            ("V0601", |p| {
                let fetch = position(p, is_fetch);
                if let Entry::Slot(slot) = &mut lane(p)[fetch]
                    && let Action::Fetch { offset_bytes, .. } = &mut slot.action
                {
                    *offset_bytes = 0;
                }
            }),
            ("V0410", |p| {
                p.plans[PlanId(0)].calendars[0].arena_bytes -= 64;
            }),
            ("V0408", |p| {
                let fetch = position(p, is_fetch);
                if let Entry::Slot(slot) = &mut lane(p)[fetch]
                    && let Action::Fetch { offset_bytes, .. } = &mut slot.action
                {
                    *offset_bytes += 4;
                }
            }),
            ("V1203", |p| p.machine.tiers.clear()),
            ("V1208", |p| {
                p.machine
                    .tiers
                    .entry(DeviceId(0))
                    .and_modify(|tier| tier.memory_bytes = 1);
            }),
            // A slower tier than was planned with.
            ("V1209", |p| {
                p.machine
                    .tiers
                    .entry(DeviceId(0))
                    .and_modify(|tier| tier.bytes_per_s /= 2);
            }),
        ];
        for (number, (code, mutate)) in mutations.into_iter().enumerate() {
            let mut mutant = program.clone();
            mutate(&mut mutant);
            let errors = verify(mutant).expect_err("a mutant is refused");
            let codes: Vec<&str> = errors.iter().map(|error| error.code()).collect();
            assert!(
                codes.contains(&code),
                "mutant {number}: {code} is not in {errors:?}"
            );
        }

        // Two fetches that are exchanged go to each other's places: all their bytes would be wrong.
        let mut swapped = program.clone();
        let (_, fetch, ..) = fetched_actor(&swapped);
        let entries = lane(&mut swapped);
        let other = (0..entries.len())
            .filter(|at| *at != fetch)
            .find(|at| matches!(&entries[*at], Entry::Slot(slot) if is_fetch(slot.action)));
        entries.swap(fetch, other.expect("another fetch"));
        assert!(check(&swapped).is_err());
    }

    pub(super) fn main() {
        zbmd_executor::serve_if_worker(&standard_registry());
        let tests: [Test; 8] = [
            ("bits_of_the_interpreter", bits_of_the_interpreter),
            ("random_layers_and_memories", random_layers_and_memories),
            (
                "what_fits_is_compiled_as_without_a_tier",
                what_fits_is_compiled_as_without_a_tier,
            ),
            ("too_little_memory_is_refused", too_little_memory_is_refused),
            ("bundles_on_disks", bundles_on_disks),
            ("files_that_cannot_be_read", files_that_cannot_be_read),
            ("losses", losses),
            ("mutants", mutants),
        ];
        harness::run(&tests, || true);
    }
}
