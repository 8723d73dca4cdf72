//! What `zbmd-run` does to files: each has one use, and nothing is opened to be written before all else has been read.
#![cfg(target_os = "linux")]

#[path = "../../tests/common/mod.rs"]
mod common;

use std::fs;
use std::os::unix::fs::symlink;
use std::process::Output;

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
        "--token-file",
        "--tls-certificate",
        "--tls-key",
        "--tls-ca",
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
    let mut reader = channel.readers[0];
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
