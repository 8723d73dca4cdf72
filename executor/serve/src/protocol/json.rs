//! A reader of JSON (RFC 8259) for bodies of strangers. Numbers stay the text that they are, so that whoever knows the type of an
//! element reads it exactly; nesting and the number of values are bounded.
//!
//! `serde_json` reads numbers into `f64` before their type is known, and not always to the nearest one.

use std::borrow::Cow;

/// Values in values, at most.
const MAX_DEPTH: u32 = 64;

/// A value. Strings without escapes and numbers are parts of the text.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Json<'a> {
    Null,
    Bool(bool),
    /// As it is written: a number by the grammar of JSON.
    Number(&'a str),
    String(Cow<'a, str>),
    Array(Vec<Json<'a>>),
    /// In the order of the text; of a name that comes twice, the last one counts.
    Object(Vec<(Cow<'a, str>, Json<'a>)>),
}

impl<'a> Json<'a> {
    /// The value of a member of an object. Nothing for other values.
    pub(crate) fn get(&self, name: &str) -> Option<&Json<'a>> {
        let Self::Object(members) = self else {
            return None;
        };
        let mut latest_first = members.iter().rev();
        latest_first
            .find(|(key, _)| key == name)
            .map(|(_, value)| value)
    }

    /// What it is, for people.
    pub(crate) fn kind(&self) -> &'static str {
        match self {
            Self::Null => "null",
            Self::Bool(_) => "a truth value",
            Self::Number(_) => "a number",
            Self::String(_) => "a string",
            Self::Array(_) => "a list",
            Self::Object(_) => "an object",
        }
    }
}

/// Why a text is not JSON that is taken.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum JsonError {
    #[error("the JSON is not UTF-8 from byte {at} on")]
    Utf8 { at: usize },
    #[error("byte {at} of the JSON: {expected} is expected")]
    Syntax { at: usize, expected: &'static str },
    #[error("byte {at} of the JSON: values are nested more than {MAX_DEPTH} deep")]
    Depth { at: usize },
    #[error("byte {at} of the JSON: it has more than {max} values, which this model never needs")]
    Values { at: usize, max: usize },
}

/// Reads a text that is one value, of so many values in it at most. O(bytes).
pub(crate) fn parse(bytes: &[u8], max_values: usize) -> Result<Json<'_>, JsonError> {
    let text = std::str::from_utf8(bytes).map_err(|error| JsonError::Utf8 {
        at: error.valid_up_to(),
    })?;
    let mut reader = Reader {
        text,
        at: 0,
        depth: 0,
        values: 0,
        max_values,
    };
    let value = reader.value()?;
    reader.skip_space();
    if reader.at < text.len() {
        return Err(reader.expected("the end"));
    }
    Ok(value)
}

struct Reader<'a> {
    text: &'a str,
    /// The next byte.
    at: usize,
    depth: u32,
    /// Read so far.
    values: usize,
    max_values: usize,
}

impl<'a> Reader<'a> {
    fn expected(&self, expected: &'static str) -> JsonError {
        JsonError::Syntax {
            at: self.at,
            expected,
        }
    }

    fn peek(&self) -> Option<u8> {
        self.text.as_bytes().get(self.at).copied()
    }

    fn skip_space(&mut self) {
        while matches!(self.peek(), Some(b' ' | b'\t' | b'\n' | b'\r')) {
            self.at += 1;
        }
    }

    /// Takes a byte if it is next.
    fn take(&mut self, byte: u8) -> bool {
        let is_next = self.peek() == Some(byte);
        self.at += usize::from(is_next);
        is_next
    }

