//! Attention with rounded factors: on a device in software beside the definition, computed in f64 of the same rounded
//! factors chunk by chunk, and on a GPU where there is one.

use std::sync::Arc;

use zbmd_ir::{DType, TiVec};

use super::math::{ROUNDED, on_device, round};
use crate::cuda::CudaDevice;
use crate::cuda::testing::{real, soft};
use crate::kernels::{Caps, KernelPlan, Math};
use crate::tests::ops::conformance::{Random, Subject, subject};
use crate::tests::ops::gpus::{Tolerance, agree, compare};

/// Keys whose weights are rounded together, relative to the largest score so far.
const CHUNK: usize = 32;

/// What hides keys besides their places.
#[derive(Clone, Copy, PartialEq)]
enum Mask {
    None,
    /// A truth value for each query and key, of all batches and heads.
    Truth,
    /// A number for each batch, query and key.
    Added,
}

#[derive(Clone, Copy)]
struct Case {
    batch: usize,
    /// Of queries and of keys.
    heads: [usize; 2],
    queries: usize,
    /// Kept from before, and new.
    keys: [usize; 2],
    /// Of keys and of values.
    sizes: [usize; 2],
    /// Heads side by side in rows.
    rows: bool,
    mask: Mask,
    /// Whether each batch says how many keys there are.
    lengths: bool,
    causal: bool,
    /// To the left and to the right, negative for none.
    window: [i64; 2],
    softcap: f32,
    /// Which of the scores are shown.
    shown: Option<i64>,
}

/// Queries over a few keys of a small head, and nothing else.
const PLAIN: Case = Case {
    batch: 1,
    heads: [2, 2],
    queries: 5,
    keys: [0, 9],
    sizes: [8, 6],
    rows: false,
    mask: Mask::None,
    lengths: false,
    causal: false,
    window: [-1, -1],
    softcap: 0.0,
    shown: None,
};

/// Tiles have 16, 32 or 64 queries and 32 keys; edges everywhere.
const CASES: &[Case] = &[
    PLAIN,
    Case {
        queries: 21,
        keys: [0, 37],
        sizes: [20, 12],
        causal: true,
        ..PLAIN
    },
    Case {
        queries: 70,
        keys: [0, 70],
        heads: [1, 1],
        sizes: [33, 17],
        causal: true,
        ..PLAIN
    },
    Case {
        batch: 2,
        heads: [4, 2],
        queries: 17,
        keys: [0, 33],
        rows: true,
        ..PLAIN
    },
    Case {
        batch: 2,
        queries: 9,
        keys: [26, 9],
        causal: true,
        shown: Some(0),
        ..PLAIN
    },
    Case {
        batch: 2,
        queries: 13,
        keys: [0, 40],
        mask: Mask::Truth,
        shown: Some(2),
        ..PLAIN
    },
    Case {
        batch: 2,
        queries: 13,
        keys: [0, 34],
        mask: Mask::Added,
        softcap: 2.0,
        ..PLAIN
    },
    Case {
        batch: 3,
        queries: 6,
        keys: [0, 45],
        lengths: true,
        causal: true,
        ..PLAIN
    },
    Case {
        queries: 40,
        keys: [0, 40],
        window: [5, 3],
        softcap: 1.5,
        shown: Some(1),
        ..PLAIN
    },
    // A head of whole products in each type, one beyond, and values of two groups.
    Case {
        heads: [1, 1],
        queries: 16,
        keys: [0, 64],
        sizes: [64, 64],
        ..PLAIN
    },
    Case {
        heads: [1, 1],
        queries: 8,
        keys: [0, 40],
        sizes: [65, 130],
        ..PLAIN
    },
    Case {
        heads: [1, 1],
        queries: 6,
        keys: [0, 33],
        sizes: [128, 128],
        ..PLAIN
    },
];

impl Case {
    fn total(&self) -> usize {
        self.keys[0] + self.keys[1]
    }

    fn tensor(&self, heads: usize, len: usize, size: usize) -> String {
        match self.rows {
            true => format!("f32[{},{len},{}]", self.batch, heads * size),
            false => format!("f32[{},{heads},{len},{size}]", self.batch),
        }
    }

