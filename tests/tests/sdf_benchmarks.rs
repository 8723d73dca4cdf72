//! The classic SDF benchmark graphs and a large synthetic one: every published number, exactly.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use serde::Deserialize;
use zbmd_ir::{ActorId, ChannelId, TiVec};
use zbmd_scheduler::buffers::{Front, Limits, Mode, Unit, front, size};
use zbmd_scheduler::throughput::{Period, TimedSdf, analyse, analyse_bounded};

#[derive(Deserialize)]
struct Instance {
    actors: Vec<Actor>,
    channels: Vec<Channel>,
    expected: Expected,
}

#[derive(Deserialize)]
struct Actor {
    name: String,
    time: u64,
}

#[derive(Deserialize)]
struct Channel {
    src: String,
    produce: u64,
    dst: String,
    consume: u64,
    initial_tokens: u64,
}

#[derive(Deserialize)]
struct Expected {
    #[serde(default)]
    repetition_vector: BTreeMap<String, u64>,
    firings_per_iteration: Option<u64>,
    iteration_period_unbounded: Option<u64>,
    buffer_throughput: Vec<Published>,
}

#[derive(Deserialize)]
struct Published {
    size: u64,
    #[serde(default)]
    caps: Vec<u64>,
    period: u64,
}

fn load(name: &str) -> Option<(TimedSdf, Expected)> {
    let path = zbmd_tests::data::file(&format!("sdf/{name}.json"))?;
    let text = std::fs::read_to_string(&path).expect("the data is readable");
    let instance: Instance = serde_json::from_str(&text).expect("the data is as documented");
    let mut sdf = TimedSdf::default();
    let ids: BTreeMap<&str, ActorId> =
        instance.actors.iter().map(|a| (a.name.as_str(), sdf.add_actor(&a.name, a.time))).collect();
    for c in &instance.channels {
        let (from, to) = (ids[c.src.as_str()], ids[c.dst.as_str()]);
        sdf.add_channel(from, c.produce, to, c.consume, c.initial_tokens);
    }
    Some((sdf, instance.expected))
}

fn timed<T>(work: impl FnOnce() -> T) -> (T, Duration) {
    let start = Instant::now();
    let result = work();
    (result, start.elapsed())
}

fn row(instance: &str, what: &str, ours: &str, published: &str, took: Duration) {
    println!(
        "{instance:<14} {what:<22} {ours:>22} {published:>22} {:>10.2} ms",
        took.as_secs_f64() * 1e3
    );
}

fn points(front: &Front) -> Vec<(u64, Period)> {
    front.points.iter().map(|p| (p.total, p.period)).collect()
}

fn check(name: &str, whole_front_is_published: bool) {
    let Some((sdf, expected)) = load(name) else { return };
    let (found, took) = timed(|| analyse(&sdf).expect("it runs"));
    for (id, actor) in sdf.actors.iter_enumerated() {
        if let Some(&q) = expected.repetition_vector.get(&actor.name) {
            assert_eq!(found.repetition[id], q, "{name}: repetition of {}", actor.name);
        }
    }
    let firings: u64 = found.repetition.iter().sum();
    let published = expected.firings_per_iteration.unwrap_or(firings);
    assert_eq!(firings, published, "{name}: firings per iteration");
    row(name, "firings", &firings.to_string(), &published.to_string(), took);
    let bound = found.bound.as_ref().expect("every actor excludes itself").to_string();
    if let Some(published) = expected.iteration_period_unbounded {
        assert_eq!(found.period, Period::from(published), "{name}: period, bound by {bound}");
        row(name, "period unbounded", &found.period.to_string(), &published.to_string(), took);
    }

    let (front, took) = timed(|| front(&sdf, Unit::Tokens, Limits::default()).expect("it runs"));
    assert!(front.complete, "{name}: {:?}", points(&front));
    assert_eq!(
        front.points.last().map(|p| p.period),
        Some(found.period),
        "{name}: the front's end"
    );
    let ours = points(&front);
    let published: Vec<(u64, Period)> =
        expected.buffer_throughput.iter().map(|p| (p.size, Period::from(p.period))).collect();
    for &(total, period) in &published {
        let mine = ours.iter().find(|p| p.0 == total).map_or("none".into(), |p| p.1.to_string());
        row(name, &format!("period at {total}"), &mine, &period.to_string(), took);
    }
    if whole_front_is_published {
        assert_eq!(ours, published, "{name}: Pareto points");
    } else {
        println!(
            "{name}: {} points: {:?}",
            ours.len(),
            ours.iter().map(|p| (p.0, p.1.as_f64())).collect::<Vec<_>>()
        );
        assert_eq!(ours.first(), published.first(), "{name}: first Pareto point");
        assert_eq!(ours.last(), published.last(), "{name}: last Pareto point");
    }
    for point in &front.points {
        let at = analyse_bounded(&sdf, &point.capacities).expect("it runs");
        assert_eq!(at.period, point.period, "{name}: capacities of {}", point.total);
        assert_eq!(point.capacities.iter().sum::<u64>(), point.total, "{name}");
    }
    published_capacities(name, &sdf, &expected);
}

/// Capacities that the publication names give its period.
fn published_capacities(name: &str, sdf: &TimedSdf, expected: &Expected) {
    for point in expected.buffer_throughput.iter().filter(|p| !p.caps.is_empty()) {
        let mut caps = point.caps.iter();
        let capacities: TiVec<ChannelId, u64> = sdf
            .channels
            .keys()
            .map(|c| if sdf.is_buffered(c) { caps.next().copied().unwrap_or(0) } else { 0 })
            .collect();
        let found = analyse_bounded(sdf, &capacities).expect("it runs");
        assert_eq!(found.period, Period::from(point.period), "{name}: {:?}", point.caps);
    }
}

#[test]
fn dac06_example() {
    check("dac06_example", true);
}

#[test]
fn samplerate() {
    check("samplerate", true);
}

#[test]
fn modem() {
    check("modem", true);
}

#[test]
fn satellite() {
    check("satellite", true);
}

#[test]
fn h263decoder() {
    check("h263decoder", false);
}
