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

#[cfg(target_os = "linux")]
mod batches;
#[cfg(target_os = "linux")]
mod canned;
#[cfg(target_os = "linux")]
mod client;
#[cfg(target_os = "linux")]
#[path = "../../tests/common/mod.rs"]
mod common;
#[cfg(target_os = "linux")]
mod losses;
#[cfg(target_os = "linux")]
mod mlserver;
#[cfg(target_os = "linux")]
mod poisson;
#[cfg(target_os = "linux")]
mod scrapes;
#[cfg(target_os = "linux")]
mod shared;
#[cfg(target_os = "linux")]
mod turn;

#[cfg(not(target_os = "linux"))]
fn main() {
    println!("skipped: the servers' processes are looked at by way of /proc");
}

#[cfg(target_os = "linux")]
fn main() {
    use poisson::Scheduling;

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
