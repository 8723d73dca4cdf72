//! Replaying a GPU's calendar allocates nothing once all stages are at work.
#![expect(unsafe_code, reason = "counts what the global allocator is asked for")]

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

use zbmd_backends::cuda::Instance;
use zbmd_backends::gpu::{Device, Kept};
use zbmd_backends::{cuda, vulkan};
use zbmd_ir::{DeviceId, PlanId, Program};
use zbmd_tests::gates::placed;
use zbmd_tests::gpu::{Idle, Player, Shares, chain, gpu_calendar, open, required, tokens};
use zbmd_tests::run::random_inputs;

struct Counting;

thread_local! {
    static COUNTED: Cell<bool> = const { Cell::new(false) };
    static ALLOCATIONS: Cell<u64> = const { Cell::new(0) };
}

fn count() {
    if COUNTED.get() {
        ALLOCATIONS.set(ALLOCATIONS.get() + 1);
    }
}

// SAFETY: passes everything on to the system's allocator.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count();
        // SAFETY: the caller's promise.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        count();
        // SAFETY: the caller's promise.
        unsafe { System.dealloc(at, layout) };
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// Periods of a chain of 20 slots, all but the first few of them counted; how often memory was asked for or given back.
fn allocations(device: &Device, shares: Shares) -> u64 {
    let program = chain(20, &zbmd_backends::standard_registry());
    allocations_of(&program, device, shares)
}

/// The same of a program.
fn allocations_of(program: &Program, device: &Device, shares: Shares) -> u64 {
    let registry = zbmd_backends::standard_registry();
    let plan = &program.plans[PlanId(0)];
    let (tokens, _) = tokens(
        program,
        &registry,
        &random_inputs(program, plan.block, 1),
        plan.block,
    );
    let mut player = Player::new(program, plan, DeviceId(1), &tokens, false).sharing(shares);
    player.be_idle();
    let calendar = gpu_calendar(plan);
    let (exchange, kept) = (player.exchange(), &mut Kept::default());
    let replay = device.replay(&registry, program, plan, calendar, &exchange, kept);
    let mut replay = replay.expect("a replay");
    for period in 0..100 {
        COUNTED.set(period >= u64::from(plan.stages));
        replay.step(period, None, &mut Idle).expect("a period");
    }
    replay.drain(&mut Idle).expect("the end");
    COUNTED.set(false);
    ALLOCATIONS.take()
}

#[test]
fn steady_periods_allocate_nothing() {
    let Some(device) = open(false, &vulkan::VulkanOptions::default()) else {
        return;
    };
    assert_eq!(allocations(&Device::from(device), Shares::Counters), 0);
}

/// The host reads gates in every period, whose windows look back over blocks.
#[test]
fn steady_periods_with_gates_allocate_nothing() {
    let Some(device) = open(false, &vulkan::VulkanOptions::default()) else {
        return;
    };
    let device = Device::from(device);
    for gate in ["", ", closed: zero, after: 9"] {
        for block in [1, 4] {
            let program = placed(0.4, gate, block, "vulkan");
            let found = allocations_of(&program, &device, Shares::Regions);
            assert_eq!(found, 0, "`{gate}`, {block}");
        }
    }
}

#[test]
fn steady_periods_of_cuda_allocate_nothing() {
    for shares in [Shares::Regions, Shares::Memory, Shares::Counters] {
        let instance = Instance::software();
        let listed = instance.find("cuda:0").expect("the only one");
        let device = cuda::CudaDevice::open(&instance, &listed, &cuda::CudaOptions::default());
        let machine = instance.machine().expect("software");
        // What the device does in software takes memory, as a GPU does not; everything on the way to it is the real
        // thing.
        machine.skip_launches();
        let device = Device::from(device.expect("nothing is injected"));
        assert_eq!(allocations(&device, shares), 0, "{shares:?}");
        // The chain has nothing to do in the first period.
        let counts = machine.counts();
        assert_eq!(counts.launches, 99, "a launch a period, and nothing else");
        // A wait for tokens, a release, a wait for a place but while the receiver's three are free, a publication.
        let signals = if shares == Shares::Counters {
            4 * 99 - 3
        } else {
            0
        };
        assert_eq!(counts.signals, signals, "{shares:?}");
    }
}

#[test]
fn steady_periods_on_a_gpu_allocate_nothing() {
    let opened = Instance::load()
        .map_err(cuda::OpenError::from)
        .and_then(|instance| {
            let listed = instance.find("cuda:0")?;
            cuda::CudaDevice::open(&instance, &listed, &cuda::CudaOptions::default())
        });
    match opened {
        Ok(device) => {
            let device = Device::from(device);
            for shares in [Shares::Regions, Shares::Memory, Shares::Counters] {
                assert_eq!(allocations(&device, shares), 0, "{shares:?}");
            }
        }
        Err(error) if required("cuda") => panic!("ZBMD_REQUIRE names cuda, but {error}"),
        Err(error) => eprintln!("SKIPPED, not run on a GPU: {error}"),
    }
}
