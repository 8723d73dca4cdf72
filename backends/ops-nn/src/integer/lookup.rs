//! Functions of bytes, by table.

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
        tensors.map::<u8, u8>(0, |from, to| {
            for (result, &byte) in to.iter_mut().zip(from) {
                *result = entries[usize::from(byte)];
            }
        });
    };
    Ok(Plan::new(outs, body).over([0]))
}
