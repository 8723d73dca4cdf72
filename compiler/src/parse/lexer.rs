//! Text to tokens. Reports what is no token and goes on behind it.

use crate::codes::Code;
use crate::diag::{Diagnostic, Sink};
use crate::source::{FileId, Span};

/// A token with its place.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Token {
    pub(crate) tok: Tok,
    pub(crate) span: Span,
}

/// A token.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Tok {
    Open(char),
    Close(char),
    Comma,
    Colon,
    Word(String),
    Param(String),
    Str(String),
    Int(i64),
    Float(f64),
    Bool(bool),
    /// Already reported.
    Bad,
    Eof,
}

impl std::fmt::Display for Tok {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Tok::Open(c) | Tok::Close(c) => write!(f, "`{c}`"),
            Tok::Comma => f.write_str("`,`"),
            Tok::Colon => f.write_str("`:`"),
            Tok::Word(w) => write!(f, "the word `{w}`"),
            Tok::Param(p) => write!(f, "`${p}`"),
            Tok::Str(_) => f.write_str("a string"),
            Tok::Int(i) => write!(f, "the integer {i}"),
            Tok::Float(x) => write!(f, "the number {x}"),
            Tok::Bool(b) => write!(f, "`{b}`"),
            Tok::Bad => f.write_str("something unreadable"),
            Tok::Eof => f.write_str("the end of the file"),
        }
    }
}

/// Reports of one file; the rest of a file with more is not worth reading.
const MAX_ERRORS: usize = 50;

/// All tokens of a text; the last is [`Tok::Eof`].
pub(crate) fn lex(file: FileId, text: &str, sink: &mut Sink) -> Vec<Token> {
    let start = if text.starts_with('\u{feff}') { 3 } else { 0 };
    let mut lexer = Lexer {
        file,
        text,
        at: start,
        tokens: Vec::new(),
        errors: 0,
        sink,
    };
    while lexer.errors < MAX_ERRORS && lexer.step() {}
    let end = Span::new(file, text.len(), text.len());
    lexer.tokens.push(Token {
        tok: Tok::Eof,
        span: end,
    });
    lexer.tokens
}

struct Lexer<'a> {
    file: FileId,
    text: &'a str,
    at: usize,
    tokens: Vec<Token>,
    errors: usize,
    sink: &'a mut Sink,
}

