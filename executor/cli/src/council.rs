//! The options that give a run, or an agent, its seat in a council.

use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use zbmd_executor::CouncilSeat;

use super::CliError;
use super::args::duration;

/// A seat in a council.
#[derive(Debug, clap::Args)]
pub(super) struct CouncilArgs {
    /// Vote in a council: where its three or five voters listen for each other, voter 1 first, the same everywhere. The run is
    /// one of them, agents are the others. A run conducts only as long as a majority answers it, and sinks give out only what a
    /// majority has on disk.
    #[arg(
        long,
        value_name = "ADDRESS:PORT,...",
        value_delimiter = ',',
        requires_all = ["voter", "council_folder"]
    )]
    council: Vec<SocketAddr>,
    /// Which voter of the council this is, from 1.
    #[arg(long, value_name = "NUMBER", requires = "council")]
    voter: Option<u64>,
    /// Where the voter keeps its votes and what was decided: a folder on a disk of its own, which is kept as long as the council
    /// is used.
    #[arg(long, value_name = "FOLDER", requires = "council")]
    council_folder: Option<PathBuf>,
    /// The voters that cannot conduct, the same everywhere; all but voter 1 if it is left out.
    #[arg(
        long,
        value_name = "NUMBER,...",
        value_delimiter = ',',
        requires = "council"
    )]
    witnesses: Option<Vec<u64>>,
    /// A run conducts for so long after a majority has answered it, the same everywhere. Shorter means a faster end of one that
    /// is cut off, and more false alarms.
    #[arg(long, value_name = "TIME", value_parser = duration, default_value = "200ms", requires = "council")]
    council_lease: Duration,
    /// Live sources whose tokens are not given to the voters that could take over: with the run's host their last ones are lost.
    /// Those of all others are, as they come.
    #[arg(
        long,
        value_name = "SOURCE,...",
        value_delimiter = ',',
        requires = "council"
    )]
    lossy: Vec<String>,
}

impl CouncilArgs {
    /// The seat, if there is one.
    ///
    /// # Errors
    /// A voter or a witness that the council does not have.
    pub(super) fn seat(&self) -> Result<Option<CouncilSeat>, CliError> {
        let (Some(own), Some(folder)) = (self.voter, &self.council_folder) else {
            return Ok(None);
        };
        let count = self.council.len() as u64;
        let witnesses = match &self.witnesses {
            Some(witnesses) => witnesses.clone(),
            None => (2..=count).collect(),
        };
        let mut named = std::iter::once((&own, "--voter"))
            .chain(witnesses.iter().map(|voter| (voter, "--witnesses")));
        if let Some((voter, option)) = named.find(|(voter, _)| !(1..=count).contains(*voter)) {
            return Err(CliError::Usage(format!(
                "{option} {voter}: --council has the voters 1 to {count}"
            )));
        }
        if !matches!(count, 3 | 5) {
            return Err(CliError::Usage(format!(
                "--council has {count} voters: give the addresses of 3 or 5"
            )));
        }
        Ok(Some(CouncilSeat {
            voters: self.council.clone(),
            own,
            witnesses,
            folder: folder.clone(),
            lease: self.council_lease,
            mirrored: BTreeSet::new(),
        }))
    }

    /// The sources that are mirrored, of those that could not be read again.
    ///
    /// # Errors
    /// A lossy one that is none of them.
    pub(super) fn mirrored(&self, live: &BTreeSet<String>) -> Result<BTreeSet<String>, CliError> {
        if let Some(name) = self.lossy.iter().find(|name| !live.contains(*name)) {
            let known: Vec<&str> = live.iter().map(String::as_str).collect();
            return Err(CliError::Usage(format!(
                "--lossy {name}: no live source has that name; there are: {}",
                match known.is_empty() {
                    true => "none".to_owned(),
                    false => known.join(", "),
                }
            )));
        }
        let mirrored = live.iter().filter(|name| !self.lossy.contains(name));
        Ok(mirrored.cloned().collect())
    }
}
