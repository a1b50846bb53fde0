//! PNG encoding (W3C recommendation, third edition), 8-bit RGB, without filters.
//!
//! Written here rather than by a crate: compression and checksum come from `flate2`, the rest is four chunks.

use std::io::Write;

use flate2::{Compression, Crc, write::ZlibEncoder};

const SIGNATURE: [u8; 8] = *b"\x89PNG\r\n\x1a\n";

/// Encodes an 8-bit RGB image, row by row.
///
/// # Panics
/// If there are not `3 * width * height` bytes, or none.
pub fn encode(width: usize, height: usize, pixels: &[u8]) -> Vec<u8> {
    assert!(!pixels.is_empty() && pixels.len() == 3 * width * height, "three bytes a pixel");
    let mut header = Vec::new();
    header.extend((width as u32).to_be_bytes());
    header.extend((height as u32).to_be_bytes());
    // Depth, true colour, the only compression, the only filtering, no interlacing.
    header.extend([8, 2, 0, 0, 0]);
    let mut lines = ZlibEncoder::new(Vec::new(), Compression::default());
    let written = pixels.chunks_exact(3 * width).try_for_each(|line| {
        // Each line starts with its filter: none.
        lines.write_all(&[0])?;
        lines.write_all(line)
    });
    let data = written.and_then(|()| lines.finish()).expect("memory takes any number of bytes");
    let mut bytes = SIGNATURE.to_vec();
    for (name, content) in [(b"IHDR", &header), (b"IDAT", &data), (b"IEND", &Vec::new())] {
        bytes.extend((content.len() as u32).to_be_bytes());
        let mut sum = Crc::new();
        for part in [&name[..], content] {
            sum.update(part);
            bytes.extend(part);
        }
        bytes.extend(sum.sum().to_be_bytes());
    }
    bytes
}

/// A PNG as a data URL (RFC 2397), in base64 (RFC 4648).
pub(super) fn data_address(png: &[u8]) -> String {
    const DIGITS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let mut address = String::from("data:image/png;base64,");
    for group in png.chunks(3) {
        let byte = |at: usize| u32::from(group.get(at).copied().unwrap_or(0));
        let bits = byte(0) << 16 | byte(1) << 8 | byte(2);
        for digit in 0..4 {
            let letter = DIGITS[(bits >> (18 - 6 * digit) & 63) as usize];
            address.push(if digit <= group.len() { char::from(letter) } else { '=' });
        }
    }
    address
}

/// Width, height and pixels of what [`encode`] wrote.
#[cfg(test)]
pub(super) fn decode(png: &[u8]) -> (usize, usize, Vec<u8>) {
    use std::io::Read;

    let mut rest = png.strip_prefix(&SIGNATURE).expect("the signature");
    let number = |bytes: &[u8]| u32::from_be_bytes(bytes.try_into().expect("four bytes")) as usize;
    let mut chunks = Vec::new();
    while !rest.is_empty() {
        let (length, body) = (number(&rest[..4]), &rest[4..]);
        let mut sum = Crc::new();
        sum.update(&body[..4 + length]);
        assert_eq!(number(&body[4 + length..][..4]), sum.sum() as usize, "checksum");
        chunks.push((&body[..4], &body[4..4 + length]));
        rest = &body[8 + length..];
    }
    assert_eq!(chunks.iter().map(|chunk| chunk.0).collect::<Vec<_>>(), [b"IHDR", b"IDAT", b"IEND"]);
    let (width, height) = (number(&chunks[0].1[..4]), number(&chunks[0].1[4..8]));
    let mut lines = Vec::new();
    flate2::read::ZlibDecoder::new(chunks[1].1).read_to_end(&mut lines).expect("zlib");
    assert!(lines.chunks(3 * width + 1).all(|line| line[0] == 0), "no filter");
    (width, height, lines.chunks(3 * width + 1).flat_map(|line| &line[1..]).copied().collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pixels_come_back() {
        let pixels: Vec<u8> = (0..3 * 5 * 4).map(|i| (i * 37 % 251) as u8).collect();
        assert_eq!(decode(&encode(5, 4, &pixels)), (5, 4, pixels));
    }

    /// Test vectors of RFC 4648, section 10.
    #[test]
    fn base64() {
        for (bytes, expected) in [("", ""), ("f", "Zg=="), ("fo", "Zm8="), ("foo", "Zm9v"), ("foobar", "Zm9vYmFy")] {
            assert_eq!(data_address(bytes.as_bytes()), format!("data:image/png;base64,{expected}"));
        }
        assert_eq!(data_address(&[0xfb, 0xff]), "data:image/png;base64,+/8=");
    }
}
