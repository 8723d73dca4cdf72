//! `zbmdc devices`, `ops` and `explain`: what there is to choose from.

use zbmd_backends::devices::{self, Gpu};
use zbmd_backends::op::Registry;
use zbmd_compiler::{Code, Example, machine, page, reference};
use zbmd_ir::Machine;
use zbmd_ir::numa::MemoryNodes;

use crate::output::{Exit, print, say};

pub(crate) fn list_devices(cores: u16, as_ron: bool, with_gpus: bool) -> Exit {
    let found_gpus = devices::gpus();
    let mut machine = machine::detect_in_teams(cores.into());
    if with_gpus {
        let gpus = found_gpus.as_deref().unwrap_or_default();
        machine = devices::with_gpus(machine, gpus);
    }

    if as_ron {
        if let (true, Err(reason)) = (with_gpus, &found_gpus) {
            say(&format!("zbmdc: no GPUs: {reason}\n"));
        }
        return match machine::to_ron(&machine) {
            Ok(text) => print(&text),
            Err(error) => panic!("a detected machine cannot be written: {error}"),
        };
    }

    let mut listing = device_table(&machine);
    listing += &match &found_gpus {
        Ok(gpus) if gpus.is_empty() => "\nno GPUs: the driver finds none\n".to_owned(),
        Ok(gpus) => gpu_table(gpus),
        Err(reason) => format!("\nno GPUs: {reason}\n"),
    };

    print(&listing)
}

fn device_table(machine: &Machine) -> String {
    let nodes = MemoryNodes::of_system();
    let mut table = format!(
        "{:<10} {:<8} {:<12} {:>12}\n",
        "name", "backend", "cores", "memory"
    );
    for device in &machine.devices {
        let cores: Vec<String> = device.cores.iter().map(u32::to_string).collect();
        let memory = format!("{} MiB", device.memory_bytes >> 20);
        // Nothing where all memory is near.
        let near = nodes.near(&device.cores);
        let near = near.map_or(String::new(), |node| format!("  of node {node}"));
        table += &format!(
            "{:<10} {:<8} {:<12} {memory:>12}{near}\n",
            device.name,
            device.backend,
            cores.join(",")
        );
    }

    table
}

/// GPUs and their drivers, for people.
fn gpu_table(gpus: &[Gpu]) -> String {
    let mut table =
        "\nGPUs, used with `zbmdc compile --gpus` or a machine file (`zbmdc devices --gpus --ron`):\n"
            .to_owned();
    for gpu in gpus {
        let memory = format!("{} MiB", gpu.device.memory_bytes >> 20);
        table += &format!("{:<10} {:<44} {memory:>12}\n", gpu.device.name, gpu.title);
        table += &format!("{:<10} {}, {}, {}\n", "", gpu.api, gpu.driver, gpu.uuid);
    }
    table
}

pub(crate) fn list_ops(name: Option<&str>) -> Exit {
    let registry = zbmd_backends::standard_registry();
    match name {
        None => print(&op_table(&registry)),
        Some(name) => describe_op(&registry, name),
    }
}

fn op_table(registry: &Registry) -> String {
    let width = registry.names().map(str::len).max().unwrap_or(0);
    let ops = registry.names().filter_map(|name| registry.op(name));
    let lines = ops.map(|op| format!("{:<width$}  {}\n", op.name(), op.doc().summary));
    lines.collect()
}

fn describe_op(registry: &Registry, name: &str) -> Exit {
    let known_name = registry
        .names()
        .find(|known| known.eq_ignore_ascii_case(name));
    let Some(op) = known_name.and_then(|known| registry.op(known)) else {
        say(&format!(
            "zbmdc: there is no op `{name}`; `zbmdc ops` lists them\n"
        ));
        return Exit::Usage;
    };
    let section = reference::op_section(registry, op.name()).unwrap_or_default();
    print(&format!("{}: {section}", op.name()))
}

pub(crate) fn explain_code(name: Option<&str>) -> Exit {
    let Some(name) = name else {
        let lines = Code::ALL.iter();
        let lines = lines.map(|code| format!("{code}  {}\n", code.title()));
        return print(&lines.collect::<String>());
    };

    let Some(code) = Code::from_name(name) else {
        say(&format!(
            "zbmdc: there is no code `{name}`; `zbmdc explain` lists them\n"
        ));
        return Exit::Usage;
    };

    let page = page(code);
    print(&format!(
        "{code}: {}\n\n{}\n\nWrong:\n\n{}\nFix: {}\n",
        code.title(),
        page.text,
        example_text(&page.example),
        page.fix
    ))
}

fn example_text(example: &Example) -> String {
    match example {
        Example::Rust(text) => indent_text(text),
        Example::Command { files, command } => {
            let mut shown = String::new();
            for (name, bytes) in *files {
                // A binary file, such as an ONNX model, is not shown.
                if let Ok(text) = std::str::from_utf8(bytes) {
                    shown += &format!("{name}\n\n{}\n", indent_text(text));
                }
            }

            format!("{shown}$ zbmdc {command}\n")
        }
    }
}

fn indent_text(text: &str) -> String {
    let mut indented = String::new();
    for line in text.trim_end().lines() {
        if !line.is_empty() {
            indented += "    ";
        }
        indented += line;
        indented.push('\n');
    }
    indented
}
