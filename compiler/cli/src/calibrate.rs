//! `zbmdc calibrate`: measures, and says what was found.

use std::ffi::OsString;
use std::path::{Path, PathBuf};

use zbmd_compiler::calibrate::{
    CalibrateOptions, Calibration, CoreCosts, CostRow, CostSource, EarlyLaunch, Progress,
};
use zbmd_compiler::{
    Code, CompileOptions, Diagnostics, MachineChoice, calibrate_file, calibrate_str,
};

use crate::args::{Calibrate, MessageFormat};
use crate::model_input::{STDIN_NAME, given_options, is_stdin, read_stdin};
use crate::output::{CHECK_FOLDER, Exit, Voice, print, say, single_error};

pub(crate) fn calibrate(args: &Calibrate, voice: Voice) -> Exit {
    let found = match measure(args, voice) {
        Ok(found) => found,
        Err(diagnostics) => return voice.report(&diagnostics),
    };
    voice.report(&found.warnings);
    if voice.format == MessageFormat::Text {
        say(&cost_table(&found.rows));
        say(&describe_change(&found.rows));
        for cores in &found.cores {
            say(&describe_cores(cores));
        }
        for early in &found.early {
            say(&describe_early_launch(early));
        }
    }

    if let Some(path) = &args.output {
        return write_costs(&found, path, voice);
    }
    match found.to_ron() {
        Ok(text) => print(&text),
        Err(error) => panic!("a machine that was read cannot be written: {error}"),
    }
}

fn measure(args: &Calibrate, voice: Voice) -> Result<Calibration, Diagnostics> {
    let is_for_people = voice.format == MessageFormat::Text;
    let machine_file = args.machine.clone();
    let options = CompileOptions {
        machine: machine_file.map_or(MachineChoice::Detect, MachineChoice::File),
        math: args.math,
        ..given_options(&args.given)?
    };

    let default_cache = || user_cache(|name| std::env::var_os(name));
    let cache = args.cache.clone().or_else(default_cache);
    if cache.is_none() && is_for_people {
        say("zbmdc: neither XDG_CACHE_HOME nor HOME names a folder: nothing is kept for later\n");
    }
    let calibrate_options = CalibrateOptions {
        cache,
        fresh: args.fresh,
        budget_ns: args.budget,
        block: args.block,
        ..CalibrateOptions::default()
    };

    let mut on_progress = |progress: Progress<'_>| {
        if is_for_people {
            say_progress(&progress);
        }
    };

    if is_stdin(&args.model) {
        let text = read_stdin()?;
        calibrate_str(
            STDIN_NAME,
            &text,
            "",
            &options,
            &calibrate_options,
            &mut on_progress,
        )
    } else {
        calibrate_file(&args.model, &options, &calibrate_options, &mut on_progress)
    }
}

fn say_progress(progress: &Progress<'_>) {
    say(&format!(
        "measuring {}/{} on {}: {} ({})\n",
        progress.done + 1,
        progress.total,
        progress.device,
        progress.actor,
        progress.op
    ));
}

fn write_costs(found: &Calibration, path: &Path, voice: Voice) -> Exit {
    if let Err(error) = found.write(path) {
        let refusal = single_error(Code::E0704, error.to_string(), CHECK_FOLDER);
        return voice.report(&refusal);
    }

    if voice.format != MessageFormat::Text {
        return Exit::Ok;
    }

    let mut measured_rows = 0;
    let mut cached_rows = 0;
    let mut modelled_rows = 0;
    for row in &found.rows {
        match row.source {
            CostSource::Measured => measured_rows += 1,
            CostSource::Cache => cached_rows += 1,
            CostSource::Model(_) => modelled_rows += 1,
        }
    }

    say(&format!(
        "wrote {}: {measured_rows} measured, {cached_rows} from the cache, {modelled_rows} left to the model\n",
        path.display()
    ));
    Exit::Ok
}

/// Where this user's caches are kept, by the XDG base directory specification.
fn user_cache(variable: impl Fn(&str) -> Option<OsString>) -> Option<PathBuf> {
    let cache_home = absolute_folder(variable("XDG_CACHE_HOME"));
    let caches = cache_home.or_else(|| {
        let home = absolute_folder(variable("HOME"))?;
        Some(home.join(".cache"))
    })?;
    Some(caches.join("zbmd"))
}

/// The specification has relative paths ignored.
fn absolute_folder(value: Option<OsString>) -> Option<PathBuf> {
    let path = PathBuf::from(value?);
    path.is_absolute().then_some(path)
}

const COLUMN_COUNT: usize = 8;
const HEADER: [&str; COLUMN_COUNT] = [
    "actor", "op", "device", "call", "firing", "spread", "from", "variant",
];
/// The columns that hold numbers, which are aligned to the right.
const NUMBER_COLUMNS: std::ops::RangeInclusive<usize> = 3..=5;

