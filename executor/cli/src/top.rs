//! `zbmd-run top`: a run that is on, in the terminal.

use std::fmt::{self, Write as _};
use std::io::{self, IsTerminal, Write};
use std::time::Duration;

use clap::{Args, ValueEnum};
use zbmd_ir::text::{printable_json, printable_lines};

use super::exit;
use zbmd_executor::live::{DeviceState, Live, PageError, Progress, TimesProgress, read, running};

/// What to watch, and how.
#[derive(Clone, Debug, Args)]
pub(crate) struct Top {
    /// Process of the run; not needed where one run is on.
    pid: Option<u32>,
    /// Show it once, and end.
    #[arg(long)]
    once: bool,
    /// How to show it.
    #[arg(long, value_name = "FORMAT", default_value = "text")]
    format: Format,
    /// How often: `500ms`, `5s`.
    #[arg(long, value_name = "TIME", value_parser = crate::args::duration, default_value = "500ms")]
    every: Duration,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Format {
    /// For people.
    Text,
    /// A JSON object a line, for programs.
    Json,
}

/// Watches until the run is over; the exit code.
pub(crate) fn top(args: &Top) -> u8 {
    let pid = match args.pid.map_or_else(the_only_run, Ok) {
        Ok(pid) => pid,
        Err((code, text)) => return refuse(code, &text),
    };
    let is_screen = args.format == Format::Text && !args.once && io::stdout().is_terminal();
    let mut was_seen = false;
    loop {
        let live_page = match read(pid) {
            Ok(live_page) => live_page,
            Err(PageError::Absent(_)) if was_seen => {
                say(&format!("the run of process {pid} is over\n"), false);
                return exit::OK;
            }
            Err(error @ PageError::Unreadable { .. }) => {
                return refuse(exit::FILE, &error.to_string());
            }
            Err(error) => return refuse(exit::NO_RUN, &error.to_string()),
        };
        was_seen = true;

        let page_text = match args.format {
            // Plain data with string keys: serialising cannot fail.
            Format::Json => {
                let json_line = serde_json::to_string(&live_page).unwrap_or_default();
                printable_json(&json_line).into_owned() + "\n"
            }
            Format::Text => screen(&live_page),
        };
        if !say(&page_text, is_screen) || args.once {
            return exit::OK;
        }
        std::thread::sleep(args.every);
    }
}

fn refuse(code: u8, text: &str) -> u8 {
    let _ = writeln!(io::stderr(), "zbmd-run: {}", printable_lines(text));
    code
}

/// Writes to standard output, over what was there before on a screen; false if nobody reads it any more.
fn say(text: &str, is_screen: bool) -> bool {
    let mut standard_output = io::stdout().lock();
    // The page is another process's, maybe another user's: only the sequences below are ours.
    let printable_text = printable_lines(text);
    // Cursor to the corner, then each line to its end and everything below cleared: no flicker.
    let screen_text = match is_screen {
        true => format!("\x1b[H{}\x1b[J", printable_text.replace('\n', "\x1b[K\n")),
        false => printable_text.into_owned(),
    };
    standard_output
        .write_all(screen_text.as_bytes())
        .and_then(|()| standard_output.flush())
        .is_ok()
}

/// The process of the only run that is on, or an exit code and why there is none.
pub(crate) fn the_only_run() -> Result<u32, (u8, String)> {
    let live_runs = running();
    match &live_runs[..] {
        [] => Err((exit::NO_RUN, "no run is on".to_owned())),
        [run] => Ok(run.pid),
        several => {
            let run_names: Vec<String> = several
                .iter()
                .map(|run| format!("{} ({})", run.pid, run.progress.model))
                .collect();
            let refusal_text = format!(
                "{} runs are on; say which process: {}",
                several.len(),
                run_names.join(", ")
            );
            Err((exit::USAGE, refusal_text))
        }
    }
}

fn in_micros(ns: f64) -> String {
    format!("{:.1} us", ns / 1e3)
}

fn in_millis(ns: u64) -> String {
    format!("{:.3} ms", ns as f64 / 1e6)
}

fn quantiles(times: &TimesProgress) -> String {
    format!(
        "p50 {}, p99 {}, max {}",
        in_millis(times.p50_ns),
        in_millis(times.p99_ns),
        in_millis(times.max_ns)
    )
}

/// The run as some lines of text.
fn screen(live: &Live) -> String {
    let mut screen_text = String::new();
    // Writing to a string cannot fail.
    let _ = write_run(&mut screen_text, live);
    let _ = write_edges(&mut screen_text, &live.progress);
    let _ = write_fills(&mut screen_text, &live.progress);
    screen_text
}

/// How far the run is, and what its devices do.
fn write_run(screen_text: &mut String, live: &Live) -> fmt::Result {
    let progress = &live.progress;
    writeln!(
        screen_text,
        "{}   process {}   {:.1} s   {} iterations   {:.1}/s",
        progress.model,
        live.pid,
        live.elapsed_ns as f64 / 1e9,
        progress.iterations,
        live.iterations_per_s
    )?;

    let measured_period = match live.period_measured_ns {
        ns if ns > 0.0 => format!("{}, {:+.1} %", in_micros(ns), 100.0 * live.lateness),
        _ => "none yet".to_owned(),
    };
    writeln!(
        screen_text,
        "epoch {}   {} recoveries   plan {}   period {measured_period} (planned {})",
        progress.epoch,
        progress.recoveries,
        progress.plan,
        in_micros(progress.period_planned_ns as f64)
    )?;

    if let Some(mode) = &progress.mode {
        writeln!(
            screen_text,
            "mode {}   since iteration {}",
            mode.mode, mode.since
        )?;
    }

    if let Some(council) = &progress.council {
        writeln!(screen_text, "{council}")?;
    }
    for host in &progress.hosts {
        let state = host.state.to_string();
        let counts = device_counts(progress, &host.host);
        let line = format!("  host {:<15} {state:<9} {counts}", host.host);
        writeln!(screen_text, "{}", line.trim_end())?;
    }
    for device in &progress.devices {
        writeln!(
            screen_text,
            "  {:<20} {:<9} {:>12} periods",
            device.device,
            device.state.to_string(),
            device.periods
        )?;
    }

    Ok(())
}

/// How many devices of a host that plans use are in each state: `30 waiting, 2 lost`.
fn device_counts(progress: &Progress, host: &str) -> String {
    let devices = progress.devices.iter();
    let own = devices.filter(|device| device.host.as_deref() == Some(host));
    let states: Vec<DeviceState> = own.map(|device| device.state).collect();
    let counts = DeviceState::ALL.into_iter().filter_map(|state| {
        let count = states.iter().filter(|own| **own == state).count();
        (count > 0).then(|| format!("{count} {state}"))
    });
    counts.collect::<Vec<_>>().join(", ")
}

/// What enters and leaves the run: when tokens come, when they leave, and what is set from outside.
fn write_edges(screen_text: &mut String, progress: &Progress) -> fmt::Result {
    for release in &progress.releases {
        writeln!(
            screen_text,
            "  release {:<21} late by {}",
            release.source,
            quantiles(&release.lateness)
        )?;
    }
    for deadline in &progress.deadlines {
        writeln!(
            screen_text,
            "  deadline {:<20} {} in {}   {} of {} late ({})",
            deadline.sink,
            quantiles(&deadline.response),
            in_millis(deadline.limit_ns),
            deadline.missed,
            deadline.response.count.max(deadline.missed),
            deadline.on_miss
        )?;
    }

    for value in &progress.parameters {
        writeln!(
            screen_text,
            "  live {:<24} {}",
            value.parameter,
            numbers_text(&value.numbers)
        )?;
    }

    Ok(())
}

/// How full rings and queues are.
fn write_fills(screen_text: &mut String, progress: &Progress) -> fmt::Result {
    for (kind, list) in [("ring", &progress.rings), ("queue", &progress.queues)] {
        for fill in list {
            let fill_share = fill.filled as f64 / fill.capacity.max(1) as f64;
            writeln!(
                screen_text,
                "  {kind:<5} {:<28} {} {:>5.1} %  {:>14} tokens",
                fill.name,
                bar(fill_share),
                100.0 * fill_share,
                fill.tokens
            )?;
        }
    }
    Ok(())
}

/// Numbers of a parameter, the first of them where there are many.
fn numbers_text(numbers: &[f64]) -> String {
    const SHOWN: usize = 8;
    let shown: Vec<String> = numbers.iter().take(SHOWN).map(f64::to_string).collect();
    let more = numbers.len().saturating_sub(SHOWN);
    match more {
        0 => shown.join(", "),
        _ => format!("{}, and {more} more", shown.join(", ")),
    }
}

fn bar(share: f64) -> String {
    const CELLS: usize = 20;
    let full = ((share * CELLS as f64).round() as usize).min(CELLS);
    format!("[{}{}]", "#".repeat(full), " ".repeat(CELLS - full))
}

#[cfg(test)]
mod tests {
    use super::*;
    use zbmd_executor::live::{
        CouncilProgress, DeadlineProgress, DeviceProgress, Fill, HostProgress, HostState,
        ModeProgress, ParameterProgress, ReleaseProgress,
    };

