use std::sync::atomic::{AtomicU64, Ordering};

use zbmd_ir::{InPort, OutPort, Params, Role, StatePort, TokenType};

use super::*;

/// A kernel that takes its time from a clock of the test.
struct Timed<'a> {
    now: &'a AtomicU64,
    call_ns: u64,
    firing_ns: u64,
    /// A call of so many firings is refused.
    fault_at: usize,
}

impl Kernel for Timed<'_> {
    fn fire(&self, io: &mut Io<'_>) -> Result<(), KernelFault> {
        if io.firings() >= self.fault_at {
            return Err(KernelFault("too many"));
        }
        let ns = self.call_ns + self.firing_ns * io.firings() as u64;
        // One thread reads and writes it.
        self.now.fetch_add(ns, Ordering::Relaxed);
        Ok(())
    }
}

fn actor(window: u64, shape: u32) -> Actor {
    let token = TokenType::new(DType::F32, vec![shape]);
    Actor {
        name: "x".into(),
        role: Role::Compute,
        op: "Timed".into(),
        params: Params::new(),
        inputs: vec![InPort {
            name: "x".into(),
            token: token.clone(),
            rate: 1,
            window,
        }],
        outputs: vec![OutPort {
            name: "y".into(),
            token,
            rate: 1,
        }],
        state: Vec::new(),
        in_place: Vec::new(),
    }
}

const LIMITS: Limits = Limits {
    budget_ns: 1_000_000,
    memory_bytes: 1 << 30,
};

fn timed(
    actor: &Actor,
    limits: &Limits,
    call_ns: u64,
    firing_ns: u64,
    fault_at: usize,
) -> Result<Measurement, Refusal> {
    let now = AtomicU64::new(0);
    let kernel = Timed {
        now: &now,
        call_ns,
        firing_ns,
        fault_at,
    };
    let task = Task {
        actor,
        kernel: &kernel,
        tokens: &[],
        states: &[],
        between: None,
    };
    measure(&[task], limits, &|| now.load(Ordering::Relaxed)).map(|mut all| all.remove(0))
}

#[test]
fn variants_are_measured_together() {
    let (now, actor) = (AtomicU64::new(0), actor(1, 1));
    let timed = |firing_ns| Timed {
        now: &now,
        call_ns: 20,
        firing_ns,
        fault_at: usize::MAX,
    };
    let kernels = [timed(3), timed(2), timed(7)];
    let tasks = kernels.each_ref().map(|kernel| Task {
        actor: &actor,
        kernel,
        tokens: &[],
        states: &[],
        between: None,
    });
    let found = measure(&tasks, &LIMITS, &|| now.load(Ordering::Relaxed)).expect("costs");
    let costs: Vec<_> = found.iter().map(|m| (m.call_ps, m.firing_ps)).collect();
    assert_eq!(costs, [(20_000, 3_000), (20_000, 2_000), (20_000, 7_000)]);
    assert!(found.iter().all(|m| m.samples == found[0].samples));
}

#[test]
fn the_line_is_found() {
    // Nanoseconds of a call and a firing; the picoseconds that come out.
    for (call_ns, firing_ns, expect) in [
        (20, 3, (20_000, 3_000)),
        (500, 1, (500_000, 1_000)),
        (0, 7, (0, 7_000)),
        (9, 0, (9_000, 0)),
        // Longer than a long call: one firing says it all.
        (0, 2_000_000, (0, 2_000_000_000)),
        (1_000_000, 1_000_000, (0, 2_000_000_000)),
    ] {
        let m = timed(&actor(1, 1), &LIMITS, call_ns, firing_ns, usize::MAX).expect("a cost");
        assert_eq!(
            (m.call_ps, m.firing_ps),
            expect,
            "{call_ns} + n * {firing_ns}"
        );
        assert_eq!(m.spread_percent, 0.0);
        assert!(m.samples >= MIN_SAMPLES as u32);
    }
}

#[test]
fn the_budget_buys_samples() {
    let samples = |budget_ns| {
        let limits = Limits {
            budget_ns,
            ..LIMITS
        };
        timed(&actor(1, 1), &limits, 20, 3, usize::MAX)
            .expect("a cost")
            .samples
    };
    assert_eq!(samples(0), MIN_SAMPLES as u32);
    assert!(samples(20_000_000) > samples(5_000_000));
    assert_eq!(samples(u64::MAX), MAX_SAMPLES as u32);
}

