//! Products of matrices that the vendor's library does, where there is one: what is asked of it. Knows no library and
//! no driver.

use super::factors::Math;

/// The library, for people.
pub const TITLE: &str = "cuBLASLt";

/// The variant that it is.
pub const NAME: &str = "cublaslt";

/// Scratch memory of each product, whatever the library then uses of it: plans must know it beforehand.
pub const SCRATCH_BYTES: u64 = 4 << 20;

/// What the address of the library's workspace is a multiple of, in bytes. Buffers of plans begin at less, so the
/// workspace is a part of the scratch memory.
pub const WORKSPACE_ALIGN: u64 = 256;

/// Bytes of the workspace, wherever the scratch memory begins.
pub const WORKSPACE: u64 = SCRATCH_BYTES - WORKSPACE_ALIGN;

/// Why other devices cannot have it, as a clause.
pub fn needs_cuda() -> String {
    format!("products by {TITLE} are for CUDA devices")
}

/// What the library chooses its algorithm by. One algorithm does all products of a shape, however many are done at once
/// and wherever they lie, so that calls of n firings have the bits of n calls of one.
#[derive(Clone, Copy, Debug, PartialEq)]
#[expect(missing_docs, reason = "fields say what their names say")]
pub struct Shape {
    /// Products of one firing.
    pub batches: u64,
    pub rows: u64,
    pub columns: u64,
    pub depth: u64,
    /// Whether the left matrix is stored column by column, and the right one.
    pub transposed: [bool; 2],
    /// Whether all products have the same left matrix, and the same right one.
    pub shared: [bool; 2],
    pub math: Math,
    pub alpha: f32,
    /// A number for each column is added.
    pub bias: bool,
    /// What is negative then becomes 0.
    pub relu: bool,
}

/// `relu(alpha · left · right + bias)`, of dense matrices of `f32` that are stored row by row, at places of type `At`.
#[derive(Clone, Copy, Debug, PartialEq)]
#[expect(missing_docs, reason = "fields say what their names say")]
pub struct Product<At> {
    pub shape: Shape,
    pub left: At,
    pub right: At,
    pub bias: Option<At>,
    pub out: At,
    /// [`SCRATCH_BYTES`] bytes in a plan; where addresses are known, [`WORKSPACE`] bytes from a multiple of
    /// [`WORKSPACE_ALIGN`] on.
    pub scratch: At,
}

impl<At: Copy> Product<At> {
    /// The same elsewhere.
    pub fn at<To>(&self, place: impl Fn(At) -> To) -> Product<To> {
        Product {
            shape: self.shape,
            left: place(self.left),
            right: place(self.right),
            bias: self.bias.map(&place),
            out: place(self.out),
            scratch: place(self.scratch),
        }
    }

    /// What is read.
    pub fn reads(&self) -> impl Iterator<Item = At> {
        [self.left, self.right].into_iter().chain(self.bias)
    }

    /// What is written.
    pub fn writes(&self) -> impl Iterator<Item = At> {
        [self.out, self.scratch].into_iter()
    }
}

impl Shape {
    /// Elements of one left, right and resulting matrix.
    pub fn elements(&self) -> [u64; 3] {
        [
            self.rows * self.depth,
            self.depth * self.columns,
            self.rows * self.columns,
        ]
    }

    /// Elements from one product's left, right and resulting matrix to the next one's.
    pub fn strides(&self) -> [u64; 3] {
        let [left, right, out] = self.elements();
        let stride_of = |shared: bool, elements: u64| if shared { 0 } else { elements };
        [
            stride_of(self.shared[0], left),
            stride_of(self.shared[1], right),
            out,
        ]
    }

    /// Elements of all left, right and resulting matrices of so many products.
    pub fn spans(&self, products: u64) -> [u64; 3] {
        let elements = self.elements();
        let strides = self.strides();
        std::array::from_fn(|i| elements[i] + strides[i] * (products - 1))
    }

    /// What the addresses of left, right and resulting matrices are multiples of, in bytes, wherever a product lies:
    /// buffers begin at more, and products follow each other.
    pub fn aligns(&self) -> [u32; 3] {
        self.elements().map(|elements| match elements % 4 {
            0 => 16,
            2 => 8,
            _ => 4,
        })
    }
}