impl<'a> Lexer<'a> {
    fn rest(&self) -> &'a str {
        &self.text[self.at..]
    }

    fn span(&self, start: usize) -> Span {
        Span::new(self.file, start, self.at)
    }

    fn push(&mut self, start: usize, tok: Tok) {
        let span = self.span(start);
        self.tokens.push(Token { tok, span });
    }

    fn error(&mut self, diagnostic: Diagnostic) {
        self.errors += 1;
        self.sink.push(diagnostic);
    }

    /// One token, comment or blank; false at the end.
    fn step(&mut self) -> bool {
        let start = self.at;
        let Some(c) = self.rest().chars().next() else {
            return false;
        };
        let next = self.rest()[c.len_utf8()..].chars().next();
        match c {
            c if c.is_whitespace() => self.at += c.len_utf8(),
            '/' if next == Some('/') => {
                self.at += self.rest().find('\n').unwrap_or(self.rest().len())
            }
            '/' if next == Some('*') => self.block_comment(),
            '#' if next == Some('!') => self.attribute(),
            '(' | '[' | '{' => self.single(Tok::Open(c)),
            ')' | ']' | '}' => self.single(Tok::Close(c)),
            ',' => self.single(Tok::Comma),
            ':' => self.single(Tok::Colon),
            '"' => self.string(),
            '\'' => self.character(),
            'r' if raw_hashes(&self.rest()[1..]).is_some() => self.raw_string(),
            '$' => self.parameter(),
            c if c.is_alphabetic() || c == '_' => {
                self.at += word_len(self.rest());
                let word = &self.text[start..self.at];
                let tok = match word {
                    "true" => Tok::Bool(true),
                    "false" => Tok::Bool(false),
                    "inf" => Tok::Float(f64::INFINITY),
                    "NaN" => Tok::Float(f64::NAN),
                    _ => Tok::Word(word.to_owned()),
                };
                self.push(start, tok);
            }
            c if c.is_ascii_digit() || matches!(c, '-' | '+' | '.') => self.number(),
            c => {
                self.at += c.len_utf8();
                self.error(
                    Diagnostic::new(
                        Code::E0106,
                        format!("`{}` means nothing here", c.escape_debug()),
                    )
                    .primary(self.span(start), "unexpected character"),
                );
                self.push(start, Tok::Bad);
            }
        }
        true
    }

    fn single(&mut self, tok: Tok) {
        self.at += 1;
        self.push(self.at - 1, tok);
    }

    fn block_comment(&mut self) {
        let start = self.at;
        let bytes = self.text.as_bytes();
        let mut depth = 0usize;
        while self.at < bytes.len() {
            match &bytes[self.at..(self.at + 2).min(bytes.len())] {
                b"/*" => {
                    depth += 1;
                    self.at += 2;
                }
                b"*/" => {
                    depth -= 1;
                    self.at += 2;
                    if depth == 0 {
                        return;
                    }
                }
                _ => self.at += 1,
            }
        }
        self.unclosed("comment", start, 2, "close it with `*/`");
        self.push(start, Tok::Bad);
    }

    /// RON's `#![enable(…)]` lines switch on what is always on here.
    fn attribute(&mut self) {
        let start = self.at;
        match self.rest().find(']') {
            Some(end) => self.at += end + 1,
            None => {
                self.at = self.text.len();
                self.unclosed("attribute", start, 2, "close it with `]`");
            }
        }
    }

    fn unclosed(&mut self, what: &str, start: usize, len: usize, help: &str) {
        self.error(
            Diagnostic::new(Code::E0102, format!("the {what} is never closed"))
                .primary(Span::new(self.file, start, start + len), "opened here")
                .help(help),
        );
    }

    fn string(&mut self) {
        let start = self.at;
        self.at += 1;
        let mut value = String::new();
        loop {
            let Some(c) = self.rest().chars().next() else {
                self.unclosed("string", start, 1, "close it with `\"`");
                return self.push(start, Tok::Bad);
            };
            self.at += c.len_utf8();
            match c {
                '"' => return self.push(start, Tok::Str(value)),
                '\\' => value.extend(self.escape()),
                c => value.push(c),
            }
        }
    }

    fn character(&mut self) {
        let start = self.at;
        self.at += 1;
        let first = self.rest().chars().next();
        self.at += first.map_or(0, char::len_utf8);
        let value = match first {
            Some('\\') => self.escape(),
            other => other,
        };
        match (value, self.rest().starts_with('\'')) {
            (Some(c), true) => {
                self.at += 1;
                self.push(start, Tok::Str(c.to_string()));
            }
            _ => {
                self.unclosed(
                    "character",
                    start,
                    1,
                    "close it with `'`, or write a \"string\"",
                );
                self.push(start, Tok::Bad);
            }
        }
    }

    /// Behind a backslash.
    fn escape(&mut self) -> Option<char> {
        let start = self.at - 1;
        let c = self.rest().chars().next()?;
        self.at += c.len_utf8();
        let value = match c {
            'n' => Some('\n'),
            't' => Some('\t'),
            'r' => Some('\r'),
            '0' => Some('\0'),
            '\\' | '"' | '\'' => Some(c),
            'x' => self.hex_escape(self.rest().get(..2), 2),
            'u' if self.rest().starts_with('{') => match self.rest().find('}') {
                Some(end) if end <= 8 => self.hex_escape(self.rest().get(1..end), end + 1),
                _ => None,
            },
            _ => None,
        };
        if value.is_none() {
            let shown = self.text[start..self.at].to_owned();
            self.error(
                Diagnostic::new(Code::E0106, format!("unknown escape `{shown}`"))
                    .primary(self.span(start), "no character")
                    .help("escapes are \\n \\t \\r \\0 \\\\ \\\" \\' \\x41 \\u{e9}; write \\\\ for a backslash"),
            );
        }
        value
    }

    fn hex_escape(&mut self, digits: Option<&str>, len: usize) -> Option<char> {
        let value = char::from_u32(u32::from_str_radix(digits?, 16).ok()?)?;
        self.at += len;
        Some(value)
    }

    fn raw_string(&mut self) {
        let start = self.at;
        let hashes = raw_hashes(&self.rest()[1..]).unwrap_or(0);
        self.at += 2 + hashes;
        let end = format!("\"{}", "#".repeat(hashes));
        match self.rest().find(&end) {
            Some(len) => {
                let value = self.rest()[..len].to_owned();
                self.at += len + end.len();
                self.push(start, Tok::Str(value));
            }
            None => {
                self.at = self.text.len();
                self.unclosed(
                    "string",
                    start,
                    2 + hashes,
                    &format!("close it with `{end}`"),
                );
                self.push(start, Tok::Bad);
            }
        }
    }

    fn parameter(&mut self) {
        let start = self.at;
        self.at += 1;
        let len = word_len(self.rest());
        self.at += len;
        if len == 0 {
            self.error(
                Diagnostic::new(Code::E0106, "`$` without the name of a parameter")
                    .primary(self.span(start), "a name should follow")
                    .help("write `$name` for the parameter `name` of the sub-model"),
            );
            return self.push(start, Tok::Bad);
        }
        self.push(start, Tok::Param(self.text[start + 1..self.at].to_owned()));
    }

    fn number(&mut self) {
        let start = self.at;
        let bytes = self.rest().as_bytes();
        // An exponent's sign belongs to the number: `1e-3`, but not the digits of `0x1e`.
        let hex = bytes.len() > 2 && bytes[0] == b'0' && matches!(bytes[1], b'x' | b'b' | b'o');
        let mut len = 1;
        while let Some(&b) = bytes.get(len) {
            let sign = matches!(b, b'-' | b'+') && !hex && matches!(bytes[len - 1], b'e' | b'E');
            if !(b.is_ascii_alphanumeric() || matches!(b, b'.' | b'_') || sign) {
                break;
            }
            len += 1;
        }
        self.at += len;
        let shown = &self.text[start..self.at];
        let tok = match read_number(shown) {
            Ok(tok) => tok,
            Err(message) => {
                self.error(
                    Diagnostic::new(Code::E0103, format!("`{shown}` {message}"))
                        .primary(self.span(start), "this number"),
                );
                Tok::Bad
            }
        };
        self.push(start, tok);
    }
}

