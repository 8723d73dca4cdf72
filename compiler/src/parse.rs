//! RON text to a tree in which every value knows its place. Knows nothing of models.
//!
//! An own parser, because models need what no RON reader gives together: positional and named arguments mixed
//! (`Expr("x * g", inputs: {…})`), bare words as values, `$name` parameters, a span on everything, recovery after an
//! error so that a file's errors are all reported at once, and a bound on nesting. `ron` reads into types and stops
//! at the first error; the `ron2` tree has spans and recovery, but splits calls into all-positional or all-named and
//! recurses without a bound. Where typed RON is written, the crate `ron` does it.

mod lexer;

use crate::codes::Code;
use crate::diag::{Diagnostic, Sink};
use crate::source::{FileId, Span, Spanned};
use lexer::{Tok, Token};

/// Deepest nesting of brackets.
pub(crate) const MAX_DEPTH: usize = 96;
/// Syntax errors after which the rest of a file is not read.
const MAX_ERRORS: usize = 50;

/// A value with its place.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Node {
    /// Where it stands.
    pub(crate) span: Span,
    /// What it is.
    pub(crate) kind: NodeKind,
}

/// What a [`Node`] is.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum NodeKind {
    /// `true`, `false`.
    Bool(bool),
    /// `-3`, `0xff`, `1_000`.
    Int(i64),
    /// `1.0`, `2e6`, `inf`, `NaN`.
    Float(f64),
    /// `"text"`, `r"text"`.
    Str(String),
    /// `f32`.
    Word(String),
    /// `$gain`.
    Param(String),
    /// `[a, b]`.
    List(Vec<Node>),
    /// `{key: value}`.
    Map(Vec<(Node, Node)>),
    /// `Name(args)` or `(args)`.
    Call(Option<Spanned<String>>, Vec<Arg>),
    /// Something that could not be read; already reported.
    Bad,
}

/// An argument of a call.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Arg {
    /// Its name, if it has one.
    pub(crate) name: Option<Spanned<String>>,
    /// Its value.
    pub(crate) value: Node,
}

impl Node {
    /// What the value is, in words, for messages.
    pub(crate) fn describe(&self) -> String {
        match &self.kind {
            NodeKind::Bool(b) => format!("`{b}`"),
            NodeKind::Int(i) => format!("the integer {i}"),
            NodeKind::Float(f) => format!("the number {f}"),
            NodeKind::Str(_) => "a string".to_owned(),
            NodeKind::Word(w) => format!("the word `{w}`"),
            NodeKind::Param(p) => format!("the parameter `${p}`"),
            NodeKind::List(_) => "a list".to_owned(),
            NodeKind::Map(_) => "a map".to_owned(),
            NodeKind::Call(Some(name), _) => format!("`{}(…)`", name.value),
            NodeKind::Call(None, _) => "a group `(…)`".to_owned(),
            NodeKind::Bad => "something unreadable".to_owned(),
        }
    }
}

/// Reads one text. Errors go to `sink`; `None` only if nothing could be read.
pub(crate) fn parse(file: FileId, text: &str, sink: &mut Sink) -> Option<Node> {
    let errors_before = sink.errors();
    let token_list = lexer::lex(file, text, sink);
    let mut parser = Parser {
        tokens: token_list,
        at: 0,
        open: Vec::new(),
        errors: 0,
        sink,
    };

    let root_node = parser.value();
    // Behind an error the rest may only seem to lie outside.
    if root_node.is_some() && parser.sink.errors() == errors_before {
        let next_token = parser.peek().clone();
        if next_token.tok != Tok::Eof {
            parser.error(
                Diagnostic::new(
                    Code::E0101,
                    format!("expected the end of the file, found {}", next_token.tok),
                )
                .primary(
                    next_token.span,
                    "one value makes a file; this comes after it",
                ),
            );
        }
    }

    root_node
}

struct Parser<'a> {
    tokens: Vec<Token>,
    at: usize,
    /// Opening brackets around the current token.
    open: Vec<(char, Span)>,
    errors: usize,
    sink: &'a mut Sink,
}

