//! Models with modes: each is compiled as if it stood alone, and they share a bundle.

use zbmd_ir::bundle::{open_modes, open_modes_within};
use zbmd_ir::response::{LatePolicy, late_mode, late_policy};

use crate::{Code, CompileOptions, Compiled, Diagnostics, MachineChoice, ModeBounds, compile_str};

const MODEL: &str = r#"Model(
    name: "receiver",
    params: { "taps": [0.25, 0.5, 0.25] },
    sources: { "in": Stream(dtype: f32, sample_rate: 48000) },
    actors: { "smooth": Fir(taps: $taps) },
    channels: [(from: "in", to: ["smooth"])],
    modes: {
        "scan": Mode(
            actors: { "power": Expr("x * x") },
            channels: [(from: "smooth", to: ["power"]), (from: "power", to: ["out"])],
        ),
        "track": Mode(
            actors: { "sum": Expr("x + s", inputs: { "x": f32, "s": f32 }) },
            channels: [
                (from: "smooth", to: ["sum.x"]),
                (from: "sum", to: ["sum.s", "out"], initial: [0.0]),
            ],
        ),
    },
    initial_mode: "track",
    changes: [("track", "scan")],
    sinks: { "out": Stream() },
)"#;

fn options(mode: Option<&str>) -> CompileOptions {
    CompileOptions {
        machine: MachineChoice::Uniform(2),
        mode: mode.map(str::to_owned),
        ..CompileOptions::default()
    }
}

fn compile(text: &str, mode: Option<&str>) -> Result<Compiled, Diagnostics> {
    compile_str("model.ron", text, "", &options(mode))
}

#[test]
fn every_mode_is_the_model_with_what_the_mode_adds() {
    let compiled = compile(MODEL, None).expect("it compiles");
    let modes = &compiled.modes.as_ref().expect("modes").verified;
    assert_eq!(modes.names(), ["track", "scan"]);
    assert_eq!(modes.changes(), [(0, 1)]);
    for (name, program) in modes.names().iter().zip(modes.programs()) {
        let alone = compile(MODEL, Some(name)).expect("it compiles alone");
        assert!(alone.modes.is_none());
        assert_eq!(***program, *alone.program, "{name}");
    }
    assert_eq!(*compiled.program, **modes.programs()[0]);

    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("receiver.zbmd");
    compiled.write(&path).expect("written");
    let opened = open_modes(&path).expect("it is read");
    assert_eq!(opened.names(), modes.names());
    for (found, written) in opened.programs().iter().zip(modes.programs()) {
        assert_eq!(***found, ***written);
    }
    assert!(open_modes_within(&path, 16).is_err(), "its limit is kept");
    assert!(
        zbmd_ir::bundle::open(&path).is_err(),
        "it is not one program"
    );
}

#[test]
fn bounds_are_those_of_the_worst_mode_and_the_worst_change() {
    let compiled = compile(MODEL, None).expect("it compiles");
    let bounds = ModeBounds::of(&compiled.modes.as_ref().expect("modes").verified);
    let latencies: Vec<u64> = bounds.modes.iter().map(|mode| mode.latency_ns).collect();
    let worst = bounds.worst.as_ref().expect("a change");
    // By the plans it is both latencies; slots that need not wait for those of other blocks come earlier.
    assert!(worst.latency_ns <= latencies.iter().sum::<u64>());
    assert!(worst.latency_ns > latencies.iter().sum::<u64>() / 2);
    let periods = bounds.modes.iter().map(|mode| mode.period_ns);
    assert!(Some(bounds.mean_ns) >= periods.max());
    assert_eq!((worst.from.as_str(), worst.to.as_str()), ("track", "scan"));
    let text = bounds.to_string();
    assert!(text.contains("(first block after track -> scan)"), "{text}");
}

#[test]
fn without_changes_all_are_allowed_and_the_first_mode_begins() {
    let text = MODEL
        .replace("    initial_mode: \"track\",\n", "")
        .replace("    changes: [(\"track\", \"scan\")],\n", "");
    let compiled = compile(&text, None).expect("it compiles");
    let modes = compiled.modes.expect("modes").verified;
    assert_eq!(modes.names(), ["scan", "track"]);
    assert_eq!(modes.changes(), [(0, 1), (1, 0)]);
}

#[test]
fn modes_that_cannot_be_are_refused_where_they_stand() {
    let initial = "initial_mode: \"track\"";
    let changes = "(\"track\", \"scan\")";
    for (from, to, part) in [
        (initial, "initial_mode: \"trak\"", "there is no mode `trak`"),
        (changes, "(\"track\", \"idle\")", "there is no mode `idle`"),
        (changes, "(\"scan\", \"scan\")", "changes nothing"),
        (
            "Stream() }",
            "Stream(on_miss: Mode(\"idle\")) }",
            "there is no mode `idle`",
        ),
        (
            "Stream() }",
            "Stream(on_miss: Mode(\"track\")) }",
            "late blocks of `out` ask for mode `track`, to which no change goes from mode `scan`",
        ),
    ] {
        let text = MODEL.replacen(from, to, 1);
        assert_ne!(text, MODEL);
        let refused = compile(&text, None).expect_err(to);
        let said = refused.to_string();
        assert!(said.contains(part), "{said}");
        let codes: Vec<Code> = refused.list.iter().map(|d| d.code).collect();
        assert_eq!(codes, [Code::E0219], "{said}");
        assert!(refused.list[0].labels[0].span.is_some(), "{said}");
    }

    let unknown = compile(MODEL, Some("idle")).expect_err("no such mode");
    assert!(unknown.to_string().contains("there is no mode `idle`"));
}

