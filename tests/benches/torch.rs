//! Models at batch 1 on a CUDA device, beside PyTorch on the same device in the same run, by turns: microseconds of one
//! call, from the input in the host's memory to the output there.
//!
//! `cargo bench -p zbmd-tests --bench torch [-- FILTER] [f32|tf32|f16|bf16]`. `ZBMD_TORCH` names a Python that has PyTorch (by default
//! `python3`), and `ZBMD_TORCH_SCRIPT` the script beside this file, for binaries that run elsewhere. Without PyTorch
//! its columns stay empty, without a device there is no table. Ratios are ours to the rival's, medians of the turns';
//! below 1 ours is quicker. Ours are the kernels that calibration chooses, the vendor's library among them, launched early
//! where it finds that to pay; what the default ones take stands behind. The floor is the longer of two times: all weights once at the bandwidth of a large copy,
//! and all operations at the pace of a large product; both are measured by the rival, in the same types.
//!
//! `ZBMD_TORCH_COSTS=10` prints what calibration found of the ten kernels that take the most of a call. `ZBMD_TORCH_HOWS=eager,graph` asks the rival for these ways only: `torch.compile` takes minutes for a large model.
//!
//! `-- tiny` runs small models of the same making: what a device in software can do, to see that it runs.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Instant;

use bytes::Bytes;
use zbmd_backends::gpu::{Device, Drivers, GpuOptions, Kept, Replay};
use zbmd_backends::op::{GpuCapabilities, Registry};
use zbmd_compiler::calibrate::{CalibrateOptions, Calibration, CostRow, EarlyLaunch};
use zbmd_compiler::costs::{MeasuredCost, MeasuredCosts};
use zbmd_compiler::{
    ActorRef, CompileOptions, Compiled, GraphBuilder, MachineChoice, Math, calibrate_file,
    calibrate_graph, compile_file, compile_graph,
};
use zbmd_ir::{
    BlobId, ChannelId, DType, DeviceId, Graph, PlanId, Program, Role, TiVec, TokenType, Value,
};
use zbmd_tests::data;
use zbmd_tests::figures::{median, text};
use zbmd_tests::gpu::{Idle, Player, gpu_calendar, with};
use zbmd_tests::rival_process::RivalProcess;

const GPU: DeviceId = DeviceId(1);
/// What is on every channel: nothing that is looked at.
type Tokens = TiVec<ChannelId, Vec<u8>>;
/// How the rival runs a model.
const HOWS: [&str; 3] = ["eager", "graph", "compile"];
/// Turns of each model, and seconds of one.
const TURNS: usize = 7;
const BUDGET: f64 = 0.2;
/// For each variant of each kernel when it is calibrated.
const CALIBRATION_NS: u64 = 20_000_000;
/// Names of models, and what makes ours.
const MODELS: &[(&str, Model)] = &[
    ("mobilenet_v2", Model::File("mobilenet_v2.onnx")),
    ("light_resnet50", Model::File("light_resnet50.onnx")),
    ("bert_tiny", Model::File("bert_tiny.onnx")),
    (
        "encoder",
        Model::Encoder {
            layers: 12,
            width: 768,
            heads: 12,
            tokens: 128,
        },
    ),
    (
        "mlp",
        Model::Mlp {
            layers: 8,
            width: 1024,
        },
    ),
];
const TINY: &[(&str, Model)] = &[
    (
        "tiny encoder",
        Model::Encoder {
            layers: 2,
            width: 32,
            heads: 2,
            tokens: 8,
        },
    ),
    (
        "tiny mlp",
        Model::Mlp {
            layers: 3,
            width: 32,
        },
    ),
];

#[derive(Clone, Copy)]
enum Model {
    /// A file of the shared data.
    File(&'static str),
    /// A norm before each half of a layer, as the rival's.
    Encoder {
        layers: usize,
        width: u32,
        heads: i64,
        tokens: u32,
    },
    /// Products of a row with square matrices, a bias and a ReLU behind each.
    Mlp { layers: usize, width: u32 },
}

/// A graph in the making, with random weights.
struct Maker {
    graph: GraphBuilder,
    random: fastrand::Rng,
    last: ActorRef,
    made: usize,
}

impl Maker {
    fn new(name: &str, shape: [u32; 3]) -> Self {
        let mut graph = GraphBuilder::new(name);
        let last = graph.source("x", TokenType::new(DType::F32, shape));
        Self {
            graph,
            random: fastrand::Rng::with_seed(1),
            last,
            made: 0,
        }
    }

