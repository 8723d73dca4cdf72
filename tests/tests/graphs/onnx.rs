//! Example models around ONNX files: voice activity and digits, against their references and across a break.

use zbmd_compiler::{CompileOptions, Compiled, MachineChoice, compile_file, read_npy};
use zbmd_tests::actors::{registry, segments};
use zbmd_tests::data;
use zbmd_tests::run::{Streams, compile_with, interpret_program, replay, replay_program, streams};
use zbmd_tests::signal::{
    Silence, from_f32_bytes, mostly_silent_speech, speech_in_silence, speech_timestamps,
};

/// Compiles a model of `graphs/` with parameters from outside.
fn compiled(model: &str, devices: usize, params: &[(&str, String)]) -> Compiled {
    let options = CompileOptions {
        registry: registry(),
        machine: MachineChoice::Uniform(devices),
        params: params
            .iter()
            .map(|(k, v)| ((*k).to_owned(), v.clone()))
            .collect(),
        ..CompileOptions::default()
    };
    compile_with(model, &options)
}

fn file_param(name: &'static str, file: &str) -> Option<(&'static str, String)> {
    let path = std::path::absolute(data::file(file)?).expect("a path");
    Some((name, format!("{:?}", path.display().to_string())))
}

/// The samples of the shared recording, as bytes.
fn speech() -> Option<Vec<u8>> {
    let wav = std::fs::read(data::file("audio/speech16k.wav")?).expect("readable");
    Some(wav[44..].to_vec())
}

#[test]
fn speech_probabilities_agree_with_the_reference_on_every_machine_and_across_a_break() {
    let (Some(detector), Some(pcm)) = (file_param("detector", "models/silero_vad.onnx"), speech())
    else {
        return;
    };
    let want = data::file("audio/speech16k.vad.npy").expect("it lies beside the audio");
    let want = read_npy(&std::fs::read(want).expect("readable").into()).expect("an array");
    let want = from_f32_bytes(&want.data);
    let model =
        |devices: usize| compiled("vad/model.ron", devices, std::slice::from_ref(&detector));
    let input: Streams = streams([("pcm", pcm.clone())]);
    let (whole, _) = replay(model(1), &registry(), &input, None, None);
    let got = from_f32_bytes(&whole["prob"]);
    assert_eq!((got.len(), want.len()), (1875, 1875));
    let worst = got
        .iter()
        .zip(&want)
        .map(|(a, b)| (a - b).abs())
        .fold(0.0, f64::max);
    println!("largest distance {worst:.2e}");
    assert!(worst <= 1e-3, "{worst}");
    let text = segments::lines(&whole["segments"]);
    assert!(text.lines().count() > 5, "{text}");
    for line in text.lines() {
        let (begin, end) = line.split_once(' ').expect("two numbers");
        let (begin, end): (f64, f64) = (
            begin.parse().expect("seconds"),
            end.parse().expect("seconds"),
        );
        assert!(0.0 <= begin && begin < end && end <= 60.0, "{line}");
    }
    // What is being said at the end comes out when silence follows.
    let mut open = pcm[..1024 * 60].to_vec();
    open.resize(open.len() + 2 * segments::silence(512 * 60, 512), 0);
    let (ended, _) = replay(model(1), &registry(), &streams([("pcm", open)]), None, None);
    let ended = segments::lines(&ended["segments"]);
    assert!(
        ended.lines().count() > 0,
        "the recording begins with speech"
    );
    // A break after 700 frames, and two devices behind it.
    let (first, rest) = pcm.split_at(700 * 1024);
    let part = |bytes: &[u8]| streams([("pcm", bytes.to_vec())]);
    let (mut before, outcome) = replay(model(1), &registry(), &part(first), None, None);
    assert_eq!(outcome.state.iterations, 700);
    let (after, _) = replay(
        model(2),
        &registry(),
        &part(rest),
        None,
        Some(outcome.state),
    );
    for (name, bytes) in &mut before {
        bytes.extend_from_slice(&after[name]);
    }
    assert!(before == whole, "other bits across a break");
}

