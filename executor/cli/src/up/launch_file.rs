//! The file of `zbmd-run up`.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use serde::Deserialize;

use crate::CliError;
use crate::io::read_whole;

/// No file is longer.
const MAX_BYTES: u64 = 1 << 20;

/// What is started where. Paths of this computer are taken from the working folder.
#[derive(Clone, Debug, Deserialize)]
#[serde(rename = "Launch", deny_unknown_fields)]
pub(crate) struct LaunchFile {
    /// The bundle, on this computer.
    pub(crate) bundle: PathBuf,
    /// The secret of the cluster, on this computer; on the hosts too, unless they say otherwise.
    token_file: String,
    /// `zbmd-run` on the hosts.
    #[serde(default = "default_program")]
    program: String,
    /// Options of `ssh`.
    #[serde(default)]
    pub(crate) ssh_options: Vec<String>,
    /// Of the run: `zbmd-run BUNDLE`.
    #[serde(default)]
    options: Vec<String>,
    /// Of all agents: `zbmd-run agent`.
    #[serde(default)]
    agent_options: Vec<String>,
    /// By their names in the bundle's machine, without this one.
    pub(crate) hosts: BTreeMap<String, LaunchHost>,
}

/// A host on which an agent is started.
#[derive(Clone, Debug, Deserialize)]
#[serde(rename = "Host", deny_unknown_fields)]
pub(crate) struct LaunchHost {
    /// The agent listens there. Port 0 is one that is free.
    pub(crate) address: SocketAddr,
    /// Where `ssh` goes; to the address, if it is left out.
    ssh: Option<String>,
    /// As whom.
    user: Option<String>,
    /// The secret of the cluster, on this host.
    token_file: Option<String>,
    /// `zbmd-run` on this host.
    program: Option<String>,
    /// Of this agent, besides those of all.
    #[serde(default)]
    options: Vec<String>,
}

fn default_program() -> String {
    "zbmd-run".to_owned()
}

impl LaunchFile {
    /// Reads a file.
    ///
    /// # Errors
    /// It cannot be read, or says what it must not, with the place.
    pub(crate) fn read(path: &Path) -> Result<Self, CliError> {
        let bytes = read_whole(path, MAX_BYTES)?;
        let parsed = std::str::from_utf8(&bytes)
            .map_err(|error| format!("is not UTF-8 from byte {} on", error.valid_up_to()))
            .and_then(Self::parse);
        parsed.map_err(|text| CliError::Declaration {
            path: path.to_owned(),
            text,
        })
    }

    fn parse(text: &str) -> Result<Self, String> {
        let ron_options = ron::Options::default()
            .with_default_extension(ron::extensions::Extensions::IMPLICIT_SOME);
        let launch: Self = ron_options.from_str(text).map_err(|error| {
            let place = error.span.start;
            format!("line {}, column {}: {}", place.line, place.col, error.code)
        })?;
        if launch.hosts.is_empty() {
            return Err(
                "`hosts` is empty: name each host of the bundle's machine but this one, or run the bundle by `zbmd-run BUNDLE`"
                    .to_owned(),
            );
        }
        let words = launch.hosts.iter().flat_map(|(name, host)| {
            let words = launch.agent_words(host, host.address).into_iter();
            words.map(move |word| (name, word))
        });
        for (name, word) in words {
            if word.contains('\0') {
                return Err(format!(
                    "host `{name}`: {word:?} has a character 0, which no command line can have"
                ));
            }
        }
        Ok(launch)
    }

    /// The command line of the run, with the hosts as the file has them.
    pub(crate) fn run_words(&self) -> Vec<String> {
        let mut words = vec!["zbmd-run".to_owned(), self.bundle.display().to_string()];
        for (name, host) in &self.hosts {
            words.extend(["--host".to_owned(), format!("{name}={}", host.address)]);
        }
        words.extend(["--token-file".to_owned(), self.token_file.clone()]);
        words.extend(self.options.iter().cloned());
        words
    }

    /// The command line of a host's agent, which listens at this address.
    pub(crate) fn agent_words(&self, host: &LaunchHost, address: SocketAddr) -> Vec<String> {
        let program = host.program.as_ref().unwrap_or(&self.program);
        let token_file = host.token_file.as_ref().unwrap_or(&self.token_file);
        let mut words = vec![program.clone(), "agent".to_owned()];
        words.extend(["--listen".to_owned(), address.to_string()]);
        words.extend(["--token-file".to_owned(), token_file.clone()]);
        words.push("--end-with-input".to_owned());
        words.extend(self.agent_options.iter().chain(&host.options).cloned());
        words
    }
}

impl LaunchHost {
    /// Where `ssh` goes, and as whom.
    pub(crate) fn ssh_destination(&self) -> String {
        let place = self.ssh.clone();
        let place = place.unwrap_or_else(|| self.address.ip().to_string());
        match &self.user {
            Some(user) => format!("{user}@{place}"),
            None => place,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FILE: &str = r#"Launch(
        bundle: "model.zbmd",
        token_file: "cluster.token",
        options: ["-i", "in=in.f32"],
        agent_options: ["--plain-wires"],
        hosts: {
            "left": Host(address: "10.0.0.2:7000"),
            "right": Host(
                address: "10.0.0.3:0", ssh: "gateway", user: "radio", token_file: "/etc/it's the token",
                program: "/opt/zbmd-run", options: ["--voter", "2"],
            ),
        },
    )"#;

    #[test]
    fn a_file_says_what_is_started() {
        let launch = LaunchFile::parse(FILE).expect("a file");
        assert_eq!(
            launch.run_words().join(" "),
            "zbmd-run model.zbmd --host left=10.0.0.2:7000 --host right=10.0.0.3:0 --token-file cluster.token -i in=in.f32"
        );
        let (left, right) = (&launch.hosts["left"], &launch.hosts["right"]);
        assert_eq!(
            launch.agent_words(left, left.address).join(" "),
            "zbmd-run agent --listen 10.0.0.2:7000 --token-file cluster.token --end-with-input --plain-wires"
        );
        assert_eq!(left.ssh_destination(), "10.0.0.2");
        assert_eq!(
            launch.agent_words(right, right.address).join(" "),
            "/opt/zbmd-run agent --listen 10.0.0.3:0 --token-file /etc/it's the token --end-with-input --plain-wires --voter 2"
        );
        assert_eq!(right.ssh_destination(), "radio@gateway");
    }

    #[test]
    fn files_that_say_something_else_are_refused_with_the_place() {
        for (from, to, expected) in [
            (
                "bundle:",
                "bundel:",
                "line 2, column 9: Unexpected field named `bundel`",
            ),
            ("10.0.0.2:7000", "10.0.0.2", "line 7, column"),
            ("\"--voter\"", "\"a\\u{0}\"", "host `right`"),
            (
                "token_file: \"cluster.token\",",
                "",
                "missing field named `token_file`",
            ),
        ] {
            let text = FILE.replace(from, to);
            let error = LaunchFile::parse(&text).expect_err("refused");
            assert!(error.contains(expected), "{error}");
        }
        let empty = r#"Launch(bundle: "a", token_file: "b", hosts: {})"#;
        let error = LaunchFile::parse(empty).expect_err("refused");
        assert!(error.contains("`hosts` is empty"), "{error}");
    }
}
