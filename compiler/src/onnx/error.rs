//! Why an ONNX model is refused.

use zbmd_ir::TokenType;

use crate::codes::Code;
use crate::diag::Diagnostic;
use crate::source::Span;

/// A refusal, naming the node and what to do about it.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum OnnxError {
    /// The file cannot be opened.
    #[error("cannot read `{path}`: {why}")]
    File {
        /// The file.
        path: String,
        /// What the system said.
        why: String,
    },
    /// It is no ONNX file, or a damaged one.
    #[error("it is no ONNX model: {0}")]
    Parse(String),
    /// An operator without a tensor op.
    #[error("node `{node}` is a `{operator}`: {why}")]
    Operator {
        /// The node.
        node: String,
        /// The operator, with its domain where it has one.
        operator: String,
        /// Why there is no such op.
        why: String,
        /// The way round.
        help: String,
    },
    /// A value that decides shapes is not constant.
    #[error(
        "node `{node}` ({operator}) needs `{value}` as a constant: it decides shapes or the kernel"
    )]
    NotConstant {
        /// The node.
        node: String,
        /// The operator.
        operator: String,
        /// The value.
        value: String,
        /// Whether the value is an input of the model.
        input: bool,
    },
    /// A dimension that is not known.
    #[error("dimension {index} of input `{input}` is open: `{name}`")]
    Dimension {
        /// The input.
        input: String,
        /// Which dimension, from 0.
        index: usize,
        /// Its name, as it is bound.
        name: String,
    },
    /// A type that no token can have.
    #[error("`{value}` is a {found}")]
    Type {
        /// The value.
        value: String,
        /// What it is.
        found: String,
    },
    /// Data that is missing, of another size, or in a place where it may not be.
    #[error("the data of tensor `{tensor}` {why}")]
    Data {
        /// The tensor.
        tensor: String,
        /// What is wrong.
        why: String,
    },
    /// A value that nothing makes, or that hangs on itself.
    #[error("{0}")]
    Malformed(String),
    /// The op refuses its operands or parameters.
    #[error("node `{node}` ({operator}): {why}")]
    Refused {
        /// The node.
        node: String,
        /// The operator.
        operator: String,
        /// What the op says.
        why: String,
        /// How to fix it.
        help: String,
    },
    /// A name given in options that the model does not have, or a value that does not fit.
    #[error("{0}")]
    Option(String),
    /// State joins an output to an input of another type.
    #[error("state joins output `{output}` of {from} to input `{input}` of {to}")]
    State {
        /// The output.
        output: String,
        /// Its type.
        from: TokenType,
        /// The input.
        input: String,
        /// Its type.
        to: TokenType,
    },
}

impl OnnxError {
    /// The code of the diagnostic.
    pub fn code(&self) -> Code {
        match self {
            OnnxError::File { .. } => Code::E0701,
            OnnxError::Parse(_) => Code::E0801,
            OnnxError::Operator { .. } => Code::E0802,
            OnnxError::NotConstant { .. }
            | OnnxError::Dimension { .. }
            | OnnxError::Type { .. } => Code::E0803,
            OnnxError::Data { .. } => Code::E0804,
            OnnxError::Malformed(_) => Code::E0805,
            OnnxError::Refused { .. } => Code::E0806,
            OnnxError::Option(_) | OnnxError::State { .. } => Code::E0807,
        }
    }

    /// How to fix it.
    pub fn help(&self) -> String {
        match self {
            OnnxError::File { .. } => "check the path".to_owned(),
            OnnxError::Parse(_) => "export it again; `onnx.checker` says more".to_owned(),
            OnnxError::Operator { help, .. } | OnnxError::Refused { help, .. } => help.clone(),
            OnnxError::NotConstant { value, input: true, .. } => {
                format!("give the input a value: `--set {value}=…`, or `set: {{\"{value}\": …}}` in a model")
            }
            OnnxError::NotConstant { .. } => {
                "shapes are fixed when a model is compiled: export it with fixed shapes".to_owned()
            }
            OnnxError::Dimension { name, .. } => {
                format!("bind it: `--dim {name}=1`, or `dims: {{\"{name}\": 1}}` in a model")
            }
            OnnxError::Type { .. } => {
                "tokens are tensors of f32, f64, f16, bf16, i8, u8, i16, i32, i64 or bool with at least one element".to_owned()
            }
            OnnxError::Data { .. } => "external data lies beside the model, in files that its tensors name".to_owned(),
            OnnxError::Malformed(_) => "export it again; `onnx.checker` says more".to_owned(),
            OnnxError::Option(_) => "names of inputs, outputs and dimensions are those of the file".to_owned(),
            OnnxError::State { .. } => "an input that is closed as state has the type of its output".to_owned(),
        }
    }

    /// As a diagnostic, on the text where there is one.
    pub(crate) fn diagnostic(&self, file: &str, span: Span) -> Diagnostic {
        let message = match self {
            OnnxError::File { .. } => self.to_string(),
            _ => format!("`{file}`: {self}"),
        };
        let label = if span.is_some() { "imported here" } else { "" };
        Diagnostic::new(self.code(), message)
            .primary(span, label)
            .help(self.help())
    }
}
