//! Packed weights, which begin with a line of the cache.

use bytemuck::Pod;
use bytes::Bytes;
use zbmd_op::aligned::{AlignedVec, is_aligned};

pub(crate) type AlignedFloats = AlignedVec<f32>;

/// Elements that begin with a line of the cache: made here, or where a bundle has them.
pub(crate) enum Packed<T> {
    Made(AlignedVec<T>),
    Kept(Bytes),
}

/// None: enough to ask a kernel what memory it needs.
impl<T: Pod> Default for Packed<T> {
    fn default() -> Self {
        Self::Made(AlignedVec::zeroed(0))
    }
}

/// What a bundle has, whose bytes may begin at any address: they are read in place where they begin with a line, and else copied. The
/// bytes are whole elements.
impl<T: Pod> From<Bytes> for Packed<T> {
    fn from(kept: Bytes) -> Self {
        if is_aligned(&kept) {
            return Self::Kept(kept);
        }
        let mut copy = AlignedVec::<T>::zeroed(kept.len() / size_of::<T>());
        bytemuck::cast_slice_mut(&mut copy).copy_from_slice(&kept);
        Self::Made(copy)
    }
}

impl<T: Pod> std::ops::Deref for Packed<T> {
    type Target = [T];

    fn deref(&self) -> &[T] {
        match self {
            Self::Made(elements) => elements,
            Self::Kept(bytes) => bytemuck::cast_slice(bytes),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_does_not_begin_with_a_line_is_copied() {
        let floats: Vec<f32> = (0..40).map(|n| n as f32).collect();
        let aligned = AlignedVec::from(&floats[..]);
        let bytes = Bytes::copy_from_slice(aligned.as_ref());
        for skipped in [0, 1, 16] {
            let packed = Packed::<f32>::from(bytes.slice(4 * skipped..));
            assert_eq!(packed[..], floats[skipped..]);
            assert!(is_aligned(bytemuck::cast_slice(&packed)));
        }

        let owned = Bytes::from_owner(aligned);
        assert!(matches!(Packed::<f32>::from(owned), Packed::Kept(_)));
    }
}
