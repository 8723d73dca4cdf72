//! Signal kernels beside the libraries that radio programs use: VOLK, FFTW, soxr and GNU Radio.
//!
//! `cargo bench -p zbmd-tests --bench signals [-- FILTER]`. Ours is compiled for one CPU device and called through
//! [`zbmd_executor::Caller`], uncalibrated, so a figure holds what a user pays: copies in and out and the calendar too. The
//! rivals are loaded at run time (`libvolk`, `libfftw3f`, `libsoxr`; GNU Radio as `python3` with `gnuradio`); one that is missing
//! is said, and ours stands alone. Both do the same work on one thread by turns; times are CPU times of the process, a ratio is
//! that of one turn, and median, minimum and maximum are of all turns.
//!
//! - `mix`, `magnitude`, `fir`: calls of 4,096 samples that stay in the caches. VOLK runs the implementation that is quickest here,
//!   as `volk_profile` would choose; the filter is GNU Radio's loop, a dot product of aligned taps for each sample.
//! - `fft`: one transform after the other, out of place; FFTW plans with `FFTW_MEASURE`.
//! - `resample`: 44.1 to 48 kHz, one channel, in calls of 4,704 samples; soxr's quality is `SOXR_HQ`. The quality of every
//!   converter is measured with tones, see [`quality`].
//! - `fm`: `graphs/fm` beside the same receiver of GNU Radio's blocks, whose threads' CPU times are added up, as it is installed.

mod fftw;
mod gnuradio;
mod ours;
mod quality;
mod soxr;
mod volk;

use std::cell::LazyCell;
use std::time::Duration;

use zbmd_tests::cpu_time;
use zbmd_tests::figures::{load, median};

use crate::ours::Ours;
use crate::quality::Quality;

const TURNS: usize = 11;
/// CPU time of one side's turn.
const TURN: Duration = Duration::from_millis(40);
/// Samples of a call of an elementwise kernel or a filter.
const CALL_SAMPLES: usize = 4096;

/// One side of a comparison: does its work so many times and says how many seconds of CPU time that took.
type Side = Box<dyn FnMut(u64) -> f64>;

/// Makes the line of a kernel that VOLK has too.
type KernelCase = fn(&Result<volk::Volk, String>) -> Case;

/// A line of the table.
struct Case {
    name: String,
    /// Samples that one piece of work takes in.
    samples: usize,
    ours: Side,
    rival_name: &'static str,
    /// The rival, or why there is none.
    rival: Result<Side, String>,
}

fn main() {
    let filters: Vec<String> = std::env::args()
        .skip(1)
        .filter(|argument| !argument.starts_with('-'))
        .collect();
    let is_wanted = |name: &str| filters.iter().all(|filter| name.contains(filter.as_str()));

    println!(
        "{:<22} {:>9} {:>9}  {:<10} {:>6} ({:>5} to {:>5})",
        "ns a sample", "ours", "rival", "", "ratio", "min", "max"
    );
    let volk = LazyCell::new(volk::Volk::load);
    let kernels: [(&str, KernelCase); 3] = [("mix", mix), ("magnitude", magnitude), ("fir", fir)];
    for (name, case) in kernels {
        if is_wanted(name) {
            print_row(case(&volk));
        }
    }
    for len in [1024, 4096, 16_384, 65_536] {
        if is_wanted(&format!("fft {len}")) {
            print_row(fft(len));
        }
    }
    for model in [
        "cd2dat/polyphase.ron",
        "cd2dat/onestep.ron",
        "cd2dat/model.ron",
    ] {
        if is_wanted(&format!("resample {model}")) {
            print_row(resample(model));
            let block = ours::RESAMPLE_ITERATIONS;
            print_quality(model, Ours::of_graph(model, block).quality());
        }
    }
    if is_wanted("resample soxr") {
        match soxr::Resampler::new() {
            Ok(resampler) => print_quality("soxr HQ", quality::measure(resampler)),
            Err(reason) => println!("  soxr: {reason}"),
        }
    }
    if is_wanted("fm") {
        print_row(fm());
    }
}

fn mix(volk: &Result<volk::Volk, String>) -> Case {
    const CHAIN: usize = 64;
    Case {
        name: "mix".to_owned(),
        samples: CHAIN * CALL_SAMPLES,
        ours: Ours::chain(&format!("c32, shape: [{CALL_SAMPLES}]"), CHAIN, 1, |i| {
            format!("Mix(freq: {}, rate: 48000)", 1000 + i)
        })
        .side(),
        rival_name: "VOLK",
        rival: volk::mix(volk, CHAIN),
    }
}

