//! The devices of this machine: what they are called, which cores they have, what the roofline may assume.

use std::collections::BTreeMap;

use zbmd_ir::numa::MemoryNodes;
use zbmd_ir::{Device, DeviceId, DeviceKind, Link, Machine};

use zbmd_gpu_ir::Caps;

/// Memory assumed where the system does not tell: 4 GiB.
const FALLBACK_MEMORY_BYTES: u64 = 4 << 30;
/// Arithmetic assumed of one CPU core, in operations per second, until it is measured: what ordinary kernels reach on a
/// core with AVX-512, whose peak is about 160 billion. Blocked products of matrices reach more: `zbmd_op::PRODUCT_SHARE`.
pub const CORE_FLOPS: u64 = 48_000_000_000;
/// Memory bandwidth assumed of one CPU core, in bytes per second.
pub const CORE_BYTES_PER_S: u64 = 16_000_000_000;
/// How much slower in both is a core without vectors of 512 bits. Such processors are older, or made to save power: on
/// server processors of AMD before Zen 4 all models, those without wide vectors too, took about twice as long.
const NARROW_SLOWDOWN: u64 = 2;
/// Bandwidth assumed of a link between two CPU devices.
pub const LINK_BYTES_PER_S: u64 = 8_000_000_000;
/// Latency assumed of a link between two CPU devices: a cache line's way between cores, and a wake-up now and then.
pub const LINK_LATENCY_NS: u64 = 1_000;
/// Bandwidth assumed of a link to or from a GPU: a copy through the host's memory.
pub const GPU_LINK_BYTES_PER_S: u64 = 5_000_000_000;
/// Latency assumed of a link to or from a GPU: a submission, or the notice of its end.
pub const GPU_LINK_LATENCY_NS: u64 = 20_000;

/// This machine: one device `cpu:N` for each physical core that the process may use, N counting from 0 in the
/// order of the OS's numbers; three quarters of the memory, shared evenly; a link between any two.
///
/// The same machine and affinity give the same result: nothing is measured.
pub fn detect() -> Machine {
    cpu_machine(&usable_cores(), memory_bytes() / 4 * 3)
}

/// This machine with devices of `n` cores each, the last of what is left, where there are several nodes of memory on each
/// of these: one op after the other runs on each device, a
/// large one on all of its cores. The first answer to an input comes sooner than from as many devices, and fewer come
/// in a second.
pub fn detect_in_teams(n: usize) -> Machine {
    in_teams(&detect(), n, MemoryNodes::of_system())
}

/// The devices of a machine, each of one core, put together.
fn in_teams(single_cores: &Machine, n: usize, nodes: &MemoryNodes) -> Machine {
    // Cores of a team are neighbours in the OS's numbering, and near the same memory.
    let node_of = |device: &Device| nodes.near(&device.cores);
    let mut by_node = single_cores.devices.raw.clone();
    by_node.sort_by_key(node_of);
    let on_nodes = by_node.chunk_by(|one, next| node_of(one) == node_of(next));
    let core_teams: Vec<_> = on_nodes.flat_map(|node| node.chunks(n.max(1))).collect();
    let mut team_machine = cpu_machine(&vec![None; core_teams.len()], memory_bytes() / 4 * 3);

    for (device, team) in team_machine.devices.iter_mut().zip(core_teams) {
        device.cores = team.iter().flat_map(|d| d.cores.iter().copied()).collect();
        device.memory_bytes = team.iter().map(|d| d.memory_bytes).sum();
        device.flops_per_s = team.iter().map(|d| d.flops_per_s).sum();
        device.bytes_per_s = team.iter().map(|d| d.bytes_per_s).sum();
    }
    team_machine
}

/// A machine of `n` like CPU devices that may run anywhere on this computer. Where there are more devices than cores,
/// they share them by turns of the operating system.
pub fn uniform(n: usize) -> Machine {
    let found_cores = usable_cores();
    let cores: Vec<_> = (0..n)
        .map(|i| found_cores.get(i).copied().flatten())
        .collect();
    let chosen_cores = if n <= found_cores.len() {
        cores
    } else {
        vec![None; n]
    };
    cpu_machine(&chosen_cores, memory_bytes() / 4 * 3)
}

