//! What sources and sinks state of themselves, beside their types.

use zbmd_ir::response::{LatePolicy, ON_MISS, ON_MISS_MODE};
use zbmd_ir::{Role, Value};

use super::{Env, Expander, ReadParams};
use crate::codes::Code;
use crate::deadlines;
use crate::diag::Diagnostic;
use crate::model::StreamDecl;
use crate::modes;
use crate::parse::Node;
use crate::read;
use crate::stream_file;
use crate::units;

impl Expander<'_> {
    /// Sample rate, deadline and file of a source or sink.
    pub(super) fn stream_params(&mut self, decl: &StreamDecl, role: Role, env: &Env) -> ReadParams {
        let mut params = ReadParams::default();
        if let Some(node) = self.substitute_some(&decl.sample_rate, env)
            && let Some(rate) = read::float(&node, "a sample rate in tokens per second", self.sink)
        {
            if rate.value.is_finite() && rate.value > 0.0 {
                params
                    .values
                    .insert("sample_rate".into(), Value::Float(rate.value));
                params.spans.insert("sample_rate".to_owned(), rate.span);
            } else {
                self.sink.push(
                    Diagnostic::new(Code::E0305, format!("a sample rate is {}", rate.value))
                        .primary(
                            rate.span,
                            "should be a positive number of tokens per second",
                        ),
                );
            }
        }

        if let Some(node) = self.substitute_some(&decl.deadline, env)
            && let Some(limit_ns) = self.deadline(&node, role)
        {
            let limit = Value::Int(i64::try_from(limit_ns).unwrap_or(i64::MAX));
            params.values.insert(deadlines::PARAM.into(), limit);
            params.spans.insert(deadlines::PARAM.to_owned(), node.span);
        }
        if let Some(node) = self.substitute_some(&decl.on_miss, env)
            && let Some(answer) = self.late_answer(&node, role)
            // What it is without a statement is not stated in the bundle either.
            && answer.policy != LatePolicy::default()
        {
            let name = Value::Str(answer.policy.name().to_owned());
            params.values.insert(ON_MISS.to_owned(), name);
            params.spans.insert(ON_MISS.to_owned(), node.span);
            if let Some(mode) = answer.mode {
                let mode = Value::Str(mode);
                params.values.insert(ON_MISS_MODE.to_owned(), mode);
                params.spans.insert(ON_MISS_MODE.to_owned(), node.span);
            }
        }

        if let Some(node) = self.substitute_some(&decl.file, env)
            && let Some(file) = read::string(&node, "a path or a URL in quotes", self.sink)
        {
            stream_file::check(&file.value, file.span, role, self.sink);
            params.values.insert("file".into(), Value::Str(file.value));
            params.spans.insert("file".to_owned(), file.span);
        }
        params
    }

    /// A sink's deadline, in nanoseconds.
    fn deadline(&mut self, node: &Node, role: Role) -> Option<u64> {
        if role == Role::Source {
            self.sink.push(
                Diagnostic::new(Code::E0201, "a source has no deadline")
                    .primary(
                        node.span,
                        "a sink has: how long after a source's tokens its own may come",
                    )
                    .help("move it to the sink whose output must be there in time"),
            );
            return None;
        }
        let expected = "a duration such as \"10ms\"";
        let limit_ns = read::quantity(node, expected, units::duration_ns, self.sink)?;
        if limit_ns == 0 {
            self.sink.push(
                Diagnostic::new(Code::E0305, "a deadline is 0")
                    .primary(node.span, "should be more: nothing takes no time"),
            );
            return None;
        }
        Some(limit_ns)
    }

    /// What becomes of late blocks of a sink. It needs no deadline here: a run may be given one.
    fn late_answer(&mut self, node: &Node, role: Role) -> Option<LateAnswer> {
        if role == Role::Source {
            self.sink.push(
                Diagnostic::new(Code::E0201, "a source has no `on_miss`")
                    .primary(
                        node.span,
                        "a sink has: what it is given in the place of a late block",
                    )
                    .help("move it to the sink that has the deadline"),
            );
            return None;
        }
        // Which modes there are is checked with the modes.
        if let Some(mode) = modes::mode_call(node) {
            let mode = read::string(mode, "a mode in quotes", self.sink)?;
            return Some(LateAnswer {
                policy: LatePolicy::Mode,
                mode: Some(mode.value),
            });
        }
        let expected = "`wait`, `drop`, `hold` or `Mode(\"…\")`";
        let name = read::word(node, expected, self.sink)?;
        let policy = LatePolicy::from_name(&name.value);
        let policy = policy.filter(|policy| *policy != LatePolicy::Mode);
        if policy.is_none() {
            self.sink.push(
                Diagnostic::new(Code::E0203, format!("`{}` is not an `on_miss`", name.value))
                    .primary(name.span, format!("should be {expected}")),
            );
        }
        policy.map(|policy| LateAnswer { policy, mode: None })
    }
}

/// What becomes of late blocks.
struct LateAnswer {
    policy: LatePolicy,
    /// The mode that is asked for.
    mode: Option<String>,
}
