//! What holds for every op: bits that do not depend on how firings are grouped; agreement with `reference`;
//! refusal of actors whose ports are not the op's.

use std::collections::BTreeMap;
use std::sync::Arc;

use bytes::Bytes;
use zbmd_ir::{
    Actor, BlobId, DType, OutPort, Params, Role, StatePort, TiSlice, TiVec, TokenType, Value,
};

use super::entry::{in_port, out_port};
use crate::call::Call;
use crate::kernel::Kernel;
use crate::op::{OpError, Registry, ResolveCx, Signature};
use crate::reference::{self, C};

/// A parameter value from a short text: RON-like, as far as the tests need it.
pub(super) fn value(text: &str) -> Value {
    let text = text.trim();
    let inside = |open: char, close: char| {
        text.strip_prefix(open).and_then(|t| t.strip_suffix(close)).map(split_top)
    };
    if let Some(items) = inside('[', ']') {
        return Value::List(items.iter().map(|i| value(i)).collect());
    }
    if let Some(items) = inside('{', '}') {
        let entry = |item: &String| {
            let (key, v) = item.split_once(':').expect("key: value");
            (key.trim().to_owned(), value(v))
        };
        return Value::Map(items.iter().map(entry).collect());
    }
    if let Ok(int) = text.parse() {
        return Value::Int(int);
    }
    match text {
        "true" | "false" => Value::Bool(text == "true"),
        "NaN" => Value::Float(f64::NAN),
        _ if text.starts_with(|c: char| c.is_ascii_digit() || c == '-') => {
            Value::Float(text.parse().expect("a number"))
        }
        word => Value::Str(word.trim_matches('"').to_owned()),
    }
}

/// Splits at commas outside brackets and quotes.
fn split_top(text: &str) -> Vec<String> {
    let (mut items, mut depth, mut quoted) = (vec![String::new()], 0, false);
    for c in text.chars() {
        match c {
            '"' => quoted = !quoted,
            '[' | '{' if !quoted => depth += 1,
            ']' | '}' if !quoted => depth -= 1,
            ',' if !quoted && depth == 0 => {
                items.push(String::new());
                continue;
            }
            _ => {}
        }
        items.last_mut().expect("never empty").push(c);
    }
    items.retain(|i| !i.trim().is_empty());
    items
}

pub(super) fn params(text: &str) -> Params {
    match value(&format!("{{{text}}}")) {
        Value::Map(map) => map,
        _ => unreachable!("braces make a map"),
    }
}

fn token(text: &str) -> TokenType {
    let (dtype, shape) = match text.split_once('[') {
        None => (text, Vec::new()),
        Some((dtype, dims)) => {
            let dims = dims.trim_end_matches(']').split(',');
            (dtype, dims.map(|d| d.parse().expect("a dimension")).collect())
        }
    };
    TokenType::new(DType::from_name(dtype).expect("a dtype"), shape)
}

const NO_BLOBS: &[Bytes] = &[];

pub(super) fn resolve(op: &str, parameters: &str, inputs: &str) -> Result<Signature, OpError> {
    let params = params(parameters);
    let types: BTreeMap<String, TokenType> = split_top(inputs)
        .iter()
        .map(|i| match i.split_once(':') {
            None => (String::new(), token(i.trim())),
            Some((name, t)) => (name.trim().to_owned(), token(t.trim())),
        })
        .collect();
    let connected: Vec<String> = types.keys().cloned().collect();
    let blobs: &TiSlice<BlobId, Bytes> = TiSlice::from_ref(NO_BLOBS);
    let cx = ResolveCx { params: &params, connected: &connected, types: &types, blobs };
    Registry::standard().resolve(op, &cx)
}

/// The actor that the compiler would make, the values its states start from, and its kernel.
pub(super) struct Subject {
    pub(super) actor: Actor,
    initial: Vec<Vec<u8>>,
    pub(super) kernel: Arc<dyn Kernel>,
}

