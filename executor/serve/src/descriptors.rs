//! Open files: connections must leave enough of them for workers that are started again.

/// Descriptors that are no connections: files, the runtime, and a few for each worker and its start.
const RESERVED: u64 = 256;

/// Raises this process's limit on open files as far as it may; so many connections, or as many as fit.
pub(crate) fn connections_within_limit(connections: usize) -> usize {
    let Some(limit) = raised_limit() else {
        return connections;
    };
    let fitting = limit.saturating_sub(RESERVED).max(1);
    connections.min(usize::try_from(fitting).unwrap_or(usize::MAX))
}

/// Nothing where there is no limit.
#[cfg(unix)]
fn raised_limit() -> Option<u64> {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

    let before = getrlimit(Resource::Nofile);
    let raised = Rlimit {
        current: before.maximum,
        maximum: before.maximum,
    };
    match setrlimit(Resource::Nofile, raised) {
        Ok(()) => before.maximum,
        Err(_) => before.current,
    }
}

#[cfg(not(unix))]
fn raised_limit() -> Option<u64> {
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn workers_keep_descriptors_of_their_own() {
        assert_eq!(connections_within_limit(1), 1);
        let limit = raised_limit().unwrap_or(u64::MAX);
        assert!(connections_within_limit(usize::MAX) as u64 <= limit);
    }
}