#[test]
fn tokens_may_decide_about_the_mode() {
    let text = MODEL
        .replacen(
            "initial_mode",
            "mode_from: (from: \"pick\", every: 96),\n    initial_mode",
            1,
        )
        .replacen(
            "actors: { \"smooth\"",
            "actors: { \"pick\": Expr(\"x < 0.5 ? 0 : 1\"), \"smooth\"",
            1,
        )
        .replacen(
            "to: [\"smooth\"])]",
            "to: [\"smooth\", \"pick\"]), (from: \"pick\", to: [\"mode\"], initial: [0])]",
            1,
        )
        .replacen("Stream() }", "Stream(), \"mode\": Stream() }", 1);
    let compiled = compile(&text, None).expect("it compiles");
    let modes = compiled.modes.as_ref().expect("modes").verified.clone();
    let decision = modes.decision().expect("a decision");
    assert_eq!(
        (decision.actor.as_str(), decision.port, decision.every),
        ("pick", 0, 96)
    );
    // As written: `scan`, then `track`, in which the run begins.
    assert_eq!(decision.modes, [1, 0]);
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("receiver.zbmd");
    compiled.write(&path).expect("written");
    let opened = open_modes(&path).expect("it is read");
    assert_eq!(opened.decision(), Some(decision));

    for (from, to, part) in [
        (
            "from: \"pick\", every",
            "from: \"pock\", every",
            "no mode has an actor of that name",
        ),
        (
            "from: \"pick\", every",
            "from: \"pick.z\", every",
            "no mode has an actor of that name",
        ),
        (
            "from: \"pick\", every",
            "from: \"smooth\", every",
            "its tokens are f32, must be u8, i32 or i64",
        ),
        (", initial: [0]", "", "give the channel an initial token"),
        (
            "every: 96",
            "every: 0",
            "a number of iterations is 0, less than 1",
        ),
    ] {
        let text = text.replacen(from, to, 1);
        let said = compile(&text, None).expect_err(to).to_string();
        assert!(said.contains(part), "{said}");
    }
}

#[test]
fn late_blocks_may_ask_for_a_mode() {
    let sink = "Stream(sample_rate: 48000, deadline: \"10ms\", on_miss: Mode(\"scan\"))";
    let text = MODEL.replacen("Stream() }", &format!("{sink} }}"), 1);
    let compiled = compile(&text, None).expect("it compiles");
    for program in compiled.modes.expect("modes").verified.programs() {
        let (id, _) = program.graph.sinks().next().expect("a sink");
        assert_eq!(late_policy(&program.graph, id), Ok(LatePolicy::Mode));
        assert_eq!(late_mode(&program.graph, id), Some("scan"));
        // A contract of each mode.
        let checks = crate::check_deadlines(program);
        assert!(!checks.is_empty() && checks.iter().all(|check| check.slack_ns().is_some()));
    }

    let text = text.replacen("Mode(\"scan\"))", "Mode(scan))", 1);
    let said = compile(&text, None).expect_err("a word").to_string();
    assert!(said.contains("a mode in quotes"), "{said}");
    let alone = r#"Model(
    sources: { "in": Stream(dtype: f32) },
    channels: [(from: "in", to: ["out"])],
    sinks: { "out": Stream(on_miss: Mode("scan")) },
)"#;
    let said = compile(alone, None).expect_err("no modes").to_string();
    assert!(said.contains("there is no mode `scan`"), "{said}");
}

#[test]
fn streams_have_one_type_in_all_modes() {
    let text = r#"Model(
    sources: { "in": Stream(dtype: c32) },
    modes: {
        "raw": Mode(channels: [(from: "in", to: ["out"])]),
        "level": Mode(
            actors: { "level": Magnitude() },
            channels: [(from: "in", to: ["level"]), (from: "level", to: ["out"])],
        ),
    },
    sinks: { "out": Stream() },
)"#;
    let refused = compile(text, None).expect_err("two types");
    let said = refused.to_string();
    assert_eq!(refused.list[0].code, Code::E0219, "{said}");
    assert!(
        said.contains("sink `out` of c32") && said.contains("sink `out` of f32"),
        "{said}"
    );
}

#[test]
fn modes_belong_to_the_outermost_model() {
    let text = r#"Model(
    sources: { "in": Stream(dtype: f32) },
    models: { "inner": Model(
        inputs: { "x": Port() },
        outputs: { "y": Port() },
        actors: { "gain": Gain(2.0) },
        channels: [(from: "x", to: ["gain"]), (from: "gain", to: ["y"])],
        modes: { "one": Mode(), "two": Mode() },
    ) },
    actors: { "inner": Sub("inner") },
    channels: [(from: "in", to: ["inner"]), (from: "inner", to: ["out"])],
    sinks: { "out": Stream() },
)"#;
    let refused = compile(text, None).expect_err("modes in a sub-model");
    let said = refused.to_string();
    assert!(said.contains("the sub-model has a mode `one`"), "{said}");
}
