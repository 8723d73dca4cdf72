//! The bridge beside the real `zbmd-run`. ZBMD_BIN names the folder with `zbmdc` and `zbmd-run`; `tests/zenoh.sh` sets it.

mod common;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use common::{Bridge, endpoint, free_port, random_bytes, wait_until};

/// Computes for a while, and remembers: a token that came twice or not at all would show in all that follow.
const MODEL: &str = r#"Model(
    name: "sums",
    sources: { "in": Stream(dtype: i32) },
    actors: {
        "sum": Expr("s + x", inputs: { "s": i32, "x": i32 }),
    },
    channels: [
        (from: "in", to: ["sum.x"]),
        (from: "sum", to: ["sum.s"], initial: [0]),
        (from: "sum", to: ["out"]),
    ],
    sinks: { "out": Stream() },
)
"#;

/// The folder with the commands, and a folder with the compiled model.
fn commands() -> Option<(PathBuf, tempfile::TempDir)> {
    let Some(commands) = std::env::var_os("ZBMD_BIN").map(PathBuf::from) else {
        eprintln!(
            "SKIPPED: ZBMD_BIN does not name a folder with zbmdc and zbmd-run; tests/zenoh.sh builds them"
        );
        return None;
    };
    let folder = tempfile::tempdir().expect("a folder");
    fs::write(folder.path().join("model.ron"), MODEL).expect("written");
    let status = Command::new(commands.join("zbmdc"))
        .args(["compile", "model.ron", "-o", "model.zbmd"])
        .current_dir(folder.path())
        .status();
    assert!(status.expect("zbmdc starts").success());
    Some((commands, folder))
}

/// Starts `zbmd-run model.zbmd` with these words.
fn run(commands: &Path, folder: &Path, words: &[&str], input: Stdio, output: Stdio) -> Child {
    Command::new(commands.join("zbmd-run"))
        .args(["model.zbmd", "-q"])
        .args(words)
        .current_dir(folder)
        .stdin(input)
        .stdout(output)
        .spawn()
        .expect("zbmd-run starts")
}

/// Numbers, and their sums up to each of them.
fn numbers(count: usize) -> (Vec<u8>, Vec<u8>) {
    // Small ones: no sum is beyond 32 bits.
    let number_bytes = random_bytes(8, count).into_iter().map(i32::from);
    let numbers: Vec<u8> = number_bytes.flat_map(i32::to_ne_bytes).collect();
    let mut sum = 0_i32;
    let sums = numbers.chunks_exact(4).flat_map(|bytes| {
        let number = i32::from_ne_bytes(bytes.try_into().expect("four bytes"));
        sum += number;
        sum.to_ne_bytes()
    });
    let sums = sums.collect();
    (numbers, sums)
}

#[test]
fn a_run_between_two_keys_computes_what_it_computes_between_files() {
    let Some((commands, folder)) = commands() else {
        return;
    };
    let (sent, expected) = numbers(300_000);
    fs::write(folder.path().join("in.bin"), &sent).expect("written");
    let mut on_files = run(
        &commands,
        folder.path(),
        &["-i", "in=in.bin", "-o", "out=out.bin"],
        Stdio::null(),
        Stdio::null(),
    );
    assert!(on_files.wait().expect("ours").success());
    let out = fs::read(folder.path().join("out.bin")).expect("there");
    assert!(out == expected, "the model computes something else");

    // sink -> Zenoh -> source -> zbmd-run -> sink -> Zenoh -> source
    let [first, second] = [endpoint(free_port()), endpoint(free_port())];
    let words = [
        "sink",
        "test/in",
        "--token-bytes",
        "4",
        "--message-tokens",
        "1000",
        "--readers",
        "1",
        "--listen",
        &first,
    ];
    let mut feeder = Bridge::start(&words, Stdio::piped(), Stdio::null());
    feeder.feed(sent);
    let words = [
        "source",
        "test/in",
        "--token-bytes",
        "4",
        "--connect",
        &first,
    ];
    let mut source = Bridge::start(&words, Stdio::null(), Stdio::piped());
    let mut middle = run(
        &commands,
        folder.path(),
        &["-i", "in=-", "-o", "out=-"],
        Stdio::from(source.output()),
        Stdio::piped(),
    );
    let words = [
        "sink",
        "test/out",
        "--token-bytes",
        "4",
        "--message-tokens",
        "64",
        "--readers",
        "1",
        "--listen",
        &second,
    ];
    let middle_output = middle.stdout.take().expect("a pipe");
    let sink = Bridge::start(&words, Stdio::from(middle_output), Stdio::null());
    let words = [
        "source",
        "test/out",
        "--token-bytes",
        "4",
        "--connect",
        &second,
    ];
    let mut reader = Bridge::start(&words, Stdio::null(), Stdio::piped());
    let received = reader.read_output();

    feeder.wait().expect(0, "300000 tokens");
    source.wait().expect(0, "300000 tokens");
    assert!(middle.wait().expect("ours").success());
    sink.wait().expect(0, "300000 tokens");
    reader.wait().expect(0, "300000 tokens");
    assert!(received.join().expect("read") == expected, "other bytes");
}

