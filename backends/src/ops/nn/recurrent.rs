//! Recurrent layers over whole sequences: RNN, GRU, LSTM. Matrices are packed when they are constants.

use zbmd_ir::DType;

use super::cx::{Body, Cx, FLOATS, Plan, Planned, Tensors, constant_f32, token, volume};
use super::gemm::{Extra, Left, gemm, pack, packed_len};
use super::num::Float;
use crate::op::OpError;

#[derive(Clone, Copy, PartialEq, Debug)]
enum Cell {
    Rnn,
    Gru,
    Lstm,
}

impl Cell {
    fn gates(self) -> usize {
        match self {
            Cell::Rnn => 1,
            Cell::Gru => 3,
            Cell::Lstm => 4,
        }
    }
}

#[derive(Clone, Copy, Debug)]
enum Gate {
    Sigmoid,
    Tanh,
    Relu,
    HardSigmoid,
    Softsign,
}

fn gate_of(cx: &Cx<'_>, name: &str) -> Result<Gate, OpError> {
    Ok(match name.to_ascii_lowercase().as_str() {
        "sigmoid" => Gate::Sigmoid,
        "tanh" => Gate::Tanh,
        "relu" => Gate::Relu,
        "hardsigmoid" => Gate::HardSigmoid,
        "softsign" => Gate::Softsign,
        other => {
            return Err(cx.args.unknown_word(
                "activations",
                other,
                &["Sigmoid", "Tanh", "Relu", "HardSigmoid", "Softsign"],
            ));
        }
    })
}

fn apply(gate: Gate, v: f32) -> f32 {
    match gate {
        Gate::Sigmoid => v.sigmoid(),
        Gate::Tanh => v.tanh(),
        Gate::Relu => v.max(0.0),
        Gate::HardSigmoid => (0.2 * v + 0.5).clamp(0.0, 1.0),
        Gate::Softsign => v / (1.0 + v.abs()),
    }
}

/// Operands: X, W, R, B, lengths, first hidden state, first cell state, peepholes.
pub(super) fn recurrent(cx: &Cx<'_>, name: &str) -> Planned {
    let dtype = cx.expect(0, &FLOATS)?;
    if dtype == DType::F64 {
        return Err(cx.refuse(0, "is f64", "recurrent layers are computed in f32: cast it"));
    }
    let cell = match name {
        "NnRNN" => Cell::Rnn,
        "NnGRU" => Cell::Gru,
        _ => Cell::Lstm,
    };
    let gates = cell.gates();
    let batchwise = cx.args.int_or("layout", 0)? != 0;
    let (x, w, r) = (cx.dims(0)?, cx.dims(1)?, cx.dims(2)?);
    let (&[d0, d1, input], &[ways, rows, wi], &[_, _, hidden]) =
        (x.as_slice(), w.as_slice(), r.as_slice())
    else {
        return Err(cx.refuse(
            1,
            format!("is {}", cx.operand(1)?.ty),
            "input and matrices have three dimensions",
        ));
    };
    let (steps, batch) = if batchwise { (d1, d0) } else { (d0, d1) };
    let direction = cx.args.word_opt("direction")?.unwrap_or("forward");
    let both = direction == "bidirectional";
    let fits = rows == gates * hidden
        && wi == input
        && ways == 1 + usize::from(both)
        && r == [ways, gates * hidden, hidden]
        && volume(&x) > 0
        && hidden > 0;
    if !fits {
        let message = format!("is {}, the input {}", cx.operand(1)?.ty, cx.operand(0)?.ty);
        return Err(cx.refuse(
            1,
            message,
            format!("[directions, {gates} · hidden, {input}]"),
        ));
    }
    let state = if batchwise {
        vec![batch, ways, hidden]
    } else {
        vec![ways, batch, hidden]
    };
    let expected = [
        (3, vec![ways, 2 * gates * hidden]),
        (4, vec![batch]),
        (5, state.clone()),
        (6, state.clone()),
        (7, vec![ways, 3 * hidden]),
    ];
    for (i, want) in expected {
        if let Some(o) = cx.opt(i)
            && o.dims() != want
        {
            return Err(cx.refuse(i, format!("is {}", o.ty), format!("{want:?}")));
        }
    }
    let mut names: Vec<String> = match cx.args.get("activations").and_then(zbmd_ir::Value::as_list)
    {
        Some(list) => list
            .iter()
            .filter_map(|v| v.as_str().map(str::to_owned))
            .collect(),
        None => Vec::new(),
    };
    let default: &[&str] = match cell {
        Cell::Rnn => &["Tanh"],
        Cell::Gru => &["Sigmoid", "Tanh"],
        Cell::Lstm => &["Sigmoid", "Tanh", "Tanh"],
    };
    if names.is_empty() {
        names = default.iter().map(|s| (*s).to_owned()).collect();
    }
    let once = names.len();
    while names.len() < default.len() * ways && once > 0 {
        names.push(names[names.len() - once.min(default.len())].clone());
    }
    let activations = names
        .iter()
        .map(|n| gate_of(cx, n))
        .collect::<Result<Vec<_>, _>>()?;
    if activations.len() < default.len() * ways {
        return Err(cx.args.error(
            "activations",
            format!("has {} names", activations.len()),
            format!("{} for each direction", default.len()),
        ));
    }
    let seq = if batchwise {
        vec![batch, steps, ways, hidden]
    } else {
        vec![steps, ways, batch, hidden]
    };
    let outs = cx
        .wanted
        .iter()
        .map(|&o| token(dtype, if o == 0 { &seq } else { &state }))
        .collect();
    let flops = 2.0 * (steps * batch * ways * gates * hidden * (input + hidden)) as f64;
    let mut body = Recurrent {
        cell,
        steps,
        batch,
        input,
        hidden,
        ways,
        batchwise,
        reverse: direction == "reverse",
        activations,
        reset_after: cx.args.int_or("linear_before_reset", 0)? != 0,
        couple: cx.args.int_or("input_forget", 0)? != 0,
        clip: cx.args.float_or("clip", 0.0)? as f32,
        wanted: cx.wanted.clone(),
        packed: None,
        lengths: cx.opt(4).map(|o| super::cx::computed(o.ty.dtype)),
    };
    let (wx, rx) = (cx.operand(1)?.clone(), cx.operand(2)?.clone());
    Ok(Plan::lazy(outs, move || {
        if let (Some(w), Some(r)) = (constant_f32(&wx), constant_f32(&rx)) {
            let mut packed = vec![0.0; body.packed_len()];
            body.pack(&w, &r, &mut packed);
            body.packed = Some(packed);
        }
        Ok(Box::new(body))
    })
    .flops(flops))
}

