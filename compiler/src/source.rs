//! The texts that a model was read from, and places in them.

use std::sync::Arc;

/// A range of bytes in one of the texts of a [`SourceMap`], or nowhere.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Span {
    file: u32,
    /// First byte.
    pub start: u32,
    /// One past the last byte.
    pub end: u32,
}

impl Span {
    /// Nowhere: what was built in Rust has no text.
    pub const NONE: Span = Span {
        file: u32::MAX,
        start: 0,
        end: 0,
    };

    /// A range of bytes of a file.
    pub(crate) fn new(file: FileId, start: usize, end: usize) -> Span {
        Span {
            file: file.0,
            start: start as u32,
            end: end as u32,
        }
    }

    /// Whether the span is in a text.
    pub fn is_some(self) -> bool {
        self.file != u32::MAX
    }

    /// The file, if the span is in one.
    pub fn file(self) -> Option<FileId> {
        self.is_some().then_some(FileId(self.file))
    }

    /// From the start of `self` to the end of `other`, which comes after it in the same file.
    pub(crate) fn to(self, other: Span) -> Span {
        Span {
            file: self.file,
            start: self.start,
            end: other.end.max(self.end),
        }
    }
}

/// A value and where it was written.
#[derive(Clone, Debug, PartialEq)]
pub struct Spanned<T> {
    /// The value.
    pub value: T,
    /// Its text.
    pub span: Span,
}

impl<T> Spanned<T> {
    /// Joins a value to its place.
    pub fn new(value: T, span: Span) -> Self {
        Self { value, span }
    }
}

/// One text of a [`SourceMap`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct FileId(pub(crate) u32);

/// A line and a column, both from 1; columns count characters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Position {
    /// Line.
    pub line: usize,
    /// Column.
    pub column: usize,
}

/// One text with its name as the user knows it.
#[derive(Clone, Debug)]
pub struct Source {
    /// Path as given, or a made-up name such as `<model>`.
    pub name: String,
    /// The text.
    pub text: Arc<str>,
    /// First byte of each line.
    line_starts: Arc<[u32]>,
}

/// All texts read for one model.
#[derive(Clone, Debug, Default)]
pub struct SourceMap {
    files: Vec<Source>,
}

impl SourceMap {
    /// Most bytes of one text. Offsets are `u32`, and a model of this size is a mistake: data belongs in `.npy`.
    pub const MAX_FILE_BYTES: usize = 8 << 20;
    /// Most bytes of all texts of one model.
    pub const MAX_TOTAL_BYTES: usize = 64 << 20;

    /// Adds a text. The caller has checked it against [`Self::MAX_FILE_BYTES`].
    pub(crate) fn add(&mut self, name: impl Into<String>, text: impl Into<Arc<str>>) -> FileId {
        let text = text.into();
        assert!(
            text.len() <= u32::MAX as usize,
            "text sizes are checked when read"
        );
        let lines = text.match_indices('\n').map(|(at, _)| at as u32 + 1);
        let line_starts = std::iter::once(0).chain(lines).collect();
        self.files.push(Source {
            name: name.into(),
            text,
            line_starts,
        });
        FileId((self.files.len() - 1) as u32)
    }

    /// Bytes of all texts.
    pub(crate) fn bytes(&self) -> usize {
        self.files.iter().map(|source| source.text.len()).sum()
    }

    /// A text by id.
    pub fn get(&self, id: FileId) -> &Source {
        &self.files[id.0 as usize]
    }

    /// Names of all texts, in the order in which they were read: paths, for those that are files.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.files.iter().map(|source| source.name.as_str())
    }

    /// Line and column of a byte offset. O(log lines + length of the line).
    pub fn position(&self, id: FileId, offset: u32) -> Position {
        let source = self.get(id);
        let offset = offset.min(source.text.len() as u32);
        let line = source.line_starts.partition_point(|&start| start <= offset);
        let line_start = source.line_starts[line - 1];

        let before = &source.text.as_bytes()[line_start as usize..offset as usize];
        // Every character has one byte that continues no other.
        let is_first = |byte: &&u8| (**byte & 0xc0) != 0x80;
        let column = before.iter().filter(is_first).count() + 1;
        Position { line, column }
    }
}
