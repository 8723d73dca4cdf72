//! What was measured earlier: one file for each kind of device and driver. Never trusted, never needed.

use std::collections::BTreeMap;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use xxhash_rust::xxh3::xxh3_64;

use crate::codes::Code;
use crate::costs::{CostKey, MeasuredCost};
use crate::diag::{Diagnostic, Sink};

use crate::write::write_whole;

/// Changes with what the entries mean.
const FORMAT: u32 = 2;
/// Largest file that is read.
const MAX_BYTES: u64 = 64 << 20;

/// The code whose kernels were measured. Its version does not change with every build, its speed does most with the
/// profile.
fn driver() -> String {
    let profile = if cfg!(debug_assertions) {
        "debug"
    } else {
        "release"
    };
    format!("zbmd {} {profile}", env!("CARGO_PKG_VERSION"))
}

#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    format: u32,
    device: String,
    driver: String,
    costs: BTreeMap<String, Entry>,
}

#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Entry {
    op: String,
    ports: String,
    call_ps: u64,
    firing_ps: u64,
    spread: f64,
    samples: u32,
}

/// Costs by key and variant, the default one being none.
type Costs = BTreeMap<(CostKey, Option<String>), MeasuredCost>;

/// The costs of one kind of device.
pub(crate) struct Cache {
    /// `None` where nothing shall be written.
    path: Option<PathBuf>,
    device: String,
    costs: Costs,
    changed: bool,
}

impl Cache {
    /// The cache of a kind of device in a folder; empty where there is none, or with a warning where it is damaged.
    pub(crate) fn open(folder: Option<&Path>, device: &str, sink: &mut Sink) -> Self {
        let mut cache = Self {
            path: None,
            device: device.to_owned(),
            costs: BTreeMap::new(),
            changed: false,
        };
        let Some(folder) = folder else { return cache };
        let name = format!(
            "costs-{:016x}.ron",
            xxh3_64(format!("{device}\n{}", driver()).as_bytes())
        );
        let path = folder.join(name);
        let bytes = match read(&path) {
            Ok(bytes) => bytes,
            Err(error) if error.kind() == ErrorKind::NotFound => {
                cache.path = Some(path);
                return cache;
            }
            Err(error) => {
                warn(&path, &format!("cannot be read: {error}"), sink);
                return cache;
            }
        };
        match parse(&bytes, device) {
            Ok(costs) => cache.costs = costs,
            Err(what) => {
                warn(&path, &what, sink);
                cache.changed = true;
            }
        }
        cache.path = Some(path);
        cache
    }

    /// What was measured earlier of a variant, the default one without a name.
    pub(crate) fn get(&self, key: CostKey, variant: Option<&str>) -> Option<&MeasuredCost> {
        self.costs.get(&(key, variant.map(str::to_owned)))
    }

    /// Keeps the cost of its variant.
    pub(crate) fn insert(&mut self, key: CostKey, cost: MeasuredCost) {
        self.costs.insert((key, cost.variant.clone()), cost);
        self.changed = true;
    }

    /// Writes what is new; a warning where that fails.
    pub(crate) fn close(self, sink: &mut Sink) {
        let Some(path) = self.path.filter(|_| self.changed) else {
            return;
        };
        let name = |(key, variant): (CostKey, Option<String>)| match variant {
            None => key.to_string(),
            Some(variant) => format!("{key} {variant}"),
        };
        let costs = self
            .costs
            .into_iter()
            .map(|(key, cost)| (name(key), cost.into()));
        let file = File {
            format: FORMAT,
            device: self.device,
            driver: driver(),
            costs: costs.collect(),
        };
        let written =
            ron::ser::to_string_pretty(&file, ron::ser::PrettyConfig::new().depth_limit(2))
                .map_err(std::io::Error::other)
                .and_then(|text| {
                    path.parent().map_or(Ok(()), std::fs::create_dir_all)?;
                    write_whole(&path, &(text + "\n"))
                });
        if let Err(error) = written {
            warn(&path, &format!("cannot be written: {error}"), sink);
        }
    }
}

fn warn(path: &Path, what: &str, sink: &mut Sink) {
    let message = format!("the cache `{}` {what}", path.display());
    sink.push(Diagnostic::new(Code::W0701, message).help("name another folder with `--cache`"));
}

fn read(path: &Path) -> std::io::Result<Vec<u8>> {
    let bytes = std::fs::metadata(path)?.len();
    if bytes > MAX_BYTES {
        let what = format!("it has {bytes} bytes, more than the limit of {MAX_BYTES}");
        return Err(std::io::Error::new(ErrorKind::InvalidData, what));
    }
    std::fs::read(path)
}

/// The costs of a cache file, or what is wrong with it.
fn parse(bytes: &[u8], device: &str) -> Result<Costs, String> {
    let file: File =
        ron::de::from_bytes(bytes).map_err(|e| format!("is damaged and is written anew: {e}"))?;
    let foreign = file.format != FORMAT || file.device != device || file.driver != driver();
    if foreign {
        return Err("is of another processor or version and is written anew".to_owned());
    }
    let entries = file.costs.into_iter().map(|(name, entry)| {
        let (key, variant) = match name.split_once(' ') {
            Some((key, variant)) => (key, Some(variant.to_owned())),
            None => (name.as_str(), None),
        };
        let cost = MeasuredCost {
            variant: variant.clone(),
            ..entry.into()
        };
        CostKey::parse(key)
            .filter(|_| cost.is_sane())
            .map(|key| ((key, variant), cost))
            .ok_or(name)
    });
    let checked: Result<_, String> = entries.collect();
    checked.map_err(|key| format!("has an impossible entry `{key}` and is written anew"))
}

