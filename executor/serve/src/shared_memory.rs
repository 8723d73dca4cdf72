//! Regions of POSIX shared memory that clients have registered, for tensors that are not sent in bodies.
//!
//! Regions are not mapped: whoever cuts a mapped file short kills its readers. They are read and written through a descriptor,
//! which fails with an error in such a case. A key is the name of an object in shared memory and never a path.

use std::collections::BTreeMap;
use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use rustix::fs::OFlags;

/// Where the system keeps objects of shared memory, as `shm_open` of its libraries does.
const FOLDER: &str = "/dev/shm";
/// Regions at once; each keeps a descriptor.
const MAX_REGIONS: usize = 256;
/// The longest name of a region.
const MAX_NAME_BYTES: usize = 128;
/// The longest key of a region: that of a file's name.
const MAX_KEY_BYTES: usize = 255;

/// Why a region cannot be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum RegionError {
    #[error(
        "shared memory is not allowed: start the server with --shared-memory, or send tensors in the body"
    )]
    Off,
    #[error("a region's name has 1 to {MAX_NAME_BYTES} bytes, `{name}` has {found}")]
    Name { name: String, found: usize },
    #[error(
        "the key `{key}` is not the name of an object in shared memory: write `/NAME`, without other slashes and not beginning with a dot"
    )]
    Key { key: String },
    #[error("there is no shared memory `{key}` that the server can read and write: {why}")]
    Open { key: String, why: String },
    #[error("region `{name}` would end at byte {end} of `{key}`, which has {size}")]
    Beyond {
        name: String,
        key: String,
        end: u128,
        size: u64,
    },
    #[error("region `{name}` is registered already: unregister it first")]
    Twice { name: String },
    #[error("{MAX_REGIONS} regions are registered, as many as are allowed: unregister one")]
    TooMany,
    #[error("there is no region `{name}`: register it first")]
    Unknown { name: String },
    #[error("bytes {offset} to {end} are not within region `{name}`, which has {size}")]
    Outside {
        name: String,
        offset: u64,
        end: u128,
        size: u64,
    },
    #[error("region `{name}`: {why}")]
    Io { name: String, why: String },
}

/// A part of an object in shared memory.
#[derive(Debug)]
pub(crate) struct Region {
    name: String,
    key: String,
    file: File,
    /// In the object.
    offset: u64,
    size: u64,
}

/// A region as its client asks for it, and as it is told of.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct RegionInfo {
    pub(crate) name: String,
    pub(crate) key: String,
    pub(crate) offset: u64,
    pub(crate) size: u64,
}

/// A part of a region, for one tensor.
#[derive(Clone, Debug)]
pub(crate) struct RegionPart {
    region: Arc<Region>,
    /// In the region.
    offset: u64,
    size: u64,
}

impl PartialEq for RegionPart {
    fn eq(&self, other: &Self) -> bool {
        let place = |part: &Self| (part.region.name.clone(), part.offset, part.size);
        place(self) == place(other)
    }
}

impl Region {
    fn open(info: RegionInfo) -> Result<Self, RegionError> {
        let RegionInfo {
            name,
            key,
            offset,
            size,
        } = info;
        let failed = |error: io::Error| RegionError::Open {
            key: key.clone(),
            why: error.to_string(),
        };
        let flags = OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
        let opened = OpenOptions::new()
            .read(true)
            .write(true)
            .custom_flags(flags.bits() as i32)
            .open(path_of(&key)?);
        let file = opened.map_err(failed)?;
        let about = file.metadata().map_err(failed)?;
        if !about.is_file() {
            return Err(failed(io::Error::other("it is not a file")));
        }
        let end = u128::from(offset) + u128::from(size);
        if end > u128::from(about.len()) {
            return Err(RegionError::Beyond {
                name,
                key,
                end,
                size: about.len(),
            });
        }
        Ok(Self {
            name,
            key,
            file,
            offset,
            size,
        })
    }

    fn info(&self) -> RegionInfo {
        RegionInfo {
            name: self.name.clone(),
            key: self.key.clone(),
            offset: self.offset,
            size: self.size,
        }
    }
}

/// The file of a key.
fn path_of(key: &str) -> Result<PathBuf, RegionError> {
    let name = key.strip_prefix('/').unwrap_or(key);
    let is_name = !name.is_empty() && !name.starts_with('.') && !name.contains(['/', '\0']);
    if !is_name || key.len() > MAX_KEY_BYTES {
        let key = key.chars().take(100).collect();
        return Err(RegionError::Key { key });
    }
    Ok(Path::new(FOLDER).join(name))
}

impl RegionPart {
    pub(crate) fn name(&self) -> &str {
        &self.region.name
    }

