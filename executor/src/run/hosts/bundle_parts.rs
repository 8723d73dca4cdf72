//! A bundle on its way to an agent: in parts, each with a checksum, so that what has come once is not sent again after a cut, and
//! what is not right is known before the rest has come.
//!
//! The run sends it to one agent, which passes each part on to the next one as soon as it is there, and so on. All agents have the
//! checksums from the run: none has to trust another. Whatever does not come by this way comes from the run.

use std::fs::File;
use std::io::{self, Read, Write};
use std::net::SocketAddr;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::mpsc::{self, Receiver};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use rustix::fs::{MemfdFlags, memfd_create};
use serde::{Deserialize, Serialize};
use xxhash_rust::xxh3::{Xxh3, xxh3_128};
use zbmd_ir::bundle::Image;
use zbmd_wire::connection::{Credentials, SharedConnection};
use zbmd_wire::error::{HandshakeError, Refusal};
use zbmd_wire::handshake::{Accepted, Hello, Purpose, dial};
use zbmd_wire::{Deadline, connect_by};

use super::message;
use crate::program::LoadedModes;
use crate::transport::switchboard::Callers;

/// Bytes of a part; the last one may be shorter.
const PART_BYTES: u64 = 1 << 20;
/// Longest bundle.
const MAX_BUNDLE_BYTES: u64 = 16 << 30;

/// The parts of a bundle.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct BundleParts {
    /// Of the whole.
    bytes: u64,
    /// The checksum of each part.
    sums: Vec<u128>,
}

impl BundleParts {
    /// The parts of a file.
    ///
    /// # Errors
    /// It cannot be read.
    pub(super) fn of(file: &File) -> io::Result<Self> {
        let mut parts = Self {
            bytes: file.metadata()?.len(),
            sums: Vec::new(),
        };
        let mut part = Vec::new();
        for number in 0..parts.bytes.div_ceil(PART_BYTES) {
            part.resize(parts.part_bytes(number), 0);
            file.read_exact_at(&mut part, number * PART_BYTES)?;
            parts.sums.push(xxh3_128(&part));
        }
        Ok(parts)
    }

    pub(super) fn count(&self) -> u64 {
        self.sums.len() as u64
    }

    /// Tells bundles apart: a checksum over those of the parts.
    pub(super) fn number(&self) -> u64 {
        let mut sum = Xxh3::new();
        for part in &self.sums {
            sum.update(&part.to_le_bytes());
        }
        sum.digest()
    }

    /// Bytes of a part.
    fn part_bytes(&self, number: u64) -> usize {
        (self.bytes - number * PART_BYTES).min(PART_BYTES) as usize
    }

    /// Whether there can be such a bundle.
    fn check(&self) -> Result<(), String> {
        if self.bytes > MAX_BUNDLE_BYTES {
            return Err(format!(
                "a bundle of {} bytes, {MAX_BUNDLE_BYTES} are the most",
                self.bytes
            ));
        }
        let expected = self.bytes.div_ceil(PART_BYTES);
        if self.count() != expected {
            return Err(format!(
                "a bundle of {} bytes in {} parts, it has {expected}: both hosts must run the same zbmd",
                self.bytes,
                self.count()
            ));
        }
        Ok(())
    }

    /// Sends the parts from one on.
    ///
    /// # Errors
    /// The file cannot be read, or the other side is gone.
    pub(super) fn send(&self, file: &File, first: u64, mut to: impl Write) -> io::Result<()> {
        let mut part = Vec::new();
        for number in first..self.count() {
            part.resize(self.part_bytes(number), 0);
            file.read_exact_at(&mut part, number * PART_BYTES)?;
            to.write_all(&part)?;
        }
        to.flush()
    }
}

/// The bundle of a run, from which agents get what nobody else gives them.
pub(crate) struct RunBundle {
    image: Image,
    parts: BundleParts,
    /// Of its parts; each epoch begins with it.
    number: u64,
}

impl RunBundle {
    /// Of a program.
    ///
    /// # Errors
    /// There is no memory for it.
    pub(crate) fn of(modes: &LoadedModes) -> io::Result<Self> {
        let image = zbmd_ir::bundle::image_of_modes(modes.verified())?;
        let parts = BundleParts::of(image.file())?;
        let number = parts.number();
        Ok(Self {
            image,
            parts,
            number,
        })
    }

    pub(super) fn parts(&self) -> &BundleParts {
        &self.parts
    }

    pub(super) fn number(&self) -> u64 {
        self.number
    }

