//! Mode S frames from a receiver that is ours too: one `zbmd-run` plays a recording as an `rtl_tcp` server, another one
//! connects to it and decodes. The demonstration of the book's page on live streams.
//!
//! No test harness: this program is its own `zbmd-run`, with the actor of the example.

#[cfg(not(target_os = "linux"))]
fn main() {
    println!("skipped: live streams are tested on Linux");
}

#[cfg(target_os = "linux")]
fn main() -> std::process::ExitCode {
    if std::env::var_os(linux::RUNNER).is_some() {
        return zbmd_run::main_with(zbmd_tests::actors::registry());
    }
    linux::main();
    std::process::ExitCode::SUCCESS
}

#[cfg(target_os = "linux")]
mod linux {
    use std::net::{Ipv4Addr, TcpListener};
    use std::path::Path;
    use std::process::{Child, Command, Stdio};
    use std::time::{Duration, Instant};

    use zbmd_compiler::{CompileOptions, MachineChoice, compile_str};
    use zbmd_tests::actors::{decode, registry};
    use zbmd_tests::run::{compile, run, streams};

    /// Set in the environment of `zbmd-run`.
    pub(super) const RUNNER: &str = "ZBMD_TEST_ADSB_RUNNER";
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
    /// Nothing here takes as long.
    const LIMIT: Duration = Duration::from_secs(120);

    pub(super) fn main() {
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
        let decoder = start(
            folder.path(),
            "decoder",
            &format!("iq=rtl_tcp://127.0.0.1:{port}?rate=2e6&freq=1090e6&silence=stall&full=wait"),
            "frames=frames.bin",
            &["--iterations", &hops.to_string()],
        );
        let server = start(
            folder.path(),
            "server",
            "iq=paced:modes.cu8",
            &format!("antenna=rtl_tcp-listen://127.0.0.1:{port}?full=wait"),
            &[],
        );
        let decoded = decoder.end(folder.path());
        let served = server.end(folder.path());

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
        let frames = decode::frames(&heard).len();
        assert!(frames >= 140, "{frames} frames");
        println!("{frames} frames, as from the file");
    }

    /// What a report says of a live stream.
    fn live<'a>(report: &'a serde_json::Value, stream: &str) -> &'a serde_json::Value {
        let all = report["live"].as_array().expect("live streams");
        let found = all.iter().find(|live| live["stream"] == stream);
        found.unwrap_or_else(|| panic!("{stream} in {report}"))
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

    /// A port that nobody uses now.
    fn free_port() -> u16 {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a port");
        listener.local_addr().expect("bound").port()
    }

    /// A run beside this program, killed if the test fails.
    struct Run {
        name: &'static str,
        child: Child,
    }

    fn start(folder: &Path, name: &'static str, input: &str, output: &str, extra: &[&str]) -> Run {
        let child = Command::new(std::env::current_exe().expect("a path"))
            .args([&format!("{name}.zbmd"), "-i", input, "-o", output])
            .args(["--report", "json", "--report-file", &format!("{name}.json")])
            .args(extra)
            .env(RUNNER, "1")
            .current_dir(folder)
            .stdin(Stdio::null())
            .spawn()
            .expect("started");
        Run { name, child }
    }

    impl Run {
        /// Waits for its end; its report.
        fn end(mut self, folder: &Path) -> serde_json::Value {
            let begun = Instant::now();
            let status = loop {
                if let Some(status) = self.child.try_wait().expect("a child") {
                    break status;
                }
                assert!(begun.elapsed() < LIMIT, "{} does not end", self.name);
                std::thread::sleep(Duration::from_millis(5));
            };
            assert!(status.success(), "{}: {status}", self.name);
            let report = std::fs::read(folder.join(format!("{}.json", self.name)));
            serde_json::from_slice(&report.expect("a report")).expect("JSON")
        }
    }

    impl Drop for Run {
        fn drop(&mut self) {
            let _ = self.child.kill();
            let _ = self.child.wait();
        }
    }
}
