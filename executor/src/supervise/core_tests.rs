//! The supervisor, one story each: inputs on the left, what it does about them on the right.

use super::*;
use crate::supervise::tree::{DeviceSpec, Intensity};

/// Which losses have a plan; every device that is left is used.
struct Borne(u32, Vec<Vec<u32>>);

impl Plans for Borne {
    fn can_run(&self, lost: &[DeviceId]) -> bool {
        lost.is_empty() || self.1.iter().any(|l| l.iter().map(|d| DeviceId(*d)).eq(lost.to_vec()))
    }

    fn uses(&self, lost: &[DeviceId]) -> Vec<DeviceId> {
        (0..self.0).map(DeviceId).filter(|d| !lost.contains(d)).collect()
    }
}

fn spec(devices: u32, losses: u32) -> TreeSpec {
    let device =
        |i| DeviceSpec { name: format!("cpu:{i}"), restart: Restart::Permanent, intensity: None };
    TreeSpec {
        strategy: Default::default(),
        intensity: Intensity { losses, period_ns: 10_000_000_000 },
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
        let mut story =
            Self { supervisor: Supervisor::new(settings, tree, borne), now_ns: 1_000_000_000 };
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
            let last = if i + 1 == devices { "begin 0 without []" } else { "" };
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
        Action::Spawn { device, incarnation } => Some(format!("spawn {}{incarnation}", device.0)),
        Action::Kill { device, incarnation } => Some(format!("kill {}{incarnation}", device.0)),
        Action::Begin { epoch, lost } => {
            let lost: Vec<u32> = lost.iter().map(|d| d.0).collect();
            Some(format!("begin {} without {lost:?}", epoch.0))
        }
        Action::Fence { epoch } => Some(format!("fence {}", epoch.0)),
        Action::Quiesce { epoch } => Some(format!("quiesce {}", epoch.0)),
        Action::Complete { epoch, blocks, swap } => {
            Some(format!("complete {} at {blocks}{}", epoch.0, if *swap { " swap" } else { "" }))
        }
        Action::Slow { device, advice, .. } => Some(format!("slow {}: {advice:?}", device.0)),
        Action::Stop(verdict) => Some(format!("stop: {verdict}")),
        Action::Event(_) => None,
    });
    lines.collect::<Vec<_>>().join(", ")
}

fn ready(device: u32, incarnation: u32) -> Input {
    Input::Ready { device: DeviceId(device), incarnation: Incarnation(incarnation) }
}

fn gone(device: u32, incarnation: u32) -> Input {
    let (device, incarnation) = (DeviceId(device), Incarnation(incarnation));
    Input::Gone { device, incarnation, cause: Cause::Killed { signal: 9 } }
}

fn ended(epoch: u64, device: u32, incarnation: u32, end: End) -> Input {
    let (device, incarnation) = (DeviceId(device), Incarnation(incarnation));
    Input::Ended { epoch: Epoch(epoch), device, incarnation, end }
}

fn fenced(epoch: u64, committed_blocks: u64) -> Input {
    Input::Fenced { epoch: Epoch(epoch), committed_blocks }
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
    s.tell(Input::Completed { epoch: Epoch(1), more: true }, "begin 2 without []");
    s.tell(ended(2, 0, 1, finished(9)), "");
    s.tell(ended(2, 1, 2, finished(9)), "complete 2 at 9");
    s.tell(Input::Completed { epoch: Epoch(2), more: false }, "stop: finished");
    s.tell(gone(0, 1), "");
}

#[test]
fn a_loss_without_a_plan_waits_for_the_restart() {
    let mut s = Story::running(Settings::default(), spec(2, 10), &[&[1]]);
    s.tell(gone(0, 1), "fence 0, spawn 0#2");
    s.tell(fenced(0, 7), "");
    s.tell(ready(0, 2), "begin 1 without []");
}
