//! Sound cards of the command as a process: a card whose clock is off, a file that is played to its end, a microphone,
//! and replays by the record of the clock bridge.
#![cfg(target_os = "linux")]

#[path = "../../tests/common/mod.rs"]
mod common;
mod live_peers;
#[cfg(feature = "audio")]
mod sound_card;

use common::case::Case;
use live_peers::{LiveRun, copies, live};
use zbmd_ir::{DType, TokenType};

fn f32s() -> TokenType {
    TokenType::scalar(DType::F32)
}

fn bytes_of(samples: impl Iterator<Item = f32>) -> Vec<u8> {
    samples.flat_map(f32::to_le_bytes).collect()
}

fn samples_of(bytes: &[u8]) -> Vec<f32> {
    let numbers = bytes.as_chunks::<4>().0.iter();
    numbers.map(|bytes| f32::from_le_bytes(*bytes)).collect()
}

/// Sound of which no part is like another.
fn chirp(frame: usize) -> f32 {
    let frame = frame as f64;
    (0.5 * (frame * frame * 1e-7 + frame * 0.02).sin()) as f32
}

#[cfg(not(feature = "audio"))]
#[test]
fn without_the_feature_sound_cards_are_refused_with_its_name() {
    let case = Case::new(copies(&[("a", f32s())], 480));
    case.write("a.f32", "");
    let rest = ["-i", "a=a.f32", "-o", "a_out=audio:"];
    let said = case.expect(4, &rest);
    assert!(
        said.contains("built without: build it with --features audio"),
        "{said}"
    );
    let rest = ["-i", "a=audio:?rate=48000", "-o", "a_out=a.f32"];
    let said = case.expect(4, &rest);
    assert!(said.contains("need the feature `audio`"), "{said}");
}

#[test]
fn records_that_do_not_fit_are_refused() {
    let case = Case::new(copies(&[("a", f32s())], 480));
    case.write("a.f32", "");
    let header = "zbmd-bridge 1 source_rate=48000 sink_rate=48000 channels=2\n";
    case.write("stereo.txt", header);
    case.write("other.txt", "something else\n");
    for (record, part) in [
        (
            "stereo.txt",
            "of frames with 2 channels; the tokens are f32, which have 1",
        ),
        (
            "other.txt",
            "line 1 is `something else`; expected: zbmd-bridge 1",
        ),
        ("none.txt", "record none.txt: No such file"),
    ] {
        let url = format!("a_out=bridge:out.f32?replay={record}");
        let said = case.expect(4, &["-i", "a=a.f32", "-o", &url]);
        assert!(said.contains(part), "{said}");
    }
}

#[test]
fn a_replay_that_fails_says_so_and_stops_nothing() {
    let case = Case::new(copies(&[("a", f32s())], 480));
    case.write("a.f32", bytes_of((0..4800).map(chirp)));
    let header = "zbmd-bridge 1 source_rate=48000 sink_rate=48000 channels=1";
    case.write("cut.txt", format!("{header}\nplay 1000 4294967296\npl"));
    let url = "a_out=bridge:out.f32?replay=cut.txt";
    let report = LiveRun::start(&case, &["-i", "a=a.f32", "-o", url]).end(&case, 0);
    let out = live(&report, "a_out");
    assert!(
        out["failure"]
            .as_str()
            .expect("a text")
            .contains("line 3 is `pl`"),
        "{out}"
    );
    assert_eq!(
        (&out["sent"], &out["dropped"]),
        (&1000.into(), &3800.into()),
        "{out}"
    );
    let replayed = samples_of(&case.read("out.f32"));
    assert_eq!(replayed.len(), 1000);
    assert!(
        replayed
            .iter()
            .enumerate()
            .all(|(n, x)| (x - chirp(n)).abs() < 1e-4)
    );
}

#[cfg(feature = "audio")]
mod with_sound_cards {
    use super::*;
    use crate::common::case::code;
    use crate::live_peers::scale;

    /// Runs to the end beside a sound card that is off by so much; the report. `None` if there can be no such card.
    fn run_beside_card(case: &Case, ppm: f64, args: &[&str]) -> Option<serde_json::Value> {
        if !sound_card::configure(case.folder(), ppm) {
            return None;
        }
        let config = case.folder().join("asound.conf");
        let variables = [("ALSA_CONFIG_PATH", config.as_os_str())];
        Some(LiveRun::start_with(case, args, &variables).end(case, 0))
    }

    fn bridge_count(report: &serde_json::Value, key: &str) -> u64 {
        live(report, "a_out")["bridge"][key]
            .as_u64()
            .expect("a number")
    }

    /// The record makes the very bits that the card was given.
    #[track_caller]
    fn assert_replays(case: &Case, input: &str) {
        let input = format!("a={input}");
        let output = "a_out=bridge:replayed.f32?replay=record.txt";
        let report = LiveRun::start(case, &["-i", &input, "-o", output]).end(case, 0);
        let out = live(&report, "a_out");
        assert!(out["failure"].is_null(), "{out}");
        assert!(case.read("replayed.f32") == case.read("played.f32"));
    }

