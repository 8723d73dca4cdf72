//! Placement problems made from well-known networks, one node for each operator: a transformer encoder of 12 layers
//! (BERT-base: Devlin et al. 2019, arXiv 1810.04805) and ResNet-50 (He et al. 2016, arXiv 1512.03385), forward alone and
//! with the backward pass. Costs follow from the operators' sizes on accelerators of a stated speed; a forward node and
//! the backward nodes that need its weights share a device, as in the published workloads.

use zbmd_scheduler::assign::{
    Fanout, Objective, PlacementChannel, PlacementDevice, PlacementLink, PlacementNode,
    PlacementProblem,
};
use zbmd_scheduler::search::LinkTime;

/// Arithmetic of an accelerator, in operations per second.
const FLOPS_PER_S: f64 = 15e12;
/// Its memory's bandwidth, in bytes per second.
const MEMORY_BYTES_PER_S: f64 = 900e9;
/// Bandwidth between two accelerators, in bytes per second.
const LINK_BYTES_PER_S: f64 = 12e9;
/// Start of an operator.
const CALL_PS: f64 = 5e6;
const PS_PER_S: f64 = 1e12;
const FLOAT_BYTES: u64 = 4;

/// Which passes of a network are to be placed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Passes {
    /// Forward alone.
    Inference,
    /// Forward, backward and the updates of weights.
    Training,
}

/// One operator of the forward pass.
struct Operator {
    flops: f64,
    output_bytes: u64,
    weight_bytes: u64,
    inputs: Vec<usize>,
}

/// A network's forward pass, in topological order.
#[derive(Default)]
struct Network {
    operators: Vec<Operator>,
}

impl Network {
    fn add(&mut self, flops: f64, outputs: u64, weights: u64, inputs: &[usize]) -> usize {
        self.operators.push(Operator {
            flops,
            output_bytes: outputs * FLOAT_BYTES,
            weight_bytes: weights * FLOAT_BYTES,
            inputs: inputs.to_vec(),
        });
        self.operators.len() - 1
    }

    /// One operation for each element.
    fn elementwise(&mut self, elements: u64, weights: u64, inputs: &[usize]) -> usize {
        self.add(elements as f64, elements, weights, inputs)
    }

    /// Every row of `rows` by a matrix of weights.
    fn linear(&mut self, rows: u64, from: u64, to: u64, input: usize) -> usize {
        let flops = 2.0 * rows as f64 * from as f64 * to as f64;
        let product = self.add(flops, rows * to, from * to, &[input]);
        self.elementwise(rows * to, to, &[product])
    }

    /// Convolution, normalisation, and activation where there is one.
    fn convolution(&mut self, shape: Convolution, is_activated: bool, input: usize) -> usize {
        let outputs = shape.images * shape.side * shape.side * shape.to;
        let weights = shape.kernel * shape.kernel * shape.from * shape.to;
        let taps = (shape.kernel * shape.kernel * shape.from) as f64;
        let product = self.add(2.0 * taps * outputs as f64, outputs, weights, &[input]);
        let normal = self.elementwise(outputs, 2 * shape.to, &[product]);
        match is_activated {
            true => self.elementwise(outputs, 0, &[normal]),
            false => normal,
        }
    }
}

/// Sizes of a convolution; `side` is that of its output.
#[derive(Clone, Copy)]
struct Convolution {
    images: u64,
    side: u64,
    from: u64,
    to: u64,
    kernel: u64,
}

