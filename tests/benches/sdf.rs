//! `cargo bench -p zbmd-tests --bench sdf [-- FILTER]`: the classic SDF benchmark graphs and two synthetic ones of a
//! million firings: instance, what, ours, what it must be, time. What it must be is the published figure, but for the
//! modes, which are beside the front that was found. It ends with a panic where a figure differs.

use zbmd_tests::sdf;

fn main() {
    let words: Vec<String> = std::env::args()
        .skip(1)
        .filter(|a| !a.starts_with('-'))
        .collect();
    let wanted = |name: &str| words.iter().all(|w| name.contains(w.as_str()));
    sdf::header();
    for name in ["dac06_example", "samplerate", "modem", "satellite"] {
        if wanted(name) {
            sdf::check(name);
        }
    }
    let others: [(&str, fn()); 5] = [
        ("h263decoder", sdf::h263decoder),
        ("orders", sdf::cd_to_dat_orders),
        ("rates, part", || sdf::coprime_rates(3)),
        ("rates", || sdf::coprime_rates(0)),
        ("decoder", sdf::a_million_firings_on_the_critical_cycle),
    ];
    for (_, check) in others.into_iter().filter(|(name, _)| wanted(name)) {
        check();
    }
}
