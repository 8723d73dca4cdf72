//! Products that the vendor's library can do as they are: of floats, with what it can add and nothing else.

use zbmd_ir::DType;

use super::super::cx::volume;
use super::super::gemm::Act;
use super::super::matmul::GemmSpec;
use super::contract::BatchedShape;
use super::{Gpu, Memory};
use zbmd_gpu_ir::Math;
use zbmd_gpu_ir::library::{Product, Shape};
use zbmd_gpu_ir::tensor::product::Variant;
use zbmd_gpu_ir::tensor::{Slot, Why};

/// The library counts rows and columns in 32 bits with a sign.
const MAX_SIZE: usize = i32::MAX as usize;

/// Sizes of a product of two matrices.
#[derive(Clone, Copy)]
pub(super) struct MatrixSizes {
    pub(super) rows: usize,
    pub(super) columns: usize,
    pub(super) depth: usize,
}

/// What follows a product.
pub(super) struct Epilogue {
    pub(super) bias: Option<Slot>,
    pub(super) act: Act,
}

/// A product as the library is asked for it.
struct LibraryRequest {
    batches: usize,
    sizes: MatrixSizes,
    transposes: [bool; 2],
    alpha: f32,
    epilogue: Epilogue,
    /// The kernel of ours that does it by default: the library rounds factors as that one does.
    own_variant: Variant,
}

impl Gpu<'_> {
    pub(super) fn matmul_by_library(
        &self,
        factors: [Slot; 2],
        shape: &BatchedShape,
        epilogue: Epilogue,
        own_variant: Variant,
    ) -> Result<Option<Product<Memory>>, Why> {
        let left_count = volume(&shape.left_batch);
        let right_count = volume(&shape.right_batch);
        let vary = factors.iter().all(|factor| !factor.constant);
        let mut sizes = shape.sizes;
        let batches = if right_count == 1 {
            // One right matrix in a firing: the rows of all left ones are those of one.
            sizes.rows *= left_count;
            1
        } else if left_count == right_count && vary {
            // Matrices of all firings follow each other.
            left_count
        } else {
            return Ok(None);
        };
        self.by_library(
            factors,
            LibraryRequest {
                batches,
                sizes,
                transposes: [false; 2],
                alpha: 1.0,
                epilogue,
                own_variant,
            },
        )
    }

    /// The same of a product that is scaled, and of what is added.
    pub(super) fn gemm_by_library(
        &self,
        factors: [Slot; 2],
        sizes: MatrixSizes,
        spec: &GemmSpec,
        own_variant: Variant,
    ) -> Result<Option<Product<Memory>>, Why> {
        let added = self.opt_slot(2)?;
        // A number for each column, as it is.
        if added.is_some() && (spec.beta != 1.0 || self.dims(2)?.last() != Some(&sizes.columns)) {
            return Ok(None);
        }
        self.by_library(
            factors,
            LibraryRequest {
                batches: 1,
                sizes,
                transposes: spec.transposes,
                alpha: spec.alpha as f32,
                epilogue: Epilogue {
                    bias: added,
                    act: spec.act,
                },
                own_variant,
            },
        )
    }

    /// `None` where the library cannot do it.
    fn by_library(
        &self,
        factors: [Slot; 2],
        request: LibraryRequest,
    ) -> Result<Option<Product<Memory>>, Why> {
        let out = self.out(0);
        let LibraryRequest {
            batches,
            sizes:
                MatrixSizes {
                    rows,
                    columns,
                    depth,
                },
            epilogue: Epilogue { bias, act },
            ..
        } = request;
        let relu = match act {
            Act::None => false,
            Act::Relu => true,
            _ => return Ok(None),
        };
        // What our own kernel computes exactly, the library does.
        let math = match request.own_variant {
            Variant::Cores { math, .. } => math,
            _ => Math::F32,
        };

        let are_floats = factors
            .iter()
            .chain(&bias)
            .chain([&out])
            .all(|slot| slot.dtype == DType::F32);
        let fits_bias = bias.is_none_or(|bias| bias.constant && bias.elements == columns as u64);
        let shared = factors.map(|factor| factor.constant);
        let sizes_fit = [batches, rows, columns, depth]
            .iter()
            .all(|size| (1..=MAX_SIZE).contains(size));
        let fits = are_floats && fits_bias && !math.is_half() && shared != [true; 2] && sizes_fit;
        if !fits {
            return Ok(None);
        }

        let shape = Shape {
            batches: batches as u64,
            rows: rows as u64,
            columns: columns as u64,
            depth: depth as u64,
            transposed: request.transposes,
            shared,
            math,
            alpha: request.alpha,
            bias: bias.is_some(),
            relu,
        };
        Ok(Some(Product {
            shape,
            left: factors[0].operand,
            right: factors[1].operand,
            bias: bias.map(|bias| bias.operand),
            out: out.operand,
            scratch: Memory::Scratch,
        }))
    }
}
