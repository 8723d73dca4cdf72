//! The programs in `examples/`, compiled by the C compiler as a user would and run: against the shared library and the
//! static one, and with the address sanitizer looking on. Their output is compared with what the Rust library gives.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{Ipv4Addr, TcpListener, UdpSocket};
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use tempfile::TempDir;
use zbmd_compiler::{CompileOptions, Compiled, MachineChoice, compile_file, compile_str};
use zbmd_executor::{Engine, Report, RunOptions};

const TWICE: &str = r#"Model(
    name: "twice",
    sources: { "x": Stream(dtype: f32) },
    actors: { "twice": Gain(2.0) },
    channels: [(from: "x", to: ["twice"]), (from: "twice", to: ["y"])],
    sinks: { "y": Stream() },
)"#;

const COUNT: &str = r#"Model(
    name: "count",
    actors: {
        "count": Expr("n + 1.0", inputs: { "n": f32 }),
        "halve": Gain(0.5),
    },
    channels: [
        (from: "count", to: ["count"], initial: [0.0]),
        (from: "count", to: ["halve"]),
        (from: "halve", to: ["out"]),
    ],
    sinks: { "out": Stream() },
)"#;

/// As in `zbmd.h`.
const ZBMD_REFUSED: i32 = 5;

/// For `build`: a wrong use of memory, or behaviour that C does not define, ends the program.
const SANITIZED: [&str; 2] = ["-fsanitize=address,undefined", "-fno-sanitize-recover"];

#[derive(Clone, Copy, PartialEq)]
enum Link {
    Shared,
    Static,
}

fn folder() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// Where cargo has put the libraries for C: beside the tests that depend on this crate.
fn libraries() -> PathBuf {
    let own = std::env::current_exe().expect("a test has a path");
    own.parent().expect("a test lies in a folder").to_owned()
}

/// Compiles an example; its path.
fn build(name: &str, link: Link, flags: &[&str], to: &TempDir) -> PathBuf {
    let program = to.path().join(name);
    let libraries = libraries();
    let mut cc = Command::new("cc");
    cc.args([
        "-std=c11",
        "-Wall",
        "-Wextra",
        "-Wpedantic",
        "-Werror",
        "-O1",
        "-g",
    ])
    .args(flags);
    cc.arg("-I").arg(folder().join("include"));
    cc.arg(folder().join("examples").join(name).with_extension("c"));
    match link {
        Link::Shared => {
            cc.arg("-L").arg(&libraries).arg("-lzbmd");
            cc.arg(format!("-Wl,-rpath,{}", libraries.display()));
        }
        Link::Static => {
            cc.arg(libraries.join("libzbmd.a"))
                .args(["-lpthread", "-ldl", "-lm"]);
        }
    }
    let output = cc
        .arg("-o")
        .arg(&program)
        .output()
        .expect("a C compiler, `cc`");
    assert!(
        output.status.success(),
        "{name}: {}",
        String::from_utf8_lossy(&output.stderr)
    );
    assert!(
        output.stderr.is_empty(),
        "{name}: {}",
        String::from_utf8_lossy(&output.stderr)
    );
    program
}

/// An example with the sanitizers, and a bundle of [`TWICE`] for it; their paths.
fn build_for_twice(name: &str, to: &TempDir) -> (PathBuf, PathBuf) {
    let bundle = to.path().join("twice.zbmd");
    compile_text(TWICE)
        .write(&bundle)
        .expect("the bundle is written");
    (build(name, Link::Shared, &SANITIZED, to), bundle)
}

/// Runs a program that ends well.
fn run(program: &Path, args: &[&str], input: &[u8]) -> Output {
    let output = run_to_any_end(program, args, input);
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(
        output.status.success(),
        "{}: {}: {said}",
        program.display(),
        output.status
    );
    output
}

fn run_to_any_end(program: &Path, args: &[&str], input: &[u8]) -> Output {
    let mut command = Command::new(program);
    command
        .args(args)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    let mut child = command.spawn().expect("the example starts");
    let mut stdin = child.stdin.take().expect("a pipe");
    let input = input.to_vec();
    let feeder = std::thread::spawn(move || stdin.write_all(&input));
    let output = child.wait_with_output().expect("the example ends");
    // A program that ends early does not read it all.
    let _ = feeder.join().expect("the feeder");
    output
}

fn options(devices: usize) -> CompileOptions {
    CompileOptions {
        machine: MachineChoice::Uniform(devices),
        ..CompileOptions::default()
    }
}

