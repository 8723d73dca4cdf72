//! Type constraints of operators: which element types each port takes, and which ports must agree.
//!
//! Every op of the catalogue has one line, a [`TypeSchema`], in the manner of ONNX's operator schemas:
//!
//! ```text
//! x:T w:^T b?:^T -> y:T; T: float
//! ```
//!
//! Ports stand in the operator's order. A mark behind a name says how the operand is given: `?` may be missing, `!` must
//! be a constant, `~` both, `*` any number may follow, named by number. Behind the colon are the types, alternatives
//! separated by `|`: an element type (`i64`), a class (see [`CLASSES`]), or a variable (one capital letter). All ports
//! with the same variable have the same type, which is in the set that the variable is declared with behind the `;`.
//! `^T` is any type that kernels compute in the same way as T: f16 and bf16 are computed in f32, i8 and i16 in i32.
//! `[]` at the end marks a tensor operand that may be empty, `{}` a port whose tokens are [bursts](zbmd_ir::burst), which
//! no other port takes.
//!
//! The schema is checked before any planning code sees the operands, and it decides the type of a constant that is
//! written out as numbers. Knows no op.

use std::fmt;

use zbmd_ir::{DType, TokenType};

use crate::OpError;
use crate::args::input_error;

/// Sets of element types by name.
pub const CLASSES: [(&str, &[DType]); 6] = [
    ("float", &[DType::F32, DType::F64, DType::F16, DType::Bf16]),
    (
        "int",
        &[DType::I8, DType::U8, DType::I16, DType::I32, DType::I64],
    ),
    (
        "number",
        &[
            DType::F32,
            DType::F64,
            DType::F16,
            DType::Bf16,
            DType::I8,
            DType::U8,
            DType::I16,
            DType::I32,
            DType::I64,
        ],
    ),
    (
        "real",
        &[
            DType::F32,
            DType::F64,
            DType::F16,
            DType::Bf16,
            DType::I8,
            DType::U8,
            DType::I16,
            DType::I32,
            DType::I64,
            DType::Bool,
        ],
    ),
    (
        "scalar",
        &[
            DType::F32,
            DType::F64,
            DType::I32,
            DType::I64,
            DType::Bool,
            DType::C32,
        ],
    ),
    ("any", &DType::ALL),
];

/// The type that kernels compute a stored type in.
pub fn computed(dtype: DType) -> DType {
    match dtype {
        DType::F16 | DType::Bf16 => DType::F32,
        DType::I8 | DType::I16 => DType::I32,
        other => other,
    }
}

/// Which types a port takes.
#[derive(Clone, Debug, Default, PartialEq)]
struct Accepted {
    /// Types that are taken whatever other ports have.
    fixed: Vec<DType>,
    /// A variable, and whether types that are computed like its type will do.
    variable: Option<(char, bool)>,
    /// As it is written.
    text: &'static str,
}

/// A port of a [`TypeSchema`].
#[derive(Clone, Debug, PartialEq)]
pub struct PortSchema {
    /// Name of the port, and of the parameter where it is a constant; `_` stands for any name.
    pub name: &'static str,
    /// Whether it may be missing.
    pub optional: bool,
    /// Whether it must be a constant.
    pub constant: bool,
    /// Whether any number of ports may follow, named by number.
    pub many: bool,
    /// Whether it may have no elements.
    pub may_be_empty: bool,
    /// Whether its tokens are bursts.
    pub burst: bool,
    accepted: Accepted,
}

impl PortSchema {
    /// Reads `name?:T[]`.
    fn parse(text: &'static str) -> Option<Self> {
        let (marked, types) = text.split_once(':')?;
        let types_only = types.trim_end_matches("[]").trim_end_matches("{}");
        let name = marked.trim_end_matches(['?', '!', '~', '*']);
        let mut accepted = Accepted {
            text: types_only,
            ..Accepted::default()
        };
        for alternative in types_only.split('|') {
            let like = alternative.strip_prefix('^');
            let word = like.unwrap_or(alternative);
            match word.chars().next() {
                Some(letter) if word.len() == 1 && letter.is_ascii_uppercase() => {
                    accepted.variable = Some((letter, like.is_some()));
                }
                _ => accepted.fixed.extend(types_of(word)?),
            }
        }
        Some(Self {
            name,
            optional: marked.ends_with(['?', '~']),
            constant: marked.ends_with(['!', '~']),
            many: marked.ends_with('*'),
            may_be_empty: types.ends_with("[]"),
            burst: types.ends_with("{}"),
            accepted,
        })
    }

    /// The variable that is the port's only type.
    pub fn exact_variable(&self) -> Option<char> {
        let (variable, like) = self.accepted.variable?;
        (!like && self.accepted.fixed.is_empty()).then_some(variable)
    }

