//! x
#![allow(missing_docs, unreachable_pub, clippy::allow_attributes_without_reason)]
pub(super) mod search;
use search::*;
pub fn trial(items: &[(u64, u64, u64)], capacity: u64, order: usize, limit: u64) -> (String, u64) {
    let mut ev: Vec<(u64, u8, usize)> = vec![];
    for (i, x) in items.iter().enumerate() { ev.push((x.0, 1, i)); ev.push((x.1, 0, i)); }
    ev.sort();
    let mut lo = vec![0u32; items.len()];
    let mut hi = lo.clone();
    let (mut cur, mut ended) = (0u32, false);
    for (_, k, i) in ev {
        if k == 1 { if ended { cur += 1; ended = false; } lo[i] = cur; } else { hi[i] = cur + 1; ended = true; }
    }
    let m = cur as usize + 1;
    let mut load = vec![0u64; m];
    for i in 0..items.len() { for s in lo[i]..hi[i] { load[s as usize] += items[i].2; } }
    let t: Vec<u64> = (0..items.len()).map(|i| (lo[i]..hi[i]).map(|s| load[s as usize]).max().unwrap()).collect();
    let mut ids: Vec<usize> = (0..items.len()).collect();
    use std::cmp::Reverse as R;
    ids.sort_by_key(|&i| { let x = items[i]; let w = x.1 - x.0; let a = w * x.2;
        match order { 0 => (R(w), R(a), R(t[i]), i), 1 => (R(t[i]), R(a), R(w), i), _ => (R(t[i]), R(w), R(a), i) } });
    let shapes: Vec<Shape> = ids.iter().map(|&i| Shape { lo: lo[i], hi: hi[i], size: (items[i].2 / 1024) as u32, mask: 0, residue: 0, fixed: None }).collect();
    let mut failed = Failed::new(20);
    failed.set_salt(1);
    let mut s = Search::new(&shapes, (capacity / 1024) as u32, limit, &mut failed);
    let o = s.run();
    if o == Outcome::Found {
        for i in 0..shapes.len() { for j in 0..i {
            if shapes[i].lo < shapes[j].hi && shapes[j].lo < shapes[i].hi {
                assert!(s.offsets[i] + shapes[i].size <= s.offsets[j] || s.offsets[j] + shapes[j].size <= s.offsets[i]);
            } } assert!(s.offsets[i] + shapes[i].size <= 1024); }
    }
    (format!("{o:?}"), s.nodes)
}
