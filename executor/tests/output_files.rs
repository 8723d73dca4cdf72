//! What `zbmd-run` does to files: each has one use, nothing is opened to be written before all else has been read, and
//! what is counted is what is in them.
#![cfg(target_os = "linux")]

mod common;

use std::fs;
use std::io::{Read, Write};
use std::os::unix::fs::symlink;
use std::process::{Output, Stdio};

use common::case::{Case, code};
use common::{on_a_gpu, text, verified, with_tail};
use zbmd_ir::testing::programs;
use zbmd_ir::{Program, Value, bundle};

const PRECIOUS: &[u8] = b"precious data, and enough of it to look like a file of tokens.....";

fn case() -> Case {
    let case = Case::new(with_tail(programs::two_devices()));
    let _ = case.input("in.f32", 1003);
    case
}

/// Exit code, and what was said.
fn ending(output: &Output) -> (i32, String) {
    (code(output), text(&output.stderr))
}

/// An option that names a file, from `--help`: with its file's name in the place of the word for it.
struct FileOption {
    name: String,
    word: String,
}

impl FileOption {
    fn args(&self, file: &str) -> Vec<String> {
        match self.name.as_str() {
            "BUNDLE" => Vec::new(),
            "--input" => vec![self.name.clone(), format!("in={file}")],
            "--output" => vec![self.name.clone(), format!("out={file}")],
            "--supervise" => vec![format!("--supervise={file}")],
            _ => vec![self.name.clone(), file.to_owned()],
        }
    }

    fn is_folder(&self) -> bool {
        self.word.contains("DIR")
    }
}

/// All options whose value is a file or a folder, as the command itself lists them.
fn file_options(case: &Case) -> Vec<FileOption> {
    let help = text(&case.run(&["--help"]).stdout);
    let mut options = vec![FileOption {
        name: "BUNDLE".to_owned(),
        word: "BUNDLE".to_owned(),
    }];
    for line in help.lines() {
        let Some(start) = line.find("--") else {
            continue;
        };
        let end = line[start..]
            .find([' ', '=', '[', ','])
            .map_or(line.len(), |length| start + length);
        let names_file = ["FILE>", "DIR>", "FILE]"];
        let is_option_line = line.trim_start().starts_with('-');
        if is_option_line && names_file.iter().any(|word| line[end..].contains(word)) {
            options.push(FileOption {
                name: line[start..end].to_owned(),
                word: line[end..].to_owned(),
            });
        }
    }
    options
}

#[test]
fn every_pair_of_options_on_one_file_is_refused_if_one_of_them_writes() {
    let case = case();
    let options = file_options(&case);
    assert!(options.len() >= 11, "the list of --help was not read");
    let reads = [
        "BUNDLE",
        "--input",
        "--load-state",
        "--supervise",
        "--inject",
    ];
    let mut refused = 0;
    for (index, first) in options.iter().enumerate() {
        for second in &options[index + 1..] {
            let names = (first.name.as_str(), second.name.as_str());
            let both_read = reads.contains(&names.0) && reads.contains(&names.1);
            let is_state = names == ("--load-state", "--save-state");
            if both_read || is_state {
                continue;
            }
            // One file, by two names where both can have one.
            let _ = fs::remove_dir_all(case.path("shared"));
            let _ = fs::remove_file(case.path("shared"));
            let _ = fs::remove_file(case.path("alias"));
            let mut file = "shared".to_owned();
            let mut alias = "alias".to_owned();
            if first.name == "BUNDLE" {
                file = "model.zbmd".to_owned();
                symlink("model.zbmd", case.path("alias")).expect("a link");
            } else if first.is_folder() || second.is_folder() {
                fs::create_dir(case.path("shared")).expect("a folder");
                let within = |option: &FileOption| match option.is_folder() {
                    true => "shared".to_owned(),
                    false => "shared/deep".to_owned(),
                };
                file = within(first);
                alias = within(second);
            } else {
                case.write("shared", PRECIOUS);
                fs::hard_link(case.path("shared"), case.path("alias")).expect("a link");
            }
            if second.is_folder() && first.name == "BUNDLE" {
                alias = ".".to_owned();
            }

            let mut args = [first.args(&file), second.args(&alias)].concat();
            for (option, value) in [("--input", "in=in.f32"), ("--output", "out=out.bin")] {
                if names.0 != option && names.1 != option {
                    args.extend([option.to_owned(), value.to_owned()]);
                }
            }
            let needs_checkpoint = !args.iter().any(|a| a == "--checkpoint");
            if args.iter().any(|a| a == "--resume") && needs_checkpoint {
                args.extend(["--checkpoint".to_owned(), "points".to_owned()]);
            }
            let before = fs::read(case.path(&file)).ok();
            let args: Vec<&str> = args.iter().map(String::as_str).collect();
            let said = case.expect(2, &args);
            for name in [names.0, names.1] {
                let shown = name.replace("BUNDLE", "the bundle");
                assert!(said.contains(&shown), "{names:?}: {said}");
            }
            assert_eq!(fs::read(case.path(&file)).ok(), before, "{names:?}");
            assert!(!case.path("out.bin").exists(), "{names:?}: something ran");
            refused += 1;
        }
    }
    assert!(refused >= 40, "only {refused} pairs");
}