/// A GPU of this machine, and what people call it.
#[derive(Clone, Debug, PartialEq)]
pub struct Gpu {
    /// As machines have it.
    pub device: Device,
    /// What it can do, as far as kernels depend on it.
    pub caps: Caps,
    /// The driver's name of it.
    pub title: String,
    /// Its UUID, the same for ever.
    pub uuid: String,
    /// The driver and its version.
    pub driver: String,
    /// The interface's version: `Vulkan 1.3.230`.
    pub api: String,
}

/// The GPUs of this machine, in a stable order: by driver (CUDA, then Vulkan), by kind, by UUID. A card that both
/// drivers find is there twice. Rooflines are guesses; only calibration knows.
///
/// # Errors
/// A sentence for each driver, where there is none, or a device cannot be opened, or this program was built without
/// GPUs.
pub fn gpus() -> Result<Vec<Gpu>, String> {
    let found_by_driver: [Result<Vec<Gpu>, String>; _] = [
        #[cfg(feature = "cuda")]
        cuda_gpus(),
        #[cfg(feature = "vulkan")]
        vulkan_gpus(),
    ];

    let mut all_gpus = Vec::new();
    let mut missing_reasons = Vec::new();
    let driver_count = found_by_driver.len();

    for found_by_driver in found_by_driver {
        match found_by_driver {
            Ok(found_by_driver) => all_gpus.extend(found_by_driver),
            Err(why) => missing_reasons.push(why),
        }
    }

    if driver_count == 0 {
        missing_reasons
            .push("this program was built without the features `cuda` and `vulkan`".to_owned());
    }
    if all_gpus.is_empty() && missing_reasons.len() >= driver_count {
        Err(missing_reasons.join("; "))
    } else {
        Ok(all_gpus)
    }
}

#[cfg(feature = "vulkan")]
fn vulkan_gpus() -> Result<Vec<Gpu>, String> {
    use zbmd_vulkan::{DeviceType, Instance, OpenError, VulkanDevice, VulkanOptions};
    let instance = Instance::load(false).map_err(|e| e.to_string())?;
    let listed = instance.devices().map_err(|e| e.to_string())?;
    let mut gpus = Vec::new();

    for listed in listed {
        let caps = match VulkanDevice::open(&instance, &listed, &VulkanOptions::default()) {
            Ok(device) => *device.caps(),
            // Too old to run anything; the others keep their names.
            Err(OpenError::Lacks { .. }) => continue,
            Err(error) => return Err(error.to_string()),
        };

        let (flops_per_s, bytes_per_s) = match listed.kind {
            DeviceType::Discrete => (5_000_000_000_000, 300_000_000_000),
            DeviceType::Integrated | DeviceType::Virtual => (500_000_000_000, 40_000_000_000),
            DeviceType::Cpu | DeviceType::Other => (1_000_000_000, 2_000_000_000),
        };
        gpus.push(Gpu {
            device: Device {
                name: listed.name.clone(),
                backend: DeviceKind::Vulkan,
                cores: Vec::new(),
                memory_bytes: listed.memory_bytes,
                flops_per_s,
                bytes_per_s,
                programmatic: false,
            },
            caps,
            uuid: listed.uuid_text(),
            api: format!("Vulkan {}", listed.api_text()),
            title: listed.title,
            driver: listed.driver,
        });
    }
    Ok(gpus)
}

#[cfg(feature = "cuda")]
fn cuda_gpus() -> Result<Vec<Gpu>, String> {
    let instance = zbmd_cuda::Instance::load().map_err(|e| e.to_string())?;
    let listed = instance.devices().map_err(|e| e.to_string())?;
    let gpu = |listed: zbmd_cuda::Listed| Gpu {
        device: Device {
            name: listed.name.clone(),
            backend: DeviceKind::Cuda,
            cores: Vec::new(),
            memory_bytes: listed.memory_bytes,
            flops_per_s: listed.flops_per_s(),
            bytes_per_s: listed.bytes_per_s(),
            programmatic: false,
        },
        caps: listed.caps,
        uuid: listed.uuid_text(),
        api: format!("CUDA {}", instance.api_text()),
        title: listed.title,
        driver: listed.driver,
    };

    Ok(listed.into_iter().map(gpu).collect())
}

