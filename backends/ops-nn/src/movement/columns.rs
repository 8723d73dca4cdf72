//! Columns of windows laid back onto an image.

use super::super::attributes;
use super::super::cx::{Cx, FLOATS, FloatBody, Plan, Planned, Tensors, token, volume};
use super::super::num::Float;

/// Elements along a side, at most.
const MAX_SIDE: usize = 1 << 24;

/// Sums of columns laid back onto an image: the inverse walk of a convolution's windows. Operands: the columns, the
/// image's dimensions, those of a block.
pub(crate) fn col2im(cx: &Cx<'_>) -> Planned {
    let dtype = cx.expect(0, &FLOATS)?;
    let column_dims = cx.dims(0)?;
    let image = cx.operand_sizes(1)?;
    let block = cx.operand_sizes(2)?;
    let rank = image.len();
    if image.iter().chain(&block).any(|&d| d > MAX_SIDE) || rank > 3 {
        let help = "up to three dimensions of a sane size";
        return Err(cx.refuse(1, format!("is {image:?}"), help));
    }

    let strides = attributes::strides(cx, rank)?;
    let dilations = attributes::dilations(cx, rank)?;
    let pads = attributes::pads(cx, rank)?;
    // Blocks along each dimension: ⌊(padded − reach) / stride⌋ + 1, as a convolution has outputs.
    let spots: Vec<usize> = (0..rank)
        .map(|d| {
            let block_side = block.get(d).copied().unwrap_or(1).max(1);
            let reach = dilations[d] * (block_side - 1) + 1;
            let padded = image[d] + pads[d] + pads[rank + d];
            padded.saturating_sub(reach) / strides[d].max(1) + 1
        })
        .collect();
    let block_elements = volume(&block).max(1);
    let spot_count = volume(&spots);
    let fits = column_dims.len() == 3
        && block.len() == rank
        && spot_count == column_dims[2]
        && column_dims[1].is_multiple_of(block_elements);
    if !fits {
        let help = format!("[n, channels · {block_elements}, {spot_count}]");
        return Err(cx.refuse_type(0, help));
    }

    let channels = column_dims[1] / block_elements;
    let out_dims = [&[column_dims[0], channels], image.as_slice()].concat();
    let body = Col2Im {
        planes: column_dims[0] * channels,
        image,
        block,
        spots,
        strides,
        dilations,
        pads,
    };
    Ok(Plan::float(dtype, vec![token(dtype, &out_dims)], body))
}

struct Col2Im {
    /// Dimensions of the image and of a block.
    image: Vec<usize>,
    block: Vec<usize>,
    /// How many blocks there are along each dimension.
    spots: Vec<usize>,
    strides: Vec<usize>,
    dilations: Vec<usize>,
    pads: Vec<usize>,
    /// Images, of all batches and channels.
    planes: usize,
}

impl Col2Im {
    /// The pixel under an element of the block at a spot; none where it is in the padding.
    fn pixel(&self, block_element: usize, spot: usize) -> Option<usize> {
        let mut block_rest = block_element;
        let mut spot_rest = spot;
        let mut pixel = 0;
        let mut stride = 1;
        for d in (0..self.image.len()).rev() {
            let in_block = block_rest % self.block[d] * self.dilations[d];
            let block_start = spot_rest % self.spots[d] * self.strides[d];
            // Both numbers are counted in mixed radix, the last dimension fastest.
            let place = (block_start + in_block).checked_sub(self.pads[d])?;
            if place >= self.image[d] {
                return None;
            }
            pixel += place * stride;
            stride *= self.image[d];
            block_rest /= self.block[d];
            spot_rest /= self.spots[d];
        }
        Some(pixel)
    }
}

impl FloatBody for Col2Im {
    fn run<F: Float>(&self, tensors: &mut Tensors<'_>) {
        let columns = tensors.get::<F>(0);
        let output = tensors.out::<F>(0);
        let pixels = volume(&self.image);
        let block_elements = volume(&self.block);
        let spot_count = volume(&self.spots);
        output.fill(F::ZERO);

        for plane in 0..self.planes {
            for block_element in 0..block_elements {
                // Columns are [n, channels · block, spots]: a row for each block element of each channel.
                let row = (plane * block_elements + block_element) * spot_count;
                for spot in 0..spot_count {
                    if let Some(pixel) = self.pixel(block_element, spot) {
                        output[plane * pixels + pixel] += columns[row + spot];
                    }
                }
            }
        }
    }
}
