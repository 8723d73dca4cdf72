//! Recurrent layers: a group of threads goes through all steps of one sequence, the state in shared memory.

use super::super::recurrent::{Cell, Direction, Gate, RecurrentSpec};
use super::{Gpu, Lowered};
use zbmd_gpu_ir::lang::{Builder, Shared, Ty, Val};
use zbmd_gpu_ir::math::tanh;
use zbmd_gpu_ir::tensor::function::{greatest, least, sigmoid};
use zbmd_gpu_ir::tensor::{Tensor, TensorKernelBuilder, Why, computed};
use zbmd_gpu_ir::{Amount, Grid, KernelPlan};

/// Threads of a group.
const LOCAL: u32 = 128;
/// Most hidden units: two states of them, and one in the making, lie in shared memory.
const MAX_HIDDEN: usize = 1024;

/// An activation of a gate.
fn apply<'k>(gate: Gate, v: Val<'k>) -> Val<'k> {
    let k = v.builder();
    let (zero, one) = (k.f32(0.0), k.f32(1.0));
    match gate {
        Gate::Sigmoid => sigmoid(v),
        Gate::Tanh => tanh(v),
        Gate::Relu => greatest(v, zero),
        Gate::HardSigmoid => greatest(least(k.f32(0.2) * v + k.f32(0.5), one), zero),
        Gate::Softsign => v / (one + v.abs()),
    }
}

/// What every direction and step has.
struct Layer<'k> {
    k: &'k Builder,
    cell: Cell,
    w: Tensor<'k>,
    r: Tensor<'k>,
    bias: Option<Tensor<'k>>,
    x: Tensor<'k>,
    input: Val<'k>,
    hidden: Val<'k>,
    gates: u32,
    h: Shared<'k>,
    clip: f32,
    acts: Vec<Gate>,
}

impl<'k> Layer<'k> {
    fn bounded(&self, v: Val<'k>) -> Val<'k> {
        if self.clip <= 0.0 {
            return v;
        }
        let (low, high) = (self.k.f32(-self.clip), self.k.f32(self.clip));
        greatest(least(v, high), low)
    }

    fn act(&self, i: usize, v: Val<'k>) -> Val<'k> {
        apply(self.acts[i], v)
    }

    /// Gate g of unit u from the input at `from`, with its bias.
    fn of_input(&self, at: &Step<'k>, g: u32, u: Val<'k>) -> Val<'k> {
        let row = at.way * (self.hidden * self.gates) + self.hidden * g + u;
        let sum = self.k.var(self.bias_of(at, g, u));
        let first = row * self.input;
        self.k.times(self.input, |i| {
            let (x, w) = (
                self.x.get(at.firing, at.from + i),
                self.w.get(at.firing, first + i),
            );
            sum.set(self.k.fma(x, w, sum.get()));
        });
        sum.get()
    }

    fn bias_of(&self, at: &Step<'k>, row: u32, u: Val<'k>) -> Val<'k> {
        match self.bias {
            Some(bias) => {
                let each = self.hidden * (2 * self.gates);
                bias.get(at.firing, at.way * each + self.hidden * row + u)
            }
            None => self.k.f32(0.0),
        }
    }

    /// Gate g of unit u from a state in shared memory, with its bias.
    fn of_state(&self, at: &Step<'k>, g: u32, u: Val<'k>, state: Shared<'k>) -> Val<'k> {
        let row = at.way * (self.hidden * self.gates) + self.hidden * g + u;
        let sum = self.k.var(self.bias_of(at, self.gates + g, u));
        let first = row * self.hidden;
        self.k.times(self.hidden, |i| {
            sum.set(
                self.k
                    .fma(state.get(i), self.r.get(at.firing, first + i), sum.get()),
            );
        });
        sum.get()
    }

    fn both(&self, at: &Step<'k>, g: u32, u: Val<'k>) -> Val<'k> {
        self.of_input(at, g, u) + self.of_state(at, g, u, self.h)
    }
}

