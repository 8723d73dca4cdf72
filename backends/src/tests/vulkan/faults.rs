//! Every call made to fail with every error that it may give, and a queue that hangs: always a fault of the right kind,
//! never a crash, and nothing asked of the driver after a loss. And barriers left out: somebody must notice.

use zbmd_ir::TiVec;

use crate::tests::ops::conformance::subject;
use crate::vulkan::testing::{assert_valid, open, turn};
use crate::vulkan::{
    Fault, GpuCall, Injected, Injection, ReplayError, Site, VulkanDevice, VulkanOptions,
};

/// Makes an actor's kernels ready and runs them, as calibration does.
fn work(device: &std::sync::Arc<VulkanDevice>) -> Result<(), Fault> {
    let subject = subject("Tone", "freq: 1, rate: 8", "");
    let plan = crate::standard_registry().lower(&subject.actor, &TiVec::new(), device.caps());
    let call = GpuCall::new(device, &subject.actor, &plan.expect("a kernel"), 4, 1);
    let mut call = call.map_err(|error| match error {
        ReplayError::Fault(fault) => fault,
        error => panic!("{error}"),
    })?;
    call.set_state(0, &[0; 8])?;
    call.run()?;
    assert_eq!(call.output(0)?.len(), 32);
    Ok(())
}

#[test]
fn every_error_at_every_call_is_a_fault_of_its_kind() {
    let _turn = turn();
    let Some(first) = open() else { return };
    work(&first).expect("nothing is injected");
    let (instance, listed) = (first.instance().clone(), first.listed().clone());
    // A device that was opened already; a queue that hangs asks for the counter.
    let elsewhere = [Site::CreateDevice, Site::CreateCache, Site::Counter];
    for &site in Site::ALL.iter().filter(|s| !elsewhere.contains(s)) {
        for (error, kind) in [
            (Injected::Lost, "lost"),
            (Injected::DeviceMemory, "device memory"),
            (Injected::HostMemory, "host memory"),
            (Injected::Unknown, "other"),
        ] {
            for after in [0, 1] {
                let device = VulkanDevice::open(&instance, &listed, &VulkanOptions::default())
                    .expect("opens");
                device.inject(Injection { site, after, error });
                let outcome = work(&device);
                let Err(fault) = outcome else {
                    assert_eq!(after, 1, "{site}: {error:?} went unnoticed");
                    continue;
                };
                let found = match &fault {
                    Fault::Lost { site: said, .. } => ("lost", *said),
                    Fault::OutOfMemory {
                        site: said,
                        whose: "host",
                        ..
                    } => ("host memory", *said),
                    Fault::OutOfMemory { site: said, .. } => ("device memory", *said),
                    Fault::Other { site: said, .. } => ("other", *said),
                    Fault::Hung { .. } => panic!("{site} hangs"),
                };
                assert_eq!(found, (kind, site), "{fault}");
                assert_eq!(
                    device.is_alive(),
                    kind != "lost" && site != Site::Wait,
                    "{fault}"
                );
                if device.is_alive() {
                    // The fault was one of a call: the device still works.
                    device.clear_injection();
                    work(&device).unwrap_or_else(|e| panic!("after {fault}: {e}"));
                } else {
                    // What a lost device holds is left to the end of the process: here, to the instance's.
                    std::mem::forget(device);
                    std::mem::forget(instance.clone());
                }
            }
        }
    }
}

#[test]
fn a_call_that_does_not_end_is_a_hang() {
    let _turn = turn();
    let Some(device) = open() else { return };
    device.inject(Injection {
        site: Site::Wait,
        after: 0,
        error: Injected::Hang,
    });
    assert!(matches!(work(&device), Err(Fault::Hung { value: 1, .. })));
    assert!(!device.is_alive());
    std::mem::forget(device.instance().clone());
}

#[test]
fn barriers_left_out_are_found() {
    let _turn = turn();
    let Some(device) = open() else { return };
    work(&device).expect("works");
    assert_valid(&device);
    if !device.instance().validates() {
        return eprintln!("SKIPPED: the validation layers are not installed");
    }
    device.skip_barriers();
    // The state is read by the oscillator, then moved on: write after read.
    let _ = work(&device);
    let messages = device.instance().messages();
    assert!(
        messages
            .iter()
            .any(|m| m.contains("SYNC-HAZARD-WRITE-AFTER-READ")),
        "{messages:?}"
    );
}

#[test]
fn compiled_kernels_are_kept_on_disk_and_damage_is_ignored() {
    let _turn = turn();
    let Some(first) = open() else { return };
    let folder = std::env::temp_dir().join(format!("zbmd-vulkan-{}", std::process::id()));
    let (instance, listed) = (first.instance().clone(), first.listed().clone());
    let options = VulkanOptions {
        cache: Some(folder.clone()),
        ..VulkanOptions::default()
    };
    let reopen = || VulkanDevice::open(&instance, &listed, &options).expect("opens");
    let device = reopen();
    work(&device).expect("works");
    device.save_cache();
    let files: Vec<_> = std::fs::read_dir(&folder)
        .expect("a folder")
        .flatten()
        .collect();
    assert_eq!(files.len(), 1);
    work(&reopen()).expect("works from the cache");
    std::fs::write(files[0].path(), b"zbmdvkc1 not what it says").expect("written");
    work(&reopen()).expect("works without it");
    std::fs::remove_dir_all(&folder).expect("removed");
    assert_valid(&first);
}
