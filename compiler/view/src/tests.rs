//! Snapshots of every format on small programs, and what must hold of all.

use std::collections::BTreeMap;

use zbmd_ir::testing::programs;
use zbmd_ir::verify::{Verified, VerifiedModes, verify, verify_modes};
use zbmd_ir::walk::visit_slots;
use zbmd_ir::{
    Action, ActorId, ClosedAnswer, DType, Entry, InPort, Mode, Modes, PlanId, Program, RingId,
    Slot, TokenType,
};

use super::expand::{Expansion, MAX_LISTED, parts};
use super::*;

fn verified(program: Program) -> Verified<Program> {
    verify(program).expect("hand-built programs are valid")
}

fn view(program: Program) -> View {
    View::of(&verified(program), &BTreeMap::new())
}

pub(super) fn pin(name: &str, text: &str) {
    insta::with_settings!({ omit_expression => true, prepend_module_to_snapshot => false }, {
        insta::assert_snapshot!(name, text);
    });
}

/// The small programs with the most in them: transfers with stages and without, contingencies, hosts,
/// state.
fn samples() -> [View; 4] {
    [
        view(programs::round_trip()),
        view(programs::spare()),
        view(programs::spare_host()),
        view(programs::state()),
    ]
}

#[test]
fn text_is_as_wide_as_the_terminal() {
    for view in samples() {
        for width in [40, 100, 200] {
            let text = text::plan(&view, &view.plans[0], width);
            let wide = text.lines().find(|l| l.chars().count() > width);
            assert_eq!(wide, None, "{width} columns");
        }
        pin(
            &format!("{}_text", view.model),
            &text::plan(&view, &view.plans[0], 80),
        );
    }
}

#[test]
fn json_has_what_the_documentation_says() {
    for view in samples() {
        let json: serde_json::Value = serde_json::from_str(&json::write(&view)).expect("JSON");
        assert_eq!(json["format"], FORMAT);
        assert_eq!(json["version"], VERSION);
        assert!(ron::from_str::<ron::Value>(&json::ron(&view)).is_ok());
        pin(&format!("{}_json", view.model), &format!("{json:#}"));
    }
}

#[test]
fn graphs() {
    for view in samples() {
        let plan = &view.plans[0];
        let text = graph::dot(&view, plan) + "\n" + &graph::mermaid(&view, plan);
        pin(&format!("{}_graph", view.model), &text);
    }
}

#[test]
fn drawings() {
    for view in samples() {
        pin(
            &format!("{}_svg", view.model),
            &svg::plan(&view, &view.plans[0]),
        );
    }
    // The drawing grows with its width, not with the slots.
    let long = view(programs::long(20_000));
    assert!(svg::plan(&long, &long.plans[0]).len() < 1 << 20);
}

/// The chain that leaves a device and comes back has to fit into a period where two stages become one.
#[test]
fn boundaries_say_what_stages_buy() {
    let view = view(programs::round_trip());
    let plan = &view.plans[0];
    assert_eq!(plan.boundaries.len() as u32, plan.stages - 1);
    for boundary in &plan.boundaries {
        let first = &plan.actors[boundary.first_actor as usize];
        let last = &plan.actors[boundary.last_actor as usize];
        assert_eq!(first.device, last.device);
        assert!(first.stage <= last.stage && last.stage <= boundary.stage);
        // At least the two ends are in the chain.
        let ends_ns = match boundary.first_actor == boundary.last_actor {
            true => first.busy_ns,
            false => first.busy_ns + last.busy_ns,
        };
        assert!(boundary.joined_ns >= ends_ns, "{boundary:?}");
    }
}

#[test]
fn a_long_latency_is_explained_by_changes_of_device() {
    let mut program = programs::round_trip();
    assert!(view(program.clone()).plans[0].device_changes.is_empty());

    let plan = &mut program.plans[PlanId(0)];
    plan.latency_ns = 5 * plan.period_ns;
    let view = view(program);
    let plan = &view.plans[0];
    let device_of = |actor: &u32| plan.actors[*actor as usize].device;
    let devices: Vec<u32> = plan.device_changes.iter().map(device_of).collect();
    assert_eq!(devices, [0, 1], "the way back has a delay");
    let drawn = text::plan(&view, plan, 100);
    assert!(
        drawn.contains("latency of 5.0 periods, as work changes its device 1 time: cpu:0 "),
        "{drawn}"
    );
}