fn compile_text(text: &str) -> Compiled {
    compile_str("model.ron", text, "", &options(2)).unwrap_or_else(|e| panic!("{e}"))
}

/// What the Rust library gives for a program with one source at most and one sink.
fn expected(compiled: Compiled, input: &[u8], iterations: Option<u64>) -> Vec<u8> {
    let engine =
        Engine::new(compiled.program, &zbmd_backends::standard_registry()).expect("an engine");
    let graph = &engine.program().graph;
    let (_, sink) = graph.sinks().next().expect("a sink");
    let source = graph.sources().next().map(|(_, actor)| actor.name.clone());
    let options = RunOptions {
        iterations,
        pin: false,
        lock_memory: false,
        ..RunOptions::default()
    };
    let mut session = engine.start(options).expect("a session");
    let mut sink = session.sink(&sink.name).expect("the sink");
    let source = source.map(|name| session.source(&name).expect("the source"));
    std::thread::scope(|scope| {
        scope.spawn(move || source.map(|mut s| s.push_bytes(input).expect("tokens are taken")));
        let mut all = vec![0; 1 << 20];
        let token_bytes = sink.token().bytes() as usize;
        let tokens = sink.pull_bytes(&mut all).expect("tokens") as usize;
        assert!(
            tokens * token_bytes < all.len(),
            "the test's buffer holds the whole output"
        );
        all.truncate(tokens * token_bytes);
        session.join().expect("the run ends well");
        all
    })
}

/// Samples without a pattern, cut off in the middle of an iteration.
fn samples() -> Vec<u8> {
    let mut x = 1u32;
    let mut sample = |_| {
        x = x.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        (x >> 8) as f32 / 8_388_608.0 - 1.0
    };
    (0..147 * 500 + 31)
        .map(&mut sample)
        .flat_map(f32::to_ne_bytes)
        .collect()
}

fn convert(link: Link, flags: &[&str]) {
    let temp = TempDir::new().expect("a folder");
    let program = build("convert", link, flags, &temp);
    let model = folder().join("../../graphs/cd2dat/model.ron");
    let compiled = compile_file(model, &options(2)).unwrap_or_else(|e| panic!("{e}"));
    let bundle = temp.path().join("cd2dat.zbmd");
    compiled.write(&bundle).expect("the bundle is written");
    let input = samples();
    let output = run(&program, &[bundle.to_str().expect("UTF-8")], &input);
    let streams = String::from_utf8_lossy(&output.stderr);
    assert_eq!(
        streams.lines().collect::<Vec<_>>(),
        [
            "source cd: tokens of f32, 4 bytes, 147 an iteration, 44100 a second",
            "sink dat: tokens of f32, 4 bytes, 160 an iteration, 48000 a second"
        ]
    );
    assert_eq!(output.stdout.len(), 500 * 160 * 4);
    assert!(
        output.stdout == expected(compiled, &input, None),
        "other bits than in Rust"
    );
}

#[test]
fn a_filter_gives_the_bits_that_rust_gives() {
    convert(Link::Shared, &[]);
}

#[test]
fn the_static_library_links_too() {
    convert(Link::Static, &[]);
}

#[test]
fn a_filter_uses_its_memory_well() {
    convert(Link::Shared, &SANITIZED);
}

#[test]
#[cfg(target_os = "linux")]
fn workers_run_in_processes() {
    let temp = TempDir::new().expect("a folder");
    let program = build("workers", Link::Shared, &[], &temp);
    let output = run(&program, &[COUNT, "2", "1000"], &[]);
    let text = String::from_utf8(output.stdout).expect("UTF-8");
    let (tokens, report) = text
        .trim_end()
        .rsplit_once('\n')
        .expect("tokens and a report");
    let bytes = expected(compile_text(COUNT), &[], Some(1000));
    let (wanted, _) = bytes.as_chunks();
    let wanted: Vec<f32> = wanted.iter().map(|b| f32::from_ne_bytes(*b)).collect();
    let found: Vec<f32> = tokens
        .lines()
        .map(|l| l.parse().expect("a number"))
        .collect();
    assert_eq!(found, wanted);
    assert_eq!(found[..3], [0.5, 1.0, 1.5]);
    let report: Report = serde_json::from_str(report).expect("a report");
    assert_eq!((report.iterations, report.model.as_str()), (1000, "count"));
}

