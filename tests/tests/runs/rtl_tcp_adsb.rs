//! Mode S frames from a receiver that is ours too: one `zbmd-run` plays a recording as an `rtl_tcp` server, another one
//! connects to it and decodes. The demonstration of the book's page on live streams.

use std::path::Path;

use zbmd_compiler::{CompileOptions, MachineChoice, compile_str};
use zbmd_tests::actors::{decode, registry};
use zbmd_tests::child_run::{ChildRun, live};
use zbmd_tests::free_port::free_port;
use zbmd_tests::harness::Test;
use zbmd_tests::run::{compile, run, streams};

pub(super) const TESTS: &[Test] = &[(
    "frames_by_rtl_tcp_are_those_of_the_file",
    frames_by_rtl_tcp_are_those_of_the_file,
)];

const RECEIVER: &str = "adsb/model.ron";
/// Passes samples on, two bytes each.
const TRANSMITTER: &str = r#"Model(
    name: "receiver",
    sources: { "iq": Stream(dtype: u8, shape: [2], sample_rate: 2e6) },
    actors: { "pass": Reshape([2]) },
    channels: [(from: "iq", to: ["pass"]), (from: "pass", to: ["antenna"])],
    sinks: { "antenna": Stream() },
)"#;
/// Bytes of an iteration of the decoder.
const HOP_BYTES: usize = 4096;
/// A second of nothing before the recording, in which the decoder connects.
const LEAD_BYTES: usize = 977 * HOP_BYTES;

fn frames_by_rtl_tcp_are_those_of_the_file() {
    let Some(recording) = zbmd_tests::data::file("iq/modes1.bin") else {
        return;
    };
    let mut iq = [127, 128].repeat(LEAD_BYTES / 2);
    iq.extend(std::fs::read(recording).expect("readable"));
    iq.extend(decode::silence(iq.len()));
    let hops = iq.len() / HOP_BYTES;

    let folder = tempfile::tempdir().expect("a folder");
    std::fs::write(folder.path().join("modes.cu8"), &iq).expect("written");
    write_bundles(folder.path());

    // The decoder comes first: it connects as soon as there is a server.
    let port = free_port();
    let decoder = ChildRun::start(
        folder.path(),
        "decoder",
        &format!("iq=rtl_tcp://127.0.0.1:{port}?rate=2e6&freq=1090e6&silence=stall&full=wait"),
        "frames=frames.bin",
        &["--iterations", &hops.to_string()],
    );
    let server = ChildRun::start(
        folder.path(),
        "server",
        "iq=paced:modes.cu8",
        &format!("antenna=rtl_tcp-listen://127.0.0.1:{port}?full=wait"),
        &[],
    );
    let decoded = decoder.end();
    let served = server.end();

    let samples = (iq.len() / 2) as u64;
    assert_eq!(live(&served, "antenna")["sent"], samples, "{served}");
    assert_eq!(live(&decoded, "iq")["received"], samples, "{decoded}");
    assert_eq!(live(&decoded, "iq")["gap_count"], 0, "{decoded}");

    let from_file = run(RECEIVER, 1, &registry(), &streams([("iq", iq)]), None);
    let heard = std::fs::read(folder.path().join("frames.bin")).expect("written");
    assert!(
        heard == from_file["frames"],
        "other frames than those of the file"
    );
    let frames = decode::Listener::default().frames(&heard).len();
    assert!(frames >= 140, "{frames} frames");
    println!("{frames} frames, as from the file");
}

fn write_bundles(folder: &Path) {
    let options = CompileOptions {
        machine: MachineChoice::Uniform(1),
        ..CompileOptions::default()
    };
    let transmitter = compile_str("receiver.ron", TRANSMITTER, "", &options);
    let transmitter = transmitter.unwrap_or_else(|diagnostics| panic!("{diagnostics}"));
    let receiver = compile(RECEIVER, 2, &registry());
    for (name, program) in [
        ("server.zbmd", &transmitter.program),
        ("decoder.zbmd", &receiver.program),
    ] {
        zbmd_ir::bundle::write(&folder.join(name), program).expect("written");
    }
}