    fn parameters(&self) -> String {
        let mut all = vec![format!("softcap: {:?}", self.softcap)];
        let [left, right] = self.window;
        all.push(format!(
            "left_window_size: {left}, right_window_size: {right}"
        ));
        if self.rows {
            let [q, kv] = self.heads;
            all.push(format!("q_num_heads: {q}, kv_num_heads: {kv}"));
        }
        if self.causal {
            all.push("is_causal: 1".to_owned());
        }
        if let Some(mode) = self.shown {
            all.push(format!("outputs: [0, 3], qk_matmul_output_mode: {mode}"));
        }
        all.join(", ")
    }

    fn inputs(&self) -> String {
        let ([heads, kv], [size, value]) = (self.heads, self.sizes);
        let (batch, [past, new], total) = (self.batch, self.keys, self.total());
        let mut all = vec![
            format!("q: {}", self.tensor(heads, self.queries, size)),
            format!("k: {}", self.tensor(kv, new, size)),
            format!("v: {}", self.tensor(kv, new, value)),
        ];
        match self.mask {
            Mask::None => {}
            Mask::Truth => all.push(format!("mask: bool[{},{total}]", self.queries)),
            Mask::Added => all.push(format!("mask: f32[{batch},1,{},{total}]", self.queries)),
        }
        if past > 0 {
            all.push(format!("past_key: f32[{batch},{kv},{past},{size}]"));
            all.push(format!("past_value: f32[{batch},{kv},{past},{value}]"));
        }
        if self.lengths {
            all.push(format!("lengths: i64[{batch}]"));
        }
        all.join(", ")
    }

    /// Kernels, and the actor as a device is given it.
    fn subject(&self, math: Math) -> (Subject, KernelPlan) {
        let parameters = format!("{}, math: {math}", self.parameters());
        let given = subject("NnAttention", &parameters, &self.inputs());
        let plan = crate::standard_registry().lower(&given.actor, &TiVec::new(), &Caps::CUDA);
        (given, plan.expect("kernels"))
    }

    /// Where row `i` of a head begins.
    fn row(&self, [heads, len, size]: [usize; 3], b: usize, h: usize, i: usize) -> usize {
        match self.rows {
            true => ((b * len + i) * heads + h) * size,
            false => ((b * heads + h) * len + i) * size,
        }
    }

    /// The result of one firing and the scores that are shown, of factors rounded to `math`.
    fn defined(&self, math: Math, data: &[&[u8]]) -> [Vec<f32>; 2] {
        let floats: Vec<Vec<f32>> = data.iter().map(|bytes| floats_of(bytes)).collect();
        let (has_mask, past) = (usize::from(self.mask != Mask::None), self.keys[0]);
        let lengths = data.last().filter(|_| self.lengths);
        let lengths: Option<Vec<i64>> = lengths.map(|bytes| {
            bytes
                .as_chunks()
                .0
                .iter()
                .map(|b| i64::from_le_bytes(*b))
                .collect()
        });
        let ([heads, kv], [size, value]) = (self.heads, self.sizes);
        let (total, len) = (self.total(), self.queries);
        let factor = |v: f32| f64::from(round(math, v));
        let scale = f64::from((1.0 / (size as f64).sqrt()) as f32);
        // Element d of row j of keys or of values.
        let cached = |n: usize, width: usize, b: usize, h: usize, j: usize, d: usize| {
            factor(match j.checked_sub(past) {
                Some(j) => floats[n][self.row([kv, self.keys[1], width], b, h, j) + d],
                None => floats[n + 2 + has_mask][((b * kv + h) * past + j) * width + d],
            })
        };
        let mut y = vec![0.0; self.batch * heads * len * value];
        let mut shown = Vec::new();
        for (b, h, i) in (0..self.batch)
            .flat_map(|b| (0..heads).flat_map(move |h| (0..len).map(move |i| (b, h, i))))
        {
            let (kh, length) = (h / (heads / kv), lengths.as_ref().map(|l| l[b]));
            let query = &floats[0][self.row([heads, len, size], b, h, i)..][..size];
            let seen = |j: usize| {
                let offset = length.map_or(past as i64, |n| n - len as i64);
                let ahead = j as i64 - (i as i64 + offset);
                let [left, right] = self.window;
                let truth = self.mask != Mask::Truth || data[3][i * total + j] != 0;
                truth
                    && !(self.causal && ahead > 0)
                    && (left < 0 || -ahead <= left)
                    && (right < 0 || ahead <= right)
                    && length.is_none_or(|n| (j as i64) < n)
            };
            let mut scores = Vec::new();
            for j in 0..total {
                let products = (0..size).map(|d| factor(query[d]) * cached(1, size, b, kh, j, d));
                let dot = products.sum::<f64>() * scale;
                let cap = f64::from(self.softcap);
                let capped = if cap > 0.0 {
                    (dot / cap).tanh() * cap
                } else {
                    dot
                };
                let added = match self.mask {
                    Mask::Added => f64::from(floats[3][(b * len + i) * total + j]),
                    _ => 0.0,
                };
                let score = if seen(j) {
                    capped + added
                } else {
                    f64::NEG_INFINITY
                };
                shown.push(if self.shown == Some(2) { score } else { capped } as f32);
                scores.push(score);
            }
            let (mut top, mut sum, mut all) = (f64::NEG_INFINITY, 0.0, vec![0.0; value]);
            for (c, chunk) in scores.chunks(CHUNK).enumerate() {
                let next = chunk.iter().fold(top, |a, b| a.max(*b));
                if next == f64::NEG_INFINITY {
                    continue;
                }
                let keep = (top - next).exp();
                sum *= keep;
                all.iter_mut().for_each(|v| *v *= keep);
                for (j, score) in chunk.iter().enumerate().filter(|s| s.1.is_finite()) {
                    let weight = (score - next).exp();
                    sum += weight;
                    let weight = factor(weight as f32);
                    for (d, all) in all.iter_mut().enumerate() {
                        *all += weight * cached(2, value, b, kh, c * CHUNK + j, d);
                    }
                }
                top = next;
            }
            let at = self.row([heads, len, value], b, h, i);
            for (y, all) in y[at..].iter_mut().zip(all) {
                *y = if sum == 0.0 { 0.0 } else { (all / sum) as f32 };
            }
        }
        [y, shown]
    }
}