/// Names come from models: nothing that they hold becomes markup.
#[test]
fn names_are_no_markup() {
    let mut program = programs::round_trip();
    let name = "</script><b>&\"\\{{view}}";
    program.graph.name = name.into();
    program.graph.actors[ActorId(1)].name = name.into();
    let view = view(program);
    let page = html::page(&view);
    assert_eq!(page.matches("</script>").count(), 2, "the page's own");
    assert!(!page.contains("<b>"));
    let json = page
        .split("id=\"view\" data-shown=\"0\">")
        .nth(1)
        .and_then(|p| p.split("</script>").next());
    let back: serde_json::Value = serde_json::from_str(json.expect("the data")).expect("JSON");
    assert_eq!(back[0]["model"], name);
    assert!(!svg::plan(&view, &view.plans[0]).contains("<b>"));
    let dot = graph::dot(&view, &view.plans[0]);
    assert!(dot.contains("label=\"</script><b>&\\\"\\\\"), "{dot}");
}

/// Two modes of which the second has a slower plan and an actor of another name; one may go over to the other, not back.
fn two_modes() -> VerifiedModes {
    let quick = programs::spare();
    let mut slow = quick.clone();
    slow.graph.actors[ActorId(1)].name = "long fir".into();
    for plan in &mut slow.plans {
        plan.period_ns += 1_000;
        plan.latency_ns += 4_000;
    }
    let list = [("quick", quick), ("slow", slow)];
    let list = list.map(|(name, program)| Mode {
        name: name.to_owned(),
        program,
    });
    verify_modes(Modes {
        list: list.into(),
        changes: vec![(0, 1)],
        decision: None,
    })
    .expect("valid modes")
}

#[test]
fn modes_are_told_with_their_plans_and_the_worst_of_all() {
    let modes = two_modes();
    let views = [0, 1].map(|shown| View::of_mode(&modes, shown, &BTreeMap::new()));
    for view in &views {
        for width in [40, 100, 200] {
            let text = text::plan(view, &view.plans[0], width);
            let wide = text.lines().find(|l| l.chars().count() > width);
            assert_eq!(wide, None, "{width} columns");
        }
        let bounds = &view.modes.as_ref().expect("modes").bounds;
        assert!(bounds.mean_ns >= views[1].plans[0].period_ns);
        let change = bounds.worst.as_ref().expect("a change");
        assert_eq!(
            (change.from.as_str(), change.to.as_str()),
            ("quick", "slow")
        );
        let loss = bounds.worst_loss.as_ref().expect("a loss");
        assert_eq!(
            (loss.mode.as_str(), loss.period_ns),
            ("slow", views[1].plans[1].period_ns)
        );
    }
    pin(
        "modes_text",
        &text::plan(&views[1], &views[1].plans[0], 100),
    );
    let json: serde_json::Value = serde_json::from_str(&json::write(&views[1])).expect("JSON");
    pin("modes_json", &format!("{:#}", json["modes"]));
    assert!(view(programs::spare()).modes.is_none());
}

#[test]
fn a_page_holds_all_modes_and_begins_with_the_one_asked_for() {
    let modes = two_modes();
    let views = [0, 1].map(|shown| View::of_mode(&modes, shown, &BTreeMap::new()));
    let page = html::page_of_modes(&views, 1);
    let json = page.split("id=\"view\" data-shown=\"1\">").nth(1);
    let json = json.and_then(|rest| rest.split("</script>").next());
    let back: serde_json::Value = serde_json::from_str(json.expect("the data")).expect("JSON");
    for (shown, view) in views.iter().enumerate() {
        let alone: serde_json::Value = serde_json::from_str(&json::write(view)).expect("JSON");
        assert_eq!(back[shown], alone);
        assert_eq!(back[shown]["modes"]["shown"], shown);
    }
    assert_eq!(page, html::page_of_modes(&views, 1));
}