#[test]
fn an_output_that_is_an_input_is_refused_by_any_name() {
    let case = case();
    let input = case.read("in.f32");
    fs::create_dir(case.path("sub")).expect("a folder");
    symlink("in.f32", case.path("soft.f32")).expect("a link");
    fs::hard_link(case.path("in.f32"), case.path("hard.f32")).expect("a link");
    let absolute = case.path("in.f32").to_string_lossy().into_owned();
    for name in [
        "in.f32",
        "soft.f32",
        "hard.f32",
        "sub/../in.f32",
        "./in.f32",
        &absolute,
    ] {
        let argument = format!("out={name}");
        let said = case.expect(2, &["-i", "in=in.f32", "-o", &argument]);
        assert!(
            said.contains("--input in=in.f32 and --output out="),
            "{said}"
        );
    }
    // Standard streams are files too.
    for (redirected, args) in [
        ("{} < in.f32", ["-i", "in=-", "-o", "out=hard.f32"]),
        ("{} >> in.f32", ["-i", "in=soft.f32", "-o", "out=-"]),
        ("{} < in.f32 >> in.f32", ["-i", "in=-", "-o", "out=-"]),
    ] {
        let (exit, said) = ending(&case.shell(redirected, &args));
        assert_eq!(exit, 2, "{redirected}: {said}");
    }
    assert!(case.read("in.f32") == input);
}

/// `in` -> `up` -> `out` and another sink, `copy`.
fn with_two_sinks() -> Program {
    let mut program = programs::chain();
    let out = program.graph.find("out").expect("there");
    let mut copy = program.graph.actors[out].clone();
    copy.name = "copy".to_owned();
    let copy = program.graph.actors.push_and_get_key(copy);
    let channel = program
        .graph
        .channels
        .iter_mut()
        .find(|channel| channel.readers.iter().any(|r| r.to.actor == out))
        .expect("it ends in the sink");
    let mut reader = channel.readers[0].clone();
    reader.to.actor = copy;
    channel.readers.push(reader);
    common::replanned(program, 4)
}

#[test]
fn two_sinks_have_two_files_unless_it_is_a_device() {
    let case = Case::new(with_two_sinks());
    let given = common::inputs(&case.program, 64);
    case.write("in.f32", &given["in"]);
    symlink("new.bin", case.path("dangling.bin")).expect("a link");
    case.write("old.bin", PRECIOUS);
    for (first, second) in [
        ("y.bin", "y.bin"),
        ("new.bin", "dangling.bin"),
        ("old.bin", "./old.bin"),
    ] {
        let arguments = [format!("out={first}"), format!("copy={second}")];
        let args = ["-i", "in=in.f32", "-o", &arguments[0], "-o", &arguments[1]];
        let said = case.expect(2, &args);
        assert!(
            said.contains("--output out=") && said.contains("--output copy="),
            "{said}"
        );
        assert!(!case.path("y.bin").exists() && !case.path("new.bin").exists());
    }
    assert!(case.read("old.bin") == PRECIOUS);
    case.expect(
        0,
        &[
            "-i",
            "in=in.f32",
            "-o",
            "out=/dev/null",
            "-o",
            "copy=/dev/null",
        ],
    );
    case.expect(
        0,
        &[
            "-i",
            "in=in.f32",
            "-o",
            "out=a.bin",
            "-o",
            "copy=dangling.bin",
        ],
    );
    assert!(case.read("a.bin") == case.read("new.bin"));
}

