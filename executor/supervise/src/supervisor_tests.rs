//! The supervisor, one story each: inputs on the left, what it does about them on the right.

use super::*;
use crate::message::{GoneWorker, Request};
use crate::tree::{DeviceSpec, Intensity, Restart};
use crate::{BreakerPolicy, OnLoss};

/// Which losses have a plan; every device that is left is used.
struct Borne(u32, Vec<Vec<u32>>);

impl Plans for Borne {
    fn can_run(&self, lost: &[DeviceId]) -> bool {
        lost.is_empty()
            || self
                .1
                .iter()
                .any(|l| l.iter().map(|d| DeviceId(*d)).eq(lost.to_vec()))
    }

    fn devices_used(&self, lost: &[DeviceId]) -> Vec<DeviceId> {
        (0..self.0)
            .map(DeviceId)
            .filter(|d| !lost.contains(d))
            .collect()
    }

    fn is_faster_without(
        &self,
        from: &[DeviceId],
        _: &[DeviceId],
        _: DeviceId,
        times: f64,
    ) -> bool {
        from.is_empty() && times > 2.0
    }
}

fn spec(devices: u32, losses: u32) -> TreeSpec {
    let device = |i| DeviceSpec {
        name: format!("cpu:{i}"),
        restart: Restart::Permanent,
        intensity: None,
    };
    TreeSpec {
        strategy: Default::default(),
        intensity: Intensity {
            losses,
            period_ns: 10_000_000_000,
        },
        groups: Vec::new(),
        devices: (0..devices).map(device).collect(),
    }
}

/// A supervisor and what it did last, as text.
struct Story {
    supervisor: Supervisor<Borne>,
    now_ns: u64,
}

impl Story {
    fn new(settings: Settings, tree: TreeSpec, borne: &[&[u32]]) -> Self {
        let devices = tree.devices.len() as u32;
        let borne = Borne(devices, borne.iter().map(|l| l.to_vec()).collect());
        let mut story = Self {
            supervisor: Supervisor::new(settings, tree, borne),
            now_ns: 1_000_000_000,
        };
        let mut out = Vec::new();
        story.supervisor.start(story.now_ns, &mut out);
        let all: Vec<String> = (0..devices).map(|i| format!("spawn {i}#1")).collect();
        assert_eq!(said(&out), all.join(", "));
        story
    }

    /// Three devices, all ready, in epoch 0.
    fn running(settings: Settings, tree: TreeSpec, borne: &[&[u32]]) -> Self {
        let devices = tree.devices.len() as u32;
        let mut story = Self::new(settings, tree, borne);
        for i in 0..devices {
            let last = if i + 1 == devices {
                "begin 0 without []"
            } else {
                ""
            };
            story.tell(ready(i, 1), last);
        }
        story
    }

    #[track_caller]
    fn tell(&mut self, input: Input, expected: &str) {
        self.now_ns += 1000;
        let mut out = Vec::new();
        let input_text = format!("{input:?}");
        self.supervisor.handle(self.now_ns, input, &mut out);
        assert_eq!(said(&out), expected, "after {input_text}");
    }

    #[track_caller]
    fn tick_after(&mut self, ns: u64, expected: &str) {
        self.now_ns += ns;
        self.tell(Input::Tick, expected);
    }
}

fn said(out: &[Action]) -> String {
    let lines = out.iter().filter_map(|action| match action {
        Action::Spawn { device, generation } => Some(format!("spawn {}{generation}", device.0)),
        Action::Kill { device, generation } => Some(format!("kill {}{generation}", device.0)),
        Action::Begin { epoch, lost } => {
            let lost: Vec<u32> = lost.iter().map(|d| d.0).collect();
            Some(format!("begin {} without {lost:?}", epoch.0))
        }
        Action::Fence { epoch } => Some(format!("fence {}", epoch.0)),
        Action::Quiesce { epoch } => Some(format!("quiesce {}", epoch.0)),
        Action::Complete {
            epoch,
            blocks,
            swap,
        } => Some(format!(
            "complete {} at {blocks}{}",
            epoch.0,
            if *swap { " swap" } else { "" }
        )),
        Action::Stop(verdict) => Some(format!("stop: {verdict}")),
        Action::Event(_) => None,
    });
    lines.collect::<Vec<_>>().join(", ")
}

fn ready(device: u32, generation: u32) -> Input {
    Input::Ready {
        device: DeviceId(device),
        generation: Generation(generation),
    }
}

fn gone(device: u32, generation: u32) -> Input {
    let (device, generation) = (DeviceId(device), Generation(generation));
    Input::Gone {
        device,
        generation,
        cause: Cause::Killed { signal: 9 },
    }
}

