//! Fourier transforms: one group a row, passes of Stockham's method in shared memory (Cochran et al. 1967), radix 4
//! and 2 in registers, any other factor as a sum.

use super::lang::{Builder, Mem, Shared, Ty, Val};
use super::plan::{Amount, Grid, KernelPlan, Operand, table};
use super::wide::Cx;

/// Which transform, along rows of n elements.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Transform {
    /// From complex to complex numbers, not scaled.
    Forward,
    /// The inverse, divided by n.
    Inverse,
    /// From real numbers to the n/2 + 1 non-negative frequencies.
    Real,
    /// And back.
    RealInverse,
}

/// Longest row: two copies of it fill the shared memory of a small device.
const MAX_LEN: usize = 1024;
/// Largest prime factor: its pass costs as many products for each element.
const MAX_FACTOR: usize = 127;

/// The radices of the passes; none if a prime factor is too large.
fn factors(n: usize) -> Option<Vec<usize>> {
    let (mut rest, mut radices) = (n, Vec::new());
    for radix in [4, 2].into_iter().chain(3..=MAX_FACTOR) {
        while rest.is_multiple_of(radix) {
            radices.push(radix);
            rest /= radix;
        }
    }
    (rest == 1).then_some(radices)
}

/// The kernel for `rows` rows of `n` elements in each token; none for long rows and large prime factors.
pub(crate) fn fft(transform: Transform, n: usize, rows: u64) -> Option<KernelPlan> {
    let radices = factors(n).filter(|_| n <= MAX_LEN)?;
    let inverse = matches!(transform, Transform::Inverse | Transform::RealInverse);
    let threads = (n as u32 / 4).next_power_of_two().clamp(16, 256);
    let k = Builder::new("fft", threads);
    let (real_in, real_out) = (
        transform == Transform::Real,
        transform == Transform::RealInverse,
    );
    let mem = |real: bool| if real { Mem::F32 } else { Mem::Pair };
    let (x, turns, y) = (
        k.reads(mem(real_in)),
        k.reads(Mem::Pair),
        k.writes(mem(real_out)),
    );
    let len = n as u32;
    let bins = len / 2 + 1;
    let mut row = Row {
        k: &k,
        n: len,
        turns,
        forward: !inverse,
        from: [k.shared(Ty::F32, len), k.shared(Ty::F32, len)],
        to: [k.shared(Ty::F32, len), k.shared(Ty::F32, len)],
    };
    let rows32 = k.spec(u32::try_from(rows).ok()?);
    k.each_group(k.firings() * rows32, |at| {
        match transform {
            Transform::RealInverse => row.load_half(x, at * bins, bins),
            _ => k.each_local(k.u32(len), |i| {
                let z = match real_in {
                    true => Cx::new(k.load(x, at * len + i), k.f32(0.0)),
                    false => Cx::load(&k, x, at * len + i),
                };
                row.set(row.from, i, z);
            }),
        }
        k.barrier();
        let mut done = 1;
        for &radix in &radices {
            row.pass(radix as u32, done);
            k.barrier();
            done *= radix as u32;
            std::mem::swap(&mut row.from, &mut row.to);
        }
        let scale = k.f32(if inverse { 1.0 / n as f32 } else { 1.0 });
        let count = if real_in { bins } else { len };
        k.each_local(k.u32(count), |i| {
            let z = row.get(row.from, i);
            let z = if inverse { z.scale(scale) } else { z };
            match real_out {
                true => k.store(y, at * count + i, z.re),
                false => z.store(y, at * count + i),
            }
        });
        k.barrier();
        if radices.len() % 2 == 1 {
            std::mem::swap(&mut row.from, &mut row.to);
        }
    });
    let operands = [Operand::Input(0), Operand::Const(0), Operand::Output(0)];
    let plan = KernelPlan::one(k.finish(), &operands, Grid::Groups(Amount::each(rows)));
    Some(plan.constants(vec![table(roots(n, inverse))]))
}

