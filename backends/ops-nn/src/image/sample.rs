//! Elements of an image at given places.

use super::super::attributes;
use super::super::cx::{Cx, FLOATS, FloatBody, Plan, Planned, Tensors, token, volume};
use super::super::num::Float;
use super::{aligns_corners, cubic_weights};
use zbmd_op::OpError;

/// Keys' coefficient of cubic sampling, which the operator fixes.
const CUBIC_COEFFICIENT: f64 = -0.75;

/// What is outside of an image.
#[derive(Clone, Copy, PartialEq)]
pub(crate) enum Border {
    Zeros,
    Clamp,
    Reflect,
}

/// Elements of an image at given places.
pub(crate) struct GridSampleSpec {
    /// Elements along each dimension that a result is made from: 1, 2 or 4.
    pub(crate) taps: usize,
    pub(crate) border: Border,
    /// Whether −1 and 1 are the centres of the outermost elements.
    pub(crate) aligns_corners: bool,
}

impl GridSampleSpec {
    pub(crate) fn of(cx: &Cx<'_>) -> Result<Self, OpError> {
        let taps = match attributes::mode(cx)?.unwrap_or("linear") {
            "nearest" => 1,
            "linear" | "bilinear" => 2,
            "cubic" | "bicubic" => 4,
            other => {
                let known_words = ["linear", "nearest", "cubic"];
                return Err(attributes::refuse_mode(cx, other, &known_words));
            }
        };
        let border = match cx.args.word_opt("padding_mode")?.unwrap_or("zeros") {
            "zeros" => Border::Zeros,
            "border" => Border::Clamp,
            "reflection" => Border::Reflect,
            other => {
                let known_words = ["zeros", "border", "reflection"];
                return Err(cx.args.unknown_word("padding_mode", other, &known_words));
            }
        };
        Ok(Self {
            taps,
            border,
            aligns_corners: aligns_corners(cx)?,
        })
    }
}

/// Elements of an image at places that a grid names, in [−1, 1].
pub(crate) fn grid_sample(cx: &Cx<'_>, spec: &GridSampleSpec) -> Planned {
    let dtype = cx.expect(0, &FLOATS)?;
    let image_dims = cx.dims(0)?;
    let grid_dims = cx.dims(1)?;
    let rank = image_dims.len().saturating_sub(2);
    let fits = (2..=3).contains(&rank)
        && grid_dims.len() == rank + 2
        && grid_dims[0] == image_dims[0]
        && grid_dims[rank + 1] == rank
        && cx.dtype(1)? == dtype
        && !image_dims.contains(&0);
    if !fits {
        return Err(cx.refuse_type(1, format!("`x` is {}", cx.operand(0)?.ty)));
    }

    // The grid is [n, spatial…, rank]: its spatial dimensions become those of the result.
    let result_dims = &grid_dims[1..=rank];
    let out_dims = [&image_dims[..2], result_dims].concat();
    let flops = 10.0 * (volume(&out_dims) * spec.taps.pow(rank as u32)) as f64;
    let body = GridSample {
        batch: image_dims[0],
        channels: image_dims[1],
        dims: image_dims[2..].to_vec(),
        places: volume(result_dims),
        taps: spec.taps,
        border: spec.border,
        aligns_corners: spec.aligns_corners,
    };
    Ok(Plan::float(dtype, vec![token(dtype, &out_dims)], body).flops(flops))
}

struct GridSample {
    batch: usize,
    channels: usize,
    /// Dimensions of the image, two or three.
    dims: Vec<usize>,
    /// Places of the grid, for each batch.
    places: usize,
    taps: usize,
    border: Border,
    aligns_corners: bool,
}

/// The elements along one dimension that a result is made from.
#[derive(Clone, Copy)]
struct Taps {
    /// Place of the first, which may be outside of the image.
    first: i64,
    weights: [f64; 4],
}

/// A coordinate that is mirrored at both edges until it is between them.
fn reflect(coordinate: f64, low: f64, high: f64) -> f64 {
    let span = high - low;
    if span <= 0.0 {
        return low;
    }
    let beyond = if coordinate < low {
        low - coordinate
    } else if coordinate > high {
        coordinate - high
    } else {
        return coordinate;
    };

    // Each whole span that it goes beyond is one more mirroring, which changes the edge that the rest is counted from.
    let mirrorings = (beyond / span).trunc();
    let rest = beyond % span;
    let is_from_low = (coordinate < low) == (mirrorings % 2.0 == 0.0);
    if is_from_low { low + rest } else { high - rest }
}

impl GridSample {
    /// A coordinate beyond the border along dimension d, mirrored.
    fn reflected(&self, d: usize, coordinate: f64) -> f64 {
        let size = self.dims[d] as f64;
        match self.aligns_corners {
            true => reflect(coordinate, 0.0, size - 1.0),
            false => reflect(coordinate, -0.5, size - 0.5),
        }
    }