fn ended(epoch: u64, device: u32, generation: u32, end: End) -> Input {
    let (device, generation) = (DeviceId(device), Generation(generation));
    Input::Ended {
        epoch: Epoch(epoch),
        device,
        generation,
        end,
    }
}

fn fenced(epoch: u64, committed_blocks: u64) -> Input {
    Input::Fenced {
        epoch: Epoch(epoch),
        committed_blocks,
    }
}

fn finished(blocks: u64) -> End {
    End::Finished { blocks }
}

#[test]
fn a_loss_with_a_plan_is_swapped_and_the_worker_taken_in_again() {
    let mut s = Story::running(Settings::default(), spec(2, 10), &[&[1]]);
    s.tell(gone(1, 1), "fence 0, spawn 1#2");
    s.tell(ended(0, 0, 1, End::Stopped), "");
    s.tell(fenced(0, 7), "begin 1 without [1]");
    s.tell(gone(1, 1), "");
    s.tell(ready(1, 1), "");
    s.tell(ready(1, 2), "quiesce 1");
    s.tell(ended(1, 0, 1, finished(3)), "complete 1 at 3");
    s.tell(
        Input::Completed {
            epoch: Epoch(1),
            more: true,
        },
        "begin 2 without []",
    );
    s.tell(ended(2, 0, 1, finished(9)), "");
    s.tell(ended(2, 1, 2, finished(9)), "complete 2 at 9");
    s.tell(
        Input::Completed {
            epoch: Epoch(2),
            more: false,
        },
        "stop: finished",
    );
    s.tell(gone(0, 1), "");
}

#[test]
fn workers_that_are_gone_with_their_host_are_one_fence_and_one_epoch() {
    let mut s = Story::running(Settings::default(), spec(4, 10), &[&[2], &[2, 3]]);
    let worker = |device, generation| GoneWorker {
        device: DeviceId(device),
        generation: Generation(generation),
    };
    let host_gone = |workers: &[GoneWorker]| Input::HostGone {
        workers: workers.to_vec(),
        cause: Cause::Killed { signal: 9 },
    };
    s.tell(host_gone(&[worker(2, 1), worker(3, 1)]), "fence 0");
    s.tell(fenced(0, 7), "begin 1 without [2, 3]");
    // Told again: nothing.
    s.tell(host_gone(&[worker(2, 1), worker(3, 1)]), "");
    // It is back, and of workers that have been replaced it is told once more.
    let restart = |device| Input::Request(Request::Restart(DeviceId(device)));
    s.tell(restart(2), "spawn 2#2");
    s.tell(restart(3), "spawn 3#2");
    s.tell(host_gone(&[worker(2, 1), worker(3, 1)]), "");
    s.tell(ready(2, 2), "");
    s.tell(ready(3, 2), "quiesce 1");
}

#[test]
fn a_host_of_many_devices_is_one_loss_and_is_waited_for_where_nothing_runs_without_it() {
    let mut s = Story::running(Settings::default(), spec(4, 1), &[&[1]]);
    let gone = |generation| Input::HostGone {
        workers: (1..4)
            .map(|device| GoneWorker {
                device: DeviceId(device),
                generation: Generation(generation),
            })
            .collect(),
        cause: Cause::Killed { signal: 9 },
    };
    // One more than is tolerated, if each device were one.
    s.tell(gone(1), "fence 0");
    s.tell(fenced(0, 7), "");
    for device in 1..4 {
        let restart = Input::Request(Request::Restart(DeviceId(device)));
        s.tell(restart, &format!("spawn {device}#2"));
    }
    s.tell(ready(1, 2), "");
    s.tell(ready(2, 2), "");
    s.tell(ready(3, 2), "begin 1 without []");
}

#[test]
fn a_loss_without_a_plan_waits_for_the_restart() {
    let mut s = Story::running(Settings::default(), spec(2, 10), &[&[1]]);
    s.tell(gone(0, 1), "fence 0, spawn 0#2");
    s.tell(fenced(0, 7), "");
    s.tell(ready(0, 2), "begin 1 without []");
}

