//! A page of pictures to look at.

use super::{PathfinderConfig, picture};
use crate::data::DataError;

/// Colours of the frames of pictures: discs at two contours, discs at one.
const FRAMES: [[u8; 3]; 2] = [[200, 60, 50], [50, 150, 70]];

/// Pixels of the frame, and of the white between pictures.
const FRAME: usize = 2;
const GAP: usize = 4;

/// Pixels of a side of a picture at least; smaller ones are enlarged by a whole number.
const LEAST_SIDE: usize = 128;

/// A PNG of the first `rows * columns` pictures of the set of `seed`, with green frames where one contour joins the
/// discs and red ones where none does.
///
/// # Errors
/// Options that do not pass; no pictures, or more than fit into a PNG of 16,384 pixels a side.
pub fn sheet(config: &PathfinderConfig, seed: u64, rows: usize, columns: usize) -> Result<Vec<u8>, DataError> {
    let enlarged = LEAST_SIDE.div_ceil(config.size.max(1));
    let cell = config.size.saturating_mul(enlarged).saturating_add(2 * FRAME + GAP);
    let sides = [rows, columns].map(|count| count.saturating_mul(cell).saturating_add(GAP));
    if rows == 0 || columns == 0 || sides.iter().any(|side| *side > 1 << 14) {
        return Err(DataError::Value(format!(
            "a sheet of {rows} x {columns} pictures; expected at least 1 x 1, and at most 16384 pixels a side"
        )));
    }
    let [height, width] = sides;
    let mut page = vec![255; 3 * width * height];
    for index in 0..rows * columns {
        let drawn = picture(config, seed, index as u64)?;
        let corner = [index / columns, index % columns].map(|place| GAP + place * cell);
        let inner = config.size * enlarged;
        for y in 0..inner + 2 * FRAME {
            for x in 0..inner + 2 * FRAME {
                let inside = |place: usize| place.checked_sub(FRAME).filter(|place| *place < inner);
                let colour = match (inside(y), inside(x)) {
                    (Some(y), Some(x)) => [drawn.greys[y / enlarged * config.size + x / enlarged]; 3],
                    _ => FRAMES[usize::from(drawn.joined)],
                };
                let at = 3 * ((corner[0] + y) * width + corner[1] + x);
                page[at..at + 3].copy_from_slice(&colour);
            }
        }
    }
    Ok(regard_report::png::encode(width, height, &page))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sheet_is_a_png_of_its_size_and_impossible_ones_are_refused() {
        let config = PathfinderConfig::default();
        let png = sheet(&config, 1, 2, 3).unwrap();
        let side = |at: usize| u32::from_be_bytes(png[at..at + 4].try_into().unwrap());
        // Cells of 4 x 32 pixels, two frames and a gap, and one more gap.
        assert_eq!((side(16), side(20)), (3 * 136 + 4, 2 * 136 + 4));
        assert!(png.starts_with(b"\x89PNG"));
        assert!(sheet(&config, 1, 0, 3).is_err() && sheet(&config, 1, 1, usize::MAX).is_err());
        assert!(sheet(&PathfinderConfig { size: 0, ..config }, 1, 1, 1).is_err());
    }
}