    /// Sends the parts from one on.
    ///
    /// # Errors
    /// The other side is gone.
    pub(super) fn send(&self, first: u64, to: impl Write) -> io::Result<()> {
        self.parts.send(self.image.file(), first, to)
    }

    /// All of it, to be passed on.
    pub(super) fn hold(&self) -> Arc<HeldBundle> {
        let (parts, count) = (self.parts.clone(), self.parts.count());
        HeldBundle::with_first(parts, self.image.share_file(), count, false)
    }
}

/// As much of a bundle as has come: in memory, or in a folder, where it is found again by an agent that is started anew. One
/// thread adds to it, others pass on what there is.
pub(super) struct HeldBundle {
    parts: BundleParts,
    file: Arc<File>,
    /// The file is in a folder.
    is_on_disk: bool,
    progress: Mutex<HeldParts>,
    changed: Condvar,
}

#[derive(Default)]
struct HeldParts {
    /// So many parts from the first one on are there, and are right.
    count: u64,
    /// No more will come for now.
    is_given_up: bool,
}

impl HeldBundle {
    /// Of a bundle with these parts, what is in the folder, if one is given, else nothing; `before` if that is of the same bundle.
    /// Other bundles in the folder are removed.
    ///
    /// # Errors
    /// There can be no such bundle, or there is no room for it.
    pub(super) fn of(
        parts: BundleParts,
        before: Option<Arc<Self>>,
        folder: Option<&Path>,
    ) -> Result<Arc<Self>, String> {
        parts.check()?;
        if let Some(before) = before.filter(|before| before.parts == parts) {
            before.progress().is_given_up = false;
            return Ok(before);
        }
        let (file, count) = match folder {
            Some(folder) => open_in(folder, &parts)
                .map_err(|error| format!("the bundle in {}: {error}", folder.display()))?,
            None => {
                let file = memfd_create("zbmd bundle", MemfdFlags::CLOEXEC);
                let file = file.map_err(|error| format!("no memory for the bundle: {error}"))?;
                (File::from(file), 0)
            }
        };
        let is_on_disk = folder.is_some();
        Ok(Self::with_first(parts, Arc::new(file), count, is_on_disk))
    }

    /// With so many of the first parts in the file.
    fn with_first(parts: BundleParts, file: Arc<File>, count: u64, is_on_disk: bool) -> Arc<Self> {
        Arc::new(Self {
            parts,
            file,
            is_on_disk,
            progress: Mutex::new(HeldParts {
                count,
                is_given_up: false,
            }),
            changed: Condvar::new(),
        })
    }

    fn progress(&self) -> MutexGuard<'_, HeldParts> {
        self.progress.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The first part that is not there.
    pub(super) fn first_missing(&self) -> u64 {
        self.progress().count
    }

    /// Of the whole bundle.
    pub(super) fn count(&self) -> u64 {
        self.parts.count()
    }

    /// Takes the parts that are missing, in order; `tell` is given how many there are after each. What has come before an error
    /// is kept.
    ///
    /// # Errors
    /// They end early, one is not right, or there is no room.
    pub(super) fn receive(
        &self,
        mut from: impl Read,
        mut tell: impl FnMut(u64),
    ) -> Result<(), String> {
        let (bytes, count) = (self.parts.bytes, self.parts.count());
        let mut part = Vec::new();
        for number in self.first_missing()..count {
            part.resize(self.parts.part_bytes(number), 0);
            from.read_exact(&mut part).map_err(|error| {
                format!("the bundle ends after {number} of its {count} parts: {error}")
            })?;

            let (found, sent) = (xxh3_128(&part), self.parts.sums[number as usize]);
            if found != sent {
                return Err(format!(
                    "part {number} of the bundle's {count} has checksum {found:032x}, it was sent with {sent:032x}: the network or a memory changes bytes"
                ));
            }
            let written = self.file.write_all_at(&part, number * PART_BYTES);
            written.map_err(|error| format!("no room for the bundle's {bytes} bytes: {error}"))?;
            self.progress().count = number + 1;
            self.changed.notify_all();
            tell(number + 1);
        }
        Ok(())
    }

    /// Passes on the parts from one on, each as soon as it is there.
    ///
    /// # Errors
    /// No more will come, the file cannot be read, or the other side is gone.
    pub(super) fn pass_on(&self, first: u64, mut to: impl Write) -> io::Result<()> {
        let mut part = Vec::new();
        for number in first..self.parts.count() {
            let waits = |held: &mut HeldParts| held.count <= number && !held.is_given_up;
            let held = self.changed.wait_while(self.progress(), waits);
            let is_there = held.unwrap_or_else(PoisonError::into_inner).count > number;
            if !is_there {
                return Err(io::Error::other("the bundle does not come"));
            }
            part.resize(self.parts.part_bytes(number), 0);
            self.file.read_exact_at(&mut part, number * PART_BYTES)?;
            to.write_all(&part)?;
        }
        to.flush()
    }

