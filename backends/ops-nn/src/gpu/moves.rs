//! Elements moved as they are.

use super::super::cx::{AxisSpec, volume};
use super::super::index::strides;
use super::super::movement::{PadSpec, SplitSpec};
use super::super::reduce::around;
use super::{Gpu, Lowered, Moves};
use zbmd_gpu_ir::tensor::Slot;
use zbmd_gpu_ir::tensor::moves::{Ends, Strided, by_table, copy};
use zbmd_gpu_ir::{Amount, KernelPlan};

fn signed(v: &[usize]) -> Vec<isize> {
    v.iter().map(|&s| s as isize).collect()
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

/// Parts of an axis that are copied one by one: elements around the axis, and the length of the axis as a whole.
struct Parts {
    outer: usize,
    inner: usize,
    whole: usize,
    size: usize,
}

impl Parts {
    /// The copy of `n` elements of the axis between a tensor that has them alone and one that has them at `at`.
    fn copy(&self, n: usize, at: usize, joins: bool) -> Strided {
        let steps = |len: usize| vec![(len * self.inner) as isize, 1];
        let (alone, within) = ((0, steps(n)), (at * self.inner, steps(self.whole)));
        let (from, to) = if joins {
            (alone, within)
        } else {
            (within, alone)
        };
        Strided {
            size: self.size,
            dims: vec![self.outer, n * self.inner],
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
                let to = signed(&strides(dims));
                let (from, dims) = ((*start, steps.clone()), dims.clone());
                let what = Strided {
                    size: *size,
                    dims,
                    from,
                    to: (0, to),
                };
                copy(
                    KernelPlan::default(),
                    ends(self.slot(0)?, self.out(0)),
                    &what,
                )
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
        let (from, to) = (self.slot(0)?, self.out(0));
        if !from.constant {
            let bytes = Amount::each(bytes_of(from));
            return Ok(KernelPlan::default().copy(from.operand, to.operand, bytes));
        }
        let dims = vec![bytes_of(from) as usize];
        let what = Strided {
            size: 1,
            dims,
            from: (0, vec![1]),
            to: (0, vec![1]),
        };
        copy(KernelPlan::default(), ends(from, to), &what)
    }

    pub(in super::super) fn concat(&self, spec: &AxisSpec) -> Lowered {
        let dims = self.out_dims(0);
        let axis = spec.axis;
        let (outer, whole, inner) = around(&dims, axis);
        let size = self.outs[0].dtype.size_bytes() as usize;
        let parts = Parts {
            outer,
            inner,
            whole,
            size,
        };
        let (mut plan, mut at) = (KernelPlan::default(), 0);
        for i in 0..self.operands.ins.len() {
            let n = self.dims(i)?.get(axis).copied().unwrap_or(1);
            if self.operand(i)?.ty.elements() > 0 {
                let ends = ends(self.slot(i)?, self.out(0));
                plan = copy(plan, ends, &parts.copy(n, at, true))?;
            }
            at += n;
        }
        Ok(plan)
    }

    pub(in super::super) fn split(&self, spec: &SplitSpec) -> Lowered {
        let dims = self.dims(0)?;
        let axis = spec.axis;
        let (outer, whole, inner) = around(&dims, axis);
        let size = self.dtype(0)?.size_bytes() as usize;
        let parts = Parts {
            outer,
            inner,
            whole,
            size,
        };
        let mut plan = KernelPlan::default();
        for (o, &w) in self.operands.wanted.iter().enumerate() {
            let at: usize = spec.parts.iter().take(w).sum();
            let n = self.out_dims(o).get(axis).copied().unwrap_or(1);
            plan = copy(
                plan,
                ends(self.slot(0)?, self.out(o)),
                &parts.copy(n, at, false),
            )?;
        }
        Ok(plan)
    }

    /// Padding with a value, which may cut off too; other modes come as tables.
    pub(in super::super) fn pad(&self, spec: &PadSpec) -> Lowered {
        let (from, out) = (self.dims(0)?, self.out_dims(0));
        if volume(&out) > 1 << 26 {
            return Err("its table of places would be too large".to_owned());
        }
        let table = self.words(table(&from, &out, &spec.before));
        by_table(
            KernelPlan::default(),
            (self.slot(0)?, self.out(0)),
            self.opt_slot(2)?,
            table,
        )
    }
}

/// The element of `from` at each place of `out`, shifted by `before`; `u32::MAX` outside.
fn table(from: &[usize], out: &[usize], before: &[i64]) -> Vec<u32> {
    let (own, to) = (strides(from), strides(out));
    let place = |n: usize| -> Option<usize> {
        let mut rest = n;
        let mut at = 0;
        for d in 0..out.len() {
            let i = usize::try_from((rest / to[d]) as i64 - before[d]).ok()?;
            rest %= to[d];
            at += if i < from[d] { i * own[d] } else { return None };
        }
        Some(at)
    };
    (0..volume(out))
        .map(|n| place(n).map_or(u32::MAX, |p| p as u32))
        .collect()
}