fn magnitude(volk: &Result<volk::Volk, String>) -> Case {
    const COPIES: usize = 64;
    Case {
        name: "magnitude".to_owned(),
        samples: COPIES * CALL_SAMPLES,
        ours: Ours::magnitudes(COPIES).side(),
        rival_name: "VOLK",
        rival: volk::magnitude(volk, COPIES),
    }
}

fn fir(volk: &Result<volk::Volk, String>) -> Case {
    const CHAIN: usize = 16;
    const TAPS: usize = 64;
    Case {
        name: format!("fir, {TAPS} taps"),
        samples: CHAIN * CALL_SAMPLES,
        ours: Ours::chain("f32", CHAIN, CALL_SAMPLES as u64, |_| {
            format!(
                "Fir(design: {{\"kind\": \"lowpass\", \"cutoff\": 12000, \"rate\": 48000, \"taps\": {TAPS}}})"
            )
        })
        .side(),
        rival_name: "VOLK",
        rival: volk::fir(volk, CHAIN, TAPS),
    }
}

/// A chain of transforms: each multiplies what comes in by the root of its length, and the last must not overflow.
fn fft(len: usize) -> Case {
    let chain = match len {
        ..2048 => 16,
        2048..16_384 => 8,
        _ => 4,
    };
    Case {
        name: format!("fft {len}"),
        samples: chain * len,
        ours: Ours::chain(&format!("c32, shape: [{len}]"), chain, 1, |_| {
            "Fft()".to_owned()
        })
        .side(),
        rival_name: "FFTW",
        rival: fftw::chain(len, chain),
    }
}

fn resample(model: &str) -> Case {
    Case {
        name: model.trim_end_matches(".ron").to_owned(),
        samples: 147 * ours::RESAMPLE_ITERATIONS as usize,
        ours: Ours::of_graph(model, ours::RESAMPLE_ITERATIONS).side(),
        rival_name: "soxr HQ",
        rival: soxr::side(147 * ours::RESAMPLE_ITERATIONS as usize),
    }
}

fn fm() -> Case {
    /// Iterations of a call, each 50 samples.
    const ITERATIONS: u64 = 512;
    Case {
        name: "fm".to_owned(),
        samples: 50 * ITERATIONS as usize,
        ours: Ours::of_graph("fm/model.ron", ITERATIONS).side(),
        rival_name: "GNU Radio",
        rival: gnuradio::fm(50 * ITERATIONS as usize),
    }
}

/// A side that runs a function again and again in this process.
fn timed(mut work: impl FnMut() + 'static) -> Side {
    Box::new(move |times| {
        let before = cpu_time::of_process();
        for _ in 0..times {
            work();
        }
        (cpu_time::of_process() - before).as_secs_f64()
    })
}

fn print_row(mut case: Case) {
    // What a side does once and for all, it does before the first turn.
    let first = (case.ours)(1).max((case.ours)(1)).max(1e-7);
    let times = (TURN.as_secs_f64() / first).ceil() as u64;
    if let Ok(rival) = &mut case.rival {
        rival(times.div_ceil(8));
    }

    let mut ours = Vec::new();
    let mut rivals = Vec::new();
    for _ in 0..TURNS {
        let nanoseconds = |seconds: f64| seconds * 1e9 / times as f64 / case.samples as f64;
        ours.push(nanoseconds((case.ours)(times)));
        if let Ok(rival) = &mut case.rival {
            rivals.push(nanoseconds(rival(times)));
        }
    }

    let name = &case.name;
    match &case.rival {
        Ok(_) => {
            let ratios = ours.iter().zip(&rivals).map(|(ours, rival)| ours / rival);
            let mut ratios: Vec<f64> = ratios.collect();
            ratios.sort_by(f64::total_cmp);
            println!(
                "{name:<22} {:>9.3} {:>9.3}  {:<10} {:>6.2} ({:>5.2} to {:>5.2})  load {}",
                median(ours),
                median(rivals),
                case.rival_name,
                ratios[TURNS / 2],
                ratios[0],
                ratios[TURNS - 1],
                load()
            );
        }
        Err(reason) => {
            let rival = case.rival_name;
            println!(
                "{name:<22} {:>9.3}  without {rival}: {reason}",
                median(ours)
            );
        }
    }
}

fn print_quality(name: &str, quality: Quality) {
    println!(
        "  quality of {name}: pass band within {:.4} dB to 20 kHz; other than the tone {:.1} dB to 20 kHz, {:.1} dB from there to 22.05 kHz",
        quality.ripple_db, quality.residue_db, quality.images_db
    );
}