    #[test]
    fn a_file_is_played_to_its_last_frame() {
        const FRAMES: usize = 60_000;
        let case = Case::new(copies(&[("a", TokenType::new(DType::F32, [2]))], 480));
        let frames = (0..FRAMES).flat_map(|n| [chirp(n), -chirp(n)]);
        case.write("a.f32", bytes_of(frames));
        let url = "a_out=audio:test_card?rate=48000&record=record.txt";
        let args = ["-i", "a=a.f32", "-o", url];
        let Some(report) = run_beside_card(&case, 300.0, &args) else {
            return;
        };

        let out = live(&report, "a_out");
        assert_eq!(
            (&out["sent"], &out["dropped"]),
            (&FRAMES.into(), &0.into()),
            "{out}"
        );
        let played = samples_of(&case.read("played.f32"));
        // The card's clock decides: every frame comes out as it went in, however late the run was at times.
        let first = played.iter().position(|x| x.abs() > 1e-3).expect("sound") / 2;
        if bridge_count(&report, "underruns") == 0 {
            let frames = &played[2 * (first - 1)..];
            let begin = (0..8).find(|begin| {
                let frames = frames[2 * begin..].chunks(2).enumerate().take(FRAMES - 8);
                frames.into_iter().all(|(n, frame)| {
                    (frame[0] - chirp(n)).abs() < 1e-3 && (frame[1] + chirp(n)).abs() < 1e-3
                })
            });
            assert!(begin.is_some(), "another sound was played");
        }
        assert_replays(&case, "a.f32");
    }

    #[test]
    fn a_source_and_a_card_that_disagree_on_time_are_bridged() {
        let seconds = scale("ZBMD_AUDIO_SECONDS", 5);
        let case = Case::new(copies(&[("a", f32s())], 480));
        case.write("a.f32", bytes_of((0..48_000 * seconds as usize).map(chirp)));
        let url = "a_out=audio:test_card?rate=48000&latency=200ms&record=record.txt";
        let args = ["-i", "a=paced:a.f32?rate=48000", "-o", url];
        let Some(report) = run_beside_card(&case, 500.0, &args) else {
            return;
        };

        let out = live(&report, "a_out");
        println!("{out}");
        let sent = out["sent"].as_u64().expect("a number");
        let dropped = out["dropped"].as_u64().expect("a number");
        assert_eq!(sent + dropped, 48_000 * seconds, "{out}");
        // The machine may be busy for longer than the queue lasts, but not all the time.
        assert!(dropped <= sent, "{out}");
        assert_replays(&case, "a.f32");
    }

    /// Ten minutes of it are a row of `tests/realtime.py`.
    #[test]
    fn pipewire_plays_what_it_is_given() {
        let server = std::process::Command::new("pw-cli")
            .args(["info", "0"])
            .output();
        if !server.is_ok_and(|output| output.status.success()) {
            eprintln!(
                "SKIPPED: no PipeWire runs here (pipewire, wireplumber, pipewire-alsa, a null sink)"
            );
            return;
        }
        let seconds = scale("ZBMD_AUDIO_SECONDS", 5);
        let case = Case::new(copies(&[("a", f32s())], 480));
        case.write("a.f32", bytes_of((0..48_000 * seconds as usize).map(chirp)));
        let url = "a_out=audio:pipewire?rate=48000&latency=100ms&record=record.txt";
        let args = ["-i", "a=paced:a.f32?rate=48000", "-o", url];
        let report = LiveRun::start(&case, &args).end(&case, 0);
        let out = live(&report, "a_out");
        println!("{out}");
        let sent = out["sent"].as_u64().expect("a number");
        let dropped = out["dropped"].as_u64().expect("a number");
        assert_eq!(sent + dropped, 48_000 * seconds, "{out}");
        // How busy the machine is decides how often it was too late; most of it was heard.
        assert!(dropped <= sent, "{out}");
    }

    #[test]
    fn a_microphone_is_a_source() {
        let case = Case::new(copies(&[("a", f32s())], 480));
        let args = [
            "-i",
            "a=audio:test_card?rate=48000",
            "-o",
            "a_out=a.f32",
            "-n",
            "24000",
        ];
        let Some(report) = run_beside_card(&case, 0.0, &args) else {
            return;
        };
        let source = live(&report, "a");
        let heard = samples_of(&case.read("a.f32"));
        assert_eq!(heard.len(), 24_000);
        if source["gap_count"] == 0 {
            let is_ramp = |(n, sample): (usize, &f32)| *sample == n as f32 / (1 << 20) as f32;
            assert!(heard.iter().enumerate().all(is_ramp), "{source}");
        }
    }

    #[test]
    fn cards_that_are_missing_or_cannot_do_it_are_refused() {
        let case = Case::new(copies(&[("a", f32s())], 480));
        case.write("a.f32", "");
        if !sound_card::configure(case.folder(), 0.0) {
            return;
        }
        for (args, part) in [
            (
                ["-i", "a=a.f32", "-o", "a_out=audio:no_such_card"],
                "there is no sound card `no_such_card`; there are: ",
            ),
            (
                ["-i", "a=a.f32", "-o", "a_out=audio:test_card?rate=192000"],
                "the sound card has no 1 channels at 192000 frames a second; it has 1 to 2 at 8000 to 96000",
            ),
            (
                ["-i", "a=audio:test_card", "-o", "a_out=b.f32"],
                "the key `rate` is missing",
            ),
        ] {
            let mut command = case.command(&args);
            command.env("ALSA_CONFIG_PATH", case.folder().join("asound.conf"));
            let output = command.output().expect("started");
            let said = common::text(&output.stderr);
            assert!(said.contains(part), "{args:?}: {said}");
            assert!(
                [2, 4].contains(&code(&output)),
                "{args:?}: {}",
                code(&output)
            );
        }

        let bytes = Case::new(copies(&[("a", TokenType::scalar(DType::U8))], 480));
        bytes.write("a.u8", "");
        let said = bytes.expect(4, &["-i", "a=a.u8", "-o", "a_out=audio:"]);
        assert!(
            said.contains("the tokens are u8: use f32, f32[2] or c32"),
            "{said}"
        );
    }
}
