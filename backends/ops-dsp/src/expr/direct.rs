//! Magnitudes and powers of complex numbers, the programs of one instruction that do so little for an element that columns
//! would cost as much. Here they are one loop over the whole call, in the widest vectors, with the bits that [`super::run`]
//! gives: square roots are correctly rounded everywhere.

use num_complex::Complex32;

use super::{Code, ComplexFn, Instr, Program, Src};
use zbmd_op::kernel::Io;
use zbmd_op::simd::{self, Isa, Loop};

/// Runs all firings of a call, if the program is one of these; whether it is.
pub(super) fn run(program: &Program, io: &mut Io<'_>) -> bool {
    let [
        Instr {
            code: Code::Cx(function),
            args,
            ..
        },
    ] = program.instrs[..]
    else {
        return false;
    };
    let Src::Input(input) = args[0] else {
        return false;
    };
    let is_root = match function {
        ComplexFn::Abs => true,
        ComplexFn::Norm => false,
        _ => return false,
    };

    let y = io.output::<f32>(0);
    let x = io.input::<Complex32>(usize::from(input));
    simd::dispatch_widest(Powers { x, y, is_root });
    true
}

/// `y[k] = |x[k]|²`, or its root.
struct Powers<'a> {
    x: &'a [Complex32],
    y: &'a mut [f32],
    is_root: bool,
}

impl Loop for Powers<'_> {
    type Out = ();
    #[inline(always)]
    fn run<const FMA: bool>(self, _: Isa<FMA>) {
        let power = |z: &Complex32| z.re * z.re + z.im * z.im;
        if self.is_root {
            #[cfg(target_arch = "x86_64")]
            let done = super::magnitude::run(self.x, self.y);
            #[cfg(not(target_arch = "x86_64"))]
            let done = 0;
            each(&self.x[done..], &mut self.y[done..], |z| power(z).sqrt());
        } else {
            each(self.x, self.y, power);
        }
    }
}

/// `y[k] = f(x[k])`. As parameters, unlike as fields, slices are known not to overlap.
#[inline(always)]
fn each(x: &[Complex32], y: &mut [f32], f: impl Fn(&Complex32) -> f32) {
    for (y, z) in y.iter_mut().zip(x) {
        *y = f(z);
    }
}
