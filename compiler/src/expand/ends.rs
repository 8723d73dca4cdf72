//! What the ends of channels name.

use super::{Expander, Names, Thing};
use crate::codes::Code;
use crate::diag::{Diagnostic, one_of, suggest};
use crate::expand::join::Half;
use crate::net::End;
use crate::source::Spanned;

impl Expander<'_> {
    /// What `"actor.port"` names, as a writer or as a reader.
    pub(super) fn half(
        &mut self,
        end: &Spanned<String>,
        names: &Names,
        writer: bool,
    ) -> Option<Half> {
        // Names have no dots, so the first one separates the port.
        let (name, port) = match end.value.split_once('.') {
            Some((name, port)) => (name, Some(port.to_owned())),
            None => (end.value.as_str(), None),
        };
        let Some((thing, declared)) = names.get(name) else {
            let help = self.sink.suggest(name, names.keys().map(String::as_str));
            self.sink.push(
                Diagnostic::new(Code::E0206, format!("nothing here is called `{name}`"))
                    .primary(end.span, if writer { "this writer" } else { "this reader" })
                    .help(help),
            );
            return None;
        };

        // Writers and readers are looked for among different things: an input writes inside its sub-model.
        let (id, what) = match thing {
            Thing::Bad => return None,
            Thing::Source(id) | Thing::Actor(id) if writer => (*id, None),
            Thing::Sink(id) | Thing::Actor(id) if !writer => (*id, None),
            Thing::Input(id) if writer => return self.port_half(*id, end, port),
            Thing::Output(id) if !writer => return self.port_half(*id, end, port),
            Thing::Instance {
                inputs,
                outputs,
                what,
            } => {
                let ports = if writer { outputs } else { inputs };
                return self.instance_half(end, name, port, ports, what, writer);
            }
            Thing::Source(id) => (*id, Some("a source")),
            Thing::Sink(id) => (*id, Some("a sink")),
            Thing::Input(id) => (*id, Some("an input of this sub-model")),
            Thing::Output(id) => (*id, Some("an output of this sub-model")),
            Thing::Actor(id) => (*id, None),
        };

        if let Some(what) = what {
            let (why, side) = if writer {
                ("nothing comes out of it", "from")
            } else {
                ("nothing goes into it", "to")
            };
            self.sink.push(
                Diagnostic::new(Code::E0216, format!("`{name}` is {what}: {why}"))
                    .primary(end.span, format!("stands in `{side}`"))
                    .context(*declared, format!("declared as {what} here"))
                    .help("sources and inputs stand in `from`, sinks and outputs in `to`"),
            );

            return None;
        }

        Some(Half::Actor(End {
            actor: id,
            port,
            span: end.span,
        }))
    }

    fn port_half(
        &mut self,
        id: usize,
        end: &Spanned<String>,
        port: Option<String>,
    ) -> Option<Half> {
        if let Some(port) = port {
            self.sink.push(
                Diagnostic::new(
                    Code::E0207,
                    format!("a port of the sub-model has no port `{port}`"),
                )
                .primary(end.span, "name the port alone"),
            );

            return None;
        }

        Some(Half::Junction(id, end.span))
    }

    fn instance_half(
        &mut self,
        end: &Spanned<String>,
        name: &str,
        port: Option<String>,
        ports: &[(String, usize)],
        what: &str,
        writer: bool,
    ) -> Option<Half> {
        let side = if writer { "output" } else { "input" };

        // As with actors, an instance without a port means its first one.
        let named_port = match &port {
            Some(port) => ports.iter().find(|(n, _)| n == port),
            None => ports.first(),
        };
        if let Some((_, id)) = named_port {
            return Some(Half::Junction(*id, end.span));
        }
        let known = ports.iter().map(|(n, _)| n.as_str());
        let (message, help) = match &port {
            Some(port) => (
                format!("`{name}` ({what}) has no {side} `{port}`"),
                suggest(port, known),
            ),
            None => (format!("`{name}` ({what}) has no {side}"), one_of(known)),
        };

        self.sink.push(
            Diagnostic::new(Code::E0207, message)
                .primary(end.span, "no such port")
                .help(help),
        );
        None
    }
}
