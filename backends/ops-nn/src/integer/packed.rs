//! Weights in the order in which the kernels read them.

use bytes::Bytes;

use super::super::aligned::Packed;
use super::super::cx::Cx;
use super::lanes::{LANES, LINE, QUAD};
use zbmd_op::OpError;
use zbmd_op::aligned::AlignedVec;

/// How filters are grouped, and what each of them looks at.
#[derive(Clone, Copy, Debug)]
pub(super) struct FilterSizes {
    pub(super) groups: usize,
    pub(super) group_filters: usize,
    /// Stretches of neighbouring elements that a filter looks at, and their elements.
    pub(super) runs: usize,
    pub(super) run_length: usize,
    /// Whether runs are filled up to whole tiles of weights.
    pub(super) has_tiles: bool,
}

/// Quads of a tile of weights.
const TILE_QUADS: usize = 16;
/// Runs shorter than that are not filled up to tiles: it would cost too much memory.
const MIN_TILED: usize = 16;

impl FilterSizes {
    /// Panels of sixteen filters of a group.
    pub(super) fn group_panels(&self) -> usize {
        self.group_filters.div_ceil(LANES)
    }

    /// Quads of a run: the last one may have weights of 0 at its end.
    pub(super) fn quads(&self) -> usize {
        self.run_length.div_ceil(QUAD)
    }

    /// Lines of a run, of which those behind its quads have weights of 0.
    pub(super) fn run_lines(&self) -> usize {
        match self.has_tiles && self.run_length >= MIN_TILED {
            true => self.quads().next_multiple_of(TILE_QUADS),
            false => self.quads(),
        }
    }

    /// Panels of all groups.
    pub(super) fn panels(&self) -> usize {
        self.groups * self.group_panels()
    }

    /// Bytes of a panel of packed weights that are gone through so often.
    pub(super) fn panel_bytes(&self, passes: usize) -> usize {
        passes * self.runs * self.run_lines() * LINE
    }

    /// Where a filter is among those of all panels: each group begins with a panel of its own.
    fn place(&self, filter: usize) -> usize {
        let group = filter / self.group_filters;
        group * self.group_panels() * LANES + filter % self.group_filters
    }
}

/// Parts of i8 that the difference of two bytes, at most 255, has at most.
const MAX_PASSES: usize = 3;

/// Numbers of i8, one or more, that add up to a weight.
fn parts_of(weight: i16) -> impl Iterator<Item = i8> {
    let mut rest = Some(weight);
    std::iter::from_fn(move || {
        let whole = rest?;
        let part = whole.clamp(-128, 127);
        rest = Some(whole - part).filter(|left| *left != 0);
        Some(part as i8)
    })
}

/// Packed weights.
pub(super) struct PackedWeights {
    pub(super) sizes: FilterSizes,
    /// How often windows are gone through: more than once where weights do not fit into i8.
    pub(super) passes: usize,
    /// By panel, pass, run and quad: lines with a quad for each of sixteen filters.
    weights: Packed<i8>,
    /// The sum of each filter's weights, by panel and lane.
    sums: Vec<i32>,
}

