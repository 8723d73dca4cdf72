//! Writes a bundle. The same program gives the same bytes.

use std::borrow::Cow;
use std::io::{self, Write};

use bytes::Bytes;
use serde::Serialize;
use xxhash_rust::xxh3::Xxh3Default;

use super::differences::{Difference, pack_all};
use super::hosts::HostsRecord;
use super::modes::{ModesRecord, PackedModes};
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
pub(super) fn split(program: &Program) -> (&[Plan], Vec<Difference>) {
    match program.plans.raw.split_first() {
        Some((main, others)) if !program.contingencies.list.is_empty() => {
            (std::slice::from_ref(main), pack_all(main, others))
        }
        _ => (&program.plans.raw, Vec::new()),
    }
}

impl<'p> Layout<'p> {
    pub(super) fn new(program: &'p Program, meta: &Meta) -> Self {
        let hosts = HostsRecord::of(&program.machine, [&program.contingencies]);
        Self::of_sections(program, program.blobs.iter().collect(), None, hosts, meta)
    }

    /// The layout of a bundle of modes, the first of which is `program`.
    pub(super) fn of_modes(program: &'p Program, modes: &PackedModes<'p>, meta: &Meta) -> Self {
        let blobs = modes.blobs.clone();
        let hosts = HostsRecord::of(&program.machine, modes.contingencies.iter().copied());
        Self::of_sections(program, blobs, Some(&modes.record), hosts, meta)
    }

    fn of_sections(
        program: &'p Program,
        all_blobs: Vec<&'p Bytes>,
        modes: Option<&ModesRecord>,
        hosts: Option<HostsRecord>,
        meta: &Meta,
    ) -> Self {
        let blob_lengths: Vec<u64> = all_blobs.iter().map(|blob| blob.len() as u64).collect();
        let mut blobs: Vec<Cow<'p, [u8]>> = Vec::new();
        for (i, blob) in all_blobs.iter().enumerate() {
            blobs.push(Cow::Borrowed(blob));
            if i + 1 < all_blobs.len() {
                blobs.push(Cow::Borrowed(padding(blob.len() as u64)));
            }
        }

        // Plans for losses resemble plan 0: they are stored as differences from it.
        let (plans, differences) = split(program);
        let tiers = &program.machine.tiers;
        let sections = Section::list(|section| match section {
            Section::Modes => modes.is_some(),
            Section::Hosts => hosts.is_some(),
            _ => !tiers.is_empty(),
        });
        let mut next_offset = (HEADER_BYTES + ENTRY_BYTES * sections.len()) as u64;
        let mut section_parts = Vec::new();
        for section in sections {
            let section_chunks = match section {
                Section::Meta => postcard(meta),
                Section::Graph => postcard(&program.graph),
                Section::Machine => postcard(&program.machine),
                Section::Plans => postcard(plans),
                Section::Contingencies => postcard(&(&program.contingencies, &differences)),
                Section::Kernels => postcard(&program.kernels),
                Section::BlobLengths => postcard(&blob_lengths),
                Section::Blobs => std::mem::take(&mut blobs),
                Section::Modes => modes.map_or_else(Vec::new, postcard),
                Section::Hosts => hosts.as_ref().map_or_else(Vec::new, postcard),
                Section::Tiers => postcard(tiers),
            };

            // Hashed in chunks: blobs are large, and are not copied to be written.
            let mut hasher = Xxh3Default::new();
            section_chunks.iter().for_each(|chunk| hasher.update(chunk));
            let bytes = section_chunks.iter().map(|chunk| chunk.len() as u64).sum();
            let offset = next_offset.next_multiple_of(ALIGN);
            next_offset = offset + bytes;
            section_parts.push(Part {
                section,
                offset,
                bytes,
                checksum: hasher.digest(),
                chunks: section_chunks,
            });
        }

        Self {
            parts: section_parts,
            file_bytes: next_offset,
        }
    }

    /// Writes the whole file.
    pub(super) fn write(&self, out: &mut dyn Write) -> io::Result<()> {
        let mut header_bytes = Vec::new();
        header_bytes.extend_from_slice(&MAGIC);
        header_bytes.extend_from_slice(&VERSION.to_le_bytes());
        header_bytes.extend_from_slice(&(self.parts.len() as u32).to_le_bytes());
        header_bytes.extend_from_slice(&0u32.to_le_bytes());
        header_bytes.extend_from_slice(&self.file_bytes.to_le_bytes());
        let mut table_bytes = Vec::new();
        for part in &self.parts {
            table_bytes.extend_from_slice(&(part.section as u32).to_le_bytes());
            table_bytes.extend_from_slice(&0u32.to_le_bytes());
            table_bytes.extend_from_slice(&part.offset.to_le_bytes());
            table_bytes.extend_from_slice(&part.bytes.to_le_bytes());
            table_bytes.extend_from_slice(&part.checksum.to_le_bytes());
        }

        let mut hasher = Xxh3Default::new();
        hasher.update(&header_bytes);
        hasher.update(&table_bytes);

        // The checksum covers what is before it and the table behind it.
        header_bytes.extend_from_slice(&hasher.digest().to_le_bytes());
        out.write_all(&header_bytes)?;
        out.write_all(&table_bytes)?;
        let mut written_bytes = (header_bytes.len() + table_bytes.len()) as u64;
        for part in &self.parts {
            out.write_all(padding(written_bytes))?;
            for chunk in &part.chunks {
                out.write_all(chunk)?;
            }
            written_bytes = part.offset + part.bytes;
        }
        Ok(())
    }
}
