//! Tests of the verifier.

use super::*;
use crate::testing::programs;

#[test]
fn hand_built_programs_pass() {
    for program in programs::all() {
        let name = program.graph.name.clone();
        if let Err(errors) = verify(program) {
            let lines: Vec<String> = errors.iter().map(|e| format!("{} {e}", e.code())).collect();
            panic!("{name}:\n{}", lines.join("\n"));
        }
    }
}