pub(super) fn subject(op: &str, parameters: &str, inputs: &str) -> Subject {
    let signature = resolve(op, parameters, inputs)
        .unwrap_or_else(|e| panic!("{op}({parameters}) of {inputs}: {e:?}"));
    let (mut ins, mut outs) = (signature.inputs, signature.outputs);
    let (mut state, mut initial) = (Vec::new(), Vec::new());
    for spec in signature.states {
        state.push(StatePort { input: ins.len() as u32, output: outs.len() as u32 });
        ins.push(in_port(&spec.name, spec.token.clone(), 1, 1));
        outs.push(out_port(&spec.name, spec.token.clone(), 1));
        assert_eq!(spec.initial.len() as u64, spec.token.bytes(), "{op}: initial state");
        initial.push(spec.initial);
    }
    let actor = Actor {
        name: "subject".to_owned(),
        role: Role::Compute,
        op: op.to_owned(),
        params: params(parameters),
        inputs: ins,
        outputs: outs,
        state,
    };
    let kernel = Registry::standard()
        .kernel(&actor, &TiVec::new())
        .unwrap_or_else(|e| panic!("{op}({parameters}) of {inputs}: {e:?}"));
    Subject { actor, initial, kernel }
}

impl Subject {
    fn call(&self, firings: usize) -> Call {
        let mut call = Call::new(&self.actor, self.kernel.scratch_bytes(), firings);
        self.initial.iter().enumerate().for_each(|(i, s)| call.state(i).copy_from_slice(s));
        call
    }

    fn stateless_outputs(&self) -> Vec<&OutPort> {
        let ports = self.actor.outputs.iter().enumerate();
        let free = ports.filter(|(i, _)| self.actor.state_of_output(*i as u32).is_none());
        free.map(|(_, p)| p).collect()
    }

    /// Outputs and final states of `firings` firings on the inputs' whole windows, `group` at a time.
    fn run(&self, inputs: &[Vec<u8>], firings: usize, group: usize) -> Results {
        let mut outputs = vec![Vec::new(); self.stateless_outputs().len()];
        let mut states = self.initial.clone();
        let mut first = 0;
        while first < firings {
            let count = group.min(firings - first);
            let mut call = self.call(count);
            for (i, all) in inputs.iter().enumerate() {
                let port = &self.actor.inputs[i];
                let start = first * (port.rate * port.token.bytes()) as usize;
                let window = call.input(i);
                window.copy_from_slice(&all[start..start + window.len()]);
            }
            states.iter().enumerate().for_each(|(i, s)| call.state(i).copy_from_slice(s));
            call.run(&*self.kernel).expect("no fault");
            outputs.iter_mut().enumerate().for_each(|(i, o)| o.extend(call.output(i)));
            states.iter_mut().enumerate().for_each(|(i, s)| s.copy_from_slice(call.state(i)));
            first += count;
        }
        (outputs, states)
    }

    /// Input `index` with `values` behind the zeros that the compiler puts before a window's first new token.
    fn windows(&self, index: usize, values: &[u8]) -> Vec<u8> {
        let port = &self.actor.inputs[index];
        let mut bytes = vec![0; ((port.window - port.rate) * port.token.bytes()) as usize];
        bytes.extend(values);
        bytes
    }

    /// The only output, for f32 or c32 input values without the zeros before.
    fn floats(&self, inputs: &[&[f32]]) -> Vec<f32> {
        let port = &self.actor.inputs[0];
        let tokens = (inputs[0].len() * 4) as u64 / port.token.bytes();
        let firings = (tokens / port.rate) as usize;
        let bytes = inputs.iter().enumerate();
        let bytes: Vec<_> = bytes.map(|(i, v)| self.windows(i, bytemuck::cast_slice(v))).collect();
        let (outputs, _) = self.run(&bytes, firings, firings);
        floats_of(&outputs[0])
    }
}

fn floats_of(bytes: &[u8]) -> Vec<f32> {
    bytes.chunks_exact(4).map(|c| f32::from_le_bytes([c[0], c[1], c[2], c[3]])).collect()
}