/// The rows in columns, and the reasons of those that were not measured.
fn cost_table(rows: &[CostRow]) -> String {
    let mut lines = vec![HEADER.map(str::to_owned)];
    lines.extend(rows.iter().map(row_cells));

    let mut widths = [0; COLUMN_COUNT];
    for cells in &lines {
        for (width, cell) in widths.iter_mut().zip(cells) {
            *width = cell.chars().count().max(*width);
        }
    }

    let mut table = String::new();
    for cells in &lines {
        let mut line = String::new();
        for (column, (cell, width)) in cells.iter().zip(widths).enumerate() {
            let separator = if column == 0 { "" } else { "  " };
            line += separator;
            line += &if NUMBER_COLUMNS.contains(&column) {
                format!("{cell:>width$}")
            } else {
                format!("{cell:<width$}")
            };
        }

        table += line.trim_end();
        table.push('\n');
    }

    for row in rows {
        if let CostSource::Model(reason) = &row.source {
            table += &format!("{} is left to the model: {reason}\n", row.actor);
        }
    }

    table
}

/// What the measured costs change, for each kind of device: one call of each actor's kernel as found and by the roofline
/// model, and the kernel that differs most.
fn describe_change(rows: &[CostRow]) -> String {
    let mut text = String::new();
    for rows in rows.chunk_by(|row, next| row.devices == next.devices) {
        let times = || rows.iter().map(CostRow::found_and_modelled_ps);
        let found_ps = times().map(|(found, _)| found).fold(0, u64::saturating_add);
        let modelled_ps = times()
            .map(|(_, modelled)| modelled)
            .fold(0, u64::saturating_add);
        let difference = |row: &&CostRow| {
            let (found, modelled) = row.found_and_modelled_ps();
            found.abs_diff(modelled)
        };
        let Some(most) = rows.iter().max_by_key(difference) else {
            continue;
        };

        let (most_found_ps, most_modelled_ps) = most.found_and_modelled_ps();
        let devices = &rows[0].devices;
        text += &format!(
            "on {}: one call of each kernel takes {}, {} by the roofline model; most for {}: {} instead of {}\n",
            first_of(devices.first().map_or("", String::as_str), devices.len()),
            format_time(found_ps),
            format_time(modelled_ps),
            first_of(&most.actor, most.actors),
            format_time(most_found_ps),
            format_time(most_modelled_ps),
        );
    }
    text
}

/// What was found of the memory and of hand-overs of like CPU devices.
fn describe_cores(cores: &CoreCosts) -> String {
    let first_device = cores.devices.first().map_or("", String::as_str);
    let devices = first_of(first_device, cores.devices.len());
    let memory = format_rate(cores.bytes_per_s);
    let mut text = match cores.devices.len() {
        0 | 1 => format!("on {devices}: memory moves {memory}"),
        _ => format!("on {devices}: memory moves {memory} for each core while all use it"),
    };

    match &cores.hand_over {
        Ok(hand_over) => {
            let rate = format_rate(hand_over.bytes_per_s());
            text += &format!(
                "; a hand-over takes {} ns and {rate}",
                hand_over.latency_ns()
            );
        }
        Err(reason) => text += &format!("; hand-overs are left to the model: {reason}"),
    }
    if let Some((bytes_per_s, latency_ns)) = cores.link_before {
        let rate = format_rate(bytes_per_s);
        text += &format!(" (links were planned with {latency_ns} ns and {rate})");
    }
    text.push('\n');
    text
}

fn format_rate(bytes_per_s: u64) -> String {
    format!("{:.1} GB/s", bytes_per_s as f64 / 1e9)
}

/// Whether launching kernels early pays on a device.
fn describe_early_launch(early: &EarlyLaunch) -> String {
    let device = &early.device;
    let extra_percent = 100.0 * (early.relative - 1.0);
    let decision = if early.pays() {
        "is used"
    } else {
        "is not used"
    };
    format!("launching kernels early takes {extra_percent:+.0}% on {device}: it {decision}\n")
}

fn row_cells(row: &CostRow) -> [String; COLUMN_COUNT] {
    let first_device = row.devices.first().map_or("", String::as_str);
    let spread = match row.source {
        CostSource::Model(_) => "-".to_owned(),
        _ => format!("{:.1}%", row.cost.spread_percent),
    };
    [
        first_of(&row.actor, row.actors),
        row.cost.op.clone(),
        first_of(first_device, row.devices.len()),
        format_time(row.cost.call_ps),
        format_time(row.cost.firing_ps),
        spread,
        row.source.to_string(),
        variant_cell(row),
    ]
}

/// The first of several things, and how many more there are.
fn first_of(first: &str, count: usize) -> String {
    match count {
        0 | 1 => first.to_owned(),
        count => format!("{first} (+{})", count - 1),
    }
}

/// The best variant, and how much more than the default one it takes; nothing where that is the best.
fn variant_cell(row: &CostRow) -> String {
    match (&row.cost.variant, row.gain()) {
        (Some(name), Some(gain)) => format!("{name} {:+.0}%", 100.0 * gain),
        _ => String::new(),
    }
}

/// Three digits or more, in a unit that people read.
fn format_time(ps: u64) -> String {
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
            assert_eq!(format_time(ps), expect);
        }
    }
}
