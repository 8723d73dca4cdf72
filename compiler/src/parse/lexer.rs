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
    let text_start = if text.starts_with('\u{feff}') { 3 } else { 0 };
    let mut lexer = Lexer {
        file,
        text,
        at: text_start,
        tokens: Vec::new(),
        errors: 0,
        sink,
    };

    while lexer.errors < MAX_ERRORS && lexer.lex_token() {}
    let end_span = Span::new(file, text.len(), text.len());
    lexer.tokens.push(Token {
        tok: Tok::Eof,
        span: end_span,
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
        let token_span = self.span(start);
        self.tokens.push(Token {
            tok,
            span: token_span,
        });
    }

    fn push_error(&mut self, diagnostic: Diagnostic) {
        self.errors += 1;
        self.sink.push(diagnostic);
    }

    /// One token, comment or blank; false at the end.
    fn lex_token(&mut self) -> bool {
        let token_start = self.at;
        let Some(c) = self.rest().chars().next() else {
            return false;
        };
        let next_char = self.rest()[c.len_utf8()..].chars().next();
        match c {
            c if c.is_whitespace() => self.at += c.len_utf8(),
            '/' if next_char == Some('/') => {
                self.at += self.rest().find('\n').unwrap_or(self.rest().len())
            }
            '/' if next_char == Some('*') => self.block_comment(),
            '#' if next_char == Some('!') => self.skip_attribute(),
            '(' | '[' | '{' => self.push_single(Tok::Open(c)),
            ')' | ']' | '}' => self.push_single(Tok::Close(c)),
            ',' => self.push_single(Tok::Comma),
            ':' => self.push_single(Tok::Colon),
            '"' => self.lex_string(),
            '\'' => self.lex_character(),
            'r' if raw_hashes(&self.rest()[1..]).is_some() => self.raw_string(),
            '$' => self.lex_parameter(),

            // Numbers of RON may be words: `inf` and `NaN`.
            c if c.is_alphabetic() || c == '_' => {
                self.at += word_len(self.rest());
                let word = &self.text[token_start..self.at];
                let tok = match word {
                    "true" => Tok::Bool(true),
                    "false" => Tok::Bool(false),
                    "inf" => Tok::Float(f64::INFINITY),
                    "NaN" => Tok::Float(f64::NAN),
                    _ => Tok::Word(word.to_owned()),
                };

                self.push(token_start, tok);
            }
            c if c.is_ascii_digit() || matches!(c, '-' | '+' | '.') => self.lex_number(),
            c => {
                self.at += c.len_utf8();
                self.push_error(
                    Diagnostic::new(
                        Code::E0106,
                        format!("`{}` means nothing here", c.escape_debug()),
                    )
                    .primary(self.span(token_start), "unexpected character"),
                );

                self.push(token_start, Tok::Bad);
            }
        }

        true
    }

    fn push_single(&mut self, tok: Tok) {
        self.at += 1;
        self.push(self.at - 1, tok);
    }

    fn block_comment(&mut self) {
        let comment_start = self.at;
        let text_bytes = self.text.as_bytes();

        // Comments nest, as in Rust.
        let mut open_comments = 0usize;
        while self.at < text_bytes.len() {
            match &text_bytes[self.at..(self.at + 2).min(text_bytes.len())] {
                b"/*" => {
                    open_comments += 1;
                    self.at += 2;
                }
                b"*/" => {
                    open_comments -= 1;
                    self.at += 2;
                    if open_comments == 0 {
                        return;
                    }
                }
                _ => self.at += 1,
            }
        }

        self.unclosed("comment", comment_start, 2, "close it with `*/`");
        self.push(comment_start, Tok::Bad);
    }

    /// RON's `#![enable(…)]` lines switch on what is always on here.
    fn skip_attribute(&mut self) {
        let attribute_start = self.at;
        match self.rest().find(']') {
            Some(end) => self.at += end + 1,
            None => {
                self.at = self.text.len();
                self.unclosed("attribute", attribute_start, 2, "close it with `]`");
            }
        }
    }

    fn unclosed(&mut self, what: &str, start: usize, len: usize, help: &str) {
        self.push_error(
            Diagnostic::new(Code::E0102, format!("the {what} is never closed"))
                .primary(Span::new(self.file, start, start + len), "opened here")
                .help(help),
        );
    }

    fn lex_string(&mut self) {
        let literal_start = self.at;
        self.at += 1;
        let mut text_value = String::new();
        loop {
            let Some(c) = self.rest().chars().next() else {
                self.unclosed("string", literal_start, 1, "close it with `\"`");
                return self.push(literal_start, Tok::Bad);
            };
            self.at += c.len_utf8();
            match c {
                '"' => return self.push(literal_start, Tok::Str(text_value)),
                '\\' => text_value.extend(self.read_escape()),
                c => text_value.push(c),
            }
        }
    }

    fn lex_character(&mut self) {
        let literal_start = self.at;
        self.at += 1;
        let first_char = self.rest().chars().next();
        self.at += first_char.map_or(0, char::len_utf8);
        let char_value = match first_char {
            Some('\\') => self.read_escape(),
            other => other,
        };
        match (char_value, self.rest().starts_with('\'')) {
            (Some(c), true) => {
                self.at += 1;
                self.push(literal_start, Tok::Str(c.to_string()));
            }
            _ => {
                self.unclosed(
                    "character",
                    literal_start,
                    1,
                    "close it with `'`, or write a \"string\"",
                );

                self.push(literal_start, Tok::Bad);
            }
        }
    }

    /// Behind a backslash.
    fn read_escape(&mut self) -> Option<char> {
        let escape_start = self.at - 1;
        let escape_char = self.rest().chars().next()?;
        self.at += escape_char.len_utf8();
        let escaped_char = match escape_char {
            'n' => Some('\n'),
            't' => Some('\t'),
            'r' => Some('\r'),
            '0' => Some('\0'),
            '\\' | '"' | '\'' => Some(escape_char),
            'x' => self.hex_escape(self.rest().get(..2), 2),
            'u' if self.rest().starts_with('{') => match self.rest().find('}') {
                Some(end) if end <= 8 => self.hex_escape(self.rest().get(1..end), end + 1),
                _ => None,
            },
            _ => None,
        };

        if escaped_char.is_none() {
            let shown_escape = self.text[escape_start..self.at].to_owned();
            self.push_error(
                Diagnostic::new(Code::E0106, format!("unknown escape `{shown_escape}`"))
                    .primary(self.span(escape_start), "no character")
                    .help("escapes are \\n \\t \\r \\0 \\\\ \\\" \\' \\x41 \\u{e9}; write \\\\ for a backslash"),
            );
        }

        escaped_char
    }

    fn hex_escape(&mut self, digits: Option<&str>, len: usize) -> Option<char> {
        let value = char::from_u32(u32::from_str_radix(digits?, 16).ok()?)?;
        self.at += len;
        Some(value)
    }

    fn raw_string(&mut self) {
        let literal_start = self.at;
        let hash_count = raw_hashes(&self.rest()[1..]).unwrap_or(0);
        self.at += 2 + hash_count;

        // The text ends at a quote with as many hashes as it began with.
        let end_marker = format!("\"{}", "#".repeat(hash_count));
        match self.rest().find(&end_marker) {
            Some(len) => {
                let text_value = self.rest()[..len].to_owned();
                self.at += len + end_marker.len();
                self.push(literal_start, Tok::Str(text_value));
            }
            None => {
                self.at = self.text.len();
                self.unclosed(
                    "string",
                    literal_start,
                    2 + hash_count,
                    &format!("close it with `{end_marker}`"),
                );

                self.push(literal_start, Tok::Bad);
            }
        }
    }

    fn lex_parameter(&mut self) {
        let name_start = self.at;
        self.at += 1;
        let name_length = word_len(self.rest());
        self.at += name_length;
        if name_length == 0 {
            self.push_error(
                Diagnostic::new(Code::E0106, "`$` without the name of a parameter")
                    .primary(self.span(name_start), "a name should follow")
                    .help("write `$name` for the parameter `name` of the sub-model"),
            );
            return self.push(name_start, Tok::Bad);
        }

        self.push(
            name_start,
            Tok::Param(self.text[name_start + 1..self.at].to_owned()),
        );
    }

    fn lex_number(&mut self) {
        let number_start = self.at;
        let text_bytes = self.rest().as_bytes();
        // An exponent's sign belongs to the number: `1e-3`, but not the digits of `0x1e`.
        let is_hex = text_bytes.len() > 2
            && text_bytes[0] == b'0'
            && matches!(text_bytes[1], b'x' | b'b' | b'o');
        let mut number_length = 1;
        while let Some(&b) = text_bytes.get(number_length) {
            let is_exponent_sign = matches!(b, b'-' | b'+')
                && !is_hex
                && matches!(text_bytes[number_length - 1], b'e' | b'E');
            if !(b.is_ascii_alphanumeric() || matches!(b, b'.' | b'_') || is_exponent_sign) {
                break;
            }
            number_length += 1;
        }

        self.at += number_length;
        let shown_number = &self.text[number_start..self.at];
        let tok = match read_number(shown_number) {
            Ok(tok) => tok,
            Err(message) => {
                self.push_error(
                    Diagnostic::new(Code::E0103, format!("`{shown_number}` {message}"))
                        .primary(self.span(number_start), "this number"),
                );
                Tok::Bad
            }
        };

        self.push(number_start, tok);
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
    let hash_count = text.bytes().take_while(|&b| b == b'#').count();
    (text.as_bytes().get(hash_count) == Some(&b'"')).then_some(hash_count)
}

fn read_number(shown: &str) -> Result<Tok, &'static str> {
    let plain_digits = shown.replace('_', "");
    let (negative, digits) = match plain_digits.as_bytes().first() {
        Some(b'-') => (true, &plain_digits[1..]),
        Some(b'+') => (false, &plain_digits[1..]),
        _ => (false, &plain_digits[..]),
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

    let radix_digits = if radix == 10 { digits } else { &digits[2..] };
    if !radix_digits.is_empty() && radix_digits.bytes().all(|b| char::from(b).is_digit(radix)) {
        let absolute_value =
            i128::from_str_radix(radix_digits, radix).map_err(|_| "does not fit into 64 bits")?;
        let value = if negative {
            -absolute_value
        } else {
            absolute_value
        };
        return i64::try_from(value)
            .map(Tok::Int)
            .map_err(|_| "does not fit into 64 bits");
    }

    // `f64::from_str` reads words such as `infinity`, which RON does not have.
    let is_decimal = digits
        .bytes()
        .all(|b| b.is_ascii_digit() || matches!(b, b'.' | b'e' | b'E' | b'-' | b'+'));
    if radix != 10 || !is_decimal || !digits.bytes().any(|b| b.is_ascii_digit()) {
        return Err("is no number");
    }
    let value: f64 = plain_digits.parse().map_err(|_| "is no number")?;
    if value.is_infinite() {
        return Err("is too large for a number");
    }
    Ok(Tok::Float(value))
}
