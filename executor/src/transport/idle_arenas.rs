//! Memory of epochs that are over, kept for epochs to come: making fresh pages and giving old ones back takes the system
//! about a millisecond for each MiB, while tokens wait for a change of mode.

use std::collections::VecDeque;
use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use super::arena::Arena;

/// One is in use, and readers may still be busy with the one before.
const KEPT: usize = 2;

/// Arenas of epochs that all workers have ended, on the side that makes them.
#[derive(Default)]
pub(crate) struct IdleArenas(VecDeque<Arc<Arena>>);

impl IdleArenas {
    /// Keeps the memory of an epoch that no worker uses any more, or will: not of one that was fenced, whose workers may
    /// be late.
    pub(crate) fn keep(&mut self, arena: &Arc<Arena>) {
        self.0.push_back(Arc::clone(arena));
        if self.0.len() > KEPT {
            self.0.pop_front();
        }
    }

    /// One that nobody else holds, if there is one.
    pub(crate) fn take(&mut self) -> Option<Arena> {
        let is_free = |arena: &Arc<Arena>| Arc::strong_count(arena) == 1;
        let place = self.0.iter().position(is_free)?;
        self.0.remove(place).and_then(Arc::into_inner)
    }

    pub(crate) fn clear(&mut self) {
        self.0.clear();
    }
}

/// Arenas of another process that this one has mapped, by the numbers that they have there.
#[derive(Default)]
pub(crate) struct MappedArenas(VecDeque<(u64, Arc<Arena>)>);

impl MappedArenas {
    /// The arena of this number, which is the memory behind the file. It is mapped if it is not yet.
    ///
    /// # Errors
    /// See [`Arena::map`].
    pub(crate) fn map(&mut self, number: u64, file: OwnedFd) -> io::Result<Arc<Arena>> {
        let known = self.0.iter().position(|(known, _)| *known == number);
        let arena = match known.and_then(|place| self.0.remove(place)) {
            Some((_, arena)) => arena,
            None => Arc::new(Arena::map(file)?),
        };

        self.0.push_back((number, Arc::clone(&arena)));
        if self.0.len() > KEPT {
            self.0.pop_front();
        }
        Ok(arena)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_arena_is_taken_again_once_nobody_else_holds_it() {
        let mut idle = IdleArenas::default();
        let arenas: Vec<Arc<Arena>> = (0..3)
            .map(|_| Arc::new(Arena::shared(1).expect("small")))
            .collect();
        let numbers: Vec<u64> = arenas.iter().map(|arena| arena.number()).collect();
        arenas.iter().for_each(|arena| idle.keep(arena));
        assert!(idle.take().is_none(), "all are held");

        drop(arenas);
        let taken: Vec<u64> = std::iter::from_fn(|| idle.take())
            .map(|arena| arena.number())
            .collect();
        assert_eq!(taken, numbers[1..], "the oldest is not kept");
    }
}
