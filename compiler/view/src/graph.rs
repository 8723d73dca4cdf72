//! The graph as DOT and as Mermaid: a box for each device, rates at the ends of channels, initial tokens on them.

use super::{ChannelView, PlanView, View};

/// Graphviz: `dot -Tsvg`.
pub fn dot(view: &View, plan: &PlanView) -> String {
    let mut out = format!(
        "digraph {} {{\n  rankdir=LR;\n  node [shape=box, fontname=\"sans-serif\"];\n  edge [fontname=\"sans-serif\", fontsize=10];\n",
        quoted(&view.model)
    );
    for (d, actors) in by_device(view, plan) {
        let name = view.device_name(d);
        out += &format!(
            "  subgraph {} {{\n    label={};\n",
            quoted(&format!("cluster_{d}")),
            quoted(name)
        );
        for a in actors {
            let actor = &view.actors[a];
            let shape = if actor.role == "compute" {
                "box"
            } else {
                "ellipse"
            };
            // Two lines: DOT takes `\n` in a quoted string for a new one.
            let label = format!(
                "{}\u{0}{} x{}",
                actor.shown_name(),
                short(&actor.op),
                actor.repetitions
            );

            let label = quoted(&label).replace('\u{0}', "\\n");
            out += &format!("    a{a} [label={label}, shape={shape}];\n");
        }

        out += "  }\n";
    }

    for channel in &view.channels {
        for (r, reader) in channel.readers.iter().enumerate() {
            let (rate, label) = edge(view, channel, r);
            let feedback = if reader.delay > 0 {
                ", style=dashed"
            } else {
                ""
            };
            out += &format!(
                "  a{} -> a{} [taillabel=\"{}\", headlabel={}, label={}{feedback}];\n",
                channel.from,
                reader.actor,
                channel.rate,
                quoted(&rate),
                quoted(&label)
            );
        }
    }

    out + "}\n"
}

/// Mermaid, as Markdown renders it in many places.
pub fn mermaid(view: &View, plan: &PlanView) -> String {
    let mut out = "graph LR\n".to_owned();
    for (d, actors) in by_device(view, plan) {
        out += &format!("  subgraph d{d}[\"{}\"]\n", escaped(view.device_name(d)));
        for a in actors {
            let actor = &view.actors[a];
            let name = escaped(actor.shown_name());
            out += &match actor.role {
                "compute" => format!("    a{a}[\"{name}<br/>x{}\"]\n", actor.repetitions),
                _ => format!("    a{a}([\"{name}<br/>x{}\"])\n", actor.repetitions),
            };
        }

        out += "  end\n";
    }

    for channel in &view.channels {
        for (r, reader) in channel.readers.iter().enumerate() {
            let (rate, label) = edge(view, channel, r);
            let label = escaped(&format!("{} : {rate} {label}", channel.rate));
            let arrow = if reader.delay > 0 { "-.->" } else { "-->" };
            let label = label.trim_end();
            out += &format!(
                "  a{} {arrow}|\"{label}\"| a{}\n",
                channel.from, reader.actor
            );
        }
    }
    out
}

/// Devices with actors, and the actors of each.
fn by_device(view: &View, plan: &PlanView) -> Vec<(u32, Vec<usize>)> {
    let mut out: Vec<(u32, Vec<usize>)> = (0..view.devices.len())
        .map(|d| (d as u32, Vec::new()))
        .collect();
    for (a, fired) in plan.actors.iter().enumerate() {
        if let Some((_, actors)) = out.get_mut(fired.device as usize) {
            actors.push(a);
        }
    }
    out.retain(|(_, actors)| !actors.is_empty());
    out
}

/// What a reader takes, and the initial tokens of the channel: `32 of 95`, `f32 3 initial`.
fn edge(view: &View, channel: &ChannelView, reader: usize) -> (String, String) {
    let reader = &channel.readers[reader];
    let port = &view.actors[reader.actor as usize].inputs[reader.port as usize];
    let rate = match port.window > port.rate {
        true => format!("{} of {}", port.rate, port.window),
        false => port.rate.to_string(),
    };
    let initial = match reader.delay {
        0 => String::new(),
        n => format!(" {n} initial"),
    };
    (rate, format!("{}{initial}", channel.token))
}

/// An op without its parameters.
fn short(op: &str) -> &str {
    op.split('(').next().unwrap_or(op)
}

fn quoted(text: &str) -> String {
    format!(
        "\"{}\"",
        text.replace('\\', "\\\\")
            .replace('"', "\\\"")
            .replace(['\n', '\r'], " ")
    )
}

/// Text within quotes of Mermaid, which knows entities but no escapes.
fn escaped(text: &str) -> String {
    text.replace('#', "#35;")
        .replace('"', "#quot;")
        .replace('<', "#lt;")
        .replace(['\n', '\r'], " ")
}
