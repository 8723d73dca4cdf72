//! Recurrent layers over whole sequences: RNN, GRU, LSTM. Matrices are packed when they are constants.

mod spec;

use super::cx::{Body, Cx, Plan, Planned, Tensors, constant_f32, token};
use super::gemm::{Extra, Left, gemm, pack, packed_len};
use super::num::Float;

pub(super) use spec::{Cell, Direction, Gate, RecurrentSpec};

fn apply(gate: Gate, v: f32) -> f32 {
    match gate {
        Gate::Sigmoid => v.sigmoid(),
        Gate::Tanh => v.tanh(),
        Gate::Relu => v.max(0.0),
        Gate::HardSigmoid => (0.2 * v + 0.5).clamp(0.0, 1.0),
        Gate::Softsign => v / (1.0 + v.abs()),
    }
}

/// A recurrent layer of any cell.
pub(super) fn recurrent(cx: &Cx<'_>, spec: &RecurrentSpec) -> Planned {
    let wanted = cx.wanted.iter();
    let outs = wanted
        .map(|&output| {
            let dims = if output == 0 {
                spec.sequence_dims()
            } else {
                spec.state_dims()
            };
            token(spec.dtype, &dims)
        })
        .collect();

    let rows = spec.steps * spec.batch * spec.ways * spec.cell.gates() * spec.hidden;
    let flops = 2.0 * (rows * (spec.input + spec.hidden)) as f64;
    let mut body = Recurrent {
        spec: spec.clone(),
        wanted: cx.wanted.clone(),
        packed: None,
    };
    let input_weights = cx.operand(1)?.clone();
    let state_weights = cx.operand(2)?.clone();
    let make_body = move || {
        let constants = (constant_f32(&input_weights), constant_f32(&state_weights));
        if let (Some(w), Some(r)) = constants {
            let mut packed = vec![0.0; body.packed_len()];
            body.pack(&w, &r, &mut packed);
            body.packed = Some(packed);
        }
        Ok(Box::new(body) as Box<dyn Body>)
    };
    Ok(Plan::lazy(outs, make_body).flops(flops))
}

#[derive(Clone)]
struct Recurrent {
    spec: RecurrentSpec,
    wanted: Vec<usize>,
    packed: Option<Vec<f32>>,
}

impl Recurrent {
    fn width(&self) -> usize {
        self.spec.cell.gates() * self.spec.hidden
    }

    /// Input and recurrent matrices of one direction.
    fn each_len(&self) -> (usize, usize) {
        (
            packed_len(self.spec.input, self.width()),
            packed_len(self.spec.hidden, self.width()),
        )
    }

    fn packed_len(&self) -> usize {
        let (w, r) = self.each_len();
        self.spec.ways * (w + r)
    }

    fn pack(&self, w: &[f32], r: &[f32], to: &mut [f32]) {
        let ((lw, lr), n) = (self.each_len(), self.width());
        for (d, to) in to.chunks_exact_mut(lw + lr).enumerate() {
            pack(
                &w[d * n * self.spec.input..],
                self.spec.input,
                n,
                1,
                self.spec.input,
                &mut to[..lw],
            );
            pack(
                &r[d * n * self.spec.hidden..],
                self.spec.hidden,
                n,
                1,
                self.spec.hidden,
                &mut to[lw..],
            );
        }
    }

    fn bounded(&self, v: f32) -> f32 {
        if self.spec.clip > 0.0 {
            v.clamp(-self.spec.clip, self.spec.clip)
        } else {
            v
        }
    }

    /// Joins the gates of one batch; biases are in both parts.
    fn join(&self, gates: &Gates<'_>, h: &mut [f32], c: &mut [f32]) {
        let Gates {
            g,
            u,
            peep,
            acts,
            r_new,
        } = *gates;
        let n = self.spec.hidden;
        let p = |k: usize, i: usize| peep.get(k * n + i).copied().unwrap_or(0.0);
        for i in 0..n {
            let sum = |k: usize| g[k * n + i] + u[k * n + i];
            match self.spec.cell {
                Cell::Rnn => h[i] = apply(acts[0], self.bounded(sum(0))),
                Cell::Gru => {
                    let z = apply(acts[0], self.bounded(sum(0)));
                    let new = match r_new {
                        Some(r_new) => g[2 * n + i] + r_new[i],
                        None => g[2 * n + i] + apply(acts[0], self.bounded(sum(1))) * u[2 * n + i],
                    };
                    h[i] = (1.0 - z) * apply(acts[1], self.bounded(new)) + z * h[i];
                }
                Cell::Lstm => {
                    let input = apply(acts[0], self.bounded(sum(0) + p(0, i) * c[i]));
                    let forget = if self.spec.couple {
                        1.0 - input
                    } else {
                        apply(acts[0], self.bounded(sum(2) + p(2, i) * c[i]))
                    };
                    let next = forget * c[i] + input * apply(acts[1], self.bounded(sum(3)));
                    let out = apply(acts[0], self.bounded(sum(1) + p(1, i) * next));
                    c[i] = next;
                    h[i] = out * apply(acts[2], next);
                }
            }
        }
    }
}

/// What meets in a step of one batch.
struct Gates<'a> {
    /// Gates from the input, and from the hidden state.
    g: &'a [f32],
    u: &'a [f32],
    peep: &'a [f32],
    acts: &'a [Gate],
    /// The new gate from the hidden state behind the reset gate, where that acts first.
    r_new: Option<&'a [f32]>,
}

