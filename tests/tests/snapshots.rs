//! The text of every stage of the small example models, pinned: a change of a schedule shows as a difference to read.
//!
//! Two like CPU devices of fixed size, so that the snapshots do not depend on the computer.

use zbmd_compiler::{CompileOptions, MachineChoice, compile_file};
use zbmd_ir::text::{self, TextOptions};
use zbmd_tests::random::machine;
use zbmd_tests::run::graph_file;

fn stages(model: &str) -> String {
    let machine = MachineChoice::Given(machine(2));
    let options = CompileOptions { machine, ..CompileOptions::default() };
    let program = compile_file(graph_file(model), &options).expect("the model compiles").program;
    let q = zbmd_scheduler::repetition(&program.graph).expect("compiled graphs are consistent");
    let mut all = text::graph(&program.graph, Some(&q));
    for plan in &program.plans {
        all += &format!("\n-- plan {}\n", plan.name);
        all += &text::placement(&program, plan);
        all += &text::calendar(&program, plan, TextOptions { times: true });
        all += &text::layout(&program, plan);
    }
    all
}

#[test]
fn every_stage_of_the_small_models() {
    for model in ["agc", "cd2dat", "fm", "pll"] {
        insta::assert_snapshot!(model, stages(&format!("{model}/model.ron")));
    }
}
