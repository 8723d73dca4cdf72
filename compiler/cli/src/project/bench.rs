//! `cargo bench`: how long a second of sound takes.

use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use zbmd_compiler::MachineChoice;

fn second(c: &mut Criterion) {
    let program = {{crate}}::compile(MachineChoice::Uniform(2)).expect("the model compiles");
    let sound = vec![0.5; 48_000];
    let mut group = c.benchmark_group("{{name}}");
    group.sample_size(10).throughput(Throughput::Elements(sound.len() as u64));
    group.bench_function("a second", |b| {
        b.iter(|| {{crate}}::run(program.clone(), &sound).expect("it runs"));
    });
    group.finish();
}

criterion_group!(benches, second);
criterion_main!(benches);
