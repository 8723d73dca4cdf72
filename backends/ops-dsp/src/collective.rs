//! Ops over the replicas of an actor. As written here they are plain actors on one device. The compiler may take the
//! tokens of `AllReduce` and `Broadcast` apart, so that the work and the transfers are shared by several devices: the
//! output does not depend on that.

use std::collections::BTreeMap;

use zbmd_ir::TokenType;

use crate::elementwise;
use crate::route::{alike_inputs, input_count, merged, renamed};
use zbmd_op::args::Args;
use zbmd_op::entry::{Entry, in_port, out_port};
use zbmd_op::{OpDoc, OpError, ResolvedOp};

const INPUTS: (&str, &str) = ("inputs", "how many (default: as many as channels name)");

pub(super) const OPS: [Entry; 3] = [
    Entry {
        name: "AllReduce",
        types: "x*:T -> y:T; T: f32|f64|i32|i64|c32",
        positional: &["inputs"],
        doc: OpDoc {
            summary: "the sum of a token of each replica, for all of them to read: x0 + x1 + x2 + … in this order, whatever \
                      the devices; the compiler may add up parts of the tokens on several devices",
            params: &[INPUTS],
            ports: "`x0`, `x1`, …: f32, f64, i32, i64 or c32, all of one type -> `y`, one token a firing",
            example: "AllReduce()",
        },
        make: all_reduce,
    },
    Entry {
        name: "Broadcast",
        types: "x:T -> y:T; T: any",
        positional: &[],
        doc: OpDoc {
            summary: "the token itself, for many readers; the compiler may send each of them a part, which it passes on to the \
                      others",
            params: &[],
            ports: "`x`: any type -> `y`, one token a firing",
            example: "Broadcast()",
        },
        make: broadcast,
    },
    Entry {
        name: "Gather",
        types: "x*:T -> y:T; T: any",
        positional: &["inputs"],
        doc: OpDoc {
            summary: "the tokens of all replicas as one, in the order of the inputs",
            params: &[INPUTS],
            ports: "`x0`, `x1`, …: any one type -> `y`: [inputs, …], one token a firing",
            example: "Gather()",
        },
        make: gather,
    },
];

fn all_reduce(args: &Args<'_>) -> Result<ResolvedOp, OpError> {
    let count = input_count(args)?;
    let ports = alike_inputs(args, &vec![1; count as usize])?;
    let inputs: Vec<(String, TokenType)> = ports
        .into_iter()
        .map(|port| (port.name, port.token))
        .collect();

    // Sums in expressions are added from the left: that is the order which the model is promised.
    let names: Vec<&str> = inputs.iter().map(|(name, _)| name.as_str()).collect();
    elementwise::build(args, &names.join(" + "), &inputs, BTreeMap::new())
}

fn broadcast(args: &Args<'_>) -> Result<ResolvedOp, OpError> {
    let x = args.x()?;
    Ok(renamed(
        in_port("x", x.clone(), 1, 1),
        out_port("y", x.clone(), 1),
    ))
}

fn gather(args: &Args<'_>) -> Result<ResolvedOp, OpError> {
    let count = input_count(args)?;
    let counts = vec![1; count as usize];
    let inputs = alike_inputs(args, &counts)?;

    let x = &inputs[0].token;
    let mut shape = vec![inputs.len() as u32];
    shape.extend(&x.shape);
    let output = out_port("y", TokenType::new(x.dtype, shape), 1);
    Ok(merged(inputs, &counts, output))
}
