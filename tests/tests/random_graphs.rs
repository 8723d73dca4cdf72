//! Random consistent graphs on random machines: schedule, verify, replay, and equal the interpreter.

use zbmd_scheduler::{Block, Options, schedule};
use zbmd_tests::random::{self, Shape};

#[test]
fn schedules() {
    let t = std::time::Instant::now();
    let mut n = 0;
    for seed in 0..2000u64 {
        let graph = random::graph(seed, Shape::default());
        let machine = random::machine(1 + (seed % 4) as usize);
        let costs = random::costs(&graph, &machine, seed);
        let block = [Block::Auto, Block::Fixed(1), Block::Fixed(7)][(seed % 3) as usize];
        let options = Options { block, ..Options::default() };
        let plans = schedule(&graph, &machine, &costs, &options).unwrap_or_else(|e| panic!("seed {seed}: {e}"));
        n += plans[0].calendars.len();
    }
    eprintln!("{n} calendars in {:?}", t.elapsed());
}