    /// Whether the port takes this type whatever the other ports have.
    pub fn takes_whatever(&self, dtype: DType) -> bool {
        self.accepted.fixed.contains(&dtype)
    }

    /// Whether `name` is this port's name.
    fn is_named(&self, name: &str) -> bool {
        if self.name == "_" {
            return true;
        }
        let Some(number) = name.strip_prefix(self.name) else {
            return false;
        };
        match self.many {
            true => !number.is_empty() && number.bytes().all(|b| b.is_ascii_digit()),
            false => number.is_empty(),
        }
    }
}

/// The element types of a word: a class or one type.
fn types_of(word: &str) -> Option<Vec<DType>> {
    match CLASSES.iter().find(|(name, _)| *name == word) {
        Some((_, dtypes)) => Some(dtypes.to_vec()),
        None => DType::from_name(word).map(|dtype| vec![dtype]),
    }
}

/// The type constraints of one op.
#[derive(Clone, Debug, PartialEq)]
pub struct TypeSchema {
    /// Inputs, in the operator's order.
    pub inputs: Vec<PortSchema>,
    /// Outputs, in the operator's order.
    pub outputs: Vec<PortSchema>,
    variables: Vec<(char, Vec<DType>)>,
    text: &'static str,
}

impl fmt::Display for TypeSchema {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.text)
    }
}

/// What the variables of a schema stand for, as far as operands have been seen.
#[derive(Debug, Default)]
pub struct Bindings(Vec<Binding>);

/// A variable, and the first operand that had it.
#[derive(Debug)]
struct Binding {
    variable: char,
    dtype: DType,
    port: String,
    token: TokenType,
}

impl Bindings {
    fn get(&self, variable: char) -> Option<&Binding> {
        self.0.iter().find(|b| b.variable == variable)
    }
}

impl TypeSchema {
    /// The schema of an op of the catalogue.
    ///
    /// # Panics
    /// If the text is not a schema, which is a mistake in the catalogue that its tests find.
    pub fn new(text: &'static str) -> Self {
        match Self::parse(text) {
            Some(schema) => schema,
            None => unreachable!("`{text}` is not a type schema"),
        }
    }

    /// Reads `x:T w:^T b?:^T -> y:T; T: float`; `None` for anything else.
    pub fn parse(text: &'static str) -> Option<Self> {
        let (ports, declared) = text.split_once(';').unwrap_or((text, ""));
        let (inputs, outputs) = ports.split_once("->")?;
        let parse_all = |side: &'static str| -> Option<Vec<PortSchema>> {
            side.split_whitespace().map(PortSchema::parse).collect()
        };

        let mut variables = Vec::new();
        for clause in declared.split(',').filter(|c| !c.trim().is_empty()) {
            let (name, types) = clause.split_once(':')?;
            let mut dtypes = Vec::new();
            for word in types.trim().split('|') {
                dtypes.extend(types_of(word)?);
            }
            variables.push((name.trim().chars().next()?, dtypes));
        }