/// Everything between the file that is sent and the file that is received is killed while tokens flow, and started again: the
/// bridge before the run, the run itself with the bridge after it, and the one that writes the file.
#[test]
fn killed_runs_and_bridges_give_each_token_once() {
    let Some((commands, folder)) = commands() else {
        return;
    };
    let (sent, expected) = numbers(3_000_000);
    let path = |name: &str| folder.path().join(name).to_str().expect("ours").to_owned();
    fs::write(path("in.bin"), &sent).expect("written");
    fs::write(path("out.bin"), b"").expect("written");
    let [first, second] = [endpoint(free_port()), endpoint(free_port())];
    let in_file = path("in.bin");
    let words = [
        "sink",
        "test/in",
        &in_file,
        "--token-bytes",
        "4",
        "--message-tokens",
        "500",
        "--run",
        "numbers",
        "--follow",
        "--listen",
        &first,
    ];
    let feeder = Bridge::start(&words, Stdio::null(), Stdio::null());

    let start_run = |resumed: &[&str]| {
        let words = [
            "source",
            "test/in",
            "--token-bytes",
            "4",
            "--run",
            "numbers",
            "--connect",
            &first,
        ];
        let mut source = Bridge::start(&words, Stdio::null(), Stdio::piped());
        let mut words = vec![
            "-i",
            "in=-",
            "-o",
            "out=out.bin",
            "--checkpoint",
            "checkpoints",
            "--checkpoint-every",
            "50ms",
        ];
        words.extend(resumed);
        let output = Stdio::from(source.output());
        let child = run(&commands, folder.path(), &words, output, Stdio::null());
        (source, child)
    };
    let out_file = path("out.bin");
    let start_sink = |more: &[&'static str]| {
        let mut words = vec![
            "sink",
            "test/out",
            &out_file,
            "--token-bytes",
            "4",
            "--message-tokens",
            "500",
            "--run",
            "sums",
            "--listen",
            &second,
        ];
        words.extend(more);
        Bridge::start(&words, Stdio::null(), Stdio::null())
    };
    let received_file = path("received.bin");
    let start_reader = || {
        let words = [
            "source",
            "test/out",
            &received_file,
            "--token-bytes",
            "4",
            "--run",
            "sums",
            "--connect",
            &second,
        ];
        Bridge::start(&words, Stdio::null(), Stdio::null())
    };
    let computed = || fs::metadata(&out_file).map_or(0, |metadata| metadata.len());
    let received = || fs::metadata(&received_file).map_or(0, |metadata| metadata.len());

    let (mut source, mut child) = start_run(&[]);
    let mut sink = start_sink(&["--follow"]);
    let mut reader = start_reader();
    let mut kills = 0;
    while received() < expected.len() as u64 / 4 * 3 && kills < 12 {
        let target = received() + 500_000;
        wait_until("results arrive", || received() >= target);
        match kills % 4 {
            0 => {
                child.kill().expect("ours");
                child.wait().expect("ours");
                source.kill();
                (source, child) = start_run(&["--resume"]);
            }
            1 => {
                // The run takes the end of its input for the end, and keeps a checkpoint.
                source.kill();
                child.wait().expect("ours");
                (source, child) = start_run(&["--resume"]);
            }
            2 => {
                sink.kill();
                sink = start_sink(&["--follow"]);
            }
            _ => {
                reader.kill();
                reader = start_reader();
            }
        }
        kills += 1;
    }
    assert!(kills >= 4, "only {kills} kills before the end");

    // The input is complete now: its sink says so from here on.
    feeder.kill();
    let mut words = words.to_vec();
    words.retain(|word| *word != "--follow");
    words.extend(["--readers", "1"]);
    let feeder = Bridge::start(&words, Stdio::null(), Stdio::null());
    source.wait().expect(0, ", 0 lost");
    feeder.wait().expect(0, "3000000 tokens of run `numbers`");
    assert!(child.wait().expect("ours").success());
    assert_eq!(computed(), expected.len() as u64);
    sink.kill();
    let sink = start_sink(&["--readers", "1"]);
    reader.wait().expect(0, ", 0 lost");
    sink.wait().expect(0, "3000000 tokens of run `sums`");
    assert!(
        fs::read(&received_file).expect("there") == expected,
        "other bytes"
    );
}
