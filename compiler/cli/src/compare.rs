//! `zbmdc diff` and `zbmdc why`.

use std::path::Path;

use zbmd_compiler::costs::MeasuredCosts;
use zbmd_compiler::diff::{self, Diff};
use zbmd_compiler::read_machine;
use zbmd_compiler::why::{Question, Why};
use zbmd_ir::DeviceId;

use crate::args::{DiffFormat, Reading};
use crate::inspect::open_bundle;
use crate::output::{Exit, Voice, deliver, print, say};

pub(crate) fn diff(
    before: &Path,
    after: &Path,
    format: DiffFormat,
    output: Option<&Path>,
    reading: Reading,
    voice: Voice,
) -> Exit {
    let opened_before = match open_bundle(before, reading, voice) {
        Ok(opened) => opened,
        Err(exit) => return exit,
    };
    let opened_after = match open_bundle(after, reading, voice) {
        Ok(opened) => opened,
        Err(exit) => return exit,
    };
    let found = Diff::of(
        (&opened_before.program, &opened_before.view),
        (&opened_after.program, &opened_after.view),
    );

    let text = match format {
        DiffFormat::Text => diff::text(&found),
        DiffFormat::Json => diff::json(&found),
        DiffFormat::Html => {
            let name_before = before.display().to_string();
            let name_after = after.display().to_string();
            diff::html(
                &found,
                (&name_before, &opened_before.view),
                (&name_after, &opened_after.view),
            )
        }
    };

    match deliver(text.as_bytes(), output, voice) {
        Exit::Ok if !found.equal => Exit::Negative,
        exit => exit,
    }
}

/// `zbmdc why`: why an actor is where it is, and not on another device.
pub(crate) fn explain_placement(
    actor_name: &str,
    bundle: &Path,
    other_device: Option<&str>,
    machine: Option<&Path>,
    reading: Reading,
    voice: Voice,
) -> Exit {
    let opened = match open_bundle(bundle, reading, voice) {
        Ok(opened) => opened,
        Err(exit) => return exit,
    };
    let Some(actor) = opened.program.graph.find(actor_name) else {
        let known_names = opened.view.actors.iter().map(|actor| actor.name.as_str());
        return refuse_name("actor", actor_name, known_names);
    };

    let device_names = opened.view.devices.iter().map(|d| d.name.as_str());
    let mut not = None;
    if let Some(name) = other_device {
        let Some(position) = device_names.clone().position(|known| known == name) else {
            return refuse_name("device", name, device_names);
        };
        not = Some(DeviceId::from(position));
    }

    let measured = match machine.map(read_machine) {
        None => MeasuredCosts::default(),
        Some(Ok((_, measured))) => measured,
        Some(Err(diagnostics)) => return voice.report(&diagnostics),
    };

    let registry = zbmd_backends::standard_registry();
    let question = Question {
        actor,
        not,
        registry: &registry,
        measured: &measured,
    };

    let answer = Why::of(&opened.program, &opened.view, question);
    print(&answer.to_string())
}

/// Refuses a name that the bundle does not have, with the nearest one that it has.
fn refuse_name<'a>(what: &str, name: &str, known: impl Iterator<Item = &'a str>) -> Exit {
    let distances = known.map(|other| (strsim::osa_distance(name, other), other));
    let nearest = distances
        .filter(|(distance, _)| *distance <= name.len() / 2)
        .min();
    let hint = match nearest {
        Some((_, nearest)) => format!(", do you mean `{nearest}`?"),
        None => String::new(),
    };
    say(&format!("zbmdc: the bundle has no {what} `{name}`{hint}\n"));
    Exit::Usage
}