/// Numbers from SplitMix64.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    fn unit(&mut self) -> f32 {
        (self.next() >> 40) as f32 / 8_388_608.0 - 1.0
    }

    fn floats(&mut self, count: usize) -> Vec<f32> {
        (0..count).map(|_| self.unit()).collect()
    }

    /// Elements of any dtype; floats are mostly tame, and now and then zero, infinite or not a number.
    fn elements(&mut self, dtype: DType, count: usize) -> Vec<u8> {
        let mut float = || match self.next() % 64 {
            0 => 0.0,
            1 => f64::NAN,
            2 => f64::NEG_INFINITY,
            3 => 1e30,
            _ => f64::from(self.unit()) * 3.0,
        };
        let parts = if dtype == DType::C32 { 2 } else { 1 };
        let floats: Vec<f64> = (0..count * parts).map(|_| float()).collect();
        match dtype {
            DType::Bool => floats.iter().map(|&v| u8::from(v > 0.0)).collect(),
            DType::F32 | DType::C32 | DType::F64 | DType::F16 | DType::Bf16 => {
                super::args::encode(dtype, &floats)
            }
            _ => super::args::encode(dtype, &floats.iter().map(|v| v * 50.0).collect::<Vec<_>>()),
        }
    }
}

/// Op, parameters, input types.
const CASES: &[(&str, &str, &str)] = &[
    ("Const", "value: 2.5", ""),
    ("Const", "value: [[1, 2, 3], [4, 5, 6]], dtype: i16", ""),
    ("Const", "value: [0.5, -1], dtype: c32", ""),
    ("Counter", "start: 5, step: -3", ""),
    ("Counter", "start: 250, dtype: u8", ""),
    ("Tone", "freq: 1000.0, rate: 48000.0, dtype: f32", ""),
    ("Tone", "freq: -3.7, rate: 48000.0, amplitude: 0.3", ""),
    ("Noise", "seed: 3", ""),
    ("Noise", "seed: 3, dtype: c32", ""),
    ("Mix", "freq: -250000.0, rate: 2000000.0", "c32"),
    ("Mix", "freq: 3.0, rate: 7.0", "f32[5]"),
    ("Expr", "expr: \"x * g + tanh(c)\"", "x: f32, g: f32, c: f32"),
    ("Expr", "expr: \"x * g + tanh(c)\"", "x: c32, g: f32, c: f32"),
    ("Expr", "expr: \"g + mu * (1.0 - m)\", params: {mu: 0.01}", "g: f32, m: f32"),
    ("Expr", "expr: \"x * g + y\"", "x: f32[300], g: f32, y: f32[300]"),
    ("Expr", "expr: \"exp(x) + log(abs(x) + 0.1) + sin(x) * cos(x) / tan(x)\"", "x: f32"),
    (
        "Expr",
        "expr: \"atan2(x, y) + sqrt(abs(x)) + pow(abs(y), 1.7) + log10(y)\"",
        "x: f32, y: f32",
    ),
    ("Expr", "expr: \"x > 0 && y < 1 ? floor(x) : round(y)\"", "x: f32[7], y: f32[7]"),
    ("Expr", "expr: \"clamp(x, -1, 1) + min(x, 0) * max(x, 2)\"", "x: f64[3]"),
    ("Expr", "expr: \"exp(x) * tanh(x) + pow(x, 3) / 7\"", "x: f64"),
    ("Expr", "expr: \"x * y - x / y\"", "x: i32, y: i32"),
    ("Expr", "expr: \"x * 3 + abs(x) - (x == 4 ? 1 : x)\"", "x: i64"),
    ("Expr", "expr: \"conj(x) * y / (x + 1) - cis(arg(y)) * norm(x)\"", "x: c32, y: c32"),
    ("Expr", "expr: \"exp(x) + select(abs(x) > 1, x, -x) + re(x) * im(x)\"", "x: c32"),
    ("Expr", "expr: \"!b || x >= 0\"", "b: bool, x: f32"),
    ("Expr", "expr: \"x\"", "x: bool"),
    ("Expr", "expr: \"x + d\"", "x: f32, d: f64"),
    ("Add", "", "x: f32, y: f32"),
    ("Sub", "", "x: f32[4], y: f32"),
    ("Mul", "", "x: c32, y: f32"),
    ("Div", "", "x: c32, y: c32"),
    ("Gain", "gain: 0.3", "c32[9]"),
    ("Magnitude", "", "c32"),
    ("Power", "", "c32"),
    ("Phase", "", "c32"),
    ("Log", "base: db", "f32"),
    ("Threshold", "level: 0.25", "f32[3]"),
    ("Convert", "to: c32, from: cu8", "u8[2]"),
    ("Convert", "to: cu8", "c32"),
    ("Convert", "to: cs16", "c32[3]"),
    ("Convert", "from: s16", "i16"),
    ("Convert", "to: s16", "f32"),
    ("Convert", "to: f16", "f32"),
    ("Convert", "to: bf16", "f64"),
    ("Convert", "to: i8", "i64"),
    ("Convert", "to: u8", "f32"),
    ("Convert", "to: f64", "f16"),
    ("Fir", "taps: [0.5]", "f32"),
    ("Fir", "taps: [1, -2, 3, -4, 5]", "f32"),
    ("Fir", "taps: [1, -2, 3], decimate: 2, interpolate: 3", "c32"),
    ("Fir", "taps: [[1, 2], [3, -4], [0.5, 0.25]], decimate: 3", "c32"),
    ("Fir", "taps: [[1, 2], [3, -4], [0.5, 0.25]], interpolate: 2", "f32"),
    (
        "Fir",
        "design: {kind: lowpass, cutoff: 100, rate: 1000, taps: 61, window: {kaiser: 6}}, decimate: 5",
        "f32",
    ),
    (
        "Fir",
        "design: {kind: bandpass, cutoff: [50, 200], rate: 1000, taps: 130}, decimate: 7, interpolate: 5",
        "c32",
    ),
    ("Correlate", "template: [1, -1, 1, 1]", "f32"),
    ("Correlate", "template: [[1, 1], [0, -1]]", "c32"),
    ("Biquad", "sections: [[0.2, 0.4, 0.2, -0.5, 0.3], [1, 0, 0, -0.9, 0]]", "f32"),
    ("Biquad", "sections: [[0.2, 0.4, 0.2, -0.5, 0.3], [1, 0, 0, -0.9, 0]]", "c32"),
    ("Deemphasis", "tau: 50e-6, rate: 48000", "f32"),
    ("Discriminate", "gain: 2", "c32"),
    ("Frame", "size: 6, hop: 4", "f32"),
    ("Frame", "size: 5", "c32[2]"),
    ("OverlapAdd", "hop: 4", "f32[6]"),
    ("OverlapAdd", "hop: 2", "c32[7]"),
    ("OverlapAdd", "hop: 3", "f32[3,2]"),
    ("Window", "kind: hann", "f32[16]"),
    ("Window", "kind: {kaiser: 5}, periodic: false", "c32[5,2]"),
    ("Fft", "", "c32[12]"),
    ("Fft", "inverse: true", "c32[3,64]"),
    ("Fft", "", "c32[17]"),
    ("Rfft", "", "f32[512]"),
    ("Rfft", "", "f32[15]"),
    ("Irfft", "", "c32[9]"),
    ("Irfft", "size: 17", "c32[2,9]"),
    ("Delay", "tokens: 3", "c32"),
    ("Fork", "outputs: 3", "i16[2]"),
    ("Split", "outputs: 3", "f32"),
    ("Split", "outputs: 2", "u8[3]"),
    ("Merge", "", "x0: f32, x1: f32, x2: f32"),
    ("Reshape", "shape: [4, 3]", "f32[6]"),
    ("Reshape", "shape: []", "c32[5]"),
    ("Transpose", "", "f32[3,4]"),
    ("Transpose", "axes: [1, 2, 0]", "u8[2,3,4]"),
    ("MatMul", "b: [[1, 2, 3], [4, 5, 6]]", "f32[2]"),
    ("MatMul", "", "x: f32[5,7], y: f32[7,35]"),
    ("MatMul", "", "x: c32[2,3], y: c32[3,2]"),
    ("MatMul", "b: [1, 2]", "c32[3,2]"),
    ("Sum", "axis: 1", "f32[3,4,2]"),
    ("Sum", "", "i32[3,4]"),
    ("Mean", "axis: -1", "c32[3,4]"),
    ("Mean", "", "f64"),
    ("Decimate", "factor: 3", "c32"),
    ("Hold", "factor: 3", "u8[3]"),
];

