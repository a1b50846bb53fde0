//! The memory that preparing a text takes does not depend on its size. One test alone: it measures the whole process.

use std::{
    fs::File,
    io::{BufWriter, Write},
    path::Path,
    sync::atomic::AtomicBool,
};

use regard_alloc::{CountingAllocator, Peak};
use regard_tasks::data::{LmConfig, TokenKind, prepare};

#[global_allocator]
static ALLOCATOR: CountingAllocator = CountingAllocator;

const MIB: u64 = 1 << 20;

/// Words of ten thousand, the first most often, in lines; every hundredth is a number.
fn write_text(path: &Path, bytes: u64) {
    let mut file = BufWriter::new(File::create(path).unwrap());
    let (mut state, mut written) = (1u64, 0);
    while written < bytes {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        let draw = state >> 33;
        let rank = ((draw % 100) * (draw / 100 % 100) * (draw / 10_000 % 100)) / 100;
        let word = if draw % 100 == 99 {
            format!("{}", written % 10_007)
        } else {
            format!("{:x}", rank * 2_654_435_761 % 0xf_ffff)
        };
        let end = if draw % 13 == 0 { '\n' } else { ' ' };
        write!(file, "{word}{end}").unwrap();
        written += word.len() as u64 + 1;
    }
    file.into_inner().unwrap().sync_all().unwrap();
}

/// Peak bytes of preparing a text of `size` MiB.
fn peak(folder: &Path, tokens: TokenKind, size: u64) -> u64 {
    let path = folder.join(format!("{size}.txt"));
    if !path.exists() {
        write_text(&path, size * MIB);
    }
    let config = LmConfig { train: vec![path], tokens, ..LmConfig::default() };
    let peak = Peak::start();
    let prepared = prepare(&config, &folder.join("out"), true, None, &AtomicBool::new(false), &|_, _| {}).unwrap();
    assert!(prepared.parts[0].bytes > size * MIB * 8 / 10);
    peak.bytes().unwrap()
}

#[test]
fn memory_does_not_grow_with_the_text() {
    let folder = tempfile::tempdir().unwrap();
    for (tokens, most) in [(TokenKind::Bytes, 64), (TokenKind::Words, 256)] {
        let [small, large] = [64, 160].map(|size| peak(folder.path(), tokens, size));
        assert!(large < most * MIB, "{tokens:?}: {large} bytes");
        assert!(large < small + 8 * MIB, "{tokens:?}: {small} bytes for 64 MiB, {large} for 160 MiB");
    }
    // Longer than the sample that subwords are learned from.
    let bytes = peak(folder.path(), TokenKind::Subwords, 96);
    assert!(bytes < 256 * MIB, "{bytes} bytes");
}
