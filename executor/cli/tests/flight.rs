//! The flight recorder of the command as a process: what was recorded is run again, and gives the same bits; whatever
//! was killed, and wherever the recording is cut off.
#![cfg(target_os = "linux")]

#[path = "../../tests/common/mod.rs"]
mod common;
mod live_peers;

use std::fs;
use std::path::{Path, PathBuf};

use common::case::{Case, code};
use common::{inputs, replanned, text, verified, with_tail};
use live_peers::{LiveRun, copies, free_port, is_udp_bound, lossy_order, wait_until, with_zeros};
use zbmd_ir::testing::programs;
use zbmd_ir::verify::VerifiedModes;
use zbmd_ir::{DType, Program, TokenType, bundle, state};
use zbmd_run::flight::{Recording, record};

const TOKENS: u64 = 20_003;
const FILES: [&str; 4] = ["-i", "in=in.f32", "-o", "out=out.bin"];

/// Records a run to `box`.
fn recorded<'a>(extra: &[&'a str]) -> Vec<&'a str> {
    [&FILES[..], &["--record", "box"], extra].concat()
}

/// Replays `box` with these arguments; its exit code and what it said.
fn replay(case: &Case, args: &[&str]) -> (i32, String) {
    let output = std::process::Command::new(common::runner())
        .current_dir(case.folder())
        .args(["replay", "box"])
        .args(args)
        .output()
        .expect("started");
    (code(&output), text(&output.stderr))
}

/// The same, which is to end well; what is in the sink's file then.
#[track_caller]
fn replayed(case: &Case, args: &[&str]) -> Vec<u8> {
    let (exit_code, said) = replay(case, &[&["-o", "out=again.bin"], args].concat());
    assert_eq!(exit_code, 0, "{args:?}: {said}");
    case.read("again.bin")
}

fn segments(case: &Case) -> Vec<PathBuf> {
    let entries = fs::read_dir(case.path("box")).expect("a recording");
    let paths = entries.map(|entry| entry.expect("readable").path());
    let is_segment = |path: &PathBuf| path.extension().is_some_and(|e| e == "zbseg");
    let mut found: Vec<PathBuf> = paths.filter(is_segment).collect();
    found.sort();
    found
}

/// Bytes that the sink `out` is given in an iteration.
fn sink_bytes(program: &Program) -> usize {
    let repetition = zbmd_ir::verify::graph::repetition(&program.graph).expect("consistent");
    let (id, sink) = program.graph.sinks().next().expect("a sink");
    let port = &sink.inputs[0];
    (repetition[id] * port.rate * port.token.bytes()) as usize
}

#[test]
fn a_run_is_replayed_from_any_border_on_any_devices_and_through_losses() {
    let case = Case::new(with_tail(programs::two_devices()));
    let expect = case.input("in.f32", TOKENS);
    case.expect(0, &recorded(&["--inject", "3"]));
    assert!(case.read("out.bin") == expect);
    // What is recorded needs neither the bundle nor the input.
    let one_device = Program {
        machine: programs::chain().machine,
        ..with_tail(programs::two_devices())
    };
    let one_device = with_tail(replanned(one_device, 3));
    bundle::write(&case.path("one.zbmd"), &verified(one_device)).expect("written");
    for file in ["in.f32", "model.zbmd"] {
        fs::remove_file(case.path(file)).expect("there");
    }

    assert!(replayed(&case, &[]) == expect);
    assert!(replayed(&case, &["--bundle", "one.zbmd"]) == expect);
    assert!(replayed(&case, &["--inject", "5"]) == expect);
    let iteration_bytes = sink_bytes(&case.program);
    let whole = expect.len() / iteration_bytes;
    for from in [1, 7, whole / 2, whole - 1, whole] {
        let again = replayed(&case, &["--from", &from.to_string()]);
        assert!(again == expect[from * iteration_bytes..], "from {from}");
    }
    let again = replayed(&case, &["--from", "5", "-n", "6"]);
    assert!(again == expect[5 * iteration_bytes..11 * iteration_bytes]);

    let (exit_code, said) = replay(&case, &["--from", &(whole + 1).to_string()]);
    assert_eq!(exit_code, 5, "{said}");
    assert!(said.contains("cannot be replayed") && said.contains(&format!("to {whole}")));
}

