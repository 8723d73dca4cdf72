//! Names with characters that cannot be seen, through every command: refused where they are names, escaped wherever
//! they are printed. No command writes a control character of somebody else's to a terminal or a file.

mod common;

use std::path::Path;
use std::process::Output;

use common::{text, zbmdc};
use zbmd_ir::text::is_hidden;

/// A model that is fine, with a place for its name and one for the file of its source.
fn model(name: &str, file: &str) -> String {
    format!(
        r#"Model(
    name: "{name}",
    sources: {{ "in": Stream(dtype: f32, file: "{file}") }},
    actors: {{ "half": Gain(0.5) }},
    sinks: {{ "out": Stream() }},
    channels: [(from: "in", to: ["half"]), (from: "half", to: ["out"])],
)
"#
    )
}

/// Every hidden character that an argument may hold: all but NUL.
fn every_hidden() -> String {
    (1..=0xe_007f)
        .filter_map(char::from_u32)
        .filter(|&c| is_hidden(c))
        .collect()
}

/// The same as RON writes them in a string, with NUL.
fn every_hidden_in_ron() -> String {
    let escapes = every_hidden()
        .chars()
        .map(|c| format!("\\u{{{:x}}}", u32::from(c)))
        .collect::<String>();
    format!("a\\u{{0}}{escapes}z")
}

/// Without escape sequences that set colours, which are ours.
fn without_colours(text: &str) -> String {
    let mut plain = String::new();
    let mut rest = text;
    while let Some((before, after)) = rest.split_once("\u{1b}[") {
        plain += before;
        let end = after.find(|c: char| !c.is_ascii_digit() && c != ';');
        match end.map(|end| (after.as_bytes()[end], &after[end + 1..])) {
            Some((b'm', tail)) => rest = tail,
            _ => {
                plain.push('\u{1b}');
                rest = after;
            }
        }
    }
    plain + rest
}

#[track_caller]
fn assert_printable(bytes: &[u8], what: &str) {
    let text = text(bytes);
    let plain = without_colours(&text);
    let found = plain.find(|c: char| is_hidden(c) && !matches!(c, '\n' | '\t'));
    if let Some(at) = found {
        let start = plain[..at]
            .char_indices()
            .rev()
            .nth(40)
            .map_or(0, |(i, _)| i);
        let shown: String = plain[start..].chars().take(80).collect();
        panic!("{what}: {shown:?}");
    }
}

/// Runs a command in both message formats, with colours too; its exit code.
#[track_caller]
fn run(folder: &Path, args: &[&str]) -> Option<i32> {
    let mut code = None;
    for style in [
        &["--color", "never"][..],
        &["--color", "always"],
        &["--message-format", "json"],
    ] {
        let all: Vec<&str> = args.iter().chain(style).copied().collect();
        let Output {
            status,
            stdout,
            stderr,
        } = zbmdc(folder, &all);
        let what = format!("zbmdc {all:?}");
        assert_printable(&stdout, &what);
        assert_printable(&stderr, &what);
        assert!(
            matches!(status.code(), Some(0..=5)),
            "{what}: {status} {}",
            String::from_utf8_lossy(&stderr)
        );
        code = status.code();
    }
    code
}