/// e^{∓j2πi/n} for every i.
fn roots(n: usize, inverse: bool) -> Vec<f32> {
    let sign = if inverse { 1.0 } else { -1.0 };
    let root = |i: usize| {
        let (sin, cos) = (std::f64::consts::TAU * i as f64 / n as f64).sin_cos();
        [cos as f32, (sign * sin) as f32]
    };
    (0..n).flat_map(root).collect()
}

/// A row in shared memory, and a second one.
struct Row<'k> {
    k: &'k Builder,
    n: u32,
    turns: u32,
    forward: bool,
    from: [Shared<'k>; 2],
    to: [Shared<'k>; 2],
}

impl<'k> Row<'k> {
    fn set(&self, row: [Shared<'k>; 2], at: Val<'k>, z: Cx<'k>) {
        row[0].set(at, z.re);
        row[1].set(at, z.im);
    }

    fn get(&self, row: [Shared<'k>; 2], at: Val<'k>) -> Cx<'k> {
        Cx::new(row[0].get(at), row[1].get(at))
    }

    /// The conjugate-symmetric row of which `bins` frequencies are given.
    fn load_half(&self, x: u32, first: Val<'k>, bins: u32) {
        let (k, n) = (self.k, self.n);
        k.each_local(k.u32(bins), |i| {
            let z = Cx::load(k, x, first + i);
            // The frequencies that are their own mirror image are real.
            let own = i.eq(k.u32(0)) | (i * 2).eq(k.u32(n));
            let z = Cx::new(z.re, k.select(own, k.f32(0.0), z.im));
            self.set(self.from, i, z);
            k.if_(!own, || self.set(self.from, k.u32(n) - i, z.conj()));
        });
    }

    /// One pass: butterflies of `radix` elements, `done` being the product of the radices before.
    fn pass(&self, radix: u32, done: u32) {
        if radix == 4 || radix == 2 {
            self.butterflies(radix, done);
        } else {
            self.sums(radix, done);
        }
    }

    fn butterflies(&self, radix: u32, done: u32) {
        let (k, n) = (self.k, self.n);
        let part = n / radix;
        k.each_local(k.u32(part), |j| {
            let at = j % done;
            let turn = at * (n / (done * radix));
            let v: Vec<Cx<'k>> = (0..radix)
                .map(|p| {
                    let z = self.get(self.from, j + p * part);
                    if p == 0 || done == 1 {
                        return z;
                    }
                    z.times(Cx::load(k, self.turns, turn * p))
                })
                .collect();
            let out = (j / done) * (done * radix) + at;
            let results = if radix == 4 {
                self.four(&v)
            } else {
                vec![v[0].plus(v[1]), v[0].minus(v[1])]
            };
            for (q, z) in results.into_iter().enumerate() {
                self.set(self.to, out + done * q as u32, z);
            }
        });
    }

    fn four(&self, v: &[Cx<'k>]) -> Vec<Cx<'k>> {
        let (a, b) = (v[0].plus(v[2]), v[0].minus(v[2]));
        let (c, d) = (v[1].plus(v[3]), v[1].minus(v[3]).turn());
        let (second, fourth) = if self.forward {
            (b.minus(d), b.plus(d))
        } else {
            (b.plus(d), b.minus(d))
        };
        vec![a.plus(c), second, a.minus(c), fourth]
    }

    /// A thread for each result: Σ v[p]·root^(p·…), powers taken modulo n.
    fn sums(&self, radix: u32, done: u32) {
        let (k, n) = (self.k, self.n);
        let part = n / radix;
        k.each_local(k.u32(n), |e| {
            let (j, q) = (e % part, e / part);
            let at = j % done;
            let turn = at * (n / (done * radix)) + q * part;
            let [re, im] = [k.var(k.f32(0.0)), k.var(k.f32(0.0))];
            k.times(k.u32(radix), |p| {
                let root = Cx::load(k, self.turns, (turn * p) % n);
                let z = self.get(self.from, j + p * part).times(root);
                re.set(re.get() + z.re);
                im.set(im.get() + z.im);
            });
            let out = (j / done) * (done * radix) + at + q * done;
            self.set(self.to, out, Cx::new(re.get(), im.get()));
        });
    }
}
