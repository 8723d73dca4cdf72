//! Agents of runs over several hosts, each a process of its own.

use std::io::{BufRead, BufReader};
use std::net::SocketAddr;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex, PoisonError};

use rustix::process::{Pid, Signal, kill_process};

/// Two hosts with a device each.
pub const TWO_HOSTS: &str = r#"Machine(
    devices: [Device(name: "left:0", backend: cpu), Device(name: "right:0", backend: cpu)],
    hosts: { "left": ["left:0"], "right": ["right:0"] },
    links: [Link(from: "left", to: "right", both: true, bandwidth: "10GB/s", latency: "1us")],
)"#;

/// `zbmd-run agent` in a process of its own, which ends with this.
pub struct AgentProcess {
    child: Child,
    /// Where it listens.
    pub address: SocketAddr,
    said: Arc<Mutex<String>>,
}

impl AgentProcess {
    /// Starts it, and waits until it says where it listens.
    pub fn spawn(mut command: Command) -> Self {
        let mut child = command.stderr(Stdio::piped()).spawn().expect("started");
        let mut lines = BufReader::new(child.stderr.take().expect("piped")).lines();
        let line = lines.next().expect("a line").expect("text");
        let address = line.rsplit(' ').next().expect("an address");
        let address = address.parse().unwrap_or_else(|_| panic!("{line}"));
        // Nobody keeps it from saying more.
        let said = Arc::<Mutex<String>>::default();
        let heard = Arc::clone(&said);
        std::thread::spawn(move || {
            for line in lines.map_while(Result::ok) {
                let mut heard = heard.lock().unwrap_or_else(PoisonError::into_inner);
                heard.push_str(&line);
                heard.push('\n');
            }
        });
        Self {
            child,
            address,
            said,
        }
    }

    /// What it has said since it listens.
    pub fn said(&self) -> String {
        let said = self.said.lock().unwrap_or_else(PoisonError::into_inner);
        said.clone()
    }

    /// Its process.
    pub fn pid(&self) -> Pid {
        Pid::from_child(&self.child)
    }

    /// Sends a signal to the process.
    pub fn signal(&self, signal: Signal) {
        kill_process(self.pid(), signal).expect("it is there");
    }
}

impl Drop for AgentProcess {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A file of a token in this folder, which nobody but its owner may read.
pub fn token_file(folder: &Path, secret: &str) -> PathBuf {
    let path = folder.join("token");
    std::fs::write(&path, secret).expect("written");
    let owner_only = std::fs::Permissions::from_mode(0o600);
    std::fs::set_permissions(&path, owner_only).expect("its owner may");
    path
}
