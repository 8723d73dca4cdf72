//! Any op with any types, shapes, constants and numbers: it refuses them, or it computes without a panic. Cases are the
//! catalogue's examples, changed at random, and actors made of nothing but the op's ports.

use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind};

use bytes::Bytes;
use zbmd_ir::{Actor, BlobId, DType, Params, Role, StatePort, TiVec, TokenType, Value};

use super::conformance::{Random, stored_elements, value};
use crate::call::Call;
use crate::kernels::Caps;
use crate::op::{Op, OpError, Registry, ResolveCx, Signature, TypeSchema};
use zbmd_op::entry::{in_port, out_port};
use zbmd_op::example_inputs;

/// Cases of each op in a run of the tests; `ZBMD_HOSTILE_CASES` asks for more, `ZBMD_HOSTILE_TRACE` names a file that
/// always holds the case that runs.
const CASES: u64 = 60;
/// Bytes of all tokens of a firing, above which it is resolved and not run.
const MAX_RUN_BYTES: u64 = 1 << 22;

/// An actor to be: an op with parameters, ports, and tensors that parameters refer to.
#[derive(Clone, Debug)]
struct Case {
    op: String,
    params: Params,
    inputs: BTreeMap<String, TokenType>,
    blobs: TiVec<BlobId, Bytes>,
}

impl Case {
    fn resolve(&self, registry: &Registry) -> Result<Signature, OpError> {
        let connected: Vec<String> = self.inputs.keys().cloned().collect();
        let cx = ResolveCx {
            params: &self.params,
            connected: &connected,
            types: &self.inputs,
            blobs: &self.blobs,
        };
        registry.resolve(&self.op, &cx)
    }

    fn actor(&self, signature: &Signature) -> Actor {
        let (mut inputs, mut outputs) = (signature.inputs.clone(), signature.outputs.clone());
        let mut state = Vec::new();
        for spec in &signature.states {
            state.push(StatePort {
                input: inputs.len() as u32,
                output: outputs.len() as u32,
            });
            inputs.push(in_port(&spec.name, spec.token.clone(), 1, 1));
            outputs.push(out_port(&spec.name, spec.token.clone(), 1));
        }
        Actor {
            name: "hostile".to_owned(),
            role: Role::Compute,
            op: self.op.clone(),
            params: self.params.clone(),
            inputs,
            outputs,
            state,
            in_place: Vec::new(),
        }
    }

    /// Outputs of one firing on inputs made by `fill`, or why there are none.
    fn run(
        &self,
        registry: &Registry,
        mut fill: impl FnMut(usize, &TokenType, &mut [u8]),
    ) -> Result<Vec<Vec<u8>>, String> {
        let signature = self.resolve(registry).map_err(|e| e.to_string())?;
        let actor = self.actor(&signature);
        registry.in_place(&actor, &self.blobs);
        registry.variants(&actor, &self.blobs);
        for caps in [Caps::COMMON, Caps::CUDA] {
            let _plan = registry.lower(&actor, &self.blobs, &caps);
        }

        let bytes = |rate: u64, token: &TokenType| rate.saturating_mul(token.bytes());
        let read: u64 = actor.inputs.iter().map(|p| bytes(p.window, &p.token)).sum();
        let written: u64 = actor.outputs.iter().map(|p| bytes(p.rate, &p.token)).sum();
        if read.saturating_add(written) > MAX_RUN_BYTES {
            return Err("too large to run".to_owned());
        }
        // What was resolved has a kernel: refusals come first.
        let kernel = registry
            .kernel(&actor, &self.blobs)
            .unwrap_or_else(|e| panic!("resolved, but there is no kernel: {e}"));
        if kernel.scratch_bytes() as u64 > MAX_RUN_BYTES {
            return Err("too much scratch memory to run".to_owned());
        }
        let mut call = Call::new(&actor, kernel.scratch_bytes(), 1);
        for (i, spec) in signature.states.iter().enumerate() {
            call.state(i).copy_from_slice(&spec.initial);
        }
        for (i, port) in signature.inputs.iter().enumerate() {
            fill(i, &port.token, call.input(i));
        }
        call.run(&*kernel).map_err(|fault| fault.to_string())?;
        Ok((0..signature.outputs.len())
            .map(|o| call.output(o).to_vec())
            .collect())
    }
}

fn random_input(random: &mut Random, token: &TokenType, bytes: &mut [u8]) {
    let elements = bytes.len() / token.dtype.size_bytes() as usize;
    bytes.copy_from_slice(&random.elements(token.dtype, elements));
}