/// The repository's case `usage-truncates`, for everything that can be wrong besides the output.
#[test]
fn an_output_is_not_touched_before_everything_else_was_read() {
    let case = case();
    case.write("keep.bin", PRECIOUS);
    case.write("bad.ron", "Supervision(");
    case.write("bad.npy", "nothing");
    fs::create_dir(case.path("foreign")).expect("a folder");
    case.write("foreign/letter", "dear");
    let output = ["-o", "out=keep.bin"];
    let input = ["-i", "in=in.f32"];
    for (wrong, expected) in [
        (&["-i", "in=in.f32", "--supervise=bad.ron"][..], 4),
        (&["-i", "in=in.f32", "--supervise=none.ron"], 4),
        (&["-i", "in=in.f32", "--supervise=/dev/zero"], 4),
        (&["-i", "in=in.f32", "--inject", "bad.ron"], 4),
        (&["-i", "in=in.f32", "--load-state", "bad.ron"], 5),
        (&["-i", "in=in.f32", "--load-state", "/dev/zero"], 5),
        (&["-i", "in=in.f32", "--load-state", "none"], 4),
        (&["-i", "in=in.f32", "--checkpoint", "foreign"], 5),
        (&["-i", "in=in.f32", "--checkpoint", "bad.ron"], 4),
        (&["-i", "in=in.f32", "--trace", "no/folder"], 4),
        (&["-i", "in=in.f32", "--trace", "-"], 2),
        (&["-i", "in=none.f32"], 4),
        (&["-i", "in=bad.npy"], 4),
        (&["-i", "other=in.f32"], 2),
    ] {
        let said = case.expect(expected, &[wrong, &output].concat());
        assert!(case.read("keep.bin") == PRECIOUS, "{wrong:?}: {said}");
    }
    for wrong in ["out=keep.s16", "out=keep.mp3", "out=no/folder.bin"] {
        case.expect(4, &[&input[..], &["-o", wrong]].concat());
    }

    // A second sink that cannot be opened: the first keeps its content.
    let two = Case::new(with_two_sinks());
    two.write("in.f32", vec![0; 400]);
    two.write("keep.bin", PRECIOUS);
    let args = [
        "-i",
        "in=in.f32",
        "-o",
        "out=keep.bin",
        "-o",
        "copy=no/folder.bin",
    ];
    two.expect(4, &args);
    assert!(two.read("keep.bin") == PRECIOUS);

    // A device that is not here.
    let absent = Case::new(on_a_gpu("vulkan:0"));
    let _ = absent.input("in.f32", 9);
    absent.write("keep.bin", PRECIOUS);
    let run = absent
        .command(&[&input[..], &output].concat())
        .env("VK_DRIVER_FILES", "/nowhere.json")
        .env("VK_ICD_FILENAMES", "/nowhere.json")
        .output()
        .expect("started");
    assert_eq!(code(&run), 5, "{}", text(&run.stderr));
    assert!(absent.read("keep.bin") == PRECIOUS);
}

