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
        statements(f, &self.body, 1)
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
    /// A number for all that a printer makes code from, and for what it is told besides: kernels that differ in
    /// shapes only have the same.
    pub(crate) fn digest(&self, how: &str) -> u128 {
        let Self {
            name: _,
            local,
            bindings,
            specs,
            regs,
            vars,
            shared,
            multiplies: _,
            body,
        } = self;
        let mut sum = Sum(Xxh3Default::new());
        let head = (how, local, bindings, specs.len(), regs, vars, shared);
        let written = write!(sum, "{head:?}").and_then(|()| statements(&mut sum, body, 0));
        written.expect("summing up does not fail");
        sum.0.digest128()
    }
}

fn statements(f: &mut impl fmt::Write, body: &[Stmt], depth: usize) -> fmt::Result {
    let pad = "  ".repeat(depth);
    for stmt in body {
        match stmt {
            Stmt::Let(reg, code) => writeln!(f, "{pad}r{} = {code:?}", reg.0)?,
            Stmt::LoadPair([a, b], binding, at) => {
                writeln!(f, "{pad}r{}, r{} = b{binding}[r{}]", a.0, b.0, at.0)?;
            }
            Stmt::Store(binding, at, value) => {
                writeln!(f, "{pad}b{binding}[r{}] = r{}", at.0, value.0)?;
            }
            Stmt::StorePair(binding, at, [a, b]) => {
                writeln!(f, "{pad}b{binding}[r{}] = r{}, r{}", at.0, a.0, b.0)?;
            }
            Stmt::SetShared(array, at, value) => {
                writeln!(f, "{pad}shared{array}[r{}] = r{}", at.0, value.0)?;
            }
            Stmt::SetVar(var, value) => writeln!(f, "{pad}v{var} = r{}", value.0)?,
            Stmt::Barrier => writeln!(f, "{pad}barrier")?,
            Stmt::Multiply(math, sums, left, right) => {
                let [sums, left] = [
                    sums.map(|v| format!("v{v}")),
                    left.map(|r| format!("r{}", r.0)),
                ];
                let (sums, left) = (sums.join(", "), left.join(", "));
                let [a, b] = right.map(|r| r.0);
                writeln!(f, "{pad}{sums} += {math} {left} by r{a}, r{b}")?;
            }
            Stmt::If(c, then, other) => {
                writeln!(f, "{pad}if r{}", c.0)?;
                statements(f, then, depth + 1)?;
                if !other.is_empty() {
                    writeln!(f, "{pad}else")?;
                    statements(f, other, depth + 1)?;
                }
            }
            Stmt::Loop(var, until, step, body) => {
                writeln!(f, "{pad}while v{var} < r{} step r{}", until.0, step.0)?;
                statements(f, body, depth + 1)?;
            }
        }
    }
    Ok(())
}