#[test]
fn what_is_in_the_way_of_a_recording_or_a_replay_is_told() {
    let case = Case::new(with_tail(programs::two_devices()));
    case.input("in.f32", TOKENS);
    let (exit_code, said) = replay(&case, &[]);
    assert_eq!(exit_code, 4, "{said}");
    assert!(said.contains("box: there is no recording here"), "{said}");
    let said = case.expect(2, &recorded(&["--keep", "10"]));
    assert!(said.contains("10m, 500MiB or 10m,2GiB"), "{said}");
    let said = case.expect(5, &recorded(&["--keep", "1kB"]));
    assert!(said.contains("--keep 1000 bytes is too little"), "{said}");

    case.expect(0, &recorded(&[]));
    let said = case.expect(5, &recorded(&[]));
    assert!(said.contains("--record-replace to remove it"), "{said}");
    case.expect(0, &recorded(&["--record-replace"]));

    let other = with_tail(programs::feedback());
    bundle::write(&case.path("other.zbmd"), &verified(other)).expect("written");
    let (exit_code, said) = replay(&case, &["--bundle", "other.zbmd"]);
    assert_eq!(exit_code, 5, "{said}");
    assert!(said.contains("the recording is of graph"), "{said}");
    fs::copy(case.path("other.zbmd"), case.path("box/model.zbmd")).expect("copied");
    let (exit_code, said) = replay(&case, &[]);
    assert_eq!(exit_code, 5, "{said}");
    assert!(said.contains("the recording is of bundle"), "{said}");

    case.write("box/notes.txt", "mine");
    let said = case.expect(5, &recorded(&["--record-replace"]));
    assert!(said.contains("notes.txt"), "{said}");
}

#[test]
fn a_padded_run_is_replayed_with_its_padding() {
    let case = Case::new(with_tail(programs::two_devices()));
    case.input("in.f32", TOKENS);
    case.expect(0, &recorded(&["--pad"]));
    let padded = case.read("out.bin");
    assert!(replayed(&case, &[]) == padded);
}

/// Everything of a recording but its segments.
fn copy_head(case: &Case, to: &Path) {
    fs::create_dir_all(to).expect("a folder");
    for file in ["recording.zbfr", "model.zbmd"] {
        fs::copy(case.path("box").join(file), to.join(file)).expect("copied");
    }
}

#[test]
fn a_recording_that_is_cut_off_at_any_byte_is_replayable_up_to_there() {
    let case = Case::new(with_tail(programs::two_devices()));
    let expect = case.input("in.f32", 600);
    case.expect(0, &recorded(&[]));
    let paths = segments(&case);
    let [segment] = paths.as_slice() else {
        panic!("{paths:?}");
    };
    let whole = fs::read(segment).expect("there");
    let folder = case.path("cut");
    copy_head(&case, &folder);
    let cut_segment = folder.join(segment.file_name().expect("a name"));
    let iteration_bytes = sink_bytes(&case.program);
    let modes = VerifiedModes::from(verified(case.program.clone()));

    let mut reached = Vec::new();
    for length in (0..=whole.len()).rev() {
        fs::write(&cut_segment, &whole[..length]).expect("written");
        let recording = Recording::open(&folder).expect("cut off is no error");
        let end = match recording.stretch(None) {
            Ok(stretch) => {
                recording.start(stretch, &modes).expect("whole");
                Some(stretch.end)
            }
            Err(_) => None,
        };
        if reached.last() != Some(&(length, end)) && reached.last().map(|(_, e)| *e) != Some(end) {
            reached.push((length, end));
        }
    }
    let ends: Vec<Option<u64>> = reached.iter().map(|(_, end)| *end).collect();
    assert_eq!(ends[0], Some((expect.len() / iteration_bytes) as u64));
    assert_eq!(*ends.last().expect("some"), None, "{reached:?}");
    assert!(ends.is_sorted_by(|a, b| a >= b), "{reached:?}");

    // At each place where it gets less far, it runs as far as it says.
    for (length, end) in reached {
        fs::write(&cut_segment, &whole[..length]).expect("written");
        let output = std::process::Command::new(common::runner())
            .current_dir(case.folder())
            .args(["replay", "cut", "-o", "out=again.bin"])
            .output()
            .expect("started");
        let said = text(&output.stderr);
        match end {
            None => assert_eq!(code(&output), 5, "{said}"),
            Some(end) => {
                assert_eq!(code(&output), 0, "{said}");
                let expect = &expect[..end as usize * iteration_bytes];
                assert!(case.read("again.bin") == expect, "{length} bytes: {said}");
            }
        }
    }
}

