//! What was measured earlier: one file for each kind of device and driver. Never trusted, never needed.

use std::collections::BTreeMap;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use xxhash_rust::xxh3::xxh3_64;

use crate::codes::Code;
use crate::costs::{CostKey, MeasuredCost};
use crate::diag::{Diagnostic, Sink};
use crate::files::{self, ReadError};
use crate::write::write_whole;

/// Changes with the meaning of the entries.
const FORMAT: u32 = 3;
/// Largest file that is read.
const MAX_BYTES: u64 = 64 << 20;

/// The code whose kernels were measured: of this version, with kernels of this code, built with this profile.
fn driver(kernel_code: &str) -> String {
    let profile = if cfg!(debug_assertions) {
        "debug"
    } else {
        "release"
    };
    let version = env!("CARGO_PKG_VERSION");
    format!("zbmd {version} {kernel_code} {profile}")
}

#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct CacheFile {
    format: u32,
    device: String,
    driver: String,
    costs: BTreeMap<String, CacheEntry>,
}

#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct CacheEntry {
    op: String,
    ports: String,
    call_ps: u64,
    firing_ps: u64,
    spread: f64,
    samples: u32,
}

/// A kernel's key, and its variant, `None` for the default one.
type VariantKey = (CostKey, Option<String>);

type CostsByVariant = BTreeMap<VariantKey, MeasuredCost>;

/// The costs of one kind of device.
pub(crate) struct Cache {
    /// `None` where nothing is to be written.
    path: Option<PathBuf>,
    device: String,
    driver: String,
    costs: CostsByVariant,
    changed: bool,
}

impl Cache {
    /// The cache of a kind of device and of kernels of this code in a folder; empty where there is none, or with a warning where it is
    /// damaged.
    pub(crate) fn open(
        folder: Option<&Path>,
        (device, kernel_code): (&str, &str),
        sink: &mut Sink,
    ) -> Self {
        let mut cache = Self {
            path: None,
            device: device.to_owned(),
            driver: driver(kernel_code),
            costs: BTreeMap::new(),
            changed: false,
        };

        let Some(folder) = folder else { return cache };

        // One file for each kind of device and build: neither can take the costs of another for its own.
        let identity = format!("{device}\n{}", cache.driver);
        let file_name = format!("costs-{:016x}.ron", xxh3_64(identity.as_bytes()));
        let file_path = folder.join(file_name);
        let file_bytes = match read_limited(&file_path) {
            Ok(file_bytes) => file_bytes,
            Err(error) if error.kind() == ErrorKind::NotFound => {
                cache.path = Some(file_path);
                return cache;
            }
            // Nothing is written over a file that cannot be read.
            Err(error) => {
                warn(&file_path, &format!("cannot be read: {error}"), sink);
                return cache;
            }
        };

        match parse(&file_bytes, device, &cache.driver) {
            Ok(costs) => cache.costs = costs,
            Err(problem) => {
                warn(&file_path, &problem, sink);
                // A damaged file is replaced even if nothing new is measured.
                cache.changed = true;
            }
        }

        cache.path = Some(file_path);
        cache
    }

    /// What was measured earlier of a variant, `None` being the default one.
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
        let mut costs = BTreeMap::new();
        for (key, cost) in self.costs {
            costs.insert(entry_name(&key), CacheEntry::from(cost));
        }
        let file = CacheFile {
            format: FORMAT,
            device: self.device,
            driver: self.driver,
            costs,
        };

        if let Err(error) = write(&file, &path) {
            warn(&path, &format!("cannot be written: {error}"), sink);
        }
    }
}

/// The key, and the variant if it is not the default one.
fn entry_name((key, variant): &VariantKey) -> String {
    match variant {
        None => key.to_string(),
        Some(variant) => format!("{key} {variant}"),
    }
}

/// Reads back what [`entry_name`] writes.
fn parse_entry_name(name: &str) -> Option<VariantKey> {
    let (key, variant) = match name.split_once(' ') {
        Some((key, variant)) => (key, Some(variant.to_owned())),
        None => (name, None),
    };
    Some((CostKey::parse(key)?, variant))
}

fn warn(path: &Path, problem: &str, sink: &mut Sink) {
    let message = format!("the cache `{}` {problem}", path.display());
    sink.push(Diagnostic::new(Code::W0701, message).help("name another folder with `--cache`"));
}

fn read_limited(path: &Path) -> std::io::Result<Vec<u8>> {
    files::read(path, MAX_BYTES).map_err(|error| match error {
        ReadError::Io(error) => error,
        refused => std::io::Error::new(ErrorKind::InvalidData, refused.to_string()),
    })
}

fn write(file: &CacheFile, path: &Path) -> std::io::Result<()> {
    let config = ron::ser::PrettyConfig::new().depth_limit(2);
    let text = ron::ser::to_string_pretty(file, config).map_err(std::io::Error::other)?;
    if let Some(folder) = path.parent() {
        std::fs::create_dir_all(folder)?;
    }
    write_whole(path, &(text + "\n"))
}

