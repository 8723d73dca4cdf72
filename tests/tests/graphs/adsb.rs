//! The Mode S receiver on a real recording and on a made one: every frame, the same on any machine.

use std::collections::BTreeSet;

use zbmd_ir::PlanId;
use zbmd_tests::actors::decode::Heard;
use zbmd_tests::actors::{decode, registry};
use zbmd_tests::run::{Streams, compile, interpret, replay, run, streams};

const MODEL: &str = "adsb/model.ron";

/// The recording with silence behind it, and the frames known to be in it.
fn recording() -> Option<(Streams, BTreeSet<String>)> {
    let mut iq = std::fs::read(zbmd_tests::data::file("iq/modes1.bin")?).expect("readable");
    let known =
        std::fs::read_to_string(zbmd_tests::data::file("iq/modes1.frames.txt")?).expect("readable");
    iq.extend(decode::silence(iq.len()));
    Some((
        streams([("iq", iq)]),
        known.lines().map(str::to_owned).collect(),
    ))
}

#[test]
fn every_known_frame_is_found_on_every_machine() {
    let Some((input, known)) = recording() else {
        return;
    };
    let registry = registry();
    let oracle = interpret(MODEL, &registry, &input, None);
    let frames = decode::Listener::default().frames(&oracle["frames"]);
    assert!(
        frames.is_sorted_by_key(|frame| frame.sample),
        "frames come in the order of their samples"
    );
    let heard: BTreeSet<String> = frames.into_iter().map(|frame| frame.hex).collect();
    assert_eq!(known.len(), 87);
    assert_eq!(
        known.difference(&heard).collect::<Vec<_>>(),
        Vec::<&String>::new(),
        "missed"
    );
    // 147 when this was written; all come from the one aircraft that sent the 87, so none is noise.
    assert!(heard.len() >= 145, "{} distinct frames", heard.len());
    assert!(
        heard.iter().all(|frame| &frame[2..8] == "4d2023"),
        "{heard:?}"
    );
    for devices in 1..=3 {
        let busy = compile(MODEL, devices, &registry).program.plans[PlanId(0)]
            .calendars
            .len();
        assert_eq!(
            busy > 1,
            devices > 1,
            "{busy} of {devices} devices have something to do"
        );
        assert!(
            run(MODEL, devices, &registry, &input, None) == oracle,
            "other bits on {devices} devices"
        );
    }
}

#[test]
fn a_run_goes_on_on_another_machine() {
    let Some((input, _)) = recording() else {
        return;
    };
    let registry = registry();
    let whole = run(MODEL, 1, &registry, &input, None);
    // 2048 samples of two bytes are an iteration; the border falls into a frame's window.
    let (first, rest) = input["iq"].split_at(71 * 4096);
    let part = |bytes: &[u8]| streams([("iq", bytes.to_vec())]);
    let (mut frames, outcome) = replay(
        compile(MODEL, 2, &registry),
        &registry,
        &part(first),
        None,
        None,
    );
    assert_eq!(outcome.state.iterations, 71);
    let state = Some(outcome.state);
    let (more, outcome) = replay(
        compile(MODEL, 3, &registry),
        &registry,
        &part(rest),
        None,
        state,
    );
    assert_eq!(outcome.state.iterations, input["iq"].len() as u64 / 4096);
    frames
        .get_mut("frames")
        .expect("the sink")
        .extend(&more["frames"]);
    assert!(
        frames == whole,
        "the joined runs give other bits than one run"
    );
}

/// Half a microsecond is one sample: amplitude of the frame's pulses over time, in samples.
fn pulses(frame: &str) -> Vec<f64> {
    let mut pulses = vec![0.0; 16];
    for pulse in [0, 2, 7, 9] {
        pulses[pulse] = 1.0;
    }
    for digit in frame.chars() {
        let digit = digit.to_digit(16).expect("hex");
        for bit in (0..4).rev() {
            let one = f64::from(digit >> bit & 1);
            pulses.extend([one, 1.0 - one]);
        }
    }
    pulses
}

/// u8 I/Q in which the frame begins `early` of a sample before sample `start`: each sample is the mean over its time.
fn transmission(frame: &str, start: usize, early: f64) -> Vec<u8> {
    let pulses = pulses(frame);
    let mut iq = Vec::new();
    for sample in 0..start + pulses.len() + 8 {
        let at = |i: Option<usize>| i.and_then(|i| pulses.get(i)).copied().unwrap_or(0.0);
        let i = sample.checked_sub(start);
        let next = (sample + 1).checked_sub(start);
        let amplitude = 0.7 * ((1.0 - early) * at(i) + early * at(next));
        // Any carrier phase will do: magnitude is what counts.
        let angle = 0.4 * sample as f64;
        let level = |v: f64| (127.5 + 127.5 * v).round() as u8;
        iq.extend([
            level(amplitude * angle.cos()),
            level(amplitude * angle.sin()),
        ]);
    }
    iq
}

#[test]
fn made_frames_are_heard_wherever_they_begin() {
    let registry = registry();
    let long = "8d4d2023586d60aa039d03471653";
    let short = "5d4d20237a55a6";
    let cases: &[(&str, usize, f64, usize)] = &[
        (long, 0, 0.0, 1),
        (long, 0, 0.3, 1),
        (long, 700, 0.4, 1),
        // The last start of a hop and the first of the next: their bits lie in two firings' windows.
        (long, 2047, 0.0, 1),
        (long, 2048, 0.2, 1),
        (short, 0, 0.3, 1),
        (short, 2040, 0.1, 1),
        // A bit is wrong: the checksum does not fit.
        ("8d4d2023586d60aa039d03471652", 100, 0.0, 0),
        ("5d4d20237a54a6", 100, 0.0, 0),
        // DF 4 has an address in its parity: nothing to check it by.
        ("20000000000000", 100, 0.0, 0),
    ];
    for &(frame, start, early, count) in cases {
        let mut iq = transmission(frame, start, early);
        iq.extend(decode::silence(iq.len()));
        let heard = decode::Listener::default()
            .frames(&run(MODEL, 1, &registry, &streams([("iq", iq)]), None)["frames"]);
        let expected = Heard {
            sample: start as i64,
            hex: frame.to_owned(),
        };
        assert_eq!(
            heard,
            vec![expected; count],
            "{frame} at {start}, {early} early"
        );
    }
}