/// Where a step of a sequence is.
struct Step<'k> {
    firing: Val<'k>,
    way: Val<'k>,
    /// First element of its input.
    from: Val<'k>,
}

impl Gpu<'_> {
    pub(in super::super) fn recurrent(&self, spec: &RecurrentSpec) -> Lowered {
        let cell = spec.cell;
        let batchwise = spec.batchwise;
        let steps = spec.steps;
        let batch = spec.batch;
        let ways = spec.ways;
        let hidden = spec.hidden;
        let input = spec.input;
        let after = spec.reset_after;
        let couple = spec.couple;
        if hidden > MAX_HIDDEN {
            return Err(format!(
                "{hidden} hidden units are more than shared memory holds"
            ));
        }
        let acts = common_activations(spec)?;
        let gates = cell.gates() as u32;
        if computed(self.dtype(0)?)? != Ty::F32 {
            return Err("recurrent layers are computed in f32".to_owned());
        }
        let bench = TensorKernelBuilder::new("recurrent layer", LOCAL);
        let k = &bench.k;
        let bound = |i: usize| -> Result<Option<Tensor<'_>>, Why> {
            self.opt_slot(i)?.map(|s| bench.reads(s)).transpose()
        };
        let (sequence, w, r) = (
            bench.reads(self.slot(0)?)?,
            bench.reads(self.slot(1)?)?,
            bench.reads(self.slot(2)?)?,
        );
        let bias = bound(3)?;
        let lengths = self
            .opt_slot(4)?
            .map(|s| bench.reads_index(s))
            .transpose()?;
        let (h0, c0, peep) = (bound(5)?, bound(6)?, bound(7)?);
        let outs = [self.wanted(0), self.wanted(1), self.wanted(2)];
        let [y, last_h, last_c] = outs.map(|o| o.map(|s| bench.writes(s)).transpose());
        let (y, last_h, last_c) = (y?, last_h?, last_c?);
        let n = hidden as u32;
        let (h, c, next) = (
            k.shared(Ty::F32, n),
            k.shared(Ty::F32, n),
            k.shared(Ty::F32, n),
        );
        let (hidden_on, input_on) = (bench.size(hidden)?, bench.size(input)?);
        let (steps_on, batch_on, ways_on) =
            (bench.size(steps)?, bench.size(batch)?, bench.size(ways)?);
        let layer = Layer {
            k,
            cell,
            w,
            r,
            bias,
            x: sequence,
            input: input_on,
            hidden: hidden_on,
            gates,
            h,
            clip: spec.clip,
            acts,
        };
        k.each_group(k.firings() * ways_on * batch_on, |g| {
            let (b, rest) = (g % batch_on, g / batch_on);
            let (way, firing) = (rest % ways_on, rest / ways_on);
            let state = if batchwise {
                b * ways_on + way
            } else {
                way * batch_on + b
            };
            let state = state * hidden_on;
            k.each_local(hidden_on, |u| {
                h.set(u, start(h0, firing, state + u));
                c.set(u, start(c0, firing, state + u));
            });
            k.barrier();
            let len = match lengths {
                Some(l) => l.index(firing, b).max(k.i32(0)).cast(Ty::U32).min(steps_on),
                None => steps_on,
            };
            k.times(steps_on, |s| {
                let turned = len - 1 - s;
                let place = match spec.direction {
                    Direction::Reverse => k.select(s.lt(len), turned, s),
                    Direction::Bidirectional => k.select(way.ne(k.u32(0)) & s.lt(len), turned, s),
                    Direction::Forward => s,
                };
                let at_y = match batchwise {
                    true => (b * steps_on + place) * ways_on + way,
                    false => (place * ways_on + way) * batch_on + b,
                };
                let from = if batchwise {
                    b * steps_on + place
                } else {
                    place * batch_on + b
                };
                let at = Step {
                    firing,
                    way,
                    from: from * input_on,
                };
                let live = s.lt(len);
                if cell == Cell::Gru && !after {
                    // What the reset gate leaves of the state, before the product of the new gate.
                    k.each_local(hidden_on, |u| {
                        let gate = layer.act(0, layer.bounded(layer.both(&at, 1, u)));
                        c.set(u, gate * h.get(u));
                    });
                    k.barrier();
                }
                k.each_local(hidden_on, |u| {
                    next.set(u, unit(&layer, &at, u, [c, h], (peep, couple, after)));
                });
                k.barrier();
                k.each_local(hidden_on, |u| {
                    let value = k.select(live, next.get(u), h.get(u));
                    h.set(u, value);
                    if let Some(y) = y {
                        y.put(
                            firing,
                            at_y * hidden_on + u,
                            k.select(live, value, k.f32(0.0)),
                        );
                    }
                });
                k.barrier();
            });
            k.each_local(hidden_on, |u| {
                if let Some(last) = last_h {
                    last.put(firing, state + u, h.get(u));
                }
                if let Some(last) = last_c {
                    last.put(firing, state + u, c.get(u));
                }
            });
            k.barrier();
        });
        if lengths.is_some() && cell == Cell::Lstm {
            return Err("no GPU kernel for LSTM sequences of different lengths".to_owned());
        }
        let grid = Grid::Groups(Amount::each((ways * batch) as u64));
        Ok(bench.finish(KernelPlan::default(), grid))
    }
}

