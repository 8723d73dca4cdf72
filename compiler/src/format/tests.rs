//! The table against the readers: every field is read, refuses what its type is not, and has the default it is said
//! to have.

use std::path::Path;

use super::{Absent, Field, GROUPS, Group};
use crate::source::SourceMap;
use crate::{CompileOptions, MachineChoice, compile_str};

/// What a text means, or the codes of what is wrong with it.
fn read(text: &str) -> Result<String, Vec<&'static str>> {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/explain/onnx");
    if text.starts_with("Machine") {
        let mut sources = SourceMap::default();
        let file = sources.add("machine.ron", text);
        let mut sink = crate::diag::Sink::default();
        let found = crate::machine::read(file, text, &mut sink);
        return found
            .map(|f| format!("{f:?}"))
            .ok_or(sink.iter().map(|d| d.code.name()).collect());
    }
    let machine = MachineChoice::Uniform(1);
    let options = CompileOptions {
        machine,
        ..CompileOptions::default()
    };
    match compile_str("model.ron", text, dir, &options) {
        // Line ends and the name of the model apart, what is compiled is what was meant.
        Ok(compiled) => Ok(format!("{:?}", compiled.program.graph)),
        Err(wrong) => Err(wrong.list.iter().map(|d| d.code.name()).collect()),
    }
}

/// The text before a field of the group, its value, and the text behind.
fn around(group: &Group, field: &Field) -> (usize, usize, usize) {
    let head = format!("{}: {}", field.name, field.at);
    let start = group
        .text
        .find(&head)
        .unwrap_or_else(|| panic!("{}: no {head}", group.name));
    assert_eq!(
        group.text.rfind(&head),
        Some(start),
        "{}: several {head}",
        group.name
    );
    let value = start + field.name.len() + 2;
    let (mut depth, mut quoted) = (0, false);
    for (at, byte) in group.text.bytes().enumerate().skip(value) {
        match byte {
            b'"' => quoted = !quoted,
            b'(' | b'[' | b'{' if !quoted => depth += 1,
            b',' if !quoted && depth == 0 => return (start, value, at),
            b')' | b']' | b'}' if !quoted && depth == 0 => return (start, value, at),
            b')' | b']' | b'}' if !quoted => depth -= 1,
            _ => {}
        }
    }
    panic!("{}: {head} has no end", group.name)
}

/// The group's text with another value for a field.
fn with(group: &Group, field: &Field, value: &str) -> String {
    let (_, from, to) = around(group, field);
    format!("{}{value}{}", &group.text[..from], &group.text[to..])
}

fn without(group: &Group, field: &Field) -> String {
    let (start, _, to) = around(group, field);
    let rest = &group.text[to..];
    format!(
        "{}{}",
        &group.text[..start],
        rest.strip_prefix(',').unwrap_or(rest)
    )
}

#[test]
fn every_text_is_taken() {
    for group in GROUPS {
        let read = read(group.text);
        assert!(read.is_ok(), "{}: {read:?}\n{}", group.name, group.text);
    }
}

#[test]
fn every_field_refuses_what_it_does_not_take() {
    for group in GROUPS {
        for field in group.fields {
            let text = with(group, field, field.takes.wrong);
            let refused = read(&text).expect_err(&text);
            let place = format!("{}.{}: {refused:?}\n{text}", group.name, field.name);
            assert!(!refused.contains(&"E0201"), "it is not read: {place}");
        }
    }
}

#[test]
fn every_default_is_what_the_table_says() {
    for group in GROUPS {
        for field in group.fields {
            let left_out = read(&without(group, field));
            let place = format!("{}.{}: {left_out:?}", group.name, field.name);
            match field.absent {
                Absent::Refused => {
                    assert!(
                        left_out.is_err_and(|codes| codes.contains(&"E0202")),
                        "{place}"
                    );
                }
                Absent::Is(value) => {
                    assert_eq!(left_out, read(&with(group, field, value)), "{place}")
                }
                Absent::Means(_) => assert!(left_out.is_ok(), "{place}"),
            }
        }
    }
}
