//! The classic SDF benchmark graphs and large synthetic ones: every published number, exactly.
//!
//! Each check panics where a figure differs and prints one line for each: instance, what, ours, published, time.
//! Tests call them on small graphs, `cargo bench -p zbmd-tests --bench sdf` on all.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use serde::Deserialize;
use zbmd_ir::{ActorId, ChannelId, TiVec};
use zbmd_scheduler::buffers::{Mode, ParetoFront, ParetoPoint, SizingLimits, Unit, front, size};
use zbmd_scheduler::order::{least_buffers, looped};
use zbmd_scheduler::throughput::{Period, TimedSdf, analyse, analyse_bounded};

use crate::data;

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
    let path = data::file(&format!("sdf/{name}.json"))?;
    let text = std::fs::read_to_string(&path).expect("the data is readable");
    let instance: Instance = serde_json::from_str(&text).expect("the data is as documented");
    let mut sdf = TimedSdf::default();
    let ids: BTreeMap<&str, ActorId> = instance
        .actors
        .iter()
        .map(|a| (a.name.as_str(), sdf.add_actor(&a.name, a.time)))
        .collect();
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

/// Prints the titles of the columns.
pub fn header() {
    println!(
        "{:<14} {:<32} {:>20} {:>20} {:>13}",
        "instance", "what", "ours", "beside", "time"
    );
}

fn row(instance: &str, what: &str, ours: &str, published: &str, took: Duration) {
    println!(
        "{instance:<14} {what:<32} {ours:>20} {published:>20} {:>10.2} ms",
        took.as_secs_f64() * 1e3
    );
}

fn points(front: &ParetoFront) -> Vec<(u64, Period)> {
    front.points.iter().map(total).collect()
}

fn published(expected: &Expected) -> Vec<(u64, Period)> {
    expected
        .buffer_throughput
        .iter()
        .map(|p| (p.size, Period::from(p.period)))
        .collect()
}

/// Repetition vector and period; the period is returned.
fn check_throughput(name: &str, sdf: &TimedSdf, expected: &Expected) -> Period {
    let (found, took) = timed(|| analyse(sdf).expect("it runs"));
    for (id, actor) in sdf.actors.iter_enumerated() {
        if let Some(&q) = expected.repetition_vector.get(&actor.name) {
            assert_eq!(
                found.repetition[id], q,
                "{name}: repetition of {}",
                actor.name
            );
        }
    }
    let firings: u64 = found.repetition.iter().sum();
    let published = expected.firings_per_iteration.unwrap_or(firings);
    assert_eq!(firings, published, "{name}: firings per iteration");
    row(
        name,
        "firings",
        &firings.to_string(),
        &published.to_string(),
        took,
    );
    let bound = found
        .bound
        .as_ref()
        .expect("every component has a cycle")
        .to_string();
    if let Some(published) = expected.iteration_period_unbounded {
        assert_eq!(
            found.period,
            Period::from(published),
            "{name}: period, bound by {bound}"
        );
        let what = format!("period, by {bound}");
        row(
            name,
            &what,
            &found.period.to_string(),
            &published.to_string(),
            took,
        );
    }
    found.period
}

/// The whole front, each point of it confirmed by a simulation.
fn check_front(
    name: &str,
    sdf: &TimedSdf,
    shortest: Period,
    published: &[(u64, Period)],
) -> ParetoFront {
    let (front, took) =
        timed(|| front(sdf, Unit::Tokens, SizingLimits::default()).expect("it runs"));
    assert!(front.complete, "{name}: {:?}", points(&front));
    assert_eq!(
        front.points.last().map(|p| p.period),
        Some(shortest),
        "{name}: the front's end"
    );
    row(
        name,
        "Pareto points",
        &front.points.len().to_string(),
        "",
        took,
    );
    for &(total, period) in published {
        let at = front.points.iter().find(|p| p.total == total);
        let ours = at.map_or("none".into(), |p| p.period.to_string());
        row(
            name,
            &format!("period at {total}"),
            &ours,
            &period.to_string(),
            took,
        );
    }
    for point in &front.points {
        let at = analyse_bounded(sdf, &point.capacities).expect("it runs");
        assert_eq!(
            at.period, point.period,
            "{name}: capacities of {}",
            point.total
        );
        assert_eq!(point.capacities.iter().sum::<u64>(), point.total, "{name}");
        let simulated = simulate(sdf, &point.capacities.raw);
        assert_eq!(
            simulated,
            Some(point.period),
            "{name}: simulation at {}",
            point.total
        );
    }
    front
}

