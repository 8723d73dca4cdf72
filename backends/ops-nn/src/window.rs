//! Windows that slide over the spatial dimensions of a tensor: sizes, padding, places. Shared by convolutions and
//! pools.

use super::attributes;
use super::cx::{Cx, volume};
use zbmd_op::OpError;

/// Windows over up to three spatial dimensions; missing ones in front are 1 wide.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Window {
    /// Spatial dimensions that the tensor really has.
    pub(crate) rank: usize,
    pub(crate) input: [usize; 3],
    pub(crate) output: [usize; 3],
    pub(crate) kernel: [usize; 3],
    pub(crate) stride: [usize; 3],
    pub(crate) dilation: [usize; 3],
    /// Padding before the first element.
    pub(crate) before: [usize; 3],
    /// Padding behind the last element, as declared.
    pub(crate) after: [usize; 3],
}

/// Numbers for each spatial dimension, with `fill` for those in front that are missing.
pub(crate) fn in_three_dims(values: &[usize], fill: usize) -> [usize; 3] {
    let mut all_values = [fill; 3];
    all_values[3 - values.len()..].copy_from_slice(values);
    all_values
}

/// Padding of one dimension.
pub(crate) struct SidePadding {
    pub(crate) before: usize,
    pub(crate) after: usize,
}

/// Padding of so many elements on both sides; an odd one goes behind where `upper`, and before otherwise.
pub(crate) fn center_padding(total: usize, upper: bool) -> SidePadding {
    let smaller = total / 2;
    let larger = total - smaller;
    SidePadding {
        before: if upper { smaller } else { larger },
        after: if upper { larger } else { smaller },
    }
}

/// Elements along a padded dimension, at most.
const MAX_SIDE: usize = 1 << 24;

/// One spatial dimension, before its output is known.
struct Side {
    input: usize,
    stride: usize,
    /// Elements that a window covers, gaps included.
    reach: usize,
}

impl Side {
    /// Windows of padding that is given.
    fn padded_output(&self, padding: &SidePadding, ceil_mode: bool) -> Result<usize, OpError> {
        let padded = self.input + padding.before + padding.after;
        let Some(room) = padded.checked_sub(self.reach) else {
            let reach = self.reach;
            return Err(Cx::other(
                format!("a window of {reach} does not fit into {padded} elements"),
                "add padding, or take a smaller kernel",
            ));
        };
        if !ceil_mode {
            return Ok(room / self.stride + 1);
        }

        // A window that would begin in the padding behind is left out.
        let last = room.div_ceil(self.stride);
        let begins_inside = last * self.stride < self.input + padding.before;
        Ok(if begins_inside { last + 1 } else { last })
    }

    /// As many windows as steps fit into the input.
    fn same_output(&self) -> usize {
        self.input.div_ceil(self.stride)
    }

    /// Padding under which there are [`Self::same_output`] windows.
    fn same_padding(&self, upper: bool) -> SidePadding {
        let last_window = (self.same_output() - 1) * self.stride;
        let total = (last_window + self.reach).saturating_sub(self.input);
        center_padding(total, upper)
    }
}