        let schema = Self {
            inputs: parse_all(inputs)?,
            outputs: parse_all(outputs)?,
            variables,
            text,
        };
        let mut used = schema.inputs.iter().chain(&schema.outputs);
        let declared = used.all(|port| match port.accepted.variable {
            Some((variable, _)) => schema.variables.iter().any(|(name, _)| *name == variable),
            None => true,
        });
        declared.then_some(schema)
    }

    /// The input of that name; the first one for the empty name.
    pub fn input(&self, name: &str) -> Option<&PortSchema> {
        if name.is_empty() {
            return self.inputs.first();
        }
        self.inputs.iter().find(|port| port.is_named(name))
    }

    /// The output of that name.
    pub fn output(&self, name: &str) -> Option<&PortSchema> {
        self.outputs.iter().find(|port| port.is_named(name))
    }

    fn variable_types(&self, variable: char) -> &[DType] {
        let found = self.variables.iter().find(|(name, _)| *name == variable);
        found.map_or(&[], |(_, dtypes)| dtypes)
    }

    /// Every type that a port may have, whatever the others have.
    pub fn possible(&self, port: &PortSchema) -> Vec<DType> {
        let Some((variable, like)) = port.accepted.variable else {
            return port.accepted.fixed.clone();
        };
        let own = self.variable_types(variable);
        let fits = |dtype: &DType| {
            let alike = like && own.iter().any(|o| computed(*o) == computed(*dtype));
            own.contains(dtype) || alike || port.accepted.fixed.contains(dtype)
        };
        DType::ALL.into_iter().filter(fits).collect()
    }

    /// Checks the type of an input, and binds the port's variable if it is the first with it.
    ///
    /// # Errors
    /// [`OpError::Input`] that names both ports and both types where two ports must agree and do not.
    pub fn check_input(
        &self,
        port: &PortSchema,
        name: &str,
        token: &TokenType,
        bindings: &mut Bindings,
    ) -> Result<(), OpError> {
        if token.burst != port.burst {
            let help = match port.burst {
                true => "it takes bursts: `shape: Burst(max: n)`",
                false => "bursts are read by `Custom` actors, `BurstIndex` and sinks",
            };
            return Err(input_error(name, format!("is {token}"), help));
        }
        let dtype = token.dtype;
        if port.accepted.fixed.contains(&dtype) {
            return Ok(());
        }
        let possible = self.possible(port);
        let Some((variable, like)) = port.accepted.variable.filter(|_| possible.contains(&dtype))
        else {
            let message = format!("is {token}");
            return Err(input_error(name, message, not_taken(dtype, &possible)));
        };

        let Some(bound) = bindings.get(variable) else {
            bindings.0.push(Binding {
                variable,
                dtype,
                port: name.to_owned(),
                token: token.clone(),
            });
            return Ok(());
        };
        if dtype == bound.dtype || (like && computed(dtype) == computed(bound.dtype)) {
            return Ok(());
        }
        let message = format!(
            "is {token}, but `{}` is {}, and both have the type {variable} of `{}`",
            bound.port, bound.token, self.text
        );
        Err(input_error(name, message, conversion(dtype, bound.dtype)))
    }

    /// The type of a constant that is written out as numbers.
    pub fn literal_type(&self, port: &PortSchema, bindings: &Bindings) -> DType {
        let bound = port.accepted.variable.and_then(|(v, _)| bindings.get(v));
        if let Some(bound) = bound {
            return bound.dtype;
        }
        let possible = self.possible(port);
        // Without anything to go by: places and sizes are i64, values f32.
        [DType::F32, DType::I64]
            .into_iter()
            .find(|dtype| possible.contains(dtype))
            .or(possible.first().copied())
            .unwrap_or(DType::F32)
    }

    /// Checks the type of an output.
    ///
    /// # Errors
    /// [`OpError::Other`] for a type that the schema does not promise: parameters ask for it.
    pub fn check_output(
        &self,
        port: &PortSchema,
        name: &str,
        token: &TokenType,
        bindings: &Bindings,
    ) -> Result<(), OpError> {
        let mut expected = self.possible(port);
        let bound = port.accepted.variable.and_then(|(v, _)| bindings.get(v));
        if let Some(bound) = bound {
            expected.retain(|dtype| *dtype == bound.dtype || port.accepted.fixed.contains(dtype));
        }
        if expected.contains(&token.dtype) && token.burst == port.burst {
            return Ok(());
        }
        Err(OpError::Other {
            message: format!("the output `{name}` would be {token}"),
            help: format!("it can be {}", names(&expected)),
        })
    }
}

/// How to bring an operand to another type.
fn conversion(from: DType, to: DType) -> String {
    match (from, to) {
        (DType::C32, _) => {
            "take a part of it first: `Expr(\"re(x)\")`, or `Magnitude()`".to_owned()
        }
        (_, DType::C32) => "put a `Convert(to: c32)` before it".to_owned(),
        _ => format!("put an `NnCast(to: {to})` before it, or store the constant as {to}"),
    }
}

/// What to do about a type that is not taken.
fn not_taken(dtype: DType, possible: &[DType]) -> String {
    let takes = format!("it takes {}", names(possible));
    match dtype {
        DType::C32 if possible.contains(&DType::F32) => {
            format!("{takes}: split it into real and imaginary parts")
        }
        _ => takes,
    }
}

/// `f32 or f64`.
pub fn names(dtypes: &[DType]) -> String {
    let names: Vec<&str> = dtypes.iter().map(|d| d.name()).collect();
    names.join(" or ")
}

/// The refusal of an input without elements.
pub fn no_elements(name: &str, token: &TokenType) -> OpError {
    let message = format!("is {token}, which has no elements");
    input_error(name, message, "every dimension of a token is at least 1")
}

/// Refuses ports without elements: no token can be stored in no bytes.
///
/// # Errors
/// [`OpError::Input`] or [`OpError::Other`] naming the port and its type.
pub fn check_sizes(signature: &crate::Signature) -> Result<(), OpError> {
    if let Some(port) = signature.inputs.iter().find(|p| p.token.elements() == 0) {
        return Err(no_elements(&port.name, &port.token));
    }
    match signature.outputs.iter().find(|p| p.token.elements() == 0) {
        None => Ok(()),
        Some(port) => Err(OpError::Other {
            message: format!(
                "the output `{}` would be {}, which has no elements",
                port.name, port.token
            ),
            help: "choose sizes that leave at least one element".to_owned(),
        }),
    }
}