/// Repetition vector, period, front and modes of one of the small published graphs.
///
/// # Panics
/// If a figure differs from the published one.
pub fn check(name: &str) {
    let Some((sdf, expected)) = load(name) else {
        return;
    };
    let shortest = check_throughput(name, &sdf, &expected);
    let published = published(&expected);
    let front = check_front(name, &sdf, shortest, &published);
    assert_eq!(points(&front), published, "{name}: Pareto points");
    published_capacities(name, &sdf, &expected);
    check_modes(name, &sdf, &front);
}

/// The modes agree with the front.
fn check_modes(name: &str, sdf: &TimedSdf, front: &ParetoFront) {
    let (Some(first), Some(last)) = (front.points.first(), front.points.last()) else {
        return;
    };
    let cases = [
        (Mode::Min(Unit::Tokens), first),
        (Mode::Throughput(Unit::Tokens), last),
        (Mode::Within(last.total + 5, Unit::Tokens), last),
        (Mode::Within(first.total, Unit::Tokens), first),
        // Tokens of one byte: bytes are tokens.
        (Mode::Within(first.total, Unit::Bytes), first),
    ];
    for (mode, point) in cases {
        let (found, took) = timed(|| size(sdf, mode, SizingLimits::default()).expect("it runs"));
        let (ours, theirs) = ((found.tokens, found.period), (point.total, point.period));
        assert!(found.exact, "{name}: {mode:?} is not proven");
        assert_eq!(ours, theirs, "{name}: {mode:?}");
        let text = |(tokens, period): (u64, Period)| format!("{tokens} -> {period}");
        row(name, &format!("{mode:?}"), &text(ours), &text(theirs), took);
    }
}

/// Period of the self-timed run, firing by firing; it shares nothing with the analysis. `None` for a deadlock.
fn simulate(sdf: &TimedSdf, capacities: &[u64]) -> Option<Period> {
    // (from, produced, to, consumed, tokens), forward and back.
    let mut links: Vec<(usize, u64, usize, u64, u64)> = Vec::new();
    for (id, ch) in sdf.channels.iter_enumerated() {
        for r in &ch.readers {
            links.push((ch.from.index(), ch.produce, r.to.index(), r.consume, r.free));
            if r.to != ch.from {
                let space = capacities[id.index()] - r.free;
                links.push((r.to.index(), r.consume, ch.from.index(), ch.produce, space));
            }
        }
    }
    let actors = sdf.actors.len();
    let into: Vec<Vec<usize>> = (0..actors)
        .map(|a| (0..links.len()).filter(|&l| links[l].2 == a).collect())
        .collect();
    let q = sdf.repetition().expect("consistent");
    let rarest = (0..actors).min_by_key(|&a| q.raw[a])?;
    let mut running: BTreeMap<u64, Vec<usize>> = BTreeMap::new();
    let mut seen = BTreeMap::new();
    let (mut now, mut fired) = (0u64, 0u64);
    let mut awake: Vec<usize> = (0..actors).collect();
    loop {
        let before = fired;
        while let Some(a) = awake.pop() {
            while into[a].iter().all(|&l| links[l].4 >= links[l].3) {
                into[a].iter().for_each(|&l| links[l].4 -= links[l].3);
                running
                    .entry(now + sdf.actors.raw[a].time)
                    .or_default()
                    .push(a);
                fired += u64::from(a == rarest);
            }
        }
        if fired > before {
            let left: Vec<(u64, Vec<usize>)> = running
                .iter()
                .map(|(t, a)| {
                    let mut a = a.clone();
                    a.sort_unstable();
                    (t - now, a)
                })
                .collect();
            let tokens: Vec<u64> = links.iter().map(|l| l.4).collect();
            if let Some((then, count)) = seen.insert((tokens, left), (now, fired)) {
                let time = u128::from(now - then) * u128::from(q.raw[rarest]);
                return Period::new(time, u128::from(fired - count));
            }
        }
        let (time, ended) = running.pop_first()?;
        now = time;
        for a in ended {
            for l in links.iter_mut().filter(|l| l.0 == a) {
                l.4 += l.1;
                awake.push(l.2);
            }
        }
    }
}