#[test]
fn names_in_files_are_refused_and_shown_escaped() {
    let folder = tempfile::tempdir().expect("a folder");
    let hidden = every_hidden_in_ron();
    let whole = model("fine", "x.f32");
    let named = |from: &str, to: &str| {
        assert!(whole.contains(from), "{from}");
        whole.replace(from, to)
    };
    let models = [
        model(&hidden, "x.f32"),
        named("\"half\": Gain", &format!("\"{hidden}\": Gain")),
        named("\"in\": Stream", &format!("\"{hidden}\": Stream")),
        named("[\"half\"]", &format!("[\"{hidden}\"]")),
        named("[\"half\"]", &format!("[\"half.{hidden}\"]")),
        named("Gain(0.5)", &format!("Gain(\"{hidden}\")")),
        named("Gain(0.5)", &format!("Expr(\"{hidden}\")")),
        named(
            "Gain(0.5)",
            &format!("Expr(\"x\", inputs: {{ \"{hidden}\": f32 }})"),
        ),
        named("Gain(0.5)", &format!("Custom(\"{hidden}\")")),
        named("Gain(0.5)", &format!("Sub(\"{hidden}\")")),
        named("Gain(0.5)", &format!("Onnx(\"{hidden}.onnx\")")),
        named("Gain(0.5)", &format!("Fir(taps: Npy(\"{hidden}\"))")),
        named(
            "Gain(0.5)",
            &format!("Fir(taps: Safetensors(\"{hidden}\", \"{hidden}\"))"),
        ),
        named(
            "name:",
            &format!("pins: {{ \"half\": \"{hidden}\" }}, name:"),
        ),
        named(
            "name:",
            &format!("pins: {{ \"{hidden}\": \"cpu:0\" }}, name:"),
        ),
        named(
            "name:",
            &format!("models: {{ \"{hidden}\": File(\"{hidden}\") }}, name:"),
        ),
        named("dtype: f32", &format!("dtype: \"{hidden}\"")),
        // Written as they are, in places where the reader stops at them.
        format!("{whole}{}", every_hidden()),
        format!("Model(name: \"{}\", {}", every_hidden(), every_hidden()),
    ];
    for text in models {
        std::fs::write(folder.path().join("m.ron"), &text).expect("a file");
        // Devices that pins name are looked up where there is a machine.
        let code = run(folder.path(), &["check", "m.ron"]);
        assert!(matches!(code, Some(0 | 3 | 4)), "{code:?}: {text}");
        let code = run(
            folder.path(),
            &["compile", "m.ron", "--devices", "1", "-o", "m.zbmd"],
        );
        assert!(matches!(code, Some(3 | 4)), "{code:?}: {text}");
    }

    std::fs::write(folder.path().join("m.ron"), whole).expect("a file");
    let machines = [
        format!("Machine(devices: [Device(name: \"{hidden}\", backend: cpu)])"),
        format!("Machine(devices: [Device(name: \"cpu:0\", backend: \"{hidden}\")])"),
        format!("Machine(devices: [Device(name: \"cpu:0\", backend: cpu, memory: \"{hidden}\")])"),
        format!(
            "Machine(devices: [Device(name: \"cpu:0\", backend: cpu)], links: [Link(from: \"{hidden}\", to: \"cpu:0\")])"
        ),
    ];
    for text in machines {
        std::fs::write(folder.path().join("machine.ron"), &text).expect("a file");
        let args = ["compile", "m.ron", "--machine", "machine.ron"];
        assert_eq!(run(folder.path(), &args), Some(3), "{text}");
    }
}

/// One name for each hidden character, so that none is overlooked beside another.
#[test]
fn each_hidden_character_is_refused_in_names() {
    let hidden = every_hidden();
    let options = zbmd_compiler::CompileOptions::default();
    for character in hidden.chars().chain(['\0']) {
        let escape = format!("a\\u{{{:x}}}", u32::from(character));
        let refused = zbmd_compiler::check_str("m.ron", &model(&escape, "x"), "", &options);
        let diagnostics = refused.expect_err("a hidden character in a model's name");
        assert_eq!(diagnostics.list[0].code.name(), "E0204");
        assert_printable(diagnostics.to_string().as_bytes(), &escape);
        let json = zbmd_compiler::render::json(&diagnostics);
        assert_printable(json.as_bytes(), &escape);
    }
}

