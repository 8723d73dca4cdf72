//! Prints kernels as PTX 7.0 for sm_70, or for sm_80 where they multiply matrices, which every driver since compiles
//! for what it drives. Knows no driver.
//!
//! The code does what the SPIR-V does: sums and products of floats say how they are rounded, which keeps them from
//! being contracted, quotients and roots are rounded correctly, numbers below the normal ones are kept, integers wrap.
//! Values of specialisation constants are part of the text.
//!
//! A kernel's parameters are a pointer for each binding, `b0`, `b1` ..., then the words of its arguments, `a0` ...

mod code;

use std::fmt::Write;

use crate::kernels::lang::{Kernel, Ty};

/// PTX and architecture: the oldest that the code needs.
fn head(kernel: &Kernel) -> String {
    let arch = if kernel.multiplies { "sm_80" } else { "sm_70" };
    format!(".version 7.0\n.target {arch}\n.address_size 64\n")
}

/// The module of a kernel, and the name of its entry.
pub(crate) fn print(kernel: &Kernel) -> (String, String) {
    let name = entry(kernel.name);
    let mut printer = Printer { kernel, text: head(kernel), labels: 0 };
    printer.function(&name);
    (printer.text, name)
}

/// The name of a kernel as an identifier.
fn entry(name: &str) -> String {
    let plain = name.chars().map(|c| if c.is_ascii_alphanumeric() { c } else { '_' });
    "zbmd_".chars().chain(plain).collect()
}

struct Printer<'k> {
    kernel: &'k Kernel,
    text: String,
    labels: u32,
}

/// Class of a register: the letter of its name.
fn letter(ty: Ty) -> char {
    match ty {
        Ty::Bool => 'p',
        Ty::I32 | Ty::U32 => 'r',
        Ty::I64 | Ty::U64 => 'l',
        Ty::F32 => 'f',
        Ty::F64 => 'd',
    }
}

/// Type of a register without its sign, as declarations and moves have it.
fn plain(ty: Ty) -> &'static str {
    match ty {
        Ty::Bool => "pred",
        Ty::I32 | Ty::U32 => "b32",
        Ty::I64 | Ty::U64 => "b64",
        Ty::F32 => "f32",
        Ty::F64 => "f64",
    }
}

/// Type of an operation that depends on signs.
fn signed(ty: Ty) -> &'static str {
    match ty {
        Ty::Bool => "pred",
        Ty::I32 => "s32",
        Ty::U32 => "u32",
        Ty::I64 => "s64",
        Ty::U64 => "u64",
        Ty::F32 => "f32",
        Ty::F64 => "f64",
    }
}

/// Bytes of an element of shared memory.
fn shared_size(ty: Ty) -> u64 {
    if ty.is_wide() { 8 } else { 4 }
}

impl<'k> Printer<'k> {
    fn function(&mut self, name: &str) {
        let kernel = self.kernel;
        let pointers = (0..kernel.bindings.len()).map(|i| format!("\t.param .u64 b{i}"));
        let words = (0..=kernel.bindings.len()).map(|i| format!("\t.param .u32 a{i}"));
        let parameters: Vec<String> = pointers.chain(words).collect();
        let _ = writeln!(
            self.text,
            "\n.visible .entry {name}(\n{}\n)\n.reqntid {}, 1, 1\n{{",
            parameters.join(",\n"),
            kernel.local
        );
        for (set, count) in [('v', kernel.vars.len()), ('r', kernel.regs.len())] {
            let prefix = if set == 'v' { "v" } else { "" };
            for ty in [Ty::Bool, Ty::U32, Ty::U64, Ty::F32, Ty::F64] {
                let types = if set == 'v' { &kernel.vars } else { &kernel.regs };
                if types.iter().any(|t| letter(*t) == letter(ty)) {
                    self.line(&format!(".reg .{} %{prefix}{}<{count}>", plain(ty), letter(ty)));
                }
            }
        }
        // Temporaries: truth values, words, addresses.
        self.line(".reg .pred %tp");
        self.line(".reg .b32 %tr<2>");
        self.line(".reg .b64 %tl<2>");
        for (i, (ty, len)) in kernel.shared.iter().enumerate() {
            let bytes = shared_size(*ty) * u64::from(*len);
            self.line(&format!(".shared .align 8 .b8 s{i}[{bytes}]"));
        }
        for i in 0..kernel.bindings.len() {
            // Once: every access needs them.
            self.line(&format!(".reg .b64 %b{i}"));
            self.line(&format!("ld.param.u64 %b{i}, [b{i}]"));
            self.line(&format!("cvta.to.global.u64 %b{i}, %b{i}"));
        }
        self.body(&kernel.body);
        self.line("ret");
        self.text.push_str("}\n");
    }

    /// One statement.
    fn line(&mut self, text: &str) {
        let _ = writeln!(self.text, "\t{text};");
    }

    fn label(&mut self, name: &str) {
        let _ = writeln!(self.text, "{name}:");
    }

    /// A name for the labels of one branch or loop.
    fn fresh(&mut self) -> u32 {
        self.labels += 1;
        self.labels
    }
}