/// Segments of speech, in frames.
fn spans(records: &[u8]) -> Vec<(i64, i64)> {
    let frame = |seconds: &str| (seconds.parse::<f64>().expect("seconds") / 0.032).round() as i64;
    let lines = segments::lines(records);
    let ends = lines
        .lines()
        .map(|line| line.split_once(' ').expect("two numbers"));
    ends.map(|(begin, end)| (frame(begin), frame(end)))
        .collect()
}

/// The same segments, but for frames at their ends: a detector that rested begins with another state than one that has
/// heard minutes of noise.
fn check_spans(want: &[(i64, i64)], got: &[(i64, i64)]) {
    let equal = got.iter().filter(|span| want.contains(span)).count();
    println!(
        "{equal} of {} segments are equal: {:?} and {:?}",
        want.len(),
        want,
        got
    );
    let overlaps = |a: &(i64, i64), b: &(i64, i64)| a.0 < b.1 && b.0 < a.1;
    for (these, those) in [(want, got), (got, want)] {
        let mut spans = these.iter();
        let alone = spans.find(|span| !those.iter().any(|other| overlaps(span, other)));
        assert_eq!(alone, None, "speech that only one of the two hears");
    }
    let last = want
        .last()
        .expect("some")
        .1
        .max(got.last().expect("some").1);
    let is_speech = |spans: &[(i64, i64)], frame| spans.iter().any(|s| (s.0..s.1).contains(&frame));
    let differing = (0..last).filter(|&frame| is_speech(want, frame) != is_speech(got, frame));
    let differing = differing.count() as i64;
    println!("{differing} of {last} frames differ");
    assert!(
        differing * 200 < last,
        "{differing} of {last} frames differ"
    );
}

/// The spans of speech as the makers of the detector define them: as many, each with its ends within 5 frames of the other's.
/// The same they cannot be: the detector's state knows minutes of noise, and a pre-roll of 5 s does not bring that back.
fn check_timestamps(want: &[(usize, usize)], got: &[(usize, usize)]) {
    const MAX_SAMPLES: usize = 5 * 512;
    let equal = got.iter().filter(|span| want.contains(span)).count();
    println!("{equal} of {} spans of speech are equal", want.len());
    assert_eq!(want.len(), got.len(), "{want:?} {got:?}");
    for (want, got) in want.iter().zip(got) {
        let apart = want.0.abs_diff(got.0).max(want.1.abs_diff(got.1));
        assert!(apart <= MAX_SAMPLES, "{want:?} {got:?}");
    }
}

#[test]
fn behind_an_energy_gate_the_same_utterances_are_heard_and_the_pre_roll_is_exact() {
    const OPEN_AFTER: usize = 48;
    const PRE_ROLL: usize = 8;
    let (Some(detector), Some(speech)) =
        (file_param("detector", "models/silero_vad.onnx"), speech())
    else {
        return;
    };
    let audio = mostly_silent_speech(&speech, Silence::Noise);
    let input: Streams = streams([("pcm", audio)]);
    let plain = compiled("vad/model.ron", 1, std::slice::from_ref(&detector));
    let gated = |devices| compiled("vad/gated.ron", devices, std::slice::from_ref(&detector));
    let (want, _) = replay(plain, &registry(), &input, None, None);
    let (got, _) = replay(gated(1), &registry(), &input, None, None);
    let (want_spans, got_spans) = (spans(&want["segments"]), spans(&got["segments"]));
    assert!(want_spans.len() > 10, "{want_spans:?}");
    check_spans(&want_spans, &got_spans);

    let probabilities = |streams: &Streams| from_f32_bytes(&streams["prob"]);
    let frames = probabilities(&want).len();
    let want_timestamps = speech_timestamps(&probabilities(&want)[..frames - PRE_ROLL]);
    let got_timestamps = speech_timestamps(&probabilities(&got)[PRE_ROLL..]);
    check_timestamps(&want_timestamps, &got_timestamps);

    // Most frames are silent, and what the detector gives in them is nothing.
    let got_probabilities = from_f32_bytes(&got["prob"]);
    let closed = got_probabilities.iter().filter(|p| **p == 0.0).count();
    let share = closed as f64 / got_probabilities.len() as f64;
    println!(
        "closed in {:.1} % of {} frames",
        100.0 * share,
        got_probabilities.len()
    );
    assert!(share > 0.8, "{share}");

    // The same as the interpreter gives, and on two devices.
    let program = gated(1).program;
    let short: Streams = streams([("pcm", input["pcm"][..1024 * 400].to_vec())]);
    let (expected, _) = interpret_program(&program, &registry(), &short, None);
    for devices in [1, 2] {
        let (got, _) = replay(gated(devices), &registry(), &short, None, None);
        assert!(got == expected, "other bits on {devices} devices");
    }

    // It is open from a loud frame to 48 after it; the frames that it sees are 8 late, so it sees 8 before the loud one.
    let samples: Vec<f64> = input["pcm"]
        .chunks_exact(2)
        .map(|pair| f64::from(i16::from_le_bytes([pair[0], pair[1]])) / 32_768.0)
        .collect();
    let is_loud = |frame: usize| {
        let end = (frame + 1) * 512;
        let window = &samples[end.saturating_sub(576)..end];
        window.iter().map(|x| x * x).sum::<f64>() / 576.0 > 1.0e-5
    };
    let loud: Vec<bool> = (0..got_probabilities.len()).map(is_loud).collect();
    for (frame, probability) in got_probabilities.iter().enumerate() {
        let first = frame.saturating_sub(OPEN_AFTER);
        let is_open = loud[first..=frame].contains(&true);
        assert_eq!(*probability != 0.0, is_open, "frame {frame}");
    }
}

