//! Ops that are expressions: `Expr` itself and those that are a line of it.

use std::collections::BTreeMap;

use zbmd_ir::{DType, TokenType, Value};

use crate::expr::Ty;
use crate::expr::lower::{Meaning, lower};
use crate::expr::parse::{ExprError, names, parse};
use crate::expr::run::ExprKernel;
use crate::expr_kernels;
use zbmd_op::args::{Args, input_error, nearest};
use zbmd_op::entry::{Entry, in_port, out_port};
use zbmd_op::{OpDoc, OpError, ResolvedOp};

const X: &str = "`x` -> `y`, one token a firing, any shape";
const XY: &str = "`x`, `y` -> `y`, one token a firing; equal shapes, or one of them a scalar";

pub(super) const OPS: [Entry; 11] = [
    Entry {
        name: "Expr",
        types: "_:scalar -> y:scalar",
        positional: &["expr"],
        doc: OpDoc {
            summary: "computes an expression for every element; compiled once, run a column at a time",
            params: &[
                (
                    "expr",
                    "the expression: + - * / and unary -; < <= > >= == != && || !; c ? a : b; \
                     abs arg atan2 cis clamp conj cos exp floor im log log10 max min norm pow re round \
                     select sin sqrt tan tanh. Types widen bool < i32 < i64 < f32 < f64 < c32; \
                     division and functions make integers f32; integers wrap; round takes ties to even; \
                     norm is re^2 + im^2",
                ),
                (
                    "inputs",
                    "types of the inputs by name, such as {\"g\": f32} or {\"x\": \"f32[4]\"}, needed where \
                     a feedback loop leaves them open. Ports are then sorted by name, otherwise in order of \
                     first appearance",
                ),
                ("params", "constants by name: {\"mu\": 0.01}"),
            ],
            ports: "one input for each name that is no constant -> `y`; one token a firing; all shaped \
                    inputs have one shape, scalars are repeated; bool, i32, i64, f32, f64, c32",
            example: "Expr(\"g + mu * (1.0 - m)\", inputs: {\"g\": f32, \"m\": f32}, params: {\"mu\": 0.01})",
        },
        make: expr,
    },
    binary(
        "Add",
        "x:scalar y:scalar -> y:scalar",
        "the sum",
        "Add()",
        |a| two(a, "x + y"),
    ),
    binary(
        "Sub",
        "x:scalar y:scalar -> y:scalar",
        "the difference x − y",
        "Sub()",
        |a| two(a, "x - y"),
    ),
    binary(
        "Mul",
        "x:scalar y:scalar -> y:scalar",
        "the product",
        "Mul()",
        |a| two(a, "x * y"),
    ),
    binary(
        "Div",
        "x:scalar y:scalar -> y:scalar",
        "the quotient x / y",
        "Div()",
        |a| two(a, "x / y"),
    ),
    Entry {
        name: "Gain",
        types: "x:scalar -> y:scalar",
        positional: &["gain"],
        doc: OpDoc {
            summary: "multiplies by a constant",
            params: &[("gain", "the factor")],
            ports: X,
            example: "Gain(0.5)",
        },
        make: |a| one(a, "x * gain", &[("gain", a.float("gain")?)], &[]),
    },
    unary(
        "Magnitude",
        "x:c32 -> y:f32",
        "absolute value of complex numbers",
        "Magnitude()",
        |a| one(a, "abs(x)", &[], &[DType::C32]),
    ),
    unary(
        "Power",
        "x:c32 -> y:f32",
        "squared absolute value of complex numbers",
        "Power()",
        |a| one(a, "norm(x)", &[], &[DType::C32]),
    ),
    unary(
        "Phase",
        "x:c32 -> y:f32",
        "angle of complex numbers in [−π, π]",
        "Phase()",
        |a| one(a, "arg(x)", &[], &[DType::C32]),
    ),
    Entry {
        name: "Log",
        types: "x:f32|f64|i32|i64 -> y:f32|f64",
        positional: &["base"],
        doc: OpDoc {
            summary: "logarithm of max(x, floor)",
            params: &[
                ("base", "\"e\" (default), 2, 10, or \"db\" for 10·log10"),
                (
                    "floor",
                    "smallest argument, above 0 (default 1e-30): keeps silence finite",
                ),
            ],
            ports: X,
            example: "Log(base: \"db\")",
        },
        make: log,
    },
    Entry {
        name: "Threshold",
        types: "x:f32|f64|i32|i64 -> y:bool",
        positional: &["level"],
        doc: OpDoc {
            summary: "whether x > level",
            params: &[("level", "the level (default 0)")],
            ports: "`x` -> `y`: bool, one token a firing, any shape",
            example: "Threshold(0.5)",
        },
        make: |a| {
            let reals = &[DType::F32, DType::F64, DType::I32, DType::I64];
            one(
                a,
                "x > level",
                &[("level", a.float_or("level", 0.0)?)],
                reals,
            )
        },
    },
];

