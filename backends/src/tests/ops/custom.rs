//! Custom actors: declared, registered, and where the two disagree.

use std::collections::BTreeMap;
use std::sync::Arc;

use bytes::Bytes;
use zbmd_ir::{Actor, BlobId, DType, Params, Role, StatePort, TiVec, TokenType};

use crate::kernel::{Io, Kernel, KernelFault};
use crate::op::custom::NAME;
use crate::op::entry::{in_port, out_port};
use crate::op::{
    CustomActor, GpuCapabilities, OpError, PortPhases, Registry, ResolveCx, Signature, StateSpec,
    Work,
};
use crate::tests::ops::conformance::{params, report};

/// Sums pairs of bytes up and counts its firings.
struct Pairs;

impl Kernel for Pairs {
    fn fire(&self, io: &mut Io<'_>) -> Result<(), KernelFault> {
        let x = io.input::<u8>(0);
        for (i, y) in io.output::<i32>(0).iter_mut().enumerate() {
            *y = i32::from(x[2 * i]) + i32::from(x[2 * i + 1]);
        }
        io.state::<i64>(0)[0] += io.firings() as i64;
        Ok(())
    }
}

impl CustomActor for Pairs {
    fn ports(&self) -> Signature {
        let u8s = TokenType::scalar(DType::U8);
        let count = TokenType::scalar(DType::I64);
        Signature {
            inputs: vec![in_port("x", u8s, 2, 2)],
            outputs: vec![out_port("y", TokenType::scalar(DType::I32), 1)],
            states: vec![StateSpec {
                name: "n".to_owned(),
                token: count,
                initial: vec![0; 8],
            }],
        }
    }

    fn work(&self) -> Option<Work> {
        Some(Work {
            flops: 1e6,
            bytes: 2.0,
        })
    }
}

fn registry() -> Registry {
    let mut registry = crate::standard_registry();
    registry.register("pairs", |params: &Params| match params.get("fail") {
        None => Ok(Pairs),
        Some(_) => Err(OpError::Other {
            message: "told to fail".into(),
            help: String::new(),
        }),
    });
    registry
}

const DECLARED: &str = "name: pairs, inputs: {x: {dtype: u8, rate: 2}}, outputs: {y: i32}";

fn resolve(registry: &Registry, text: &str) -> Result<Signature, OpError> {
    let (params, types) = (params(text), BTreeMap::new());
    let blobs: TiVec<BlobId, Bytes> = TiVec::new();
    let cx = ResolveCx {
        params: &params,
        connected: &[],
        types: &types,
        blobs: &blobs,
    };
    registry.resolve(NAME, &cx)
}

fn actor(text: &str) -> Actor {
    let ports = Pairs.ports();
    let (mut inputs, mut outputs) = (ports.inputs, ports.outputs);
    inputs.push(in_port("n", TokenType::scalar(DType::I64), 1, 1));
    outputs.push(out_port("n", TokenType::scalar(DType::I64), 1));
    Actor {
        name: "p".to_owned(),
        role: Role::Compute,
        op: NAME.to_owned(),
        params: params(text),
        inputs,
        outputs,
        state: vec![StatePort {
            input: 1,
            output: 1,
        }],
        in_place: vec![],
    }
}

#[test]
fn ports_are_the_actors_and_the_declaration_agrees() {
    assert_eq!(resolve(&registry(), "name: pairs").unwrap(), Pairs.ports());
    assert_eq!(resolve(&registry(), DECLARED).unwrap(), Pairs.ports());
    // Without the actor the declaration is all there is; it has no state.
    let alone = resolve(&crate::standard_registry(), DECLARED).unwrap();
    assert_eq!(
        (alone.inputs, alone.outputs),
        (Pairs.ports().inputs, Pairs.ports().outputs)
    );
}

#[test]
fn disagreement_is_told_with_both_sides() {
    let error = resolve(
        &registry(),
        "name: pairs, inputs: {x: u8}, outputs: {y: i32}",
    );
    insta::assert_snapshot!(report(&error.unwrap_err()));
    for text in [
        "name: other",
        "name: pairs, params: {fail: 1}",
        "name: pairs, input: {}",
    ] {
        assert!(resolve(&registry(), text).is_err(), "{text}");
    }
}

#[test]
fn a_rate_may_be_a_list_of_phases() {
    let text = "name: frame, inputs: {b: {dtype: u8, rate: [1, 0, 2]}, a: {dtype: u8, rate: 5}}, \
                outputs: {y: {dtype: u8, rate: 2}}";
    let ports = resolve(&crate::standard_registry(), text).unwrap();
    let rates: Vec<u64> = ports.inputs.iter().map(|port| port.rate).collect();
    assert_eq!(rates, [5, 3]);
    let actor = Actor {
        inputs: ports.inputs,
        outputs: ports.outputs,
        state: vec![],
        ..actor(text)
    };
    // What has no list comes in the first phase, and goes in the last.
    let phases = crate::standard_registry().phases(&actor, &TiVec::new());
    let expect = PortPhases {
        inputs: vec![vec![5, 0, 0], vec![1, 0, 2]],
        outputs: vec![vec![0, 0, 2]],
    };
    assert_eq!(phases, Some(expect));

    let refused = |rates: [&str; 2]| {
        let inputs = format!(
            "name: f, inputs: {{a: {{dtype: u8, rate: {}}}, b: {{dtype: u8, rate: {}}}}}",
            rates[0], rates[1]
        );
        let error = resolve(&crate::standard_registry(), &inputs).unwrap_err();
        error.to_string()
    };
    let no_counts = "parameter `inputs.a.rate`: is no list of counts with one above 0";
    for bad in ["[]", "[0, 0]", "[1, -1]", "[1, u8]"] {
        assert_eq!(refused([bad, "1"]), no_counts);
    }
    assert_eq!(
        refused(["[1, 2]", "[1, 0, 2]"]),
        "parameter `inputs.b.rate`: has 3 phases, `inputs.a.rate` has 2"
    );
}

#[test]
fn kernels_need_the_registered_actor_and_its_ports() {
    let blobs = TiVec::new();
    let good = actor(DECLARED);
    let kernel = registry().kernel(&good, &blobs).unwrap();
    let mut call = crate::call::Call::new(&good, kernel.scratch_bytes(), 2);
    call.input(0).copy_from_slice(&[1, 2, 3, 4]);
    call.run(&*kernel).unwrap();
    assert_eq!(call.output(0), [3, 0, 0, 0, 7, 0, 0, 0]);
    assert_eq!(call.state(0)[0], 2);

    let message = |r: Result<Arc<dyn Kernel>, OpError>| r.err().map(|e| e.to_string());
    assert_eq!(
        message(crate::standard_registry().kernel(&good, &blobs)).as_deref(),
        Some("the program did not register custom actor `pairs`")
    );
    let mut bad = actor(DECLARED);
    bad.state.clear();
    assert!(
        message(registry().kernel(&bad, &blobs))
            .unwrap()
            .contains("has ports")
    );
}

#[test]
fn cost_is_the_models_or_the_actors() {
    let machine = crate::devices::detect();
    let device = &machine.devices[zbmd_ir::DeviceId(0)];
    let cost = |text: &str| {
        registry()
            .cost(
                &actor(text),
                device,
                &GpuCapabilities::default(),
                &TiVec::new(),
            )
            .unwrap()
    };
    assert_eq!(cost("name: pairs, cost_ns: 250").firing_ps, 250_000);
    let flops = 1e6 * 1e12 / device.flops_per_s as f64;
    assert_eq!(cost("name: pairs").firing_ps, flops.ceil() as u64);
}