#[test]
fn calls_give_the_bits_that_rust_gives() {
    let temp = TempDir::new().expect("a folder");
    let program = build("call", Link::Shared, &SANITIZED, &temp);
    let model = folder().join("../../graphs/cd2dat/model.ron");
    let call_options = CompileOptions {
        block: Some(2),
        ..options(1)
    };
    let compiled = compile_file(&model, &call_options).unwrap_or_else(|e| panic!("{e}"));
    let bundle = temp.path().join("cd2dat.zbmd");
    compiled.write(&bundle).expect("the bundle is written");
    let input = samples();
    let output = run(&program, &[bundle.to_str().expect("UTF-8")], &input);
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{stderr}");
    assert!(
        output.stdout == expected(compiled, &input, None),
        "other bits than in a run"
    );
    insta::assert_snapshot!(stderr);

    // A plan for two devices is not for one thread.
    let compiled = compile_file(model, &options(2)).unwrap_or_else(|e| panic!("{e}"));
    compiled.write(&bundle).expect("the bundle is written");
    let output = run_to_any_end(&program, &[bundle.to_str().expect("UTF-8")], &[]);
    assert_eq!(output.status.code(), Some(ZBMD_REFUSED));
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(stderr.contains("compile with `--devices 1`"), "{stderr}");
}

#[test]
fn live_parameters_are_set_between_calls() {
    let model = TWICE
        .replace(
            "sources:",
            "params: { \"gain\": Live(2.0, min: 0.0, max: 9.0) }, sources:",
        )
        .replace("Gain(2.0)", "Gain($gain)");
    let temp = TempDir::new().expect("a folder");
    let program = build("call", Link::Shared, &SANITIZED, &temp);
    let bundle = temp.path().join("gain.zbmd");
    let call_options = CompileOptions {
        block: Some(2),
        ..options(1)
    };
    let compiled = compile_str("model.ron", &model, "", &call_options);
    let compiled = compiled.unwrap_or_else(|e| panic!("{e}"));
    compiled.write(&bundle).expect("the bundle is written");
    let bundle = bundle.to_str().expect("UTF-8");
    let call = |value: &str, floats: &[f32]| {
        let bytes: Vec<u8> = floats.iter().flat_map(|x| x.to_ne_bytes()).collect();
        run_to_any_end(&program, &[bundle, "gain", value], &bytes)
    };

    let output = call("5", &[1.0, 2.0, 3.0, 4.0]);
    assert!(output.status.success());
    let floats: Vec<f32> = output
        .stdout
        .chunks_exact(4)
        .map(|bytes| f32::from_ne_bytes(bytes.try_into().expect("four")))
        .collect();
    assert_eq!(floats, [2.0, 4.0, 15.0, 20.0]);

    let output = call("10", &[1.0, 2.0]);
    assert_eq!(output.status.code(), Some(ZBMD_REFUSED));
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(stderr.contains("gain"), "{stderr}");
}

#[test]
fn live_parameters_are_set_together_at_a_token() {
    const LIVE: &str = r#"Model(
    name: "live",
    params: {
        "gain": Live(1.0, min: 0.0, max: 10.0),
        "taps": Live([1.0, 0.0], min: -1.0, max: 1.0),
    },
    sources: { "x": Stream(dtype: f32) },
    actors: { "gain": Gain($gain), "filter": Fir($taps) },
    channels: [
        (from: "x", to: ["gain"]),
        (from: "gain", to: ["filter"]),
        (from: "filter", to: ["y"]),
    ],
    sinks: { "y": Stream() },
)"#;
    let temp = tempfile::tempdir().expect("a folder");
    let bundle = temp.path().join("live.zbmd");
    compile_text(LIVE)
        .write(&bundle)
        .expect("the bundle is written");
    let program = build("set", Link::Shared, &SANITIZED, &temp);
    let output = run(&program, &[bundle.to_str().expect("UTF-8")], &[]);
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{stderr}");
    insta::assert_snapshot!(String::from_utf8_lossy(&output.stdout));
}

#[test]
fn modes_change_between_tokens() {
    const MODES: &str = r#"Model(
    name: "volume",
    sources: { "x": Stream(dtype: f32) },
    modes: {
        "same": Mode(channels: [(from: "x", to: ["y"])]),
        "loud": Mode(
            actors: { "gain": Gain(2.0) },
            channels: [(from: "x", to: ["gain"]), (from: "gain", to: ["y"])],
        ),
        "still": Mode(
            actors: { "gain": Gain(0.0) },
            channels: [(from: "x", to: ["gain"]), (from: "gain", to: ["y"])],
        ),
    },
    changes: [("same", "loud"), ("same", "still"), ("still", "loud")],
    sinks: { "y": Stream() },
)"#;
    let temp = tempfile::tempdir().expect("a folder");
    let bundle = temp.path().join("volume.zbmd");
    let options = CompileOptions {
        machine: MachineChoice::Uniform(1),
        block: Some(1),
        ..CompileOptions::default()
    };
    let compiled = compile_str("volume.ron", MODES, "", &options);
    let compiled = compiled.unwrap_or_else(|diagnostics| panic!("{diagnostics}"));
    compiled.write(&bundle).expect("the bundle is written");
    let program = build("mode", Link::Shared, &SANITIZED, &temp);
    let output = run(&program, &[bundle.to_str().expect("UTF-8")], &[]);
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{stderr}");
    insta::assert_snapshot!(String::from_utf8_lossy(&output.stdout));
}

