//! `zbmd-run replay --against`: of a model that was changed, the first token of each sink that differs from what was
//! recorded, and the actor that is the first to write something else.

use std::path::Path;
use std::process::{Command, Output};

use zbmd_compiler::{CompileOptions, MachineChoice, compile_str};
use zbmd_run::flight::Recording;
use zbmd_tests::child_run;
use zbmd_tests::harness::Test;
use zbmd_tests::modes::DECIDING;

pub(super) const TESTS: &[Test] = &[("first_differences_are_found", first_differences_are_found)];

/// Two branches, one of them with a state, the other at a fourth of the rate.
const MODEL: &str = r#"Model(
    name: "base",
    sources: { "in": Stream(dtype: f32, sample_rate: 48000) },
    actors: {
        "level": Gain(2.0),
        "filter": Fir([0.5, 0.25, 0.125]),
        "memory": Expr("x + d * s", inputs: { "x": f32, "s": f32 }, params: { "d": 0.5 }),
        "fourth": Decimate(4),
        "square": Expr("x * x", inputs: { "x": f32 }),
    },
    channels: [
        (from: "in", to: ["level"]),
        (from: "level", to: ["filter", "fourth"]),
        (from: "filter", to: ["memory.x"]),
        (from: "memory", to: ["memory.s", "out"], initial: [0.0]),
        (from: "fourth", to: ["square"]),
        (from: "square", to: ["low"]),
    ],
    sinks: { "out": Stream(), "low": Stream() },
)"#;
const TOKENS: usize = 1_200_000;
const MODES_TOKENS: usize = 60_000;
/// All tokens before it are zero.
const FIRST: usize = 900_004;
/// The initial token of the channel to `out`.
const OUT_DELAY: usize = 1;

fn first_differences_are_found() {
    let folder = tempfile::tempdir().expect("a folder");
    let folder = folder.path();
    let mut rng = fastrand::Rng::with_seed(4);
    let numbers = (0..TOKENS).map(|index| match index {
        _ if index < FIRST => 0.0,
        _ => 1.0 + rng.f32(),
    });
    let bytes: Vec<u8> = numbers.flat_map(f32::to_le_bytes).collect();
    std::fs::write(folder.join("in.f32"), bytes).expect("written");
    compile(folder, "base", MODEL, 1);
    record(folder, 400_000);

    equal_models(folder);
    a_changed_constant(folder);
    a_changed_history(folder);
    a_changed_state(folder);
    a_changed_rate(folder);
    other_actors(folder);
    other_sinks(folder);
    what_cannot_be_compared(folder);

    several_modes();
}

fn equal_models(folder: &Path) {
    compile(folder, "two", MODEL, 2);
    let (code, told) = against(folder, "two", &[]);
    assert_eq!(code, 0, "{told}");
    let lines = [
        format!("sink `low`: no difference in {} tokens", TOKENS / 4),
        format!("sink `out`: no difference in {TOKENS} tokens"),
    ];
    assert_eq!(told, lines.map(|line| line + "\n").concat());
}

/// Twice and 2.5 times nothing is the same: the first difference is at the first token that is not zero.
fn a_changed_constant(folder: &Path) {
    compile_changed(folder, "gain", &[("Gain(2.0)", "Gain(2.5)")]);
    let cause = format!("actor `level`, port `y`: first difference at token {FIRST} (iteration ");
    for extra in [&[][..], &["--from", "100"], &["--from", "225000"]] {
        let (code, told) = against(folder, "gain", extra);
        assert_eq!(code, 1, "{told}");
        for part in [
            format!(
                "sink `out`: first difference at token {} (",
                FIRST + OUT_DELAY
            ),
            format!("sink `low`: first difference at token {} (", FIRST / 4),
            cause.clone(),
        ] {
            assert!(told.contains(&part), "{extra:?}: {part} is not in {told}");
        }
        assert!(told.contains("what it reads is the same"), "{told}");
    }
    // As far as they were the same.
    let iterations = (FIRST / iteration_tokens(folder)).to_string();
    let (code, told) = against(folder, "gain", &["-n", &iterations]);
    assert_eq!(code, 0, "{told}");

    // One branch only, and after a delay: the filter's third tap.
    compile_changed(folder, "tap", &[("0.25, 0.125", "0.25, 0.25")]);
    let (code, told) = against(folder, "tap", &[]);
    assert_eq!(code, 1, "{told}");
    let token = FIRST + 2;
    for part in [
        format!(
            "sink `out`: first difference at token {} (",
            token + OUT_DELAY
        ),
        format!("actor `filter`, port `y`: first difference at token {token} ("),
        format!("sink `low`: no difference in {} tokens", TOKENS / 4),
    ] {
        assert!(told.contains(&part), "{part} is not in {told}");
    }
}