#[test]
fn behind_a_gate_a_conversation_between_silences_has_the_same_segments() {
    let (Some(detector), Some(speech)) =
        (file_param("detector", "models/silero_vad.onnx"), speech())
    else {
        return;
    };
    let audio = speech_in_silence(&speech, Silence::Zeros);
    let input = streams([("pcm", audio)]);
    let heard = |model| {
        let model = compiled(model, 1, std::slice::from_ref(&detector));
        let (heard, _) = replay(model, &registry(), &input, None, None);
        segments::lines(&heard["segments"])
    };
    let (want, got) = (heard("vad/model.ron"), heard("vad/gated.ron"));
    println!("{} segments", want.lines().count());
    assert!(want.lines().count() > 10, "{want}");
    assert_eq!(got, want);
}

#[test]
fn a_gated_detector_gives_the_bits_of_one_that_hears_each_utterance_alone() {
    const FRAME_BYTES: usize = 1024;
    const HISTORY_BYTES: usize = 128;
    const PRE_ROLL: usize = 8;
    let (Some(detector), Some(speech)) =
        (file_param("detector", "models/silero_vad.onnx"), speech())
    else {
        return;
    };
    let audio = mostly_silent_speech(&speech, Silence::Zeros);
    let program = |name| compiled(name, 1, std::slice::from_ref(&detector)).program;
    let (plain, gated) = (program("vad/model.ron"), program("vad/gated.ron"));
    let input = streams([("pcm", audio.clone())]);
    let (gated, _) = replay_program(gated, &registry(), &input, None, None);
    let probabilities: Vec<&[u8]> = gated["prob"].chunks_exact(4).collect();

    let mut compared = 0;
    let mut first = 0;
    for stretch in probabilities.chunk_by(|a, b| (**a == [0; 4]) == (**b == [0; 4])) {
        let frames = first..first + stretch.len();
        first = frames.end;
        if *stretch[0] == [0; 4] || frames.start <= PRE_ROLL {
            continue;
        }
        let begin = (frames.start - PRE_ROLL) * FRAME_BYTES;
        // Alone, a detector has zeros before its first frame.
        if audio[begin - HISTORY_BYTES..begin] != [0; HISTORY_BYTES] {
            continue;
        }
        let utterance = audio[begin..(frames.end - PRE_ROLL) * FRAME_BYTES].to_vec();
        let alone = streams([("pcm", utterance)]);
        let (alone, _) = replay_program(plain.clone(), &registry(), &alone, None, None);
        assert!(alone["prob"] == stretch.concat(), "frames {frames:?}");
        compared += 1;
    }
    println!("{compared} stretches compared");
    assert!(compared >= 5, "{compared} stretches begin behind zeros");
}