#[test]
fn a_link_stays_a_link_and_its_target_is_written() {
    let case = case();
    let plain = [
        "-i",
        "in=in.f32",
        "-o",
        "out=plain.bin",
        "--save-state",
        "plain",
    ];
    case.expect(0, &plain);
    fs::create_dir(case.path("sub")).expect("a folder");
    for (name, target) in [
        ("bin", "sub/a.bin"),
        ("npy", "sub/a.npy"),
        ("wav", "sub/a.wav"),
    ] {
        let link = format!("link.{name}");
        case.write(target, PRECIOUS);
        symlink(target, case.path(&link)).expect("a link");
        symlink(format!("sub/{name}.state"), case.path(name)).expect("a link");
        let argument = format!("out={link}");
        let files = ["-i", "in=in.f32", "-o", &argument];
        let points = ["--checkpoint", "points", "--checkpoint-every", "1ms"];
        for extra in [
            vec!["--save-state", name],
            [&points[..], &["--checkpoint-replace"]].concat(),
            [&points[..], &["--resume"]].concat(),
        ] {
            case.expect(0, &[&files[..], &extra].concat());
            let state = format!("sub/{name}.state");
            for (link, target) in [(link.as_str(), target), (name, &state)] {
                let kept = fs::read_link(case.path(link)).expect("still a link");
                assert_eq!(kept.to_str(), Some(target));
            }
        }
        assert!(case.read(&format!("sub/{name}.state")) == case.read("plain"));
    }
    assert!(case.read("sub/a.bin") == case.read("plain.bin"));
    assert!(case.read("sub/a.npy").ends_with(&case.read("plain.bin")));

    // The mode that a file has is kept, and a new one has that of any file.
    use std::os::unix::fs::PermissionsExt;
    let mode = |name: &str| {
        let metadata = fs::metadata(case.path(name)).expect("there");
        metadata.permissions().mode() & 0o777
    };
    assert_eq!(mode("plain"), mode("plain.bin"));
    fs::set_permissions(case.path("plain"), fs::Permissions::from_mode(0o640)).expect("ours");
    case.expect(0, &plain);
    assert_eq!(mode("plain"), 0o640);
}

/// The repository's case `bundle-writes-file`.
#[test]
fn a_bundle_names_no_file_outside_the_working_folder() {
    let case = case();
    let outside = tempfile::tempdir().expect("a folder");
    let victim = outside.path().join("victim");
    fs::write(&victim, PRECIOUS).expect("written");
    fs::create_dir(case.path("sub")).expect("a folder");
    symlink(&victim, case.path("leading_out")).expect("a link");
    symlink(outside.path(), case.path("folder_out")).expect("a link");
    symlink(outside.path().join("new"), case.path("dangling_out")).expect("a link");
    symlink("sub/inside.bin", case.path("inside")).expect("a link");
    case.write("sub/inside.bin", "");
    let with_default = |file: &str| {
        let mut program = case.program.clone();
        let out = program.graph.find("out").expect("there");
        let file = Value::Str(file.into());
        program.graph.actors[out].params.insert("file".into(), file);
        bundle::write(&case.path("model.zbmd"), &verified(program)).expect("written");
    };
    let absolute = victim.to_string_lossy().into_owned();
    for name in [
        absolute.as_str(),
        "/dev/null",
        "../victim",
        "sub/../../victim",
        "leading_out",
        "folder_out/victim",
        "folder_out/new",
        "dangling_out",
    ] {
        with_default(name);
        for args in [
            &["-i", "in=in.f32"][..],
            &["-i", "in=in.f32", "--allow-files"],
        ] {
            let said = case.expect(2, args);
            assert!(said.contains("--output out=FILE"), "{name}: {said}");
        }
    }
    assert!(fs::read(&victim).expect("there") == PRECIOUS);
    assert_eq!(fs::read_dir(outside.path()).expect("there").count(), 1);

    for (name, written) in [
        ("new.bin", "new.bin"),
        ("./sub/new.bin", "sub/new.bin"),
        ("inside", "sub/inside.bin"),
    ] {
        with_default(name);
        let said = case.expect(2, &["-i", "in=in.f32"]);
        assert!(said.contains("--allow-files"), "{said}");
        case.expect(0, &["-i", "in=in.f32", "--allow-files"]);
        assert!(!case.read(written).is_empty(), "{name}");
    }
    // Not over an input of the same command.
    with_default("in.f32");
    case.expect(2, &["-i", "in=in.f32", "--allow-files"]);
}

