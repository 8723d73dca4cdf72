//! Reductions, softmax and normalisations.

use super::super::cx::volume;
use super::super::reduce::{self, around};
use super::{Gpu, Lowered, said};
use crate::kernels::lang::Ty;
use crate::kernels::tensor::function::power;
use crate::kernels::tensor::row::{
    Affine, Fold, Norm, Normed, Rows, Soft, arg, cumulative, fold, normalise, softmax,
};
use crate::kernels::tensor::space::spread;
use crate::kernels::tensor::{TensorKernelBuilder, Why, computed};
use crate::kernels::{Amount, Grid, KernelPlan};

impl Gpu<'_> {
    pub(in super::super) fn reduce(&self) -> Lowered {
        let dims = self.dims(0)?;
        let axes = reduce::axes(self.cx, dims.len()).map_err(said)?;
        let rows = Rows::along(&dims, &axes);
        let ends = (self.slot(0)?, self.out(0));
        fold(KernelPlan::default(), &rows, ends, reduce::fold(self.op))
    }

    pub(in super::super) fn global_pool(&self) -> Lowered {
        let dims = self.dims(0)?;
        let p = self.cx.args.int_or("p", 2).map_err(said)?;
        let kind = match (self.op, p) {
            ("GlobalMaxPool", _) => Fold::Max,
            ("GlobalAveragePool", _) => Fold::Mean,
            (_, 1) => Fold::L1,
            (_, 2) => Fold::L2,
            _ => return Err(format!("norms with the exponent {p} are the CPU's")),
        };
        let axes: Vec<usize> = (2..dims.len()).collect();
        let rows = Rows::along(&dims, &axes);
        fold(
            KernelPlan::default(),
            &rows,
            (self.slot(0)?, self.out(0)),
            kind,
        )
    }

    pub(in super::super) fn arg(&self) -> Lowered {
        let dims = self.dims(0)?;
        let axis = self.axis("axis", 0, dims.len())?;
        let last = self.cx.flag("select_last_index", false).map_err(said)?;
        let rows = Rows::along(&dims, &[axis]);
        let ends = (self.slot(0)?, self.out(0));
        arg(
            KernelPlan::default(),
            &rows,
            ends,
            self.op == "ArgMax",
            last,
        )
    }

    pub(in super::super) fn softmax(&self) -> Lowered {
        let dims = self.dims(0)?;
        let axis = self.axis("axis", -1, dims.len())?;
        let kind = match self.op {
            "Softmax" => Soft::Plain,
            "LogSoftmax" => Soft::Log,
            _ => Soft::Hard,
        };
        let rows = Rows::along(&dims, &[axis]);
        softmax(
            KernelPlan::default(),
            &rows,
            (self.slot(0)?, self.out(0)),
            kind,
        )
    }

    pub(in super::super) fn cumulative(&self) -> Lowered {
        let dims = self.dims(0)?;
        let axis = self
            .cx
            .ints(1)
            .map_err(said)?
            .and_then(|a| a.first().copied())
            .unwrap_or(0);
        let axis = self.cx.axis(axis, dims.len()).map_err(said)?;
        let flag = |name: &str| self.cx.flag(name, false).map_err(said);
        let flags = [self.op == "CumProd", flag("exclusive")?, flag("reverse")?];
        let rows = Rows::along(&dims, &[axis]);
        cumulative(
            KernelPlan::default(),
            &rows,
            (self.slot(0)?, self.out(0)),
            flags,
        )
    }

    pub(in super::super) fn layer_norm(&self) -> Lowered {
        let dims = self.dims(0)?;
        let axis = self.axis("axis", -1, dims.len())?;
        let epsilon = self.cx.args.float_or("epsilon", 1e-5).map_err(said)?;
        let axes: Vec<usize> = (axis..dims.len()).collect();
        let rows = Rows::along(&dims, &axes);
        let what = Normed {
            x: Some(self.slot(0)?),
            y: self.wanted(0),
            mean: self.wanted(1),
            deviation: self.wanted(2),
        };
        let rms = self.op == "RMSNormalization";
        let norm = if rms {
            Norm::RootMean(epsilon)
        } else {
            Norm::Deviation(epsilon)
        };
        let affine = |i: usize| -> Result<Option<Affine>, Why> {
            let Some(slot) = self.opt_slot(i)? else {
                return Ok(None);
            };
            let own = self.dims(i)?;
            if slot.elements as usize == rows.len {
                return Ok(Some(Affine {
                    slot,
                    place: |_, i, _| i,
                    sizes: vec![],
                }));
            }
            // Other shapes: along the last dimensions they repeat.
            let steps = spread(&dims[axis..], &own);
            let inner = volume(&dims[axis + 1..]);
            match &steps[..] {
                [0, rest @ ..]
                    if spread(&dims[axis + 1..], &own) == *rest
                        && slot.elements as usize == inner =>
                {
                    Ok(Some(Affine {
                        slot,
                        place: |_, i, s| i % s[0],
                        sizes: vec![inner],
                    }))
                }
                _ => Err("a scale that is broadcast within rows is the CPU's".to_owned()),
            }
        };
        normalise(
            KernelPlan::default(),
            &rows,
            what,
            norm,
            [affine(1)?, affine(2)?],
        )
    }

    pub(in super::super) fn group_norm(&self) -> Lowered {
        let dims = self.dims(0)?;
        let channels = dims[1];
        let groups = match self.op {
            "InstanceNormalization" => channels,
            _ => self.cx.args.uint("num_groups", 1, 1 << 30).map_err(said)? as usize,
        };
        let epsilon = self.cx.args.float_or("epsilon", 1e-5).map_err(said)?;
        let plane = volume(&dims[2..]).max(1);
        let per = channels / groups;
        let rows = Rows::along(&[dims[0] * groups, per * plane], &[1]);
        let what = Normed {
            x: Some(self.slot(0)?),
            y: Some(self.out(0)),
            ..Normed::default()
        };
        let affine = |i: usize| -> Result<Option<Affine>, Why> {
            let slot = self.slot(i)?;
            if slot.elements as usize == groups && groups != channels {
                return Ok(Some(Affine {
                    slot,
                    place: |r, _, s| r % s[0],
                    sizes: vec![groups],
                }));
            }
            let sizes = vec![groups, per, plane];
            Ok(Some(Affine {
                slot,
                place: |r, i, s| (r % s[0]) * s[1] + i / s[2],
                sizes,
            }))
        };
        let norm = Norm::Deviation(epsilon);
        normalise(
            KernelPlan::default(),
            &rows,
            what,
            norm,
            [affine(1)?, affine(2)?],
        )
    }

    pub(in super::super) fn plain_norm(&self) -> Lowered {
        let dims = self.dims(0)?;
        let axes = |axes: Vec<i64>| -> Result<Vec<usize>, Why> {
            axes.into_iter()
                .map(|a| self.cx.axis(a, dims.len()).map_err(said))
                .collect()
        };
        let (axes, norm) = match self.op {
            "LpNormalization" => {
                let p = self.cx.args.uint_or("p", 2, 1, 2).map_err(said)?;
                let axis = self.axis("axis", -1, dims.len())?;
                (vec![axis], if p == 1 { Norm::One } else { Norm::Two })
            }
            _ => {
                let given = self.cx.args.ints_opt("axes").map_err(said)?;
                (
                    axes(given.unwrap_or_else(|| vec![0, 2, 3]))?,
                    Norm::Plain(1e-9),
                )
            }
        };
        let rows = Rows::along(&dims, &axes);
        let what = Normed {
            x: Some(self.slot(0)?),
            y: Some(self.out(0)),
            ..Normed::default()
        };
        normalise(KernelPlan::default(), &rows, what, norm, [None, None])
    }

    /// Local response normalisation: one thread for each element, which looks at its neighbours.
    pub(in super::super) fn lrn(&self) -> Lowered {
        let dims = self.dims(0)?;
        let (_, channels, plane) = around(&dims, 1);
        let size = self.cx.args.uint("size", 1, 1 << 20).map_err(said)? as usize;
        let f = |name: &str, default: f64| self.cx.args.float_or(name, default).map_err(said);
        let (alpha, beta, bias) = (f("alpha", 1e-4)?, f("beta", 0.75)?, f("bias", 1.0)?);
        let x = self.slot(0)?;
        let y = self.out(0);
        if computed(x.dtype)? != Ty::F32 {
            return Err("functions of f64 are the CPU's".to_owned());
        }
        let bench = TensorKernelBuilder::new("local response", 64);
        let k = &bench.k;
        let (from, to) = (bench.reads(x)?, bench.writes(y)?);
        let (channels, plane) = (bench.size(channels)?, bench.size(plane)?);
        let (below, above) = (bench.size((size - 1) / 2)?, bench.size(size / 2)?);
        let each = bench.size(x.elements as usize)?;
        k.each(k.firings() * each, |i| {
            let (firing, at) = (i / each, i % each);
            let channel = (at / plane) % channels;
            let first = channel - channel.min(below);
            let last = (channel + above).min(channels - 1);
            let sum = k.var(k.f32(0.0));
            let start = from.base(firing) + (at - channel * plane);
            k.range(first, last + 1, k.u32(1), |c| {
                let v = from.load(start + c * plane);
                sum.set(sum.get() + v * v);
            });
            let scale = k.f32(bias as f32) + k.f32((alpha / size as f64) as f32) * sum.get();
            let by = match beta == 0.75 {
                true => scale.sqrt() * scale.sqrt().sqrt(),
                false => power(scale, k.f32(beta as f32)).unwrap_or(scale),
            };
            to.store(i, from.get(firing, at) / by);
        });
        let grid = Grid::Threads(Amount::each(x.elements));
        Ok(bench.finish(KernelPlan::default(), grid))
    }
}
