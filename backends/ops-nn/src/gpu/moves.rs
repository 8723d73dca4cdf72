//! Elements moved as they are.

use super::super::cx::{AxisSpec, volume};
use super::super::index::strides;
use super::super::movement::{PadSpec, SplitSpec};
use super::super::reduce::around;
use super::{Gpu, Lowered, Moves};
use zbmd_gpu_ir::tensor::Slot;
use zbmd_gpu_ir::tensor::moves::{Ends, Strided, by_table, copy};
use zbmd_gpu_ir::{Amount, KernelPlan};

fn signed(sizes: &[usize]) -> Vec<isize> {
    sizes.iter().map(|&size| size as isize).collect()
}

fn bytes_of(slot: Slot) -> u64 {
    slot.elements * slot.dtype.size_bytes()
}

fn ends(from: Slot, to: Slot) -> Ends {
    Ends {
        from: (from.operand, bytes_of(from)),
        constant: from.constant,
        to: (to.operand, bytes_of(to)),
    }
}

/// An axis whose parts are copied one by one: elements around it, and its length as a whole.
struct SplitAxis {
    outer: usize,
    inner: usize,
    len: usize,
    element_bytes: usize,
}

impl SplitAxis {
    fn of(dims: &[usize], axis: usize, element_bytes: u64) -> Self {
        let (outer, len, inner) = around(dims, axis);
        Self {
            outer,
            inner,
            len,
            element_bytes: element_bytes as usize,
        }
    }

    /// The copy of `part_len` places of the axis between a tensor that has them alone and the whole one, where they
    /// begin at `first`.
    fn copy_part(&self, part_len: usize, first: usize, joins: bool) -> Strided {
        let row_steps = |len: usize| vec![(len * self.inner) as isize, 1];
        let part = (0, row_steps(part_len));
        let whole = (first * self.inner, row_steps(self.len));
        let (from, to) = if joins { (part, whole) } else { (whole, part) };
        Strided {
            size: self.element_bytes,
            dims: vec![self.outer, part_len * self.inner],
            from,
            to,
        }
    }
}

impl Gpu<'_> {
    pub(in super::super) fn moves(&self, moves: &Moves) -> Lowered {
        match moves {
            Moves::All => self.same_bytes(),
            Moves::Strided {
                dims,
                steps,
                start,
                size,
            } => {
                if dims.contains(&0) {
                    return Ok(KernelPlan::default());
                }
                let elements = Strided {
                    size: *size,
                    dims: dims.clone(),
                    from: (*start, steps.clone()),
                    to: (0, signed(&strides(dims))),
                };
                let ends = ends(self.slot(0)?, self.out(0));
                copy(KernelPlan::default(), ends, &elements)
            }
            Moves::Chosen { table, fill } => {
                let fill = self.opt_slot(*fill)?;
                if self.out(0).elements > zbmd_ir::limits::MAX_TABLE_ELEMENTS {
                    return Err("its table of places would be too large".to_owned());
                }
                let words = self.words(table());
                let plan = KernelPlan::default();
                by_table(plan, (self.slot(0)?, self.out(0)), fill, words)
            }
        }
    }

    pub(in super::super) fn same_bytes(&self) -> Lowered {
        let from = self.slot(0)?;
        let to = self.out(0);
        if !from.constant {
            let bytes = Amount::each(bytes_of(from));
            return Ok(KernelPlan::default().copy(from.operand, to.operand, bytes));
        }
        // A constant is there once, and copied for every firing.
        let all_bytes = Strided {
            size: 1,
            dims: vec![bytes_of(from) as usize],
            from: (0, vec![1]),
            to: (0, vec![1]),
        };
        copy(KernelPlan::default(), ends(from, to), &all_bytes)
    }

    pub(in super::super) fn concat(&self, spec: &AxisSpec) -> Lowered {
        let element_bytes = self.outs[0].dtype.size_bytes();
        let axis = SplitAxis::of(&self.out_dims(0), spec.axis, element_bytes);

        let mut plan = KernelPlan::default();
        let mut first = 0;
        for i in 0..self.operands.ins.len() {
            let part_len = self.dims(i)?.get(spec.axis).copied().unwrap_or(1);
            if self.operand(i)?.ty.elements() > 0 {
                let ends = ends(self.slot(i)?, self.out(0));
                plan = copy(plan, ends, &axis.copy_part(part_len, first, true))?;
            }
            first += part_len;
        }
        Ok(plan)
    }

    pub(in super::super) fn split(&self, spec: &SplitSpec) -> Lowered {
        let element_bytes = self.dtype(0)?.size_bytes();
        let axis = SplitAxis::of(&self.dims(0)?, spec.axis, element_bytes);

        let mut plan = KernelPlan::default();
        for (output, &part) in self.operands.wanted.iter().enumerate() {
            let first: usize = spec.parts.iter().take(part).sum();
            let part_len = self.out_dims(output).get(spec.axis).copied().unwrap_or(1);
            let ends = ends(self.slot(0)?, self.out(output));
            plan = copy(plan, ends, &axis.copy_part(part_len, first, false))?;
        }

        Ok(plan)
    }

    /// Padding with a value, which may cut off too; other modes come as tables.
    pub(in super::super) fn pad(&self, spec: &PadSpec) -> Lowered {
        let input_dims = self.dims(0)?;
        let output_dims = self.out_dims(0);
        if volume(&output_dims) > 1 << 26 {
            return Err("its table of places would be too large".to_owned());
        }
        let table = self.words(padding_table(&input_dims, &output_dims, &spec.before));
        by_table(
            KernelPlan::default(),
            (self.slot(0)?, self.out(0)),
            self.opt_slot(2)?,
            table,
        )
    }
}

/// The element of the input at each place of the output, shifted by `before`; `u32::MAX` outside.
fn padding_table(input_dims: &[usize], output_dims: &[usize], before: &[i64]) -> Vec<u32> {
    let input_steps = strides(input_dims);
    let output_steps = strides(output_dims);
    let input_place = |n: usize| -> Option<usize> {
        let mut remaining = n;
        let mut place = 0;
        for d in 0..output_dims.len() {
            let coordinate = (remaining / output_steps[d]) as i64 - before[d];
            remaining %= output_steps[d];
            let coordinate = usize::try_from(coordinate).ok()?;
            if coordinate >= input_dims[d] {
                return None;
            }
            place += coordinate * input_steps[d];
        }
        Some(place)
    };
    (0..volume(output_dims))
        .map(|n| input_place(n).map_or(u32::MAX, |place| place as u32))
        .collect()
}
