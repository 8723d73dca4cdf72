//! Windows that slide over the spatial dimensions of a tensor: sizes, padding, places. Shared by convolutions and
//! pools.

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

fn three(v: &[usize], fill: usize) -> [usize; 3] {
    let mut out = [fill; 3];
    out[3 - v.len()..].copy_from_slice(v);
    out
}

/// Most elements along a padded dimension.
const MAX_SIDE: usize = 1 << 24;

impl Window {
    /// The windows of a convolution or pool by its parameters `strides`, `dilations`, `pads`, `auto_pad`, `ceil_mode`.
    pub(crate) fn new(cx: &Cx<'_>, input: &[usize], kernel: &[usize]) -> Result<Self, OpError> {
        let rank = input.len();
        if rank == 0
            || rank > 3
            || kernel.len() != rank
            || kernel.contains(&0)
            || input.contains(&0)
        {
            let help = "1 to 3 spatial dimensions, and a kernel size of at least 1 for each";
            return Err(Cx::other(
                format!("a kernel of {kernel:?} cannot slide over {input:?}"),
                help,
            ));
        }
        let stride = cx.sizes("strides", rank, 1)?;
        let dilation = cx.sizes("dilations", rank, 1)?;
        if stride.contains(&0) || dilation.contains(&0) {
            return Err(cx
                .args
                .error("strides", "or `dilations` holds 0", "at least 1"));
        }
        let mut pads = cx.sizes("pads", 2 * rank, 0)?;
        let reach: Vec<usize> = (0..rank)
            .map(|d| dilation[d].saturating_mul(kernel[d] - 1).saturating_add(1))
            .collect();
        if reach.iter().any(|&r| r > MAX_SIDE) || pads.iter().any(|&p| p > MAX_SIDE) {
            return Err(cx.args.error(
                "pads",
                "or the kernel is absurdly large",
                "smaller windows",
            ));
        }
        let auto = cx.args.word_opt("auto_pad")?.unwrap_or("NOTSET");
        let ceil = cx.flag("ceil_mode", false)?;
        let mut output = Vec::new();
        for d in 0..rank {
            output.push(match auto {
                "NOTSET" | "VALID" => {
                    if auto == "VALID" {
                        (pads[d], pads[rank + d]) = (0, 0);
                    }
                    let padded = input[d] + pads[d] + pads[rank + d];
                    let Some(room) = padded.checked_sub(reach[d]) else {
                        return Err(Cx::other(
                            format!(
                                "a window of {} does not fit into {padded} elements",
                                reach[d]
                            ),
                            "add padding, or take a smaller kernel",
                        ));
                    };
                    let mut n = if ceil {
                        room.div_ceil(stride[d])
                    } else {
                        room / stride[d]
                    } + 1;
                    // A window that would begin in the padding behind is left out.
                    if ceil && (n - 1) * stride[d] >= input[d] + pads[d] {
                        n -= 1;
                    }
                    n
                }
                "SAME_UPPER" | "SAME_LOWER" => {
                    let n = input[d].div_ceil(stride[d]);
                    let pad = ((n - 1) * stride[d] + reach[d]).saturating_sub(input[d]);
                    let (half, rest) = (pad / 2, pad - pad / 2);
                    let upper = auto == "SAME_UPPER";
                    (pads[d], pads[rank + d]) = if upper { (half, rest) } else { (rest, half) };
                    n
                }
                other => {
                    let known = ["NOTSET", "VALID", "SAME_UPPER", "SAME_LOWER"];
                    return Err(cx.args.unknown_word("auto_pad", other, &known));
                }
            });
        }
        Ok(Self {
            rank,
            input: three(input, 1),
            output: three(&output, 1),
            kernel: three(kernel, 1),
            stride: three(&stride, 1),
            dilation: three(&dilation, 1),
            before: three(&pads[..rank], 0),
            after: three(&pads[rank..], 0),
        })
    }

    /// Sizes of the spatial dimensions of the output.
    pub(crate) fn out_dims(&self) -> &[usize] {
        &self.output[3 - self.rank..]
    }

    /// Elements of one plane of the input, of the output, of the kernel.
    pub(crate) fn sizes(&self) -> (usize, usize, usize) {
        (
            volume(&self.input),
            volume(&self.output),
            volume(&self.kernel),
        )
    }

    /// The place along dimension d of kernel element k in the window of output o, if it lies in the input.
    #[inline(always)]
    pub(crate) fn place(&self, d: usize, o: usize, k: usize) -> Option<usize> {
        let at = (o * self.stride[d] + k * self.dilation[d]).checked_sub(self.before[d])?;
        (at < self.input[d]).then_some(at)
    }

    /// Elements along dimension d that the window of output o covers, padding included but nothing beyond it.
    pub(crate) fn reached(&self, d: usize, o: usize) -> usize {
        let end = self.before[d] + self.input[d] + self.after[d];
        (0..self.kernel[d])
            .filter(|k| o * self.stride[d] + k * self.dilation[d] < end)
            .count()
    }

    /// Calls `f` with kernel element and input element of everything that a window covers.
    #[inline]
    pub(crate) fn cover(&self, o: [usize; 3], mut f: impl FnMut(usize, usize)) {
        let [_, h, w] = self.input;
        let [_, kh, kw] = self.kernel;
        for a in 0..self.kernel[0] {
            let Some(z) = self.place(0, o[0], a) else {
                continue;
            };
            for b in 0..kh {
                let Some(y) = self.place(1, o[1], b) else {
                    continue;
                };
                for c in 0..kw {
                    let Some(x) = self.place(2, o[2], c) else {
                        continue;
                    };
                    f((a * kh + b) * kw + c, (z * h + y) * w + x);
                }
            }
        }
    }

    /// Calls `f` with the number and the coordinates of every output element.
    #[inline]
    pub(crate) fn each(&self, mut f: impl FnMut(usize, [usize; 3])) {
        let mut n = 0;
        for z in 0..self.output[0] {
            for y in 0..self.output[1] {
                for x in 0..self.output[2] {
                    f(n, [z, y, x]);
                    n += 1;
                }
            }
        }
    }
}
