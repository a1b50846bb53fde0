//! The binary files of CIFAR-10 (Krizhevsky 2009): records of a label and the red, green and blue planes.

use std::{
    io::{self, Read},
    path::PathBuf,
};

use super::{CIFAR_SIDE, Pictures, grey};
use crate::data::{DataError, file::Meter};

/// Bytes of a plane.
const PLANE: usize = CIFAR_SIDE * CIFAR_SIDE;

/// The first `most` pictures of some files.
pub(super) fn read(meter: &Meter, files: &[PathBuf], most: usize) -> Result<Pictures, DataError> {
    let mut pictures = Pictures::new();
    for path in files {
        let wrong = |problem| DataError::Content { path: path.clone(), problem };
        let mut source = meter.open(path)?;
        let mut record = [0; 1 + 3 * PLANE];
        for number in 1.. {
            if pictures.sequences.len() == most {
                return Ok(pictures);
            }
            match filled(&mut source, &mut record).map_err(|source| DataError::read(path, source))? {
                0 => break,
                count if count < record.len() => {
                    let problem = format!(
                        "ends in picture {number}, after {count} of its {} bytes; fetch the file again, or give one \
                         of CIFAR-10",
                        record.len()
                    );
                    return Err(wrong(problem));
                }
                _ => {}
            }
            let [label, pixels @ ..] = &record;
            let greys: Vec<u8> = (0..PLANE).map(|i| grey([0, 1, 2].map(|plane| pixels[plane * PLANE + i]))).collect();
            let pushed = pictures.push(&greys, [CIFAR_SIDE; 2], usize::from(*label));
            pushed.map_err(|problem| wrong(format!("picture {number}: {problem}; give a file of CIFAR-10")))?;
        }
    }
    Ok(pictures)
}

/// Reads until `buffer` is full or the source ends; the number of bytes.
pub(super) fn filled(source: &mut impl Read, buffer: &mut [u8]) -> io::Result<usize> {
    let mut count = 0;
    while count < buffer.len() {
        match source.read(&mut buffer[count..]) {
            Ok(0) => break,
            Ok(read) => count += read,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(count)
}
