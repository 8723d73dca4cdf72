//! Cyclo-static graphs in the XML of SDF3, as benchmarks of other tools come in, and what these tools publish of them.
//!
//! `ZBMD_CSDF` names the folder of Kiter's benchmarks (github.com/bbodin/kiter, `benchmarks/`): nothing of it is kept here.
//! Source: Bodin, Munier Kordon & Dupont de Dinechin, "Optimal and Fast Throughput Evaluation of CSDF", DAC 2016.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use zbmd_ir::math::lcm;
use zbmd_ir::{ActorId, ChannelId, TiVec};
use zbmd_scheduler::throughput::{Period, ThroughputError, TimedSdf, analyse, analyse_bounded};

/// Periods that Kiter publishes: in its README, and in the rules of its own tests.
pub const PUBLISHED: [(&str, u64); 2] = [("IB5CSDF/BlackScholes", 42_053_349), ("sample", 23)];

/// A graph that was read.
#[derive(Debug)]
pub struct Instance {
    /// Rates, phases and times.
    pub sdf: TimedSdf,
    /// Channels by their names.
    pub channels: BTreeMap<String, ChannelId>,
    /// Phases of all actors.
    pub phases: usize,
}

/// The folder of benchmarks; `None`, with a line on stderr, where it is not named.
pub fn folder() -> Option<PathBuf> {
    let folder = std::env::var_os("ZBMD_CSDF").map(PathBuf::from);
    if folder.is_none() {
        eprintln!("SKIPPED: ZBMD_CSDF does not name the folder of Kiter's benchmarks");
    }
    folder
}

/// Reads `folder/name.xml`.
///
/// # Errors
/// What of it cannot be read.
pub fn read(folder: &Path, name: &str) -> Result<Instance, String> {
    let path = folder.join(format!("{name}.xml"));
    let text = std::fs::read_to_string(&path).map_err(|e| format!("{}: {e}", path.display()))?;
    instance(&text).map_err(|why| format!("{}: {why}", path.display()))
}

/// A tag with its attributes, such as `<port name="x" rate="1,2"/>`.
struct Tag<'t> {
    name: &'t str,
    attributes: BTreeMap<&'t str, &'t str>,
}

impl<'t> Tag<'t> {
    fn get(&self, attribute: &str) -> Result<&'t str, String> {
        let found = self.attributes.get(attribute).copied();
        found.ok_or_else(|| format!("a `{}` has no `{attribute}`", self.name))
    }
}

/// The opening tags of a text, in their order. Comments and declarations have names of their own and no meaning here.
fn tags(text: &str) -> Vec<Tag<'_>> {
    let mut tags = Vec::new();
    for part in text.split('<').skip(1) {
        let inside = part.split('>').next().unwrap_or("");
        let name = inside.split_whitespace().next().unwrap_or("");
        let name = name.trim_end_matches('/');
        let mut attributes = BTreeMap::new();
        let mut rest = &inside[name.len()..];
        while let Some((key, after)) = rest.split_once('=') {
            let after = after.trim_start();
            let quote = after.chars().next().filter(|c| matches!(c, '"' | '\''));
            let Some((value, behind)) = quote.and_then(|quote| after[1..].split_once(quote)) else {
                break;
            };
            attributes.insert(key.trim(), value);
            rest = behind;
        }
        tags.push(Tag { name, attributes });
    }
    tags
}

/// Numbers of phases: `1,3` or `2*1,4`, two of 1 and a 4.
fn numbers(list: &str) -> Result<Vec<u64>, String> {
    if list.contains(';') {
        return Err(format!("`{list}` has phases that are not repeated"));
    }
    let mut numbers = Vec::new();
    for item in list.split(',') {
        let (count, number) = item.split_once('*').unwrap_or(("1", item));
        let parse = |text: &str| text.trim().parse::<u64>().map_err(|_| format!("`{list}`"));
        for _ in 0..parse(count)? {
            numbers.push(parse(number)?);
        }
    }
    Ok(numbers)
}

/// The same phases as often as it takes to be so many.
fn repeated(list: &[u64], phases: usize) -> Vec<u64> {
    list.iter().copied().cycle().take(phases).collect()
}

/// What a file says of an actor.
#[derive(Default)]
struct Declared {
    times: Vec<u64>,
    /// Rates of its ports by their names.
    rates: BTreeMap<String, Vec<u64>>,
}