    fn weights(&mut self, shape: &[u32], around: f32) -> Value {
        let token = TokenType::new(DType::F32, shape);
        // So large that sums stay near 1.
        let size = 1.0 / (f64::from(shape[0]).sqrt() as f32);
        let mut one = || around + (self.random.f32() - 0.5) * size;
        let bytes: Vec<u8> = (0..token.elements())
            .flat_map(|_| one().to_le_bytes())
            .collect();
        self.graph.tensor(token, bytes)
    }

    /// An actor behind others.
    fn add(&mut self, op: &str, params: Vec<(&str, Value)>, from: &[(ActorRef, &str)]) -> ActorRef {
        self.made += 1;
        let actor = self.graph.actor(&format!("n{}", self.made), op, params);
        for (from, port) in from {
            self.graph.connect(*from, actor.port(port));
        }
        self.last = actor;
        actor
    }

    fn product(&mut self, from: ActorRef, [inputs, outputs]: [u32; 2], act: &str) -> ActorRef {
        let (y, bias) = (
            self.weights(&[inputs, outputs], 0.0),
            self.weights(&[outputs], 0.0),
        );
        let params = vec![
            ("y", y),
            ("bias", bias),
            ("act", Value::Str(act.to_owned())),
        ];
        self.add("NnMatMul", params, &[(from, "x")])
    }

    fn norm(&mut self, from: ActorRef, width: u32) -> ActorRef {
        let params = vec![
            ("scale", self.weights(&[width], 1.0)),
            ("bias", self.weights(&[width], 0.0)),
        ];
        self.add("NnLayerNormalization", params, &[(from, "x")])
    }

    fn layer(&mut self, width: u32, heads: i64) {
        let x = self.last;
        let normed = self.norm(x, width);
        let [q, k, v] = [(); 3].map(|()| self.product(normed, [width; 2], "none"));
        let heads = ["q_num_heads", "kv_num_heads"].map(|name| (name, Value::Int(heads)));
        let y = self.add("NnAttention", heads.into(), &[(q, "q"), (k, "k"), (v, "v")]);
        let y = self.product(y, [width; 2], "none");
        let x = self.add("NnAdd", vec![], &[(x, "x"), (y, "y")]);
        let normed = self.norm(x, width);
        let up = self.product(normed, [width, 4 * width], "gelu");
        let down = self.product(up, [4 * width, width], "none");
        self.add("NnAdd", vec![], &[(x, "x"), (down, "y")]);
    }

    fn finish(mut self, registry: &Registry) -> (Graph, TiVec<BlobId, Bytes>) {
        let sink = self.graph.sink("y");
        self.graph.connect(self.last, sink);
        self.graph
            .finish(registry)
            .unwrap_or_else(|d| panic!("{d}"))
    }
}

/// A model as it is given to the compiler.
enum Given {
    File(PathBuf),
    Made(Graph, TiVec<BlobId, Bytes>),
}

impl Model {
    /// `None` where its file is not here.
    fn given(self, name: &str, registry: &Registry) -> Option<Given> {
        let mut maker = match self {
            Model::File(file) => {
                let path = data::file("models")?.join(file);
                return path.exists().then_some(Given::File(path));
            }
            Model::Encoder { tokens, width, .. } => Maker::new(name, [1, tokens, width]),
            Model::Mlp { width, .. } => Maker::new(name, [1, 1, width]),
        };
        match self {
            Model::Encoder {
                layers,
                width,
                heads,
                ..
            } => {
                (0..layers).for_each(|_| maker.layer(width, heads));
            }
            Model::Mlp { layers, width } => (0..layers).for_each(|_| {
                maker.product(maker.last, [width; 2], "relu");
            }),
            Model::File(_) => {}
        }
        let (graph, blobs) = maker.finish(registry);
        Some(Given::Made(graph, blobs))
    }
}

impl Given {
    /// With all that has kernels there on the GPU.
    fn compile(&self, costs: &MeasuredCosts, options: CompileOptions) -> Compiled {
        let mut machine = with(&["cuda"]);
        let cpu = &mut machine.devices[DeviceId(0)];
        (cpu.flops_per_s, cpu.bytes_per_s) = (1_000, 1_000);
        let machine = MachineChoice::Measured(machine, costs.clone());
        let options = CompileOptions {
            machine,
            block: Some(1),
            ..options
        };
        let made = match self {
            Given::File(path) => compile_file(path, &options),
            Given::Made(graph, blobs) => compile_graph(graph.clone(), blobs.clone(), &options),
        };
        made.unwrap_or_else(|d| panic!("{d}"))
    }

