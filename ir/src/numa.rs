//! Which cores are near which part of a computer's memory (NUMA), as the system says.
//!
//! On a computer of several nodes, memory of another node is slower to reach, and it is shared by all who do. So an arena belongs on the
//! node of the cores that compute in it. Knows nothing of who asks.

use std::path::Path;
use std::sync::OnceLock;

/// The parts of a computer's memory, each with the cores that are near it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MemoryNodes {
    /// The system's number of each node, ascending, and the numbers of its cores.
    nodes: Vec<(u32, Vec<u32>)>,
}

impl MemoryNodes {
    /// Those of this computer, as they were when somebody first asked; none where the system does not say.
    pub fn of_system() -> &'static Self {
        static FOUND: OnceLock<MemoryNodes> = OnceLock::new();
        FOUND.get_or_init(|| Self::read(Path::new("/sys/devices/system/node")))
    }

    /// From a folder like Linux's `/sys/devices/system/node`: `node0/cpulist` with a text such as `0-3,8-11`, and so on. What is no such
    /// file is left out.
    pub fn read(folder: &Path) -> Self {
        let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
        let listed = entries.filter_map(|entry| {
            let name = entry.file_name();
            let number = name.to_str()?.strip_prefix("node")?.parse().ok()?;
            let text = std::fs::read_to_string(entry.path().join("cpulist")).ok()?;
            Some((number, cores_of_list(text.trim())?))
        });
        let mut nodes: Vec<(u32, Vec<u32>)> = listed.collect();
        nodes.sort_unstable();
        Self { nodes }
    }

    /// Whether there is more than one, so that it matters where memory is.
    pub fn are_several(&self) -> bool {
        self.nodes.len() > 1
    }

    /// The number of the node that all of these cores are near. `None` if there is no such node, for no cores, and where there is only
    /// one node.
    pub fn near(&self, cores: &[u32]) -> Option<u32> {
        if !self.are_several() || cores.is_empty() {
            return None;
        }
        let mut nodes = self.nodes.iter();
        let node = nodes.find(|(_, near)| cores.iter().all(|core| near.contains(core)));
        node.map(|(number, _)| *number)
    }
}

/// The numbers of a list such as `0-3,8`; `None` for any other text. A node may have memory and no cores.
fn cores_of_list(text: &str) -> Option<Vec<u32>> {
    /// More than any computer has: a list that is longer is none.
    const MAX_CORES: usize = 1 << 16;

    let mut cores = Vec::new();
    for range in text.split(',').filter(|range| !range.is_empty()) {
        let (first, last) = range.split_once('-').unwrap_or((range, range));
        let (first, last): (u32, u32) = (first.parse().ok()?, last.parse().ok()?);
        if last < first || (last - first) as usize >= MAX_CORES - cores.len() {
            return None;
        }
        cores.extend(first..=last);
    }
    Some(cores)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A folder with a file `cpulist` for each node.
    fn tree(lists: &[(&str, &str)]) -> tempfile::TempDir {
        let folder = tempfile::tempdir().expect("a folder");
        for (name, list) in lists {
            let node = folder.path().join(name);
            std::fs::create_dir(&node).expect("made");
            std::fs::write(node.join("cpulist"), list).expect("written");
        }
        folder
    }

    #[test]
    fn cores_are_near_the_node_that_lists_them() {
        let folder = tree(&[
            ("node0", "0-3,8-11\n"),
            ("node1", "4-7,12-15\n"),
            // Memory without cores, such as that of an expansion card.
            ("node10", "\n"),
        ]);
        // Linux has such files beside the nodes.
        std::fs::write(folder.path().join("online"), "0-1\n").expect("written");
        let nodes = MemoryNodes::read(folder.path());
        assert!(nodes.are_several());
        assert_eq!(nodes.near(&[3]), Some(0));
        assert_eq!(nodes.near(&[12, 4]), Some(1));
        assert_eq!(nodes.near(&[3, 4]), None, "of two nodes");
        assert_eq!(nodes.near(&[16]), None, "of none");
        assert_eq!(nodes.near(&[]), None);
    }

    #[test]
    fn with_one_node_there_is_nothing_to_choose() {
        let folder = tree(&[("node0", "0-1\n")]);
        let nodes = MemoryNodes::read(folder.path());
        assert!(!nodes.are_several());
        assert_eq!(nodes.near(&[0]), None);
        assert_eq!(
            MemoryNodes::read(&folder.path().join("missing")),
            MemoryNodes::default()
        );
    }

    #[test]
    fn what_is_no_list_of_cores_is_no_node() {
        let lists = ["x", "3-1", "1-", "0-4294967295", "-1", "0-40000,0-40000"];
        for list in lists {
            let folder = tree(&[("node0", list), ("node1", "7")]);
            let nodes = MemoryNodes::read(folder.path());
            assert_eq!(nodes.nodes, [(1, vec![7])], "{list}");
        }
    }

    #[test]
    #[cfg(target_os = "linux")]
    fn this_computer_s_nodes_have_its_cores() {
        let nodes = &MemoryNodes::of_system().nodes;
        if nodes.is_empty() {
            eprintln!("SKIPPED: this system lists no nodes of memory");
            return;
        }
        let cores: usize = nodes.iter().map(|(_, cores)| cores.len()).sum();
        let usable = std::thread::available_parallelism().expect("on Linux");
        assert!(cores >= usable.get(), "{nodes:?}");
    }
}
