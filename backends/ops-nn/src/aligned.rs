//! Floats that begin with a line of the cache: a vector of sixteen that lay in two of them would be read at half the speed.

use bytemuck::{Pod, Zeroable};

const LINE: usize = 16;

#[derive(Clone, Copy, Pod, Zeroable)]
#[repr(C, align(64))]
struct Line([f32; LINE]);

pub(crate) struct AlignedFloats {
    lines: Vec<Line>,
    len: usize,
}

impl AlignedFloats {
    pub(crate) fn zeros(len: usize) -> Self {
        Self {
            lines: vec![Line([0.0; LINE]); len.div_ceil(LINE)],
            len,
        }
    }

    /// Whether bytes are floats that begin with a line.
    pub(crate) fn are(bytes: &[u8]) -> bool {
        bytes.as_ptr().addr().is_multiple_of(align_of::<Line>())
            && bytes.len().is_multiple_of(size_of::<f32>())
    }
}

impl From<&[f32]> for AlignedFloats {
    fn from(floats: &[f32]) -> Self {
        let mut aligned = Self::zeros(floats.len());
        aligned.copy_from_slice(floats);
        aligned
    }
}

impl std::ops::Deref for AlignedFloats {
    type Target = [f32];

    fn deref(&self) -> &[f32] {
        &bytemuck::cast_slice(&self.lines)[..self.len]
    }
}

impl std::ops::DerefMut for AlignedFloats {
    fn deref_mut(&mut self) -> &mut [f32] {
        &mut bytemuck::cast_slice_mut(&mut self.lines)[..self.len]
    }
}

/// The floats as the bytes that they are.
impl AsRef<[u8]> for AlignedFloats {
    fn as_ref(&self) -> &[u8] {
        bytemuck::cast_slice(self)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn floats_begin_with_a_line_whatever_they_were_copied_from() {
        let floats: Vec<f32> = (0..100).map(|n| n as f32).collect();
        for (start, end) in [(0, 0), (1, 2), (3, 50), (7, 100)] {
            let aligned = AlignedFloats::from(&floats[start..end]);
            assert!(AlignedFloats::are(aligned.as_ref()));
            assert_eq!(*aligned, floats[start..end]);
        }
        let aligned = AlignedFloats::zeros(32);
        assert!(!AlignedFloats::are(&aligned.as_ref()[4..]));
        assert!(!AlignedFloats::are(&aligned.as_ref()[..5]));
    }
}