/// The activations of the first way; the second must have the same.
fn common_activations(spec: &RecurrentSpec) -> Result<Vec<Gate>, Why> {
    let per_way = spec.activations.len() / spec.ways;
    let mut ways = spec.activations.chunks(per_way);
    let first = ways.next().unwrap_or_default();
    if ways.any(|way| way != first) {
        return Err("no GPU kernel for directions with different activations".to_owned());
    }
    Ok(first.to_vec())
}

/// Where a state begins: 0 where nothing is given.
fn start<'k>(t: Option<Tensor<'k>>, firing: Val<'k>, at: Val<'k>) -> Val<'k> {
    t.map_or_else(|| at.builder().f32(0.0), |t| t.get(firing, at))
}

/// The next hidden state of a unit; the cell state of an LSTM is kept in shared memory.
fn unit<'k>(
    layer: &Layer<'k>,
    at: &Step<'k>,
    u: Val<'k>,
    [c, h]: [Shared<'k>; 2],
    (peep, couple, after): (Option<Tensor<'k>>, bool, bool),
) -> Val<'k> {
    let k = layer.k;
    let one = k.f32(1.0);
    match layer.cell {
        Cell::Rnn => layer.act(0, layer.bounded(layer.both(at, 0, u))),
        Cell::Gru => {
            let z = layer.act(0, layer.bounded(layer.both(at, 0, u)));
            let fresh = match after {
                true => {
                    let reset = layer.act(0, layer.bounded(layer.both(at, 1, u)));
                    layer.of_input(at, 2, u) + reset * layer.of_state(at, 2, u, h)
                }
                false => layer.of_input(at, 2, u) + layer.of_state(at, 2, u, c),
            };
            (one - z) * layer.act(1, layer.bounded(fresh)) + z * h.get(u)
        }
        Cell::Lstm => {
            let old = c.get(u);
            let seen = |g: u32, v: Val<'k>, of: Val<'k>| match peep {
                Some(p) => {
                    let place = at.way * (layer.hidden * 3) + layer.hidden * g + u;
                    v + p.get(at.firing, place) * of
                }
                None => v,
            };
            let gate = |g: u32, of: Val<'k>| {
                layer.act(0, layer.bounded(seen(g, layer.both(at, g, u), of)))
            };
            let input = gate(0, old);
            let forget = if couple { one - input } else { gate(2, old) };
            let new = forget * old + input * layer.act(1, layer.bounded(layer.both(at, 3, u)));
            let out = layer.act(0, layer.bounded(seen(1, layer.both(at, 1, u), new)));
            c.set(u, new);
            out * layer.act(2, new)
        }
    }
}