impl From<Entry> for MeasuredCost {
    fn from(e: Entry) -> Self {
        let (call_ps, firing_ps, samples) = (e.call_ps, e.firing_ps, e.samples);
        let (op, ports, spread_percent) = (e.op, e.ports, e.spread);
        Self {
            op,
            ports,
            call_ps,
            firing_ps,
            spread_percent,
            samples,
            variant: None,
        }
    }
}

impl From<MeasuredCost> for Entry {
    fn from(c: MeasuredCost) -> Self {
        let (call_ps, firing_ps, samples) = (c.call_ps, c.firing_ps, c.samples);
        Self {
            op: c.op,
            ports: c.ports,
            call_ps,
            firing_ps,
            spread: c.spread_percent,
            samples,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cost(firing_ps: u64) -> MeasuredCost {
        MeasuredCost {
            op: "Gain".into(),
            ports: "f32 1 -> f32 1".into(),
            call_ps: 5000,
            firing_ps,
            spread_percent: 0.5,
            samples: 7,
            variant: None,
        }
    }

    fn warnings(sink: &Sink) -> Vec<String> {
        sink.iter().map(|d| d.message.clone()).collect()
    }

    /// The one file in a folder.
    fn file(folder: &Path) -> PathBuf {
        let mut files: Vec<PathBuf> = std::fs::read_dir(folder)
            .expect("a folder")
            .flatten()
            .map(|f| f.path())
            .collect();
        assert_eq!(files.len(), 1, "one file, no temporary ones: {files:?}");
        files.remove(0)
    }

    #[test]
    fn kept_by_device() {
        let dir = tempfile::tempdir().expect("a folder");
        let folder = dir.path().join("not/yet/there");
        let mut sink = Sink::default();
        let mut cache = Cache::open(Some(&folder), "fast", &mut sink);
        assert_eq!(cache.get(CostKey(1), None), None);
        cache.insert(CostKey(1), cost(10));
        let wide = MeasuredCost {
            variant: Some("6x64".into()),
            ..cost(8)
        };
        cache.insert(CostKey(1), wide.clone());
        cache.close(&mut sink);
        file(&folder);
        let again = Cache::open(Some(&folder), "fast", &mut sink);
        assert_eq!(again.get(CostKey(1), None), Some(&cost(10)));
        assert_eq!(again.get(CostKey(1), Some("6x64")), Some(&wide));
        assert_eq!(again.get(CostKey(1), Some("4x96")), None, "another variant");
        let other = Cache::open(Some(&folder), "slow", &mut sink);
        assert_eq!(other.get(CostKey(1), None), None, "another kind of device");
        assert!(warnings(&sink).is_empty());
    }

    #[test]
    fn damaged_files_are_replaced() {
        let dir = tempfile::tempdir().expect("a folder");
        let mut sink = Sink::default();
        let mut cache = Cache::open(Some(dir.path()), "fast", &mut sink);
        cache.insert(CostKey(1), cost(10));
        cache.close(&mut sink);
        let path = file(dir.path());
        let fine = std::fs::read_to_string(&path).expect("a cache");
        let cases: &[(String, &str)] = &[
            (String::new(), "is damaged"),
            (fine[..fine.len() / 2].to_owned(), "is damaged"),
            (fine.replace("call_ps", "call"), "is damaged"),
            (
                fine.replace("format: 2", "format: 3"),
                "another processor or version",
            ),
            (
                fine.replace("\"fast\"", "\"slow\""),
                "another processor or version",
            ),
            (
                fine.replace("zbmd ", "zbmd 9"),
                "another processor or version",
            ),
            (
                fine.replace("firing_ps: 10", "firing_ps: 18446744073709551615"),
                "impossible entry",
            ),
            (
                fine.replace("spread: 0.5", "spread: NaN"),
                "impossible entry",
            ),
            (fine.replace("0001\"", "000x\""), "impossible entry"),
            (fine.replace("0001\"", "0001 6 x 64\""), "impossible entry"),
        ];
        for (text, expect) in cases {
            assert_ne!(text, &fine, "{expect}");
            std::fs::write(&path, text).expect("a file");
            let mut sink = Sink::default();
            let cache = Cache::open(Some(dir.path()), "fast", &mut sink);
            assert_eq!(cache.get(CostKey(1), None), None, "{text}");
            let said = warnings(&sink);
            assert!(
                said.len() == 1 && said[0].contains(expect),
                "{text}: {said:?}"
            );
            cache.close(&mut sink);
            assert_eq!(warnings(&sink).len(), 1);
            let mut sink = Sink::default();
            Cache::open(Some(dir.path()), "fast", &mut sink);
            assert!(warnings(&sink).is_empty(), "written anew");
        }
    }

    #[test]
    fn a_cache_that_cannot_be_is_done_without() {
        let dir = tempfile::tempdir().expect("a folder");
        let no_folder = dir.path().join("file");
        std::fs::write(&no_folder, "text").expect("a file");
        let mut sink = Sink::default();
        let mut cache = Cache::open(Some(&no_folder), "fast", &mut sink);
        cache.insert(CostKey(1), cost(10));
        assert_eq!(cache.get(CostKey(1), None), Some(&cost(10)));
        cache.close(&mut sink);
        assert_eq!(warnings(&sink).len(), 1, "{:?}", warnings(&sink));
        assert_eq!(std::fs::read_to_string(&no_folder).expect("a file"), "text");
    }
}