impl Declared {
    /// Phases of a firing: all lists begin again together.
    fn phases(&self) -> Result<usize, String> {
        let lists = self.rates.values().chain([&self.times]);
        let mut lengths = lists.map(|list| list.len().max(1) as u128);
        let phases = lengths.try_fold(1, lcm);
        let phases = phases.and_then(|phases| usize::try_from(phases).ok());
        phases.ok_or_else(|| "too many phases".to_owned())
    }
}

fn instance(text: &str) -> Result<Instance, String> {
    let tags = tags(text);
    let mut names = Vec::new();
    let mut declared: BTreeMap<&str, Declared> = BTreeMap::new();
    let mut present = "";
    for tag in &tags {
        match tag.name {
            "actor" => {
                present = tag.get("name")?;
                names.push(present);
                declared.entry(present).or_default();
            }
            "port" => {
                let rates = numbers(tag.get("rate")?)?;
                let actor = declared.entry(present).or_default();
                actor.rates.insert(tag.get("name")?.to_owned(), rates);
            }
            "actorProperties" => present = tag.get("actor")?,
            "executionTime" => {
                declared.entry(present).or_default().times = numbers(tag.get("time")?)?;
            }
            _ => {}
        }
    }

    let mut made = Instance {
        sdf: TimedSdf::default(),
        channels: BTreeMap::new(),
        phases: 0,
    };
    let mut ids: BTreeMap<&str, (ActorId, usize)> = BTreeMap::new();
    for name in names {
        let actor = &declared[name];
        let phases = actor.phases()?;
        let times = repeated(&actor.times, phases);
        let id = made.sdf.add_actor(name, times.iter().sum());
        made.sdf.set_phase_times(id, times);
        made.phases += phases;
        ids.insert(name, (id, phases));
    }
    for tag in tags.iter().filter(|tag| tag.name == "channel") {
        add_channel(&mut made, tag, &declared, &ids).map_err(|why| format!("a channel: {why}"))?;
    }
    Ok(made)
}

fn add_channel(
    made: &mut Instance,
    tag: &Tag<'_>,
    declared: &BTreeMap<&str, Declared>,
    ids: &BTreeMap<&str, (ActorId, usize)>,
) -> Result<(), String> {
    let end = |actor: &str, port: &str| -> Result<(ActorId, Vec<u64>), String> {
        let (actor, port) = (tag.get(actor)?, tag.get(port)?);
        let &(id, phases) = ids
            .get(actor)
            .ok_or_else(|| format!("no actor `{actor}`"))?;
        let rates = declared[actor].rates.get(port);
        let rates = rates.ok_or_else(|| format!("no port `{port}` of `{actor}`"))?;
        Ok((id, repeated(rates, phases)))
    };
    let (from, written) = end("srcActor", "srcPort")?;
    let (to, read) = end("dstActor", "dstPort")?;
    let initial = tag
        .attributes
        .get("initialTokens")
        .map_or(Ok(0), |n| n.parse());
    let initial: u64 = initial.map_err(|_| "initial tokens that are no number".to_owned())?;

    // A token that each phase takes and gives back says how many phases may run at once: one actor's own business.
    if from == to
        && [&written, &read]
            .iter()
            .all(|rates| rates.iter().all(|rate| *rate == 1))
    {
        made.sdf.actors[from].at_once = Some(initial);
        return Ok(());
    }
    let (produce, consume) = (written.iter().sum(), read.iter().sum());
    let id = made.sdf.add_channel(from, produce, to, consume, initial);
    if written.len() > 1 {
        let set = made.sdf.set_written_phases(id, written);
        set.map_err(|error| error.to_string())?;
    }
    if read.len() > 1 {
        let set = made.sdf.set_read_phases(id, 0, read);
        set.map_err(|error| error.to_string())?;
    }
    made.channels.insert(tag.get("name")?.to_owned(), id);
    Ok(())
}

/// The exact shortest period of an instance.
///
/// # Panics
/// If it has none.
pub fn period(instance: &Instance) -> Period {
    let found = analyse(&instance.sdf);
    found.expect("it runs").period
}

/// The exact shortest period with buffers of these sizes, by channel; `None` where they make it stop.
///
/// # Panics
/// If the graph has no period for another reason.
pub fn bounded_period(instance: &Instance, sizes: &[(&str, u64)]) -> Option<Period> {
    let channels = instance.sdf.channels.keys();
    let mut capacities: TiVec<ChannelId, u64> = channels.map(|_| u64::MAX).collect();
    for (name, size) in sizes {
        capacities[instance.channels[*name]] = *size;
    }
    match analyse_bounded(&instance.sdf, &capacities) {
        Ok(found) => Some(found.period),
        Err(ThroughputError::Deadlock { .. }) => None,
        Err(error) => panic!("{error}"),
    }
}