/// Capacities that the publication names give its period.
fn published_capacities(name: &str, sdf: &TimedSdf, expected: &Expected) {
    for point in expected
        .buffer_throughput
        .iter()
        .filter(|p| !p.caps.is_empty())
    {
        let mut caps = point.caps.iter();
        let capacities: TiVec<ChannelId, u64> = sdf
            .channels
            .keys()
            .map(|c| {
                if sdf.is_buffered(c) {
                    caps.next().copied().unwrap_or(0)
                } else {
                    0
                }
            })
            .collect();
        let found = analyse_bounded(sdf, &capacities).expect("it runs");
        assert_eq!(
            found.period,
            Period::from(point.period),
            "{name}: {:?}",
            point.caps
        );
    }
}

/// The published repetition vector and period hold for the published times, the published Pareto points for half
/// the times of `vld` and `mc`.
///
/// With 594 places between `vld` and `iq` and 1 between `iq` and `idct`, a firing of `vld` waits until the 594
/// firings of `iq` before it have ended, and all but the last of those wait for `idct` too: no schedule is shorter
/// than 26018 + 594 * 559 + 593 * 486 = 646262, though 633253 is published, which is just that with 13009 for `vld`.
///
/// # Panics
/// If a figure is wrong.
pub fn h263decoder() {
    let name = "h263decoder";
    let Some((mut sdf, expected)) = load(name) else {
        return;
    };
    let shortest = check_throughput(name, &sdf, &expected);
    let front = check_front(name, &sdf, shortest, &[]);
    let ends =
        |front: &ParetoFront| [front.points.first(), front.points.last()].map(|p| p.map(total));
    assert_eq!(
        ends(&front),
        [Some((1189, 646_262.into())), Some((1257, 332_046.into()))]
    );
    check_modes(name, &sdf, &front);

    let name = "h263 halved";
    for actor in sdf
        .actors
        .iter_mut()
        .filter(|a| a.name == "vld" || a.name == "mc")
    {
        actor.time /= 2;
    }
    let published = published(&expected);
    let front = check_front(name, &sdf, shortest, &published);
    assert_eq!(front.points.len(), 36);
    assert_eq!(
        ends(&front),
        [published.first(), published.last()].map(|p| p.copied())
    );
    published_capacities(name, &sdf, &expected);
}

fn total(point: &ParetoPoint) -> (u64, Period) {
    (point.total, point.period)
}

/// Least tokens of the CD-to-DAT chain in any order, as a nested loop, and flat.
///
/// # Panics
/// If a figure differs from the published one.
pub fn cd_to_dat_orders() {
    let Some((sdf, _)) = load("samplerate") else {
        return;
    };
    let (least, took) = timed(|| least_buffers(&sdf, SizingLimits::default()).expect("it runs"));
    row(
        "samplerate",
        "least tokens",
        &least.tokens.to_string(),
        "32",
        took,
    );
    assert_eq!((least.tokens, least.exact), (32, true));
    for (what, depth, published) in [("nested loops", 4, 264), ("flat", 0, 1021)] {
        let (found, took) = timed(|| looped(&sdf, depth).expect("a chain"));
        row(
            "samplerate",
            what,
            &found.tokens.to_string(),
            &published.to_string(),
            took,
        );
        assert_eq!((found.tokens, found.exact), (published, true));
    }
}

/// A chain of actors that fire one at a time.
fn chain(times: &[u64], rates: &[(u64, u64)]) -> TimedSdf {
    let mut sdf = TimedSdf::default();
    for (i, &time) in times.iter().enumerate() {
        let id = sdf.add_actor(&format!("n{i}"), time);
        sdf.add_channel(id, 1, id, 1, 1);
    }
    for (i, &(produce, consume)) in rates.iter().enumerate() {
        sdf.add_channel(i.into(), produce, (i + 1).into(), consume, 0);
    }
    sdf
}

