//! Tests of the bundle.

use super::differences::Difference;
use super::measured::MemoryBudget;
use super::*;
use crate::testing::programs;
use crate::{BlobId, Entry, KernelCode, Program, Value};
use bytes::Bytes;
use xxhash_rust::xxh3::xxh3_64;

fn meta() -> Meta {
    Meta::from([("compiler".to_owned(), "0.1.0".to_owned())])
}

/// A bundle with two blobs, so that there is padding between them.
fn small() -> (Program, Vec<u8>) {
    let mut program = programs::chain();
    program.blobs.push(Bytes::from_static(b"second"));
    program.kernels.push(KernelCode {
        format: "spirv".to_owned(),
        key: 1 << 100,
        blob: BlobId(1),
    });
    let bytes = encode_with(&program, &meta());
    (program, bytes)
}

#[test]
fn round_trip() {
    for program in programs::all().into_iter().chain([programs::fetched()]) {
        let bytes = encode(&program);
        assert_eq!(bytes, encode(&program), "not reproducible");
        assert_eq!(decode(bytes.into()), Ok(program));
    }
    let (program, bytes) = small();
    assert_eq!(decode_meta(&bytes.clone().into()), Ok(meta()));
    assert_eq!(decode(bytes.into()), Ok(program));
}

#[test]
fn blobs_are_shared_and_aligned() {
    let (_, bytes) = small();
    let file = Bytes::from(bytes);
    let start = file.as_ptr() as usize;
    let program = decode(file.clone()).expect("a valid bundle");
    for blob in &program.blobs {
        let offset = (blob.as_ptr() as usize)
            .checked_sub(start)
            .expect("inside the file");
        assert!(offset < file.len());
        assert_eq!(offset % ALIGN as usize, 0);
    }
    assert_eq!(program.blobs[BlobId(1)], b"second"[..]);
}

#[test]
fn every_truncation_is_refused() {
    let (_, bytes) = small();
    let whole = Bytes::from(bytes);
    for length in 0..whole.len() {
        assert!(
            decode(whole.slice(..length)).is_err(),
            "the first {length} bytes were accepted"
        );
    }
    let mut longer = whole.to_vec();
    longer.push(0);
    let found = longer.len() as u64;
    assert_eq!(
        decode(longer.into()),
        Err(BundleError::Length {
            expected: found - 1,
            found
        })
    );
}

#[test]
fn every_flipped_bit_is_refused() {
    let (_, bytes) = small();
    for bit in 0..bytes.len() * 8 {
        let mut flipped = bytes.clone();
        flipped[bit / 8] ^= 1 << (bit % 8);
        assert!(
            decode(flipped.into()).is_err(),
            "bit {bit} was flipped and not noticed"
        );
    }
}

/// Sets bytes and then all checksums, as an attacker would.
fn forge(bytes: &mut [u8], at: usize, value: &[u8]) {
    bytes[at..at + value.len()].copy_from_slice(value);
    let body = HEADER_BYTES + ENTRY_BYTES * Section::ALL.len();
    for i in 0..Section::ALL.len() {
        let entry = HEADER_BYTES + ENTRY_BYTES * i;
        let word =
            |at: usize| u64::from_le_bytes(bytes[at..at + 8].try_into().expect("8 bytes")) as usize;
        let (offset, length) = (word(entry + 8), word(entry + 16));
        if let Some(range) = offset
            .checked_add(length)
            .and_then(|end| bytes.get(offset..end))
        {
            let sum = xxh3_64(range);
            bytes[entry + 24..entry + 32].copy_from_slice(&sum.to_le_bytes());
        }
    }
    let sum = xxh3_64(&[&bytes[..24], &bytes[HEADER_BYTES..body]].concat());
    bytes[24..32].copy_from_slice(&sum.to_le_bytes());
}