    /// No more will come for now: nobody waits for it.
    pub(super) fn give_up(&self) {
        self.progress().is_given_up = true;
        self.changed.notify_all();
    }

    /// Where it can be opened, as long as this is there.
    pub(super) fn path(&self) -> PathBuf {
        format!("/proc/self/fd/{}", self.file.as_raw_fd()).into()
    }
}

/// What a bundle's file in a folder is called, after its number.
const FILE_END: &str = ".parts";

/// The file of a bundle in a folder, and how many of its parts are in it and right.
fn open_in(folder: &Path, parts: &BundleParts) -> io::Result<(File, u64)> {
    std::fs::create_dir_all(folder)?;
    let name = format!("{:016x}{FILE_END}", parts.number());
    for entry in std::fs::read_dir(folder)? {
        let other = entry?.file_name();
        if other.to_string_lossy().ends_with(FILE_END) && other != *name {
            std::fs::remove_file(folder.join(other))?;
        }
    }

    let file = File::options()
        .read(true)
        .write(true)
        .create(true)
        .truncate(false)
        .mode(0o600)
        .open(folder.join(name))?;
    let mut part = Vec::new();
    let is_held = |number: &u64| {
        part.resize(parts.part_bytes(*number), 0);
        let read = file.read_exact_at(&mut part, number * PART_BYTES);
        read.is_ok() && xxh3_128(&part) == parts.sums[*number as usize]
    };
    let count = (0..parts.count()).take_while(is_held).count() as u64;
    Ok((file, count))
}

/// The bundle that a host has, or is sent, where other hosts get it.
#[derive(Default)]
pub(super) struct BundleShelf(Mutex<Option<Arc<HeldBundle>>>);

impl BundleShelf {
    /// Begins to pass bundles on, on a thread of its own; those who ask come this way.
    ///
    /// # Errors
    /// No thread.
    pub(super) fn begin(self: &Arc<Self>) -> io::Result<Callers> {
        let (taker, callers) = mpsc::channel::<Accepted>();
        let shelf = Arc::clone(self);
        std::thread::Builder::new()
            .name("zbmd bundles".to_owned())
            .spawn(move || shelf.serve(&callers))?;
        Ok(Callers {
            purpose: Purpose::Bundle,
            taker,
        })
    }

    fn bundle(&self) -> MutexGuard<'_, Option<Arc<HeldBundle>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn put(&self, bundle: &Arc<HeldBundle>) {
        *self.bundle() = Some(Arc::clone(bundle));
    }

    /// Has the bundle of a run on it, in the place of another one.
    pub(super) fn hold(&self, run_bundle: &RunBundle) {
        let mut bundle = self.bundle();
        let is_held = |held: &Arc<HeldBundle>| held.parts.number() == run_bundle.number();
        if !bundle.as_ref().is_some_and(is_held) {
            *bundle = Some(run_bundle.hold());
        }
    }

    /// Nobody needs it any more: what is in memory is given back.
    pub(super) fn clear_memory(&self) {
        self.bundle().take_if(|bundle| !bundle.is_on_disk);
    }

    /// Passes the bundle on to whoever asks for it, each on a thread of its own, until nobody comes any more.
    fn serve(&self, callers: &Receiver<Accepted>) {
        while let Ok(accepted) = callers.recv() {
            let deadline = Deadline::after(CALL_LIMIT);
            let asked = accepted.hello.plan;
            let bundle = self.bundle().clone();
            let Some(bundle) = bundle.filter(|bundle| bundle.parts.number() == asked) else {
                // It may be sent here soon.
                accepted.refuse(Refusal::Unknown, deadline);
                continue;
            };
            let pass_on = move || {
                let connection = accepted.welcome(deadline).map_err(io::Error::other)?;
                let connection = SharedConnection::new(connection, STALL_LIMIT)?;
                let first_part: u64 = message::receive(&connection)?;
                bundle.pass_on(first_part, &connection)
            };
            // Whoever is not served gets it from the run.
            let _ = std::thread::Builder::new()
                .name("zbmd bundle".to_owned())
                .spawn(pass_on);
        }
    }
}

