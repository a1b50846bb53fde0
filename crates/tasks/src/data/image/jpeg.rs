//! Archives of JPEG files: records of a label, the number of bytes (16 bits, little-endian), and a file.

use std::{io::Cursor, path::Path};

use rayon::prelude::*;
use zune_jpeg::JpegDecoder;

use super::{Pictures, cifar::filled, grey};
use crate::data::{DataError, file::Meter};

/// Largest side of a picture, so that a damaged size cannot fill memory.
const MOST_PIXELS: u16 = 1 << 10;

/// The first `most` pictures of a file.
pub(super) fn read(meter: &Meter, path: &Path, most: usize) -> Result<Pictures, DataError> {
    let wrong = |problem| DataError::Content { path: path.into(), problem };
    let mut source = meter.open(path)?;
    let mut records: Vec<(u8, Vec<u8>)> = Vec::new();
    while records.len() < most {
        let number = records.len() + 1;
        let mut next = |buffer: &mut [u8]| filled(&mut source, buffer).map_err(|source| DataError::read(path, source));
        let short = || wrong(format!("ends in picture {number}; fetch the file again"));
        let mut head = [0; 3];
        match next(&mut head)? {
            0 => break,
            3 => {}
            _ => return Err(short()),
        }
        let mut file = vec![0; usize::from(u16::from_le_bytes([head[1], head[2]]))];
        if next(&mut file)? < file.len() {
            return Err(short());
        }
        records.push((head[0], file));
    }
    let mut pictures = Pictures::new();
    let decoded: Vec<_> = records.par_iter().map(|(_, file)| decode(file)).collect();
    for (number, ((label, _), decoded)) in records.iter().zip(decoded).enumerate() {
        let pushed = decoded.map_err(|problem| format!("is no JPEG file that can be read ({problem})"));
        let pushed = pushed.and_then(|(greys, sides)| pictures.push(&greys, sides, usize::from(*label)));
        pushed.map_err(|problem| wrong(format!("picture {} {problem}; fetch the file again", number + 1)))?;
    }
    Ok(pictures)
}

/// Grey values, height and width.
fn decode(file: &[u8]) -> Result<(Vec<u8>, [usize; 2]), String> {
    let mut decoder = JpegDecoder::new(Cursor::new(file));
    decoder.decode_headers().map_err(|error| error.to_string())?;
    let about = decoder.info().ok_or("it has no size")?;
    let (height, width) = (about.height, about.width);
    if height.max(width) > MOST_PIXELS {
        return Err(format!("it is {width} x {height} pixels large, expected at most {MOST_PIXELS} a side"));
    }
    let pixels = decoder.decode().map_err(|error| error.to_string())?;
    let [height, width] = [height, width].map(usize::from);
    // A picture in grey may come as it is.
    let greys: Vec<u8> = match pixels.len() / (height * width).max(1) {
        1 => pixels,
        3 => pixels.as_chunks::<3>().0.iter().map(|pixel| grey(*pixel)).collect(),
        channels => return Err(format!("it has {channels} channels, expected grey or colours")),
    };
    if greys.len() != height * width {
        return Err("its pixels do not fill it".into());
    }
    Ok((greys, [height, width]))
}
