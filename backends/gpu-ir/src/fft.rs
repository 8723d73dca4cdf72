//! Fourier transforms: one group a row, passes of Stockham's method in shared memory (Cochran et al. 1967), radix 4
//! and 2 in registers, any other factor as a sum.

use super::lang::{Builder, Mem, Shared, Ty, Val};
use super::plan::{Amount, Grid, KernelPlan, Operand, table};
use super::wide::Cx;

/// Which transform, along rows of n elements.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Transform {
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
fn radix_factors(n: usize) -> Option<Vec<usize>> {
    let mut unfactored = n;
    let mut radices = Vec::new();
    for radix in [4, 2].into_iter().chain(3..=MAX_FACTOR) {
        while unfactored.is_multiple_of(radix) {
            radices.push(radix);
            unfactored /= radix;
        }
    }

    (unfactored == 1).then_some(radices)
}

/// The kernel for `rows` rows of `n` elements in each token; none for long rows and large prime factors.
pub fn fft(transform: Transform, n: usize, rows: u64) -> Option<KernelPlan> {
    let radices = radix_factors(n).filter(|_| n <= MAX_LEN)?;
    let is_inverse = matches!(transform, Transform::Inverse | Transform::RealInverse);
    // A thread computes about four elements of each pass.
    let group_threads = (n as u32 / 4).next_power_of_two().clamp(16, 256);
    let k = Builder::new("fft", group_threads);
    let real_in = transform == Transform::Real;
    let real_out = transform == Transform::RealInverse;
    let memory_type = |real: bool| if real { Mem::F32 } else { Mem::Pair };
    let input_binding = k.reads(memory_type(real_in));
    let root_binding = k.reads(Mem::Pair);
    let output_binding = k.writes(memory_type(real_out));
    let row_len = n as u32;
    let bin_count = row_len / 2 + 1;

    // Real and imaginary parts are separate arrays, and each pass reads one pair of them and writes the other.
    let mut row = Row {
        k: &k,
        n: row_len,
        turns: root_binding,
        forward: !is_inverse,
        from: [k.shared(Ty::F32, row_len), k.shared(Ty::F32, row_len)],
        to: [k.shared(Ty::F32, row_len), k.shared(Ty::F32, row_len)],
    };

    let rows32 = k.spec(u32::try_from(rows).ok()?);
    k.each_group(k.firings() * rows32, |at| {
        match transform {
            Transform::RealInverse => row.load_half(input_binding, at * bin_count, bin_count),
            _ => row.load_all(input_binding, at, real_in),
        }
        k.barrier();

        // Each pass joins as many transforms as its radix has inputs.
        let mut radix_product = 1;
        for &radix in &radices {
            row.run_pass(radix as u32, radix_product);
            k.barrier();
            radix_product *= radix as u32;
            std::mem::swap(&mut row.from, &mut row.to);
        }

        let result_len = if real_in { bin_count } else { row_len };
        row.store_result(output_binding, at, result_len, real_out);
        k.barrier();

        // The next row begins with the same arrays, whichever was written last.
        if radices.len() % 2 == 1 {
            std::mem::swap(&mut row.from, &mut row.to);
        }
    });

    let port_operands = [Operand::Input(0), Operand::Const(0), Operand::Output(0)];
    let kernel_plan = KernelPlan::one(k.finish(), &port_operands, Grid::Groups(Amount::each(rows)));
    Some(kernel_plan.constants(vec![table(unit_roots(n, is_inverse))]))
}