#[test]
fn gates_are_told_with_what_is_behind_them() {
    let mut program = programs::round_trip();
    let fir = ActorId(1);
    let port = InPort {
        name: "gate".to_owned(),
        token: TokenType::scalar(DType::F32),
        rate: 1,
        window: 3,
    };
    let gated =
        program.graph.actors[fir].with_gate(port, ClosedAnswer::Zero, |_| ClosedAnswer::Zero);
    program.graph.actors[fir] = gated;
    let mut view = view(programs::round_trip());
    let channel = view.actors[1].inputs[0].channel;
    let shown = &mut view.actors[1];
    shown.gate = program.graph.actors[fir].gate().map(build::gate_view);
    shown.inputs.push(PortView {
        name: "gate".to_owned(),
        rate: 1,
        window: 3,
        channel,
    });

    let text = text::plan(&view, &view.plans[0], 200);
    let opened_by = &view.channels[channel as usize].name;
    let line = text.lines().find(|line| line.starts_with("gate "));
    let line = line.expect("a line on the gate");
    assert!(
        line.starts_with(&format!("gate {opened_by}: 1 actor behind it, ")),
        "{line}"
    );
    assert!(line.contains("closed: zero, state: zero"), "{line}");
    assert!(line.ends_with(&view.actors[1].name), "{line}");
    let device = view.plans[0].actors[1].device as usize;
    view.devices[device].backend = "vulkan".to_owned();
    let text = text::plan(&view, &view.plans[0], 200);
    let launched = format!(", not launched on {}: ", view.devices[device].name);
    assert!(text.contains(&launched), "{text}");
    let json: serde_json::Value = serde_json::from_str(&json::write(&view)).expect("JSON");
    assert_eq!(json["actors"][1]["gate"]["states"], "zero");
    assert_eq!(json["actors"][0]["gate"], serde_json::Value::Null);
}

/// The page loads nothing: no address in it but the names of XML's own namespaces.
#[test]
fn the_page_needs_no_network() {
    let page = html::page(&view(programs::spare()));
    for word in ["http:", "https:", "src=", "href=", "@import", "url("] {
        assert!(!page.contains(word), "the page has `{word}`");
    }
}

/// Slots counted out are what the executor would do, checked against a walk that counts every execution by itself.
#[test]
fn loops_are_counted_out() {
    let nested = |count, body| Entry::Loop { count, body };
    let fire = |actor, start_ns, first, count| {
        let action = Action::Fire {
            actor: ActorId(actor),
            first,
            count,
        };
        Entry::Slot(Slot {
            stage: 0,
            start_ns,
            duration_ns: 5,
            action,
        })
    };
    // 3 x (a0; 2 x (a1 a1); a0): 30 ns in a run.
    let inner = nested(2, vec![fire(1, 15, 0, 2), fire(1, 20, 2, 1)]);
    let entries = [
        fire(0, 0, 0, 1),
        nested(3, vec![fire(0, 10, 1, 2), inner, fire(0, 35, 3, 1)]),
        fire(1, 200, 18, 4),
    ];
    let slots = Expansion::new().lane(&entries);
    let found: Vec<(u64, u32, u64, u64)> = slots
        .iter()
        .map(|s| (s.start_ns, s.id, s.first, s.count))
        .collect();
    let mut expected = vec![(0, 0, 0, 1)];
    let mut next = [1, 0];
    for run in 0..3 {
        let shift = 30 * run;
        for (actor, at, count) in [
            (0, 10, 2),
            (1, 15, 2),
            (1, 20, 1),
            (1, 25, 2),
            (1, 30, 1),
            (0, 35, 1),
        ] {
            expected.push((at + shift, actor as u32, next[actor], count));
            next[actor] += count;
        }
    }
    expected.push((200, 1, 18, 4));
    assert_eq!(found, expected);
    // What is summed without counting out agrees.
    let (mut times, mut last) = (0, 0);
    visit_slots(&entries, |v| {
        times += v.executions;
        last = last.max(v.last_end_ns);
    });
    assert_eq!((times as usize, last), (slots.len(), 205));
}

#[test]
fn long_loops_stand_as_one_slot() {
    let fire = |actor, start_ns, count| {
        let action = Action::Fire {
            actor: ActorId(actor),
            first: 0,
            count,
        };
        Entry::Slot(Slot {
            stage: 2,
            start_ns,
            duration_ns: 7 + u64::from(actor),
            action,
        })
    };
    let body = vec![fire(0, 100, 1), fire(1, 107, 2)];
    let many = Entry::Loop {
        count: MAX_LISTED,
        body: body.clone(),
    };
    let after = Entry::Loop { count: 2, body };
    let slots = Expansion::new().lane(&[many, after]);
    assert_eq!(slots.len(), 5);
    let whole = SlotView {
        start_ns: 100,
        duration_ns: 15 * MAX_LISTED,
        stage: 2,
        act: Act::Loop,
        id: 1,
        first: 0,
        count: 2 * MAX_LISTED,
    };
    assert_eq!(slots[0], whole);
}