#[test]
fn a_damaged_recording_is_refused_or_replayed_up_to_the_damage() {
    let case = Case::new(with_tail(programs::two_devices()));
    let expect = case.input("in.f32", 600);
    case.expect(0, &recorded(&[]));
    let segment = segments(&case).remove(0);
    let whole = fs::read(&segment).expect("there");
    let mut random_state = 9;
    for round in 0..200 {
        let mut changed = whole.clone();
        let bit = live_peers::random(&mut random_state) as usize % (8 * whole.len());
        changed[bit / 8] ^= 1 << (bit % 8);
        fs::write(&segment, &changed).expect("written");
        let _ = fs::remove_file(case.path("again.bin"));
        let (exit_code, said) = replay(&case, &["-o", "out=again.bin"]);
        let place = segment.file_name().expect("a name").to_string_lossy();
        match exit_code {
            0 => {
                let again = fs::read(case.path("again.bin")).unwrap_or_default();
                assert!(expect.starts_with(&again), "round {round}, bit {bit}");
                let is_told = said.contains(&*place) && said.contains("at byte");
                assert!(is_told || again == expect, "round {round}: {said}");
            }
            4 | 5 => assert!(
                said.contains("at byte") && said.contains(&*place) || said.contains("no state"),
                "round {round}, bit {bit}: {said}"
            ),
            _ => panic!("round {round}, bit {bit}: {exit_code}: {said}"),
        }
    }
}

fn f32s() -> TokenType {
    TokenType::scalar(DType::F32)
}

/// A numbered stream with losses.
struct LossyStream {
    datagrams: Vec<Vec<u8>>,
    /// The tokens, with zeros in the gaps.
    expect: Vec<u8>,
    /// First token and tokens of each gap.
    dropped: Vec<(u64, u64)>,
}

fn lossy_stream(seed: u64, packets: u64) -> LossyStream {
    const PACKET_TOKENS: u64 = 50;
    let (order, log) = lossy_order(seed, packets, PACKET_TOKENS);
    let given: Vec<u8> = (0..packets * PACKET_TOKENS)
        .flat_map(|i| (i as f32 + 1.0).to_le_bytes())
        .collect();
    let packet_bytes = (PACKET_TOKENS * 4) as usize;
    let datagrams = order.iter().map(|number| {
        let begin = *number as usize * packet_bytes;
        let mut datagram = (number + 1).to_le_bytes().to_vec();
        datagram.extend_from_slice(&given[begin..begin + packet_bytes]);
        datagram
    });
    let datagrams = datagrams.collect();
    LossyStream {
        datagrams,
        expect: with_zeros(given, &log.dropped, 4),
        dropped: log.dropped,
    }
}