    /// The GPU's kernels, measured.
    fn calibrate(&self, options: CompileOptions) -> Calibration {
        let mut machine = with(&["cuda"]);
        machine.devices.remove(DeviceId(0));
        machine.links.clear();
        let options = CompileOptions {
            machine: MachineChoice::Given(machine),
            ..options
        };
        let how = CalibrateOptions {
            budget_ns: CALIBRATION_NS,
            block: Some(1),
            ..CalibrateOptions::default()
        };
        let made = match self {
            Given::File(path) => calibrate_file(path, &options, &how, &mut |_| {}),
            Given::Made(graph, blobs) => {
                calibrate_graph(graph.clone(), blobs.clone(), &options, &how, &mut |_| {})
            }
        };
        made.unwrap_or_else(|d| panic!("{d}"))
    }
}

/// The rival and what it says of itself; `Err` says why there is none.
fn start_rival() -> Result<(RivalProcess, String), String> {
    let python = std::env::var_os("ZBMD_TORCH").unwrap_or_else(|| "python3".into());
    let beside = || Path::new(env!("CARGO_MANIFEST_DIR")).join("benches/torch_rival.py");
    let script = std::env::var_os("ZBMD_TORCH_SCRIPT").map_or_else(beside, PathBuf::from);
    let mut command = Command::new(&python);
    command.arg(script).stderr(Stdio::null());
    let started = RivalProcess::start(&mut command);
    let mut rival = started.map_err(|e| format!("{}: {e}", python.display()))?;

    let said = rival.answer();
    match said.strip_prefix("ready ") {
        Some(name) => Ok((rival, name.to_owned())),
        None => Err(said
            .strip_prefix("skip ")
            .unwrap_or("it says nothing")
            .to_owned()),
    }
}

/// A number that the rival answers, or why there is none.
fn number(rival: &mut RivalProcess, question: &str) -> Result<f64, String> {
    let answer = rival.ask(question).map_err(|e| e.to_string())?;
    answer
        .parse()
        .map_err(|_| answer.trim_start_matches("skip ").to_owned())
}

/// Operations of an iteration and bytes of weights, halves where factors have 16 bits.
fn work(program: &Program, registry: &Registry, math: Math) -> (f64, f64) {
    let actors = || {
        program
            .graph
            .actors
            .iter()
            .filter(|a| a.role == Role::Compute)
    };
    let flops = actors().map(|a| registry.work(a, &program.blobs).flops);
    let bytes: usize = program.blobs.iter().map(|b| b.len()).sum();
    let share = if matches!(math, Math::F16 | Math::Bf16) {
        0.5
    } else {
        1.0
    };
    (flops.sum(), bytes as f64 * share)
}

/// Seconds of one of so many periods, each waited for.
fn ours(replay: &mut dyn Replay, period: &mut u64, calls: u64) -> f64 {
    let start = Instant::now();
    for _ in 0..calls {
        replay.step(*period, None, &mut Idle).expect("a period");
        *period += 1;
        replay.drain(&mut Idle).expect("its end");
    }
    start.elapsed().as_secs_f64() / calls as f64
}

/// What the turns of a row have found: seconds of ours, and of each way of the rival with the ratios to ours.
#[derive(Default)]
struct Found {
    ours: Vec<f64>,
    theirs: [(Vec<f64>, Vec<f64>); HOWS.len()],
    /// Why something of the rival's is missing.
    why: String,
}

impl Found {
    fn turn(
        &mut self,
        ours: f64,
        rival: Option<&mut RivalProcess>,
        question: &dyn Fn(&str) -> String,
    ) {
        self.ours.push(ours);
        let Some(rival) = rival else { return };
        let asked = std::env::var("ZBMD_TORCH_HOWS").unwrap_or_else(|_| HOWS.join(","));
        let is_asked = |how: &str| asked.split(',').any(|name| name == how);
        let columns = HOWS.iter().zip(&mut self.theirs);
        for (how, (seconds, ratios)) in columns.filter(|(how, _)| is_asked(how)) {
            match number(rival, &question(how)) {
                Ok(its) => {
                    seconds.push(its);
                    ratios.push(ours / its);
                }
                Err(said) => self.why = format!("  {how}: {said}"),
            }
        }
    }

