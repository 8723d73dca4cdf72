//! `--realtime`: all threads that requests pass through have real-time priorities, or the server says what is missing and does not start.
#![cfg(target_os = "linux")]

mod common;

use std::process::{Command, Stdio};

use common::other_processes::{Thread, children_of, threads_of};
use common::{Models, wait_until};
use rustix::process::Pid;

const OPTION: &str = "--realtime";

/// Gives up the rights that let anyone have real time, and runs a program.
const WITHOUT_RIGHTS: [&str; 6] = [
    "--bounding-set=-sys_nice",
    "--inh-caps=-sys_nice",
    "prlimit",
    "--rtprio=0:0",
    "--",
    "true",
];

#[test]
fn all_threads_that_requests_pass_through_have_priorities() {
    if !has_rights() {
        return;
    }
    let server = Models::simple().serve(&[OPTION]);
    let process = Pid::from_raw(server.pid().cast_signed()).expect("not 0");
    let threads = || -> Vec<Thread> {
        let processes = children_of(process).into_iter().chain([process]);
        processes.flat_map(threads_of).collect()
    };

    for (name, priority) in [
        ("zbmd run", 50),
        ("zbmd calendar", 40),
        ("zbmd feed", 30),
        ("zbmd answer", 30),
        ("zbmd http", 30),
    ] {
        wait_until(name, || {
            let mut threads = threads().into_iter();
            threads.any(|thread| {
                thread.name.starts_with(name) && thread.fifo_priority == Some(priority)
            })
        });
    }
}

#[test]
fn what_is_missing_is_said_and_nothing_is_served() {
    if !has_rights() {
        return;
    }
    let models = Models::simple();
    let served = models.command(&[OPTION]);
    let mut command = Command::new("setpriv");
    let (_, before) = WITHOUT_RIGHTS.split_last().expect("words");
    command
        .args(before)
        .arg(served.get_program())
        .args(served.get_args());
    let output = command.output().expect("started");
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(6), "{said}");
    let expected = "no real time: the system refuses real-time priority 50";
    assert!(said.contains(expected), "{said}");
    assert!(said.contains("ulimit -r 50"), "{said}");
    assert!(!said.contains("listening"), "{said}");
}

/// Whether this machine lets tests have real-time priorities, and lets them give rights up.
fn has_rights() -> bool {
    let can_have = zbmd_executor::realtime::begin([]).is_ok();
    let mut without = Command::new("setpriv");
    without.args(WITHOUT_RIGHTS).stdout(Stdio::null());
    let can_drop = without.status().is_ok_and(|status| status.success());
    let has_rights = can_have && can_drop;
    if !has_rights {
        eprintln!("SKIPPED: no right to real-time priorities here, or no setpriv");
    }
    has_rights
}