/// Every firing and every token sent is listed exactly once, and slots of a lane neither overlap nor go back.
#[test]
fn nothing_is_lost_or_repeated() {
    let all = programs::all().into_iter().chain([programs::long(500)]);
    for program in all {
        let shown = view(program.clone());
        for (plan, data) in shown.plans.iter().zip(&program.plans) {
            let mut next: BTreeMap<(Act, u32), u64> = BTreeMap::new();
            for lane in &plan.lanes {
                for pair in lane.slots.windows(2) {
                    assert!(
                        pair[0].end_ns() <= pair[1].start_ns,
                        "{}: {pair:?}",
                        shown.model
                    );
                }
                for slot in lane.slots.iter().filter(|s| s.count > 0) {
                    let next = next.entry((slot.act, slot.id)).or_default();
                    assert_eq!(slot.first, *next, "{}: {slot:?}", shown.model);
                    *next += slot.count;
                }
                assert_eq!(lane.executions, lane.slots.len() as u64);
            }
            for (a, fired) in plan.actors.iter().enumerate() {
                let firings = data.block * shown.actors[a].repetitions;
                assert_eq!(next[&(Act::Fire, a as u32)], firings);
                assert_eq!(fired.firings, firings);
            }
            for (r, ring) in plan.rings.iter().enumerate() {
                for act in [Act::Send, Act::Recv] {
                    assert_eq!(next[&(act, r as u32)], ring.tokens);
                }
            }
            let recvs = plan
                .lanes
                .iter()
                .flat_map(|l| &l.slots)
                .filter(|s| s.act == Act::Recv);
            assert_eq!(
                plan.transfers.len(),
                recvs.count(),
                "every receipt has its send"
            );
        }
    }
}

#[test]
fn a_receipt_waits_for_the_send_of_its_last_token() {
    let shown = view(programs::two_devices());
    let plan = &shown.plans[0];
    let ends: Vec<_> = plan
        .transfers
        .iter()
        .map(|t| (t.from, t.to, t.periods))
        .collect();
    // The sender's slots are in, send, in, send; the receiver is a stage behind.
    assert_eq!(ends, [((0, 1), (1, 0), 1), ((0, 3), (1, 2), 1)]);
    assert_eq!(parts(&Action::Release { ring: RingId(3) }).1, 3);
}

#[test]
fn plans_are_found_by_name_and_number() {
    let shown = view(programs::spare());
    assert_eq!(shown.plan("main"), Some(0));
    assert_eq!(shown.plan("1"), Some(1));
    assert_eq!(shown.plan("main without 1 like cpu:0"), Some(1));
    assert_eq!(shown.plan("2"), None);
    assert_eq!(shown.plans[PlanId(1).index()].memories.len(), 1);
}

#[test]
fn everything_is_deterministic() {
    for program in programs::all() {
        let (a, b) = (view(program.clone()), view(program));
        assert_eq!(json::write(&a), json::write(&b));
        assert_eq!(html::page(&a), html::page(&b));
        let trace = |v: &View| perfetto::plan(v, &v.plans[0], None);
        assert_eq!(trace(&a), trace(&b));
    }
}

/// A message as its fields: numbers, or bytes.
#[derive(Debug)]
enum Field<'a> {
    Number(u64),
    Bytes(&'a [u8]),
}

/// Reads Protocol Buffers, independently of what writes them.
fn fields(mut bytes: &[u8]) -> Vec<(u64, Field<'_>)> {
    fn varint(bytes: &mut &[u8]) -> u64 {
        let mut value = 0;
        for shift in (0..).step_by(7) {
            let (&byte, rest) = bytes.split_first().expect("a varint ends");
            *bytes = rest;
            value |= u64::from(byte & 0x7f) << shift;
            if byte < 0x80 {
                break;
            }
        }
        value
    }
    let mut out = Vec::new();
    while !bytes.is_empty() {
        let key = varint(&mut bytes);
        let field = match key & 7 {
            0 => Field::Number(varint(&mut bytes)),
            1 => {
                let (number, rest) = bytes.split_first_chunk().expect("8 bytes");
                bytes = rest;
                Field::Number(u64::from_le_bytes(*number))
            }
            2 => {
                let length = varint(&mut bytes) as usize;
                let (inner, rest) = bytes.split_at(length);
                bytes = rest;
                Field::Bytes(inner)
            }
            other => panic!("wire type {other}"),
        };
        out.push((key >> 3, field));
    }
    out
}