type Results = (Vec<Vec<u8>>, Vec<Vec<u8>>);

/// Equal bits, all NaNs counting as one.
fn same(subject: &Subject, a: &Results, b: &Results) -> bool {
    let one_nan = |(outputs, states): &Results| -> Vec<Vec<u8>> {
        let dtypes = subject.stateless_outputs().into_iter().map(|p| p.token.dtype);
        let state = |s: &StatePort| subject.actor.inputs[s.input as usize].token.dtype;
        let dtypes = dtypes.chain(subject.actor.state.iter().map(state));
        let canonical = |(bytes, dtype): (&Vec<u8>, DType)| {
            let mut bytes = bytes.clone();
            let size = if dtype == DType::C32 { 4 } else { dtype.size_bytes() as usize };
            for element in bytes.chunks_exact_mut(size) {
                let nan = match dtype {
                    DType::F32 | DType::C32 => floats_of(element)[0].is_nan(),
                    DType::F64 => f64::from_le_bytes(element.try_into().unwrap()).is_nan(),
                    _ => false,
                };
                if nan {
                    element.fill(0xff);
                }
            }
            bytes
        };
        outputs.iter().chain(states).zip(dtypes).map(canonical).collect()
    };
    one_nan(a) == one_nan(b)
}

#[test]
fn bits_do_not_depend_on_how_firings_are_grouped() {
    let mut random = Random(1);
    for &(op, parameters, inputs) in CASES {
        let subject = subject(op, parameters, inputs);
        // Beyond a column of 256 elements, and no multiple of anything.
        for firings in [1_usize, 7, 533] {
            let count = subject.actor.inputs.len() - subject.actor.state.len();
            let data: Vec<Vec<u8>> = subject.actor.inputs[..count]
                .iter()
                .map(|p| {
                    let tokens = (firings as u64 - 1) * p.rate + p.window;
                    random.elements(p.token.dtype, (tokens * p.token.elements()) as usize)
                })
                .collect();
            let whole = subject.run(&data, firings, firings);
            for group in [1, 2, 3, 19] {
                let parts = subject.run(&data, firings, group);
                let name =
                    format!("{op}({parameters}) of ({inputs}), {firings} firings by {group}");
                assert!(same(&subject, &whole, &parts), "{name}");
            }
        }
    }
}