impl PackedWeights {
    /// Packs weights less their zero points; `weight_at` gives that of a filter, a run and an element of it.
    pub(super) fn new(sizes: FilterSizes, weight_at: impl Fn(usize, usize, usize) -> i16) -> Self {
        let filters = sizes.groups * sizes.group_filters;
        let mut all = Vec::with_capacity(filters * sizes.runs * sizes.run_length);
        for filter in 0..filters {
            for run in 0..sizes.runs {
                for element in 0..sizes.run_length {
                    all.push(weight_at(filter, run, element));
                }
            }
        }
        let passes = all
            .iter()
            .map(|&weight| parts_of(weight).count())
            .max()
            .unwrap_or(1);

        let panel_lines = passes * sizes.runs * sizes.run_lines();
        let mut weights = AlignedVec::zeroed(sizes.panels() * panel_lines * LINE);
        let mut sums = vec![0_i32; sizes.panels() * LANES];
        for (i, &weight) in all.iter().enumerate() {
            let element = i % sizes.run_length;
            let run = i / sizes.run_length % sizes.runs;
            let place = sizes.place(i / (sizes.run_length * sizes.runs));
            sums[place] = sums[place].wrapping_add(i32::from(weight));

            for (pass, part) in parts_of(weight).enumerate() {
                let own_run = (place / LANES * passes + pass) * sizes.runs + run;
                let line = own_run * sizes.run_lines() + element / QUAD;
                weights[line * LINE + place % LANES * QUAD + element % QUAD] = part;
            }
        }
        Self {
            sizes,
            passes,
            weights: Packed::Made(weights),
            sums,
        }
    }

    /// Weights that were packed when the model was compiled.
    pub(super) fn kept(sizes: FilterSizes, kept: Bytes) -> Result<Self, OpError> {
        let pass_bytes = sizes.panels() * sizes.panel_bytes(1);
        let passes = kept.len() / pass_bytes.max(1);
        if !(1..=MAX_PASSES).contains(&passes) || kept.len() != passes * pass_bytes {
            return Err(Cx::other(
                format!("packed weights of {} bytes", kept.len()),
                format!("there must be 1 to {MAX_PASSES} times {pass_bytes}"),
            ));
        }

        let mut sums = vec![0_i32; sizes.panels() * LANES];
        let panel_bytes = sizes.panel_bytes(passes);
        for (panel, sums) in kept
            .chunks_exact(panel_bytes)
            .zip(sums.chunks_exact_mut(LANES))
        {
            for line in panel.chunks_exact(LINE) {
                for (sum, quad) in sums.iter_mut().zip(line.chunks_exact(QUAD)) {
                    *sum += quad.iter().map(|&byte| i32::from(byte as i8)).sum::<i32>();
                }
            }
        }

        Ok(Self {
            sizes,
            passes,
            weights: Packed::from(kept),
            sums,
        })
    }

    /// What a bundle keeps.
    pub(super) fn to_bytes(&self) -> Bytes {
        Bytes::copy_from_slice(bytemuck::cast_slice(self.bytes()))
    }

    /// The weights as bytes.
    pub(super) fn bytes(&self) -> &[i8] {
        &self.weights
    }

    /// Filters with those that fill up panels.
    pub(super) fn lanes(&self) -> usize {
        self.sums.len()
    }

    /// What is added to each filter's sum of products with bytes that are not less their zero point: `bias − zero · Σw`,
    /// by panel and lane.
    pub(super) fn biases(&self, bias: Option<&[i32]>, zero: i32) -> Vec<i32> {
        let mut biases = vec![0; self.lanes()];
        self.put_biases(bias, zero, &mut biases);
        biases
    }

    /// The same, written to a slice of [`Self::lanes`].
    pub(super) fn put_biases(&self, bias: Option<&[i32]>, zero: i32, biases: &mut [i32]) {
        for (bias, sum) in biases.iter_mut().zip(&self.sums) {
            *bias = sum.wrapping_mul(-zero);
        }
        for (filter, &own_bias) in bias.unwrap_or_default().iter().enumerate() {
            let place = self.sizes.place(filter);
            biases[place] = biases[place].wrapping_add(own_bias);
        }
    }

    /// Numbers of filters, one for all or one for each, by panel and lane.
    pub(super) fn by_lane(&self, numbers: &[f32]) -> Vec<f32> {
        let mut by_lane = vec![0.0; self.sums.len()];
        for filter in 0..self.sizes.groups * self.sizes.group_filters {
            let is_one = numbers.len() == 1;
            by_lane[self.sizes.place(filter)] = numbers[if is_one { 0 } else { filter }];
        }
        by_lane
    }
}
