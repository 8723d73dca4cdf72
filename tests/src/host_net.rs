//! Hosts on one computer: each has a network namespace of its own, and all are joined by a bridge. A host can be cut off from the
//! others in one direction or in both, and nobody is told: what is sent then goes to a hardware address that nobody has.

use std::io::Write;
use std::net::Ipv4Addr;
use std::path::Path;
use std::process::{Command, Stdio};

/// Where what is sent over a cut goes.
const NOBODY: &str = "02:de:ad:00:00:00";

/// Which way nothing goes between a host and all others.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cut {
    /// Neither.
    Both,
    /// To the host: it is heard, and hears nothing.
    In,
    /// From the host: it hears all, and is not heard.
    Out,
}

impl Cut {
    /// All of them.
    pub const ALL: [Self; 3] = [Self::Both, Self::In, Self::Out];
}

impl std::fmt::Display for Cut {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Both => "neither heard nor hearing",
            Self::In => "heard and not hearing",
            Self::Out => "hearing and not heard",
        })
    }
}

/// The hosts; they end with their links when this is dropped.
pub struct HostNet {
    bridge: String,
    count: usize,
}

impl HostNet {
    /// Makes so many; `None`, with a line that says why, where the system does not let us. One at a time: there is one row of
    /// addresses.
    pub fn make(count: usize) -> Option<Self> {
        let net = Self {
            bridge: format!("zc{}", std::process::id()),
            count,
        };
        match net.join_all() {
            Ok(()) => Some(net),
            Err(why) => {
                println!("SKIPPED: no network namespaces: {why}");
                None
            }
        }
    }

    /// The address of a host.
    pub fn address(host: usize) -> Ipv4Addr {
        Ipv4Addr::new(10, 231, 8, host as u8 + 1)
    }

    /// A program that runs on a host.
    pub fn command(&self, host: usize, program: &Path) -> Command {
        let mut command = Command::new("ip");
        command
            .args(["netns", "exec", &self.name(host)])
            .arg(program);
        command
    }

    /// Limits what goes over a host's link in each direction, as `tc` names rates: `800mbit`.
    ///
    /// # Errors
    /// What the system says.
    pub fn limit_rate(&self, host: usize, rate: &str) -> Result<(), String> {
        let name = self.name(host);
        let limit = [
            "root", "tbf", "rate", rate, "burst", "1mb", "latency", "50ms",
        ];
        let to_host = ["qdisc", "add", "dev", &name];
        let from_host = ["-n", &name, "qdisc", "add", "dev", "eth0"];
        system("tc", &[&to_host[..], &limit].concat())?;
        system("tc", &[&from_host[..], &limit].concat())
    }

    /// Bytes that have gone over a host's link towards it.
    ///
    /// # Panics
    /// The system does not count them.
    pub fn received_bytes(&self, host: usize) -> u64 {
        // What comes to the host leaves by the other end of its link.
        let count = format!("/sys/class/net/{}/statistics/tx_bytes", self.name(host));
        let text = std::fs::read_to_string(count).expect("a link");
        text.trim().parse().expect("a number")
    }

    /// Cuts a host off: what is sent is lost, and nobody is told.
    ///
    /// # Panics
    /// The system refuses it.
    pub fn cut(&self, host: usize, cut: Cut) {
        if cut != Cut::In {
            self.point_out(host, |_| NOBODY.to_owned());
        }
        if cut != Cut::Out {
            self.point_in(host, NOBODY);
        }
    }

    /// Lets everything through again.
    ///
    /// # Panics
    /// The system refuses it.
    pub fn heal(&self, host: usize) {
        self.point_in(host, &hardware_address(host));
        self.point_out(host, hardware_address);
    }

    /// Says where goes what a host sends to each of the others.
    fn point_out(&self, host: usize, hardware: impl Fn(usize) -> String) {
        let others = self.others(host);
        let lines: String = others
            .map(|other| neighbour(other, &hardware(other)))
            .collect();
        batch(&self.name(host), &lines).expect("the link is there");
    }

    /// Says where goes what the others send to a host.
    fn point_in(&self, host: usize, hardware: &str) {
        for other in self.others(host) {
            let done = batch(&self.name(other), &neighbour(host, hardware));
            done.expect("the link is there");
        }
    }

    fn others(&self, host: usize) -> impl Iterator<Item = usize> {
        (0..self.count).filter(move |other| *other != host)
    }

    fn name(&self, host: usize) -> String {
        format!("{}h{host}", self.bridge)
    }

    fn join_all(&self) -> Result<(), String> {
        let bridge = &self.bridge;
        ip(&["link", "add", bridge, "type", "bridge"])?;
        ip(&["link", "set", bridge, "up"])?;
        for host in 0..self.count {
            let name = self.name(host);
            let hardware = hardware_address(host);
            ip(&["netns", "add", &name])?;
            ip(&[
                "link", "add", &name, "type", "veth", "peer", "name", "eth0", "netns", &name,
                "address", &hardware,
            ])?;
            ip(&["link", "set", &name, "master", bridge, "up"])?;
            let address = format!("{}/24", Self::address(host));
            ip(&["-n", &name, "addr", "add", &address, "dev", "eth0"])?;
            ip(&["-n", &name, "link", "set", "lo", "up"])?;
            ip(&["-n", &name, "link", "set", "eth0", "up"])?;
            self.point_out(host, hardware_address);
        }
        Ok(())
    }
}

impl Drop for HostNet {
    fn drop(&mut self) {
        let quietly = |words: &[&str]| {
            let command = Command::new("ip")
                .args(words)
                .stderr(Stdio::null())
                .status();
            drop(command);
        };
        for host in 0..self.count {
            // Connections that were cut off would keep the namespace, and with it the link, for minutes.
            let name = self.name(host);
            quietly(&["link", "del", &name]);
            quietly(&["netns", "del", &name]);
        }
        quietly(&["link", "del", &self.bridge]);
    }
}

fn hardware_address(host: usize) -> String {
    format!("02:00:0a:e7:08:{:02x}", host + 1)
}

/// The line by which a host is told the hardware address of another.
fn neighbour(host: usize, hardware: &str) -> String {
    let address = HostNet::address(host);
    format!("neigh replace {address} lladdr {hardware} dev eth0 nud permanent\n")
}

fn ip(words: &[&str]) -> Result<(), String> {
    system("ip", words)
}

fn system(program: &str, words: &[&str]) -> Result<(), String> {
    let done = Command::new(program).args(words).output();
    let done = done.map_err(|error| format!("`{program}` cannot be started: {error}"))?;
    match done.status.success() {
        true => Ok(()),
        false => Err(format!(
            "`{program} {}`: {}",
            words.join(" "),
            String::from_utf8_lossy(&done.stderr)
        )),
    }
}

/// Lines for `ip` in a namespace.
fn batch(namespace: &str, lines: &str) -> Result<(), String> {
    let child = Command::new("ip")
        .args(["-n", namespace, "-batch", "-"])
        .stdin(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn();
    let mut child = child.map_err(|error| format!("`ip` cannot be started: {error}"))?;
    if let Some(mut input) = child.stdin.take() {
        let _ = input.write_all(lines.as_bytes());
    }
    let done = child
        .wait_with_output()
        .map_err(|error| error.to_string())?;
    match done.status.success() {
        true => Ok(()),
        false => Err(String::from_utf8_lossy(&done.stderr).into_owned()),
    }
}