#[test]
fn every_op_is_in_the_table_and_documented() {
    for (name, doc) in Registry::standard().docs() {
        assert!(name == "Custom" || CASES.iter().any(|(op, ..)| *op == name), "{name}: no case");
        assert!(doc.example.starts_with(&name), "{name}: {}", doc.example);
        assert!(!doc.summary.is_empty() && !doc.ports.is_empty());
    }
}

#[test]
fn actors_with_other_ports_are_refused_not_run() {
    type Spoil = fn(&mut Actor);
    let spoils: [(&str, Spoil); 8] = [
        ("window", |a| a.inputs[0].window += 1),
        ("rate", |a| a.outputs[0].rate += 1),
        ("token", |a| a.outputs[0].token.shape.push(2)),
        ("name", |a| a.inputs[0].name.push('x')),
        ("state", |a| a.state.clear()),
        ("input", |a| drop(a.inputs.pop())),
        ("output", |a| drop(a.outputs.remove(0))),
        ("parameter", |a| drop(a.params.insert("frequency".to_owned(), Value::Int(1)))),
    ];
    for (name, spoil) in spoils {
        let mut actor = subject("Mix", "freq: 1, rate: 4", "c32").actor;
        spoil(&mut actor);
        assert!(Registry::standard().kernel(&actor, &TiVec::new()).is_err(), "{name}");
    }
}

/// Largest distance, as a share of the largest value.
fn distance(got: &[f32], want: &[f64]) -> f64 {
    assert_eq!(got.len(), want.len());
    let scale = want.iter().fold(1e-30, |m: f64, w| m.max(w.abs()));
    got.iter().zip(want).map(|(&g, w)| (f64::from(g) - w).abs()).fold(0.0, f64::max) / scale
}

fn complex(x: &[f32]) -> Vec<C> {
    x.chunks_exact(2).map(|z| (z[0].into(), z[1].into())).collect()
}

fn real(x: &[f32]) -> Vec<C> {
    x.iter().map(|&v| (v.into(), 0.0)).collect()
}

fn flat(z: &[C]) -> Vec<f64> {
    z.iter().flat_map(|z| [z.0, z.1]).collect()
}

fn re(z: &[C]) -> Vec<f64> {
    z.iter().map(|z| z.0).collect()
}

#[track_caller]
fn close(what: &str, got: &[f32], want: &[f64], tolerance: f64) {
    let distance = distance(got, want);
    assert!(distance < tolerance, "{what}: {distance:e}, allowed {tolerance:e}");
}

