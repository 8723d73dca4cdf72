//! Snapshots of every text form.

use super::*;
use crate::testing::programs;
use crate::verify::graph::repetition;

fn snapshot(name: &str, p: &Program) {
    let q = repetition(&p.graph).expect("a valid graph");
    let mut text = program(p, Some(&q), TextOptions::default());
    for plan in &p.plans {
        text.push_str(&schedule(p, plan));
    }
    insta::with_settings!({ omit_expression => true, prepend_module_to_snapshot => false }, {
        insta::assert_snapshot!(name, text);
    });
}

#[test]
fn hand_built_programs() {
    for program in programs::all() {
        snapshot(&program.graph.name.clone(), &program);
    }
}

#[test]
fn times_are_cut_off() {
    let mut p = programs::two_devices();
    let without =
        |p: &Program| calendar(p, &p.plans[crate::PlanId(0)], TextOptions { times: false });
    let text = without(&p);
    insta::with_settings!({ omit_expression => true, prepend_module_to_snapshot => false }, {
        insta::assert_snapshot!("two_devices_without_times", text);
    });
    // Nothing of it depends on times.
    let plan = &mut p.plans[crate::PlanId(0)];
    plan.period_ns = 1_310_000;
    plan.bound_by = "link".into();
    assert_eq!(without(&p), text);
}

#[test]
fn variants_are_named_where_they_are_not_the_default() {
    let mut p = programs::chain();
    let plan = crate::PlanId(0);
    let text = |p: &Program| calendar(p, &p.plans[plan], TextOptions::default());
    assert!(!text(&p).contains(" by 6x64"));
    p.plans[plan].variants.insert(ActorId(1), "6x64".to_owned());
    assert!(
        text(&p).contains("s0  up[0..4] by 6x64  a0+0"),
        "{}",
        text(&p)
    );
}

/// Text is also made of what the verifier refuses.
#[test]
fn wrong_ids_do_not_panic() {
    let plan = crate::PlanId(0);
    for valid in programs::all() {
        for id in [99, u32::MAX] {
            let mut wrong_writer = valid.clone();
            wrong_writer.graph.channels[ChannelId(0)].from.actor = ActorId(id);
            let mut wrong_buffer = valid.clone();
            wrong_buffer.plans[plan].buffers[crate::BufferId(0)].channel = ChannelId(id);
            let mut wrong_device = valid.clone();
            wrong_device.plans[plan].placement[ActorId(1)] = DeviceId(id);
            let mut unplaced = valid.clone();
            unplaced.plans[plan].placement.truncate(1);
            for mutant in [wrong_writer, wrong_buffer, wrong_device, unplaced] {
                let mut text = program(&mutant, None, TextOptions::default());
                text.push_str(&schedule(&mutant, &mutant.plans[plan]));
                assert!(text.contains('?'), "{text}");
            }
        }
    }
}
