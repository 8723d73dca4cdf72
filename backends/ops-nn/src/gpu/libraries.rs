//! Products that the vendor's library can do as they are: of floats, with what it can add and nothing else.

use zbmd_ir::DType;

use super::super::cx::volume;
use super::super::gemm::Act;
use super::{Gpu, Memory};
use zbmd_gpu_ir::Math;
use zbmd_gpu_ir::library::{Product, Shape};
use zbmd_gpu_ir::tensor::product::Variant;
use zbmd_gpu_ir::tensor::{Slot, Why};

/// Rows or columns that its numbers count.
const MOST: usize = i32::MAX as usize;

/// What follows a product.
pub(super) struct Epilogue {
    pub(super) bias: Option<Slot>,
    pub(super) act: Act,
}

impl Gpu<'_> {
    /// `sizes` are those of a matrix of the result, and the depth; `ours` is the kernel that does it by default.
    pub(super) fn matmul_by_library(
        &self,
        factors: [Slot; 2],
        [left, right]: [&[usize]; 2],
        [m, n, depth]: [usize; 3],
        epilogue: Epilogue,
        ours: Variant,
    ) -> Result<Option<Product<Memory>>, Why> {
        let constant = factors.map(|f| f.constant);
        let (batches, rows) = match (volume(left), volume(right)) {
            // One right matrix in a firing: the rows of all left ones are those of one.
            (rows, 1) => (1, rows * m),
            // Matrices of all firings follow each other.
            (l, r) if l == r && constant == [false; 2] => (l, m),
            _ => return Ok(None),
        };
        let sizes = [batches, rows, n, depth];
        self.by_library(factors, sizes, [false; 2], 1.0, epilogue, ours)
    }

    /// The same of a product that is scaled, and of what is added.
    pub(super) fn gemm_by_library(
        &self,
        factors: [Slot; 2],
        transposed: [bool; 2],
        [m, n, depth]: [usize; 3],
        [alpha, beta]: [f64; 2],
        act: Act,
        ours: Variant,
    ) -> Result<Option<Product<Memory>>, Why> {
        let added = self.opt_slot(2)?;
        // A number for each column, as it is.
        if added.is_some() && (beta != 1.0 || self.dims(2)?.last() != Some(&n)) {
            return Ok(None);
        }
        self.by_library(
            factors,
            [1, m, n, depth],
            transposed,
            alpha as f32,
            Epilogue { bias: added, act },
            ours,
        )
    }

    fn by_library(
        &self,
        factors: [Slot; 2],
        sizes: [usize; 4],
        transposed: [bool; 2],
        alpha: f32,
        Epilogue { bias, act }: Epilogue,
        ours: Variant,
    ) -> Result<Option<Product<Memory>>, Why> {
        let out = self.out(0);
        let floats = factors
            .iter()
            .chain(&bias)
            .chain([&out])
            .all(|s| s.dtype == DType::F32);
        let relu = match act {
            Act::None => false,
            Act::Relu => true,
            _ => return Ok(None),
        };
        // What our own kernel computes exactly, the library does.
        let math = match ours {
            Variant::Cores { math, .. } => math,
            _ => Math::F32,
        };
        let [batches, rows, columns, depth] = sizes.map(|size| size as u64);
        let biased = bias.is_none_or(|b| b.constant && b.elements == columns);
        let shared = factors.map(|f| f.constant);
        let fits = floats && biased && !math.is_half() && shared != [true; 2];
        if !fits || sizes.iter().any(|size| !(1..=MOST).contains(size)) {
            return Ok(None);
        }
        let shape = Shape {
            batches,
            rows,
            columns,
            depth,
            transposed,
            shared,
            math,
            alpha,
            bias: bias.is_some(),
            relu,
        };
        Ok(Some(Product {
            shape,
            left: factors[0].operand,
            right: factors[1].operand,
            bias: bias.map(|b| b.operand),
            out: out.operand,
            scratch: Memory::Scratch,
        }))
    }
}
