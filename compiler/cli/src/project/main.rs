//! `cargo run`: half a second of silence and half a second of a tone, and how loud they were.

use std::error::Error;

use zbmd_compiler::MachineChoice;

fn main() -> Result<(), Box<dyn Error>> {
    let tone = |i: usize| (i as f32 * 0.1).sin() * f32::from(u8::from(i >= 24_000));
    let sound: Vec<f32> = (0..48_000).map(tone).collect();
    let program = {{crate}}::compile(MachineChoice::Uniform(2))?;
    for (i, level) in {{crate}}::run(program, &sound)?.iter().enumerate().step_by(5) {
        println!("{:4} ms  {level:6.1} dB", i * 10);
    }
    Ok(())
}
