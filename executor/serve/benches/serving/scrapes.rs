//! What it costs that a Prometheus reads the metrics: `cargo bench -p zbmd-serve --bench serving -- scrapes [MODEL.onnx]`, with `prometheus`
//! in the path.
//!
//! Eight clients ask as fast as they are answered, while a real Prometheus reads `/metrics` once a second, and while it is stopped
//! (SIGSTOP), by turns of four seconds; `ZBMD_SERVE_SCRAPES_S` says for how long (80). Clients, server and Prometheus share the cores. A difference of
//! a hundredth is hard to see beside whatever else the machine does, so what a scrape takes is counted besides: the processor's time of
//! the server while it is asked for its metrics alone, and that of Prometheus in the turns in which it runs.

use std::net::TcpListener;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use rustix::process::Signal;

use super::client::ask_until;
use super::common::{Connection, Models, Server, signal, wait_until};
use super::figures::load;
use super::shared::{Model, cpu_ms, options, request, seconds};
use super::turn::Turn;

const CLIENTS: usize = 8;
const TURN: Duration = Duration::from_secs(4);
/// Requests for metrics alone.
const SCRAPES: u32 = 1000;

pub(crate) fn run() {
    if Command::new("prometheus")
        .arg("--version")
        .output()
        .is_err()
    {
        println!("skipped: there is no `prometheus` in the path; install Debian's package");
        return;
    }
    let seconds = seconds("ZBMD_SERVE_SCRAPES_S", 80);
    let pairs = (seconds / (2 * TURN.as_secs())).max(1);
    let chosen = Model::chosen();
    let model = chosen.compile(&options());
    let request = request(&model, None);
    let server = Models::new().with("model", &model).serve(&[]);
    println!("{}; load {}", chosen.name, load());

    let scrape_ms = scrape_ms(&server);
    println!(
        "a scrape takes {:.0} us of the server's processor time: {:.4} % of a core at 1 Hz",
        1e3 * scrape_ms,
        scrape_ms / 10.0
    );
    let prometheus = Prometheus::start(&server);
    let ask = |end: Instant| ask_until(end, server.address, &request);
    let mut ratios = Vec::new();
    let mut prometheus_ms = 0.0;
    for _ in 0..pairs {
        let before_ms = cpu_ms(prometheus.pid());
        let read = Turn::run_for(TURN, CLIENTS, ask);
        prometheus_ms += cpu_ms(prometheus.pid()) - before_ms;
        prometheus.signal(Signal::STOP);
        let unread = Turn::run_for(TURN, CLIENTS, ask);
        prometheus.signal(Signal::CONT);
        ratios.push(read.rate / unread.rate);
    }

    ratios.sort_by(f64::total_cmp);
    let quartile = |part: usize| ratios[(ratios.len() - 1) * part / 4];
    println!(
        "answers/s read to unread, {pairs} pairs of turns: median {:.4}, quartiles {:.4} and {:.4}",
        quartile(2),
        quartile(1),
        quartile(3)
    );
    println!(
        "Prometheus itself takes {:.2} % of a core; load {}",
        prometheus_ms / 10.0 / (pairs * TURN.as_secs()) as f64,
        load()
    );
}

/// Processor time of the server for an answer with its metrics, in milliseconds.
fn scrape_ms(server: &Server) -> f64 {
    let mut connection = Connection::to(server.address);
    let before_ms = cpu_ms(server.pid());
    for _ in 0..SCRAPES {
        let reply = connection.request("GET", "/metrics", &[], &[]);
        assert_eq!(reply.status, 200);
    }
    (cpu_ms(server.pid()) - before_ms) / f64::from(SCRAPES)
}

/// A Prometheus that reads a server's metrics once a second.
struct Prometheus {
    child: Child,
    _folder: tempfile::TempDir,
}

impl Prometheus {
    fn start(server: &Server) -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        let config = folder.path().join("prometheus.yml");
        let text = format!(
            "global: {{scrape_interval: 1s}}\n\
             scrape_configs: [{{job_name: zbmd, static_configs: [{{targets: [\"{}\"]}}]}}]\n",
            server.address
        );
        std::fs::write(&config, text).expect("written");
        let child = Self::command(&config, folder.path()).spawn();
        let child = child.expect("started");

        let requests = || server.metric("zbmd_http_requests_total");
        let before = requests();
        let mut own = 0.0;
        wait_until("a scrape", || {
            own += 1.0;
            requests() > before + own
        });
        Self {
            child,
            _folder: folder,
        }
    }

    fn command(config: &Path, folder: &Path) -> Command {
        // A port that is free now.
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let own_address = listener.local_addr().expect("bound");
        let mut command = Command::new("prometheus");
        command
            .arg(format!("--config.file={}", config.display()))
            .arg(format!(
                "--storage.tsdb.path={}",
                folder.join("data").display()
            ))
            .arg(format!("--web.listen-address={own_address}"))
            .stdout(Stdio::null())
            .stderr(Stdio::null());
        command
    }

    fn pid(&self) -> u32 {
        self.child.id()
    }

    fn signal(&self, wanted: Signal) {
        signal(self.pid(), wanted);
    }
}

impl Drop for Prometheus {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