#[test]
fn a_channel_is_looked_at_while_tokens_pass() {
    let temp = TempDir::new().expect("a folder");
    let (program, bundle) = build_for_twice("probe", &temp);
    let output = run(&program, &[bundle.to_str().expect("UTF-8")], &[]);
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{errors}");
    assert_eq!(
        String::from_utf8_lossy(&output.stdout),
        "channels: x yes, twice yes\n\
         unknown: the model has no channel `thrice` to look at: it has x, twice\n\
         a block of as many tokens as iterations: as expected\n"
    );
}

#[test]
fn mistakes_are_told_and_do_no_harm() {
    let temp = TempDir::new().expect("a folder");
    let (program, bundle) = build_for_twice("misuse", &temp);
    let output = run(&program, &[bundle.to_str().expect("UTF-8")], &[]);
    insta::assert_snapshot!(String::from_utf8_lossy(&output.stdout));
}

/// Numbered datagrams of 8 tokens that count, all but one of 50; and what comes out of the model [`TWICE`] then.
fn send_all_but_one(port: u16) -> Vec<f32> {
    const LOST: u64 = 20;
    let peer = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).expect("a socket");
    let mut expected = Vec::new();
    for number in 0..50 {
        let tokens: Vec<f32> = (0..8).map(|i| (number * 8 + i) as f32).collect();
        if number == LOST {
            expected.extend([0.0; 8]);
            continue;
        }
        expected.extend(tokens.iter().map(|token| 2.0 * token));
        let mut datagram = (number + 1).to_le_bytes().to_vec();
        datagram.extend(tokens.iter().flat_map(|token| token.to_ne_bytes()));
        let sent = peer.send_to(&datagram, (Ipv4Addr::LOCALHOST, port));
        assert_eq!(sent.expect("sent"), datagram.len());
    }
    expected
}

/// All tokens that one client of a server sends.
fn read_client(listener: &TcpListener) -> Vec<f32> {
    let (mut client, _) = listener.accept().expect("a client");
    let mut bytes = Vec::new();
    client.read_to_end(&mut bytes).expect("it ends");
    let (tokens, _) = bytes.as_chunks();
    tokens.iter().map(|b| f32::from_ne_bytes(*b)).collect()
}

#[test]
fn streams_are_connected_to_sockets_and_gaps_are_counted() {
    let temp = TempDir::new().expect("a folder");
    let (program, bundle) = build_for_twice("live", &temp);
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a port");
    let sink_url = format!("tcp://{}", listener.local_addr().expect("bound"));
    let free = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).expect("a port");
    let port = free.local_addr().expect("bound").port();
    drop(free);
    let source_url = format!("udp://127.0.0.1:{port}?header=seq&window=0");

    let mut child = Command::new(&program)
        .arg(&bundle)
        .args([&source_url, &sink_url, "400"])
        .stdout(Stdio::piped())
        .spawn()
        .expect("the example starts");
    let mut output = BufReader::new(child.stdout.take().expect("a pipe"));
    let mut line = String::new();
    output.read_line(&mut line).expect("text");
    assert_eq!(line, "connected\n");
    let reader = std::thread::spawn(move || read_client(&listener));
    let expected = send_all_but_one(port);

    let mut report = String::new();
    output.read_to_string(&mut report).expect("text");
    assert!(child.wait().expect("it ends").success());
    assert_eq!(reader.join().expect("read"), expected);
    let report: serde_json::Value = serde_json::from_str(&report).expect("JSON");
    let sink = &report[0];
    let source = &report[1];
    assert_eq!((&sink["sent"], &sink["dropped"]), (&400.into(), &0.into()));
    assert_eq!(source["url"], source_url.as_str());
    assert_eq!(source["received"], 392);
    assert_eq!(source["filled"], serde_json::json!({"lost": 8}));
    let gap = serde_json::json!([{"first": 160, "length": 8, "cause": "lost"}]);
    assert_eq!(source["gaps"], gap);
}
