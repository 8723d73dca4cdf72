//! Where ops come from: books, papers and standards, for the catalogue.

/// Where ops come from, sorted by name.
pub const SOURCES: &[(&str, &str)] = &[
    (
        "Biquad",
        "Oppenheim & Schafer, Discrete-Time Signal Processing, on second-order sections",
    ),
    (
        "Correlate",
        "Turin 1960, An Introduction to Matched Filters, IRE Trans. Inf. Theory 6(3)",
    ),
    (
        "Deemphasis",
        "ITU-R BS.450, on pre-emphasis in FM broadcasting",
    ),
    (
        "Fft",
        "crate rustfft; Cooley & Tukey 1965, Math. Comp. 19; powers of two also by our own passes of radix 16, on GPUs by Stockham's; other lengths by Bluestein and Rader",
    ),
    (
        "Fir",
        "Crochiere & Rabiner 1983, Multirate Digital Signal Processing, on polyphase filters; Kaiser 1974 on his window",
    ),
    (
        "Frame",
        "Allen & Rabiner 1977, A Unified Approach to Short-Time Fourier Analysis, Proc. IEEE 65(11)",
    ),
    ("Irfft", "crate realfft, after rustfft"),
    (
        "Noise",
        "Steele, Lea & Flood 2014, Fast Splittable Pseudorandom Number Generators, OOPSLA",
    ),
    (
        "OverlapAdd",
        "Allen & Rabiner 1977, A Unified Approach to Short-Time Fourier Analysis, Proc. IEEE 65(11)",
    ),
    ("Rfft", "crate realfft, after rustfft"),
    (
        "Window",
        "Harris 1978, On the Use of Windows for Harmonic Analysis with the DFT, Proc. IEEE 66(1)",
    ),
];

/// Where an op comes from, if that is more than a line of arithmetic. Tensor ops come from the ONNX operators.
pub fn source(op: &str) -> Option<&'static str> {
    SOURCES
        .iter()
        .find(|(name, _)| *name == op)
        .map(|(_, source)| *source)
}