/// A filter with more taps has more history: what it does not have at a later state begins as declared.
fn a_changed_history(folder: &Path) {
    compile_changed(folder, "taps", &[("0.125]", "0.125, 0.5]")]);
    let cause = format!(
        "actor `filter`, port `y`: first difference at token {} ",
        FIRST + 3
    );
    let (code, told) = against(folder, "taps", &[]);
    assert_eq!(code, 1, "{told}");
    assert!(told.contains(&cause), "{told}");

    let output = replay(folder, &["--against", "taps.zbmd", "--from", "100"]);
    assert_eq!(output.status.code(), Some(1));
    let said = text(&output.stderr);
    let note =
        "what lies on the channels of `level` in taps.zbmd is, in part at least, as declared";
    assert!(said.contains(note), "{said}");
    assert!(text(&output.stdout).contains(&cause));
}

fn a_changed_state(folder: &Path) {
    compile_changed(folder, "decay", &[("\"d\": 0.5", "\"d\": 0.25")]);
    let (code, told) = against(folder, "decay", &[]);
    assert_eq!(code, 1, "{told}");
    let token = FIRST + 1;
    for part in [
        format!(
            "sink `out`: first difference at token {} (",
            token + OUT_DELAY
        ),
        format!("actor `memory`, port `y`: first difference at token {token} ("),
    ] {
        assert!(told.contains(&part), "{part} is not in {told}");
    }

    compile_changed(folder, "initial", &[("initial: [0.0]", "initial: [1.0]")]);
    let (code, told) = against(folder, "initial", &[]);
    assert_eq!(code, 1, "{told}");
    assert!(
        told.contains(
            "sink `out`: first difference at token 0 (iteration 0): 0, in initial.zbmd 1"
        ),
        "{told}"
    );
    assert!(
        told.contains("actor `memory`, port `y`: begins with other initial tokens"),
        "{told}"
    );
    // From a later border both have the state that was recorded.
    let (code, told) = against(folder, "initial", &["--from", "100"]);
    assert_eq!(code, 0, "{told}");
}

/// Six tokens of the other model's iterations are those of three and of two.
fn a_changed_rate(folder: &Path) {
    compile_changed(folder, "sixth", &[("Decimate(4)", "Decimate(6)")]);
    let (code, told) = against(folder, "sixth", &[]);
    assert_eq!(code, 1, "{told}");
    for part in [
        format!("sink `out`: no difference in {TOKENS} tokens"),
        // All are zero before; the other has token 6 n where this one has 4 n.
        format!(
            "sink `low`: first difference at token {} (",
            FIRST.div_ceil(6)
        ),
        "actor `fourth`, port `y`: first difference at token 2 (iteration ".to_owned(),
        "tokens, in sixth.zbmd ".to_owned(),
    ] {
        assert!(told.contains(&part), "{part} is not in {told}");
    }
    let (code, told) = against(folder, "sixth", &["--from", "100"]);
    assert_eq!(code, 5, "{told}");
}

fn other_actors(folder: &Path) {
    // The same values by other actors: nothing differs where it is seen.
    let changes = [
        (
            "\"level\": Gain(2.0)",
            "\"half\": Gain(1.0), \"level\": Gain(2.0)",
        ),
        (
            "(from: \"in\", to: [\"level\"])",
            "(from: \"in\", to: [\"half\"]), (from: \"half\", to: [\"level\"])",
        ),
    ];
    compile_changed(folder, "between", &changes);
    let (code, told) = against(folder, "between", &[]);
    assert_eq!(code, 0, "{told}");

    let changes = [changes[0], changes[1], ("Gain(1.0)", "Gain(0.5)")];
    compile_changed(folder, "half", &changes);
    let (code, told) = against(folder, "half", &[]);
    assert_eq!(code, 1, "{told}");
    for part in [
        format!("actor `level`, port `y`: first difference at token {FIRST} ("),
        "it reads from actors that not both have".to_owned(),
        "only half.zbmd has `half`".to_owned(),
    ] {
        assert!(told.contains(&part), "{part} is not in {told}");
    }
}