#[derive(Clone)]
struct Recurrent {
    cell: Cell,
    steps: usize,
    batch: usize,
    input: usize,
    hidden: usize,
    ways: usize,
    batchwise: bool,
    reverse: bool,
    activations: Vec<Gate>,
    reset_after: bool,
    couple: bool,
    clip: f32,
    wanted: Vec<usize>,
    packed: Option<Vec<f32>>,
    lengths: Option<DType>,
}

impl Recurrent {
    fn width(&self) -> usize {
        self.cell.gates() * self.hidden
    }

    /// Input and recurrent matrices of one direction.
    fn each_len(&self) -> (usize, usize) {
        (
            packed_len(self.input, self.width()),
            packed_len(self.hidden, self.width()),
        )
    }

    fn packed_len(&self) -> usize {
        let (w, r) = self.each_len();
        self.ways * (w + r)
    }

    fn pack(&self, w: &[f32], r: &[f32], to: &mut [f32]) {
        let ((lw, lr), n) = (self.each_len(), self.width());
        for (d, to) in to.chunks_exact_mut(lw + lr).enumerate() {
            pack(
                &w[d * n * self.input..],
                self.input,
                n,
                1,
                self.input,
                &mut to[..lw],
            );
            pack(
                &r[d * n * self.hidden..],
                self.hidden,
                n,
                1,
                self.hidden,
                &mut to[lw..],
            );
        }
    }

    fn bounded(&self, v: f32) -> f32 {
        if self.clip > 0.0 {
            v.clamp(-self.clip, self.clip)
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
        let n = self.hidden;
        let p = |k: usize, i: usize| peep.get(k * n + i).copied().unwrap_or(0.0);
        for i in 0..n {
            let sum = |k: usize| g[k * n + i] + u[k * n + i];
            match self.cell {
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
                    let forget = if self.couple {
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
        let (n, width) = (self.hidden, self.width());
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
        let per = self.activations.len() / self.ways;
        for (d, b) in (0..self.ways).flat_map(|d| (0..self.batch).map(move |b| (d, b))) {
            let state = if self.batchwise {
                b * self.ways + d
            } else {
                d * self.batch + b
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
            let acts = &self.activations[d * per..];
            let peep: &[f32] = peep.get(d * 3 * n..(d + 1) * 3 * n).unwrap_or_default();
            let len = self.lengths.map_or(self.steps, |dt| {
                super::cx::index_at(lengths, dt, b).clamp(0, self.steps as i64) as usize
            });
            let back = self.reverse || d == 1;
            for k in 0..self.steps {
                let place = if back && k < len { len - 1 - k } else { k };
                let at = if self.batchwise {
                    (b * self.steps + place) * self.ways + d
                } else {
                    (place * self.ways + d) * self.batch + b
                } * n;
                if k >= len {
                    if let Some(y) = y.get_mut(at..at + n) {
                        y.fill(0.0)
                    }
                    continue;
                }
                let from = if self.batchwise {
                    b * self.steps + place
                } else {
                    place * self.batch + b
                } * self.input;
                let extra = Extra {
                    column_bias: Some(wb).filter(|b| !b.is_empty()),
                    ..Extra::default()
                };
                gemm(
                    (1, self.input, width),
                    Left {
                        data: &x[from..],
                        row: self.input,
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
                if self.cell == Cell::Gru && !self.reset_after {
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
        4 * (own + 3 * self.width() + 3 * self.hidden)
    }
}
