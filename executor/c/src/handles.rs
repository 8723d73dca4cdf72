//! The table that handles are looked up in. A handle has the place of its object and a count of how often the place
//! has been used, so that a closed handle stays closed when the place is used again. There is no `unsafe` here: that
//! is the point.
//!
//! Looking up takes the lock of one place, which nobody else wants unless two threads use one handle at once. Places
//! are made in chunks that double, and never moved or given back.

use std::sync::{Arc, Mutex, MutexGuard, OnceLock, TryLockError};

use zbmd_executor::{Caller, SinkHandle, SourceHandle};

use crate::bundle::Bundle;
use crate::probes::ProbeReader;
use crate::session::Run;
use crate::status::Failure;

/// Bits of a handle that are the place, plus one so that no handle is null; the count has the others.
const PLACE_BITS: u32 = usize::BITS * 3 / 8;
const FIRST_CHUNK: usize = 64;
const CHUNKS: usize = (PLACE_BITS - FIRST_CHUNK.ilog2()) as usize;

/// What a handle can stand for.
pub(crate) enum Object {
    Bundle(Arc<Bundle>),
    Caller(Caller),
    Session(Arc<Run>),
    Source(SourceHandle),
    Sink(SinkHandle),
    Probe(ProbeReader),
}

/// One kind of object.
pub(crate) trait Kind: Sized {
    /// The handle's type in C.
    const NAME: &str;
    /// Whether several threads may use one handle at once; each then waits for the other's look at the table.
    const SHARED: bool;
    fn of(object: &mut Object) -> Option<&mut Self>;
    fn into(self) -> Object;
}

macro_rules! kind {
    ($type:ty, $variant:ident, $name:literal, $shared:literal) => {
        impl Kind for $type {
            const NAME: &str = $name;
            const SHARED: bool = $shared;

            fn of(object: &mut Object) -> Option<&mut Self> {
                if let Object::$variant(found) = object {
                    Some(found)
                } else {
                    None
                }
            }

            fn into(self) -> Object {
                Object::$variant(self)
            }
        }
    };
}

kind!(Arc<Bundle>, Bundle, "zbmd_bundle", true);
kind!(Caller, Caller, "zbmd_caller", false);
kind!(Arc<Run>, Session, "zbmd_session", true);
kind!(SourceHandle, Source, "zbmd_source", false);
kind!(SinkHandle, Sink, "zbmd_sink", false);
kind!(ProbeReader, Probe, "zbmd_probe", false);

impl Object {
    fn name(&self) -> &'static str {
        match self {
            Self::Bundle(_) => <Arc<Bundle>>::NAME,
            Self::Caller(_) => Caller::NAME,
            Self::Session(_) => <Arc<Run>>::NAME,
            Self::Source(_) => SourceHandle::NAME,
            Self::Sink(_) => SinkHandle::NAME,
            Self::Probe(_) => ProbeReader::NAME,
        }
    }
}

#[derive(Default)]
struct Place {
    /// How many objects have been here.
    uses: usize,
    object: Option<Object>,
}

type Chunk = Box<[Mutex<Place>]>;

static TABLE: [OnceLock<Chunk>; CHUNKS] = [const { OnceLock::new() }; CHUNKS];
static FREE: Mutex<Free> = Mutex::new(Free {
    places: Vec::new(),
    made: 0,
});

struct Free {
    places: Vec<usize>,
    made: usize,
}

/// The place, if it has been made: chunk k begins at place `FIRST_CHUNK * (2^k - 1)`.
fn place(index: usize) -> Option<&'static Mutex<Place>> {
    let chunk_index = (index / FIRST_CHUNK + 1).ilog2() as usize;
    let first_place = FIRST_CHUNK * ((1 << chunk_index) - 1);
    TABLE.get(chunk_index)?.get()?.get(index - first_place)
}

