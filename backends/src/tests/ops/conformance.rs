//! What holds for every op: bits that do not depend on how firings are grouped, refusals that help, and no kernel
//! for actors whose ports are not the op's. Holds the helpers of the other tests.

use std::collections::BTreeMap;
use std::sync::Arc;

use bytes::Bytes;
use zbmd_ir::{
    Actor, BlobId, DType, InPlace, InPort, OutPort, Params, Role, StatePort, TiSlice, TiVec,
    TokenType, Value,
};

use crate::call::Call;
use crate::kernel::Kernel;
use crate::op::{OpError, ResolveCx, Signature};
use crate::team;
use zbmd_op::entry::{in_port, out_port};
use zbmd_ops_nn::narrow;

/// A parameter value from a short text: RON-like, as far as the tests need it.
pub(crate) fn value(text: &str) -> Value {
    let text = text.trim();
    let inside = |open: char, close: char| {
        text.strip_prefix(open)
            .and_then(|t| t.strip_suffix(close))
            .map(split_top)
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
pub(crate) fn split_top(text: &str) -> Vec<String> {
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

pub(crate) fn params(text: &str) -> Params {
    match value(&format!("{{{text}}}")) {
        Value::Map(map) => map,
        _ => unreachable!("braces make a map"),
    }
}

fn token(text: &str) -> TokenType {
    let burst = text.starts_with("burst ");
    let text = text.trim_start_matches("burst ");
    let (dtype, shape) = match text.split_once('[') {
        None => (text, Vec::new()),
        Some((dtype, dims)) => {
            let dims = dims.trim_end_matches(']').split(',');
            (
                dtype,
                dims.map(|d| d.parse().expect("a dimension")).collect(),
            )
        }
    };
    let dtype = DType::from_name(dtype).expect("a dtype");
    TokenType {
        dtype,
        shape,
        burst,
    }
}

const NO_BLOBS: &[Bytes] = &[];

pub(crate) fn resolve(op: &str, parameters: &str, inputs: &str) -> Result<Signature, OpError> {
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
    let cx = ResolveCx {
        params: &params,
        connected: &connected,
        types: &types,
        blobs,
    };
    crate::standard_registry().resolve(op, &cx)
}

/// The actor that the compiler would make, the values its states start from, and its kernel.
pub(crate) struct Subject {
    pub(crate) actor: Actor,
    pub(crate) initial: Vec<Vec<u8>>,
    pub(crate) kernel: Arc<dyn Kernel>,
}

pub(crate) fn subject(op: &str, parameters: &str, inputs: &str) -> Subject {
    let signature = resolve(op, parameters, inputs)
        .unwrap_or_else(|e| panic!("{op}({parameters}) of {inputs}: {e:?}"));
    let (mut ins, mut outs) = (signature.inputs, signature.outputs);
    let (mut state, mut initial) = (Vec::new(), Vec::new());
    for spec in signature.states {
        state.push(StatePort {
            input: ins.len() as u32,
            output: outs.len() as u32,
        });
        ins.push(in_port(&spec.name, spec.token.clone(), 1, 1));
        outs.push(out_port(&spec.name, spec.token.clone(), 1));
        assert_eq!(
            spec.initial.len() as u64,
            spec.token.bytes(),
            "{op}: initial state"
        );
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
        in_place: Vec::new(),
    };
    let kernel = crate::standard_registry()
        .kernel(&actor, &TiVec::new())
        .unwrap_or_else(|e| panic!("{op}({parameters}) of {inputs}: {e:?}"));
    Subject {
        actor,
        initial,
        kernel,
    }
}

/// Elements that fill the bytes of a token, which has more of them than elements if it is a burst.
pub(super) fn stored_elements(token: &TokenType) -> u64 {
    token.bytes() / token.dtype.size_bytes()
}

impl Subject {
    pub(super) fn call(&self, firings: usize) -> Call {
        let mut call = Call::new(&self.actor, self.kernel.scratch_bytes(), firings);
        self.initial
            .iter()
            .enumerate()
            .for_each(|(i, s)| call.state(i).copy_from_slice(s));
        call
    }

    pub(crate) fn stateless_outputs(&self) -> Vec<&OutPort> {
        let ports = self.actor.outputs.iter().enumerate();
        let free = ports.filter(|(i, _)| self.actor.state_of_output(*i as u32).is_none());
        free.map(|(_, p)| p).collect()
    }

    /// Windows of `firings` firings for every input that is no state, of elements by `make`, which is told how many.
    pub(crate) fn inputs(
        &self,
        firings: usize,
        mut make: impl FnMut(DType, usize) -> Vec<u8>,
    ) -> Vec<Vec<u8>> {
        let ports = &self.actor.inputs[..self.actor.inputs.len() - self.actor.state.len()];
        let tokens = |p: &InPort| (firings as u64 - 1) * p.rate + p.window;
        let ports = ports
            .iter()
            .map(|p| (p.token.dtype, tokens(p) * stored_elements(&p.token)));
        ports
            .map(|(dtype, elements)| make(dtype, elements as usize))
            .collect()
    }

    /// Outputs and final states of `firings` firings on the inputs' whole windows, `group` at a time. A call is told
    /// its number of firings, their windows and the states, which it changes; it gives its outputs.
    pub(crate) fn in_calls(
        &self,
        inputs: &[Vec<u8>],
        firings: usize,
        group: usize,
        mut call: impl FnMut(usize, &[&[u8]], &mut [Vec<u8>]) -> Vec<Vec<u8>>,
    ) -> Results {
        let mut outputs = vec![Vec::new(); self.stateless_outputs().len()];
        let mut states = self.initial.clone();
        for first in (0..firings).step_by(group) {
            let count = group.min(firings - first);
            let ports = inputs.iter().zip(&self.actor.inputs);
            let windows = ports.map(|(all, port)| {
                let start = first * (port.rate * port.token.bytes()) as usize;
                let tokens = (count as u64 - 1) * port.rate + port.window;
                &all[start..][..(tokens * port.token.bytes()) as usize]
            });
            let new = call(count, &windows.collect::<Vec<_>>(), &mut states);
            assert_eq!(new.len(), outputs.len(), "outputs of a call");
            outputs
                .iter_mut()
                .zip(new)
                .for_each(|(all, new)| all.extend(new));
        }
        (outputs, states)
    }

    /// As [`Self::in_calls`], by the kernel.
    pub(crate) fn run(&self, inputs: &[Vec<u8>], firings: usize, group: usize) -> Results {
        self.in_calls(inputs, firings, group, |count, windows, states| {
            let mut call = self.call(count);
            windows
                .iter()
                .enumerate()
                .for_each(|(i, w)| call.input(i).copy_from_slice(w));
            states
                .iter()
                .enumerate()
                .for_each(|(i, s)| call.state(i).copy_from_slice(s));
            call.run(&*self.kernel).expect("no fault");
            states
                .iter_mut()
                .enumerate()
                .for_each(|(i, s)| s.copy_from_slice(call.state(i)));
            (0..self.stateless_outputs().len())
                .map(|i| call.output(i).to_vec())
                .collect()
        })
    }

    /// Input `index` with `values` behind the zeros that the compiler puts before a window's first new token.
    fn windows(&self, index: usize, values: &[u8]) -> Vec<u8> {
        let port = &self.actor.inputs[index];
        let mut bytes = vec![0; ((port.window - port.rate) * port.token.bytes()) as usize];
        bytes.extend(values);
        bytes
    }

    /// The only output, for f32 or c32 input values without the zeros before.
    pub(super) fn floats(&self, inputs: &[&[f32]]) -> Vec<f32> {
        let port = &self.actor.inputs[0];
        let tokens = (inputs[0].len() * 4) as u64 / port.token.bytes();
        let firings = (tokens / port.rate) as usize;
        let bytes = inputs.iter().enumerate();
        let bytes: Vec<_> = bytes
            .map(|(i, v)| self.windows(i, bytemuck::cast_slice(v)))
            .collect();
        let (outputs, _) = self.run(&bytes, firings, firings);
        floats_of(&outputs[0])
    }
}

pub(super) fn floats_of(bytes: &[u8]) -> Vec<f32> {
    bytes
        .chunks_exact(4)
        .map(|c| f32::from_le_bytes([c[0], c[1], c[2], c[3]]))
        .collect()
}

/// Numbers from SplitMix64.
pub(crate) struct Random(pub(crate) u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// A number below `limit`.
    pub(crate) fn below(&mut self, limit: usize) -> usize {
        (self.next() % limit as u64) as usize
    }

    pub(crate) fn unit(&mut self) -> f32 {
        (self.next() >> 40) as f32 / 8_388_608.0 - 1.0
    }

    pub(super) fn floats(&mut self, count: usize) -> Vec<f32> {
        (0..count).map(|_| self.unit()).collect()
    }

    /// Elements of any dtype; floats are mostly tame, and now and then zero, infinite or not a number.
    pub(crate) fn elements(&mut self, dtype: DType, count: usize) -> Vec<u8> {
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
                zbmd_op::args::encode(dtype, &floats)
            }
            _ => zbmd_op::args::encode(dtype, &floats.iter().map(|v| v * 50.0).collect::<Vec<_>>()),
        }
    }
}

/// Op, parameters, input types.
pub(crate) const CASES: &[(&str, &str, &str)] = &[
    ("Const", "value: 2.5", ""),
    ("Const", "value: [[1, 2, 3], [4, 5, 6]], dtype: i16", ""),
    ("Const", "value: [0.5, -1], dtype: c32", ""),
    ("Counter", "start: 5, step: -3", ""),
    ("Counter", "start: 250, dtype: u8", ""),
    ("Tone", "freq: 1000.0, rate: 48000.0, dtype: f32", ""),
    ("Tone", "freq: -3.7, rate: 48000.0, amplitude: 0.3", ""),
    ("Noise", "seed: 3", ""),
    ("Noise", "seed: 3, dtype: c32", ""),
    ("BurstIndex", "hop: 100, offset: -7", "burst f32[3]"),
    ("BurstIndex", "hop: 100, bursts: 2", "burst u8[5,2]"),
    ("Mix", "freq: -250000.0, rate: 2000000.0", "c32"),
    ("Mix", "freq: 3.0, rate: 7.0", "f32[5]"),
    (
        "Expr",
        "expr: \"x * g + tanh(c)\"",
        "x: f32, g: f32, c: f32",
    ),
    (
        "Expr",
        "expr: \"x * g + tanh(c)\"",
        "x: c32, g: f32, c: f32",
    ),
    (
        "Expr",
        "expr: \"g + mu * (1.0 - m)\", params: {mu: 0.01}",
        "g: f32, m: f32",
    ),
    (
        "Expr",
        "expr: \"x * g + y\"",
        "x: f32[300], g: f32, y: f32[300]",
    ),
    (
        "Expr",
        "expr: \"exp(x) + log(abs(x) + 0.1) + sin(x) * cos(x) / tan(x)\"",
        "x: f32",
    ),
    (
        "Expr",
        "expr: \"atan2(x, y) + sqrt(abs(x)) + pow(abs(y), 1.7) + log10(y)\"",
        "x: f32, y: f32",
    ),
    (
        "Expr",
        "expr: \"x > 0 && y < 1 ? floor(x) : round(y)\"",
        "x: f32[7], y: f32[7]",
    ),
    (
        "Expr",
        "expr: \"clamp(x, -1, 1) + min(x, 0) * max(x, 2)\"",
        "x: f64[3]",
    ),
    (
        "Expr",
        "expr: \"exp(x) * tanh(x) + pow(x, 3) / 7\"",
        "x: f64",
    ),
    ("Expr", "expr: \"x * y - x / y\"", "x: i32, y: i32"),
    (
        "Expr",
        "expr: \"x * 3 + abs(x) - (x == 4 ? 1 : x)\"",
        "x: i64",
    ),
    (
        "Expr",
        "expr: \"conj(x) * y / (x + 1) - cis(arg(y)) * norm(x)\"",
        "x: c32, y: c32",
    ),
    (
        "Expr",
        "expr: \"exp(x) + select(abs(x) > 1, x, -x) + re(x) * im(x)\"",
        "x: c32",
    ),
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
    (
        "Fir",
        "taps: [1, -2, 3], decimate: 2, interpolate: 3",
        "c32",
    ),
    (
        "Fir",
        "taps: [[1, 2], [3, -4], [0.5, 0.25]], decimate: 3",
        "c32",
    ),
    (
        "Fir",
        "taps: [[1, 2], [3, -4], [0.5, 0.25]], interpolate: 2",
        "f32",
    ),
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
    // Three strips of branches, the last of them short.
    (
        "Fir",
        "design: {kind: lowpass, cutoff: 10, rate: 1000, taps: 333, gain: 37}, decimate: 20, interpolate: 37",
        "f32",
    ),
    ("Correlate", "template: [1, -1, 1, 1]", "f32"),
    ("Correlate", "template: [[1, 1], [0, -1]]", "c32"),
    (
        "Biquad",
        "sections: [[0.2, 0.4, 0.2, -0.5, 0.3], [1, 0, 0, -0.9, 0]]",
        "f32",
    ),
    (
        "Biquad",
        "sections: [[0.2, 0.4, 0.2, -0.5, 0.3], [1, 0, 0, -0.9, 0]]",
        "c32",
    ),
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
    ("Fft", "", "c32[512]"),
    ("Rfft", "", "f32[512]"),
    ("Rfft", "", "f32[15]"),
    ("Irfft", "", "c32[9]"),
    ("Irfft", "size: 17", "c32[2,9]"),
    ("Delay", "tokens: 3", "c32"),
    ("Fork", "outputs: 3", "i16[2]"),
    ("Split", "outputs: 3", "f32"),
    ("Split", "outputs: 2", "u8[3]"),
    ("Split", "outputs: 3, run: 5", "c32[3]"),
    ("Split", "outputs: 3, run: [2, 1, 3]", "f32[2]"),
    ("Split", "run: [4, 4]", "i16"),
    ("Merge", "", "x0: f32, x1: f32, x2: f32"),
    ("Merge", "run: [2, 5]", "x0: i16, x1: i16"),
    ("Merge", "run: 4", "x0: i16, x1: i16"),
    (
        "AllReduce",
        "",
        "x0: f32[5], x1: f32[5], x2: f32[5], x3: f32[5]",
    ),
    ("AllReduce", "inputs: 3", "x0: c32, x1: c32, x2: c32"),
    ("AllReduce", "", "x0: i64[3], x1: i64[3]"),
    ("Broadcast", "", "u8[3]"),
    ("Gather", "", "x0: c32[2], x1: c32[2], x2: c32[2]"),
    ("Gather", "", "x0: bool, x1: bool"),
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

pub(crate) type Results = (Vec<Vec<u8>>, Vec<Vec<u8>>);

/// Equal bits, all NaNs counting as one.
fn same(subject: &Subject, a: &Results, b: &Results) -> bool {
    let one_nan = |(outputs, states): &Results| -> Vec<Vec<u8>> {
        let dtypes = subject
            .stateless_outputs()
            .into_iter()
            .map(|p| p.token.dtype);
        let state = |s: &StatePort| subject.actor.inputs[s.input as usize].token.dtype;
        let dtypes = dtypes.chain(subject.actor.state.iter().map(state));
        let canonical = |(bytes, dtype): (&Vec<u8>, DType)| {
            let mut bytes = bytes.clone();
            let size = if dtype == DType::C32 {
                4
            } else {
                dtype.size_bytes() as usize
            };
            for element in bytes.chunks_exact_mut(size) {
                let nan = match dtype {
                    DType::F32 | DType::C32 => floats_of(element)[0].is_nan(),
                    DType::F64 => f64::from_le_bytes(element.try_into().unwrap()).is_nan(),
                    DType::F16 => half::f16::from_le_bytes(element.try_into().unwrap()).is_nan(),
                    DType::Bf16 => half::bf16::from_le_bytes(element.try_into().unwrap()).is_nan(),
                    _ => false,
                };
                if nan {
                    element.fill(0xff);
                }
            }
            bytes
        };
        outputs
            .iter()
            .chain(states)
            .zip(dtypes)
            .map(canonical)
            .collect()
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
            let data = subject.inputs(firings, |dtype, count| random.elements(dtype, count));
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

/// Products of matrices and convolutions in each of their forms: rows and columns that fill tiles, and some that do
/// not.
const TILED: &[(&str, &str, &str)] = &[
    ("NnMatMul", "", "x: f32[1,70], y: f32[70,200]"),
    ("NnMatMul", "", "x: f32[2,13,300], y: f32[300,130]"),
    ("NnMatMul", "", "x: f32[3,29,40], y: f32[3,40,97]"),
    ("NnMatMul", "", "x: f16[15,20], y: f16[20,110]"),
    ("NnMatMul", "y: [[1, 2, 3], [4, 5, 6]]", "x: f32[1,2]"),
    (
        "NnGemm",
        "transA: 1, alpha: 0.3",
        "a: f32[600,100], b: f32[600,99]",
    ),
    (
        "NnGemm",
        "transB: 1, beta: 0.5",
        "a: f32[31,40], b: f32[65,40], c: f32[65]",
    ),
    (
        "NnConv",
        "pads: [1, 1, 1, 1]",
        "x: f32[1,20,9,11], w: f32[33,20,3,3]",
    ),
    (
        "NnConv",
        "strides: [2], group: 2",
        "x: f32[2,6,40], w: f32[30,3,5]",
    ),
];

#[test]
fn variants_have_the_same_bits() {
    let registry = crate::standard_registry();
    let mut random = Random(3);
    let mut tried = 0;
    for &(op, parameters, inputs) in CASES.iter().chain(TILED) {
        let mut subject = subject(op, parameters, inputs);
        let names = registry.variants(&subject.actor, &TiVec::new());
        let must = op.starts_with("Nn") || op == "Fir" || op == "Correlate";
        assert_eq!(
            names.len() > 1,
            must,
            "{op}({parameters}) of ({inputs}): {names:?}"
        );
        if !must {
            continue;
        }
        let default = Arc::clone(&subject.kernel);
        let most = if op.starts_with("Nn") { 3 } else { 100 };
        for firings in [1, 2, most] {
            // Finite ones: a sum of hundreds of others would be no number, and so equal to all.
            let data = subject.inputs(firings, |dtype, count| {
                let parts = if dtype == DType::C32 { 2 } else { 1 };
                let floats: Vec<f64> = random
                    .floats(count * parts)
                    .into_iter()
                    .map(f64::from)
                    .collect();
                zbmd_op::args::encode(dtype, &floats)
            });
            subject.kernel = Arc::clone(&default);
            let want = subject.run(&data, firings, firings);
            for name in &names {
                let name_of = format!("{op}({parameters}) of ({inputs}), {firings} by {name}");
                let kernel = registry.kernel_in(&subject.actor, &TiVec::new(), Some(name));
                subject.kernel = kernel.unwrap_or_else(|e| panic!("{name_of}: {e}"));
                assert_eq!(
                    subject.kernel.scratch_bytes(),
                    default.scratch_bytes(),
                    "{name_of}"
                );
                for bits in [1, 256] {
                    let run = |kernel: &Arc<dyn Kernel>, subject: &mut Subject| {
                        subject.kernel = Arc::clone(kernel);
                        narrow::with(bits, || subject.run(&data, firings, firings))
                    };
                    let own = Arc::clone(&subject.kernel);
                    let (want, found) = (run(&default, &mut subject), run(&own, &mut subject));
                    assert!(
                        same(&subject, &want, &found),
                        "{name_of}, vectors of {bits} bits"
                    );
                }
                for cores in [1, 2, 3] {
                    let _team = team::Team::lead(cores, |_| ()).expect("threads");
                    let found = subject.run(&data, firings, firings);
                    assert!(same(&subject, &want, &found), "{name_of} on {cores} cores");
                    tried += 1;
                }
            }
        }
    }
    assert!(tried > 300, "only {tried} runs");
}

#[test]
fn unknown_variants_are_refused() {
    let registry = crate::standard_registry();
    for (op, parameters, inputs, known) in [
        (
            "NnMatMul",
            "",
            "x: f32[2,3], y: f32[3,4]",
            "which has 12x32, ",
        ),
        ("NnMatMul", "", "x: i32[2,3], y: i32[3,4]", "which has none"),
        ("Gain", "gain: 2", "f32", "which has none"),
    ] {
        let actor = subject(op, parameters, inputs).actor;
        let error = registry
            .kernel_in(&actor, &TiVec::new(), Some("13x33"))
            .err();
        let text = error.expect("refused").to_string();
        assert!(
            text.contains("variant `13x33`") && text.contains(known),
            "{text}"
        );
    }
}

/// Tensor ops that may write in place, and the inputs that they may write over.
const OVER: &[(&str, &str, &str, &[u32])] = &[
    ("NnRelu", "", "x: f32[300]", &[0]),
    ("NnNeg", "", "x: i64[7]", &[0]),
    ("NnGelu", "", "x: f32[5,60]", &[0]),
    ("NnErf", "", "x: f64[260]", &[0]),
    ("NnErf", "", "x: f16[260]", &[]),
    ("NnClip", "min: -0.5, max: 0.5", "x: f32[300]", &[0]),
    ("NnNot", "", "x: bool[3]", &[0]),
    ("NnIsNaN", "", "x: f32[3]", &[]),
    ("NnAdd", "", "x: f32[2,300], y: f32[2,300]", &[0, 1]),
    ("NnSub", "", "x: f32[2,300], y: f32[300]", &[0]),
    ("NnSub", "", "x: f32[2,1], y: f32[2,300]", &[1]),
    ("NnDiv", "", "x: f32[2,300], y: f32[2,1]", &[0]),
    ("NnMul", "", "x: i32[2,1,5], y: i32[3,1]", &[]),
    ("NnMul", "", "x: i32[4,1,5], y: i32[4,3,5]", &[1]),
    ("NnLess", "", "x: u8[4,70], y: u8[4,1]", &[0]),
    ("NnLess", "", "x: f32[4], y: f32[4]", &[]),
    ("NnPRelu", "slope: 0.25", "x: f32[300]", &[0]),
    ("NnAdd", "x: 0.25", "y: f32[300]", &[0]),
    ("NnReshape", "shape: [3, 4]", "x: f32[12]", &[0]),
    ("NnUnsqueeze", "axes: [0]", "x: i16[5]", &[0]),
    ("NnIdentity", "", "x: f16[5]", &[0]),
    ("NnBitCast", "to: i32", "x: f32[5]", &[0]),
    (
        "NnConcat",
        "axis: 0",
        "x0: f32[2,8], x1: f32[1,8], x2: f32[3,8]",
        &[0, 1, 2],
    ),
    (
        "NnConcat",
        "axis: 1",
        "x0: i16[1,4], x1: i16[1,12]",
        &[0, 1],
    ),
    ("NnConcat", "axis: 1", "x0: f32[2,4], x1: f32[2,12]", &[]),
    (
        "NnSplit",
        "axis: 0, split: [1, 2, 3], outputs: [0, 1, 2]",
        "x: f32[6,4]",
        &[0, 0, 0],
    ),
    (
        "NnSplit",
        "axis: 1, split: [2, 4], outputs: [0, 1]",
        "x: u8[1,6]",
        &[0, 0],
    ),
    (
        "NnSplit",
        "axis: 1, split: [2, 4], outputs: [0, 1]",
        "x: u8[2,6]",
        &[],
    ),
    (
        "NnSlice",
        "starts: [2], ends: [5], axes: [0]",
        "x: f32[6,4]",
        &[0],
    ),
    (
        "NnSlice",
        "starts: [0], ends: [6], axes: [0]",
        "x: f32[6,4]",
        &[0],
    ),
    (
        "NnSlice",
        "starts: [1], ends: [3], axes: [1]",
        "x: f64[1,4,3]",
        &[0],
    ),
    (
        "NnSlice",
        "starts: [5], ends: [2], axes: [0], steps: [-1]",
        "x: f32[6,4]",
        &[],
    ),
    (
        "NnSlice",
        "starts: [0], ends: [2], axes: [1]",
        "x: f32[6,4]",
        &[],
    ),
    ("NnTranspose", "perm: [1, 0, 2]", "x: f32[1,4,3]", &[0]),
];

/// Every set of pairs that a plan could use at once: of those that share an output or an input as parts all subsets, of
/// others one at a time.
fn together(actor: &Actor, pairs: &[InPlace]) -> Vec<Vec<InPlace>> {
    let bytes = |rate: u64, token: &TokenType| rate * token.bytes();
    let are_parts = pairs.iter().any(|p| {
        let (x, y) = (
            &actor.inputs[p.input as usize],
            &actor.outputs[p.output as usize],
        );
        bytes(x.rate, &x.token) != bytes(y.rate, &y.token)
    });
    if !are_parts {
        return pairs.iter().map(|&pair| vec![pair]).collect();
    }
    let chosen = |set: u32| {
        let pairs = pairs
            .iter()
            .enumerate()
            .filter(move |(i, _)| set & (1 << i) != 0);
        pairs.map(|(_, &pair)| pair).collect()
    };
    (1..1 << pairs.len()).map(chosen).collect()
}

#[test]
fn outputs_over_inputs_have_the_same_bits() {
    let mut random = Random(2);
    let mut tried = 0;
    let cases = CASES
        .iter()
        .map(|&(op, parameters, inputs)| (op, parameters, inputs, None));
    let tensors = OVER
        .iter()
        .map(|&(op, parameters, inputs, over)| (op, parameters, inputs, Some(over)));
    for (op, parameters, inputs, expected) in cases.chain(tensors) {
        let subject = subject(op, parameters, inputs);
        let name = format!("{op}({parameters}) of ({inputs})");
        let pairs = crate::standard_registry().in_place(&subject.actor, &TiVec::new());
        if let Some(expected) = expected {
            let inputs: Vec<u32> = pairs.iter().map(|p| p.input).collect();
            assert_eq!(inputs, expected, "{name}");
        }
        let sets = together(&subject.actor, &pairs);
        for (set, firings) in sets.iter().flat_map(|set| [1, 2, 7, 533].map(|n| (set, n))) {
            let (actor, pair) = (&subject.actor, set[0]);
            let (x, y) = (
                &actor.inputs[pair.input as usize],
                &actor.outputs[pair.output as usize],
            );
            if firings > 1 && x.rate * x.token.bytes() != y.rate * y.token.bytes() {
                continue;
            }
            let mut call = subject.call(firings);
            let ports =
                &subject.actor.inputs[..subject.actor.inputs.len() - subject.actor.state.len()];
            for (i, p) in ports.iter().enumerate() {
                let tokens = (firings as u64 - 1) * p.rate + p.window;
                let elements = tokens * stored_elements(&p.token);
                call.input(i)
                    .copy_from_slice(&random.elements(p.token.dtype, elements as usize));
            }
            let mut run = |over: &[InPlace]| {
                for (index, state) in subject.initial.iter().enumerate() {
                    call.state(index).copy_from_slice(state);
                }
                call.run_over(&*subject.kernel, over).expect("no fault");
                let outputs = 0..subject.actor.outputs.len() - subject.actor.state.len();
                (
                    outputs.map(|o| call.output(o).to_vec()).collect::<Vec<_>>(),
                    Vec::new(),
                )
            };
            let (apart, over) = (run(&[]), run(set));
            assert!(
                same(&subject, &apart, &over),
                "{name}: {firings} firings, {set:?}"
            );
            tried += 1;
        }
    }
    assert!(tried > 150, "only {tried} calls");
}

#[test]
fn more_in_place_than_a_kernel_can_is_refused() {
    let registry = crate::standard_registry();
    for (op, parameters, inputs, pair) in [
        ("Window", "kind: hann", "f32[16]", InPlace::whole(0, 0)),
        ("Sub", "", "x: f32[4], y: f32", InPlace::whole(1, 0)),
        ("Add", "", "x: f32, y: f32", InPlace::whole(0, 1)),
        (
            "NnConcat",
            "axis: 0",
            "x0: f32[16], x1: f32[16]",
            InPlace::whole(1, 0),
        ),
    ] {
        let mut actor = subject(op, parameters, inputs).actor;
        actor.in_place.push(pair);
        let error = registry
            .kernel(&actor, &TiVec::new())
            .err()
            .expect("refused");
        assert!(error.to_string().contains("which op"), "{op}: {error}");
    }
}

#[test]
fn every_op_is_in_the_table_and_documented() {
    for (name, doc) in crate::standard_registry().docs() {
        // Tensor ops have the operator cases of ONNX, which live with the importer.
        let elsewhere = name == "Custom" || name.starts_with("Nn");
        assert!(
            elsewhere || CASES.iter().any(|(op, ..)| *op == name),
            "{name}: no case"
        );
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
        ("parameter", |a| {
            drop(a.params.insert("frequency".to_owned(), Value::Int(1)))
        }),
    ];
    for (name, spoil) in spoils {
        let mut actor = subject("Mix", "freq: 1, rate: 4", "c32").actor;
        spoil(&mut actor);
        assert!(
            crate::standard_registry()
                .kernel(&actor, &TiVec::new())
                .is_err(),
            "{name}"
        );
    }
}

/// An error as people see it.
pub(crate) fn report(error: &OpError) -> String {
    let help = match error {
        OpError::NeedInput { .. } => "",
        OpError::Param { help, .. } | OpError::Input { help, .. } | OpError::Other { help, .. } => {
            help
        }
    };
    format!("  {error}\n  help: {help}\n")
}

#[test]
fn refusals_name_both_facts_and_the_remedy() {
    let mut text = String::new();
    for (op, parameters, inputs) in [
        ("Fri", "", "f32"),
        ("Gain", "", "f32"),
        ("Gain", "gain: loud", "f32"),
        ("Gain", "gian: 2", "f32"),
        ("Gain", "gain: NaN", "f32"),
        ("Magnitude", "", "f32"),
        ("Add", "", "x: f32"),
        ("Add", "", "x: f32, z: f32"),
        ("Const", "value: [[1, 2], [3]]", ""),
        ("Const", "value: [1, 2, 3], shape: [2]", ""),
        ("Const", "value: 1, shape: [100000, 100000]", ""),
        ("Tone", "freq: 1, rate: 0", ""),
        ("Tone", "freq: 1, rate: 1, dtype: f46", ""),
        ("Convert", "to: f32", "c32"),
        ("Convert", "from: cu8", "u8[3]"),
        ("Convert", "from: cu9", "u8[2]"),
        ("Fir", "", "f32"),
        ("Fir", "taps: []", "f32"),
        ("Fir", "taps: [[1, 2, 3]]", "f32"),
        ("Fir", "taps: [1], decimate: 0", "f32"),
        ("Fir", "taps: [1]", "f32[4]"),
        (
            "Fir",
            "design: {kind: lowpass, cutoff: 600, rate: 1000, taps: 5}",
            "f32",
        ),
        (
            "Fir",
            "design: {kind: lowpas, cutoff: 1, rate: 1000, taps: 5}",
            "f32",
        ),
        (
            "Fir",
            "design: {kind: bandpass, cutoff: 1, rate: 1000, taps: 5}",
            "f32",
        ),
        (
            "Fir",
            "design: {kind: highpass, cutoff: 1, rate: 10, taps: 4}",
            "f32",
        ),
        (
            "Fir",
            "design: {kind: lowpass, cutoff: 1, rate: 10, taps: 4, windw: hann}",
            "f32",
        ),
        (
            "Fir",
            "design: {kind: lowpass, cutoff: 1, rate: 10, taps: 4, window: han}",
            "f32",
        ),
        ("Biquad", "sections: [[1, 2, 3]]", "f32"),
        ("Frame", "size: 4, hop: 5", "f32"),
        ("OverlapAdd", "hop: 5", "f32[4]"),
        ("OverlapAdd", "hop: 5", "f32"),
        ("Irfft", "size: 12", "c32[9]"),
        ("Fft", "", "c32"),
        ("Fork", "outputs: 33", "f32"),
        ("Merge", "", "x0: f32, x1: c32"),
        ("AllReduce", "", "x0: f32, x1: f64"),
        ("AllReduce", "", "x0: f32[2], x1: f32"),
        ("AllReduce", "", "x0: i16, x1: i16"),
        ("Gather", "", "x0: f32, x1: i32"),
        ("Merge", "run: [1, 2, 3]", "x0: f32, x1: f32"),
        ("Split", "run: [1, 0]", "f32"),
        ("Split", "run: [1, -2]", "f32"),
        ("Split", "run: [1, f32]", "f32"),
        ("Transpose", "axes: [0, 0]", "f32[2,2]"),
        ("Reshape", "shape: [0]", "f32[2,2]"),
        ("MatMul", "b: [[1, 2]]", "f32[2,2]"),
        ("Sum", "axis: 2", "f32[2,2]"),
        ("Log", "base: 3", "f32"),
        ("Custom", "name: crc", "f32"),
        (
            "Custom",
            "name: crc, inputs: {x: {dtype: u8, shape: [112], rate: 2, window: 1}}",
            "u8[112]",
        ),
    ] {
        let error = resolve(op, parameters, inputs).expect_err(op);
        text += &format!("{op}({parameters}) of ({inputs})\n{}\n", report(&error));
    }
    insta::assert_snapshot!(text);
}
