//! Lines with aligned columns.

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
    Cell::Left(text.into())
}

/// A cell of a number.
pub fn right(text: impl Into<String>) -> Cell {
    Cell::Right(text.into())
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
        self.lines.push(Line::Text(indent, text.into()));
    }

    /// Appends all lines. Columns are two spaces apart; lines do not end in spaces.
    pub fn write(&self, out: &mut String) {
        let mut widths: Vec<usize> = Vec::new();
        for line in &self.lines {
            let Line::Cells(indent, cells) = line else {
                continue;
            };
            widths.resize(widths.len().max(cells.len()), 0);
            for (i, (width, cell)) in widths.iter_mut().zip(cells).enumerate() {
                let extra = if i == 0 { 2 * indent } else { 0 };
                *width = (*width).max(cell.text().chars().count() + extra);
            }
        }
        for line in &self.lines {
            let mut text = String::new();
            match line {
                Line::Text(indent, line) => {
                    text.extend(std::iter::repeat_n(' ', 2 * indent));
                    text.push_str(line);
                }
                Line::Cells(indent, cells) => {
                    for (i, (width, cell)) in widths.iter().zip(cells).enumerate() {
                        let (before, extra) = if i == 0 {
                            (2 * indent, 2 * indent)
                        } else {
                            (2, 0)
                        };
                        text.extend(std::iter::repeat_n(' ', before));
                        let width = width - extra;
                        match cell {
                            Cell::Left(cell) => text.push_str(&format!("{cell:<width$}")),
                            Cell::Right(cell) => text.push_str(&format!("{cell:>width$}")),
                        }
                    }
                }
            }
            out.push_str(text.trim_end());
            out.push('\n');
        }
    }
}
