//! Lines with aligned columns.

use super::printable;

/// Columns that cells are aligned in. A longer cell pushes what follows in its own line to the right, so that one long
/// name does not widen every line.
const MAX_COLUMN_WIDTH: usize = 200;
/// Columns are not wrapped to less than this: the pieces would no longer be read as a whole.
const MIN_COLUMN_WIDTH: usize = 12;
/// Blanks between two columns.
const COLUMN_SEPARATOR: usize = 2;

/// A cell: text to the left, numbers to the right.
#[derive(Clone, Debug)]
pub enum Cell {
    /// Filled up with blanks at the end.
    Left(String),
    /// Filled up with blanks in front.
    Right(String),
}

impl Cell {
    fn text(&self) -> &str {
        let (Cell::Left(text) | Cell::Right(text)) = self;
        text
    }
}

/// A cell of text.
pub fn left(text: impl Into<String>) -> Cell {
    Cell::Left(printable(&text.into()).into_owned())
}

/// A cell of a number.
pub fn right(text: impl Into<String>) -> Cell {
    Cell::Right(printable(&text.into()).into_owned())
}

#[derive(Clone, Debug)]
enum Line {
    Cells(usize, Vec<Cell>),
    Text(usize, String),
}

/// Lines, indented by steps of two; cells of one column have one width.
#[derive(Clone, Debug, Default)]
pub struct Table {
    lines: Vec<Line>,
}

impl Table {
    /// A line of cells.
    pub fn row(&mut self, indent: usize, cells: Vec<Cell>) {
        self.lines.push(Line::Cells(indent, cells));
    }

    /// A line without columns.
    pub fn text(&mut self, indent: usize, text: impl Into<String>) {
        let text = printable(&text.into()).into_owned();
        self.lines.push(Line::Text(indent, text));
    }

    /// Appends all lines. Columns are two spaces apart; lines do not end in spaces. O(bytes written).
    pub fn write(&self, out: &mut String) {
        self.write_wrapped(usize::MAX, out);
    }

    /// [`Table::write`] in lines of at most `width` columns, if that leaves a dozen for each column: the widest
    /// columns become narrower, and cells that do not fit go on in their column of the next line.
    pub fn write_wrapped(&self, width: usize, out: &mut String) {
        let natural_widths = self.natural_widths();

        // Narrow columns keep their width: only the widest pay for a narrow terminal.
        let cap = column_cap(&natural_widths, width);
        let widths: Vec<usize> = natural_widths.iter().map(|&w| w.min(cap)).collect();
        for line in &self.lines {
            match line {
                Line::Text(indent, text) => {
                    pad(out, 2 * indent);
                    out.push_str(text);
                    end_line(out);
                }
                Line::Cells(indent, cells) if cap == usize::MAX => {
                    write_cells(out, *indent, cells, &widths);
                }
                Line::Cells(indent, cells) => {
                    for wrapped_cells in wrap_cells(*indent, cells, &widths) {
                        write_cells(out, *indent, &wrapped_cells, &widths);
                    }
                }
            }
        }
    }

    /// Width of each column: of its longest cell, the indent with the first.
    fn natural_widths(&self) -> Vec<usize> {
        let mut widths: Vec<usize> = Vec::new();
        for line in &self.lines {
            let Line::Cells(indent, cells) = line else {
                continue;
            };
            widths.resize(widths.len().max(cells.len()), 0);
            for (column, (width, cell)) in widths.iter_mut().zip(cells).enumerate() {
                let indent_width = if column == 0 { 2 * indent } else { 0 };
                let cell_width = cell.text().chars().count() + indent_width;
                *width = (*width).max(cell_width.min(MAX_COLUMN_WIDTH));
            }
        }

        widths
    }
}

/// The width that columns may have so that a line fits; no limit where it fits already.
fn column_cap(natural_widths: &[usize], width: usize) -> usize {
    let separators = COLUMN_SEPARATOR * natural_widths.len().saturating_sub(1);
    let line_width = |cap: usize| {
        let columns = natural_widths.iter().map(|&natural| natural.min(cap));
        columns.sum::<usize>() + separators
    };
    if line_width(usize::MAX) <= width {
        return usize::MAX;
    }

    // At most MAX_COLUMN_WIDTH steps: the cap falls until the line fits.
    let mut cap = MAX_COLUMN_WIDTH;
    while cap > MIN_COLUMN_WIDTH && line_width(cap) > width {
        cap -= 1;
    }
    cap
}

