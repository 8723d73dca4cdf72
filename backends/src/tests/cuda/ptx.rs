//! The printed code: every kernel of the catalogue in NVIDIA's assembler, where it is at hand.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::process::Command;

use zbmd_ir::TiVec;

use crate::kernels::emit::cubins::is_whole_object;
use crate::kernels::emit::ptx::print;
use crate::kernels::lang::{Builder, Kernel, Mem, Place, Ty};
use crate::kernels::{Caps, KernelPlan, Step};
use crate::tests::ops::conformance::{CASES, Subject, subject};
use crate::tests::ops::products;

fn lowered(subject: &Subject) -> Option<KernelPlan> {
    crate::standard_registry().lower(&subject.actor, &TiVec::new(), &Caps::COMMON)
}

/// All instructions in one kernel: what no op uses as well.
fn everything() -> Kernel {
    let k = Builder::new("every instruction", 32);
    let all = [
        Mem::U8,
        Mem::I8,
        Mem::U16,
        Mem::I16,
        Mem::I32,
        Mem::U32,
        Mem::I64,
        Mem::F32,
        Mem::F64,
    ];
    let at = k.place(Place::Thread);
    let truth = k.var(at.lt(k.spec(7)));
    let flags = k.shared(Ty::Bool, 32);
    flags.set(at, truth.get());
    k.barrier();
    for mem in all {
        let (x, y) = (k.reads(mem), k.writes(mem));
        let a = k.load(x, at);
        let mut v = -a + a * a - a.like(3.0);
        if a.ty.is_float() {
            v = k.fma(v.floor().round(), a.abs().sqrt(), v / a);
        } else {
            v = (!v & a) | (v ^ (a << 3)) | ((v >> 2) % a.like(5.0)) | (v / a.like(3.0));
            if a.ty.is_signed() {
                v = v.abs();
            }
        }
        for to in [
            Ty::I32,
            Ty::U32,
            Ty::I64,
            Ty::U64,
            Ty::F32,
            Ty::F64,
            Ty::Bool,
        ] {
            let there = v.cast(to);
            let back = if to == Ty::Bool {
                (!there).cast(a.ty)
            } else {
                there.cast(a.ty)
            };
            let same = k.select(truth.get(), flags.get(at), back.eq(v));
            v = k.select(same.ne(v.le(back)), v, back);
        }
        k.if_else(v.ne(a), || k.store(y, at, v), || k.store(y, at, a));
    }
    let (x, y) = (k.reads(Mem::Pair), k.writes(Mem::Pair));
    let [re, im] = k.load_pair(x, at);
    let high = k.mul_high(re.as_bits(Ty::U32), at);
    k.store_pair(y, at, [im, high.as_bits(Ty::F32)]);
    k.finish()
}

/// NVIDIA's assembler: `ZBMD_PTXAS`, or on the path.
fn ptxas() -> Option<PathBuf> {
    let named = std::env::var_os("ZBMD_PTXAS").map(PathBuf::from);
    let path = std::env::var_os("PATH").unwrap_or_default();
    let found = std::env::split_paths(&path)
        .map(|p| p.join("ptxas"))
        .find(|p| p.is_file());
    named.or(found)
}

/// What the assembler says of a module.
fn assemble(ptxas: &Path, text: &str, arch: &str, folder: &Path) -> Result<String, String> {
    let (from, to) = (folder.join("kernel.ptx"), folder.join("kernel.cubin"));
    std::fs::write(&from, text).map_err(|e| e.to_string())?;
    let output = Command::new(ptxas)
        .args(["-v", "-arch", arch, "-o"])
        .args([&to, &from])
        .output()
        .map_err(|e| e.to_string())?;
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    if !output.status.success() {
        return Err(said);
    }
    let object = std::fs::read(&to).map_err(|e| e.to_string())?;
    assert!(
        is_whole_object(&object),
        "the assembler's own object is rejected"
    );
    Ok(said)
}

#[test]
fn every_kernel_is_assembled_and_spills_four_registers_at_most() {
    /// Of a thread: the assembler gives up a few to have more threads at work.
    const MAX_SPILLED_BYTES: u32 = 16;
    let Some(ptxas) = ptxas() else {
        let required =
            std::env::var("ZBMD_REQUIRE").is_ok_and(|r| r.split(',').any(|w| w == "ptxas"));
        assert!(!required, "ZBMD_REQUIRE names ptxas, but it is not there");
        return eprintln!("SKIPPED: no ptxas: name it in ZBMD_PTXAS, or put it on the path");
    };
    let folder = std::env::temp_dir().join(format!("zbmd-ptx-{}", std::process::id()));
    std::fs::create_dir_all(&folder).expect("a folder");
    // Kernels that differ in the values of their constants are one here.
    let mut modules = BTreeMap::from([("every instruction".to_owned(), everything())]);
    let mut seen = BTreeSet::new();
    let plans = CASES.iter().filter_map(|&(op, parameters, inputs)| {
        let name = format!("{op}({parameters}) of ({inputs})");
        lowered(&subject(op, parameters, inputs)).map(|plan| (name, plan))
    });
    let rounded = super::math::kernels()
        .into_iter()
        .chain(super::attention::kernels());
    for (name, plan) in plans.chain(rounded).chain(products::plans(&Caps::CUDA)) {
        for step in &plan.steps {
            let Step::Run(run) = step else { continue };
            let plain = Kernel {
                specs: vec![1; run.kernel.specs.len()],
                ..(*run.kernel).clone()
            };
            if seen.insert(print(&plain, false)) {
                modules.insert(
                    format!("{name}: {}", run.kernel.name),
                    (*run.kernel).clone(),
                );
            }
        }
    }
    assert!(modules.len() > 40, "only {} kernels", modules.len());
    let mut wrong = Vec::new();
    for (name, kernel) in &modules {
        for (arch, waits) in [("sm_80", false), ("sm_90", false), ("sm_90", true)] {
            let (text, entry) = print(kernel, waits);
            match assemble(&ptxas, &text, arch, &folder) {
                Err(said) => wrong.push(format!("{name} for {arch}: {said}\n{text}")),
                Ok(said) => {
                    let spilled = said.split(" bytes spill stores").next();
                    let spilled = spilled.and_then(|before| before.rsplit(' ').next());
                    let is_small = spilled
                        .and_then(|bytes| bytes.parse().ok())
                        .is_some_and(|bytes: u32| bytes <= MAX_SPILLED_BYTES);
                    if !said.contains(&entry) || !is_small {
                        wrong.push(format!("{name} for {arch}: {said}"));
                    }
                }
            }
        }
    }
    let _ = std::fs::remove_dir_all(&folder);
    assert!(
        wrong.is_empty(),
        "{} of {}:\n{}",
        wrong.len(),
        modules.len(),
        wrong.join("\n")
    );
    println!(
        "{} kernels assembled for sm_80 and sm_90, none spills more than {MAX_SPILLED_BYTES} bytes",
        modules.len()
    );
}