/// An agent that does not answer for so long passes nothing on.
const CALL_LIMIT: Duration = Duration::from_secs(2);
/// One that has yet to be told of the bundle is asked again for so long, and so often.
const ASK_LIMIT: Duration = Duration::from_secs(2);
const ASK_PAUSE: Duration = Duration::from_millis(10);
/// A bundle that does not come on for so long is not waited for.
const STALL_LIMIT: Duration = Duration::from_secs(10);

/// Gets what is missing of a bundle from another agent; `tell` as in [`HeldBundle::receive`].
///
/// # Errors
/// Why it has not all come.
pub(super) fn fetch(
    bundle: &HeldBundle,
    upstream: SocketAddr,
    credentials: &Credentials,
    tell: impl FnMut(u64),
) -> Result<(), String> {
    let hello = Hello {
        purpose: Purpose::Bundle,
        run: 0,
        epoch: 0,
        plan: bundle.parts.number(),
        sender: 0,
        receiver: 0,
    };
    let text = |error: io::Error| format!("{upstream}: {error}");
    let ask_deadline = Deadline::after(ASK_LIMIT);
    let connection = loop {
        let deadline = Deadline::after(CALL_LIMIT);
        let socket = connect_by(upstream, deadline).map_err(text)?;
        match dial(socket, &hello, credentials, deadline) {
            Ok(connection) => break connection,
            Err(HandshakeError::Refused {
                why: Refusal::Unknown,
                ..
            }) if ask_deadline.left_ns() != Some(0) => std::thread::sleep(ASK_PAUSE),
            Err(error) => return Err(error.to_string()),
        }
    };
    let connection = SharedConnection::new(connection, STALL_LIMIT).map_err(text)?;
    message::send(&connection, &bundle.first_missing()).map_err(text)?;
    let received = bundle.receive(&connection, tell);
    received.map_err(|why| format!("{upstream}: {why}"))
}

#[cfg(test)]
mod tests {
    use zbmd_wire::connection::Protection;
    use zbmd_wire::token::Token;

    use super::*;
    use crate::transport::switchboard::Switchboard;

    /// A file of some parts, and what is in it.
    fn bundle() -> (File, Vec<u8>) {
        // No two parts are alike.
        let byte = |i: u64| (i ^ (i >> 8) ^ (i >> 16)) as u8;
        let bytes: Vec<u8> = (0..5 * PART_BYTES / 2).map(byte).collect();
        let mut file = tempfile::tempfile().expect("a file");
        file.write_all(&bytes).expect("written");
        (file, bytes)
    }

    fn read(held: &HeldBundle) -> Vec<u8> {
        std::fs::read(held.path()).expect("it is there")
    }

    #[test]
    fn what_has_come_before_a_cut_is_not_sent_again() {
        let (file, bytes) = bundle();
        let parts = BundleParts::of(&file).expect("parts");
        assert_eq!(parts.count(), 3);
        let held = HeldBundle::of(parts.clone(), None, None).expect("memory");
        let cut = PART_BYTES as usize * 2 - 1;
        let error = held.receive(&bytes[..cut], |_| ()).expect_err("cut");
        assert!(error.contains("ends after 1 of its 3 parts"), "{error}");

        let held = HeldBundle::of(parts.clone(), Some(held), None).expect("the same");
        let mut rest = Vec::new();
        parts
            .send(&file, held.first_missing(), &mut rest)
            .expect("sent");
        assert_eq!(rest.len(), bytes.len() - PART_BYTES as usize);
        held.receive(&rest[..], |_| ()).expect("the rest");
        assert!(read(&held) == bytes);

        // Nothing of it is of use for another one.
        let other = BundleParts {
            bytes: 9,
            sums: vec![1],
        };
        let other = HeldBundle::of(other, Some(held), None).expect("memory");
        assert_eq!(other.first_missing(), 0);
    }

    #[test]
    fn a_part_that_is_not_right_is_named_and_not_kept() {
        let (file, mut bytes) = bundle();
        let parts = BundleParts::of(&file).expect("parts");
        bytes[PART_BYTES as usize + 7] ^= 1;
        let held = HeldBundle::of(parts, None, None).expect("memory");
        let error = held.receive(&bytes[..], |_| ()).expect_err("changed");
        assert!(
            error.contains("part 1 of the bundle's 3 has checksum"),
            "{error}"
        );
        assert_eq!(held.first_missing(), 1);
    }