const fn unary(
    name: &'static str,
    types: &'static str,
    summary: &'static str,
    example: &'static str,
    make: fn(&Args<'_>) -> Result<ResolvedOp, OpError>,
) -> Entry {
    Entry {
        name,
        types,
        positional: &[],
        doc: OpDoc {
            summary,
            params: &[],
            ports: X,
            example,
        },
        make,
    }
}

const fn binary(
    name: &'static str,
    types: &'static str,
    summary: &'static str,
    example: &'static str,
    make: fn(&Args<'_>) -> Result<ResolvedOp, OpError>,
) -> Entry {
    Entry {
        name,
        types,
        positional: &[],
        doc: OpDoc {
            summary,
            params: &[],
            ports: XY,
            example,
        },
        make,
    }
}

fn two(args: &Args<'_>, text: &str) -> Result<ResolvedOp, OpError> {
    let x = ("x".to_owned(), args.x()?.clone());
    let y = ("y".to_owned(), args.cx.input("y", false)?.clone());
    build(args, text, &[x, y], BTreeMap::new())
}

fn one(
    args: &Args<'_>,
    text: &str,
    params: &[(&str, f64)],
    dtypes: &[DType],
) -> Result<ResolvedOp, OpError> {
    let x = if dtypes.is_empty() {
        args.x()?
    } else {
        args.x_of(dtypes)?
    };
    let meaning = |&(name, value): &(&str, f64)| {
        (
            name.to_owned(),
            Meaning::Number(value, value.fract() == 0.0),
        )
    };
    build(
        args,
        text,
        &[("x".to_owned(), x.clone())],
        params.iter().map(meaning).collect(),
    )
}

fn log(args: &Args<'_>) -> Result<ResolvedOp, OpError> {
    let scale = match args.get("base") {
        None => 1.0,
        Some(Value::Str(word)) => match word.as_str() {
            "e" => 1.0,
            "db" | "dB" => 10.0 / std::f64::consts::LN_10,
            other => return Err(args.unknown_word("base", other, &["e", "2", "10", "db"])),
        },
        Some(number) => match number.as_float() {
            Some(2.0) => std::f64::consts::LOG2_E,
            Some(10.0) => std::f64::consts::LOG10_E,
            _ => return Err(args.error("base", "is no known base", "one of \"e\", 2, 10, \"db\"")),
        },
    };
    let floor = args.float_or("floor", 1e-30)?;
    if floor < f64::from(f32::MIN_POSITIVE) {
        let help = format!("at least {:e}", f32::MIN_POSITIVE);
        return Err(args.error("floor", format!("is {floor:e}"), help));
    }
    let params = [("floor", floor), ("scale", scale)];
    let text = if scale == 1.0 {
        "log(max(x, floor))"
    } else {
        "log(max(x, floor)) * scale"
    };
    one(
        args,
        text,
        &params,
        &[DType::F32, DType::F64, DType::I32, DType::I64],
    )
}

fn expr(args: &Args<'_>) -> Result<ResolvedOp, OpError> {
    let text = args.word("expr")?;
    let tree = parse(text).map_err(|e| at_text(args, text, e))?;
    let mut used = Vec::new();
    names(&tree, &mut used);
    let mut meanings = BTreeMap::new();
    for (name, value) in args.map_opt("params")?.into_iter().flatten() {
        if !used.contains(name) {
            let message = format!("`{name}` does not occur in \"{text}\"");
            let near = nearest(name, used.iter().map(String::as_str));
            let help = near.map_or("leave it out".to_owned(), |n| {
                format!("did you mean `{n}`?")
            });
            return Err(args.error("params", message, help));
        }
        let meaning = match value {
            Value::Bool(b) => Meaning::Bool(*b),
            Value::Int(i) => Meaning::Number(*i as f64, true),
            other => Meaning::Number(args.finite(&format!("params.{name}"), other)?, false),
        };
        meanings.insert(name.clone(), meaning);
    }
    used.retain(|name| !meanings.contains_key(name));
    let declared = args.map_opt("inputs")?;
    let ports: Vec<String> = match declared {
        None => used,
        Some(map) => {
            check_declared(args, text, &used, map)?;
            map.keys().cloned().collect()
        }
    };
    if ports.is_empty() {
        return Err(args.error(
            "expr",
            "has no input",
            "for a constant write `Const(value)`",
        ));
    }
    let mut inputs = Vec::new();
    for (i, name) in ports.into_iter().enumerate() {
        let written = declared.and_then(|map| map.get(&name));
        let token = input_type(args, &name, i == 0, written)?;
        inputs.push((name, token));
    }
    build(args, text, &inputs, meanings)
}

fn check_declared(
    args: &Args<'_>,
    text: &str,
    used: &[String],
    declared: &BTreeMap<String, Value>,
) -> Result<(), OpError> {
    if let Some(name) = used.iter().find(|name| !declared.contains_key(*name)) {
        let message = format!("`{name}` of \"{text}\" is not declared");
        return Err(args.error("inputs", message, "declare it here or in `params`"));
    }
    match declared.keys().find(|name| !used.contains(name)) {
        Some(name) => {
            let message = format!("`{name}` does not occur in \"{text}\"");
            Err(args.error("inputs", message, "leave it out"))
        }
        None => Ok(()),
    }
}

/// The type of one input: what is known, what is declared, and both must agree.
fn input_type(
    args: &Args<'_>,
    name: &str,
    first: bool,
    written: Option<&Value>,
) -> Result<TokenType, OpError> {
    let known = args.cx.input(name, first);
    let Some(written) = written else {
        return known.cloned();
    };
    let declared = zbmd_op::token_type(args, &format!("inputs.{name}"), written)?;
    match known {
        Ok(known) if *known != declared => {
            let help = format!("write `\"{name}\": \"{known}\"` or leave `inputs` out");
            Err(input_error(
                name,
                format!("is {known}, declared as {declared}"),
                help,
            ))
        }
        _ => Ok(declared),
    }
}

/// Ports and kernel of an expression over `inputs`.
pub(super) fn build(
    args: &Args<'_>,
    text: &str,
    inputs: &[(String, TokenType)],
    mut meanings: BTreeMap<String, Meaning>,
) -> Result<ResolvedOp, OpError> {
    let mut shape: &[u32] = &[];
    let mut shaped_by = "";
    for (name, token) in inputs {
        if !token.shape.is_empty() && !shape.is_empty() && token.shape != shape {
            let message = format!("is {token}, but `{shaped_by}` has the shape {shape:?}");
            return Err(input_error(
                name,
                message,
                "give all inputs one shape, or scalars",
            ));
        }
        if !token.shape.is_empty() {
            (shape, shaped_by) = (&token.shape, name);
        }
    }
    let elements = TokenType::new(DType::F32, shape).elements() as usize;
    let mut types = Vec::new();
    let mut along = Vec::new();
    for (i, (name, token)) in inputs.iter().enumerate() {
        let Some(ty) = Ty::of(token.dtype) else {
            let help = "it takes bool, i32, i64, f32, f64 or c32: put a `Convert` before it";
            return Err(input_error(name, format!("is {token}"), help));
        };
        types.push(ty);
        let repeated = token.shape.is_empty() && elements > 1;
        along.extend((!repeated).then_some(i));
        meanings.insert(name.clone(), Meaning::Input(i as u16, ty, repeated));
    }
    let compile = || lower(&parse(text)?, &meanings, types);
    let program = compile().map_err(|e| at_text(args, text, e))?;
    let y = TokenType::new(program.output.dtype(), shape);
    let flops = program.flops() * elements as f64;
    let ports = inputs
        .iter()
        .map(|(name, token)| in_port(name, token.clone(), 1, 1))
        .collect();
    let lowered = program.clone();
    let make = move || Ok(ExprKernel::new(program, elements));
    let made = ResolvedOp::new(ports, vec![out_port("y", y, 1)], make)
        .flops(flops)
        .over(along);
    Ok(made.gpu(move || expr_kernels::expression(&lowered, elements)))
}

fn at_text(args: &Args<'_>, text: &str, error: ExprError) -> OpError {
    let column = text.get(..error.at).map_or(0, |t| t.chars().count()) + 1;
    let message = format!("column {column} of \"{text}\": {}", error.message);
    args.error("expr", message, error.help)
}