#[test]
fn filters_agree_with_convolution() {
    let mut random = Random(2);
    for (taps, decimate, interpolate) in [
        (1, 1, 1),
        (5, 1, 1),
        (8, 2, 1),
        (9, 1, 4),
        (33, 3, 2),
        (64, 8, 1),
        (40, 7, 10),
        (3, 2, 8),
        (2, 5, 1),
    ] {
        let firings = 23;
        let h = random.floats(2 * taps);
        let x = random.floats(2 * decimate * firings);
        let list = |v: &[f32]| format!("{v:?}");
        let pairs: Vec<String> = h.chunks(2).map(list).collect();
        let rates = format!("decimate: {decimate}, interpolate: {interpolate}");
        for (complex_x, complex_h) in [(false, false), (true, false), (false, true), (true, true)] {
            let (input, samples) = match complex_x {
                true => ("c32", complex(&x)),
                false => ("f32", real(&x[..decimate * firings])),
            };
            let values = if complex_x { &x[..] } else { &x[..decimate * firings] };
            let (text, taps) = match complex_h {
                true => (format!("[{}]", pairs.join(",")), complex(&h)),
                false => (list(&h[..taps]), real(&h[..taps])),
            };
            let got = subject("Fir", &format!("taps: {text}, {rates}"), input).floats(&[values]);
            let want = reference::fir(&samples, &taps, decimate, interpolate);
            let want = if complex_x || complex_h { flat(&want) } else { re(&want) };
            // Sums of some tens of products in f32.
            close(&format!("Fir {} taps, {rates}", taps.len()), &got, &want, 1e-6);

            let got = subject("Correlate", &format!("template: {text}"), input).floats(&[values]);
            let want = reference::correlate(&samples, &taps);
            let want = if complex_x || complex_h { flat(&want) } else { re(&want) };
            close("Correlate", &got, &want, 1e-6);
        }
    }
}

#[test]
fn recursions_agree_with_direct_form() {
    let mut random = Random(3);
    let x = random.floats(800);
    let sections = [[0.2, 0.4, 0.2, -0.5, 0.3], [1.0, -0.5, 0.25, -1.2, 0.72]];
    let params = format!("sections: {sections:?}");
    let got = subject("Biquad", &params, "f32").floats(&[&x]);
    close("Biquad f32", &got, &re(&reference::biquad(&real(&x), &sections)), 2e-7);
    let got = subject("Biquad", &params, "c32").floats(&[&x]);
    close("Biquad c32", &got, &flat(&reference::biquad(&complex(&x), &sections)), 2e-7);
    let got = subject("Deemphasis", "tau: 0.001, rate: 1000", "f32").floats(&[&x]);
    let pole = (-1.0_f64).exp();
    let want = reference::biquad(&real(&x), &[[1.0 - pole, 0.0, 0.0, -pole, 0.0]]);
    close("Deemphasis", &got, &re(&want), 2e-7);
    let got = subject("Discriminate", "gain: 2.5", "c32").floats(&[&x]);
    close("Discriminate", &got, &reference::discriminate(&complex(&x), 2.5), 1e-6);
}

#[test]
fn transforms_agree_with_their_sums() {
    let mut random = Random(4);
    for n in [1_usize, 2, 7, 16, 60, 127, 256] {
        let x = random.floats(4 * n);
        let rows: Vec<Vec<C>> = complex(&x).chunks(n).map(<[C]>::to_vec).collect();
        for (inverse, sign, scale) in [(false, -1.0, 1.0), (true, 1.0, 1.0 / n as f64)] {
            let fft = subject("Fft", &format!("inverse: {inverse}"), &format!("c32[{n}]"));
            let want: Vec<f64> = rows
                .iter()
                .flat_map(|r| flat(&reference::dft(r, sign)))
                .map(|v| v * scale)
                .collect();
            close(&format!("Fft {n}"), &fft.floats(&[&x]), &want, 1e-6);
        }
        let spectra: Vec<Vec<C>> = x.chunks(n).map(|r| reference::dft(&real(r), -1.0)).collect();
        let half: Vec<f64> = spectra.iter().flat_map(|s| flat(&s[..n / 2 + 1])).collect();
        let got = subject("Rfft", "", &format!("f32[{n}]")).floats(&[&x]);
        close(&format!("Rfft {n}"), &got, &half, 1e-6);
        let bins = format!("c32[{}]", n / 2 + 1);
        let back = subject("Irfft", &format!("size: {n}"), &bins).floats(&[&got]);
        close(
            &format!("Irfft {n}"),
            &back,
            &x.iter().map(|&v| v.into()).collect::<Vec<f64>>(),
            1e-6,
        );
    }
}