fn other_sinks(folder: &Path) {
    let changes = [
        (
            "(from: \"square\", to: [\"low\"])",
            "(from: \"square\", to: [\"high\"])",
        ),
        ("\"low\": Stream()", "\"high\": Stream()"),
    ];
    compile_changed(folder, "renamed", &changes);
    let (code, told) = against(folder, "renamed", &[]);
    assert_eq!(code, 1, "{told}");
    for part in [
        "sink `low`: renamed.zbmd has no such sink",
        "sink `high`: only renamed.zbmd has it",
        "only the recorded model has `low`",
    ] {
        assert!(told.contains(part), "{part} is not in {told}");
    }
}

fn what_cannot_be_compared(folder: &Path) {
    let renamed = MODEL.replace("\"in\"", "\"iq\"");
    compile(folder, "source", &renamed, 1);
    let output = replay(folder, &["--against", "source.zbmd"]);
    assert_eq!(output.status.code(), Some(5));
    let said = text(&output.stderr);
    assert!(
        said.contains("its source `iq` is not in the recording"),
        "{said}"
    );

    let output = replay(folder, &["--against", "nothing.zbmd"]);
    assert_eq!(output.status.code(), Some(4), "{}", text(&output.stderr));
    let output = replay(folder, &["--against", "gain.zbmd", "-o", "out=out.f32"]);
    assert_eq!(output.status.code(), Some(2), "{}", text(&output.stderr));
}

