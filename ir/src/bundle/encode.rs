//! Writes a bundle. The same program gives the same bytes.

use std::borrow::Cow;
use std::io::{self, Write};

use serde::Serialize;
use xxhash_rust::xxh3::Xxh3Default;

use super::differences::{Difference, pack_all};
use super::{ALIGN, ENTRY_BYTES, HEADER_BYTES, MAGIC, Meta, Section, VERSION};
use crate::{Plan, Program};

/// The bytes of a bundle without any meta strings.
pub fn encode(program: &Program) -> Vec<u8> {
    encode_with(program, &Meta::new())
}

/// The bytes of a bundle.
pub fn encode_with(program: &Program, meta: &Meta) -> Vec<u8> {
    let layout = Layout::new(program, meta);
    let mut bytes = Vec::with_capacity(layout.file_bytes as usize);
    layout
        .write(&mut bytes)
        .expect("writing to a vector does not fail");
    bytes
}

/// Bytes of one section, the blobs not copied.
struct Part<'p> {
    section: Section,
    offset: u64,
    bytes: u64,
    checksum: u64,
    chunks: Vec<Cow<'p, [u8]>>,
}

/// Where everything goes.
pub(super) struct Layout<'p> {
    parts: Vec<Part<'p>>,
    file_bytes: u64,
}

const ZEROS: [u8; ALIGN as usize] = [0; ALIGN as usize];

fn padding(at: u64) -> &'static [u8] {
    &ZEROS[..(at.next_multiple_of(ALIGN) - at) as usize]
}

fn postcard<T: Serialize + ?Sized>(value: &T) -> Vec<Cow<'static, [u8]>> {
    // Postcard refuses only sequences of unknown length, and the data of this crate has none.
    let bytes = postcard::to_stdvec(value).expect("every sequence has a length");
    vec![Cow::Owned(bytes)]
}

/// The plans that are written out, and the differences of the others. Without contingencies no plan need be like
/// plan 0.
fn split(program: &Program) -> (&[Plan], Vec<Difference>) {
    match program.plans.raw.split_first() {
        Some((main, others)) if !program.contingencies.list.is_empty() => {
            (std::slice::from_ref(main), pack_all(main, others))
        }
        _ => (&program.plans.raw, Vec::new()),
    }
}

impl<'p> Layout<'p> {
    pub(super) fn new(program: &'p Program, meta: &Meta) -> Self {
        let lengths: Vec<u64> = program.blobs.iter().map(|blob| blob.len() as u64).collect();
        let mut blobs: Vec<Cow<'p, [u8]>> = Vec::new();
        for (i, blob) in program.blobs.iter().enumerate() {
            blobs.push(Cow::Borrowed(blob));
            if i + 1 < program.blobs.len() {
                blobs.push(Cow::Borrowed(padding(blob.len() as u64)));
            }
        }

        let (plans, differences) = split(program);
        let mut at = (HEADER_BYTES + ENTRY_BYTES * Section::ALL.len()) as u64;
        let mut parts = Vec::new();
        for section in Section::ALL {
            let chunks = match section {
                Section::Meta => postcard(meta),
                Section::Graph => postcard(&program.graph),
                Section::Machine => postcard(&program.machine),
                Section::Plans => postcard(plans),
                Section::Contingencies => postcard(&(&program.contingencies, &differences)),
                Section::Kernels => postcard(&program.kernels),
                Section::BlobLengths => postcard(&lengths),
                Section::Blobs => std::mem::take(&mut blobs),
            };

            let mut hasher = Xxh3Default::new();
            chunks.iter().for_each(|chunk| hasher.update(chunk));
            let bytes = chunks.iter().map(|chunk| chunk.len() as u64).sum();
            let offset = at.next_multiple_of(ALIGN);
            at = offset + bytes;
            parts.push(Part {
                section,
                offset,
                bytes,
                checksum: hasher.digest(),
                chunks,
            });
        }

        Self {
            parts,
            file_bytes: at,
        }
    }

    /// Writes the whole file.
    pub(super) fn write(&self, out: &mut dyn Write) -> io::Result<()> {
        let mut head = Vec::new();
        head.extend_from_slice(&MAGIC);
        head.extend_from_slice(&VERSION.to_le_bytes());
        head.extend_from_slice(&(self.parts.len() as u32).to_le_bytes());
        head.extend_from_slice(&0u32.to_le_bytes());
        head.extend_from_slice(&self.file_bytes.to_le_bytes());
        let mut table = Vec::new();
        for part in &self.parts {
            table.extend_from_slice(&(part.section as u32).to_le_bytes());
            table.extend_from_slice(&0u32.to_le_bytes());
            table.extend_from_slice(&part.offset.to_le_bytes());
            table.extend_from_slice(&part.bytes.to_le_bytes());
            table.extend_from_slice(&part.checksum.to_le_bytes());
        }

        let mut hasher = Xxh3Default::new();
        hasher.update(&head);
        hasher.update(&table);
        head.extend_from_slice(&hasher.digest().to_le_bytes());
        out.write_all(&head)?;
        out.write_all(&table)?;
        let mut at = (head.len() + table.len()) as u64;
        for part in &self.parts {
            out.write_all(padding(at))?;
            for chunk in &part.chunks {
                out.write_all(chunk)?;
            }
            at = part.offset + part.bytes;
        }
        Ok(())
    }
}
