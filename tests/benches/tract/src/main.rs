//! Times an ONNX model by tract, on one thread: `tract-rival MODEL THREADS FOLDER`.
//!
//! Speaks as `onnx_rival.py` does: outputs of one call go to FOLDER as 0.npy, 1.npy, ...; then each line of the
//! standard input is a number of calls, the answer the seconds of one of them; in the end, the KiB that the peak of
//! the resident memory lies above what it was before the model was loaded.

use std::io::BufRead;
use std::path::Path;
use std::time::Instant;

use tract_onnx::prelude::*;
use tract_onnx::tract_core::internal::{DimLike, TractError};
use tract_onnx::tract_hir::infer::{Factoid, GenericFactoid};

fn kib(field: &str) -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|l| l.strip_prefix(field));
    line.and_then(|l| {
        l.trim_start_matches(':')
            .split_whitespace()
            .next()?
            .parse()
            .ok()
    })
    .unwrap_or(0)
}

/// The elements of a NumPy file of little-endian numbers, its header skipped.
fn npy(path: &Path) -> Option<Vec<u8>> {
    let bytes = std::fs::read(path).ok()?;
    let header = u16::from_le_bytes([bytes[8], bytes[9]]) as usize;
    Some(bytes[10 + header..].to_vec())
}

fn write_npy(path: &Path, tensor: &Tensor) -> std::io::Result<()> {
    let kind = match tensor.datum_type() {
        DatumType::F32 => "<f4",
        DatumType::I64 => "<i8",
        _ => "|u1",
    };
    let shape: Vec<String> = tensor.shape().iter().map(|d| format!("{d},")).collect();
    let mut text = format!(
        "{{'descr': '{kind}', 'fortran_order': False, 'shape': ({}), }}",
        shape.join(" ")
    );
    text += &" ".repeat(63 - (text.len() + 10) % 64);
    text += "\n";
    let mut bytes = b"\x93NUMPY\x01\x00".to_vec();
    bytes.extend((text.len() as u16).to_le_bytes());
    bytes.extend(text.as_bytes());
    bytes.extend(tensor.as_bytes());
    std::fs::write(path, bytes)
}

fn main() -> TractResult<()> {
    let words: Vec<String> = std::env::args().collect();
    let [_, path, _threads, folder] = words.as_slice() else {
        return Err(TractError::msg("tract-rival MODEL THREADS FOLDER"));
    };
    let before = kib("VmRSS");
    let mut model = tract_onnx::onnx().model_for_path(path)?;
    let stem = path.trim_end_matches(".onnx");
    let mut inputs: TVec<TValue> = tvec!();
    for i in 0..model.inputs.len() {
        let name = model.node(model.inputs[i].node).name.clone();
        let fact = model.input_fact(i)?.clone();
        let kind = fact.datum_type().unwrap_or(DatumType::F32);
        let free = |name: &str| if name == "sequence" { 576 } else { 1 };
        let size = |d: &GenericFactoid<TDim>| match d.concretize() {
            Some(d) => d.to_usize().unwrap_or_else(|_| free(&d.to_string())),
            None => 1,
        };
        let shape: Vec<usize> = fact.shape.dims().map(size).collect();
        let count: usize = shape.iter().product();
        let bytes = match npy(Path::new(&format!("{stem}.in{i}.npy"))) {
            Some(bytes) => bytes,
            None if name == "sr" => 16_000_i64.to_le_bytes().to_vec(),
            None => (0..count)
                .flat_map(|k| (k as f32 / count as f32).to_le_bytes())
                .collect(),
        };
        model.set_input_fact(i, InferenceFact::dt_shape(kind, shape.clone()))?;
        inputs.push(unsafe { Tensor::from_raw_dt(kind, &shape, &bytes)? }.into());
    }
    let model = model.into_optimized()?.into_runnable()?;
    for (i, out) in model.run(inputs.clone())?.iter().enumerate() {
        write_npy(&Path::new(folder).join(format!("{i}.npy")), out)?;
    }
    println!("ready");
    for line in std::io::stdin().lock().lines() {
        let calls: u64 = line?.trim().parse()?;
        let start = Instant::now();
        for _ in 0..calls {
            model.run(inputs.clone())?;
        }
        println!("{}", start.elapsed().as_secs_f64() / calls as f64);
    }
    println!("{}", kib("VmHWM") - before);
    Ok(())
}
