//! `zbmdc diff` and `zbmdc why`.

use std::path::Path;

use zbmd_backends::op::Registry;
use zbmd_compiler::costs::MeasuredCosts;
use zbmd_compiler::diff::{self, Diff};
use zbmd_compiler::read_machine;
use zbmd_compiler::why::{Question, Why};
use zbmd_ir::DeviceId;

use crate::args::{DiffFormat, Reading};
use crate::inspect::open;
use crate::output::{Exit, Voice, deliver, print, say};

pub(crate) fn diff(
    (before, after): (&Path, &Path),
    format: DiffFormat,
    output: Option<&Path>,
    reading: Reading,
    voice: Voice,
) -> Exit {
    let (a, b) = match (open(before, reading, voice), open(after, reading, voice)) {
        (Ok(a), Ok(b)) => (a, b),
        (Err(exit), _) | (_, Err(exit)) => return exit,
    };
    let found = Diff::of((&a.0, &a.1), (&b.0, &b.1));
    let text = match format {
        DiffFormat::Text => diff::text(&found),
        DiffFormat::Json => diff::json(&found),
        DiffFormat::Html => {
            let (was, is) = (before.display().to_string(), after.display().to_string());
            diff::html(&found, (&was, &a.1), (&is, &b.1))
        }
    };
    match deliver(text.as_bytes(), output, voice) {
        Exit::Ok if !found.equal => Exit::Differ,
        exit => exit,
    }
}

pub(crate) fn why(
    actor: &str,
    bundle: &Path,
    not: Option<&str>,
    machine: Option<&Path>,
    reading: Reading,
    voice: Voice,
) -> Exit {
    let (program, view) = match open(bundle, reading, voice) {
        Ok(opened) => opened,
        Err(exit) => return exit,
    };
    let Some(id) = program.graph.find(actor) else {
        return unknown("actor", actor, view.actors.iter().map(|a| a.name.as_str()));
    };
    let device = |name: &str| {
        view.devices
            .iter()
            .position(|d| d.name == name)
            .map(DeviceId::from)
    };
    let not = match not.map(|name| (name, device(name))) {
        None => None,
        Some((_, Some(device))) => Some(device),
        Some((name, None)) => {
            return unknown("device", name, view.devices.iter().map(|d| d.name.as_str()));
        }
    };
    let measured = match machine.map(read_machine) {
        None => MeasuredCosts::default(),
        Some(Ok((_, measured))) => measured,
        Some(Err(diagnostics)) => return voice.report(&diagnostics),
    };
    let registry = Registry::standard();
    let question = Question {
        actor: id,
        not,
        registry: &registry,
        measured: &measured,
    };
    print(&Why::of(&program, &view, question).to_string())
}

fn unknown<'a>(what: &str, name: &str, known: impl Iterator<Item = &'a str>) -> Exit {
    let near = known
        .map(|other| (strsim::osa_distance(name, other), other))
        .filter(|(distance, _)| *distance <= name.len() / 2)
        .min();
    let hint = near.map_or(String::new(), |(_, near)| {
        format!(", do you mean `{near}`?")
    });
    say(&format!("zbmdc: the bundle has no {what} `{name}`{hint}\n"));
    Exit::Usage
}