/// The machine with more devices, each linked with all others both ways: to the host's memory and back. Of a card that
/// is listed twice, the first: the other name stands for the same processors, and taking turns there costs more than
/// both give.
#[must_use]
pub fn with_gpus(mut machine: Machine, gpus: &[Gpu]) -> Machine {
    for (i, gpu) in gpus.iter().enumerate() {
        if gpus[..i].iter().any(|other| other.uuid == gpu.uuid) {
            continue;
        }
        let known_devices: Vec<DeviceId> = machine.devices.keys().collect();
        let new_device = machine.devices.push_and_get_key(gpu.device.clone());
        // To and from every older device.
        let link_ends = known_devices
            .into_iter()
            .flat_map(|old| [(old, new_device), (new_device, old)]);

        machine.links.extend(link_ends.map(|(from, to)| Link {
            from,
            to,
            bytes_per_s: GPU_LINK_BYTES_PER_S,
            latency_ns: GPU_LINK_LATENCY_NS,
        }));
    }
    machine
}

/// Whether the processor has vectors of 512 bits, which tells its kind well enough for a guess.
fn has_wide_vectors() -> bool {
    #[cfg(target_arch = "x86_64")]
    return std::arch::is_x86_feature_detected!("avx512f");
    #[cfg(not(target_arch = "x86_64"))]
    false
}

fn cpu_machine(cores: &[Option<u32>], memory_bytes: u64) -> Machine {
    let device_count = cores.len().max(1) as u64;
    let slowdown = match has_wide_vectors() {
        true => 1,
        false => NARROW_SLOWDOWN,
    };
    let devices = cores.iter().enumerate().map(|(i, core)| Device {
        name: format!("cpu:{i}"),
        backend: DeviceKind::Cpu,
        cores: core.iter().copied().collect(),
        memory_bytes: memory_bytes / device_count,
        flops_per_s: CORE_FLOPS / slowdown,
        bytes_per_s: CORE_BYTES_PER_S / slowdown,
        programmatic: false,
    });

    let device_ids = || (0..cores.len()).map(DeviceId::from);
    let device_pairs = device_ids().flat_map(|from| device_ids().map(move |to| (from, to)));
    let links = device_pairs
        .filter(|(from, to)| from != to)
        .map(|(from, to)| Link {
            from,
            to,
            bytes_per_s: LINK_BYTES_PER_S,
            latency_ns: LINK_LATENCY_NS,
        });

    Machine {
        devices: devices.collect(),
        links: links.collect(),
        ..Machine::default()
    }
}

/// The OS's numbers of the usable cores, one logical processor for each physical core; `None` if it has none.
fn usable_cores() -> Vec<Option<u32>> {
    let allowed_processors = allowed_cpus();
    if allowed_processors.is_empty() {
        let thread_count = std::thread::available_parallelism().map_or(1, |n| n.get());
        return vec![None; thread_count];
    }

    one_per_core(&allowed_processors, |cpu| {
        Some((
            topology(cpu, "physical_package_id")?,
            topology(cpu, "core_id")?,
        ))
    })
    .into_iter()
    .map(Some)
    .collect()
}

/// The lowest-numbered logical processor of each physical core, in order; those without a place count as cores.
fn one_per_core(allowed: &[u32], place: impl Fn(u32) -> Option<(i64, i64)>) -> Vec<u32> {
    let mut first_of_core = BTreeMap::new();
    let mut cores: Vec<u32> = allowed
        .iter()
        .copied()
        .filter(|&cpu| place(cpu).is_none_or(|p| *first_of_core.entry(p).or_insert(cpu) == cpu))
        .collect();
    cores.sort_unstable();
    cores
}

#[cfg(target_os = "linux")]
fn allowed_cpus() -> Vec<u32> {
    let Ok(set) = rustix::thread::sched_getaffinity(None) else {
        return Vec::new();
    };
    (0..rustix::thread::CpuSet::MAX_CPU)
        .filter(|&c| set.is_set(c))
        .map(|c| c as u32)
        .collect()
}

#[cfg(not(target_os = "linux"))]
fn allowed_cpus() -> Vec<u32> {
    Vec::new()
}

fn topology(cpu: u32, what: &str) -> Option<i64> {
    let file_path = format!("/sys/devices/system/cpu/cpu{cpu}/topology/{what}");
    std::fs::read_to_string(file_path).ok()?.trim().parse().ok()
}