    fn failed(&self, why: String) -> RegionError {
        RegionError::Io {
            name: self.region.name.clone(),
            why,
        }
    }

    /// The bytes that are there now.
    ///
    /// # Errors
    /// The object has become too short, or cannot be read.
    pub(crate) fn read(&self) -> Result<Vec<u8>, RegionError> {
        let mut bytes = vec![0; self.size as usize];
        let start = self.region.offset + self.offset;
        let read = self.region.file.read_exact_at(&mut bytes, start);
        read.map_err(|error| match error.kind() {
            io::ErrorKind::UnexpectedEof => self.failed("its memory was cut short".to_owned()),
            _ => self.failed(error.to_string()),
        })?;
        Ok(bytes)
    }

    /// Writes a tensor, which is no longer than the part.
    ///
    /// # Errors
    /// The object has become too short, or cannot be written.
    pub(crate) fn write(&self, bytes: &[u8]) -> Result<(), RegionError> {
        let file = &self.region.file;
        let failed = |error: io::Error| self.failed(error.to_string());
        let start = self.region.offset + self.offset;
        // Writing beyond the end would make it longer.
        let length = file.metadata().map_err(failed)?.len();
        if start + bytes.len() as u64 > length {
            return Err(self.failed("its memory was cut short".to_owned()));
        }
        file.write_all_at(bytes, start).map_err(failed)
    }
}

/// The regions that are registered.
#[derive(Debug)]
pub(crate) struct Regions {
    is_allowed: bool,
    by_name: Mutex<BTreeMap<String, Arc<Region>>>,
}

impl Regions {
    pub(crate) const fn new(is_allowed: bool) -> Self {
        Self {
            is_allowed,
            by_name: Mutex::new(BTreeMap::new()),
        }
    }

    fn regions(&self) -> MutexGuard<'_, BTreeMap<String, Arc<Region>>> {
        self.by_name.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) const fn is_allowed(&self) -> bool {
        self.is_allowed
    }

    fn check_allowed(&self) -> Result<(), RegionError> {
        match self.is_allowed {
            true => Ok(()),
            false => Err(RegionError::Off),
        }
    }

    /// Registers a region.
    ///
    /// # Errors
    /// What is wrong with it.
    pub(crate) fn register(&self, info: RegionInfo) -> Result<(), RegionError> {
        self.check_allowed()?;
        let name = info.name.clone();
        if name.is_empty() || name.len() > MAX_NAME_BYTES {
            let found = name.len();
            let name = name.chars().take(40).collect();
            return Err(RegionError::Name { name, found });
        }
        let region = Region::open(info)?;

        let mut regions = self.regions();
        if regions.contains_key(&name) {
            return Err(RegionError::Twice { name });
        }
        if regions.len() >= MAX_REGIONS {
            return Err(RegionError::TooMany);
        }
        regions.insert(name, Arc::new(region));
        Ok(())
    }

    /// Forgets a region, or all; one that is not there is no error, as Triton has it. Requests that have it keep it.
    ///
    /// # Errors
    /// Shared memory is not allowed.
    pub(crate) fn unregister(&self, name: Option<&str>) -> Result<(), RegionError> {
        self.check_allowed()?;
        match name {
            Some(name) => drop(self.regions().remove(name)),
            None => self.regions().clear(),
        }
        Ok(())
    }

    /// One region, or all, by name.
    ///
    /// # Errors
    /// There is no such region.
    pub(crate) fn status(&self, name: Option<&str>) -> Result<Vec<RegionInfo>, RegionError> {
        let regions = self.regions();
        match name {
            Some(name) => {
                let region = regions.get(name).ok_or_else(|| unknown(name))?;
                Ok(vec![region.info()])
            }
            None => Ok(regions.values().map(|region| region.info()).collect()),
        }
    }

    /// A part of a region.
    ///
    /// # Errors
    /// There is no such region, or the part is not within it.
    pub(crate) fn part(
        &self,
        name: &str,
        offset: u64,
        size: u64,
    ) -> Result<RegionPart, RegionError> {
        self.check_allowed()?;
        let region = self.regions().get(name).cloned();
        let region = region.ok_or_else(|| unknown(name))?;
        let end = u128::from(offset) + u128::from(size);
        if end > u128::from(region.size) {
            return Err(RegionError::Outside {
                name: name.to_owned(),
                offset,
                end,
                size: region.size,
            });
        }
        Ok(RegionPart {
            region,
            offset,
            size,
        })
    }
}