/// A transformer encoder of so many layers: width 768, 12 heads, 32 sequences of 128 words.
fn transformer(layers: usize) -> Network {
    const WIDTH: u64 = 768;
    const HEADS: u64 = 12;
    const LENGTH: u64 = 128;
    const SEQUENCES: u64 = 32;
    const ROWS: u64 = SEQUENCES * LENGTH;
    const VOCABULARY: u64 = 30_522;
    let scores = SEQUENCES * HEADS * LENGTH * LENGTH;
    let attention_flops = 2.0 * scores as f64 * (WIDTH / HEADS) as f64;

    let mut network = Network::default();
    let words = network.elementwise(ROWS * WIDTH, VOCABULARY * WIDTH, &[]);
    let mut stream = network.elementwise(ROWS * WIDTH, LENGTH * WIDTH, &[words]);
    for _ in 0..layers {
        let query = network.linear(ROWS, WIDTH, WIDTH, stream);
        let key = network.linear(ROWS, WIDTH, WIDTH, stream);
        let value = network.linear(ROWS, WIDTH, WIDTH, stream);
        let query_heads = network.elementwise(ROWS * WIDTH, 0, &[query]);
        let key_heads = network.elementwise(ROWS * WIDTH, 0, &[key]);
        let value_heads = network.elementwise(ROWS * WIDTH, 0, &[value]);
        let products = network.add(attention_flops, scores, 0, &[query_heads, key_heads]);
        let scaled = network.elementwise(scores, 0, &[products]);
        let masked = network.elementwise(scores, 0, &[scaled]);
        let weights = network.add(5.0 * scores as f64, scores, 0, &[masked]);
        let mixed = network.add(attention_flops, ROWS * WIDTH, 0, &[weights, value_heads]);
        let joined = network.elementwise(ROWS * WIDTH, 0, &[mixed]);
        let projected = network.linear(ROWS, WIDTH, WIDTH, joined);
        let residual = network.elementwise(ROWS * WIDTH, 0, &[projected, stream]);
        let normal = network.elementwise(ROWS * WIDTH, 2 * WIDTH, &[residual]);

        let wide = network.linear(ROWS, WIDTH, 4 * WIDTH, normal);
        let active = network.add(
            8.0 * (ROWS * 4 * WIDTH) as f64,
            ROWS * 4 * WIDTH,
            0,
            &[wide],
        );
        let narrow = network.linear(ROWS, 4 * WIDTH, WIDTH, active);
        let residual = network.elementwise(ROWS * WIDTH, 0, &[narrow, normal]);
        stream = network.elementwise(ROWS * WIDTH, 2 * WIDTH, &[residual]);
    }
    let pooled = network.linear(SEQUENCES, WIDTH, WIDTH, stream);
    network.elementwise(SEQUENCES * WIDTH, 0, &[pooled]);
    network
}

/// ResNet-50 of 32 images of 224 by 224.
fn resnet50() -> Network {
    const IMAGES: u64 = 32;
    /// Bottlenecks, side of the outputs, and inner width of each part.
    const PARTS: [(usize, u64, u64); 4] = [(3, 56, 64), (4, 28, 128), (6, 14, 256), (3, 7, 512)];
    let shape = |side, from, to, kernel| Convolution {
        images: IMAGES,
        side,
        from,
        to,
        kernel,
    };

    let mut network = Network::default();
    let image = network.elementwise(IMAGES * 224 * 224 * 3, 0, &[]);
    let stem = network.convolution(shape(112, 3, 64, 7), true, image);
    let mut stream = network.add(
        (9 * IMAGES * 56 * 56 * 64) as f64,
        IMAGES * 56 * 56 * 64,
        0,
        &[stem],
    );
    let mut width = 64;
    for (blocks, side, inner) in PARTS {
        for block in 0..blocks {
            let reduced = network.convolution(shape(side, width, inner, 1), true, stream);
            let spatial = network.convolution(shape(side, inner, inner, 3), true, reduced);
            let expanded = network.convolution(shape(side, inner, 4 * inner, 1), false, spatial);
            let shortcut = match block {
                0 => network.convolution(shape(side, width, 4 * inner, 1), false, stream),
                _ => stream,
            };
            let elements = IMAGES * side * side * 4 * inner;
            let sum = network.elementwise(elements, 0, &[expanded, shortcut]);
            stream = network.elementwise(elements, 0, &[sum]);
            width = 4 * inner;
        }
    }
    let pooled = network.add((IMAGES * 49 * width) as f64, IMAGES * width, 0, &[stream]);
    network.linear(IMAGES, width, 1000, pooled);
    network
}

/// A transformer encoder of 12 layers, on accelerators with `memory` times what each needs in the mean.
pub fn transformer_problem(passes: Passes, accelerators: usize, memory: f64) -> PlacementProblem {
    problem(&transformer(12), passes, accelerators, memory)
}

/// ResNet-50, on accelerators with `memory` times what each needs in the mean.
pub fn resnet_problem(passes: Passes, accelerators: usize, memory: f64) -> PlacementProblem {
    problem(&resnet50(), passes, accelerators, memory)
}

/// Nodes and channels as they come to be.
struct ProblemBuilder {
    accelerators: usize,
    nodes: Vec<PlacementNode>,
    channels: Vec<PlacementChannel>,
}