    fn print(self, name: &str, math: Math, floor: Option<f64>, more: &str) {
        let us = |seconds: f64| text(seconds * 1e6, 1);
        let ours = median(self.ours);
        let mut line = format!("{name:<16} {math:>5} {:>9}", us(ours));
        for (seconds, ratios) in self.theirs {
            line += &format!(" {:>9} {:>6}", us(median(seconds)), text(median(ratios), 2));
        }
        let floor = floor.unwrap_or(f64::NAN);
        println!(
            "{line} {:>9} {:>6}{more}{}",
            us(floor),
            text(floor / ours, 2),
            self.why
        );
    }
}

/// Seconds below which the device cannot do it.
fn floor(rival: &mut RivalProcess, program: &Program, math: Math) -> Option<f64> {
    let (flops, bytes) = work(program, &zbmd_backends::standard_registry(), math);
    let (peak, band) = (
        number(rival, &format!("peak {math}")),
        number(rival, "bandwidth"),
    );
    peak.ok()
        .zip(band.ok())
        .map(|(p, b)| (flops / p).max(bytes / b))
}

/// A model's calendar on a device, all of whose stages are at work.
struct Running<'p> {
    replay: Box<dyn Replay>,
    period: u64,
    /// Seconds that the first periods have taken.
    first: f64,
    // What the replay exchanges by goes after it.
    _player: Player<'p>,
}

impl<'p> Running<'p> {
    fn new(device: &Device, program: &'p Program, none: &'p Tokens) -> Self {
        let plan = &program.plans[PlanId(0)];
        let mut player = Player::new(program, plan, GPU, none, false);
        let calendar = gpu_calendar(plan);
        let (exchange, kept) = (player.exchange(), &mut Kept::default());
        let replay = device.replay(
            &zbmd_backends::standard_registry(),
            program,
            plan,
            calendar,
            &exchange,
            kept,
        );
        let replay = replay.expect("a replay");
        let mut this = Self {
            replay,
            period: 0,
            first: 0.0,
            _player: player,
        };
        this.first = this.calls(1 + u64::from(plan.stages));
        this
    }

    fn calls(&mut self, calls: u64) -> f64 {
        ours(&mut *self.replay, &mut self.period, calls)
    }
}

/// The kernels that take the most of a call, as many as `ZBMD_TORCH_COSTS` says, with all their variants.
fn print_costs(found: &Calibration) {
    let count = std::env::var("ZBMD_TORCH_COSTS").map_or(0, |n| n.parse().expect("a number"));
    let us = |cost: &MeasuredCost| (cost.call_ps + cost.firing_ps) as f64 / 1e6;
    let all_us = |row: &CostRow| us(&row.cost) * row.actors as f64;
    let mut rows: Vec<&CostRow> = found.rows.iter().collect();
    rows.sort_by(|a, b| all_us(b).total_cmp(&all_us(a)));
    if count > 0 {
        let total: f64 = rows.iter().map(|row| all_us(row)).sum();
        println!("    {} kernels, {total:.1} us in all", rows.len());
    }
    for row in rows.into_iter().take(count) {
        let variants = row.variants.iter().map(|cost| {
            let name = cost.variant.as_deref().unwrap_or("default");
            format!("{name} {:.1}", us(cost))
        });
        println!(
            "    {:>7.1} us: {} x {:.1} {} {} {} [{}]",
            all_us(row),
            row.actors,
            us(&row.cost),
            row.cost.op,
            row.cost.ports,
            row.actor,
            variants.collect::<Vec<_>>().join(", ")
        );
    }
}

