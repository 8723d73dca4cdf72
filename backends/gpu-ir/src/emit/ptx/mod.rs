//! Prints kernels as PTX 7.0 for sm_70, or for sm_80 where they multiply matrices, which every driver since compiles
//! for what it drives; as PTX 7.8 for sm_90 where they wait for others themselves. Knows no driver.
//!
//! The code does what the SPIR-V does: sums and products of floats say how they are rounded, which keeps them from
//! being contracted, quotients and roots are rounded correctly, numbers below the normal ones are kept, integers wrap.
//! Values of specialisation constants are part of the text.
//!
//! Kernels that wait themselves (programmatic dependent launch): the groups of a kernel behind a programmatic edge may
//! start as soon as all groups of the kernel before have executed `launch_dependents` or ended. Before anything else
//! each thread executes `wait`, which returns when all of the kernel before has ended and what it wrote is seen. That
//! this is as good as a plain edge:
//! - What a kernel reads and overwrites, and what it writes, it touches behind its `wait`, so never before the end of
//!   the kernel before. Parameters, which are loaded earlier or later, belong to the launch.
//! - A kernel has ended only when all of its threads have passed their `wait`, so when the one before it has ended too.
//!   Of a chain A, B, C therefore C's `wait` covers A: edges that follow from others may be left out, as among plain
//!   ones.
//! - `launch_dependents` promises nothing of what was written, and `wait` needs no such promise: it may come at any
//!   place. It comes directly behind `wait`, for the most time to start in. All groups of a kernel are at work when
//!   those behind it start, so these take no processor from them that they still wait for; and of a chain, only one
//!   kernel's groups stand by, since theirs come to `launch_dependents` behind their `wait`.
//! - Behind a plain edge `wait` returns at once. What follows a kernel by a plain edge (copies, zeros) starts at its
//!   end.
//!
//! Where a kernel asks for it, short branches without loops and barriers are printed as guarded instructions: only what
//! touches memory or changes a variable has the guard, and the rest, whose results nobody uses then, is always done. So
//! the loads of several such branches are under way at once, which loads behind branches never are.
//!
//! A kernel's parameters are a pointer for each binding, `b0`, `b1` ..., then the words of its arguments, `a0` ...

mod code;

use std::fmt::Write;

use crate::lang::{Kernel, Ty};

/// PTX and architecture: the oldest that the code needs.
fn module_header(kernel: &Kernel, waits: bool) -> String {
    let (version, arch) = match (waits, kernel.multiplies) {
        (true, _) => ("7.8", "sm_90"),
        (_, true) => ("7.0", "sm_80"),
        _ => ("7.0", "sm_70"),
    };
    format!(".version {version}\n.target {arch}\n.address_size 64\n")
}

/// The module of a kernel, which perhaps waits for the one before itself, and the name of its entry.
pub fn print(kernel: &Kernel, waits: bool) -> (String, String) {
    let entry_name = entry_name(kernel.name);
    let mut printer = Printer {
        kernel,
        waits,
        text: module_header(kernel, waits),
        labels: 0,
        guard: None,
        guards: 0,
    };

    printer.write_function(&entry_name);
    (printer.text, entry_name)
}

/// The name of a kernel as an identifier.
fn entry_name(name: &str) -> String {
    let plain_name = name
        .chars()
        .map(|c| if c.is_ascii_alphanumeric() { c } else { '_' });
    "zbmd_".chars().chain(plain_name).collect()
}

struct Printer<'k> {
    kernel: &'k Kernel,
    waits: bool,
    text: String,
    labels: u32,
    /// The predicate of the guarded instructions that are being printed.
    guard: Option<String>,
    /// Predicates that were made for guards.
    guards: u32,
}

/// Class of a register: the letter of its name.
fn register_class(ty: Ty) -> char {
    match ty {
        Ty::Bool => 'p',
        Ty::I32 | Ty::U32 => 'r',
        Ty::I64 | Ty::U64 => 'l',
        Ty::F32 => 'f',
        Ty::F64 => 'd',
    }
}

