//! Pins the calendar, and tests the actor in it. `cargo insta review` accepts a calendar that changed.

use zbmd_compiler::MachineChoice;

fn pinned() -> MachineChoice {
    MachineChoice::File({{crate}}::file("machine.ron"))
}

#[test]
fn the_calendar_stays() {
    let program = {{crate}}::compile(pinned()).expect("the model compiles");
    zbmd_ir::assert_calendar_snapshot!("calendar", program);
}

#[test]
fn a_tone_is_3_decibels_below_its_peak() {
    let program = {{crate}}::compile(pinned()).expect("the model compiles");
    // 1 kHz, of which 480 samples at 48 kHz are 10 whole waves.
    let tone: Vec<f32> = (0..48_000).map(|i| (i as f32 * 0.130_899_69).sin()).collect();
    let loudness = {{crate}}::run(program, &tone).expect("it runs");
    // The first three values still have the silence before the start in their window.
    assert!(loudness[3..].iter().all(|level| (level + 3.01).abs() < 0.05), "{loudness:?}");
}
