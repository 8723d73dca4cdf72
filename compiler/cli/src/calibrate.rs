//! `zbmdc calibrate`: measures, and says what was found.

use std::ffi::OsString;
use std::path::{Path, PathBuf};

use zbmd_compiler::calibrate::{
    CalibrateOptions, Calibration, CostRow, CostSource, EarlyLaunch, Progress,
};
use zbmd_compiler::{Code, CompileOptions, MachineChoice, calibrate_file, calibrate_str};

use crate::args::{Calibrate, MessageFormat};
use crate::commands::{is_stdin, lone, stdin};
use crate::output::{Exit, Voice, print, say};

pub(crate) fn calibrate(args: &Calibrate, voice: Voice) -> Exit {
    let people = voice.format == MessageFormat::Text;
    let machine = args
        .machine
        .clone()
        .map_or(MachineChoice::Detect, MachineChoice::File);
    let options = CompileOptions {
        machine,
        math: args.math,
        ..CompileOptions::default()
    };
    let variable = |name: &str| std::env::var_os(name);
    let cache = args.cache.clone().or_else(|| user_cache(variable));
    if cache.is_none() && people {
        say("zbmdc: neither XDG_CACHE_HOME nor HOME names a folder: nothing is kept for later\n");
    }
    let how = CalibrateOptions {
        cache,
        fresh: args.fresh,
        budget_ns: args.budget,
    };
    let mut progress = |p: Progress<'_>| {
        if people {
            let (number, total) = (p.done + 1, p.total);
            say(&format!(
                "measuring {number}/{total} on {}: {} ({})\n",
                p.device, p.actor, p.op
            ));
        }
    };
    let calibrated = if is_stdin(&args.model) {
        stdin().and_then(|text| calibrate_str("<stdin>", &text, "", &options, &how, &mut progress))
    } else {
        calibrate_file(&args.model, &options, &how, &mut progress)
    };
    let found = match calibrated {
        Ok(found) => found,
        Err(diagnostics) => return voice.report(&diagnostics),
    };
    voice.report(&found.warnings);
    if people {
        say(&table(&found.rows));
        found.early.iter().for_each(|early| say(&launches(early)));
    }
    let Some(path) = &args.output else {
        return match found.to_ron() {
            Ok(text) => print(&text),
            Err(error) => panic!("a machine that was read cannot be written: {error}"),
        };
    };
    write(&found, path, voice)
}

fn write(found: &Calibration, path: &Path, voice: Voice) -> Exit {
    if let Err(error) = found.write(path) {
        let help = "check the folder and its permissions";
        return voice.report(&lone(Code::E0704, error.to_string(), help));
    }
    if voice.format == MessageFormat::Text {
        let count = |source: fn(&CostSource) -> bool| {
            found.rows.iter().filter(|r| source(&r.source)).count()
        };
        let measured = count(|s| *s == CostSource::Measured);
        let cached = count(|s| *s == CostSource::Cache);
        let modelled = found.rows.len() - measured - cached;
        say(&format!(
            "wrote {}: {measured} measured, {cached} from the cache, {modelled} left to the model\n",
            path.display()
        ));
    }
    Exit::Ok
}

/// Where this user's caches are kept, by the XDG base directory specification.
fn user_cache(variable: impl Fn(&str) -> Option<OsString>) -> Option<PathBuf> {
    let folder = |name: &str| {
        variable(name)
            .map(PathBuf::from)
            .filter(|p| p.is_absolute())
    };
    let caches = folder("XDG_CACHE_HOME").or_else(|| Some(folder("HOME")?.join(".cache")))?;
    Some(caches.join("zbmd"))
}

/// The rows in columns, and the reasons of those that were not measured.
fn table(rows: &[CostRow]) -> String {
    let head = [
        "actor", "op", "device", "call", "firing", "spread", "from", "variant",
    ];
    let head = head.map(str::to_owned);
    let mut lines = vec![head];
    lines.extend(rows.iter().map(cells));
    let width = |column: usize| {
        lines
            .iter()
            .map(|cells| cells[column].chars().count())
            .max()
            .unwrap_or_default()
    };
    let widths: Vec<usize> = (0..8).map(width).collect();
    let mut out = String::new();
    for cells in &lines {
        let padded: Vec<String> = cells
            .iter()
            .zip(&widths)
            .enumerate()
            .map(|(column, (cell, &width))| match column {
                3..=5 => format!("{cell:>width$}"),
                _ => format!("{cell:<width$}"),
            })
            .collect();
        out += padded.join("  ").trim_end();
        out.push('\n');
    }
    for row in rows {
        if let CostSource::Model(reason) = &row.source {
            out += &format!("{} is left to the model: {reason}\n", row.actor);
        }
    }
    out
}

/// What launching kernels early is worth.
fn launches(early: &EarlyLaunch) -> String {
    let (device, percent) = (&early.device, 100.0 * (early.relative - 1.0));
    let chosen = if early.pays() {
        "is used"
    } else {
        "is not used"
    };
    format!("launching kernels early takes {percent:+.0}% on {device}: it {chosen}\n")
}

fn cells(row: &CostRow) -> [String; 8] {
    let more = |first: &str, n: usize| match n {
        0 | 1 => first.to_owned(),
        n => format!("{first} (+{})", n - 1),
    };
    let device = row.devices.first().map_or("", String::as_str);
    let spread = match row.source {
        CostSource::Model(_) => "-".to_owned(),
        _ => format!("{:.1}%", row.cost.spread_percent),
    };
    [
        more(&row.actor, row.actors),
        row.cost.op.clone(),
        more(device, row.devices.len()),
        time(row.cost.call_ps),
        time(row.cost.firing_ps),
        spread,
        row.source.to_string(),
        variant(row),
    ]
}

/// The best variant, and how much more than the default one it takes; nothing where that is the best.
fn variant(row: &CostRow) -> String {
    let (Some(name), Some(gain)) = (&row.cost.variant, row.gain()) else {
        return String::new();
    };
    format!("{name} {:+.0}%", 100.0 * gain)
}

/// Three digits or more, in a unit that people read.
fn time(ps: u64) -> String {
    match ps {
        0..10_000_000 => format!("{:.2} ns", ps as f64 / 1e3),
        10_000_000..10_000_000_000 => format!("{:.2} us", ps as f64 / 1e6),
        _ => format!("{:.2} ms", ps as f64 / 1e9),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn caches_of_users() {
        for (xdg, home, expect) in [
            (Some("/c"), Some("/home/u"), Some("/c/zbmd")),
            (None, Some("/home/u"), Some("/home/u/.cache/zbmd")),
            (Some(""), Some("/home/u"), Some("/home/u/.cache/zbmd")),
            (
                Some("relative"),
                Some("/home/u"),
                Some("/home/u/.cache/zbmd"),
            ),
            (None, Some(""), None),
            (None, None, None),
        ] {
            let variable = |name: &str| match name {
                "XDG_CACHE_HOME" => xdg.map(OsString::from),
                "HOME" => home.map(OsString::from),
                _ => None,
            };
            assert_eq!(
                user_cache(variable),
                expect.map(PathBuf::from),
                "{xdg:?} {home:?}"
            );
        }
    }

    #[test]
    fn times() {
        for (ps, expect) in [
            (0, "0.00 ns"),
            (350, "0.35 ns"),
            (9_999_000, "9999.00 ns"),
            (12_340_000, "12.34 us"),
            (10_000_000_000, "10.00 ms"),
        ] {
            assert_eq!(time(ps), expect);
        }
    }
}
