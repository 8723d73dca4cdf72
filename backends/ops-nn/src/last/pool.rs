//! Pools: the greatest or the mean of each window, or of each channel.
#![expect(unsafe_code, reason = "vector instructions over checked slices")]

use std::ops::Range;

use zbmd_ir::DType;

use super::super::cx::Planned;
use super::super::cx::{Body, Cx, Plan, Tensors, token};
use super::super::gemm::PANEL;
use super::super::num::Num;
use super::super::vector::{Vector, Wide, run_wide};
use super::super::window::Window;
use super::{Image, Near, image, pixels, under};
use zbmd_op::team;

/// The greatest or the mean of each window.
pub(in super::super) fn pool(cx: &Cx<'_>, mean: bool) -> Planned {
    let [batch, h, w, channels] = image(cx)?;
    let kernel = cx.sizes("kernel_shape", 2, 1)?;
    let window = Window::new(cx, &[h, w], &kernel)?;
    let out = [batch, window.output[1], window.output[2], channels];
    let padding = cx.flag("count_include_pad", false)?;
    let flops = 3.0 * (out.iter().product::<usize>() * kernel[0] * kernel[1]) as f64;
    let body = Pool {
        image: Image {
            batch,
            channels,
            window,
        },
        mean,
        padding,
    };
    Ok(Plan::new(vec![token(DType::F32, &out)], body).flops(flops))
}

/// The mean of each channel.
pub(in super::super) fn global(cx: &Cx<'_>) -> Planned {
    let [batch, h, w, channels] = image(cx)?;
    if h * w == 0 {
        return Err(cx.refuse(0, "is empty", "give it elements"));
    }
    let out = vec![token(DType::F32, &[batch, 1, 1, channels])];
    struct Global(usize, usize);
    impl Body for Global {
        fn run(&self, t: &mut Tensors<'_>) {
            let (x, y) = (t.get::<f32>(0), t.out::<f32>(0));
            let Global(pixels, c) = *self;
            for (x, y) in x.chunks_exact(pixels * c).zip(y.chunks_exact_mut(c)) {
                y.fill(0.0);
                for x in x.chunks_exact(c) {
                    y.iter_mut().zip(x).for_each(|(y, x)| *y += x);
                }
                y.iter_mut().for_each(|y| *y /= pixels as f32);
            }
        }
    }
    let flops = (batch * h * w * channels) as f64;
    Ok(Plan::new(out, Global(h * w, channels)).flops(flops))
}

struct Pool {
    image: Image,
    mean: bool,
    /// Whether padding counts as elements of a mean.
    padding: bool,
}

#[derive(Clone)]
struct Pooled<'a> {
    p: &'a Pool,
    x: &'a [f32],
    /// First element of the result, and its elements.
    y: *mut f32,
    out: usize,
    /// Those of the result that are made.
    lines: Range<usize>,
}

// SAFETY: as of `Channels`.
unsafe impl Sync for Pooled<'_> {}

impl Pooled<'_> {
    fn check(&self) {
        let (plane, out, _) = self.p.image.window.sizes();
        let c = self.p.image.channels;
        assert!(
            self.x.len() == plane * c && self.out == out * c,
            "an image has another size"
        );
    }

    fn start(&self) -> f32 {
        if self.p.mean { 0.0 } else { f32::NEG_INFINITY }
    }

    /// One channel of a pixel.
    fn one(&self, o: [usize; 2], (ys, xs): Near<'_>, by: f32, i: usize) -> f32 {
        let (w, c) = (&self.p.image.window, self.p.image.channels);
        let mut sum = self.start();
        for (ky, kx) in ys.clone().flat_map(|ky| xs.clone().map(move |kx| (ky, kx))) {
            let x = self.x[under(w, o, [ky, kx]) * c + i];
            sum = if self.p.mean {
                sum + x
            } else {
                Num::max(sum, x)
            };
        }
        if self.p.mean { sum * by } else { sum }
    }
}

impl Wide for Pooled<'_> {
    #[inline(always)]
    unsafe fn run<V: Vector, const FMA: bool>(self) {
        let (w, c) = (&self.p.image.window, self.p.image.channels);
        pixels(w, self.lines.clone(), |n, o, [ys, xs]| {
            let count = if self.p.padding {
                (1..3).map(|d| w.reached(d, o[d - 1])).product()
            } else {
                ys.len() * xs.len()
            };
            let by = 1.0 / count as f32;
            let mut first = 0;
            // SAFETY: `check` has seen that the images have these sizes; channels end at c.
            unsafe {
                while first + 4 * PANEL <= c {
                    pooled::<V, 4>(&self, n, o, (&ys, &xs), by, first);
                    first += 4 * PANEL;
                }
                while first + PANEL <= c {
                    pooled::<V, 1>(&self, n, o, (&ys, &xs), by, first);
                    first += PANEL;
                }
                if first < c && c >= PANEL {
                    // The last vector overlaps the one before, and gives the same there.
                    pooled::<V, 1>(&self, n, o, (&ys, &xs), by, c - PANEL);
                    first = c;
                }
            }
            for i in first..c {
                let y = self.one(o, (&ys, &xs), by, i);
                // SAFETY: n is an output pixel and i a channel.
                unsafe { *self.y.add(n * c + i) = y };
            }
        });
    }
}

/// P vectors of channels of a pixel.
///
/// # Safety
/// The sizes are as [`Pooled::check`] wants them, there are so many channels, and the processor has the vector's
/// instructions.
#[inline(always)]
#[expect(
    clippy::needless_range_loop,
    reason = "the indices name registers, and are unrolled"
)]
unsafe fn pooled<V: Vector, const P: usize>(
    at: &Pooled<'_>,
    n: usize,
    o: [usize; 2],
    (ys, xs): Near<'_>,
    by: f32,
    first: usize,
) {
    let (w, c) = (&at.p.image.window, at.p.image.channels);
    // SAFETY: the caller's promise; `ys` and `xs` keep to pixels of the image.
    unsafe {
        let mut sums = [V::load([at.start(); PANEL].as_ptr()); P];
        for ky in ys.start..ys.end {
            for kx in xs.start..xs.end {
                let x = at.x.as_ptr().add(under(w, o, [ky, kx]) * c + first);
                for v in 0..P {
                    let x = V::load(x.add(v * PANEL));
                    sums[v] = if at.p.mean {
                        sums[v].add(x)
                    } else {
                        sums[v].greater(x)
                    };
                }
            }
        }
        for v in 0..P {
            let sum = if at.p.mean {
                V::zero().add_product(by, sums[v])
            } else {
                sums[v]
            };
            sum.store(at.y.add(n * c + first + v * PANEL));
        }
    }
}

impl Body for Pool {
    fn run(&self, t: &mut Tensors<'_>) {
        let (x, y) = (t.get::<f32>(0), t.out::<f32>(0));
        let (plane, out, _) = self.image.window.sizes();
        let c = self.image.channels;
        for (x, y) in x.chunks_exact(plane * c).zip(y.chunks_exact_mut(out * c)) {
            let (w, lines) = (&self.image.window, 0..self.image.window.output[1]);
            let job = Pooled {
                p: self,
                x,
                y: y.as_mut_ptr(),
                out: y.len(),
                lines,
            };
            job.check();
            team::share(
                job.out * w.kernel[1] * w.kernel[2],
                job.lines.end,
                1,
                &|lines| {
                    // SAFETY: `check` has seen that the images have the sizes that the code relies on; lines are others.
                    unsafe {
                        run_wide(Pooled {
                            lines,
                            ..job.clone()
                        })
                    }
                },
            );
        }
    }
}
