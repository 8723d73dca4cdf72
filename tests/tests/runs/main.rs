//! `zbmd-run` in processes of its own: over several hosts, beside commands that look at it and change it, killed and recorded.
//!
//! No test harness: this program is its own `zbmd-run`, with the actors of all its tests. They run one after the other, since
//! most of them go by the clock.

#[cfg(not(target_os = "linux"))]
fn main() {
    println!("skipped: runs are started, killed and given commands on Linux");
}

#[cfg(target_os = "linux")]
fn main() -> std::process::ExitCode {
    linux::main()
}

// The modules lie beside this file.
#[cfg(target_os = "linux")]
#[path = ""]
mod linux {
    mod bundles_to_agents;
    mod council_cuts;
    mod council_runs;
    mod flight_recorder;
    mod held_shares;
    mod histories;
    mod host_gpus;
    mod host_processes;
    mod host_swaps;
    mod host_workers;
    mod hosts;
    mod launching;
    mod live_page;
    mod mode_checkpoints;
    mod mode_deadlines;
    mod probe_command;
    mod replay_against;
    mod rtl_tcp_adsb;
    mod set_mode;
    mod set_parameters;
    mod virtual_cluster;

    use std::process::ExitCode;

    use zbmd_backends::op::Registry;
    use zbmd_tests::child_run::run_or_test;
    use zbmd_tests::harness::{self, Module};

    const MODULES: &[Module] = &[
        ("bundles_to_agents", bundles_to_agents::TESTS),
        ("council_cuts", council_cuts::TESTS),
        ("council_runs", council_runs::TESTS),
        ("flight_recorder", flight_recorder::TESTS),
        ("held_shares", held_shares::TESTS),
        ("histories", histories::TESTS),
        ("host_gpus", host_gpus::TESTS),
        ("host_processes", host_processes::TESTS),
        ("host_swaps", host_swaps::TESTS),
        ("host_workers", host_workers::TESTS),
        ("hosts", hosts::TESTS),
        ("launching", launching::TESTS),
        ("live_page", live_page::TESTS),
        ("mode_checkpoints", mode_checkpoints::TESTS),
        ("mode_deadlines", mode_deadlines::TESTS),
        ("probe_command", probe_command::TESTS),
        ("replay_against", replay_against::TESTS),
        ("rtl_tcp_adsb", rtl_tcp_adsb::TESTS),
        ("set_mode", set_mode::TESTS),
        ("set_parameters", set_parameters::TESTS),
        ("virtual_cluster", virtual_cluster::TESTS),
    ];

    pub(super) fn main() -> ExitCode {
        zbmd_executor::testing::on_open(host_gpus::hang_if_told);
        zbmd_executor::serve_if_worker(&registry());
        run_or_test(
            || zbmd_run::main_with(registry()),
            || harness::run(&harness::of_modules(MODULES), || true),
        )
    }

    fn registry() -> Registry {
        let mut registry = zbmd_tests::actors::registry();
        held_shares::add_actor(&mut registry);
        host_workers::add_actor(&mut registry);
        registry
    }
}