fn make(index: usize) -> Option<&'static Mutex<Place>> {
    let chunk_index = (index / FIRST_CHUNK + 1).ilog2() as usize;
    TABLE.get(chunk_index)?.get_or_init(|| {
        (0..FIRST_CHUNK << chunk_index)
            .map(|_| Mutex::default())
            .collect()
    });
    place(index)
}

fn split(handle: usize) -> Option<(usize, usize)> {
    let place_number = handle & ((1 << PLACE_BITS) - 1);
    Some((place_number.checked_sub(1)?, handle >> PLACE_BITS))
}

fn free() -> MutexGuard<'static, Free> {
    FREE.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
}

/// A handle for something new.
pub(crate) fn open<K: Kind>(object: K) -> Result<usize, Failure> {
    let mut free_places = free();
    let index = match free_places.places.pop() {
        Some(index) => index,
        None => {
            free_places.made += 1;
            free_places.made - 1
        }
    };
    drop(free_places);

    let Some(slot_mutex) = make(index) else {
        return Err(Failure::usage(format!(
            "{index} handles are open: close some"
        )));
    };

    let mut slot = slot_mutex
        .lock()
        .unwrap_or_else(|poisoned| poisoned.into_inner());
    // Beyond the bits that a handle has for it, the count begins anew: so many uses later, a closed handle might mean
    // something again.
    slot.uses = (slot.uses + 1) & (usize::MAX >> PLACE_BITS);
    slot.object = Some(object.into());
    Ok(slot.uses << PLACE_BITS | (index + 1))
}

/// The place of an open handle of a kind, locked.
fn locked<K: Kind>(handle: usize) -> Result<MutexGuard<'static, Place>, Failure> {
    let kind_name = K::NAME;
    if handle == 0 {
        return Err(Failure::usage(format!("the {kind_name} is NULL")));
    }
    let unknown_handle = || {
        Failure::usage(format!(
            "this is not a {kind_name}: it was closed, or never one"
        ))
    };
    let (index, uses) = split(handle).ok_or_else(unknown_handle)?;
    let slot_mutex = place(index).ok_or_else(unknown_handle)?;

    let lock_result = if K::SHARED {
        slot_mutex.lock().map_err(TryLockError::from)
    } else {
        slot_mutex.try_lock()
    };

    let mut slot = match lock_result {
        Ok(slot) => slot,
        Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner(),
        Err(TryLockError::WouldBlock) => {
            return Err(Failure::usage(format!(
                "the {kind_name} is in use by another thread: a handle serves one thread at a time"
            )));
        }
    };

    if slot.uses != uses {
        return Err(unknown_handle());
    }
    let object = slot.object.as_mut().ok_or_else(unknown_handle)?;
    if K::of(object).is_none() {
        return Err(Failure::usage(format!(
            "this is a {}, not a {kind_name}",
            object.name()
        )));
    }
    Ok(slot)
}

/// What a shared handle stands for.
pub(crate) fn get<K: Kind + Clone>(handle: usize) -> Result<K, Failure> {
    with(handle, |object: &mut K| Ok(object.clone()))
}

/// Uses what a handle stands for. Nobody else can meanwhile.
pub(crate) fn with<K: Kind, R>(
    handle: usize,
    work: impl FnOnce(&mut K) -> Result<R, Failure>,
) -> Result<R, Failure> {
    let mut slot = locked::<K>(handle)?;
    match slot.object.as_mut().and_then(K::of) {
        Some(object) => work(object),
        None => Err(Failure::usage(format!("the {} is closed", K::NAME))),
    }
}

/// Closes a handle; what it stood for.
pub(crate) fn close<K: Kind>(handle: usize) -> Result<Object, Failure> {
    let mut slot = locked::<K>(handle)?;
    let object = slot.object.take();
    drop(slot);
    if let Some((index, _)) = split(handle) {
        free().places.push(index);
    }
    object.ok_or_else(|| Failure::usage(format!("the {} is closed", K::NAME)))
}