#[test]
fn a_live_run_that_is_killed_is_replayed_as_far_as_it_was_recorded() {
    for (seed, isolation) in [(1, "threads"), (2, "processes")] {
        let flag_token = TokenType::scalar(DType::U8);
        let case = Case::new(copies(&[("a", f32s()), ("gaps", flag_token)], 50));
        let LossyStream {
            datagrams,
            expect,
            dropped,
        } = lossy_stream(seed, 2000);
        let port = free_port();
        let url = format!("a=udp://127.0.0.1:{port}?header=seq&rate=1e6&silence=stall&limit=30s");
        let args = [
            "-i",
            &url,
            "-i",
            "gaps=flags:a",
            "-o",
            "a_out=a.bin",
            "-o",
            "gaps_out=gaps.bin",
            "--record",
            "box",
            "--inject",
            "11",
            "--isolation",
            isolation,
        ];
        let run = LiveRun::start(&case, &args);
        wait_until("it listens", || is_udp_bound(port));
        let kill_at = datagrams.len() * 3 / 4;
        live_peers::send_datagrams(port, datagrams[..kill_at].iter().cloned());
        let half = expect.len() as u64 / 2;
        wait_until("it writes", || {
            fs::metadata(case.path("a.bin")).is_ok_and(|m| m.len() > half)
        });
        // SIGKILL of the process; its workers go with it.
        drop(run);

        let (exit_code, said) = replay(&case, &["-o", "a_out=a2.bin", "-o", "gaps_out=gaps2.bin"]);
        assert_eq!(exit_code, 0, "{said}");
        for (sink, again) in [("a.bin", "a2.bin"), ("gaps.bin", "gaps2.bin")] {
            let (live, again) = (case.read(sink), case.read(again));
            let common = live.len().min(again.len());
            // Writing is some milliseconds behind what was received.
            assert!(common as u64 * 8 > half * if sink == "a.bin" { 4 } else { 1 });
            assert!(live[..common] == again[..common], "{sink}");
        }
        let again = case.read("a2.bin");
        assert!(expect.starts_with(&again));

        let recording = Recording::open(&case.path("box")).expect("a recording");
        let found = recording.gaps[0].iter().map(|gap| (gap.first, gap.length));
        let recorded: Vec<(u64, u64)> = found.collect();
        assert!(
            !recorded.is_empty() && dropped.starts_with(&recorded),
            "{recorded:?}"
        );
    }
}

#[test]
fn a_ring_forgets_its_beginning_and_replays_the_rest() {
    let case = Case::new(with_tail(programs::two_devices()));
    let given = inputs(&case.program, 3_000_000);
    case.write("in.f32", &given["in"]);
    let args = [
        "-i",
        "in=paced:in.f32?rate=2e6",
        "-o",
        "out=out.bin",
        "--record",
        "box",
        "--keep",
        "4MiB",
    ];
    let said = case.expect(0, &args);
    let sizes = segments(&case)
        .into_iter()
        .map(|path| fs::metadata(path).expect("there").len());
    let total: u64 = sizes.sum();
    assert!(
        (2 << 20..=4 << 20).contains(&total),
        "{total} bytes: {said}"
    );

    let recording = Recording::open(&case.path("box")).expect("a recording");
    let stretch = recording.stretch(None).expect("a state");
    let expect = case.read("out.bin");
    let iteration_bytes = sink_bytes(&case.program);
    let end = (expect.len() / iteration_bytes) as u64;
    assert!(
        stretch.begin > 0 && stretch.end == end && stretch.is_whole,
        "{stretch:?}"
    );
    let again = replayed(&case, &[]);
    assert!(again == expect[stretch.begin as usize * iteration_bytes..]);
    // Half of what is kept can be reached at least.
    assert!(again.len() > 2 << 20, "{} bytes", again.len());
    let from = stretch.begin + 12_345;
    let again = replayed(&case, &["--from", &from.to_string()]);
    assert!(again == expect[from as usize * iteration_bytes..]);
}

#[test]
fn a_disk_that_is_full_stops_no_run_and_leaves_a_hole() {
    let case = Case::new(with_tail(programs::two_devices()));
    let given = inputs(&case.program, 6_000_000);
    case.write("in.f32", &given["in"]);
    // No file may be longer than 8 MiB: a segment of a recording by time would be.
    let args = [
        "-i",
        "in=in.f32",
        "-o",
        "out=-",
        "--record",
        "box",
        "--keep",
        "10m",
    ];
    let output = case.shell("ulimit -f 16384; {} | cksum > sums", &args);
    let said = text(&output.stderr);
    assert!(said.contains("holes are not in the recording"), "{said}");
    let bytes: u64 = text(&case.read("sums"))
        .split_whitespace()
        .nth(1)
        .and_then(|bytes| bytes.parse().ok())
        .expect("a sum");
    let iteration_bytes = sink_bytes(&case.program) as u64;
    let (exit_code, said) = replay(&case, &["-o", "out=again.bin"]);
    assert_eq!(exit_code, 0, "{said}");
    let again = case.read("again.bin").len() as u64;
    assert!(again > 0 && again < bytes && again.is_multiple_of(iteration_bytes));
}