impl Parser<'_> {
    fn peek(&self) -> &Token {
        // The lexer ends every list with `Eof`, behind which nobody steps.
        &self.tokens[self.at.min(self.tokens.len() - 1)]
    }

    fn next(&mut self) -> Token {
        let current_token = self.peek().clone();
        if self.at + 1 < self.tokens.len() {
            self.at += 1;
        }
        current_token
    }

    fn full(&self) -> bool {
        self.errors >= MAX_ERRORS
    }

    fn error(&mut self, diagnostic: Diagnostic) {
        if !self.full() {
            self.sink.push(diagnostic);
        }
        self.errors += 1;
        if self.full() {
            self.at = self.tokens.len() - 1;
        }
    }

    /// A value; on an error, reported, `None` with the cursor at the offending token.
    fn value(&mut self) -> Option<Node> {
        let current_token = self.peek().clone();
        let kind = match current_token.tok {
            Tok::Open(_) => return Some(self.bracketed(None)),
            Tok::Bool(b) => NodeKind::Bool(b),
            Tok::Int(i) => NodeKind::Int(i),
            Tok::Float(f) => NodeKind::Float(f),
            Tok::Str(s) => NodeKind::Str(s),
            Tok::Param(p) => NodeKind::Param(p),
            Tok::Bad => NodeKind::Bad,
            Tok::Word(word) => {
                self.next();
                let word_name = Spanned::new(word, current_token.span);
                if self.peek().tok == Tok::Open('(') {
                    return Some(self.bracketed(Some(word_name)));
                }
                return Some(Node {
                    span: word_name.span,
                    kind: NodeKind::Word(word_name.value),
                });
            }
            other => {
                self.error(
                    Diagnostic::new(Code::E0101, format!("expected a value, found {other}"))
                        .primary(current_token.span, "a value should stand here")
                        .help("values are numbers, \"strings\", words, [lists], {maps}, (groups) and Name(…)"),
                );
                return None;
            }
        };

        self.next();
        Some(Node {
            span: current_token.span,
            kind,
        })
    }

    /// A group, list or map, from its opening bracket.
    fn bracketed(&mut self, name: Option<Spanned<String>>) -> Node {
        let open_token = self.next();
        let Tok::Open(bracket) = open_token.tok else {
            unreachable!("the caller looked")
        };
        let start_span = name.as_ref().map_or(open_token.span, |n| n.span);
        if self.open.len() >= MAX_DEPTH {
            self.error(
                Diagnostic::new(
                    Code::E0104,
                    format!("brackets are nested deeper than {MAX_DEPTH}"),
                )
                .primary(open_token.span, "one too many")
                .help("put inner parts into sub-models, or data into an .npy file"),
            );
            let end_span = self.skip_group(open_token.span);
            if self.peek().tok == Tok::Eof {
                // What is around it is unclosed as well, and the least of its problems.
                self.errors = MAX_ERRORS;
            }
            return Node {
                span: start_span.to(end_span),
                kind: NodeKind::Bad,
            };
        }

        self.open.push((bracket, open_token.span));
        let (mut items, mut pairs, mut args) = (Vec::new(), Vec::new(), Vec::new());
        let end_span = self.items(bracket, open_token.span, |p| {
            match bracket {
                '[' => items.push(p.value()?),
                '{' => pairs.push(p.pair()?),
                _ => args.push(p.arg()?),
            }

            Some(())
        });
        self.open.pop();
        let kind = match bracket {
            '[' => NodeKind::List(items),
            '{' => NodeKind::Map(pairs),
            _ => NodeKind::Call(name, args),
        };

        Node {
            span: start_span.to(end_span),
            kind,
        }
    }

    /// Items separated by commas up to the closing bracket, whose span is returned.
    fn items(
        &mut self,
        open: char,
        at: Span,
        mut item: impl FnMut(&mut Self) -> Option<()>,
    ) -> Span {
        let closing_bracket = closing(open);
        loop {
            let token = self.peek().clone();
            match token.tok {
                Tok::Close(c) if c == closing_bracket => return self.next().span,
                Tok::Close(_) | Tok::Eof => {
                    if self.wrong_end(open, at, &token) {
                        return token.span;
                    }
                    continue;
                }
                _ => {}
            }

            if item(self).is_none() {
                self.recover();
                continue;
            }

            let token = self.peek().clone();
            match token.tok {
                Tok::Comma => {
                    self.next();
                }
                Tok::Close(_) | Tok::Eof => {}
                Tok::Bad => self.recover(),
                other => {
                    self.error(
                        Diagnostic::new(
                            Code::E0101,
                            format!("expected `,` or `{closing_bracket}`, found {other}"),
                        )
                        .primary(
                            token.span,
                            format!("`,` or `{closing_bracket}` should stand before this"),
                        )
                        .context(at, "in what is opened here"),
                    );
                    // A forgotten comma: go on with what follows, if it may start an item.
                    if matches!(other, Tok::Colon) {
                        self.recover();
                    }
                }
            }
        }
    }

    /// At a bracket that closes something else, or at the end: reports it; whether the sequence ends here.
    fn wrong_end(&mut self, open: char, at: Span, token: &Token) -> bool {
        if token.tok == Tok::Eof {
            // A string or comment without an end has swallowed the bracket, and was reported.
            let is_swallowed = self
                .tokens
                .iter()
                .rev()
                .nth(1)
                .is_some_and(|t| t.tok == Tok::Bad);
            if !self.full() && !is_swallowed {
                self.error(
                    Diagnostic::new(Code::E0102, format!("`{open}` is never closed"))
                        .primary(at, "opened here")
                        .context(
                            token.span,
                            format!("the file ends before its `{}`", closing(open)),
                        )
                        .help(format!("close it with `{}`", closing(open))),
                );
                // One report is enough: everything around it is unclosed as well.
                self.errors = MAX_ERRORS;
            }
            return true;
        }

        let Tok::Close(found) = token.tok else {
            unreachable!("the caller looked")
        };
        let closes_outer = self
            .open
            .iter()
            .rev()
            .skip(1)
            .any(|(o, _)| closing(*o) == found);
        self.error(
            Diagnostic::new(Code::E0105, format!("`{open}` is closed by `{found}`"))
                .primary(token.span, format!("expected `{}`", closing(open)))
                .context(at, "opened here")
                .help(format!("write `{}`, or remove `{found}`", closing(open))),
        );

        if !closes_outer {
            self.next();
        }
        // Either the bracket belongs further out, or it was meant to close this one.
        true
    }

    fn pair(&mut self) -> Option<(Node, Node)> {
        let key_node = self.value()?;
        let token = self.peek().clone();
        if token.tok != Tok::Colon {
            self.error(
                Diagnostic::new(Code::E0101, format!("expected `:`, found {}", token.tok))
                    .primary(token.span, "`:` and a value should follow the key")
                    .context(key_node.span, "the key"),
            );
            return None;
        }
        self.next();
        Some((key_node, self.value()?))
    }

    fn arg(&mut self) -> Option<Arg> {
        // A word alone may be a value: only the colon behind it makes it a name.
        let is_named = matches!(self.peek().tok, Tok::Word(_))
            && self
                .tokens
                .get(self.at + 1)
                .is_some_and(|t| t.tok == Tok::Colon);
        if !is_named {
            return Some(Arg {
                name: None,
                value: self.value()?,
            });
        }

        let name_token = self.next();
        self.next();
        let Tok::Word(name) = name_token.tok else {
            unreachable!("just looked")
        };
        Some(Arg {
            name: Some(Spanned::new(name, name_token.span)),
            value: self.value()?,
        })
    }

    /// Skips to behind the next comma, or to the bracket that ends the current sequence.
    fn recover(&mut self) {
        let mut open_brackets = 0usize;
        loop {
            match self.peek().tok {
                Tok::Eof => return,
                Tok::Open(_) => open_brackets += 1,
                Tok::Close(_) if open_brackets == 0 => return,
                Tok::Close(_) => open_brackets -= 1,
                Tok::Comma if open_brackets == 0 => {
                    self.next();
                    return;
                }
                _ => {}
            }

            self.next();
        }
    }

    /// Skips a group whose opening bracket was just consumed; the span of its end.
    fn skip_group(&mut self, open: Span) -> Span {
        let mut open_brackets = 1usize;
        let mut end_span = open;
        while open_brackets > 0 && self.peek().tok != Tok::Eof {
            let token = self.next();
            end_span = token.span;
            match token.tok {
                Tok::Open(_) => open_brackets += 1,
                Tok::Close(_) => open_brackets -= 1,
                _ => {}
            }
        }
        end_span
    }
}