#[test]
fn losses_during_a_recovery_are_taken_into_account() {
    let mut s = Story::running(Settings::default(), spec(3, 10), &[&[1], &[1, 2]]);
    s.tell(gone(1, 1), "fence 0, spawn 1#2");
    // Between fence and fenced; told twice; and with a late message of the epoch that is over.
    s.tell(gone(2, 1), "spawn 2#2");
    s.tell(gone(2, 1), "");
    s.tell(ended(0, 2, 1, finished(3)), "");
    s.tell(fenced(0, 4), "begin 1 without [1, 2]");
    s.tell(fenced(0, 4), "");
    // There is no plan without 1 alone nor without 0 and 1: the first return does nothing, the loss waits for all.
    s.tell(gone(0, 1), "fence 1, spawn 0#2");
    s.tell(fenced(1, 0), "");
    s.tell(ready(2, 2), "");
    s.tell(ready(0, 2), "begin 2 without [1]");
    s.tell(ready(1, 2), "quiesce 2");
    // A loss during the quiesce.
    s.tell(ended(2, 0, 2, finished(5)), "");
    s.tell(gone(2, 2), "fence 2");
}

#[test]
fn a_worker_that_has_finished_may_die() {
    let mut s = Story::running(Settings::default(), spec(2, 10), &[]);
    s.tell(ended(0, 0, 1, finished(5)), "");
    s.tell(gone(0, 1), "spawn 0#2");
    s.tell(ended(0, 1, 1, finished(5)), "complete 0 at 5");
    s.tell(
        Input::Completed {
            epoch: Epoch(0),
            more: true,
        },
        "",
    );
    s.tell(ready(0, 2), "begin 1 without []");
}

#[test]
fn a_storm_stops_at_its_intensity_with_a_last_word() {
    let mut s = Story::running(Settings::default(), spec(1, 2), &[]);
    s.tell(gone(0, 1), "fence 0, spawn 0#2");
    s.tell(fenced(0, 4), "");
    s.tell(gone(0, 2), "");
    s.tick_after(20_000_000, "spawn 0#3");
    s.tell(ready(0, 3), "begin 1 without []");
    // Everything committed: not before the fence.
    s.tell(gone(0, 3), "fence 1");
    s.tell(
        fenced(1, 1),
        "stop: system gave up: 3 losses within 10 s, it tolerates 2; the last: cpu:0 killed by signal 9",
    );
    assert!(s.supervisor.is_over());
}

#[test]
fn a_flapping_device_stays_out_until_probes_pass() {
    let breaker = BreakerPolicy {
        failures: 2,
        open_ns: 1_000_000_000,
        probes: 2,
        probe_ns: 100_000_000,
        ..BreakerPolicy::default()
    };
    let settings = Settings {
        breaker,
        join_ns: None,
        ..Settings::default()
    };
    let mut s = Story::running(settings, spec(2, 10), &[&[1]]);
    s.tell(gone(1, 1), "fence 0, spawn 1#2");
    s.tell(fenced(0, 1), "begin 1 without [1]");
    s.tell(gone(1, 2), "");
    s.tick_after(900_000_000, "");
    s.tick_after(200_000_000, "spawn 1#3");
    // A failed probe: out for twice as long.
    s.tell(gone(1, 3), "");
    s.tick_after(1_900_000_000, "");
    s.tick_after(200_000_000, "spawn 1#4");
    s.tell(ready(1, 4), "");
    s.tick_after(100_000_000, "");
    s.tick_after(100_000_000, "quiesce 1");
}

#[test]
fn a_breaker_keeps_out_only_what_can_be_missed() {
    let breaker = BreakerPolicy {
        failures: 1,
        ..BreakerPolicy::default()
    };
    let mut s = Story::running(
        Settings {
            breaker,
            ..Settings::default()
        },
        spec(2, 10),
        &[&[1]],
    );
    s.tell(gone(1, 1), "fence 0");
    s.tell(fenced(0, 1), "begin 1 without [1]");
    // Now 0 is lost too, and cannot do without 1: both are started.
    s.tell(gone(0, 1), "fence 1, spawn 0#2");
    s.tell(fenced(1, 1), "");
    s.tell(ready(0, 2), "begin 2 without [1]");
}

#[test]
fn nothing_runs_without_a_temporary_worker_that_cannot_be_missed() {
    let mut tree = spec(2, 10);
    tree.devices[DeviceId(0)].restart = Restart::Temporary;
    let mut s = Story::running(Settings::default(), tree, &[&[1]]);
    s.tell(gone(0, 1), "fence 0");
    s.tell(
        fenced(0, 1),
        "stop: there is no plan without cpu:0; the last loss: cpu:0 killed by signal 9",
    );
}