fn floats_of(bytes: &[u8]) -> Vec<f32> {
    bytes
        .as_chunks()
        .0
        .iter()
        .map(|b| f32::from_le_bytes(*b))
        .collect()
}

fn bytes_of(floats: &[f32]) -> Vec<u8> {
    floats.iter().flat_map(|v| v.to_le_bytes()).collect()
}

/// As near as sums in f32 are, but for rows of which a weight near a tie was rounded the other way: those are as far
/// away as weights have bits, and few.
fn near(math: Math, got: &[u8], want: &[u8]) -> Result<(), String> {
    let unit = if math == Math::Bf16 {
        1.0 / 256.0
    } else {
        1.0 / 2048.0
    };
    compare(DType::F32, got, want, Tolerance::Sum(2.0 * unit))?;
    let (got, want) = (floats_of(got), floats_of(want));
    let scale = want.iter().fold(0.0_f32, |most, v| most.max(v.abs()));
    let off = got
        .iter()
        .zip(&want)
        .filter(|(a, b)| (*a - *b).abs() > 5e-6 * scale)
        .count();
    let all = got.len();
    if off * 4 > all {
        Err(format!("{off} of {all} are off"))
    } else {
        Ok(())
    }
}

fn check_all(device: &Arc<CudaDevice>) {
    let mut random = Random(29);
    for math in ROUNDED {
        for case in CASES {
            let text = format!("({}) of ({}) in {math}", case.parameters(), case.inputs());
            let (given, plan) = case.subject(math);
            assert!(
                plan.kernels().any(|k| k.multiplies),
                "{text}: not on tensor cores"
            );
            assert_eq!(plan.math(), math, "{text}");
            let firings = 2;
            let mut data = given.inputs(firings, |dtype, count| match dtype {
                DType::F32 => {
                    bytes_of(&(0..count).map(|_| random.unit() * 2.0).collect::<Vec<_>>())
                }
                DType::I64 => {
                    let mut length = || (random.unit().abs() * case.total() as f32) as i64;
                    (0..count).flat_map(|_| length().to_le_bytes()).collect()
                }
                _ => (0..count).map(|_| u8::from(random.unit() > -0.3)).collect(),
            });
            hide(case, &mut data, firings);
            let mut want = [Vec::new(), Vec::new()];
            for f in 0..firings {
                let one = |all: &Vec<u8>| all.len() / firings;
                let parts = data.iter().map(|all| &all[f * one(all)..][..one(all)]);
                let made = case.defined(math, &parts.collect::<Vec<_>>());
                want.iter_mut()
                    .zip(made)
                    .for_each(|(all, more)| all.extend(bytes_of(&more)));
            }
            let got = on_device(device, (&given, &plan), &data, (firings, 1 + firings % 2));
            near(math, &got.0[0], &want[0]).unwrap_or_else(|e| panic!("{text}: {e}"));
            if let Some(scores) = got.0.get(1) {
                let near = compare(DType::F32, scores, &want[1], Tolerance::Sum(5e-6));
                near.unwrap_or_else(|e| panic!("{text}: scores: {e}"));
            }
            // What is not rounded is as far away as factors have bits.
            let exact = given.run(&data, firings, firings);
            assert!(
                agree(&given, &got, &exact, Tolerance::Sum(1e-5)).is_err(),
                "{text}: exact"
            );
            let most = if math == Math::Bf16 { 5e-2 } else { 1e-2 };
            let far = agree(&given, &got, &exact, Tolerance::Sum(most));
            far.unwrap_or_else(|e| panic!("{text}: {e}"));
        }
    }
}