fn closing(open: char) -> char {
    match open {
        '(' => ')',
        '[' => ']',
        _ => '}',
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::source::SourceMap;

    fn read(text: &str) -> (Option<Node>, Vec<String>) {
        let mut sources = SourceMap::default();
        let file = sources.add("t", text);
        let mut sink = Sink::default();
        let node = parse(file, text, &mut sink);
        (
            node,
            sink.iter()
                .map(|d| format!("{} {}", d.code, d.message))
                .collect(),
        )
    }

    #[test]
    fn values() {
        let cases: &[(&str, NodeKind)] = &[
            ("0x_ff", NodeKind::Int(255)),
            ("-1_000", NodeKind::Int(-1000)),
            ("0b101", NodeKind::Int(5)),
            ("2.4e6", NodeKind::Float(2.4e6)),
            ("1.", NodeKind::Float(1.0)),
            (".5", NodeKind::Float(0.5)),
            ("-inf", NodeKind::Float(f64::NEG_INFINITY)),
            ("-9223372036854775808", NodeKind::Int(i64::MIN)),
            (r#""a\n\u{e9}\"""#, NodeKind::Str("a\né\"".into())),
            ("r#\"a\"b\\\"#", NodeKind::Str("a\"b\\".into())),
            ("f32", NodeKind::Word("f32".into())),
            ("$gain", NodeKind::Param("gain".into())),
            ("/* a /* b */ c */ true // end", NodeKind::Bool(true)),
            ("#![enable(implicit_some)] 'x'", NodeKind::Str("x".into())),
        ];
        for (text, kind) in cases {
            let (node, errors) = read(text);
            assert_eq!(errors, Vec::<String>::new(), "{text}");
            assert_eq!(&node.unwrap().kind, kind, "{text}");
        }
    }

    #[test]
    fn every_error_is_reported() {
        let cases: &[(&str, &[&str])] = &[
            (
                "(a: , b: ], c: 1",
                &[
                    "E0101 expected a value, found `,`",
                    "E0101 expected a value, found `]`",
                ],
            ),
            (
                "[1 2, 3: 4]",
                &[
                    "E0101 expected `,` or `]`, found the integer 2",
                    "E0101 expected `,` or `]`, found `:`",
                ],
            ),
            ("(1, [2, 3)", &["E0105 `[` is closed by `)`"]),
            ("(1, 2]", &["E0105 `(` is closed by `]`"]),
            ("{\"a\" 1}", &["E0101 expected `:`, found the integer 1"]),
            ("(((", &["E0102 `(` is never closed"]),
            ("\"abc", &["E0102 the string is never closed"]),
            ("/* abc", &["E0102 the comment is never closed"]),
            (
                "99999999999999999999",
                &["E0103 `99999999999999999999` does not fit into 64 bits"],
            ),
            ("1e999", &["E0103 `1e999` is too large for a number"]),
            ("0xzz", &["E0103 `0xzz` is no number"]),
            ("\"\\q\"", &["E0106 unknown escape `\\q`"]),
            ("@", &["E0106 `@` means nothing here"]),
            ("", &["E0101 expected a value, found the end of the file"]),
            (
                "1 2",
                &["E0101 expected the end of the file, found the integer 2"],
            ),
        ];
        for (text, expect) in cases {
            let (_, errors) = read(text);
            for e in *expect {
                assert!(
                    errors.iter().any(|m| m == e),
                    "{text}: {errors:?} lacks {e}"
                );
            }
        }
    }

    #[test]
    fn nesting_is_bounded() {
        let text = "[".repeat(200_000);
        let (_, errors) = read(&text);
        assert!(errors[0].starts_with("E0104"), "{errors:?}");
    }
}