/// One row.
fn row(
    devices: &[Device; 2],
    mut rival: Option<&mut RivalProcess>,
    (name, model): (&str, Model),
    math: Math,
    turns: usize,
) {
    let registry = zbmd_backends::standard_registry();
    let mut gpu_capabilities = GpuCapabilities::default();
    gpu_capabilities.set("cuda:0", *devices[0].caps());
    let Some(given) = model.given(name, &registry) else {
        return println!("{name:<16} {math:>5}  not run: its file is not here");
    };
    let options = || CompileOptions {
        registry: registry.clone(),
        gpu_capabilities: gpu_capabilities.clone(),
        math,
        ..Default::default()
    };
    let found = given.calibrate(options());
    print_costs(&found);
    let early = found.early.first().is_some_and(EarlyLaunch::pays);
    let default = given.compile(&MeasuredCosts::default(), options());
    let chosen = given.compile(&found.costs, options());
    let program = &chosen.program;
    let plan = &program.plans[PlanId(0)];
    let actors = program.graph.actors.iter_enumerated();
    let elsewhere = actors.filter(|(id, a)| a.role == Role::Compute && plan.placement[*id] != GPU);
    let mut more = match elsewhere.count() {
        0 => String::new(),
        n => format!("  {n} actors on the CPU"),
    };
    if let Some(rounding) = &chosen.rounding {
        more += &format!("  {} rounded", rounding.rounded.len());
    }
    let none = |program: &Program| program.graph.channels.iter().map(|_| vec![]).collect();
    let (plain_none, best_none): (Tokens, Tokens) = (none(&default.program), none(program));
    let variants = plan.variants.len();
    let floor = rival.as_deref_mut().and_then(|r| floor(r, program, math));
    let mut plain = Running::new(&devices[0], &default.program, &plain_none);
    let mut best = Running::new(&devices[usize::from(early)], program, &best_none);
    let calls = if turns == 1 {
        1
    } else {
        ((BUDGET / best.first) as u64).clamp(1, 1000)
    };
    let (mut found, mut plains) = (Found::default(), Vec::new());
    for _ in 0..turns {
        let question = |how: &str| format!("{name} {math} {how} {calls}");
        plains.push(plain.calls(calls));
        found.turn(best.calls(calls), rival.as_deref_mut(), &question);
    }
    let plain = text(median(plains) * 1e6, 1);
    let launched = if early { ", launched early" } else { "" };
    more += &format!("  {variants} variants{launched}; default kernels {plain} us");
    found.print(name, math, floor, &more);
}

fn main() {
    let words: Vec<String> = std::env::args()
        .skip(1)
        .filter(|a| !a.starts_with("--"))
        .collect();
    let tiny = words.iter().any(|w| w == "tiny");
    let (types, names): (Vec<_>, Vec<_>) = words.iter().partition(|w| w.parse::<Math>().is_ok());
    let filter = names.into_iter().find(|w| *w != "tiny");
    let is_asked = |math: &Math| types.is_empty() || types.contains(&&math.to_string());
    let mut drivers = Drivers::default();
    let mut open = |programmatic| {
        drivers.open(
            &"cuda".into(),
            "cuda:0",
            &GpuOptions {
                dependent_launch: programmatic,
                ..GpuOptions::default()
            },
        )
    };
    let devices = match (open(false), open(true)) {
        (Ok(plain), Ok(early)) => [plain, early],
        (Err(fault), _) | (_, Err(fault)) => return println!("not run: {fault}"),
    };
    println!("{}", devices[0].kind());
    let rival = if tiny {
        Err("not asked for".to_owned())
    } else {
        start_rival()
    };
    let mut rival = match rival {
        Ok((rival, said)) => {
            println!("beside {said}");
            Some(rival)
        }
        Err(why) => {
            println!("not run beside PyTorch: {why}");
            None
        }
    };
    print!("{:<16} {:>5} {:>9}", "model", "math", "ours us");
    for how in HOWS {
        print!(" {how:>9} {:>6}", "ratio");
    }
    println!(" {:>9} {:>6}", "floor us", "share");
    let (models, turns) = if tiny { (TINY, 1) } else { (MODELS, TURNS) };
    for &(name, model) in models
        .iter()
        .filter(|m| filter.is_none_or(|f| m.0.contains(f.as_str())))
    {
        for math in Math::ALL.into_iter().filter(|math| is_asked(math)) {
            row(&devices, rival.as_mut(), (name, model), math, turns);
        }
    }
}
