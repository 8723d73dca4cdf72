//! Convolutions of planes with one filter for each channel.

use super::super::cx::{Body, Tensors, volume};
use super::super::gemm::{Act, PANEL};
use super::super::window::Window;
use super::ConvShape;
use super::gathered::Padded;
use zbmd_op::simd::{self, Isa, Loop, fma};

/// One filter for each channel, row by row.
pub(super) struct Depthwise {
    shape: ConvShape,
    padded: Padded,
    act: Act,
}

impl Depthwise {
    pub(super) fn new(shape: ConvShape, act: Act) -> Self {
        let mut padded = Padded::new(&shape.window);
        // Vectors of outputs read a little further than the last window.
        let vector_reach = PANEL * shape.window.stride[2];
        padded.plane = volume(&padded.dims) + vector_reach;
        padded.any = true;
        Self { shape, padded, act }
    }
}

struct Plane<'a> {
    /// The padded plane.
    input: &'a [f32],
    taps: &'a [f32],
    bias: f32,
    output: &'a mut [f32],
    window: &'a Window,
    padded: &'a Padded,
    act: Act,
}

impl Plane<'_> {
    /// Sixteen outputs of a row: one vector of sums, to which each tap adds its products.
    #[inline(always)]
    fn sixteen_outputs<const FMA: bool>(&self, row: usize, column: usize) -> [f32; PANEL] {
        let window = self.window;
        let mut sums = [self.bias; PANEL];
        let mut tap_number = 0;
        for ky in 0..window.kernel[1] {
            let input_row = row * window.stride[1] + ky * window.dilation[1];
            // The plane is padded: places of the window count from its border, and none is outside.
            let row_start = input_row * self.padded.dims[2];

            for kx in 0..window.kernel[2] {
                let start = row_start + column * window.stride[2] + kx * window.dilation[2];
                let tap = self.taps[tap_number];
                tap_number += 1;

                // Slices of known length for the common strides, so that the sums stay in registers.
                match window.stride[2] {
                    1 => {
                        let elements = &self.input[start..start + PANEL];
                        sums.iter_mut()
                            .zip(elements)
                            .for_each(|(sum, &x)| *sum = fma::<FMA>(x, tap, *sum));
                    }
                    2 => {
                        let (pairs, _) = self.input[start..start + 2 * PANEL].as_chunks::<2>();
                        sums.iter_mut()
                            .zip(pairs)
                            .for_each(|(sum, pair)| *sum = fma::<FMA>(pair[0], tap, *sum));
                    }
                    stride => {
                        let elements = self.input[start..].iter().step_by(stride);
                        sums.iter_mut()
                            .zip(elements)
                            .for_each(|(sum, &x)| *sum = fma::<FMA>(x, tap, *sum));
                    }
                }
            }
        }
        self.act.apply::<FMA>(&mut sums);
        sums
    }
}

impl Loop for Plane<'_> {
    type Out = ();
    #[inline(always)]
    fn run<const FMA: bool>(mut self, _: Isa<FMA>) {
        let [_, height, width] = self.window.output;
        let output = std::mem::take(&mut self.output);
        for (row, line) in (0..height).zip(output.chunks_exact_mut(width)) {
            for (i, outputs) in line.chunks_mut(PANEL).enumerate() {
                let sums = self.sixteen_outputs::<FMA>(row, i * PANEL);
                outputs.copy_from_slice(&sums[..outputs.len()]);
            }
        }
    }
}

impl Body for Depthwise {
    fn run(&self, tensors: &mut Tensors<'_>) {
        let input = tensors.get::<f32>(0);
        let weights = tensors.get::<f32>(1);
        let bias = tensors.opt::<f32>(2);
        let added = tensors.opt::<f32>(3);
        let output = tensors.out::<f32>(0);
        let padded = tensors.scratch::<f32>();

        let window = &self.shape.window;
        let output_plane = window.output_plane();
        let kernel_elements = window.kernel_elements();
        // What is added comes before the activation, so that this waits until then.
        let act = if added.is_some() { Act::None } else { self.act };

        let input_planes = input.chunks_exact(window.input_plane());
        let output_planes = output.chunks_exact_mut(output_plane);
        for (i, (plane_input, plane_output)) in input_planes.zip(output_planes).enumerate() {
            let channel = i % self.shape.channels;
            self.padded
                .fill(window, plane_input, &mut padded[..self.padded.plane]);
            simd::dispatch(Plane {
                input: padded,
                taps: &weights[channel * kernel_elements..][..kernel_elements],
                bias: bias.map_or(0.0, |b| b[channel]),
                output: plane_output,
                window,
                padded: &self.padded,
                act,
            });

            if let Some(added) = added {
                plane_output
                    .iter_mut()
                    .zip(&added[i * output_plane..])
                    .for_each(|(sum, term)| *sum += term);
                self.act.apply::<false>(plane_output);
            }
        }
    }

    fn scratch_bytes(&self) -> usize {
        4 * self.padded.plane
    }
}
