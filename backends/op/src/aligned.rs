//! Memory that begins with a line of the cache, as the tokens in an arena do: a vector that lay in two of them would be read at half
//! the speed.

use std::marker::PhantomData;

use bytemuck::{Pod, Zeroable};

const LINE_BYTES: usize = 64;

#[derive(Clone, Copy, Pod, Zeroable)]
#[repr(C, align(64))]
struct Line([u8; LINE_BYTES]);

/// A fixed number of elements, the first of which begins a line of the cache.
pub struct AlignedVec<T> {
    lines: Vec<Line>,
    len: usize,
    elements: PhantomData<T>,
}

impl<T: Pod> AlignedVec<T> {
    /// `len` elements, all of them zero.
    ///
    /// # Panics
    /// Without memory for them.
    pub fn zeroed(len: usize) -> Self {
        const { assert!(LINE_BYTES.is_multiple_of(size_of::<T>())) }
        let line_count = len.div_ceil(LINE_BYTES / size_of::<T>());
        Self {
            lines: vec![Line([0; LINE_BYTES]); line_count],
            len,
            elements: PhantomData,
        }
    }
}

impl<T: Pod> From<&[T]> for AlignedVec<T> {
    fn from(elements: &[T]) -> Self {
        let mut aligned = Self::zeroed(elements.len());
        aligned.copy_from_slice(elements);
        aligned
    }
}

impl<T: Pod> std::ops::Deref for AlignedVec<T> {
    type Target = [T];

    fn deref(&self) -> &[T] {
        &bytemuck::cast_slice(&self.lines)[..self.len]
    }
}

impl<T: Pod> std::ops::DerefMut for AlignedVec<T> {
    fn deref_mut(&mut self) -> &mut [T] {
        &mut bytemuck::cast_slice_mut(&mut self.lines)[..self.len]
    }
}

/// The elements as the bytes that they are.
impl<T: Pod> AsRef<[u8]> for AlignedVec<T> {
    fn as_ref(&self) -> &[u8] {
        bytemuck::cast_slice(self)
    }
}

/// Whether bytes begin with a line of the cache.
pub fn is_aligned(bytes: &[u8]) -> bool {
    bytes.as_ptr().addr().is_multiple_of(align_of::<Line>())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn elements_begin_with_a_line_whatever_they_were_copied_from() {
        let floats: Vec<f32> = (0..100).map(|n| n as f32).collect();
        for (start, end) in [(0, 0), (1, 2), (3, 50), (7, 100)] {
            let aligned = AlignedVec::from(&floats[start..end]);
            assert!(is_aligned(aligned.as_ref()));
            assert_eq!(*aligned, floats[start..end]);
        }
        let bytes = AlignedVec::<u8>::zeroed(65);
        assert_eq!(bytes.len(), 65);
        assert!(!is_aligned(&bytes[4..]));
    }
}
