//! Kernels as text, for people and snapshots.

use std::fmt::{self, Write as _};

use xxhash_rust::xxh3::Xxh3Default;

use super::{Kernel, Stmt};

impl fmt::Display for Kernel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(
            f,
            "kernel {} local {} specs {:?}",
            self.name, self.local, self.specs
        )?;
        for (i, binding) in self.bindings.iter().enumerate() {
            let mode = if binding.writes { "writes" } else { "reads" };
            writeln!(f, "  b{i}: {mode} {:?}", binding.mem)?;
        }

        for (i, (ty, len)) in self.shared.iter().enumerate() {
            writeln!(f, "  shared{i}: {ty:?}[{len}]")?;
        }
        write_statements(f, &self.body, 1)
    }
}

/// Text that is summed up and not kept.
struct Sum(Xxh3Default);

impl fmt::Write for Sum {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        self.0.update(text.as_bytes());
        Ok(())
    }
}

impl Kernel {
    /// A digest of everything that a printer makes code from, with its options `how`: kernels that differ in
    /// shapes only have the same.
    pub fn digest(&self, how: &str) -> u128 {
        let Self {
            name: _,
            local,
            bindings,
            specs,
            regs,
            vars,
            shared,
            multiplies: _,
            guards_loads: _,
            body,
        } = self;

        let mut text_hash = Sum(Xxh3Default::new());
        // Names and the values of constants make no difference to the code.
        let kernel_head = (how, local, bindings, specs.len(), regs, vars, shared);
        let write_result = write!(text_hash, "{kernel_head:?}")
            .and_then(|()| write_statements(&mut text_hash, body, 0));
        write_result.expect("summing up does not fail");
        text_hash.0.digest128()
    }
}

fn write_statements(f: &mut impl fmt::Write, body: &[Stmt], depth: usize) -> fmt::Result {
    let line_indent = "  ".repeat(depth);
    for stmt in body {
        match stmt {
            Stmt::Let(reg, code) => writeln!(f, "{line_indent}r{} = {code:?}", reg.0)?,
            Stmt::LoadPair([a, b], binding, at) => {
                writeln!(f, "{line_indent}r{}, r{} = b{binding}[r{}]", a.0, b.0, at.0)?;
            }
            Stmt::Store(binding, at, value) => {
                writeln!(f, "{line_indent}b{binding}[r{}] = r{}", at.0, value.0)?;
            }
            Stmt::StorePair(binding, at, [a, b]) => {
                writeln!(f, "{line_indent}b{binding}[r{}] = r{}, r{}", at.0, a.0, b.0)?;
            }
            Stmt::SetShared(array, at, value) => {
                writeln!(f, "{line_indent}shared{array}[r{}] = r{}", at.0, value.0)?;
            }
            Stmt::SetVar(var, value) => writeln!(f, "{line_indent}v{var} = r{}", value.0)?,
            Stmt::Barrier => writeln!(f, "{line_indent}barrier")?,
            Stmt::Multiply(math, sums, left, right) => {
                let [sums, left] = [
                    sums.map(|v| format!("v{v}")),
                    left.map(|r| format!("r{}", r.0)),
                ];
                let sums = sums.join(", ");
                let left = left.join(", ");
                let [a, b] = right.map(|r| r.0);
                writeln!(f, "{line_indent}{sums} += {math} {left} by r{a}, r{b}")?;
            }
            Stmt::If(c, then, other) => {
                writeln!(f, "{line_indent}if r{}", c.0)?;
                write_statements(f, then, depth + 1)?;
                if !other.is_empty() {
                    writeln!(f, "{line_indent}else")?;
                    write_statements(f, other, depth + 1)?;
                }
            }
            Stmt::Loop(var, until, step, body) => {
                writeln!(
                    f,
                    "{line_indent}while v{var} < r{} step r{}",
                    until.0, step.0
                )?;
                write_statements(f, body, depth + 1)?;
            }
        }
    }

    Ok(())
}