/// Tokens that a file's header promises, and whole ones that it has.
fn promised_and_present(case: &Case, file: &str, token_bytes: u64) -> (u64, u64) {
    let bytes = case.read(file);
    let length = bytes.len() as u64;
    match file.rsplit('.').next() {
        Some("npy") if length >= 128 => {
            let header = text(&bytes[..128]);
            let count = header.split("'shape': (").nth(1).expect("a shape");
            let count = count.split(',').next().expect("a size");
            let promised = count.trim().parse().expect("a number");
            (promised, (length - 128) / token_bytes)
        }
        Some("wav") if length >= 44 => {
            let size: [u8; 4] = bytes[40..44].try_into().expect("four");
            // Two bytes a sample.
            (u64::from(u32::from_le_bytes(size)) / 2, (length - 44) / 2)
        }
        Some("npy" | "wav") => (0, 0),
        _ => (length / token_bytes, length / token_bytes),
    }
}

/// What a limit of the system cuts off, a message counts. `ulimit -f` stands for a disk that is full, which needs no
/// rights to bring about.
#[test]
fn what_does_not_fit_is_an_error_that_counts_what_is_there() {
    let case = Case::new(with_tail(programs::two_devices()));
    let _ = case.input("in.f32", 400_003);
    for file in ["out.bin", "out.npy", "out.wav"] {
        let argument = format!("out={file}");
        for isolation in ["threads", "processes"] {
            let args = ["-i", "in=in.f32", "-o", &argument, "--isolation", isolation];
            // Blocks of 512 bytes: so many that the program's own shared memory fits, and the output does not.
            let output = case.shell("ulimit -f 1700; exec {}", &args);
            let (exit, said) = ending(&output);
            if said.contains("cannot allocate") {
                // That memory is a file too, as large as two queues and more.
                assert_eq!(exit, 6, "{said}");
                continue;
            }
            assert_eq!(exit, 4, "{file} {isolation}: {said}");
            assert!(said.contains("`ulimit -f`"), "{said}");
            let (promised, present) = promised_and_present(&case, file, 4);
            let counted = format!("it holds {present} whole tokens of `out`");
            assert!(said.contains(&counted), "{present}: {said}");
            assert_eq!(promised, present, "{file}");
        }
    }
    // A device that is always full, which is counted likewise.
    let said = case.expect(4, &["-i", "in=in.f32", "-o", "out=/dev/full"]);
    assert!(
        said.contains("/dev/full: No space left on device")
            && said.contains("it holds 0 whole tokens"),
        "{said}"
    );
    let output = case.shell("{} > /dev/full", &["-i", "in=in.f32", "-o", "out=-"]);
    let (exit, said) = ending(&output);
    assert_eq!(exit, 4, "{said}");
    for option in ["--report-file", "--save-state"] {
        let args = ["-i", "in=in.f32", "-o", "out=out.bin", option, "/dev/full"];
        let said = case.expect(4, &args);
        assert!(said.contains("No space left"), "{said}");
    }
}

#[test]
fn a_header_never_promises_more_than_there_is_whenever_the_run_is_killed() {
    let case = Case::new(with_tail(programs::two_devices()));
    let _ = case.input("in.f32", 3_000_003);
    for round in 0..12u64 {
        let file = ["out.npy", "out.wav"][(round % 2) as usize];
        let argument = format!("out={file}");
        let mut child = case
            .command(&["-i", "in=in.f32", "-o", &argument, "--quiet"])
            .spawn()
            .expect("started");
        // Killed when it has written so much.
        let wanted = 20_000 * (round + 1);
        let length = || fs::metadata(case.path(file)).map_or(0, |m| m.len());
        while length() < wanted && child.try_wait().expect("a child").is_none() {
            std::thread::yield_now();
        }
        child.kill().expect("killed");
        child.wait().expect("gone");
        let (promised, present) = promised_and_present(&case, file, 4);
        assert!(promised <= present, "{file}: {promised} of {present}");
        // What was written a while before is counted.
        assert!(
            promised + 40_000 > present,
            "{file}: {promised} of {present}"
        );
        fs::remove_file(case.path(file)).expect("there");
    }
}