#[test]
fn what_cannot_be_measured() {
    let fault = timed(&actor(1, 1), &LIMITS, 1, 1, 3);
    assert_eq!(fault, Err(Refusal::Fault(KernelFault("too many"))));
    let huge = timed(&actor(1 << 32, u32::MAX), &LIMITS, 1, 1, usize::MAX);
    assert!(
        matches!(
            huge,
            Err(Refusal::Memory {
                limit: 0x4000_0000,
                ..
            })
        ),
        "{huge:?}"
    );
    let small = Limits {
        memory_bytes: 7,
        ..LIMITS
    };
    let tight = timed(&actor(1, 1), &small, 1, 1, usize::MAX);
    assert_eq!(
        tight,
        Err(Refusal::Memory {
            needed: 8,
            limit: 7
        })
    );
    let mut many = actor(1, 1);
    many.outputs = vec![many.outputs[0].clone(); 40];
    let ports = timed(&many, &LIMITS, 1, 1, usize::MAX);
    assert_eq!(
        ports,
        Err(Refusal::Ports {
            ports: 40,
            max: Io::MAX_MUT_PORTS
        })
    );
}

#[test]
fn lines_through_points() {
    for (points, expect) in [
        (&[(1.0, 110.0), (4.0, 140.0)][..], (100, 10)),
        (&[(1.0, 110.0), (16.0, 260.0), (256.0, 2660.0)], (100, 10)),
        // More firings in less time: the call is all.
        (&[(1.0, 100.0), (4.0, 80.0)], (88, 0)),
        // Less than nothing for the call: the firings are all.
        (&[(1.0, 10.0), (4.0, 80.0)], (0, 12)),
        (&[(1.0, 42.4)], (0, 42)),
        (&[(1.0, 0.1), (1000.0, 0.1)], (0, 1)),
    ] {
        assert_eq!(fit(points), expect, "{points:?}");
    }
}

#[test]
fn medians() {
    assert_eq!(median(&mut [3.0, 1.0, 2.0]), 2.0);
    assert_eq!(median(&mut [4.0, 1.0, 2.0, 3.0]), 3.0);
    assert_eq!(median(&mut []), 0.0);
}

#[test]
fn samples_start_from_the_initial_states() {
    /// Refuses to start a sample from any other state.
    struct Counter<'a> {
        now: &'a AtomicU64,
    }
    impl Kernel for Counter<'_> {
        fn fire(&self, io: &mut Io<'_>) -> Result<(), KernelFault> {
            let state = io.state::<f32>(0);
            if state[0] < 5.0 {
                return Err(KernelFault(
                    "the state is not the initial one or a later one",
                ));
            }
            state[0] += io.firings() as f32;
            self.now.fetch_add(30_000, Ordering::Relaxed);
            Ok(())
        }
    }
    let mut actor = actor(1, 1);
    let token = TokenType::scalar(DType::F32);
    actor.inputs.push(InPort {
        name: "s".into(),
        token: token.clone(),
        rate: 1,
        window: 1,
    });
    actor.outputs.push(OutPort {
        name: "s".into(),
        token,
        rate: 1,
    });
    actor.state.push(StatePort {
        input: 1,
        output: 1,
    });
    let now = AtomicU64::new(0);
    let initial = 5f32.to_ne_bytes();
    let task = Task {
        actor: &actor,
        kernel: &Counter { now: &now },
        tokens: &[],
        states: &[&initial],
        between: None,
    };
    let measured = measure(&[task], &LIMITS, &|| now.load(Ordering::Relaxed));
    assert_eq!(
        measured.map(|m| (m[0].call_ps, m[0].firing_ps)),
        Ok((30_000_000, 0))
    );
}

#[test]
fn ports_hold_what_a_stream_could() {
    for dtype in DType::ALL {
        let mut a = vec![0; 4096];
        let mut b = a.clone();
        fill(&mut a, dtype, 1);
        fill(&mut b, dtype, 1);
        assert_eq!(a, b, "{dtype}: the same every time");
        assert!(a.iter().any(|&x| x != a[0]), "{dtype}: not one value");
        if dtype == DType::F32 {
            let floats = a
                .chunks_exact(4)
                .map(|b| f32::from_ne_bytes([b[0], b[1], b[2], b[3]]));
            assert!(floats.clone().all(|x| (-1.0..1.0).contains(&x)));
            assert!(floats.clone().any(|x| x < -0.5) && floats.clone().any(|x| x > 0.5));
        }
        if dtype == DType::Bool {
            assert!(a.iter().all(|&x| x <= 1));
        }
    }
}
