//! Text from files, made safe to print: what would move a cursor, hide text or reorder a line is written as an escape.
//!
//! A name with a control sequence in it could otherwise repaint a terminal, and one with a bidirectional override could
//! make a line read as something else. Names in programs have none of these characters, because the verifier refuses
//! them; file names, parameters and messages may.

use std::borrow::Cow;
use std::fmt::Write as _;

/// Whether a character changes how other text is shown, or is not shown at all: control characters (C0, DEL, C1), line
/// and paragraph separators, marks and overrides of the writing direction, zero-width characters, tags.
pub fn is_hidden(character: char) -> bool {
    character.is_control()
        || matches!(character,
            '\u{ad}'
            | '\u{61c}'
            | '\u{180e}'
            | '\u{200b}'..='\u{200f}'
            | '\u{2028}'..='\u{202e}'
            | '\u{2060}'..='\u{206f}'
            | '\u{feff}'
            | '\u{fff9}'..='\u{fffb}'
            | '\u{e0000}'..='\u{e007f}')
}

/// The text in one line, each hidden character as an escape such as `\n` or `\u{1b}`. Nothing is copied where there is
/// none.
pub fn printable(text: &str) -> Cow<'_, str> {
    escaped(text, is_hidden)
}

/// As [`printable`], but line ends and tabs stay: for text of several lines.
pub fn printable_lines(text: &str) -> Cow<'_, str> {
    escaped(text, |c| is_hidden(c) && !matches!(c, '\n' | '\t'))
}

/// JSON with each hidden character inside its strings as `\uXXXX`, which reads back as the same value. Line ends
/// between values stay. JSON writers escape only the first 32 characters.
pub fn printable_json(json: &str) -> Cow<'_, str> {
    replaced(
        json,
        |c| is_hidden(c) && c != '\n',
        |out, character| {
            for unit in character.encode_utf16(&mut [0; 2]) {
                // Writing to a string cannot fail.
                let _ = write!(out, "\\u{unit:04x}");
            }
        },
    )
}

/// The text with each hidden character as question marks of the same number of bytes, so that places in it stay the
/// same; line ends and tabs stay.
pub fn masked(text: &str) -> Cow<'_, str> {
    if !text.contains(is_hidden) {
        return Cow::Borrowed(text);
    }

    // One character for one, so that places in the text stay what they are.
    let mut masked_text = String::with_capacity(text.len());
    for (at, character) in text.char_indices() {
        let is_line_end = text[at..].starts_with("\r\n");
        if is_line_end || matches!(character, '\n' | '\t') || !is_hidden(character) {
            masked_text.push(character);
        } else {
            masked_text.extend(std::iter::repeat_n('?', character.len_utf8()));
        }
    }

    Cow::Owned(masked_text)
}

fn escaped(text: &str, is_replaced: impl Fn(char) -> bool) -> Cow<'_, str> {
    replaced(text, is_replaced, |out, character| match character {
        '\n' => out.push_str("\\n"),
        '\r' => out.push_str("\\r"),
        '\t' => out.push_str("\\t"),
        '\0' => out.push_str("\\0"),
        other => out.extend(other.escape_unicode()),
    })
}

fn replaced(
    text: &str,
    is_replaced: impl Fn(char) -> bool,
    write: impl Fn(&mut String, char),
) -> Cow<'_, str> {
    if !text.contains(&is_replaced) {
        return Cow::Borrowed(text);
    }
    let mut replaced_text = String::with_capacity(text.len() + 16);
    for character in text.chars() {
        if is_replaced(character) {
            write(&mut replaced_text, character);
        } else {
            replaced_text.push(character);
        }
    }

    Cow::Owned(replaced_text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hidden_characters_are_escaped() {
        let cases = [
            ("plain é 日本 ∂", "plain é 日本 ∂"),
            ("a\u{1b}[31mb", "a\\u{1b}[31mb"),
            ("nul\0", "nul\\0"),
            ("two\nlines\tand\rmore", "two\\nlines\\tand\\rmore"),
            ("\u{7f}\u{9b}", "\\u{7f}\\u{9b}"),
            ("\u{202e}\u{2066}\u{200b}", "\\u{202e}\\u{2066}\\u{200b}"),
        ];
        for (text, expect) in cases {
            assert_eq!(printable(text), expect);
        }
        assert_eq!(printable_lines("a\n\tb\r"), "a\n\tb\\r");
        assert!(matches!(printable("plain"), Cow::Borrowed(_)));
    }

    #[test]
    fn every_general_category_that_hides_is_covered() {
        for character in '\0'..='\u{ffff}' {
            // What Rust's own escapes show as a number is unassigned, private, blank or hidden; all hidden ones are.
            if is_hidden(character) {
                let is_escaped = character.escape_debug().count() > 1;
                assert!(is_escaped, "{:x}", character as u32);
            }
        }
        assert!(('\0'..=' ').filter(|&c| c != ' ').all(is_hidden));
        assert!(('\u{7f}'..='\u{9f}').all(is_hidden));
        assert!(('\u{202a}'..='\u{202e}').all(is_hidden));
        assert!(('\u{2066}'..='\u{2069}').all(is_hidden));
    }

    #[test]
    fn json_stays_the_same_value() {
        let json = "[\"\u{7f}\u{9b}\u{202e}\u{e0001}é\"]\n";
        assert_eq!(
            printable_json(json),
            "[\"\\u007f\\u009b\\u202e\\udb40\\udc01é\"]\n"
        );
    }

    #[test]
    fn masks_keep_places() {
        let text = "a\u{1b}\u{9b}\u{202e}\nb";
        assert_eq!(masked(text), "a??????\nb");
        assert_eq!(masked(text).len(), text.len());
        assert_eq!(masked("a\r\nb\rc"), "a\r\nb?c");
    }
}
