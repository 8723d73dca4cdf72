//! What serving costs and holds: `cargo bench -p zbmd-serve --bench serving -- NAME [...]`, one bench a run.
//!
//! | name | what |
//! |---|---|
//! | `batches` | requests that wait are computed together |
//! | `canned` | beside a server that computes nothing |
//! | `losses` | workers die under load |
//! | `mlserver` | beside MLServer with ONNX Runtime |
//! | `poisson` | requests at random times, at 70 % and at 150 % of what the server can answer |
//! | `poisson-realtime` | the same of a server in real time, asked by a thread that nothing else holds up |
//! | `scrapes` | a Prometheus reads the metrics once a second |

#[cfg(not(target_os = "linux"))]
fn main() {
    println!("skipped: the servers' processes are looked at by way of /proc");
}

#[cfg(target_os = "linux")]
fn main() {
    linux::main();
}

#[cfg(target_os = "linux")]
#[path = "."]
mod linux {
    mod batches;
    mod canned;
    mod client;
    #[path = "../../tests/common/mod.rs"]
    mod common;
    #[path = "../../../../tests/src/figures.rs"]
    mod figures;
    mod losses;
    mod mlserver;
    mod poisson;
    mod scrapes;
    mod shared;
    mod turn;

    use poisson::Scheduling;

    pub(super) fn main() {
        let name = shared::words().next();
        match name.as_deref() {
            Some("batches") => batches::run(),
            Some("canned") => canned::run(),
            Some("losses") => losses::run(),
            Some("mlserver") => mlserver::run(),
            Some("poisson") => poisson::run(Scheduling::Ordinary),
            Some("poisson-realtime") => poisson::run(Scheduling::Realtime),
            Some("scrapes") => scrapes::run(),
            _ => println!(
                "which one? batches, canned, losses, mlserver, poisson, poisson-realtime or scrapes"
            ),
        }
    }
}
