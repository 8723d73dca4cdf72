//! What kind of processor a CPU device is, so that like devices are measured once and a cache knows whose it is.

use std::collections::BTreeMap;

/// The processors of this computer, as the system describes them.
pub(crate) struct Computer {
    /// The description of each core, by its number.
    cores: BTreeMap<u32, String>,
}

/// How the flags begin that change how fast kernels are.
const FEATURE_PREFIXES: &[&str] = &[
    "sse", "ssse", "avx", "fma", "f16c", "bmi", "asimd", "sve", "fphp",
];
/// Fields that name a processor, on x86-64 and on AArch64.
const NAME_FIELDS: &[&str] = &[
    "model name",
    "cpu family",
    "model",
    "stepping",
    "CPU implementer",
    "CPU part",
    "CPU variant",
    "CPU revision",
];

impl Computer {
    /// This computer. Where the system has no description, all cores are taken to be alike.
    pub(crate) fn read() -> Self {
        let cpuinfo = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
        Self::parse(&cpuinfo, max_khz)
    }

    fn parse(cpuinfo: &str, core_khz: impl Fn(u32) -> Option<u64>) -> Self {
        let mut cores = BTreeMap::new();
        for block in cpuinfo.split("\n\n") {
            let fields: BTreeMap<&str, &str> = block
                .lines()
                .filter_map(|line| line.split_once(':'))
                .map(|(name, value)| (name.trim(), value.trim()))
                .collect();
            let number = fields.get("processor").and_then(|text| text.parse().ok());
            if let Some(number) = number {
                cores.insert(number, describe_core(&fields, core_khz(number)));
            }
        }

        Self { cores }
    }

    /// The kind of a device with these cores; without any, or with unknown ones, that of the first core.
    pub(crate) fn kind(&self, cores: &[u32]) -> String {
        let own_description = cores.first().and_then(|core| self.cores.get(core));
        let core_description = own_description.or_else(|| self.cores.values().next());
        let description = core_description.map_or("unknown processor", String::as_str);
        let core_count = match cores.len() {
            0 | 1 => String::new(),
            several => format!(", {several} cores"),
        };

        let arch = std::env::consts::ARCH;
        let system = std::env::consts::OS;
        format!("{arch}-{system}: {description}{core_count}")
    }
}

/// The model of a core, its clock and its features, whatever the order of its flags.
fn describe_core(fields: &BTreeMap<&str, &str>, max_khz: Option<u64>) -> String {
    let mut parts = Vec::new();
    for name in NAME_FIELDS {
        parts.extend(fields.get(name).map(|value| format!("{name} {value}")));
    }
    // Cores of one model may still be made for different clocks.
    parts.extend(max_khz.map(|khz| format!("{khz} kHz")));

    let flags = fields.get("flags").or_else(|| fields.get("Features"));

    // Most flags have nothing to do with speed, and change with the system's version.
    let is_feature = |flag: &&str| {
        FEATURE_PREFIXES
            .iter()
            .any(|prefix| flag.starts_with(prefix))
    };

    let mut features: Vec<&str> = flags
        .copied()
        .unwrap_or_default()
        .split_whitespace()
        .filter(is_feature)
        .collect();
    features.sort_unstable();
    parts.push(features.join(" "));
    parts.join(", ")
}

fn max_khz(core: u32) -> Option<u64> {
    let path = format!("/sys/devices/system/cpu/cpu{core}/cpufreq/cpuinfo_max_freq");
    std::fs::read_to_string(path).ok()?.trim().parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    const X86: &str = "processor\t: 0\nmodel name\t: Some CPU\nflags\t\t: fpu avx2 fma avx sse2\n\n\
                       processor\t: 3\nmodel name\t: Some CPU\nflags\t\t: sse2 fma avx avx2 vme\n\n";
    const ARM: &str = "processor\t: 0\nFeatures\t: fp asimd aes\nCPU part\t: 0xd05\n\n\
                       processor\t: 1\nFeatures\t: fp asimd aes\nCPU part\t: 0xd0b\n\n";

    #[test]
    fn kinds() {
        let x86 = Computer::parse(X86, |_| None);
        let kind = x86.kind(&[0]);
        assert!(
            kind.ends_with(": model name Some CPU, avx avx2 fma sse2"),
            "{kind}"
        );
        assert_eq!(
            kind,
            x86.kind(&[3]),
            "the order of flags and those of no use do not count"
        );
        assert_eq!(kind, x86.kind(&[]), "a device without cores runs anywhere");
        assert_eq!(kind, x86.kind(&[17]));
        assert_eq!(x86.kind(&[0, 3]), format!("{kind}, 2 cores"));
        let clocked = Computer::parse(X86, |core| Some(1000 + u64::from(core)));
        assert_ne!(clocked.kind(&[0]), clocked.kind(&[3]));
        let arm = Computer::parse(ARM, |_| None);
        assert_ne!(arm.kind(&[0]), arm.kind(&[1]), "big and little cores");
        let unknown = Computer::parse("what is this?", |_| None);
        assert!(unknown.kind(&[0]).ends_with(": unknown processor"));
    }
}