/// Parameters of an op's example.
fn example_params(op: &dyn Op) -> Params {
    let example = op.doc().example;
    let inside = example
        .split_once('(')
        .map_or("", |(_, rest)| rest.trim_end_matches(')'));
    let mut params = Params::new();
    let mut positional = op.positional().iter();
    for argument in super::conformance::split_top(inside) {
        let argument = argument.trim();
        let is_name =
            |text: &str| !text.is_empty() && text.chars().all(|c| c.is_alphanumeric() || c == '_');
        match argument.split_once(':').filter(|(name, _)| is_name(name)) {
            Some((name, text)) => {
                params.insert(name.to_owned(), value(text));
            }
            None => {
                let name = positional.next().expect("an argument without a name");
                params.insert((*name).to_owned(), value(argument));
            }
        }
    }
    params
}

/// The example of an op with one type tried.
fn example(op: &dyn Op, tried: DType) -> Case {
    let mut params = example_params(op);
    // What an example declares of its inputs is what is tried.
    if let Some(Value::Map(declared)) = params.get_mut("inputs") {
        let word = Value::Str(tried.name().to_owned());
        declared.values_mut().for_each(|v| *v = word.clone());
    }
    Case {
        op: op.name().to_owned(),
        params,
        inputs: example_inputs(op, tried).into_iter().collect(),
        blobs: TiVec::new(),
    }
}

fn pick<'a, T>(random: &mut Random, all: &'a [T]) -> &'a T {
    &all[random.below(all.len())]
}

fn random_token(random: &mut Random) -> TokenType {
    let rank = random.below(5);
    let shape: Vec<u32> = (0..rank)
        .map(|_| *pick(random, &[0, 1, 1, 2, 2, 3]))
        .collect();
    TokenType {
        dtype: *pick(random, &DType::ALL),
        burst: !shape.is_empty() && random.below(8) == 0,
        shape,
    }
}

/// Numbers that parameters are likely to mishandle.
const NUMBERS: [i64; 14] = [
    -1,
    0,
    1,
    2,
    3,
    -2,
    7,
    63,
    1 << 16,
    (1 << 31) - 1,
    1 << 31,
    1 << 40,
    i64::MAX,
    i64::MIN,
];

/// Changes one number somewhere in a value.
fn change_number(random: &mut Random, value: &mut Value) {
    match value {
        Value::List(list) if !list.is_empty() => match random.below(6) {
            0 => {
                list.pop();
            }
            1 => list.push(list[0].clone()),
            _ => {
                let place = random.below(list.len());
                change_number(random, &mut list[place]);
            }
        },
        Value::Map(map) if !map.is_empty() => {
            let place = random.below(map.len());
            if let Some(inner) = map.values_mut().nth(place) {
                change_number(random, inner);
            }
        }
        Value::Float(float) => {
            *float = *pick(
                random,
                &[0.0, -1.0, 1e-30, 1e30, 0.5, f64::MAX, f64::MIN_POSITIVE],
            );
        }
        other => *other = Value::Int(*pick(random, &NUMBERS)),
    }
}

/// A constant: a number, lists, or a tensor of any type.
fn constant(random: &mut Random, case: &mut Case) -> Value {
    let mut token = random_token(random);
    match random.below(3) {
        0 => Value::Int(*pick(random, &NUMBERS[..7])),
        1 => {
            let count = random.below(4);
            Value::List(
                (0..count)
                    .map(|_| Value::Int(*pick(random, &NUMBERS[..7])))
                    .collect(),
            )
        }
        _ => {
            if token.dtype == DType::C32 {
                token = TokenType::new(DType::F16, token.shape);
            }
            let bytes = random.elements(token.dtype, stored_elements(&token) as usize);
            let blob = case.blobs.next_key();
            case.blobs.push(Bytes::from(bytes));
            Value::Tensor(blob, token)
        }
    }
}