/// e^{∓j2πi/n} for every i.
fn unit_roots(n: usize, inverse: bool) -> Vec<f32> {
    let sign = if inverse { 1.0 } else { -1.0 };
    let root_parts = |i: usize| {
        let (sin_part, cos_part) = (std::f64::consts::TAU * i as f64 / n as f64).sin_cos();
        [cos_part as f32, (sign * sin_part) as f32]
    };
    (0..n).flat_map(root_parts).collect()
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

    /// Row `row` of what is bound.
    fn load_all(&self, x: u32, row: Val<'k>, is_real: bool) {
        let k = self.k;
        k.each_local(k.u32(self.n), |i| {
            let element = match is_real {
                true => Cx::new(k.load(x, row * self.n + i), k.f32(0.0)),
                false => Cx::load(k, x, row * self.n + i),
            };
            self.set(self.from, i, element);
        });
    }

    /// The first `len` elements, to row `row` of what is bound.
    fn store_result(&self, y: u32, row: Val<'k>, len: u32, is_real: bool) {
        let k = self.k;
        // Only the inverse is scaled, so that both in a row give the input back.
        let scale = match self.forward {
            true => k.f32(1.0),
            false => k.f32(1.0 / self.n as f32),
        };
        k.each_local(k.u32(len), |i| {
            let element = self.get(self.from, i);
            let scaled_element = match self.forward {
                true => element,
                false => element.scale(scale),
            };
            match is_real {
                true => k.store(y, row * len + i, scaled_element.re),
                false => scaled_element.store(y, row * len + i),
            }
        });
    }

    /// The conjugate-symmetric row of which `bins` frequencies are given.
    fn load_half(&self, x: u32, first: Val<'k>, bins: u32) {
        let k = self.k;
        let n = self.n;
        k.each_local(k.u32(bins), |i| {
            let half_element = Cx::load(k, x, first + i);
            // The frequencies that are their own mirror image are real.
            let is_own_mirror = i.eq(k.u32(0)) | (i * 2).eq(k.u32(n));
            let half_element = Cx::new(
                half_element.re,
                k.select(is_own_mirror, k.f32(0.0), half_element.im),
            );
            self.set(self.from, i, half_element);
            k.if_(!is_own_mirror, || {
                self.set(self.from, k.u32(n) - i, half_element.conj())
            });
        });
    }

    /// One pass: butterflies of `radix` elements, `done` being the product of the radices before.
    fn run_pass(&self, radix: u32, done: u32) {
        if radix == 4 || radix == 2 {
            self.run_butterflies(radix, done);
        } else {
            self.radix_sums(radix, done);
        }
    }

    fn run_butterflies(&self, radix: u32, done: u32) {
        let k = self.k;
        let n = self.n;
        let part_len = n / radix;

        k.each_local(k.u32(part_len), |j| {
            let index_in_part = j % done;
            // Twiddle factors are powers of one root, stored for all of the row.
            let root_index = index_in_part * (n / (done * radix));
            let radix_inputs: Vec<Cx<'k>> = (0..radix)
                .map(|p| {
                    let input_element = self.get(self.from, j + p * part_len);
                    if p == 0 || done == 1 {
                        return input_element;
                    }
                    input_element.times(Cx::load(k, self.turns, root_index * p))
                })
                .collect();

            // Stockham's order: results are written where the next pass reads them in order.
            let output_index = (j / done) * (done * radix) + index_in_part;
            let results = if radix == 4 {
                self.radix_four(&radix_inputs)
            } else {
                vec![
                    radix_inputs[0].plus(radix_inputs[1]),
                    radix_inputs[0].minus(radix_inputs[1]),
                ]
            };
            for (q, input_element) in results.into_iter().enumerate() {
                self.set(self.to, output_index + done * q as u32, input_element);
            }
        });
    }

    fn radix_four(&self, v: &[Cx<'k>]) -> Vec<Cx<'k>> {
        let even_sum = v[0].plus(v[2]);
        let even_difference = v[0].minus(v[2]);
        let odd_sum = v[1].plus(v[3]);
        let odd_difference = v[1].minus(v[3]).turn();
        let (second_output, fourth_output) = if self.forward {
            (
                even_difference.minus(odd_difference),
                even_difference.plus(odd_difference),
            )
        } else {
            (
                even_difference.plus(odd_difference),
                even_difference.minus(odd_difference),
            )
        };
        vec![
            even_sum.plus(odd_sum),
            second_output,
            even_sum.minus(odd_sum),
            fourth_output,
        ]
    }

    /// A thread for each result: Σ v[p]·root^(p·…), powers taken modulo n.
    fn radix_sums(&self, radix: u32, done: u32) {
        let k = self.k;
        let n = self.n;
        let part_len = n / radix;

        k.each_local(k.u32(n), |e| {
            let butterfly_index = e % part_len;
            let output_part = e / part_len;
            let index_in_part = butterfly_index % done;
            let root_index = index_in_part * (n / (done * radix)) + output_part * part_len;
            let [re_sum, im_sum] = [k.var(k.f32(0.0)), k.var(k.f32(0.0))];

            k.times(k.u32(radix), |p| {
                let root_power = Cx::load(k, self.turns, (root_index * p) % n);
                let input_element = self
                    .get(self.from, butterfly_index + p * part_len)
                    .times(root_power);
                re_sum.set(re_sum.get() + input_element.re);
                im_sum.set(im_sum.get() + input_element.im);
            });

            let output_index =
                (butterfly_index / done) * (done * radix) + index_in_part + output_part * done;
            self.set(self.to, output_index, Cx::new(re_sum.get(), im_sum.get()));
        });
    }
}