    fn value(&mut self) -> Result<Json<'a>, JsonError> {
        self.skip_space();
        self.values += 1;
        if self.values > self.max_values {
            return Err(JsonError::Values {
                at: self.at,
                max: self.max_values,
            });
        }
        match self.peek() {
            Some(b'{') => self.nested(Self::object),
            Some(b'[') => self.nested(Self::array),
            Some(b'"') => self.string().map(Json::String),
            Some(b'-' | b'0'..=b'9') => self.number(),
            Some(b't') => self.word("true", Json::Bool(true)),
            Some(b'f') => self.word("false", Json::Bool(false)),
            Some(b'n') => self.word("null", Json::Null),
            _ => Err(self.expected("a value")),
        }
    }

    fn nested(
        &mut self,
        read: impl FnOnce(&mut Self) -> Result<Json<'a>, JsonError>,
    ) -> Result<Json<'a>, JsonError> {
        if self.depth == MAX_DEPTH {
            return Err(JsonError::Depth { at: self.at });
        }
        self.depth += 1;
        self.at += 1;
        let value = read(self)?;
        self.depth -= 1;
        Ok(value)
    }

    fn word(&mut self, word: &'static str, value: Json<'a>) -> Result<Json<'a>, JsonError> {
        if !self.text[self.at..].starts_with(word) {
            return Err(self.expected("a value"));
        }
        self.at += word.len();
        Ok(value)
    }

    /// What follows `[`.
    fn array(&mut self) -> Result<Json<'a>, JsonError> {
        let mut items = Vec::new();
        self.skip_space();
        if self.take(b']') {
            return Ok(Json::Array(items));
        }
        loop {
            items.push(self.value()?);
            self.skip_space();
            if self.take(b']') {
                return Ok(Json::Array(items));
            }
            if !self.take(b',') {
                return Err(self.expected("`,` or `]`"));
            }
        }
    }

    /// What follows `{`.
    fn object(&mut self) -> Result<Json<'a>, JsonError> {
        let mut members = Vec::new();
        self.skip_space();
        if self.take(b'}') {
            return Ok(Json::Object(members));
        }
        loop {
            self.skip_space();
            if self.peek() != Some(b'"') {
                return Err(self.expected("a name in quotes"));
            }
            let name = self.string()?;
            self.skip_space();
            if !self.take(b':') {
                return Err(self.expected("`:`"));
            }
            members.push((name, self.value()?));
            self.skip_space();
            if self.take(b'}') {
                return Ok(Json::Object(members));
            }
            if !self.take(b',') {
                return Err(self.expected("`,` or `}`"));
            }
        }
    }

    fn number(&mut self) -> Result<Json<'a>, JsonError> {
        let start = self.at;
        self.take(b'-');
        // A zero is not followed by digits.
        if !self.take(b'0') {
            self.digits()?;
        }
        if self.take(b'.') {
            self.digits()?;
        }
        if self.take(b'e') || self.take(b'E') {
            if !self.take(b'+') {
                self.take(b'-');
            }
            self.digits()?;
        }
        Ok(Json::Number(&self.text[start..self.at]))
    }

    /// At least one digit.
    fn digits(&mut self) -> Result<(), JsonError> {
        let start = self.at;
        while matches!(self.peek(), Some(b'0'..=b'9')) {
            self.at += 1;
        }
        if self.at == start {
            return Err(self.expected("a digit"));
        }
        Ok(())
    }

    fn string(&mut self) -> Result<Cow<'a, str>, JsonError> {
        self.at += 1;
        let mut unescaped = String::new();
        let mut start = self.at;
        loop {
            match self.peek() {
                None => return Err(self.expected("the end of a string")),
                Some(0..=0x1f) => return Err(self.expected("an escape of a control character")),
                Some(b'"') => {
                    let rest = &self.text[start..self.at];
                    self.at += 1;
                    if unescaped.is_empty() {
                        return Ok(Cow::Borrowed(rest));
                    }
                    unescaped.push_str(rest);
                    return Ok(Cow::Owned(unescaped));
                }
                Some(b'\\') => {
                    unescaped.push_str(&self.text[start..self.at]);
                    self.at += 1;
                    unescaped.push(self.escape()?);
                    start = self.at;
                }
                Some(_) => self.at += 1,
            }
        }
    }

    /// What follows a backslash.
    fn escape(&mut self) -> Result<char, JsonError> {
        let escaped = match self.peek() {
            Some(b'n') => '\n',
            Some(b't') => '\t',
            Some(b'r') => '\r',
            Some(b'b') => '\u{8}',
            Some(b'f') => '\u{c}',
            Some(byte @ (b'"' | b'\\' | b'/')) => char::from(byte),
            Some(b'u') => {
                self.at += 1;
                return self.escaped_unit();
            }
            _ => return Err(self.expected("an escape")),
        };
        self.at += 1;
        Ok(escaped)
    }

    /// What follows `\u`: a character, or the first half of a pair of surrogates and then the second.
    fn escaped_unit(&mut self) -> Result<char, JsonError> {
        let first = self.hex_digits()?;
        if !(0xd800..0xdc00).contains(&first) {
            // The second half of a pair alone is not a character.
            return char::from_u32(first).ok_or(self.expected("a surrogate pair"));
        }
        if !(self.take(b'\\') && self.take(b'u')) {
            return Err(self.expected("the second half of a surrogate pair"));
        }
        let second = self.hex_digits()?;
        if !(0xdc00..0xe000).contains(&second) {
            return Err(self.expected("the second half of a surrogate pair"));
        }
        let code = 0x10000 + ((first - 0xd800) << 10) + (second - 0xdc00);
        char::from_u32(code).ok_or(self.expected("a character"))
    }

    fn hex_digits(&mut self) -> Result<u32, JsonError> {
        let mut code = 0;
        for _ in 0..4 {
            let digit = self.peek().and_then(|byte| char::from(byte).to_digit(16));
            let Some(digit) = digit else {
                return Err(self.expected("a hexadecimal digit"));
            };
            code = code << 4 | digit;
            self.at += 1;
        }
        Ok(code)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MANY: usize = 1000;

    #[test]
    fn values_are_what_serde_json_reads() {
        for text in [
            "null",
            " [ ] ",
            "{}",
            r#"{"a": [1, -2.5e-3, true, false, null], "b": {"c": "d"}}"#,
            r#""\u00e9\n\t\"\\\/ \ud83d\ude00 plain""#,
            "[[[]], [1, [2, [3]]]]",
            "0",
            "-0",
            "1E+2",
        ] {
            let ours = parse(text.as_bytes(), MANY).expect(text);
            let theirs: serde_json::Value = serde_json::from_str(text).expect(text);
            assert_eq!(value(&ours), theirs, "{text}");
        }
    }

    fn value(json: &Json<'_>) -> serde_json::Value {
        match json {
            Json::Null => serde_json::Value::Null,
            Json::Bool(truth) => (*truth).into(),
            Json::Number(text) => serde_json::from_str(text).expect("a number"),
            Json::String(text) => text.as_ref().into(),
            Json::Array(items) => items.iter().map(value).collect(),
            Json::Object(members) => {
                let pairs = members.iter();
                let pairs = pairs.map(|(name, member)| (name.to_string(), value(member)));
                serde_json::Value::Object(pairs.collect())
            }
        }
    }

    #[test]
    fn what_serde_json_refuses_is_refused() {
        for text in [
            "",
            " ",
            "[",
            "[1",
            "[1,",
            "[1,]",
            "[1 2]",
            "{",
            "{\"a\"",
            "{\"a\":",
            "{\"a\":1,}",
            "{a:1}",
            "01",
            "-",
            "1.",
            ".5",
            "1e",
            "+1",
            "NaN",
            "Infinity",
            "tru",
            "\"",
            "\"\\x\"",
            "\"\\u12\"",
            "\"\\ud800\"",
            "\"\\udc00\"",
            "\"\\ud800\\u0041\"",
            "\"\n\"",
            "1 2",
            "nullx",
            "'a'",
        ] {
            let ours = parse(text.as_bytes(), MANY);
            assert!(ours.is_err(), "{text}: {ours:?}");
            assert!(
                serde_json::from_str::<serde_json::Value>(text).is_err(),
                "{text}"
            );
        }
    }

    #[test]
    fn depth_values_and_bytes_are_bounded() {
        let deep = "[".repeat(100_000);
        assert_eq!(
            parse(deep.as_bytes(), usize::MAX),
            Err(JsonError::Depth { at: 64 })
        );
        assert_eq!(
            parse(b"[1, 2, 3]", 3),
            Err(JsonError::Values { at: 7, max: 3 })
        );
        assert_eq!(parse(b"\"a\xff\"", MANY), Err(JsonError::Utf8 { at: 2 }));
    }

    #[test]
    fn the_last_member_of_a_name_counts() {
        let json = parse(br#"{"a": 1, "a": 2}"#, MANY).expect("JSON");
        assert_eq!(json.get("a"), Some(&Json::Number("2")));
        assert_eq!((json.get("b"), Json::Null.get("a")), (None, None));
    }
}
