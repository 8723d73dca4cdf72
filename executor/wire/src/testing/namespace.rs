//! A second network namespace, joined to this one by a link that can be cut: a host of its own to whoever runs there.

use std::io;
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::process::{Command, Stdio};
use std::time::Duration;

use super::relay::{LongLink, Relay};

/// How often a link that was just made is tried, and how long each time.
const ATTEMPTS: usize = 100;
const ATTEMPT_LIMIT: Duration = Duration::from_millis(50);

/// The namespace; it ends with its link when this is dropped.
pub struct Namespace {
    name: String,
    /// The end of the link that is here.
    device: String,
    /// The end of the link that is in the namespace.
    peer_device: String,
    /// What hands packets over, if the link is a long one.
    _relay: Option<Relay>,
}

impl Namespace {
    /// The address of this side.
    pub const HERE: Ipv4Addr = Ipv4Addr::new(10, 231, 7, 1);
    /// The address of the other side.
    pub const THERE: Ipv4Addr = Ipv4Addr::new(10, 231, 7, 2);

    /// Makes one; `None`, with a line that says why, where the system does not let us. One at a time: there is one pair of
    /// addresses.
    ///
    /// # Panics
    /// Nothing gets through the link.
    pub fn make() -> Option<Self> {
        Self::make_linked(None)
    }

    /// The same, with a link on which packets take long, or are lost.
    ///
    /// # Panics
    /// As [`Self::make`].
    pub fn make_far(link: LongLink) -> Option<Self> {
        Self::make_linked(Some(link))
    }

    fn make_linked(link: Option<LongLink>) -> Option<Self> {
        let process = std::process::id();
        let device = format!("zw{process}");
        let peer_device = format!("{device}p");
        let relay = match link.map(|link| Relay::start([&device, &peer_device], link)) {
            None => None,
            Some(Ok(relay)) => Some(relay),
            Some(Err(error)) => {
                println!("SKIPPED: no long link is possible here: {error}");
                return None;
            }
        };

        let namespace = Self {
            name: format!("zbmdwire{process}"),
            device,
            peer_device,
            _relay: relay,
        };
        let is_made = namespace.lay_link(link.is_some());
        is_made.then(|| {
            namespace.wait_until_joined();
            namespace
        })
    }

    /// Makes the namespace, and the link where a relay has not; whether the system lets us.
    fn lay_link(&self, has_devices: bool) -> bool {
        let Self {
            name,
            device,
            peer_device: peer,
            ..
        } = self;
        let [here, there] = [Self::HERE, Self::THERE].map(|address| format!("{address}/30"));
        let join: &[&str] = match has_devices {
            true => &["link", "set", peer, "netns", name],
            false => &[
                "link", "add", device, "type", "veth", "peer", "name", peer, "netns", name,
            ],
        };
        let steps: [&[&str]; 6] = [
            &["netns", "add", name],
            join,
            &["addr", "add", &here, "dev", device],
            &["link", "set", device, "up"],
            &["-n", name, "addr", "add", &there, "dev", peer],
            &["-n", name, "link", "set", peer, "up"],
        ];

        for step in steps {
            let done = Command::new("ip")
                .args(step)
                .stderr(Stdio::piped())
                .output();
            let is_done = done.as_ref().is_ok_and(|output| output.status.success());
            if !is_done {
                let text = done.map(|output| String::from_utf8_lossy(&output.stderr).into_owned());
                println!(
                    "SKIPPED: no second network namespace: `ip {}` is not possible here: {text:?}",
                    step.join(" ")
                );
                return false;
            }
        }
        true
    }

    /// A program that runs there.
    pub fn command(&self, program: &std::path::Path) -> Command {
        let mut command = Command::new("ip");
        command.args(["netns", "exec", &self.name]).arg(program);
        command
    }

    /// Cuts the link: what is sent is lost, and nobody is told.
    ///
    /// # Panics
    /// The system refuses it.
    pub fn cut(&self) {
        self.set_link("down");
    }

    /// Joins it again, and waits until something gets through.
    ///
    /// # Panics
    /// The system refuses it.
    pub fn join(&self) {
        self.set_link("up");
        self.wait_until_joined();
    }

    /// A link is there some time after the system has said so: the first packets would be lost.
    fn wait_until_joined(&self) {
        // Nobody listens there: that it is refused says that the other side has answered.
        let address = SocketAddr::from((Self::THERE, 9));
        for _ in 0..ATTEMPTS {
            match TcpStream::connect_timeout(&address, ATTEMPT_LIMIT) {
                Err(error) if error.kind() != io::ErrorKind::ConnectionRefused => {
                    std::thread::sleep(ATTEMPT_LIMIT);
                }
                _ => return,
            }
        }
        panic!("nothing gets through to {address}");
    }

    fn set_link(&self, state: &str) {
        let set = Command::new("ip")
            .args(["-n", &self.name, "link", "set", &self.peer_device, state])
            .status();
        assert!(set.is_ok_and(|status| status.success()), "link {state}");
    }
}

impl Drop for Namespace {
    fn drop(&mut self) {
        // Connections that were cut off would keep the namespace, and with it the link, for minutes.
        let steps: [&[&str]; 2] = [
            &["link", "del", &self.device],
            &["netns", "del", &self.name],
        ];
        for step in steps {
            let _ = Command::new("ip").args(step).stderr(Stdio::null()).status();
        }
    }
}