#[test]
fn arguments_are_shown_escaped() {
    let folder = tempfile::tempdir().expect("a folder");
    std::fs::write(folder.path().join("m.ron"), model("fine", "x.f32")).expect("a file");
    assert_eq!(
        run(folder.path(), &["compile", "m.ron", "--devices", "2"]),
        Some(0)
    );

    // Short enough for a file's name.
    let hidden = "a\u{1b}[31m\r\u{8}\u{7f}\u{9b}2J\u{202e}\u{2066}\u{200b}z";
    let model_path = format!("{hidden}.ron");
    let bundle_path = format!("{hidden}.zbmd");
    let inside = format!("no/{hidden}/x");
    let pair = format!("{hidden}=1");
    let value = format!("x={hidden}");
    let missing: &[&[&str]] = &[
        &[hidden],
        &["check", &model_path],
        &["check", "m.ron", hidden],
        &["check", "m.ron", "--param", &pair],
        &["check", "m.ron", "--param", &value],
        &["check", "m.ron", "--dim", &value],
        &["check", "m.ron", "--set", &value],
        &["check", "m.ron", "--message-format", hidden],
        &["compile", &model_path],
        &["compile", "m.ron", "-o", &inside],
        &["compile", "m.ron", "--machine", hidden],
        &["compile", "m.ron", "--devices", hidden],
        &["compile", "m.ron", "--max-latency", hidden],
        &["compile", "m.ron", "--max-memory", hidden],
        &["compile", "m.ron", "--buffers", hidden],
        &["compile", "m.ron", "--objective", hidden],
        &["compile", "m.ron", "--replicate", hidden],
        &["compile", "m.ron", "--math", hidden],
        &["compile", "m.ron", "--emit", hidden],
        &["analyse", &model_path],
        &["analyse", "m.ron", "--machine", hidden],
        &["calibrate", &model_path],
        &["calibrate", "m.ron", "--machine", hidden],
        &["calibrate", "m.ron", "--budget", hidden],
        &["import", &format!("{hidden}.onnx"), "-o", "x.ron"],
        &["import", "m.ron", "-o", &inside],
        &["inspect", &bundle_path],
        &["inspect", "m.ron"],
        &["inspect", "m.zbmd", "--plan", hidden],
        &["inspect", "m.zbmd", "--measured", hidden],
        &["inspect", "m.zbmd", "-o", &inside],
        &["diff", &bundle_path, "m.zbmd"],
        &["admit", &bundle_path, "--machine", "m.ron"],
        &["admit", "m.zbmd", "--machine", hidden],
        &["admit", "m.zbmd", "--machine", "m.ron", "--rate", hidden],
        &["why", hidden, "m.zbmd"],
        &["why", "half", "m.zbmd", "--not", hidden],
        &["why", "half", "m.zbmd", "--machine", hidden],
        &["ops", hidden],
        &["explain", hidden],
        &["new", hidden],
        &["man", "-o", &format!("m.ron/{hidden}")],
        &["completions", hidden],
    ];
    for args in missing {
        let code = run(folder.path(), args);
        assert_ne!(code, Some(0), "{args:?}");
    }
}

#[test]
fn values_and_paths_are_escaped_in_every_form() {
    let folder = tempfile::tempdir().expect("a folder");
    let hidden = "a\u{1b}[31m\u{8}\u{7f}\u{9b}2J\u{202e}\u{2066}\u{200b}z";
    let in_ron = hidden.escape_unicode().to_string();
    let path = format!("{hidden}.ron");
    let bundle = format!("{hidden}.zbmd");
    std::fs::write(folder.path().join(&path), model("fine", &in_ron)).expect("a file");
    std::fs::write(folder.path().join("m.ron"), model("fine", "x.f32")).expect("a file");

    let emitted = [
        "compile",
        &path,
        "--devices",
        "2",
        "--emit",
        "all",
        "-o",
        &bundle,
    ];
    assert_eq!(run(folder.path(), &emitted), Some(0));
    assert_eq!(
        run(folder.path(), &["compile", &path, "--devices", "2"]),
        Some(0)
    );
    assert_eq!(
        run(folder.path(), &["compile", "m.ron", "--devices", "2"]),
        Some(0)
    );
    assert_eq!(run(folder.path(), &["analyse", &path]), Some(0));

    for format in ["text", "json", "ron", "dot", "mermaid", "svg", "html"] {
        let code = run(folder.path(), &["inspect", &bundle, "--format", format]);
        assert_eq!(code, Some(0), "{format}");
        let args = ["inspect", &bundle, "--format", format, "-o", "out"];
        assert_eq!(zbmdc(folder.path(), &args).status.code(), Some(0));
        let written = std::fs::read(folder.path().join("out")).expect("a file");
        assert_printable(&written, format);
    }
    assert_eq!(
        run(folder.path(), &["inspect", &bundle, "--no-times"]),
        Some(0)
    );
    let perfetto = ["inspect", &bundle, "--format", "perfetto"];
    let trace = zbmdc(folder.path(), &perfetto).stdout;
    assert!(!trace.is_empty());
    assert!(!trace.windows(4).any(|bytes| bytes == b"\x1b[31"));

    for format in ["text", "json", "html"] {
        let code = run(
            folder.path(),
            &["diff", &bundle, "m.zbmd", "--format", format],
        );
        assert_eq!(code, Some(1), "{format}");
    }
    assert_eq!(run(folder.path(), &["why", "half", &bundle]), Some(0));
}