/// Puts what is no number into the values that are hidden from some or all queries of a tile: those behind each batch's
/// length, or one that only the last two queries see.
fn hide(case: &Case, data: &mut [Vec<u8>], firings: usize) {
    let [kv, len, size] = [case.heads[1], case.keys[1], case.sizes[1]];
    let lengths = data.last().filter(|_| case.lengths);
    let lengths: Vec<i64> = lengths.map_or_else(Vec::new, |bytes| {
        bytes
            .as_chunks()
            .0
            .iter()
            .map(|b| i64::from_le_bytes(*b))
            .collect()
    });
    let mut values = floats_of(&data[2]);
    for n in 0..firings * case.batch {
        let hidden = match lengths.get(n) {
            Some(length) => *length as usize..len,
            None if case.causal => case.queries - 2..case.queries - 1,
            None => 0..0,
        };
        for (h, j) in (0..kv).flat_map(|h| hidden.clone().map(move |j| (h, j))) {
            let at = ((n * kv + h) * len + j) * size;
            values[at..at + size].fill(f32::NAN);
        }
    }
    data[2] = bytes_of(&values);
}

/// The kernels of all cases, for the assembler, and the largest.
pub(super) fn kernels() -> Vec<(String, KernelPlan)> {
    let large = Case {
        heads: [1, 1],
        queries: 64,
        keys: [64, 64],
        causal: true,
        ..PLAIN
    };
    let large = [
        Case {
            sizes: [128, 256],
            mask: Mask::Added,
            softcap: 2.0,
            ..large
        },
        Case {
            sizes: [128, 128],
            mask: Mask::Truth,
            shown: Some(2),
            ..large
        },
        Case {
            sizes: [64, 64],
            keys: [0, 128],
            ..large
        },
        Case {
            sizes: [256, 256],
            keys: [0, 128],
            ..large
        },
    ];
    let all = ROUNDED
        .iter()
        .flat_map(|math| CASES.iter().chain(&large).map(move |c| (*math, c)));
    // Queries of 256 factors of 32 bits are too large.
    let all = all.filter(|(math, c)| *math != Math::Tf32 || c.sizes[0] <= 128);
    all.map(|(math, case)| {
        let (_, plan) = case.subject(math);
        assert_eq!(plan.math(), math);
        (
            format!(
                "NnAttention({}) of ({}) in {math}",
                case.parameters(),
                case.inputs()
            ),
            plan,
        )
    })
    .collect()
}

#[test]
fn rounded_attention_agrees_with_its_definition_in_software() {
    check_all(&soft());
}

#[test]
fn rounded_attention_agrees_with_its_definition_on_a_gpu() {
    if let Some(device) = real() {
        check_all(&device);
    }
}

#[test]
fn what_is_too_small_or_too_large_or_keeps_its_weights_is_not_rounded() {
    for (math, case) in [
        (
            Math::Bf16,
            Case {
                queries: 4,
                ..PLAIN
            },
        ),
        (
            Math::Tf32,
            Case {
                sizes: [129, 8],
                ..PLAIN
            },
        ),
        (
            Math::F16,
            Case {
                sizes: [257, 8],
                ..PLAIN
            },
        ),
        (
            Math::F16,
            Case {
                shown: Some(3),
                ..PLAIN
            },
        ),
    ] {
        let (_, plan) = case.subject(math);
        assert_eq!(plan.math(), Math::F32, "{}", case.inputs());
        assert!(plan.kernels().all(|k| !k.multiplies), "{}", case.inputs());
    }
    let (_, plan) = Case {
        queries: 5,
        sizes: [256, 500],
        ..PLAIN
    }
    .subject(Math::F16);
    assert_eq!(plan.math(), Math::F16);
}
