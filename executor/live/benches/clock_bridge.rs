//! What the clock bridge costs: seconds of stereo at 48 kHz, beside `rubato`'s windowed sinc with the same number of taps
//! and the same interpolation. A core that makes a second of sound in 20 ms is busy for 2 % of the time.

use std::hint::black_box;

use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use rubato::audioadapter_buffers::direct::InterleavedSlice;
use rubato::{
    Async, FixedAsync, Resampler as _, SincInterpolationParameters, SincInterpolationType,
    WindowFunction,
};
use zbmd_live::bridge::{BridgeAction, ONE_FRAME, Resampler};

const RATE: usize = 48_000;
const PIECE: usize = 480;
const RATIO: f64 = 1.0 + 137e-6;

fn sine() -> Vec<f32> {
    let sample = |frame: usize| (frame as f32 * 0.13).sin();
    (0..RATE)
        .flat_map(|frame| [sample(frame), -sample(frame)])
        .collect()
}

fn ours(input: &[f32], resampler: &mut Resampler, output: &mut [f32]) {
    let increment = (RATIO * ONE_FRAME as f64) as u64;
    for piece in input.chunks_exact(2 * PIECE) {
        resampler.write(piece);
        let frames = resampler.available(increment);
        let filled = &mut output[..2 * frames as usize];
        resampler.apply(BridgeAction::Play { frames, increment }, filled);
        black_box(filled);
    }
}

fn rubato(input: &[f32], resampler: &mut Async<f32>, output: &mut [f32]) {
    for piece in input.chunks_exact(2 * PIECE) {
        let frames = resampler.output_frames_next();
        let from = InterleavedSlice::new(piece, 2, PIECE).expect("whole frames");
        let filled = &mut output[..2 * frames];
        let mut to = InterleavedSlice::new_mut(filled, 2, frames).expect("whole frames");
        resampler
            .process_into_buffer(&from, &mut to, None)
            .expect("it fits");
        black_box(filled);
    }
}

fn stereo(criterion: &mut Criterion) {
    let input = sine();
    let mut output = vec![0.0; 4 * PIECE];
    let mut group = criterion.benchmark_group("a second of stereo at 48 kHz");
    group.throughput(Throughput::Elements(RATE as u64));

    let mut resampler = Resampler::new(RATE as f64, RATE as f64, 2);
    group.bench_function("zbmd", |bencher| {
        bencher.iter(|| ours(&input, &mut resampler, &mut output));
    });

    let parameters = SincInterpolationParameters {
        sinc_len: 64,
        f_cutoff: None,
        interpolation: SincInterpolationType::Linear,
        oversampling_factor: 512,
        window: WindowFunction::BlackmanHarris2,
    };
    let mut resampler = Async::new_sinc(1.0 / RATIO, 1.1, &parameters, PIECE, 2, FixedAsync::Input)
        .expect("parameters are right");
    group.bench_function("rubato", |bencher| {
        bencher.iter(|| rubato(&input, &mut resampler, &mut output));
    });
    group.finish();
}

criterion_group!(benches, stereo);
criterion_main!(benches);
