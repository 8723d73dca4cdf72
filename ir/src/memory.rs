//! How much memory this machine can still give, as the system says. Knows nothing of who asks.

use std::path::{Path, PathBuf};

/// Bytes that can be taken without anything being killed for them: what is free or can be freed, in the machine and in
/// all control groups around this process. `None` where the system does not say.
///
/// Others take and free memory at any time, so this is an estimate: good enough to refuse what can never be had.
pub fn available_bytes() -> Option<u64> {
    let machine = read_text(Path::new("/proc/meminfo")).and_then(|text| machine_bytes(&text));
    let groups = read_text(Path::new("/proc/self/cgroup"))
        .and_then(|text| groups_bytes(Path::new("/sys/fs/cgroup"), &text));
    machine.into_iter().chain(groups).min()
}

fn read_text(path: &Path) -> Option<String> {
    std::fs::read_to_string(path).ok()
}

/// From the text of `/proc/meminfo`.
fn machine_bytes(text: &str) -> Option<u64> {
    let available_bytes = meminfo_field(text, "MemAvailable:")?;
    let swap_bytes = meminfo_field(text, "SwapFree:").unwrap_or(0);
    Some(available_bytes.saturating_add(swap_bytes))
}

fn meminfo_field(text: &str, name: &str) -> Option<u64> {
    let value = text.lines().find_map(|line| line.strip_prefix(name))?;
    let kib: u64 = value.split_ascii_whitespace().next()?.parse().ok()?;
    Some(kib.saturating_mul(1024))
}

/// Names of the files of one version of control groups.
struct Names {
    limit: &'static str,
    usage: &'static str,
    /// The line of `memory.stat` with what can be freed at once.
    cache: &'static str,
}

/// The least that any control group around this process has left, from the text of `/proc/self/cgroup`.
fn groups_bytes(root: &Path, memberships: &str) -> Option<u64> {
    const VERSION_1: Names = Names {
        limit: "memory.limit_in_bytes",
        usage: "memory.usage_in_bytes",
        cache: "total_inactive_file",
    };

    const VERSION_2: Names = Names {
        limit: "memory.max",
        usage: "memory.current",
        cache: "inactive_file",
    };

    // A process is in one group of version 2 and in one of each controller of version 1.
    let left_by_group = memberships.lines().filter_map(|line| {
        let mut fields = line.splitn(3, ':').skip(1);
        let controllers = fields.next()?;
        let path = fields.next()?.trim_start_matches('/');
        match controllers {
            "" => branch_bytes(root, path, &VERSION_2),
            _ if controllers.split(',').any(|c| c == "memory") => {
                branch_bytes(&root.join("memory"), path, &VERSION_1)
            }
            _ => None,
        }
    });
    left_by_group.min()
}

/// The least of a group and all above it. Groups that cannot be seen from here, as in containers, are passed over.
fn branch_bytes(root: &Path, path: &str, names: &Names) -> Option<u64> {
    let mut folders: Vec<PathBuf> = vec![root.to_owned()];
    for part in path.split('/').filter(|part| !part.is_empty()) {
        let subfolder = folders[folders.len() - 1].join(part);
        folders.push(subfolder);
    }
    folders
        .iter()
        .filter_map(|folder| group_bytes(folder, names))
        .min()
}

fn read_number(path: &Path) -> Option<u64> {
    read_text(path)?.trim().parse().ok()
}

fn group_bytes(folder: &Path, names: &Names) -> Option<u64> {
    // Without a limit there is the word `max`.
    let limit_bytes = read_number(&folder.join(names.limit))?;
    let usage_bytes = read_number(&folder.join(names.usage))?;

    let stat_text = read_text(&folder.join("memory.stat")).unwrap_or_default();
    let freeable_bytes = stat_text.lines().find_map(|line| {
        let (name, value) = line.split_once(' ')?;
        (name == names.cache).then(|| value.trim().parse::<u64>().ok())?
    });
    let used_bytes = usage_bytes.saturating_sub(freeable_bytes.unwrap_or(0));
    Some(limit_bytes.saturating_sub(used_bytes))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_machine_counts_what_can_be_freed() {
        let text = "MemTotal: 9 kB\nMemFree:  1 kB\nMemAvailable:   5 kB\nSwapFree:  2 kB\n";
        assert_eq!(machine_bytes(text), Some(7 * 1024));
        assert_eq!(machine_bytes("MemAvailable:   5 kB\n"), Some(5 * 1024));
        assert_eq!(machine_bytes("MemFree: 5 kB\n"), None);
        assert_eq!(machine_bytes("MemAvailable: many kB\n"), None);
    }

    #[test]
    fn the_narrowest_group_counts() {
        let root = tempfile::tempdir().expect("a temporary folder");
        let write = |folder: &str, files: &[(&str, &str)]| {
            let folder = root.path().join(folder);
            std::fs::create_dir_all(&folder).expect("writable");
            for (name, text) in files {
                std::fs::write(folder.join(name), text).expect("writable");
            }
        };
        write("", &[("memory.max", "max\n"), ("memory.current", "5\n")]);
        let outer = [
            ("memory.max", "1000\n"),
            ("memory.current", "700\n"),
            ("memory.stat", "anon 1\ninactive_file 200\nother 9\n"),
        ];
        write("a", &outer);
        write(
            "a/b",
            &[("memory.max", "600\n"), ("memory.current", "50\n")],
        );
        let old = [
            ("memory.limit_in_bytes", "300\n"),
            ("memory.usage_in_bytes", "100\n"),
            ("memory.stat", "inactive_file 1\ntotal_inactive_file 40\n"),
        ];
        write("memory/c", &old);

        let cases = [
            ("0::/a/b\n", Some(500)),
            ("0::/a\n", Some(500)),
            ("0::/\n", None),
            ("0::/a/b/unseen\n", Some(500)),
            ("4:memory:/c\n1:cpu:/a\n", Some(240)),
            ("4:cpu,memory:/c\n0::/a/b\n", Some(240)),
            ("1:cpu:/a\nnonsense\n", None),
            ("", None),
        ];
        for (memberships, expected) in cases {
            assert_eq!(
                groups_bytes(root.path(), memberships),
                expected,
                "{memberships}"
            );
        }
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn this_machine_says() {
        assert!(available_bytes().expect("Linux says") > 1 << 20);
    }
}