#[test]
fn faults_are_retried_with_the_same_worker_before_it_is_replaced() {
    let fault = || End::Fault {
        text: "no".to_owned(),
    };
    let settings = Settings {
        retries: 1,
        ..Settings::default()
    };
    let mut s = Story::running(settings.clone(), spec(2, 10), &[&[1]]);
    s.tell(ended(0, 1, 1, fault()), "fence 0");
    s.tell(fenced(0, 0), "begin 1 without []");
    s.tell(ended(1, 1, 1, fault()), "fence 1, kill 1#1");
    s.tell(fenced(1, 0), "begin 2 without [1]");
    // The sender is to blame for tokens that arrive wrong.
    let corrupt = || End::Corrupt {
        from: DeviceId(1),
        text: "sum".to_owned(),
    };
    let mut s = Story::running(settings, spec(2, 10), &[&[1]]);
    s.tell(ended(0, 0, 1, corrupt()), "fence 0");
    s.tell(fenced(0, 0), "begin 1 without []");
    s.tell(ended(1, 0, 1, corrupt()), "fence 1, kill 1#1");
}

#[test]
fn a_run_that_makes_no_progress_ends() {
    let settings = Settings {
        futile: 2,
        retries: 9,
        ..Settings::default()
    };
    let mut s = Story::running(settings, spec(1, 10), &[]);
    s.tell(
        ended(
            0,
            0,
            1,
            End::Fault {
                text: "no".to_owned(),
            },
        ),
        "fence 0",
    );
    s.tell(fenced(0, 0), "begin 1 without []");
    s.tell(
        ended(
            1,
            0,
            1,
            End::Fault {
                text: "no".to_owned(),
            },
        ),
        "fence 1",
    );
    let mut out = Vec::new();
    s.supervisor.handle(s.now_ns, fenced(1, 0), &mut out);
    assert!(
        said(&out).starts_with("stop: no progress: 2 epochs in a row"),
        "{}",
        said(&out)
    );
}

#[test]
fn requests_are_done_at_borders() {
    let mut s = Story::running(Settings::default(), spec(2, 10), &[&[1]]);
    s.tell(Input::Request(Request::Swap), "quiesce 0");
    s.tell(ended(0, 0, 1, finished(2)), "");
    s.tell(ended(0, 1, 1, finished(2)), "complete 0 at 2 swap");
    s.tell(
        Input::Completed {
            epoch: Epoch(0),
            more: true,
        },
        "begin 1 without []",
    );
    s.tell(Input::Request(Request::Restart(DeviceId(1))), "quiesce 1");
    s.tell(ended(1, 0, 1, finished(2)), "");
    s.tell(ended(1, 1, 1, finished(2)), "complete 1 at 2");
    s.tell(
        Input::Completed {
            epoch: Epoch(1),
            more: true,
        },
        "kill 1#1, begin 2 without [1]",
    );
    s.tell(gone(1, 1), "spawn 1#2");
    // A stop that meets a loss is done in the epoch after it, so that all that was begun is finished.
    s.tell(Input::Request(Request::Stop), "quiesce 2");
    s.tell(gone(0, 1), "fence 2, spawn 0#2");
    s.tell(fenced(2, 0), "");
    s.tell(ready(1, 2), "");
    s.tell(ready(0, 2), "begin 3 without [], quiesce 3");
    s.tell(ended(3, 0, 2, finished(0)), "");
    s.tell(ended(3, 1, 2, finished(0)), "complete 3 at 0");
    s.tell(
        Input::Completed {
            epoch: Epoch(3),
            more: true,
        },
        "stop: stopped as requested",
    );
}

#[test]
fn clocks_run_out() {
    let mut s = Story::new(Settings::default(), spec(1, 10), &[]);
    // Not ready in time; killed; not gone in time; left behind.
    s.tick_after(10_000_000_000, "kill 0#1");
    s.tick_after(2_000_000_000, "spawn 0#2");
    s.tell(gone(0, 1), "");
    s.tell(ready(0, 2), "begin 0 without []");
    // It does not take up its role.
    s.tick_after(1_000_000_000, "fence 0, kill 0#2");
    s.tell(fenced(0, 0), "");
    // Its back-off has passed since it was started; that of one which dies at once has not.
    s.tell(gone(0, 2), "spawn 0#3");
    s.tell(gone(0, 3), "");
    assert!(
        s.supervisor.deadline().is_some(),
        "it comes back after its back-off"
    );
}

#[test]
fn a_refused_epoch_is_tried_again_a_few_times() {
    let refused = |n| Input::Refused {
        epoch: Epoch(n),
        why: "no memory".to_owned(),
    };
    let mut s = Story::running(
        Settings {
            retries: 1,
            ..Settings::default()
        },
        spec(1, 10),
        &[],
    );
    s.tell(refused(0), "");
    s.tick_after(20_000_000, "begin 1 without []");
    s.tell(
        refused(1),
        "stop: no epoch can be begun, after 2 attempts: no memory",
    );
}