impl Body for Recurrent {
    fn run(&self, t: &mut Tensors<'_>) {
        let (x, bias, lengths) = (t.get::<f32>(0), t.get::<f32>(3), t.bytes(4));
        let (h0, c0, peep) = (t.get::<f32>(5), t.get::<f32>(6), t.get::<f32>(7));
        let (n, width) = (self.spec.hidden, self.width());
        let mut outs: [&mut [f32]; 3] = Default::default();
        for (i, &o) in self.wanted.iter().enumerate() {
            outs[o] = t.out::<f32>(i);
        }
        let [y, last_h, last_c] = outs;
        let scratch = t.scratch::<f32>();
        let (own, rest) = scratch.split_at_mut(if self.packed.is_some() {
            0
        } else {
            self.packed_len()
        });
        if self.packed.is_none() {
            self.pack(t.get(1), t.get(2), own);
        }
        let packed = self.packed.as_deref().unwrap_or(own);
        let (g, rest) = rest.split_at_mut(width);
        let (u, rest) = rest.split_at_mut(width);
        let (h, rest) = rest.split_at_mut(n);
        let (c, rest) = rest.split_at_mut(n);
        let (rh, r_new) = rest.split_at_mut(n);
        let (lw, lr) = self.each_len();
        let per = self.spec.activations.len() / self.spec.ways;
        for (d, b) in (0..self.spec.ways).flat_map(|d| (0..self.spec.batch).map(move |b| (d, b))) {
            let state = if self.spec.batchwise {
                b * self.spec.ways + d
            } else {
                d * self.spec.batch + b
            } * n;
            let start = |from: &[f32], to: &mut [f32]| match from.get(state..state + n) {
                Some(from) => to.copy_from_slice(from),
                None => to.fill(0.0),
            };
            start(h0, h);
            start(c0, c);
            let (w, r) = packed[d * (lw + lr)..][..lw + lr].split_at(lw);
            let bias: &[f32] = bias
                .get(d * 2 * width..(d + 1) * 2 * width)
                .unwrap_or_default();
            let (wb, rb) = bias.split_at(bias.len() / 2);
            let acts = &self.spec.activations[d * per..];
            let peep: &[f32] = peep.get(d * 3 * n..(d + 1) * 3 * n).unwrap_or_default();
            let len = self.spec.lengths.map_or(self.spec.steps, |dt| {
                super::cx::index_at(lengths, dt, b).clamp(0, self.spec.steps as i64) as usize
            });
            let back = self.spec.direction.turns(d);
            for k in 0..self.spec.steps {
                let place = if back && k < len { len - 1 - k } else { k };
                let at = if self.spec.batchwise {
                    (b * self.spec.steps + place) * self.spec.ways + d
                } else {
                    (place * self.spec.ways + d) * self.spec.batch + b
                } * n;
                if k >= len {
                    if let Some(y) = y.get_mut(at..at + n) {
                        y.fill(0.0)
                    }
                    continue;
                }
                let from = if self.spec.batchwise {
                    b * self.spec.steps + place
                } else {
                    place * self.spec.batch + b
                } * self.spec.input;
                let extra = Extra {
                    column_bias: Some(wb).filter(|b| !b.is_empty()),
                    ..Extra::default()
                };
                gemm(
                    (1, self.spec.input, width),
                    Left {
                        data: &x[from..],
                        row: self.spec.input,
                        column: 1,
                    },
                    w,
                    g,
                    width,
                    extra,
                );
                let extra = Extra {
                    column_bias: Some(rb).filter(|b| !b.is_empty()),
                    ..Extra::default()
                };
                gemm(
                    (1, n, width),
                    Left {
                        data: h,
                        row: n,
                        column: 1,
                    },
                    r,
                    u,
                    width,
                    extra,
                );
                let mut third = None;
                if self.spec.cell == Cell::Gru && !self.spec.reset_after {
                    // The reset gate acts before the product: that of its gate alone is done again.
                    for i in 0..n {
                        rh[i] = apply(acts[0], self.bounded(g[n + i] + u[n + i])) * h[i];
                    }
                    let extra = Extra {
                        column_bias: Some(rb).filter(|b| !b.is_empty()),
                        ..Extra::default()
                    };
                    gemm(
                        (1, n, width),
                        Left {
                            data: rh,
                            row: n,
                            column: 1,
                        },
                        r,
                        r_new,
                        width,
                        extra,
                    );
                    third = Some(&r_new[2 * n..3 * n]);
                }
                self.join(
                    &Gates {
                        g,
                        u,
                        peep,
                        acts,
                        r_new: third,
                    },
                    h,
                    c,
                );
                if let Some(y) = y.get_mut(at..at + n) {
                    y.copy_from_slice(h)
                }
            }
            if let Some(to) = last_h.get_mut(state..state + n) {
                to.copy_from_slice(h)
            }
            if let Some(to) = last_c.get_mut(state..state + n) {
                to.copy_from_slice(c)
            }
        }
    }

    fn scratch_bytes(&self) -> usize {
        let own = if self.packed.is_some() {
            0
        } else {
            self.packed_len()
        };
        4 * (own + 3 * self.width() + 3 * self.spec.hidden)
    }
}
