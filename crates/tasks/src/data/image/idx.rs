//! The idx files of MNIST (LeCun, Cortes, Burges): big-endian sizes, then bytes.

use std::{
    io::Read,
    path::{Path, PathBuf},
};

use super::{Pictures, cifar::filled};
use crate::data::{DataError, file::Meter};

/// First bytes: unsigned bytes in three dimensions, and in one.
const PICTURES: u32 = 0x803;
const LABELS: u32 = 0x801;

/// Largest side of a picture.
const MOST_PIXELS: u32 = 1 << 12;

/// The first `most` pictures with their labels.
pub(super) fn read(meter: &Meter, [pictures, labels]: &[PathBuf; 2], most: usize) -> Result<Pictures, DataError> {
    let mut source = meter.open(pictures)?;
    let [count, height, width] = header(&mut source, pictures, PICTURES)?;
    check_sides(pictures, [height, width])?;
    let mut names = meter.open(labels)?;
    let [named] = header(&mut names, labels, LABELS)?;
    if named != count {
        let problem =
            format!("has {named} labels, but {} has {count} pictures; give files of one set", pictures.display());
        return Err(DataError::Content { path: labels.clone(), problem });
    }
    let mut set = Pictures::new();
    let mut greys = vec![0; height as usize * width as usize];
    for number in 1..=most.min(count as usize) {
        let mut label = [0];
        let parts: [(&PathBuf, &mut dyn Read, &mut [u8], &str); 2] =
            [(pictures, &mut source, &mut greys, "picture"), (labels, &mut names, &mut label, "label")];
        for (path, source, buffer, what) in parts {
            let mut source = source;
            if filled(&mut source, buffer).map_err(|source| DataError::read(path, source))? < buffer.len() {
                let problem = format!("ends in {what} {number} of {count}; fetch the file again");
                return Err(DataError::Content { path: path.clone(), problem });
            }
        }
        let pushed = set.push(&greys, [height as usize, width as usize], usize::from(label[0]));
        let wrong =
            |problem| DataError::Content { path: labels.clone(), problem: format!("picture {number}: {problem}") };
        pushed.map_err(wrong)?;
    }
    Ok(set)
}

/// Height and width of the pictures of a file, if its header can be read.
pub(super) fn sides(pictures: &Path) -> Option<[usize; 2]> {
    let meter = Meter::new([], &|_, _| {});
    let [_, height, width] = header(&mut meter.open(pictures).ok()?, pictures, PICTURES).ok()?;
    check_sides(pictures, [height, width]).ok()?;
    Some([height as usize, width as usize])
}

fn check_sides(path: &Path, [height, width]: [u32; 2]) -> Result<(), DataError> {
    if [height, width].iter().all(|side| (1..=MOST_PIXELS).contains(side)) {
        return Ok(());
    }
    let problem =
        format!("says that pictures are {width} pixels wide and {height} pixels high; expected 1 to {MOST_PIXELS}");
    Err(DataError::Content { path: path.into(), problem })
}

/// The sizes after the magic number.
fn header<const N: usize>(source: &mut impl Read, path: &Path, magic: u32) -> Result<[u32; N], DataError> {
    let wrong = |problem| DataError::Content { path: path.into(), problem };
    let mut next = || -> Result<u32, DataError> {
        let mut bytes = [0; 4];
        match filled(source, &mut bytes).map_err(|source| DataError::read(path, source))? {
            4 => Ok(u32::from_be_bytes(bytes)),
            _ => Err(wrong("ends in its header; fetch the file again".into())),
        }
    };
    let seen = next()?;
    if seen != magic {
        return Err(wrong(format!("starts with {seen:#010x}, expected {magic:#010x}; give an idx file of bytes")));
    }
    let mut sizes = [0; N];
    for size in &mut sizes {
        *size = next()?;
    }
    Ok(sizes)
}
