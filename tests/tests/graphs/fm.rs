//! Broadcast FM, transmitted and received: how much of the audio comes back.

use zbmd_tests::run::{Streams, interpret, run, streams};
use zbmd_tests::signal::*;

const RATE: f64 = 48_000.0;
/// Samples of 48 kHz from the transmitter's input to the receiver's output; fm/model.ron says why.
const DELAY: usize = 36;
/// Samples in which the filters fill.
const START: usize = 200;

fn returned(audio: &[u8]) -> Vec<f64> {
    let registry = zbmd_backends::standard_registry();
    let iq = run(
        "fm/modulate.ron",
        2,
        &registry,
        &streams([("audio", audio.to_vec())]),
        None,
    );
    assert_eq!(
        iq["iq"].len(),
        audio.len() / 4 * 50 * 2,
        "2.4 MS/s of two bytes"
    );
    from_f32_bytes(&run("fm/model.ron", 2, &registry, &iq, None)["audio"])
}

fn snr(audio: &[f64], returned: &[f64]) -> f64 {
    assert_eq!(audio.len(), returned.len());
    snr_db(
        &audio[START..audio.len() - DELAY],
        &returned[START + DELAY..],
    )
}

/// Measured through u8 I/Q: 83.4 dB for the melody, 75.5 dB for tones up to 14.5 kHz.
#[test]
fn the_audio_comes_back() {
    let registry = zbmd_backends::standard_registry();
    let melody = run("fm/melody.ron", 2, &registry, &Streams::new(), Some(24_000));
    let melody = from_f32_bytes(&melody["melody_wav"]);
    let peak = melody.iter().fold(0.0f64, |peak, s| peak.max(s.abs()));
    assert!((0.4..0.7).contains(&peak), "the melody's peak is {peak}");
    let quarter = |signal: Vec<f64>| signal.iter().map(|s| 0.25 * s).collect::<Vec<_>>();
    let tones = quarter(tones(
        &[300.0, 1000.0, 3000.0, 5000.0, 9000.0, 14_500.0],
        RATE,
        24_000,
    ));
    let silence = vec![0.0; 4800];
    for (what, audio, least) in [("the melody", melody, 78.0), ("six tones", tones, 72.0)] {
        let figure = snr(&audio, &returned(&to_f32_bytes(&audio)));
        println!("{what}: {figure:.1} dB");
        assert!(figure > least, "{what}: {figure:.1} dB");
    }
    let noise = returned(&to_f32_bytes(&silence));
    assert!(
        noise[START..].iter().all(|s| s.abs() < 1e-3),
        "silence stays silent"
    );
}

#[test]
fn any_machine_gives_the_same_bits() {
    let registry = zbmd_backends::standard_registry();
    let audio = streams([("audio", to_f32_bytes(&sweep(50.0, 10_000.0, RATE, 960)))]);
    let transmitted = interpret("fm/modulate.ron", &registry, &audio, None);
    let received = interpret("fm/model.ron", &registry, &transmitted, None);
    for devices in 1..=3 {
        let other = |what: &str| format!("other {what} on {devices} devices");
        assert!(
            run("fm/modulate.ron", devices, &registry, &audio, None) == transmitted,
            "{}",
            other("I/Q")
        );
        assert!(
            run("fm/model.ron", devices, &registry, &transmitted, None) == received,
            "{}",
            other("audio")
        );
    }
}