/// The costs of a cache file, or what is wrong with it.
fn parse(bytes: &[u8], device: &str, driver: &str) -> Result<CostsByVariant, String> {
    let file: CacheFile = ron::de::from_bytes(bytes)
        .map_err(|error| format!("is damaged and is written anew: {error}"))?;
    let is_foreign = file.format != FORMAT || file.device != device || file.driver != driver;

    // The name of the file is a hash of the same: two may have the same one.
    if is_foreign {
        return Err("is of another processor or version and is written anew".to_owned());
    }

    let mut costs = BTreeMap::new();
    for (name, entry) in file.costs {
        let impossible = format!("has an impossible entry `{name}` and is written anew");
        let Some(key) = parse_entry_name(&name) else {
            return Err(impossible);
        };

        // The variant is in the name of the entry, not in the entry.
        let cost = MeasuredCost {
            variant: key.1.clone(),
            ..entry.into()
        };
        if !cost.is_sane() {
            return Err(impossible);
        }
        costs.insert(key, cost);
    }

    Ok(costs)
}

impl From<CacheEntry> for MeasuredCost {
    fn from(entry: CacheEntry) -> Self {
        Self {
            op: entry.op,
            ports: entry.ports,
            call_ps: entry.call_ps,
            firing_ps: entry.firing_ps,
            spread_percent: entry.spread,
            samples: entry.samples,
            variant: None,
        }
    }
}

impl From<MeasuredCost> for CacheEntry {
    fn from(cost: MeasuredCost) -> Self {
        Self {
            op: cost.op,
            ports: cost.ports,
            call_ps: cost.call_ps,
            firing_ps: cost.firing_ps,
            spread: cost.spread_percent,
            samples: cost.samples,
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
        let mut cache = Cache::open(Some(&folder), ("fast", "a1"), &mut sink);
        assert_eq!(cache.get(CostKey(1), None), None);
        cache.insert(CostKey(1), cost(10));
        let wide = MeasuredCost {
            variant: Some("6x64".into()),
            ..cost(8)
        };
        cache.insert(CostKey(1), wide.clone());
        cache.close(&mut sink);
        file(&folder);
        let again = Cache::open(Some(&folder), ("fast", "a1"), &mut sink);
        assert_eq!(again.get(CostKey(1), None), Some(&cost(10)));
        assert_eq!(again.get(CostKey(1), Some("6x64")), Some(&wide));
        assert_eq!(again.get(CostKey(1), Some("4x96")), None, "another variant");
        let other = Cache::open(Some(&folder), ("slow", "a1"), &mut sink);
        assert_eq!(other.get(CostKey(1), None), None, "another kind of device");
        let changed = Cache::open(Some(&folder), ("fast", "a2"), &mut sink);
        assert_eq!(changed.get(CostKey(1), None), None, "changed kernels");
        assert!(warnings(&sink).is_empty());
    }

    #[test]
    fn damaged_files_are_replaced() {
        let dir = tempfile::tempdir().expect("a folder");
        let mut sink = Sink::default();
        let mut cache = Cache::open(Some(dir.path()), ("fast", "a1"), &mut sink);
        cache.insert(CostKey(1), cost(10));
        cache.close(&mut sink);
        let path = file(dir.path());
        let fine = std::fs::read_to_string(&path).expect("a cache");
        let cases: &[(String, &str)] = &[
            (String::new(), "is damaged"),
            (fine[..fine.len() / 2].to_owned(), "is damaged"),
            (fine.replace("call_ps", "call"), "is damaged"),
            (
                fine.replace("format: 3", "format: 4"),
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
            let cache = Cache::open(Some(dir.path()), ("fast", "a1"), &mut sink);
            assert_eq!(cache.get(CostKey(1), None), None, "{text}");
            let said = warnings(&sink);
            assert!(
                said.len() == 1 && said[0].contains(expect),
                "{text}: {said:?}"
            );

            cache.close(&mut sink);
            assert_eq!(warnings(&sink).len(), 1);
            let mut sink = Sink::default();
            Cache::open(Some(dir.path()), ("fast", "a1"), &mut sink);
            assert!(warnings(&sink).is_empty(), "written anew");
        }
    }

    #[test]
    fn a_cache_that_cannot_be_is_done_without() {
        let dir = tempfile::tempdir().expect("a folder");
        let no_folder = dir.path().join("file");
        std::fs::write(&no_folder, "text").expect("a file");
        let mut sink = Sink::default();
        let mut cache = Cache::open(Some(&no_folder), ("fast", "a1"), &mut sink);
        cache.insert(CostKey(1), cost(10));
        assert_eq!(cache.get(CostKey(1), None), Some(&cost(10)));
        cache.close(&mut sink);
        assert_eq!(warnings(&sink).len(), 1, "{:?}", warnings(&sink));
        assert_eq!(std::fs::read_to_string(&no_folder).expect("a file"), "text");
    }
}
