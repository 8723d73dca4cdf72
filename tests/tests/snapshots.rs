//! The text of every stage of the small example models, pinned: a change of a schedule shows as a difference to read.
//!
//! Two like CPU devices of fixed size, so that the snapshots do not depend on the computer.

use zbmd_compiler::{CompileOptions, MachineChoice, compile_file};
use zbmd_ir::snapshot::Times;
use zbmd_tests::random::machine;
use zbmd_tests::run::graph_file;

#[test]
fn every_stage_of_the_small_models() {
    for model in ["agc", "cd2dat", "fm", "pll"] {
        let machine = MachineChoice::Given(machine(2));
        let options = CompileOptions {
            machine,
            ..CompileOptions::default()
        };
        let file = graph_file(&format!("{model}/model.ron"));
        let program = compile_file(file, &options)
            .expect("the model compiles")
            .program;
        zbmd_ir::assert_calendar_snapshot!(model, program, Times::Kept);
    }
}