/// Type of a register without its sign, as declarations and moves have it.
fn plain_type(ty: Ty) -> &'static str {
    match ty {
        Ty::Bool => "pred",
        Ty::I32 | Ty::U32 => "b32",
        Ty::I64 | Ty::U64 => "b64",
        Ty::F32 => "f32",
        Ty::F64 => "f64",
    }
}

/// Type of an operation that depends on signs.
fn signed_type(ty: Ty) -> &'static str {
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
    fn write_function(&mut self, name: &str) {
        let kernel = self.kernel;
        // The order that launches rely on: pointers, then words.
        let pointer_parameters = (0..kernel.bindings.len()).map(|i| format!("\t.param .u64 b{i}"));
        let word_parameters = (0..=kernel.bindings.len()).map(|i| format!("\t.param .u32 a{i}"));
        let all_parameters: Vec<String> = pointer_parameters.chain(word_parameters).collect();

        let _ = writeln!(
            self.text,
            "\n.visible .entry {name}(\n{}\n)\n.reqntid {}, 1, 1\n{{",
            all_parameters.join(",\n"),
            kernel.local
        );

        for (set, count) in [('v', kernel.vars.len()), ('r', kernel.regs.len())] {
            let name_prefix = if set == 'v' { "v" } else { "" };
            for ty in [Ty::Bool, Ty::U32, Ty::U64, Ty::F32, Ty::F64] {
                let declared_types = if set == 'v' {
                    &kernel.vars
                } else {
                    &kernel.regs
                };
                if declared_types
                    .iter()
                    .any(|t| register_class(*t) == register_class(ty))
                {
                    self.line(&format!(
                        ".reg .{} %{name_prefix}{}<{count}>",
                        plain_type(ty),
                        register_class(ty)
                    ));
                }
            }
        }

        // Temporaries: truth values, words, addresses.
        self.line(".reg .pred %tp");
        self.line(".reg .b32 %tr<2>");
        self.line(".reg .b64 %tl<2>");
        let declarations_end = self.text.len();

        for (i, (ty, len)) in kernel.shared.iter().enumerate() {
            let array_bytes = shared_size(*ty) * u64::from(*len);
            self.line(&format!(".shared .align 8 .b8 s{i}[{array_bytes}]"));
        }

        for i in 0..kernel.bindings.len() {
            // Once: every access needs them.
            self.line(&format!(".reg .b64 %b{i}"));
            self.line(&format!("ld.param.u64 %b{i}, [b{i}]"));
            self.line(&format!("cvta.to.global.u64 %b{i}, %b{i}"));
        }

        if self.waits {
            self.line("griddepcontrol.wait");
            self.line("griddepcontrol.launch_dependents");
        }

        self.body(&kernel.body);
        self.line("ret");
        self.text.push_str("}\n");
        if self.guards > 0 {
            let declaration = format!("\t.reg .pred %tg<{}>;\n", self.guards);
            self.text.insert_str(declarations_end, &declaration);
        }
    }

    /// One statement.
    fn line(&mut self, text: &str) {
        let _ = writeln!(self.text, "\t{text};");
    }

    /// A statement that is done only where the present guard holds.
    fn guarded_line(&mut self, text: &str) {
        match &self.guard {
            Some(guard) => self.line(&format!("@{guard} {text}")),
            None => self.line(text),
        }
    }

    /// A new predicate for a guard.
    fn new_guard(&mut self) -> String {
        self.guards += 1;
        format!("%tg{}", self.guards - 1)
    }

    fn label(&mut self, name: &str) {
        let _ = writeln!(self.text, "{name}:");
    }

    /// A name for the labels of one branch or loop.
    fn new_label(&mut self) -> u32 {
        self.labels += 1;
        self.labels
    }
}
