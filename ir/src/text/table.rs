//! Lines with aligned columns.

use super::printable;

/// Columns that cells are aligned in. A longer cell pushes what follows in its own line to the right, so that one long
/// name does not widen every line.
const MAX_COLUMN_WIDTH: usize = 200;

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
        let widths = self.widths();
        for line in &self.lines {
            let line_start = out.len();
            match line {
                Line::Text(indent, line) => {
                    pad(out, 2 * indent);
                    out.push_str(line);
                }
                Line::Cells(indent, cells) => write_cells(out, *indent, cells, &widths),
            }
            let line_end = out[line_start..].trim_end().len();
            out.truncate(line_start + line_end);
            out.push('\n');
        }
    }

    /// Width of each column: of its longest cell, the indent with the first.
    fn widths(&self) -> Vec<usize> {
        let mut widths: Vec<usize> = Vec::new();
        for line in &self.lines {
            let Line::Cells(indent, cells) = line else {
                continue;
            };
            widths.resize(widths.len().max(cells.len()), 0);
            for (i, (width, cell)) in widths.iter_mut().zip(cells).enumerate() {
                let extra = if i == 0 { 2 * indent } else { 0 };
                let cell_width = cell.text().chars().count() + extra;
                *width = (*width).max(cell_width.min(MAX_COLUMN_WIDTH));
            }
        }
        widths
    }
}

/// Cells of one line, each filled up to the width of its column.
fn write_cells(out: &mut String, indent: usize, cells: &[Cell], widths: &[usize]) {
    for (i, (width, cell)) in widths.iter().zip(cells).enumerate() {
        let before = if i == 0 { 2 * indent } else { 2 };
        let inside = if i == 0 { 2 * indent } else { 0 };
        pad(out, before);

        // A format width would do the same, but has at most 16 bits.
        let text_width = cell.text().chars().count() + inside;
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
    fn cells_show_no_control_characters() {
        let mut table = Table::default();
        table.row(0, vec![left("a\u{1b}b"), right("c\nd")]);
        table.text(0, "e\rf");
        let mut out = String::new();
        table.write(&mut out);
        assert_eq!(out, "a\\u{1b}b  c\\nd\ne\\rf\n");
    }
}
