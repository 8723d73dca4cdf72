//! Items for arena layouts: the challenging instances that MiniMalloc was published with, random ones, and a checker.

use zbmd_scheduler::offsets::{Item, ItemLayout};

use crate::data;

/// Bytes that each published instance fits in; greedy orders miss them by 29 to 41 %.
pub const CAPACITY: u64 = 1_048_576;

/// A published instance, A to F.
///
/// # Panics
/// If the text is no such instance.
pub fn published(name: &str) -> Option<Vec<Item>> {
    let path = data::file(&format!("dsa/{name}.{CAPACITY}.csv"))?;
    let text = std::fs::read_to_string(&path).expect("the data is readable");
    let item = |line: &str| {
        let mut fields = line
            .split(',')
            .skip(1)
            .map(|f| f.trim().parse().expect("a number"));
        let mut next = || fields.next().expect("three numbers");
        Item::new(next(), next(), next())
    };
    Some(text.lines().skip(1).map(item).collect())
}

/// Items live between two random moments: a large part of them at once.
pub fn crossing(seed: u64, count: u64) -> Vec<Item> {
    let mut rng = fastrand::Rng::with_seed(seed);
    let item = |_| {
        let (a, b) = (rng.u64(..count), rng.u64(..count));
        Item::new(a.min(b), a.max(b) + 1, rng.u64(1..=1000))
    };
    (0..count).map(item).collect()
}

/// Items that start one after the other and live for up to `life` moments, as in the order of a long calendar.
pub fn passing(seed: u64, count: u64, life: u64) -> Vec<Item> {
    let mut rng = fastrand::Rng::with_seed(seed);
    (0..count)
        .map(|i| Item::new(i, i + rng.u64(1..=life), 64 * rng.u64(1..=1000)))
        .collect()
}

/// Checks by a sweep through time that no two live items overlap and that all lie within the layout's size.
///
/// For items without aliases that are live at some moment.
///
/// # Panics
/// If one does.
pub fn assert_apart(items: &[Item], layout: &ItemLayout) {
    let mut events: Vec<(u64, bool, usize)> = Vec::new();
    for (i, item) in items.iter().enumerate() {
        events.extend([(item.first, true, i), (item.end, false, i)]);
    }
    // At one moment ends come before starts.
    events.sort_unstable();
    let mut live = std::collections::BTreeMap::new();
    for (_, starts, i) in events {
        let (start, end) = (layout.offsets[i], layout.offsets[i] + items[i].size);
        if !starts {
            live.remove(&start);
            continue;
        }
        let below = live.range(..end).next_back();
        assert!(
            below.is_none_or(|(_, &top)| top <= start),
            "item {i} overlaps another"
        );
        assert!(end <= layout.size, "item {i} lies beyond the region");
        live.insert(start, end);
    }
}