#[test]
fn workers_of_a_group_are_restarted_together() {
    use crate::tree::{GroupSpec, Strategy};
    let mut tree = spec(3, 10);
    tree.groups.push(GroupSpec {
        name: "pair".to_owned(),
        strategy: Strategy::OneForAll,
        intensity: None,
        devices: vec![DeviceId(0), DeviceId(2)],
    });
    let mut s = Story::running(Settings::default(), tree, &[&[0, 2]]);
    s.tell(gone(0, 1), "fence 0, kill 2#1, spawn 0#2");
    s.tell(fenced(0, 3), "begin 1 without [0, 2]");
    s.tell(gone(2, 1), "spawn 2#2");
}

#[test]
fn on_loss_restart_waits_though_there_is_a_plan() {
    let settings = Settings {
        on_loss: OnLoss::Restart,
        ..Settings::default()
    };
    let mut s = Story::running(settings, spec(2, 10), &[&[1]]);
    s.tell(gone(1, 1), "fence 0, spawn 1#2");
    s.tell(fenced(0, 3), "");
    s.tell(ready(1, 2), "begin 1 without []");
}

/// Looks at worker 1 for so many milliseconds while its periods, of which `from` are done, take so long; what was done
/// about it.
fn watch(s: &mut Story, epoch: u64, from: u64, ms: u64, period_ms: u64) -> Vec<String> {
    let mut done = Vec::new();
    for n in 1..=ms {
        s.now_ns += 1_000_000;
        let periods = from + n / period_ms;
        let (step, thread) = (s.now_ns, None);
        let sample = Sample {
            step,
            periods,
            planned_ns: 1_000_000,
            waiting: false,
            thread,
        };
        let (epoch, device, generation) = (Epoch(epoch), DeviceId(1), Generation(1));
        let mut out = Vec::new();
        let input = Input::Seen {
            epoch,
            device,
            generation,
            sample,
        };
        s.supervisor.handle(s.now_ns, input, &mut out);
        done.extend(Some(said(&out)).filter(|text| !text.is_empty()));
    }
    done
}

/// Many workers that begin at once take turns on few cores: as long as one after the other takes up its role, nobody is given up.
#[test]
fn a_worker_has_its_time_to_take_up_its_role_after_the_last_one_that_has() {
    let join_ns = 1_000_000_000;
    let mut s = Story::running(Settings::default(), spec(3, 10), &[&[2]]);
    for device in 0..2 {
        s.tick_after(join_ns * 3 / 4, "");
        let seen = Input::Seen {
            epoch: Epoch(0),
            device: DeviceId(device),
            generation: Generation(1),
            sample: Sample {
                step: 1,
                periods: 0,
                planned_ns: 1_000_000,
                waiting: true,
                thread: None,
            },
        };
        s.tell(seen, "");
    }
    s.tick_after(join_ns * 3 / 4, "");
    s.tick_after(join_ns / 2, "fence 0, kill 2#1");
}

#[test]
fn the_work_of_a_slow_device_is_given_to_others_and_given_back_to_try() {
    let settings = Settings {
        join_ns: None,
        ..Settings::default()
    };
    let mut s = Story::running(settings, spec(2, 10), &[&[1]]);
    let none: [&str; 0] = [];
    assert_eq!(watch(&mut s, 0, 0, 400, 2), none, "its pace is learned");
    let bound_ns = s.supervisor.bound_ns(DeviceId(1), 1_000_000);
    assert_eq!(
        watch(&mut s, 0, 200, 800, 8),
        ["quiesce 0"],
        "four times slower"
    );
    assert!(
        s.supervisor.bound_ns(DeviceId(1), 1_000_000) > 3 * bound_ns,
        "slow is not hung"
    );
    s.tell(ended(0, 0, 1, finished(5)), "");
    s.tell(ended(0, 1, 1, finished(5)), "complete 0 at 5");
    s.tell(
        Input::Completed {
            epoch: Epoch(0),
            more: true,
        },
        "begin 1 without [1]",
    );
    // It is alive, and may be needed.
    s.tell(gone(0, 1), "fence 1, spawn 0#2");
    s.tell(fenced(1, 0), "");
    s.tell(ready(0, 2), "begin 2 without [1]");
    // After a while it is tried again; its pace is that of before.
    s.tick_after(6_000_000_000, "quiesce 2");
    s.tell(ended(2, 0, 2, finished(5)), "complete 2 at 5");
    s.tell(
        Input::Completed {
            epoch: Epoch(2),
            more: true,
        },
        "begin 3 without []",
    );
    assert_eq!(watch(&mut s, 3, 0, 800, 8), ["quiesce 3"], "still slow");
}