/// One change at random.
fn change(random: &mut Random, case: &mut Case, op: &dyn Op) {
    let schema = op.types().expect("a schema");
    let names: Vec<String> = case.inputs.keys().cloned().collect();
    match random.below(9) {
        0 | 1 if !names.is_empty() => {
            let token = case.inputs.get_mut(pick(random, &names)).expect("an input");
            token.dtype = *pick(random, &DType::ALL);
        }
        2 | 3 if !names.is_empty() => {
            let name = pick(random, &names).clone();
            let token = case.inputs.get_mut(&name).expect("an input");
            let mut shape = token.shape.clone();
            match random.below(4) {
                0 => shape.push(*pick(random, &[1, 2])),
                1 => {
                    shape.pop();
                }
                _ if !shape.is_empty() => {
                    let place = random.below(shape.len());
                    shape[place] = *pick(random, &[0, 1, 2, 3, 5]);
                }
                _ => shape = random_token(random).shape,
            }
            *token = TokenType::new(token.dtype, shape);
        }
        4 if !names.is_empty() => {
            let name = pick(random, &names).clone();
            case.inputs.remove(&name);
            if random.below(3) > 0 {
                let value = constant(random, case);
                case.params.insert(name, value);
            }
        }
        5 if !schema.inputs.is_empty() => {
            let port = pick(random, &schema.inputs);
            let number = if port.many {
                random.below(3).to_string()
            } else {
                String::new()
            };
            let name = format!("{}{number}", port.name);
            if random.below(2) == 0 {
                case.inputs.insert(name, random_token(random));
            } else {
                let value = constant(random, case);
                case.params.insert(name, value);
            }
        }
        6 | 7 if !case.params.is_empty() => {
            let place = random.below(case.params.len());
            if let Some(value) = case.params.values_mut().nth(place) {
                change_number(random, value);
            }
        }
        _ => {
            let doc = op.doc();
            let Some((name, _)) = (!doc.params.is_empty()).then(|| pick(random, doc.params)) else {
                return;
            };
            let value = match random.below(3) {
                0 => constant(random, case),
                1 => Value::List(
                    (0..random.below(5))
                        .map(|_| Value::Int(*pick(random, &NUMBERS)))
                        .collect(),
                ),
                _ => Value::Int(*pick(random, &NUMBERS)),
            };
            case.params.insert((*name).to_owned(), value);
        }
    }
}

/// Ports that must agree and do not, or have a type that the schema does not name: such a case must be refused.
fn is_wrong(case: &Case, schema: &TypeSchema) -> bool {
    let mut seen: Vec<(char, DType)> = Vec::new();
    for (name, token) in &case.inputs {
        let Some(port) = schema.input(name) else {
            continue;
        };
        if !schema.possible(port).contains(&token.dtype) {
            return true;
        }
        let Some(variable) = port.exact_variable() else {
            continue;
        };
        match seen.iter().find(|(other, _)| *other == variable) {
            Some((_, dtype)) if *dtype != token.dtype => return true,
            _ => seen.push((variable, token.dtype)),
        }
    }
    false
}

fn cases() -> u64 {
    let asked = std::env::var("ZBMD_HOSTILE_CASES");
    asked.ok().and_then(|n| n.parse().ok()).unwrap_or(CASES)
}

#[test]
fn every_op_refuses_or_computes_whatever_it_is_given() {
    let registry = crate::standard_registry();
    let mut failures = Vec::new();
    let (mut tried, mut ran) = (0, 0);
    let trace = std::env::var_os("ZBMD_HOSTILE_TRACE");
    for (index, name) in registry
        .names()
        .enumerate()
        .filter(|(_, name)| *name != "Custom")
    {
        let op = &**registry.op(name).expect("an op");
        let schema = op.types().expect("a schema");
        for number in 0..cases() {
            let seed = (index as u64) << 32 | number;
            let mut random = Random(seed);
            let mut case = example(op, *pick(&mut random, &DType::ALL[..3]));
            if number % 4 == 3 {
                case.inputs.clear();
                for port in &schema.inputs {
                    if !port.constant && random.below(4) > 0 {
                        let suffix = if port.many { "0" } else { "" };
                        let name = format!("{}{suffix}", port.name);
                        case.inputs.insert(name, random_token(&mut random));
                    }
                }
            }
            for _ in 0..random.below(4) {
                change(&mut random, &mut case, op);
            }

            tried += 1;
            if let Some(path) = &trace {
                // A case that ends the process (no memory, no stack) is the last one in this file.
                std::fs::write(path, format!("seed {seed}: {case:?}")).expect("the trace");
            }
            let outcome = catch_unwind(AssertUnwindSafe(|| {
                let fill = |_: usize, token: &TokenType, bytes: &mut [u8]| {
                    random_input(&mut random, token, bytes);
                };
                case.run(&registry, fill)
            }));
            match outcome {
                Err(_) => failures.push(format!("seed {seed}: panic: {case:?}")),
                Ok(Ok(_)) if is_wrong(&case, schema) => {
                    failures.push(format!("seed {seed}: not refused: {case:?}"));
                }
                Ok(Ok(_)) => ran += 1,
                Ok(Err(_)) => {}
            }
        }
    }
    assert!(
        failures.is_empty(),
        "{} of {tried}:\n{}",
        failures.len(),
        failures.join("\n")
    );
    assert!(ran > tried / 10, "only {ran} of {tried} cases ran");
}