#[test]
fn other_rates_are_resampled_in_the_graph() {
    let (Some(detector), Some(pcm)) = (file_param("detector", "models/silero_vad.onnx"), speech())
    else {
        return;
    };
    // Three samples for one: a crude 48 kHz, whose images the low pass takes away.
    let up: Vec<u8> = pcm[..1024 * 300]
        .chunks_exact(2)
        .flat_map(|s| [s, s, s].concat())
        .collect();
    let any = compiled("vad/any.ron", 1, std::slice::from_ref(&detector));
    let plain = compiled("vad/model.ron", 1, &[detector]);
    let (got, _) = replay(any, &registry(), &streams([("pcm", up)]), None, None);
    let (want, _) = replay(
        plain,
        &registry(),
        &streams([("pcm", pcm[..1024 * 300].to_vec())]),
        None,
        None,
    );
    let (got, want) = (from_f32_bytes(&got["prob"]), from_f32_bytes(&want["prob"]));
    assert_eq!(got.len(), want.len());
    // The filter delays by a millisecond and a half: decisions agree but where speech begins or ends.
    let agree = got
        .iter()
        .zip(&want)
        .filter(|(a, b)| (**a > 0.5) == (**b > 0.5))
        .count();
    assert!(
        agree * 100 >= got.len() * 93,
        "{agree} of {} frames agree",
        got.len()
    );
}

#[test]
fn digits_are_read() {
    let Some(network) = file_param("network", "models/mnist.onnx") else {
        return;
    };
    let read = |name: &str| {
        read_npy(
            &std::fs::read(data::file(name).expect("there"))
                .expect("readable")
                .into(),
        )
        .expect("an array")
    };
    let (image, logits) = (
        read("models/mnist.in0.npy"),
        from_f32_bytes(&read("models/mnist.out0.npy").data),
    );
    let image: Vec<u8> = from_f32_bytes(&image.data)
        .iter()
        .map(|v| (v * 255.0).round().clamp(0.0, 255.0) as u8)
        .collect();
    let images = image.repeat(8);
    let digit = logits
        .iter()
        .enumerate()
        .max_by(|a, b| a.1.total_cmp(b.1))
        .expect("ten")
        .0;
    let input = streams([("images", images)]);
    let (whole, _) = replay(
        compiled("digits/model.ron", 1, std::slice::from_ref(&network)),
        &registry(),
        &input,
        None,
        None,
    );
    let digits: Vec<i64> = whole["digits"]
        .chunks_exact(8)
        .map(|c| i64::from_le_bytes(c.try_into().expect("eight")))
        .collect();
    assert_eq!(digits.len(), 8);
    assert!(digits.iter().all(|d| *d == digits[0]), "{digits:?}");
    println!("digit {} ({digit} for the exact image)", digits[0]);
    let program = compiled("digits/model.ron", 1, std::slice::from_ref(&network)).program;
    let (oracle, _) = interpret_program(&program, &registry(), &input, None);
    assert!(oracle == whole, "the interpreter gives other bits");
    let (two, _) = replay(
        compiled("digits/model.ron", 2, &[network]),
        &registry(),
        &input,
        None,
        None,
    );
    assert!(two == whole, "other bits on two devices");
}

#[test]
fn cores_of_a_device_share_ops_and_change_no_bit() {
    let Some(models) = data::file("models") else {
        return;
    };
    for name in ["light_squeezenet", "bert_tiny"] {
        let on = |cores: Vec<u32>| {
            let mut machine = zbmd_compiler::machine::uniform(1);
            machine.devices[zbmd_ir::DeviceId(0)].cores = cores;
            let options = CompileOptions {
                machine: MachineChoice::Given(machine),
                ..CompileOptions::default()
            };
            let compiled = compile_file(models.join(format!("{name}.onnx")), &options);
            let compiled = compiled.unwrap_or_else(|d| panic!("{d}"));
            let input = zbmd_tests::gpu::tame_inputs(&compiled.program, 3);
            replay(compiled, &registry(), &input, None, None).0
        };
        // Cores that are not here are threads all the same.
        assert!(
            on(vec![0]) == on(vec![0, 1, 2]),
            "{name}: other bits on three cores"
        );
    }
}