#[test]
fn a_recording_is_a_strangers() {
    let case = Case::new(with_tail(programs::two_devices()));
    case.input("in.f32", 600);
    case.expect(0, &recorded(&[]));
    let segment = segments(&case).remove(0);
    let whole = fs::read(&segment).expect("there");
    let head = fs::read(case.path("box/recording.zbfr")).expect("there");
    let run_id = zbmd_run::flight::Head::decode(&head).expect("right").run_id;
    let start_bytes = record::HEADER_BYTES
        + record::RecordHeader::decode(whole[..16].first_chunk().expect("a header"))
            .expect("a start")
            .length as usize;
    let sealed = |kind, payload: &[u8]| {
        let header = record::RecordHeader::of(kind, &[payload]).expect("short");
        [&header.encode()[..], payload].concat()
    };
    let start = |segment, tokens: Vec<u64>| {
        let start = record::SegmentStart {
            run_id,
            segment,
            tokens,
            changes: 0,
        };
        sealed(record::Kind::Start, &record::encode(&start))
    };
    let tokens = |source, first, bytes: &[u8]| {
        let head = record::TokensHead { source, first };
        sealed(record::Kind::Tokens, &[&head.encode()[..], bytes].concat())
    };
    // Well formed, with checksums that are right, and not what any recorder writes.
    let hostile: Vec<(&str, Vec<u8>)> = vec![
        ("is segment 9", start(9, vec![0])),
        ("counts other sources", start(0, vec![0, 0])),
        (
            "not a whole number of tokens",
            [&whole[..start_bytes], &tokens(0, 0, &[1])].concat(),
        ),
        (
            "tokens of no source",
            [&whole[..start_bytes], &tokens(7, 0, &[])].concat(),
        ),
        (
            "indexes that came before",
            [&whole[..start_bytes], &tokens(0, u64::MAX, &[0; 4])].concat(),
        ),
        (
            "a segment has one start",
            [&whole[..start_bytes], &whole[..start_bytes]].concat(),
        ),
        (
            "a state without its place",
            [
                &whole[..start_bytes],
                &sealed(record::Kind::State, &[255; 40]),
            ]
            .concat(),
        ),
        (
            "is not a record",
            [&whole[..start_bytes], &[0; 64]].concat(),
        ),
    ];
    for (part, bytes) in hostile {
        fs::write(&segment, &bytes).expect("written");
        let (exit_code, said) = replay(&case, &[]);
        assert_eq!(exit_code, 5, "{part}: {said}");
        assert!(
            said.contains(part) && said.contains("at byte"),
            "{part}: {said}"
        );
    }

    // A length that the file does not have takes no memory.
    let mut long = whole[..start_bytes].to_vec();
    long.extend([255, 255, 255, 255, 2, 0, 0, 0]);
    long.extend([0; 100]);
    fs::write(&segment, &long).expect("written");
    let (exit_code, said) = replay(&case, &[]);
    assert_eq!(exit_code, 5, "{said}");
    assert!(said.contains("ends within a record"), "{said}");

    // A state that the graph cannot have.
    let initial = zbmd_ir::State::initial(&case.program.graph);
    let mut far = initial.clone();
    far.iterations = 1 << 61;
    let place = record::StatePlace {
        changes_made: 0,
        mode: 0,
        iterations: 5,
        consumed: vec![0],
    };
    let waiting = record::encode_part(&std::collections::BTreeMap::<String, Vec<f64>>::new());
    let state_bytes = state::encode(&far, &case.program.graph, None);
    let payload = [record::encode_part(&place), waiting, state_bytes].concat();
    let forged = [
        &whole[..start_bytes],
        &sealed(record::Kind::State, &payload),
    ];
    fs::write(&segment, forged.concat()).expect("written");
    let (exit_code, said) = replay(&case, &[]);
    assert_eq!(exit_code, 5, "{said}");
    assert!(said.contains("at byte"), "{said}");
}