/// The cells of one line as those of as many lines as the longest of them needs.
fn wrap_cells(indent: usize, cells: &[Cell], widths: &[usize]) -> Vec<Vec<Cell>> {
    let columns = cells.iter().zip(widths).enumerate();
    let wrapped_columns: Vec<Vec<String>> = columns
        .map(|(column, (cell, width))| {
            let indent_width = if column == 0 { 2 * indent } else { 0 };
            wrap_text(cell.text(), width.saturating_sub(indent_width).max(1))
        })
        .collect();

    // Columns with fewer pieces are blank in the lines below.
    let line_count = wrapped_columns.iter().map(Vec::len).max().unwrap_or(0);
    let mut lines = Vec::with_capacity(line_count);
    for line in 0..line_count {
        let pieces = wrapped_columns.iter().zip(cells).map(|(pieces, cell)| {
            let piece = pieces.get(line).cloned().unwrap_or_default();
            match cell {
                Cell::Left(_) => Cell::Left(piece),
                Cell::Right(_) => Cell::Right(piece),
            }
        });
        lines.push(pieces.collect());
    }

    lines
}

/// Text in pieces of at most `width` characters, broken at blanks where there are any. At least one piece.
fn wrap_text(text: &str, width: usize) -> Vec<String> {
    let mut pieces = vec![String::new()];
    let mut used = 0;
    for word in text.split(' ') {
        let mut word_width = word.chars().count();
        if used > 0 && used + 1 + word_width > width {
            pieces.push(String::new());
            used = 0;
        }

        let mut rest = word;
        let is_first = used == 0;
        if !is_first {
            push_to_last(&mut pieces, " ");
            used += 1;
        }
        // A word that no line can hold is broken anywhere.
        while is_first && word_width > width {
            let cut = rest
                .char_indices()
                .nth(width)
                .map_or(rest.len(), |(at, _)| at);
            push_to_last(&mut pieces, &rest[..cut]);
            pieces.push(String::new());
            rest = &rest[cut..];
            word_width -= width;
        }

        push_to_last(&mut pieces, rest);
        used += word_width;
    }

    pieces
}

fn push_to_last(pieces: &mut [String], text: &str) {
    if let Some(last) = pieces.last_mut() {
        last.push_str(text);
    }
}

/// Cells of one line, each filled up to the width of its column.
fn write_cells(out: &mut String, indent: usize, cells: &[Cell], widths: &[usize]) {
    for (column, (width, cell)) in widths.iter().zip(cells).enumerate() {
        let is_first = column == 0;
        let blanks_before = if is_first {
            2 * indent
        } else {
            COLUMN_SEPARATOR
        };
        let indent_width = if is_first { 2 * indent } else { 0 };
        pad(out, blanks_before);

        // A format width would do the same, but has at most 16 bits.
        let text_width = cell.text().chars().count() + indent_width;
        let missing = width.saturating_sub(text_width);
        match cell {
            Cell::Left(text) => {
                out.push_str(text);
                pad(out, missing);
            }
            Cell::Right(text) => {
                pad(out, missing);
                out.push_str(text);
            }
        }
    }

    end_line(out);
}

/// Ends the last line of a text, without the blanks that it ends in.
fn end_line(out: &mut String) {
    let line_start = out.rfind('\n').map_or(0, |end| end + 1);
    let line_end = line_start + out[line_start..].trim_end().len();
    out.truncate(line_end);
    out.push('\n');
}

fn pad(out: &mut String, blanks: usize) {
    out.extend(std::iter::repeat_n(' ', blanks));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_long_cell_widens_its_own_line_only() {
        let mut table = Table::default();
        table.row(0, vec![left("x".repeat(100_000)), left("end")]);
        table.row(0, vec![left("short"), left("end")]);
        let mut out = String::new();
        table.write(&mut out);

        let lines: Vec<&str> = out.lines().collect();
        assert_eq!(lines[0].len(), 100_000 + 5);
        assert_eq!(lines[1].len(), MAX_COLUMN_WIDTH + 5);
    }

    #[test]
    fn wide_tables_are_wrapped_at_blanks() {
        let mut table = Table::default();
        table.row(
            1,
            vec![
                left("a0"),
                left("one, two, three, four, five"),
                right("q 1"),
                left("a-word-that-is-longer-than-its-column end"),
            ],
        );
        table.row(1, vec![left("a1"), left("six"), right("q 12"), left("end")]);
        let mut out = String::new();
        table.write_wrapped(46, &mut out);

        let expected = [
            "  a0  one, two, three,   q 1  a-word-that-is-l",
            "      four, five              onger-than-its-c",
            "                              olumn end",
            "  a1  six               q 12  end",
        ];
        assert_eq!(out.lines().collect::<Vec<_>>(), expected);
    }

    #[test]
    fn tables_that_fit_are_not_wrapped() {
        let mut table = Table::default();
        table.row(0, vec![left("one two"), left("three")]);
        for width in [usize::MAX, 14] {
            let mut out = String::new();
            table.write_wrapped(width, &mut out);
            assert_eq!(out, "one two  three\n");
        }
    }

    #[test]
    fn cells_show_no_control_characters() {
        let mut table = Table::default();
        table.row(0, vec![left("a\u{1b}b"), right("c\nd")]);
        table.text(0, "e\rf");
        let mut out = String::new();
        table.write(&mut out);
        assert_eq!(out, "a\\u{1b}b  c\\nd\ne\\rf\n");
    }
}
