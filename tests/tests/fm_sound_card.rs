//! Broadcast FM from UDP to a sound card whose clock is off: the demonstration of the book's page on sound.
//!
//! A sender gives 2.4 MS/s of I/Q as numbered datagrams by its own clock, `zbmd-run` receives and demodulates them, and
//! the card asks for 48 kHz by another clock. What it played is, bit for bit, what a run on the recording gives by the
//! record of the clock bridge.
//!
//! No test harness: this program is its own `zbmd-run`.

#[cfg(target_os = "linux")]
#[path = "../../executor/cli/tests/sound_card/mod.rs"]
mod sound_card;

zbmd_tests::own_zbmd_run!("the test sound card needs ALSA", linux::main);

#[cfg(target_os = "linux")]
mod linux {
    use std::net::{Ipv4Addr, UdpSocket};
    use std::path::Path;
    use std::time::{Duration, Instant};

    use zbmd_compiler::{CompileOptions, MachineChoice, compile_file};
    use zbmd_tests::child_run::{ChildRun, live};
    use zbmd_tests::free_port::free_port;
    use zbmd_tests::run::{Streams, graph_file, run, streams};
    use zbmd_tests::signal::from_f32_bytes;

    use super::sound_card;

    const SECONDS: u64 = 3;
    const AUDIO_RATE: u64 = 48_000;
    const IQ_RATE: u64 = 2_400_000;
    /// Bytes of a datagram: 4000 samples, or 1.7 ms.
    const DATAGRAM_BYTES: usize = 8_000;
    /// A machine that is too busy for 2.4 MS/s loses datagrams; not so often.
    const MAX_ATTEMPTS: u64 = 8;

    pub(super) fn main() {
        let folder = tempfile::tempdir().expect("a folder");
        if !sound_card::configure(folder.path(), 400.0) {
            return;
        }
        let registry = zbmd_backends::standard_registry();
        let frames = SECONDS * AUDIO_RATE;
        let melody = run("fm/melody.ron", 1, &registry, &Streams::new(), Some(frames));
        let melody = melody["melody_wav"].clone();
        let audio = streams([("audio", melody.clone())]);
        let iq = run("fm/modulate.ron", 1, &registry, &audio, None)["iq"].clone();
        std::fs::write(folder.path().join("capture.cu8"), &iq).expect("written");
        write_receiver(folder.path());

        let attempt = (1..=MAX_ATTEMPTS).find(|_| play_from_udp(folder.path(), &iq));
        let attempt = attempt.expect("datagrams were lost each time");
        println!("nothing was lost at attempt {attempt}");
        assert_replays(folder.path());
        assert_heard(folder.path(), &melody);
    }

    /// Compiles the receiver, in blocks of 10 ms.
    fn write_receiver(folder: &Path) {
        let options = CompileOptions {
            machine: MachineChoice::Uniform(1),
            block: Some(AUDIO_RATE / 100),
            ..CompileOptions::default()
        };
        let compiled = compile_file(graph_file("fm/model.ron"), &options);
        let compiled = compiled.unwrap_or_else(|diagnostics| panic!("{diagnostics}"));
        zbmd_ir::bundle::write(&folder.join("fm.zbmd"), &compiled.program).expect("written");
    }

    /// Plays the recording as it comes from UDP; whether nothing was lost.
    fn play_from_udp(folder: &Path, iq: &[u8]) -> bool {
        // What was played before is not of this run.
        let _ = std::fs::remove_file(folder.join("played.f32"));
        let socket = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).expect("a socket");
        let port = free_port();
        let input = format!("iq=udp://127.0.0.1:{port}?header=seq&limit=10s&full=wait");
        let output = "audio=audio:test_card?latency=300ms&record=record.txt";
        let mut run = ChildRun::start(folder, "fm", &input, output, &[]);
        run.wait_until("listening", || is_bound(port));

        send(&socket, port, iq);
        // The run has no end of its own: it is told to, once it has made all of it.
        std::thread::sleep(Duration::from_millis(500));
        let report = run.interrupt();
        let received = live(&report, "iq")["received"].as_u64();
        println!("{}", live(&report, "audio")["bridge"]);
        received == Some(iq.len() as u64 / 2) && live(&report, "iq")["gap_count"] == 0
    }

    /// Whether somebody receives datagrams there.
    fn is_bound(port: u16) -> bool {
        let wanted = format!(":{port:04X}");
        let sockets = std::fs::read_to_string("/proc/net/udp").expect("on Linux");
        let mut local = sockets
            .lines()
            .filter_map(|line| line.split_whitespace().nth(1));
        local.any(|local| local.ends_with(&wanted))
    }

    /// Sends datagrams as GNU Radio's `udp_sink` numbers them, each when its last sample is there.
    fn send(socket: &UdpSocket, port: u16, iq: &[u8]) {
        let begun = Instant::now();
        for (index, samples) in iq.chunks(DATAGRAM_BYTES).enumerate() {
            let number = index as u64 + 1;
            let sampled = number * DATAGRAM_BYTES as u64 / 2;
            let due = Duration::from_nanos(sampled * 1_000_000_000 / IQ_RATE);
            std::thread::sleep(due.saturating_sub(begun.elapsed()));
            let mut datagram = number.to_le_bytes().to_vec();
            datagram.extend_from_slice(samples);
            socket
                .send_to(&datagram, (Ipv4Addr::LOCALHOST, port))
                .expect("sent");
        }
    }

    /// A run on the recording gives what the card was given.
    fn assert_replays(folder: &Path) {
        let output = "audio=bridge:replayed.f32?replay=record.txt";
        let report = ChildRun::start(folder, "fm", "iq=capture.cu8", output, &[]).end();
        let failure = &live(&report, "audio")["failure"];
        assert!(failure.is_null(), "{failure}");
        let played = std::fs::read(folder.join("played.f32")).expect("played");
        let replayed = std::fs::read(folder.join("replayed.f32")).expect("replayed");
        assert!(
            !played.is_empty() && played == replayed,
            "another sound was played"
        );
    }

    /// The card played the melody, as loud as it was sent, but for what came too late on a busy machine.
    fn assert_heard(folder: &Path, melody: &[u8]) {
        let energy = |samples: &[f64]| samples.iter().map(|sample| sample * sample).sum::<f64>();
        let played = std::fs::read(folder.join("played.f32")).expect("played");
        let ratio = energy(&from_f32_bytes(&played)) / energy(&from_f32_bytes(melody));
        println!(
            "{:.2} dB of the melody's energy were played",
            10.0 * ratio.log10()
        );
        assert!((0.4..1.2).contains(&ratio), "{ratio}");
    }
}