impl ProblemBuilder {
    /// A node that takes as long as its arithmetic or its memory traffic.
    fn add_node(&mut self, flops: f64, traffic_bytes: u64, held_bytes: u64, group: usize) -> u32 {
        let arithmetic_s = flops / FLOPS_PER_S;
        let memory_s = traffic_bytes as f64 / MEMORY_BYTES_PER_S;
        let ticks = arithmetic_s.max(memory_s) * PS_PER_S + CALL_PS;
        self.nodes.push(PlacementNode {
            ticks: vec![Some(ticks.round() as u64); self.accelerators],
            bytes: held_bytes,
            group: Some(group as u32),
        });
        self.nodes.len() as u32 - 1
    }

    /// One output for all its readers.
    fn connect(&mut self, from: u32, to: Vec<u32>, bytes: u64) {
        if to.is_empty() {
            return;
        }
        let amount = bytes as f64 / LINK_BYTES_PER_S * PS_PER_S;
        self.channels.push(PlacementChannel {
            from,
            to,
            amount: amount.round() as u64,
            bytes: 0,
            delayed: false,
        });
    }
}

fn problem(
    network: &Network,
    passes: Passes,
    accelerators: usize,
    memory: f64,
) -> PlacementProblem {
    let mut builder = ProblemBuilder {
        accelerators,
        nodes: Vec::new(),
        channels: Vec::new(),
    };
    let operators = &network.operators;
    let is_training = passes == Passes::Training;
    let input_bytes = |operator: &Operator| -> u64 {
        let inputs = operator.inputs.iter();
        inputs.map(|&input| operators[input].output_bytes).sum()
    };

    // Weights, their gradients where there are any, and what the backward pass needs again, stay on the device.
    for (index, operator) in operators.iter().enumerate() {
        let traffic = input_bytes(operator) + operator.weight_bytes + operator.output_bytes;
        let held = match passes {
            Passes::Inference => operator.weight_bytes + operator.output_bytes,
            Passes::Training => 2 * operator.weight_bytes + operator.output_bytes,
        };
        builder.add_node(operator.flops, traffic, held, index);
    }

    // The gradient of an operator's inputs; of its weights, with the update, where it has any.
    let mut gradients = vec![None; operators.len()];
    let mut updates = vec![None; operators.len()];
    if is_training {
        for (index, operator) in operators.iter().enumerate().rev() {
            let traffic = 2 * input_bytes(operator) + operator.weight_bytes + operator.output_bytes;
            gradients[index] = Some(builder.add_node(operator.flops, traffic, 0, index));
            if operator.weight_bytes > 0 {
                let traffic = traffic + 2 * operator.weight_bytes;
                updates[index] = Some(builder.add_node(operator.flops, traffic, 0, index));
            }
        }
    }

    for (index, operator) in operators.iter().enumerate() {
        let readers = || {
            let following = operators.iter().enumerate().skip(index + 1);
            following.filter(|(_, reader)| reader.inputs.contains(&index))
        };
        // The activation goes to the operators that read it, and again to their backward nodes.
        let mut to: Vec<u32> = readers().map(|(reader, _)| reader as u32).collect();
        to.extend(readers().filter_map(|(reader, _)| gradients[reader]));
        to.extend(readers().filter_map(|(reader, _)| updates[reader]));
        builder.connect(index as u32, to, operator.output_bytes);

        // The gradient of each input goes to the backward nodes of the operator that wrote it.
        let Some(gradient) = gradients[index] else {
            continue;
        };
        for &input in &operator.inputs {
            let to = gradients[input].into_iter().chain(updates[input]).collect();
            builder.connect(gradient, to, operators[input].output_bytes);
        }
    }

    let total_bytes: u64 = builder.nodes.iter().map(|node| node.bytes).sum();
    let bytes = (total_bytes as f64 / accelerators as f64 * memory) as u64;
    let each = LinkTime {
        latency: 0,
        numerator: 1,
        denominator: 1,
    };
    let link = PlacementLink {
        send: each,
        receive: each,
    };
    PlacementProblem {
        nodes: builder.nodes,
        channels: builder.channels,
        devices: vec![PlacementDevice { bytes }; accelerators],
        links: vec![Some(link); accelerators * accelerators],
        fanout: Fanout::Once,
        pipelined: false,
        max_latency: None,
        max_stages: None,
        objective: Objective::PERIOD,
    }
}