    #[test]
    fn the_screen() {
        let device = |device: &str, state, periods| DeviceProgress {
            device: device.into(),
            host: Some("right".into()),
            state,
            periods,
        };
        let times = |p50_ns, p99_ns, max_ns| TimesProgress {
            count: 600,
            p50_ns,
            p99_ns,
            max_ns,
        };
        let live = Live {
            pid: 12,
            elapsed_ns: 1_500_000_000,
            iterations_per_s: 12_345.6,
            period_measured_ns: 110_000.0,
            lateness: 0.1,
            progress: Progress {
                model: "fm".into(),
                iterations: 9_000,
                epoch: 3,
                recoveries: 1,
                plan: "main without 1 like cpu:0".into(),
                block: 4,
                period_planned_ns: 100_000,
                periods: 2_250,
                hosts: vec![
                    HostProgress {
                        host: "left".into(),
                        state: HostState::Conductor,
                    },
                    HostProgress {
                        host: "right".into(),
                        state: HostState::Present,
                    },
                ],
                council: Some(CouncilProgress {
                    voters: 3,
                    conductor: 1,
                    standing_by: vec![2],
                }),
                devices: vec![
                    device("cpu:0", DeviceState::Working, 2_250),
                    device("cpu:1", DeviceState::Lost, 0),
                ],
                rings: vec![Fill {
                    name: "ch3 cpu:0 -> cpu:1".into(),
                    tokens: 640,
                    filled: 64,
                    capacity: 256,
                }],
                queues: vec![Fill {
                    name: "iq".into(),
                    tokens: 90_000,
                    filled: 1024,
                    capacity: 1024,
                }],
                releases: vec![ReleaseProgress {
                    source: "iq".into(),
                    lateness: times(10_000, 140_000, 3_000_000),
                }],
                deadlines: vec![DeadlineProgress {
                    sink: "audio".into(),
                    limit_ns: 10_000_000,
                    on_miss: "hold".into(),
                    missed: 2,
                    response: times(4_200_000, 9_000_000, 13_500_000),
                }],
                parameters: vec![ParameterProgress {
                    parameter: "gain".into(),
                    numbers: vec![0.5],
                }],
                mode: Some(ModeProgress {
                    mode: "track".into(),
                    since: 960,
                }),
            },
            ..Live::default()
        };
        insta::assert_snapshot!(screen(&live));
    }
}