fn number(fields: &[(u64, Field<'_>)], wanted: u64) -> Option<u64> {
    fields.iter().find_map(|(key, f)| match f {
        Field::Number(n) if *key == wanted => Some(*n),
        _ => None,
    })
}

fn inner<'a>(of: &[(u64, Field<'a>)], wanted: u64) -> Vec<Vec<(u64, Field<'a>)>> {
    let bytes = of.iter().filter_map(|(key, f)| match f {
        Field::Bytes(b) if *key == wanted => Some(*b),
        _ => None,
    });
    bytes.map(fields).collect()
}

/// A slice: track, start, end, name, the flows that leave it and those that reach it.
pub(super) type Slice = (u64, u64, u64, String, Vec<u64>, Vec<u64>);

/// The slices of a trace, by track and start.
pub(super) fn slices(trace: &[u8]) -> Vec<Slice> {
    let mut names: BTreeMap<u64, String> = BTreeMap::new();
    let mut open: BTreeMap<u64, Slice> = BTreeMap::new();
    let mut out = Vec::new();
    let mut cleared = false;
    for packet in inner(&fields(trace), 1) {
        let flags = number(&packet, 13).unwrap_or(0);
        cleared |= flags & 1 == 1;
        assert!(
            flags & 2 == 0 || cleared,
            "what needs the state comes after it"
        );
        for interned in inner(&packet, 12) {
            for (key, name) in &interned {
                let Field::Bytes(bytes) = name else { continue };
                let entry = fields(bytes);
                let Some((_, Field::Bytes(text))) = entry.iter().find(|(k, _)| *k == 2) else {
                    continue;
                };
                if *key == 2 {
                    let text = String::from_utf8(text.to_vec()).expect("a name");
                    names.insert(number(&entry, 1).expect("a number"), text);
                }
            }
        }
        for event in inner(&packet, 11) {
            let at = number(&packet, 8).expect("a time");
            let track = number(&event, 11).expect("a track");
            let all = |wanted: u64| {
                let of = event.iter().filter(move |(key, _)| *key == wanted);
                of.filter_map(|(_, f)| match f {
                    Field::Number(n) => Some(*n),
                    Field::Bytes(_) => None,
                })
                .collect::<Vec<u64>>()
            };
            match number(&event, 9) {
                Some(1) => {
                    let name = names[&number(&event, 10).expect("a name")].clone();
                    let before = open.insert(track, (track, at, 0, name, all(47), all(48)));
                    assert_eq!(before, None, "slices of a lane are not nested");
                }
                Some(2) => {
                    let mut slice = open.remove(&track).expect("it began");
                    slice.2 = at;
                    out.push(slice);
                }
                // Something that happened.
                Some(3) => {}
                other => panic!("event of type {other:?}"),
            }
        }
    }
    assert!(open.is_empty());
    out.sort();
    out
}

#[test]
fn a_trace_reads_back_as_the_calendar() {
    for view in [
        view(programs::round_trip()),
        view(programs::two_devices()),
        view(programs::long(64)),
    ] {
        let plan = &view.plans[0];
        let periods = 3;
        let found = slices(&perfetto::plan(&view, plan, Some(periods)));
        let mut expected = Vec::new();
        for (l, lane) in plan.lanes.iter().enumerate() {
            for (slot, p) in lane
                .slots
                .iter()
                .flat_map(|s| (0..periods).map(move |p| (s, p)))
            {
                if p >= u64::from(slot.stage) {
                    let at = p * plan.period_ns;
                    let name = view.short_label(plan, slot);
                    expected.push((
                        (2 << 32) + l as u64,
                        at + slot.start_ns,
                        at + slot.end_ns(),
                        name,
                    ));
                }
            }
        }
        expected.sort();
        let bare: Vec<_> = found.iter().map(|s| (s.0, s.1, s.2, s.3.clone())).collect();
        assert_eq!(bare, expected, "{}", view.model);
        // Every flow that reaches a slice has left one before that ends; as many as transfers that fit.
        let left: BTreeMap<u64, u64> = found
            .iter()
            .flat_map(|s| s.4.iter().map(|&id| (id, s.1)))
            .collect();
        let reached: Vec<(u64, u64)> = found
            .iter()
            .flat_map(|s| s.5.iter().map(|&id| (id, s.2)))
            .collect();
        assert!(reached.iter().all(|(id, end)| left[id] < *end));
        let transfers: u64 = plan
            .transfers
            .iter()
            .map(|t| periods - u64::from(t.periods))
            .sum();
        assert_eq!(reached.len() as u64, transfers);
    }
}