    fn is_beyond_edges(&self, d: usize, coordinate: f64) -> bool {
        let size = self.dims[d] as f64;
        match self.aligns_corners {
            true => coordinate < 0.0 || coordinate > size - 1.0,
            false => coordinate < -0.5 || coordinate > size - 0.5,
        }
    }

    /// The elements along dimension d that a coordinate in [−1, 1] asks for.
    fn taps_along(&self, d: usize, grid_coordinate: f64) -> Taps {
        let size = self.dims[d] as f64;
        // −1 and 1 are the centres of the outermost elements, or their outer edges half an element further.
        let mut coordinate = match self.aligns_corners {
            true => (grid_coordinate + 1.0) / 2.0 * (size - 1.0),
            false => ((grid_coordinate + 1.0) * size - 1.0) / 2.0,
        };
        // The reference rounds coordinates to f32; nearest elements depend on it.
        coordinate = f64::from(coordinate as f32);
        if self.taps == 1 {
            coordinate = coordinate.round_ties_even();
        }
        if self.is_beyond_edges(d, coordinate) {
            match self.border {
                Border::Clamp => coordinate = coordinate.clamp(0.0, size - 1.0),
                Border::Reflect => coordinate = self.reflected(d, coordinate),
                Border::Zeros => {}
            }
        }

        // Whatever is so far away is outside of any image, and places beside it stay within i64.
        if !coordinate.is_finite() || coordinate.abs() > 1e15 {
            return Taps {
                first: -10,
                weights: [0.0; 4],
            };
        }
        let floor = coordinate.floor();
        let ratio = coordinate - floor;
        match self.taps {
            1 => Taps {
                first: coordinate.trunc() as i64,
                weights: [1.0, 0.0, 0.0, 0.0],
            },
            2 => Taps {
                first: floor as i64,
                weights: [1.0 - ratio, ratio, 0.0, 0.0],
            },
            _ => Taps {
                first: floor as i64 - 1,
                weights: cubic_weights(ratio, CUBIC_COEFFICIENT),
            },
        }
    }

    /// The element's place along d, if there is one.
    fn place_inside(&self, d: usize, i: i64) -> Option<usize> {
        let size = self.dims[d] as i64;
        let place = match self.border {
            Border::Zeros => i,
            Border::Clamp => i.clamp(0, size - 1),
            Border::Reflect => (self.reflected(d, i as f64) as i64).clamp(0, size - 1),
        };
        usize::try_from(place).ok().filter(|p| (*p as i64) < size)
    }

    /// The weighted sum of the elements of a channel around a place. `along` has the taps of depth, height and width;
    /// those of the depth are one of weight 1 in an image of two dimensions.
    fn sum_of_taps<F: Float>(&self, channel: &[F], along: &[Taps; 3]) -> f64 {
        let rank = self.dims.len();
        let height = self.dims[rank - 2];
        let width = self.dims[rank - 1];
        let is_volume = rank == 3;
        let depth_taps = if is_volume { self.taps } else { 1 };

        let mut sum = 0.0;
        // The kernel is separable: w(z, y, x) = w(z) · w(y) · w(x). Taps outside count as 0.
        for i in 0..depth_taps {
            for j in 0..self.taps {
                for k in 0..self.taps {
                    let weight = along[0].weights[i] * along[1].weights[j] * along[2].weights[k];
                    let z = match is_volume {
                        true => self.place_inside(0, along[0].first + i as i64),
                        false => Some(0),
                    };
                    let y = self.place_inside(rank - 2, along[1].first + j as i64);
                    let x = self.place_inside(rank - 1, along[2].first + k as i64);
                    if let (Some(z), Some(y), Some(x)) = (z, y, x) {
                        sum += weight * channel[(z * height + y) * width + x].f64();
                    }
                }
            }
        }
        sum
    }
}

impl FloatBody for GridSample {
    fn run<F: Float>(&self, tensors: &mut Tensors<'_>) {
        let input = tensors.get::<F>(0);
        let grid = tensors.get::<F>(1);
        let output = tensors.out::<F>(0);
        let rank = self.dims.len();
        let plane = volume(&self.dims);
        let one_tap = Taps {
            first: 0,
            weights: [1.0, 0.0, 0.0, 0.0],
        };

        for batch in 0..self.batch {
            for place in 0..self.places {
                // One place serves for all channels, so that its taps are found once.
                let coordinates = &grid[(batch * self.places + place) * rank..][..rank];
                let mut along = [one_tap; 3];
                for d in 0..rank {
                    // Grids name the last dimension first.
                    along[3 - rank + d] = self.taps_along(d, coordinates[rank - 1 - d].f64());
                }
                for c in 0..self.channels {
                    let channel_number = batch * self.channels + c;
                    let channel = &input[channel_number * plane..][..plane];
                    let sum = self.sum_of_taps(channel, &along);
                    output[channel_number * self.places + place] = F::of(sum);
                }
            }
        }
    }
}