fn unknown(name: &str) -> RegionError {
    let name = name.chars().take(100).collect();
    RegionError::Unknown { name }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// An object in shared memory that is gone in the end.
    struct Object(String);

    impl Object {
        fn new(test: &str, bytes: &[u8]) -> Self {
            let name = format!("zbmd-test-{}-{test}", std::process::id());
            let object = Self(name);
            std::fs::write(object.path(), bytes).expect("written");
            object
        }

        fn path(&self) -> PathBuf {
            Path::new(FOLDER).join(&self.0)
        }

        fn region(&self, name: &str, offset: u64, size: u64) -> RegionInfo {
            RegionInfo {
                name: name.to_owned(),
                key: format!("/{}", self.0),
                offset,
                size,
            }
        }
    }

    impl Drop for Object {
        fn drop(&mut self) {
            let _ = std::fs::remove_file(self.path());
        }
    }

    #[test]
    fn tensors_are_read_and_written_within_their_region() {
        let object = Object::new("parts", &[0, 1, 2, 3, 4, 5, 6, 7]);
        let regions = Regions::new(true);
        let info = object.region("r", 2, 4);
        regions.register(info.clone()).expect("it fits");
        assert_eq!(regions.status(Some("r")), Ok(vec![info]));
        let part = regions.part("r", 1, 3).expect("within it");
        assert_eq!(part.read(), Ok(vec![3, 4, 5]));
        part.write(&[13, 14]).expect("it fits");
        assert_eq!(
            std::fs::read(object.path()).expect("there"),
            [0, 1, 2, 13, 14, 5, 6, 7]
        );

        for (offset, size) in [(2, 3), (u64::MAX, 2), (0, u64::MAX)] {
            let refusal = regions.part("r", offset, size).expect_err("beyond it");
            assert!(matches!(refusal, RegionError::Outside { .. }), "{refusal}");
        }
        regions.unregister(Some("r")).expect("allowed");
        let refusal = regions.part("r", 0, 1).expect_err("it is gone");
        assert_eq!(
            refusal.to_string(),
            "there is no region `r`: register it first"
        );
        // What was begun is finished.
        assert_eq!(part.read(), Ok(vec![13, 14, 5]));
    }

    #[test]
    fn memory_that_is_cut_short_is_an_error_and_is_not_made_longer() {
        let object = Object::new("short", &[0; 8]);
        let regions = Regions::new(true);
        regions.register(object.region("r", 0, 8)).expect("it fits");
        let part = regions.part("r", 4, 4).expect("within it");
        let file = OpenOptions::new().write(true).open(object.path());
        file.expect("there").set_len(5).expect("cut");
        let expected = Err("region `r`: its memory was cut short".to_owned());
        assert_eq!(
            part.read().map_err(|error| error.to_string()),
            expected.clone()
        );
        let written = part.write(&[1; 4]).map_err(|error| error.to_string());
        assert_eq!(written.map(|()| Vec::new()), expected);
        assert_eq!(std::fs::metadata(object.path()).expect("there").len(), 5);
    }

    #[test]
    fn keys_are_names_and_not_paths() {
        let regions = Regions::new(true);
        for key in [
            "",
            "/",
            "//x",
            "/../etc/passwd",
            "..",
            "/.x",
            "a/b",
            "/a\0b",
        ] {
            let info = RegionInfo {
                name: "r".to_owned(),
                key: key.to_owned(),
                offset: 0,
                size: 1,
            };
            let refusal = regions.register(info).expect_err(key);
            assert!(matches!(refusal, RegionError::Key { .. }), "{refusal}");
        }

        // A link is not followed, wherever it leads.
        let link = Object::new("link", &[]);
        std::fs::remove_file(link.path()).expect("there");
        std::os::unix::fs::symlink("/etc/hostname", link.path()).expect("made");
        let refusal = regions
            .register(link.region("r", 0, 1))
            .expect_err("a link");
        assert!(matches!(refusal, RegionError::Open { .. }), "{refusal}");
    }

    #[test]
    fn regions_are_limited_and_named_once() {
        let object = Object::new("many", &[0; 8]);
        let regions = Regions::new(true);
        let beyond = regions
            .register(object.region("r", 4, 5))
            .expect_err("too long");
        assert!(beyond.to_string().contains("byte 9 of"), "{beyond}");
        for number in 0..MAX_REGIONS {
            let info = object.region(&number.to_string(), 0, 8);
            regions.register(info).expect("there is room");
        }
        let again = regions.register(object.region("0", 0, 8));
        assert!(matches!(again, Err(RegionError::Twice { .. })));
        let more = regions.register(object.region("more", 0, 8));
        assert_eq!(more, Err(RegionError::TooMany));
        regions.unregister(None).expect("allowed");
        assert_eq!(regions.status(None), Ok(Vec::new()));

        let off = Regions::new(false);
        assert_eq!(
            off.register(object.region("r", 0, 8)),
            Err(RegionError::Off)
        );
    }
}