#[test]
fn forged_numbers_are_refused() {
    let (_, bytes) = small();
    let entry = |i: usize, field: usize| HEADER_BYTES + ENTRY_BYTES * i + field;
    let max = u64::MAX.to_le_bytes();
    let padding = bytes.len() - 6 - 1;
    let lengths = usize::from(bytes[entry(6, 8)]) + 256 * usize::from(bytes[entry(6, 9)]);
    let cases: Vec<(usize, &[u8], &str)> = vec![
        (0, b"ELF!", "starts with"),
        (4, &[2], "format version 2, this program reads 10"),
        (8, &[7], "7 sections, must be 8"),
        (12, &[1], "byte 12 must be 0, is 1"),
        (16, &max, "the file should end at byte 18446744073709551615"),
        (
            entry(1, 0),
            &[9],
            "section 1 is of kind 9, must be 2 (graph)",
        ),
        (entry(1, 4), &[9], "must be 0, is 9"),
        (entry(2, 8), &[1], "section machine starts at byte"),
        (entry(2, 8), &max, "section machine starts at byte"),
        (
            entry(7, 16),
            &max,
            "a section needs 18446744073709551615 bytes",
        ),
        (entry(7, 16), &[0], "the file should end at byte"),
        (
            lengths + 2,
            &[7],
            "2 blobs need 71 bytes, section blobs has 70",
        ),
        (
            lengths,
            &[1],
            "section blob lengths has 1 bytes after its data",
        ),
        (lengths, &[3], "section blob lengths: "),
        (padding, &[7], "must be 0, is 7"),
    ];
    for (at, value, expected) in cases {
        let mut forged = bytes.clone();
        forge(&mut forged, at, value);
        let message = decode(forged.into()).map(|_| ()).map_err(|e| e.to_string());
        let found = message.expect_err(&format!("byte {at} was forged and not noticed"));
        assert!(
            found.contains(expected),
            "byte {at}: expected `{expected}`, found `{found}`"
        );
    }
}

#[test]
fn contingencies_need_a_plan_0_and_few_others() {
    let table = |plans: &Program| {
        let section = sections_of(plans).swap_remove(Section::Contingencies as usize - 1);
        postcard::from_bytes::<(crate::Contingencies, Vec<Difference>)>(&section).expect("a table")
    };
    let mut spare = programs::spare();
    let (contingencies, differences) = table(&spare);
    assert_eq!((contingencies.list.len(), differences.len()), (1, 1));
    assert_eq!(table(&programs::two_devices()), Default::default());
    let join = super::decode::join;
    let refused = |plans: &Program, count: usize| {
        let many = vec![differences[0].clone(); count];
        join(
            plans.plans.clone(),
            (contingencies.clone(), many),
            u64::MAX,
            &MemoryBudget::new(u64::MAX),
        )
        .expect_err("refused")
        .to_string()
    };
    let limit = crate::limits::MAX_PLANS;
    assert!(refused(&spare, limit - 1).ends_with("4097 plans, at most 4096"));
    spare.plans.clear();
    assert!(refused(&spare, 1).ends_with("1 plans are differences from plan 0, of 0 plans"));
}

/// The bytes of each section.
fn sections_of(program: &Program) -> Vec<Bytes> {
    let sections = super::decode::read_sections(&encode(program).into()).expect("a valid bundle");
    sections.into_iter().map(|(_, bytes)| bytes).collect()
}

#[test]
fn hostile_counts_and_nesting_end_as_errors() {
    let huge = [0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x7f];
    assert!(postcard::from_bytes::<crate::Graph>(&[[0].as_slice(), &huge].concat()).is_err());
    assert!(postcard::from_bytes::<Vec<u64>>(&huge).is_err());
    // A list that holds a list that holds a list …: variant 4, one element, 100,000 times.
    let deep = [4, 1].repeat(100_000);
    assert!(postcard::from_bytes::<Value>(&deep).is_err());
    // Loops: variant 1, count 1, one entry.
    let deep = [1, 1, 1].repeat(100_000);
    assert!(postcard::from_bytes::<Entry>(&deep).is_err());
    // The bound holds for nesting, not for the number of values, and it is given back after an error.
    let list = Value::List(vec![Value::List(vec![Value::Int(1)]); 1000]);
    let bytes = postcard::to_stdvec(&list).expect("lists have a length");
    assert_eq!(postcard::from_bytes::<Value>(&bytes), Ok(list));
}