impl Window {
    /// The windows of a convolution or pool by its parameters `strides`, `dilations`, `pads`, `auto_pad`, `ceil_mode`.
    pub(crate) fn new(cx: &Cx<'_>, input: &[usize], kernel: &[usize]) -> Result<Self, OpError> {
        let rank = input.len();
        let is_sound = (1..=3).contains(&rank)
            && kernel.len() == rank
            && !kernel.contains(&0)
            && !input.contains(&0);
        if !is_sound {
            let help = "1 to 3 spatial dimensions, and a kernel size of at least 1 for each";
            return Err(Cx::other(
                format!("a kernel of {kernel:?} cannot slide over {input:?}"),
                help,
            ));
        }

        let stride = attributes::strides(cx, rank)?;
        let dilation = attributes::dilations(cx, rank)?;
        if stride.contains(&0) || dilation.contains(&0) {
            return Err(attributes::refuse_zero_strides(cx));
        }
        let pads = attributes::pads(cx, rank)?;
        // A kernel of k elements with gaps covers dilation · (k − 1) + 1.
        let reach: Vec<usize> = (0..rank)
            .map(|d| dilation[d].saturating_mul(kernel[d] - 1).saturating_add(1))
            .collect();
        if reach.iter().any(|&r| r > MAX_SIDE) || pads.iter().any(|&p| p > MAX_SIDE) {
            let message = "or the kernel is absurdly large";
            return Err(attributes::refuse_pads(cx, message, "smaller windows"));
        }

        let auto_pad = attributes::auto_pad(cx)?;
        let ceil_mode = cx.flag("ceil_mode", false)?;
        let mut window = Self {
            rank,
            input: in_three_dims(input, 1),
            output: [1; 3],
            kernel: in_three_dims(kernel, 1),
            stride: in_three_dims(&stride, 1),
            dilation: in_three_dims(&dilation, 1),
            before: [0; 3],
            after: [0; 3],
        };
        for d in 0..rank {
            let side = Side {
                input: input[d],
                stride: stride[d],
                reach: reach[d],
            };
            // `pads` counts under NOTSET only; the other words decide the padding themselves.
            let padding = match auto_pad {
                "NOTSET" => SidePadding {
                    before: pads[d],
                    after: pads[rank + d],
                },
                "VALID" => center_padding(0, true),
                "SAME_UPPER" => side.same_padding(true),
                "SAME_LOWER" => side.same_padding(false),
                other => return Err(attributes::refuse_auto_pad(cx, other)),
            };
            // Dimensions are kept at the end: a line is one of depth and height 1.
            let place = 3 - rank + d;
            window.output[place] = match auto_pad {
                "NOTSET" | "VALID" => side.padded_output(&padding, ceil_mode)?,
                _ => side.same_output(),
            };
            window.before[place] = padding.before;
            window.after[place] = padding.after;
        }
        Ok(window)
    }

    /// Sizes of the spatial dimensions of the output.
    pub(crate) fn out_dims(&self) -> &[usize] {
        &self.output[3 - self.rank..]
    }

    /// Elements of one plane of the input, of the output, of the kernel.
    pub(crate) fn sizes(&self) -> (usize, usize, usize) {
        (
            self.input_plane(),
            self.output_plane(),
            self.kernel_elements(),
        )
    }

    /// Elements of one plane of the input.
    pub(crate) fn input_plane(&self) -> usize {
        volume(&self.input)
    }

    /// Elements of one plane of the output.
    pub(crate) fn output_plane(&self) -> usize {
        volume(&self.output)
    }

    /// Elements of one plane of the kernel.
    pub(crate) fn kernel_elements(&self) -> usize {
        volume(&self.kernel)
    }

    /// The place along dimension d of kernel element k in the window of output o, if it is inside the input.
    #[inline(always)]
    pub(crate) fn place(&self, d: usize, o: usize, k: usize) -> Option<usize> {
        let padded_place = o * self.stride[d] + k * self.dilation[d];
        let place = padded_place.checked_sub(self.before[d])?;
        (place < self.input[d]).then_some(place)
    }

    /// Elements along dimension d that the window of output o covers, padding included but nothing beyond it.
    pub(crate) fn reached(&self, d: usize, o: usize) -> usize {
        let padded_end = self.before[d] + self.input[d] + self.after[d];
        (0..self.kernel[d])
            .filter(|k| o * self.stride[d] + k * self.dilation[d] < padded_end)
            .count()
    }

    /// Calls `f` with kernel element and input element of everything that a window covers.
    #[inline]
    pub(crate) fn cover(&self, output_place: [usize; 3], mut f: impl FnMut(usize, usize)) {
        let [_, input_height, input_width] = self.input;
        let [kernel_depth, kernel_height, kernel_width] = self.kernel;
        let [output_z, output_y, output_x] = output_place;
        for kz in 0..kernel_depth {
            let Some(z) = self.place(0, output_z, kz) else {
                continue;
            };
            for ky in 0..kernel_height {
                let Some(y) = self.place(1, output_y, ky) else {
                    continue;
                };
                for kx in 0..kernel_width {
                    let Some(x) = self.place(2, output_x, kx) else {
                        continue;
                    };
                    let kernel_element = (kz * kernel_height + ky) * kernel_width + kx;
                    f(kernel_element, (z * input_height + y) * input_width + x);
                }
            }
        }
    }

    /// Calls `f` with the number and the coordinates of every output element.
    #[inline]
    pub(crate) fn each(&self, mut f: impl FnMut(usize, [usize; 3])) {
        let mut number = 0;
        for z in 0..self.output[0] {
            for y in 0..self.output[1] {
                for x in 0..self.output[2] {
                    f(number, [z, y, x]);
                    number += 1;
                }
            }
        }
    }
}