/// A chain of up to 9 actors whose rates share few factors: throughput, the first trade-off, and all orders. The
/// whole of it has a million firings per iteration, without its first 3 actors 45,869.
///
/// With the least buffers the critical cycle goes through 300,000 of the million firings, and each analysis takes
/// seconds: so the budget ends the search for trade-offs early, with what is proved so far.
///
/// # Panics
/// If a figure is wrong.
pub fn coprime_rates(without: usize) {
    let name = if without == 0 { "rates" } else { "rates, part" };
    let rates = [
        (1, 1),
        (13, 20),
        (4, 5),
        (25, 21),
        (21, 19),
        (3, 5),
        (17, 12),
        (19, 12),
    ];
    let sdf = chain(
        &[19, 20, 29, 37, 30, 29, 48, 33, 21][without..],
        &rates[without..],
    );
    let (found, took) = timed(|| analyse(&sdf).expect("it runs"));
    let firings: u64 = found.repetition.iter().sum();
    row(name, "firings", &firings.to_string(), "", took);
    assert!(
        firings >= if without == 0 { 1_000_000 } else { 40_000 },
        "{firings}"
    );
    let (front, took) =
        timed(|| front(&sdf, Unit::Tokens, SizingLimits::default()).expect("it runs"));
    let complete = if front.complete { "all" } else { "not all" };
    row(
        name,
        "Pareto points",
        &front.points.len().to_string(),
        complete,
        took,
    );
    let first = front.points.first().expect("one point at least");
    row(
        name,
        "the first",
        &format!("{} -> {}", first.total, first.period),
        "",
        took,
    );
    for (mode, period) in [
        (Mode::Min(Unit::Tokens), None),
        (Mode::Throughput(Unit::Tokens), Some(found.period)),
    ] {
        let (sized, took) = timed(|| size(&sdf, mode, SizingLimits::default()).expect("it runs"));
        let ours = format!("{} -> {}", sized.tokens, sized.period);
        row(
            name,
            &format!("{mode:?}"),
            &ours,
            &format!("at least {}", sized.least),
            took,
        );
        assert!(sized.least <= sized.tokens, "{name}: {mode:?}");
        assert!(period.is_none_or(|p| p == sized.period), "{name}: {mode:?}");
    }
    let (least, took) = timed(|| least_buffers(&sdf, SizingLimits::default()).expect("it runs"));
    row(name, "least tokens", &least.tokens.to_string(), "", took);
    assert_eq!(least.tokens, first.total);
    assert_eq!(least.calls.iter().map(|c| c.1).sum::<u64>(), firings);
    let (loops, took) = timed(|| looped(&sdf, 4).expect("a chain"));
    row(name, "nested loops", &loops.tokens.to_string(), "", took);
}

/// The shape of the H.263 decoder with half a million blocks in a frame: here the critical cycle runs through all
/// firings of an iteration, so that they have to be unfolded.
///
/// # Panics
/// If a figure is wrong.
pub fn a_million_firings_on_the_critical_cycle() {
    let name = "decoder";
    let blocks = 500_000;
    let sdf = chain(
        &[26_018, 559, 486, 10_958],
        &[(blocks, 1), (1, 1), (1, blocks)],
    );
    let (found, took) = timed(|| analyse(&sdf).expect("it runs"));
    row(
        name,
        "firings",
        &found.repetition.iter().sum::<u64>().to_string(),
        "",
        took,
    );
    assert_eq!(found.period, Period::from(blocks * 559));
    let capacities = sdf
        .channels
        .keys()
        .map(|c| {
            if sdf.is_buffered(c) {
                sdf.min_capacity(c)
            } else {
                0
            }
        })
        .collect();
    let (found, took) = timed(|| analyse_bounded(&sdf, &capacities).expect("it runs"));
    let expected = 26_018 + blocks * 559 + (blocks - 1) * 486;
    row(
        name,
        "period, least buffers",
        &found.period.to_string(),
        &expected.to_string(),
        took,
    );
    assert_eq!(found.period, Period::from(expected));
}