/// Length of the word at the start of the text, 0 if there is none.
fn word_len(text: &str) -> usize {
    text.char_indices()
        .find(|(_, c)| !(c.is_alphanumeric() || *c == '_'))
        .map_or(text.len(), |(i, _)| i)
}

/// Hashes of a raw string whose `r` stands before `text`.
fn raw_hashes(text: &str) -> Option<usize> {
    let hashes = text.bytes().take_while(|&b| b == b'#').count();
    (text.as_bytes().get(hashes) == Some(&b'"')).then_some(hashes)
}

fn read_number(shown: &str) -> Result<Tok, &'static str> {
    let clean = shown.replace('_', "");
    let (negative, digits) = match clean.as_bytes().first() {
        Some(b'-') => (true, &clean[1..]),
        Some(b'+') => (false, &clean[1..]),
        _ => (false, &clean[..]),
    };
    if digits == "inf" {
        return Ok(Tok::Float(if negative {
            f64::NEG_INFINITY
        } else {
            f64::INFINITY
        }));
    }
    if digits == "NaN" {
        return Ok(Tok::Float(f64::NAN));
    }
    let radix = match digits.get(..2) {
        Some("0x") => 16,
        Some("0b") => 2,
        Some("0o") => 8,
        _ => 10,
    };
    let body = if radix == 10 { digits } else { &digits[2..] };
    if !body.is_empty() && body.bytes().all(|b| char::from(b).is_digit(radix)) {
        let magnitude =
            i128::from_str_radix(body, radix).map_err(|_| "does not fit into 64 bits")?;
        let value = if negative { -magnitude } else { magnitude };
        return i64::try_from(value)
            .map(Tok::Int)
            .map_err(|_| "does not fit into 64 bits");
    }
    let plain = digits
        .bytes()
        .all(|b| b.is_ascii_digit() || matches!(b, b'.' | b'e' | b'E' | b'-' | b'+'));
    if radix != 10 || !plain || !digits.bytes().any(|b| b.is_ascii_digit()) {
        return Err("is no number");
    }
    let value: f64 = clean.parse().map_err(|_| "is no number")?;
    if value.is_infinite() {
        return Err("is too large for a number");
    }
    Ok(Tok::Float(value))
}