/// The report, the checkpoint, the last word and the file's length agree after a run was given up.
#[test]
fn a_run_that_gave_up_says_what_is_in_its_files() {
    let case = Case::new(with_tail(programs::two_devices()));
    let expect = case.input("in.f32", 3_000_003);
    case.write(
        "few.ron",
        "Supervision(intensity: 2, period: \"60s\", backoff: (base: \"1ms\", longest: \"5ms\"))",
    );
    case.make_pipe("pipe");
    let mut gave_up = 0;
    for (seed, file) in ["out.bin", "out.npy", "pipe"]
        .into_iter()
        .cycle()
        .take(12)
        .enumerate()
    {
        case.write(
            "storm.ron",
            format!("Inject(kinds: [kill], every: (\"3ms\", \"12ms\"), seed: {seed})"),
        );
        let argument = format!("out={file}");
        let mut args = vec![
            "-i",
            "in=in.f32",
            "-o",
            &argument,
            "--isolation",
            "processes",
            "--supervise=few.ron",
            "--inject",
            "storm.ron",
            "--report-file",
            "report.json",
            "--save-state",
            "border",
        ];
        if file != "pipe" {
            args.extend(["--checkpoint", "points", "--checkpoint-replace"]);
            args.extend(["--checkpoint-every", "10ms"]);
        }
        let reader = (file == "pipe").then(|| {
            let path = case.path("pipe");
            std::thread::spawn(move || {
                let mut bytes = Vec::new();
                let mut pipe = fs::File::open(path).expect("a pipe");
                pipe.read_to_end(&mut bytes).expect("read");
                bytes
            })
        });
        let output = case.run(&args);
        let (exit, said) = ending(&output);
        let written = match reader {
            Some(reader) => reader.join().expect("no panic"),
            None if file == "out.npy" => case.read(file)[128..].to_vec(),
            None => case.read(file),
        };
        assert!(expect.starts_with(&written), "seed {seed}: other bits");
        let tokens = written.len() as u64 / 4;
        let report: serde_json::Value =
            serde_json::from_slice(&case.read("report.json")).expect("JSON");
        assert_eq!(report["sinks"][0]["tokens"], tokens, "seed {seed}: {said}");
        if exit == 0 {
            continue;
        }
        assert_eq!(exit, 7, "seed {seed}: {said}");
        gave_up += 1;
        let iterations: u64 = said
            .split("in good order after ")
            .nth(1)
            .and_then(|rest| rest.split(' ').next()?.parse().ok())
            .unwrap_or_else(|| panic!("no last word: {said}"));
        let notes = report["notes"].to_string();
        if file == "pipe" {
            assert!(
                notes.contains(&format!("pipe was given {tokens} tokens of `out`")),
                "{notes}"
            );
            continue;
        }
        assert_eq!(tokens, iterations, "seed {seed}: {said}");
        assert!(
            notes.contains(&format!("holds {tokens} tokens of `out`")),
            "{notes}"
        );
        assert_eq!(promised_and_present(&case, file, 4), (tokens, tokens));
        let newest = case.path(&format!("points/{iterations:020}.zbcp"));
        assert!(
            newest.exists(),
            "seed {seed}: no checkpoint at {iterations}"
        );
        let saved = zbmd_ir::state::decode(&case.read("border"), &case.program.graph);
        assert_eq!(saved.expect("ours").state.iterations, iterations);

        // And the run goes on from there.
        let resumed = [
            "-i",
            "in=in.f32",
            "-o",
            &argument,
            "--checkpoint",
            "points",
            "--resume",
        ];
        case.expect(0, &resumed);
        assert!(case.read(file).ends_with(&expect), "seed {seed}");
    }
    assert!(gave_up >= 6, "only {gave_up} runs gave up");
}