/// Physical memory, or what is assumed where the system does not tell.
#[cfg(target_os = "linux")]
pub fn memory_bytes() -> u64 {
    let info = rustix::system::sysinfo();
    let total_bytes = (info.totalram as u64).checked_mul(info.mem_unit.into());
    total_bytes
        .filter(|&bytes| bytes > 0)
        .unwrap_or(FALLBACK_MEMORY_BYTES)
}

#[cfg(not(target_os = "linux"))]
pub fn memory_bytes() -> u64 {
    FALLBACK_MEMORY_BYTES
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_team_is_near_one_part_of_the_memory() {
        let folder = tempfile::tempdir().expect("a folder");
        // As systems number them that give each node every other core.
        for (node, list) in [("node0", "0,2,4"), ("node1", "1,3,5")] {
            let node = folder.path().join(node);
            std::fs::create_dir(&node).expect("made");
            std::fs::write(node.join("cpulist"), list).expect("written");
        }
        let single_cores = cpu_machine(&[0, 1, 2, 3, 4, 5].map(Some), 6 << 30);
        let cores_of = |nodes: &MemoryNodes| -> Vec<Vec<u32>> {
            let teams = in_teams(&single_cores, 2, nodes);
            let devices = teams.devices.into_iter();
            devices.map(|device| device.cores).collect()
        };
        assert_eq!(
            cores_of(&MemoryNodes::read(folder.path())),
            [vec![0, 2], vec![4], vec![1, 3], vec![5]]
        );
        assert_eq!(
            cores_of(&MemoryNodes::default()),
            [[0, 1], [2, 3], [4, 5]].map(Vec::from)
        );
    }

    #[test]
    fn hyperthreads_share_a_device() {
        // Two packages of two cores; processors 4..8 are the second threads. Processor 9 has no topology.
        let place = |cpu: u32| (cpu < 8).then_some((i64::from(cpu % 4 / 2), i64::from(cpu % 2)));
        for (allowed, expect) in [
            (vec![0, 1, 2, 3, 4, 5, 6, 7], vec![0, 1, 2, 3]),
            (vec![2, 6, 7], vec![2, 7]),
            (vec![5, 9], vec![5, 9]),
        ] {
            assert_eq!(one_per_core(&allowed, place), expect, "{allowed:?}");
        }
    }

    #[test]
    fn every_pair_has_a_link_and_memory_is_shared() {
        let machine = cpu_machine(&[Some(0), Some(3), None], 3 << 30);
        assert_eq!(machine.links.len(), 6);
        let devices = || (0..3_usize).map(DeviceId::from);
        for (from, to) in devices().flat_map(|a| devices().map(move |b| (a, b))) {
            assert_eq!(machine.link(from, to).is_some(), from != to);
        }
        assert!(
            machine
                .devices
                .iter()
                .all(|d| d.memory_bytes == 1 << 30 && d.backend.is_cpu())
        );
        assert_eq!(machine.devices[DeviceId(1)].cores, [3]);
        assert!(machine.devices[DeviceId(2)].cores.is_empty());
    }

    #[test]
    fn gpus_are_linked_with_everybody_both_ways() {
        let gpu = |name: &str, uuid: &str| Gpu {
            device: Device {
                name: name.to_owned(),
                ..cpu_machine(&[None], 1).devices[DeviceId(0)].clone()
            },
            caps: Caps::COMMON,
            title: String::new(),
            uuid: uuid.to_owned(),
            driver: String::new(),
            api: String::new(),
        };
        let gpus = [
            gpu("cuda:0", "a"),
            gpu("vulkan:0", "b"),
            gpu("vulkan:1", "a"),
        ];
        let machine = with_gpus(cpu_machine(&[None, None], 1), &gpus);
        assert_eq!((machine.devices.len(), machine.links.len()), (4, 12));
        assert_eq!(machine.devices[DeviceId(3)].name, "vulkan:0");
        assert!(machine.link(DeviceId(0), DeviceId(3)).is_some());
    }

    #[test]
    fn this_machine_is_the_same_twice() {
        let machine = detect();
        assert!(!machine.devices.is_empty());
        assert_eq!(machine, detect());
    }
}
