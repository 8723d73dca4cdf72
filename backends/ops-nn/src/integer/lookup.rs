//! Functions of bytes, by table.
#![expect(unsafe_code, reason = "vector instructions over checked slices")]

use zbmd_ir::DType;

use super::super::cx::{Cx, Plan, Planned, Tensors, token};
use super::BYTES;

/// One entry for each byte.
const ENTRIES: usize = 256;

/// Operands: the bytes, and the results of the bytes from 0 on, those of i8 counted as u8. Bytes behind the end of the
/// table have the result of its last one.
pub(in super::super) fn byte_lookup(cx: &Cx<'_>) -> Planned {
    cx.expect(0, &BYTES)?;
    let result: DType = cx.expect(1, &BYTES)?;
    let table = cx.operand(1)?.data.as_deref().unwrap_or_default();
    let Some(last) = table.last().filter(|_| table.len() <= ENTRIES) else {
        return Err(cx.refuse_type(1, format!("it has 1 to {ENTRIES} elements")));
    };
    let mut entries = [*last; ENTRIES];
    entries[..table.len()].copy_from_slice(table);

    let outs = vec![token(result, &cx.dims(0)?)];
    let body = move |tensors: &mut Tensors<'_>| {
        tensors.map::<u8, u8>(0, |from, to| look_up(&entries, from, to));
    };
    Ok(Plan::new(outs, body).over([0]))
}

/// The entry of each byte.
fn look_up(entries: &[u8; ENTRIES], from: &[u8], to: &mut [u8]) {
    #[cfg(target_arch = "x86_64")]
    let (from, to) = {
        use super::super::vector::widest;
        use std::arch::is_x86_feature_detected as has;

        let has_permutations = has!("avx512f") && has!("avx512bw") && has!("avx512vbmi");
        if widest() >= 512 && has_permutations {
            let whole = from.len().min(to.len()) / x86::VECTOR * x86::VECTOR;
            let (whole_to, rest) = to.split_at_mut(whole);
            // SAFETY: the processor has the instructions.
            unsafe { x86::look_up(entries, &from[..whole], whole_to) };
            (&from[whole..], rest)
        } else {
            (from, to)
        }
    };
    for (result, &byte) in to.iter_mut().zip(from) {
        *result = entries[usize::from(byte)];
    }
}

#[cfg(target_arch = "x86_64")]
mod x86 {
    use std::arch::x86_64::*;

    use super::ENTRIES;

    /// Bytes of a vector.
    pub(super) const VECTOR: usize = 64;

    /// The entry of each byte of whole vectors: the table lies in four registers.
    #[target_feature(enable = "avx512f,avx512bw,avx512vbmi")]
    pub(super) fn look_up(entries: &[u8; ENTRIES], from: &[u8], to: &mut [u8]) {
        // SAFETY: the table is four vectors.
        let quarters: [__m512i; ENTRIES / VECTOR] = std::array::from_fn(|quarter| unsafe {
            _mm512_loadu_si512(entries[quarter * VECTOR..].as_ptr().cast())
        });
        let vectors = from.as_chunks::<VECTOR>().0;
        for (from, to) in vectors.iter().zip(to.as_chunks_mut::<VECTOR>().0) {
            // SAFETY: both are whole vectors.
            unsafe {
                let bytes = _mm512_loadu_si512(from.as_ptr().cast());
                // Seven bits of a byte choose among two registers, the eighth which two.
                let low = _mm512_permutex2var_epi8(quarters[0], bytes, quarters[1]);
                let high = _mm512_permutex2var_epi8(quarters[2], bytes, quarters[3]);
                let found = _mm512_mask_blend_epi8(_mm512_movepi8_mask(bytes), low, high);
                _mm512_storeu_si512(to.as_mut_ptr().cast(), found);
            }
        }
    }
}