    #[test]
    fn bundles_of_absurd_sizes_are_refused() {
        for (bytes, sums, expected) in [
            (
                u64::MAX,
                0,
                "18446744073709551615 bytes, 17179869184 are the most",
            ),
            (PART_BYTES + 1, 1, "1048577 bytes in 1 parts, it has 2"),
            (0, 1, "0 bytes in 1 parts, it has 0"),
        ] {
            let parts = BundleParts {
                bytes,
                sums: vec![0; sums],
            };
            let error = HeldBundle::of(parts, None, None).err().expect("refused");
            assert!(error.contains(expected), "{error}");
        }
    }

    /// Written by one and read by another as it comes, until it does not come any more.
    #[test]
    fn parts_are_passed_on_as_they_come() {
        let (file, bytes) = bundle();
        let parts = BundleParts::of(&file).expect("parts");
        let held = HeldBundle::of(parts, None, None).expect("memory");
        std::thread::scope(|scope| {
            let (mut reader, writer) = io::pipe().expect("a pipe");
            scope.spawn(|| held.pass_on(1, writer).expect_err("it is given up"));
            let first = PART_BYTES as usize;
            let error = held.receive(&bytes[..2 * first], |_| ());
            error.expect_err("there is more");
            let mut passed_on = vec![0; first];
            reader.read_exact(&mut passed_on).expect("the second part");
            assert!(passed_on == bytes[first..2 * first]);
            held.give_up();
            assert_eq!(reader.read(&mut passed_on).expect("the end"), 0);
        });
    }

    #[test]
    fn a_folder_keeps_what_has_come_and_what_is_not_right_is_not_taken_for_it() {
        let (file, bytes) = bundle();
        let parts = BundleParts::of(&file).expect("parts");
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("bundles");
        let open = || HeldBundle::of(parts.clone(), None, Some(&path)).expect("a file");
        let cut = open().receive(&bytes[..2 * PART_BYTES as usize], |_| ());
        cut.expect_err("there is more");
        let held = open();
        assert_eq!(held.first_missing(), 2);

        // Somebody has changed the second part meanwhile.
        held.file
            .write_all_at(&[bytes[PART_BYTES as usize] ^ 1], PART_BYTES)
            .expect("written");
        let held = open();
        assert_eq!(held.first_missing(), 1);
        let rest = &bytes[PART_BYTES as usize..];
        held.receive(rest, |_| ()).expect("the rest");
        assert!(read(&held) == bytes);

        // There is room for one bundle only.
        let other = BundleParts {
            bytes: 9,
            sums: vec![1],
        };
        HeldBundle::of(other, None, Some(&path)).expect("a file");
        assert_eq!(std::fs::read_dir(&path).expect("the folder").count(), 1);
        assert_eq!(open().first_missing(), 0);
    }

    /// What the agent before has is not believed: its memory may have failed since it was looked at.
    #[test]
    fn a_part_that_was_changed_on_the_way_is_named_and_the_rest_is_still_wanted() {
        let (file, bytes) = bundle();
        let parts = BundleParts::of(&file).expect("parts");
        let source = HeldBundle::of(parts.clone(), None, None).expect("memory");
        source.receive(&bytes[..], |_| ()).expect("all of it");
        source
            .file
            .write_all_at(&[bytes[PART_BYTES as usize] ^ 1], PART_BYTES)
            .expect("written");

        let credentials = Credentials {
            token: Token::of(b"a token of the test"),
            protection: Protection::Loopback,
        };
        let shelf = Arc::<BundleShelf>::default();
        let (taker, callers) = std::sync::mpsc::channel();
        let bundle_calls = Callers {
            purpose: Purpose::Bundle,
            taker,
        };
        let here = SocketAddr::from((std::net::Ipv4Addr::LOCALHOST, 0));
        let switchboard = Switchboard::listen(here, &credentials, vec![bundle_calls]);
        let switchboard = switchboard.expect("it listens");
        let served = Arc::clone(&shelf);
        std::thread::spawn(move || served.serve(&callers));

        let held = HeldBundle::of(parts, None, None).expect("memory");
        let address = switchboard.address();
        let error = fetch(&held, address, &credentials, |_| ()).expect_err("nothing is there");
        assert!(error.contains(&address.to_string()), "{error}");
        shelf.put(&source);
        let error = fetch(&held, address, &credentials, |_| ()).expect_err("it is changed");
        assert!(
            error.contains("part 1 of the bundle's 3 has checksum"),
            "{error}"
        );
        assert_eq!(held.first_missing(), 1);
        shelf.clear_memory();
        held.receive(&bytes[PART_BYTES as usize..], |_| ())
            .expect("the rest");
        assert!(read(&held) == bytes);
    }
}
