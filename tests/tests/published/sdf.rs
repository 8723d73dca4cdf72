//! The classic SDF benchmark graphs, every published number; `cargo bench -p zbmd-tests --bench sdf` prints the table
//! and adds what takes longer.

use zbmd_tests::sdf;

#[test]
fn dac06_example() {
    sdf::check("dac06_example");
}

#[test]
fn samplerate() {
    sdf::check("samplerate");
}

#[test]
fn modem() {
    sdf::check("modem");
}

#[test]
fn satellite() {
    sdf::check("satellite");
}

#[test]
fn h263decoder() {
    sdf::h263decoder();
}

#[test]
fn cd_to_dat_orders() {
    sdf::cd_to_dat_orders();
}

#[test]
fn rates_with_few_common_factors() {
    sdf::coprime_rates(3);
}

#[test]
fn a_million_firings_on_the_critical_cycle() {
    sdf::a_million_firings_on_the_critical_cycle();
}
