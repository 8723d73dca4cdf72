//! Instances of sub-models: which definition, which parameters, which ports.

use std::collections::BTreeSet;

use zbmd_ir::limits;

use super::{Env, Expander, MAX_INSTANCE_DEPTH, Names, Scope, Thing};
use crate::codes::Code;
use crate::diag::{Diagnostic, suggest};
use crate::live;
use crate::model::{ActorDecl, Model, ModelDef, PortDecl};
use crate::parse::Arg;
use crate::read::{self, Fields};
use crate::source::{Span, Spanned};

impl Expander<'_> {
    /// `Sub("name")` is an instance; the op `Sub()`, a difference, takes nothing without a name.
    pub(super) fn is_instance(&self, decl: &ActorDecl) -> bool {
        let named = decl.args.first().is_some_and(|a| a.name.is_none());
        decl.op.value == "Sub" && (named || self.registry.op("Sub").is_none())
    }

    pub(super) fn instance(
        &mut self,
        scope: &Scope<'_>,
        decl: &ActorDecl,
        prefix: &str,
        env: &Env,
        chain: &mut Vec<(Span, String)>,
    ) -> Option<Thing> {
        // The first argument is the sub-model's name, all others are its parameters.
        let (first_arg, params) = match decl.args.split_first() {
            Some((first, params)) => (Some(first), params),
            None => (None, &[][..]),
        };
        let Some(name) = first_arg.filter(|arg| arg.name.is_none()) else {
            self.sink.push(
                Diagnostic::new(
                    Code::E0202,
                    format!("instance `{}` names no sub-model", decl.name.value),
                )
                .primary(decl.span, "which sub-model?")
                .help("write `Sub(\"name\", parameter: value)`"),
            );

            return None;
        };

        let name = read::string(&name.value, "a sub-model's name in quotes", self.sink)?;

        // The chain of open definitions finds one that contains itself, directly or by way of others.
        let (found, around) = self.find_model(scope, &name)?;
        self.used.insert(found.span);
        chain.push((found.span, name.value.clone()));
        let inner = self
            .check_chain(chain, &name)
            .then(|| self.arguments(found, decl, params, env));
        let thing = inner.flatten().map(|mut inner| {
            let scope = Scope {
                model: found,
                outer: around,
            };
            let prefix = format!("{prefix}{}/", decl.name.value);
            live::give_names(&mut inner, &prefix);
            let names = self.expand_body(&scope, &prefix, &inner, chain);
            instance_ports(found, &names)
        });
        chain.pop();
        thing
    }

    fn find_model<'s>(
        &mut self,
        scope: &'s Scope<'s>,
        name: &Spanned<String>,
    ) -> Option<(&'s Model, Option<&'s Scope<'s>>)> {
        let mut next_scope = Some(scope);
        let mut known_names: Vec<&str> = Vec::new();
        while let Some(scope) = next_scope {
            if let Some((_, def)) = scope
                .model
                .models
                .iter()
                .find(|(n, _)| n.value == name.value)
            {
                return match def {
                    // A model in a file of its own does not see what surrounds the place where it is used.
                    ModelDef::Inline(model) => Some((model, Some(scope))),
                    ModelDef::File(model) => Some((model, None)),
                    ModelDef::Bad => None,
                };
            }

            // Names are looked for from the inside out; those met on the way are what a wrong one is compared with.
            known_names.extend(scope.model.models.iter().map(|(n, _)| n.value.as_str()));
            next_scope = scope.outer;
        }

        self.sink.push(
            Diagnostic::new(
                Code::E0211,
                format!("there is no sub-model `{}`", name.value),
            )
            .primary(name.span, "unknown sub-model")
            .help(format!(
                "{}; sub-models are defined in `models`",
                suggest(&name.value, known_names)
            )),
        );

        None
    }

    /// Refuses recursion and absurd depth or number of instances.
    fn check_chain(&mut self, chain: &[(Span, String)], name: &Spanned<String>) -> bool {
        let Some((last, outer)) = chain.split_last() else {
            return true;
        };

        // Definitions are told apart by their places: two models may have the same name.
        if let Some(first) = outer.iter().position(|(span, _)| *span == last.0) {
            let path: Vec<&str> = chain[first..].iter().map(|(_, n)| n.as_str()).collect();
            self.sink.push(
                Diagnostic::new(
                    Code::E0212,
                    format!(
                        "sub-model `{}` contains itself: {}",
                        name.value,
                        path.join(" -> ")
                    ),
                )
                .primary(name.span, "instantiated here again")
                .context(last.0, "inside its own definition")
                .help(
                    "a sub-model cannot contain itself: feedback is a channel with initial tokens",
                ),
            );

            return false;
        }

        // Instances may double at each level: they are counted, so that a short text cannot ask for billions.
        self.instances += 1;

        // Beyond the limit by one it is reported, after that only refused.
        if self.instances > limits::MAX_ACTORS + 1 {
            return false;
        }
        let (what, max) = if chain.len() > MAX_INSTANCE_DEPTH {
            ("sub-models are nested deeper than", MAX_INSTANCE_DEPTH)
        } else if self.instances > limits::MAX_ACTORS {
            (
                "the model has more instances of sub-models than",
                limits::MAX_ACTORS,
            )
        } else {
            return true;
        };
        self.sink.push(
            Diagnostic::new(Code::E0505, format!("{what} the limit of {max}"))
                .primary(name.span, "here the limit was reached"),
        );
        false
    }

    /// The parameters of an instance.
    fn arguments(
        &mut self,
        model: &Model,
        decl: &ActorDecl,
        args: &[Arg],
        env: &Env,
    ) -> Option<Env> {
        let what = format!("instance `{}`", decl.name.value);
        let mut fields = Fields::new(what, decl.span, args, self.sink);
        let mut inner = self.default_params(model);
        let mut is_complete = true;
        for (name, default) in &model.params {
            if let Some(node) = fields.take(&name.value) {
                // Arguments are written in the model around, so its parameters are put in here.
                let value = self.substitute(node, env);
                inner.insert(name.value.clone(), value);
            } else if !inner.contains_key(&name.value) {
                is_complete = false;
                self.sink.push(
                    Diagnostic::new(
                        Code::E0214,
                        format!("instance `{}` gives no `{}`", decl.name.value, name.value),
                    )
                    .primary(decl.span, format!("`{}` is missing here", name.value))
                    .context(default.span, "required here")
                    .help(format!("add `{}: …`", name.value)),
                );
            }
        }

        // What is left over names no parameter.
        let known: BTreeSet<&str> = model.params.iter().map(|(n, _)| n.value.as_str()).collect();
        for arg in args {
            let unknown = arg
                .name
                .as_ref()
                .filter(|n| !known.contains(n.value.as_str()));
            let (span, what) = match (unknown, &arg.name) {
                (Some(name), _) => (
                    name.span,
                    format!("the sub-model has no parameter `{}`", name.value),
                ),
                (None, None) => (
                    arg.value.span,
                    "an argument of an instance has no name".to_owned(),
                ),
                (None, Some(_)) => continue,
            };

            is_complete = false;
            let written = unknown.map_or("", |n| n.value.as_str());
            self.sink.push(
                Diagnostic::new(Code::E0214, what)
                    .primary(span, "which parameter is this?")
                    .help(suggest(written, known.iter().copied())),
            );
        }

        is_complete.then_some(inner)
    }
}

fn instance_ports(model: &Model, names: &Names) -> Thing {
    let ports = |list: &[PortDecl]| {
        let find = |p: &PortDecl| match names.get(&p.name.value) {
            Some((Thing::Input(id) | Thing::Output(id), _)) => Some((p.name.value.clone(), *id)),
            _ => None,
        };
        list.iter().filter_map(find).collect()
    };

    let name = model
        .name
        .as_ref()
        .map(|n| format!("an instance of `{}`", n.value));
    Thing::Instance {
        inputs: ports(&model.inputs),
        outputs: ports(&model.outputs),
        what: name.unwrap_or_else(|| "an instance of a sub-model".to_owned()),
    }
}