#[test]
fn standard_streams_that_are_closed_are_errors() {
    let case = case();
    for (redirected, args, kind) in [
        ("{} >&-", ["-i", "in=in.f32", "-o", "out=-"], "sink `out`"),
        ("{} <&-", ["-i", "in=-", "-o", "out=out.bin"], "source `in`"),
    ] {
        let (exit, said) = ending(&case.shell(redirected, &args));
        assert_eq!(exit, 4, "{redirected}: {said}");
        assert!(
            said.contains(kind) && said.contains("it was closed when the program was started"),
            "{said}"
        );
    }
    assert!(!case.path("out.bin").exists());
    // Where they are not used they may be closed; and `/dev/null` is a stream like any other.
    for (redirected, args) in [
        ("{} >&- <&-", ["-i", "in=in.f32", "-o", "out=out.bin"]),
        ("{} > /dev/null", ["-i", "in=in.f32", "-o", "out=-"]),
        ("{} <> /dev/null >&0", ["-i", "in=in.f32", "-o", "out=-"]),
    ] {
        let (exit, said) = ending(&case.shell(redirected, &args));
        assert_eq!(exit, 0, "{redirected}: {said}");
    }
}

#[test]
fn too_few_descriptors_are_an_error_that_says_so() {
    let case = case();
    let mut refused = 0;
    for isolation in ["threads", "processes"] {
        let mut limit = 4;
        loop {
            let args = [
                "-i",
                "in=in.f32",
                "-o",
                "out=out.bin",
                "--isolation",
                isolation,
                "--checkpoint",
                "points",
                "--checkpoint-replace",
            ];
            let output = case.shell(&format!("ulimit -n {limit}; exec {{}}"), &args);
            let (exit, said) = ending(&output);
            if exit == 0 {
                break;
            }
            // Below that the loader cannot even start the program.
            let is_ours = said.contains("zbmd-run");
            assert!(
                !is_ours || [4, 6, 7].contains(&exit),
                "{limit}: {exit} {said}"
            );
            assert!(!said.contains("panicked"), "{limit}: {said}");
            assert!(
                !is_ours || said.contains("ulimit -n") || said.contains("Too many open files"),
                "{isolation}, {limit} descriptors: {said}"
            );
            refused += usize::from(is_ours);
            limit += 1;
            assert!(limit < 200, "{said}");
        }
    }
    assert!(refused > 6, "only {refused}");
}

#[test]
fn a_header_needs_a_file_that_can_be_rewritten() {
    let case = case();
    case.make_pipe("pipe.npy");
    let path = case.path("pipe.npy");
    let reader = std::thread::spawn(move || fs::read(path).expect("read"));
    let said = case.expect(4, &["-i", "in=in.f32", "-o", "out=pipe.npy"]);
    assert!(said.contains("pipe.npy: is not a regular file"), "{said}");
    assert!(reader.join().expect("no panic").is_empty());
    case.make_pipe("pipe.bin");
    let args = [
        "-i",
        "in=in.f32",
        "-o",
        "out=pipe.bin",
        "--checkpoint",
        "points",
    ];
    let said = case.expect(2, &args);
    assert!(
        said.contains("cannot be taken back to a checkpoint"),
        "{said}"
    );
    let said = case.expect(
        2,
        &["-i", "in=in.f32", "-o", "out=-", "--checkpoint", "points"],
    );
    assert!(
        said.contains("standard output: it cannot be taken back"),
        "{said}"
    );
}

/// A run whose input is still open holds what it has counted: nobody has to wait for its end.
#[test]
fn tokens_are_in_the_file_when_they_are_given_out() {
    let case = Case::new(programs::chain());
    let expect = case.input("in.f32", 8);
    let given = case.read("in.f32");
    let mut child = case
        .command(&["-i", "in=-", "-o", "out=out.npy", "--quiet"])
        .stdin(Stdio::piped())
        .spawn()
        .expect("started");
    let mut stdin = child.stdin.take().expect("piped");
    stdin.write_all(&given[..16]).expect("written");
    let begun = std::time::Instant::now();
    let counts = || match case.path("out.npy").exists() {
        true => promised_and_present(&case, "out.npy", 4),
        false => (0, 0),
    };
    while counts() != (8, 8) {
        assert!(begun.elapsed().as_secs() < 60, "{:?}", counts());
        std::thread::sleep(std::time::Duration::from_millis(2));
    }
    stdin.write_all(&given[16..]).expect("written");
    drop(stdin);
    assert!(child.wait().expect("ends").success());
    assert!(case.read("out.npy").ends_with(&expect));
}