#[test]
fn files_are_replaced_whole_and_verified_when_opened() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let path = folder.path().join("model.zbmd");
    for program in [programs::chain(), programs::window()] {
        let verified = crate::verify::verify(program.clone()).expect("a valid program");
        write_with(&path, &verified, &meta()).expect("a writable folder");
        assert_eq!(open(&path).expect("a valid bundle").into_inner(), program);
        assert_eq!(open_meta(&path).expect("a valid bundle"), meta());
        let (opened, words) = open_with_meta(&path, u64::MAX).expect("a valid bundle");
        assert_eq!((opened.into_inner(), words), (program, meta()));
    }
    assert_eq!(
        std::fs::read_dir(folder.path()).expect("readable").count(),
        1,
        "a temporary file was left"
    );

    let mut wrong = programs::chain();
    wrong.plans[crate::PlanId(0)].period_ns = 0;
    std::fs::write(&path, encode(&wrong)).expect("a writable folder");
    let refused = open(&path).expect_err("a period of 0").to_string();
    assert!(refused.contains("period of 0 ns"), "{refused}");
    std::fs::write(&path, b"").expect("a writable folder");
    assert!(matches!(
        open(&path),
        Err(OpenError::Bundle(BundleError::Truncated { .. }))
    ));
}

/// Overwritten or cut off, the file is of no concern once it has been opened.
#[test]
fn an_open_bundle_is_a_copy_that_nobody_can_change() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let path = folder.path().join("model.zbmd");
    let mut program = programs::chain();
    program.blobs.push(vec![7; 100_000].into());
    let expected = crate::verify::verify(program.clone()).expect("a valid program");
    write_with(&path, &expected, &meta()).expect("a writable folder");

    let opened = open(&path).expect("a valid bundle");
    let length = std::fs::metadata(&path).expect("a file").len() as usize;
    std::fs::write(&path, vec![0xff; length]).expect("overwritten in place");
    assert_eq!(*opened, program);
    std::fs::write(&path, b"").expect("cut off in place");
    assert_eq!(*opened, program);

    #[cfg(all(target_os = "linux", not(miri)))]
    {
        use std::io::Write;
        let image = image_of(&opened).expect("it has one");
        let mut file = image.file();
        assert!(file.write(b"x").is_err() && file.set_len(0).is_err());
        // Another process maps the very same file.
        use std::os::fd::AsRawFd;
        let again = format!("/proc/self/fd/{}", file.as_raw_fd());
        let again = open(std::path::Path::new(&again)).expect("a valid bundle");
        let inode = |image: &Image| {
            use std::os::unix::fs::MetadataExt;
            image.file().metadata().expect("a file").ino()
        };
        assert_eq!(*again, program);
        assert_eq!(inode(&image_of(&again).expect("it has one")), inode(&image));
        // A program that was made here gets an image of its own.
        let made = image_of(&expected).expect("memory");
        assert_ne!(inode(&made), inode(&image));
    }
}

#[cfg(unix)]
#[test]
fn what_is_no_regular_file_is_refused() {
    for path in ["/dev/zero", "/dev/null", "/"] {
        let error = open(std::path::Path::new(path)).expect_err(path);
        assert!(matches!(error, OpenError::Io(_)), "{path}: {error}");
    }
}

/// What is plainly not a bundle is not copied first, however long it is.
#[test]
fn long_files_that_are_not_bundles_are_refused_by_their_start() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let path = folder.path().join("sparse.zbmd");
    let file = std::fs::File::create(&path).expect("a writable folder");
    file.set_len(1 << 45)
        .or_else(|_| file.set_len(1 << 33))
        .expect("a sparse file");
    let refused = |path: &std::path::Path| open(path).expect_err("not a bundle").to_string();
    assert!(refused(&path).contains("starts with"), "{}", refused(&path));

    let mut start = encode(&programs::chain());
    start.truncate(HEADER_BYTES);
    std::fs::write(&path, &start).expect("writable");
    let file = std::fs::File::options()
        .write(true)
        .open(&path)
        .expect("writable");
    file.set_len(1 << 33).expect("a sparse file");
    assert!(
        refused(&path).contains("should end at byte"),
        "{}",
        refused(&path)
    );
}