#[test]
fn mixing_keeps_its_phase_for_ever() {
    let mix = subject("Mix", "freq: -123456.7, rate: 2000000", "c32");
    let ones: Vec<f32> = [1.0, 0.0].repeat(5000);
    let want: Vec<C> = (0..5000).map(|k| reference::cis(-123_456.7 / 2e6 * f64::from(k))).collect();
    close("Mix", &mix.floats(&[&ones]), &flat(&want), 2e-7);
    // A quarter turn a sample: after any number of samples the phase is exact.
    let mut call = subject("Mix", "freq: 1, rate: 4", "c32").call(3);
    let phase = 0_i64.wrapping_add(i64::MIN / 2).wrapping_mul(1_000_001);
    call.state(0).copy_from_slice(&phase.to_le_bytes());
    let mix = subject("Mix", "freq: 1, rate: 4", "c32");
    call.input(0).copy_from_slice(bytemuck::cast_slice(&[1.0_f32, 0.0].repeat(3)));
    call.run(&*mix.kernel).unwrap();
    let z: Vec<i32> = floats_of(call.output(0)).iter().map(|&v| v as i32).collect();
    assert_eq!(z, [0, -1, 1, 0, 0, 1]);
}

#[test]
fn products_agree_with_rows_times_columns() {
    let mut random = Random(5);
    for (m, k, n) in [(1, 1, 1), (2, 3, 4), (5, 7, 35), (9, 64, 17), (1, 31, 130)] {
        let (a, b) = (random.floats(2 * m * k), random.floats(2 * k * n));
        let types = |t: &str| format!("x: {t}[{m},{k}], y: {t}[{k},{n}]");
        let got = subject("MatMul", "", &types("f32")).floats(&[&a[..m * k], &b[..k * n]]);
        let want = reference::matmul(&real(&a[..m * k]), &real(&b[..k * n]), m, k, n);
        close("MatMul f32", &got, &re(&want), 1e-6);
        let got = subject("MatMul", "", &types("c32")).floats(&[&a, &b]);
        let want = reference::matmul(&complex(&a), &complex(&b), m, k, n);
        close("MatMul c32", &got, &flat(&want), 1e-6);
        // A constant matrix meets all firings' rows at once.
        let rows: Vec<String> = b[..k * n].chunks(n).map(|r| format!("{r:?}")).collect();
        let constant = format!("b: [{}]", rows.join(","));
        let got = subject("MatMul", &constant, &format!("f32[{k}]")).floats(&[&a[..m * k]]);
        let want = reference::matmul(&real(&a[..m * k]), &real(&b[..k * n]), m, k, n);
        close("MatMul constant", &got, &re(&want), 1e-6);
    }
}

#[test]
fn overlapped_hann_frames_add_up_to_the_signal() {
    let mut random = Random(6);
    for (size, hop) in [(8, 4), (12, 3), (5, 5), (9, 4), (10, 3)] {
        let x = random.floats(size * 20);
        let frames: Vec<Vec<f64>> =
            x.chunks(size).map(|f| f.iter().map(|&v| v.into()).collect()).collect();
        let got =
            subject("OverlapAdd", &format!("hop: {hop}"), &format!("f32[{size}]")).floats(&[&x]);
        close("OverlapAdd", &got, &reference::overlap_add(&frames, hop), 2e-7);
    }
    // Periodic Hann windows half a frame apart sum to 1: the signal comes back, size − hop tokens late.
    let x = random.floats(64);
    let frames = subject("Frame", "size: 8, hop: 4", "f32").floats(&[&x]);
    let weighted = subject("Window", "kind: hann", "f32[8]").floats(&[&frames]);
    let back = subject("OverlapAdd", "hop: 4", "f32[8]").floats(&[&weighted]);
    close(
        "reconstruction",
        &back[4..],
        &x[..60].iter().map(|&v| v.into()).collect::<Vec<_>>(),
        3e-7,
    );
}
