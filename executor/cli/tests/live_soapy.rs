//! Receivers by way of SoapySDR, with a module of our own as the device: lost samples, a device that goes and comes back.
#![cfg(all(target_os = "linux", feature = "soapy"))]

#[path = "../../tests/common/mod.rs"]
mod common;
mod live_peers;

use std::ffi::OsStr;
use std::path::Path;
use std::process::Command;
use std::sync::OnceLock;

use common::case::{Case, code};
use common::text;
use live_peers::{LiveRun, copies, gaps, live, sample_offsets};
use zbmd_ir::{DType, TokenType};

/// Compiles the module into a folder of its own; `None` where a compiler or SoapySDR's headers are missing.
fn module_folder() -> Option<&'static Path> {
    static IS_THERE: OnceLock<bool> = OnceLock::new();
    let folder = Path::new(concat!(env!("CARGO_TARGET_TMPDIR"), "/soapy_modules"));
    let is_there = IS_THERE.get_or_init(|| {
        std::fs::create_dir_all(folder).expect("a folder");
        let source = folder.join("receiver.cpp");
        std::fs::write(&source, include_str!("soapy_device/receiver.cpp")).expect("written");
        let compiled = Command::new("c++")
            .args(["-shared", "-fPIC", "-std=c++17", "-O1", "-o"])
            .args([&folder.join("libzbmd_test.so"), &source])
            .arg("-lSoapySDR")
            .output();
        if let Ok(output) = &compiled {
            eprint!("{}", text(&output.stderr));
        }
        compiled.is_ok_and(|output| output.status.success())
    });
    if !is_there {
        eprintln!("SKIPPED: no test receiver (apt-get install g++ libsoapysdr-dev)");
    }
    is_there.then_some(folder)
}

/// Only our module: the system's look for hardware.
fn variables(modules: &Path) -> [(&'static str, &OsStr); 2] {
    [
        ("SOAPY_SDR_PLUGIN_PATH", modules.as_os_str()),
        ("SOAPY_SDR_ROOT", OsStr::new("/nonexistent")),
    ]
}

fn case() -> Case {
    Case::new(copies(&[("iq", TokenType::new(DType::U8, [2]))], 100))
}

/// Receives so many samples at 100 kS/s; the report, and the samples.
fn receive(arguments: &str, samples: u32) -> Option<(serde_json::Value, Vec<u8>)> {
    let modules = module_folder()?;
    let case = case();
    let input = format!("iq=soapy:driver=zbmd_test{arguments}?rate=1e5&limit=10s&freq=1e8");
    let samples = samples.to_string();
    let args = ["-i", &input, "-o", "iq_out=iq.bin", "-n", &samples];
    let report = LiveRun::start_with(&case, &args, &variables(modules)).end(&case, 0);
    Some((report, case.read("iq.bin")))
}

#[test]
fn a_receiver_with_time_stamps_is_read_to_the_sample() {
    let Some((report, samples)) = receive(",lose_at=10000,lose=777", 30_000) else {
        return;
    };
    let source = live(&report, "iq");
    assert_eq!(samples.len(), 60_000);
    // Sample n is at place n, whatever was lost before it.
    assert_eq!(sample_offsets(&samples).len(), 1, "{source}");
    let first = sample_offsets(&samples)[0];
    assert_eq!(gaps(source), [((10_000 - first) as u64, 777)], "{source}");
    assert_eq!(source["filled"]["lost"], 777, "{source}");
    assert_eq!(source["stated_rate"], 1e5, "{source}");
}

#[test]
fn an_overflow_without_time_stamps_is_an_interruption() {
    let Some((report, samples)) = receive(",lose_at=10000,lose=20000,time=0", 40_000) else {
        return;
    };
    let source = live(&report, "iq");
    // What was lost is counted by the time that passed, within the delays of this machine.
    let filled = source["filled"]["disconnected"].as_u64().expect("a number");
    assert!((10_000..30_000).contains(&filled), "{source}");
    assert_eq!(samples.len(), 80_000);
}

#[test]
fn a_receiver_that_goes_is_opened_again() {
    let Some((report, samples)) = receive(",die_at=5000", 30_000) else {
        return;
    };
    let source = live(&report, "iq");
    assert_eq!(source["connections"], 2, "{source}");
    assert_eq!(sample_offsets(&samples).len(), 1, "{source}");
    assert_eq!(samples.len(), 60_000);
}

#[test]
fn receivers_that_are_missing_or_of_other_samples_are_refused() {
    let Some(modules) = module_folder() else {
        return;
    };
    let refused = |case: &Case, input: &str| {
        let mut command = case.command(&["-i", input, "-o", "iq_out=iq.bin"]);
        let output = command.envs(variables(modules)).output().expect("started");
        assert_eq!(code(&output), 4, "{}", text(&output.stderr));
        text(&output.stderr)
    };
    let said = refused(&case(), "iq=soapy:driver=no_such?rate=1e5");
    assert!(
        said.contains("there is no device `driver=no_such`"),
        "{said}"
    );
    let said = refused(&case(), "iq=soapy:driver=zbmd_test");
    assert!(said.contains("the key `rate` is missing"), "{said}");

    let floats = Case::new(copies(&[("iq", TokenType::scalar(DType::F32))], 100));
    let said = refused(&floats, "iq=soapy:driver=zbmd_test?rate=1e5");
    assert!(
        said.contains("the tokens are f32: use c32, i16[2]"),
        "{said}"
    );
    let complex = Case::new(copies(&[("iq", TokenType::scalar(DType::C32))], 100));
    let said = refused(&complex, "iq=soapy:driver=zbmd_test?rate=1e5");
    assert!(
        said.contains("the device gives no samples as CF32: only CU8"),
        "{said}"
    );
}