/// The deciding model with the sinks of the other one, and two actors in a mode.
fn model_of_modes() -> String {
    let two_actors = r#""square": Expr("x * x"), "later": Expr("x + 1")"#;
    let channels = r#"(from: "square", to: ["later"]), (from: "later", to: ["out"])"#;
    DECIDING
        .replace("\"mode\"", "\"low\"")
        .replace(r#""square": Expr("x * x")"#, two_actors)
        .replace(r#"(from: "square", to: ["out"])"#, channels)
}

fn several_modes() {
    let model = model_of_modes();
    let folder = tempfile::tempdir().expect("a folder");
    let folder = folder.path();
    let mut rng = fastrand::Rng::with_seed(7);
    let numbers = (0..MODES_TOKENS).map(|_| rng.f32());
    let bytes: Vec<u8> = numbers.flat_map(f32::to_le_bytes).collect();
    std::fs::write(folder.join("in.f32"), bytes).expect("written");
    compile(folder, "base", &model, 1);
    record(folder, 20_000);
    let recording = Recording::open(&folder.join("box")).expect("a recording");
    let changes = recording.mode_changes().count();
    assert!(changes > 100, "{changes} changes of mode");
    let base = outputs(folder, "base");

    compile(folder, "two", &model, 2);
    let (code, told) = against(folder, "two", &[]);
    assert_eq!(code, 0, "{told}");
    assert!(told.contains(&format!(
        "sink `out`: no difference in {} tokens",
        base.len()
    )));

    // What is changed is in one mode, or in all, or shows up only a while after it is entered.
    for (name, old, new, actor) in [
        ("square", "Expr(\"x * x\")", "Expr(\"x * x - 1\")", "square"),
        ("later", "\"x + 1\"", "\"x < 1.99 ? x + 1 : 0\"", "later"),
        ("half", "[0.5, 0.25]", "[0.5, 0.5]", "half"),
        ("memory", "0.5 * s + x", "0.25 * s + x", "memory"),
    ] {
        compile(folder, name, &model.replace(old, new), 1);
        let other = outputs(folder, name);
        let unlike = base.iter().zip(&other).position(|(a, b)| a != b);
        let unlike = unlike.expect("what is changed is heard");
        let (code, told) = against(folder, name, &[]);
        assert_eq!(code, 1, "{told}");
        let sink = format!("sink `out`: first difference at token {unlike} (iteration ");
        assert!(told.contains(&sink), "{sink} is not in {told}");
        let port = format!("actor `{actor}`, port `y`: first difference at token ");
        let line = told.lines().find(|line| line.starts_with(&port));
        let line = line.unwrap_or_else(|| panic!("{port} is not in {told}"));
        assert!(line.ends_with("what it reads is the same"), "{told}");
    }

    // A later beginning is in another mode.
    let middle = recording.mode_changes().nth(changes / 2).expect("many");
    for from in [middle.iteration, middle.iteration + 5] {
        let (code, told) = against(folder, "memory", &["--from", &from.to_string()]);
        assert_eq!(code, 1, "{told}");
        assert!(told.contains("actor `memory`, port `y`"), "{told}");
    }

    // Twice as many tokens an iteration in one of the modes.
    compile(
        folder,
        "fours",
        &model.replace("decimate: 2", "decimate: 4"),
        1,
    );
    let (code, told) = against(folder, "fours", &[]);
    assert_eq!(code, 1, "{told}");
    assert!(told.contains("actor `half`, port `y`"), "{told}");

    compile(
        folder,
        "renamed",
        &model.replace("\"squared\"", "\"cubed\""),
        1,
    );
    let (code, told) = against(folder, "renamed", &[]);
    assert_eq!(code, 5, "{told}");
    assert!(
        told.contains("has no mode `squared`, which was recorded"),
        "{told}"
    );
}

/// What a run of a bundle gives to `out`.
fn outputs(folder: &Path, name: &str) -> Vec<[u8; 4]> {
    let bundle = format!("{name}.zbmd");
    let words = [
        "-i",
        "in=in.f32",
        "-o",
        "out=out.f32",
        "-o",
        "low=/dev/null",
    ];
    let output = command(folder).arg(bundle).args(words).output();
    let output = output.expect("started");
    assert!(output.status.success(), "{}", text(&output.stderr));
    let bytes = std::fs::read(folder.join("out.f32")).expect("written");
    bytes.as_chunks().0.to_vec()
}

fn compile_changed(folder: &Path, name: &str, changes: &[(&str, &str)]) {
    let mut changed = MODEL.to_owned();
    for (old, new) in changes {
        assert!(changed.contains(old), "{old}");
        changed = changed.replace(old, new);
    }
    compile(folder, name, &changed, 1);
}

fn compile(folder: &Path, name: &str, model: &str, devices: usize) {
    let options = CompileOptions {
        machine: MachineChoice::Uniform(devices),
        ..CompileOptions::default()
    };
    let compiled = compile_str("model.ron", model, "", &options);
    let compiled = compiled.unwrap_or_else(|diagnostics| panic!("{name}: {diagnostics}"));
    let path = folder.join(format!("{name}.zbmd"));
    compiled.write(&path).expect("written");
}

/// Tokens of the source in an iteration of the base model.
fn iteration_tokens(folder: &Path) -> usize {
    let recording = Recording::open(&folder.join("box")).expect("a recording");
    recording.head.modes[0].tokens_per_iteration[0] as usize
}

fn record(folder: &Path, rate: u32) {
    // Paced, so that there are states on the way.
    let input = format!("in=paced:in.f32?rate={rate}");
    let output = command(folder)
        .args([
            "base.zbmd",
            "-i",
            &input,
            "-o",
            "out=/dev/null",
            "-o",
            "low=/dev/null",
        ])
        .args(["--record", "box"])
        .output()
        .expect("started");
    assert!(output.status.success(), "{}", text(&output.stderr));
    let recording = Recording::open(&folder.join("box")).expect("a recording");
    assert!(
        recording.stretches().len() > 2,
        "{:?}",
        recording.stretches()
    );
}

/// The exit code, and what standard output has.
fn against(folder: &Path, other: &str, extra: &[&str]) -> (i32, String) {
    let other = format!("{other}.zbmd");
    let output = replay(folder, &[&["--against", &other], extra].concat());
    let code = output.status.code().expect("it was not killed");
    let told = text(&output.stdout);
    assert!(code < 2 || told.is_empty(), "{told}");
    (code, if code < 2 { told } else { text(&output.stderr) })
}

fn replay(folder: &Path, arguments: &[&str]) -> Output {
    let mut command = command(folder);
    command.args(["replay", "box"]).args(arguments);
    command.output().expect("started")
}

fn command(folder: &Path) -> Command {
    let mut command = child_run::command();
    command.current_dir(folder);
    command
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}
