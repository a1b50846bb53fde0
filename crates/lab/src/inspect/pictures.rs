//! Matrices as images of limited size.

use rayon::prelude::*;
use regard_kernels::Averaged;
use regard_report::{HeatMap, Panel, Shade};

use super::{attended::Attended, parameters::KeyProjection};

/// Maximum cells along one side of an image; more are averaged.
const MOST_CELLS: usize = 256;

/// End of the weight scale, as a multiple of a uniform row's: a few large ones would leave all others white.
const END: f64 = 10.0;

/// An image and its file name.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Picture {
    pub name: String,
    pub map: HeatMap,
}

/// Cell means of a matrix whose rows arrive one by one.
struct Cells {
    /// Rows and columns of the matrix.
    size: [usize; 2],
    /// Rows and columns of the image.
    cells: [usize; 2],
    sums: Vec<f64>,
    counts: Vec<f64>,
}

impl Cells {
    fn new(size: [usize; 2]) -> Self {
        let cells = size.map(|length| length.clamp(1, MOST_CELLS));
        let count = cells[0] * cells[1];
        Self { size, cells, sums: vec![0.0; count], counts: vec![0.0; count] }
    }

    fn add(&mut self, i: usize, row: &[f64]) {
        let line = i * self.cells[0] / self.size[0];
        for (j, value) in row.iter().enumerate() {
            let at = line * self.cells[1] + j * self.cells[1] / self.size[1];
            self.sums[at] += value;
            self.counts[at] += 1.0;
        }
    }

    fn panel(self, title: String) -> Panel {
        let values = self.sums.iter().zip(&self.counts).map(|(sum, count)| sum / count).collect();
        let [rows, columns] = self.cells;
        Panel { title, rows, columns, values, ends: self.size }
    }
}

/// The weights of some heads.
pub(super) fn pooled_weights(attended: &Attended, averaged: Averaged, heads: &[usize], name: &str) -> Picture {
    let size = attended.lengths();
    let panels = attended.with_rows(averaged, heads, |rows| {
        let mut cells: Vec<Cells> = heads.iter().map(|_| Cells::new(size)).collect();
        // Some rows at a time, so that the matrix is never complete in memory.
        for first in (0..size[0]).step_by(MOST_CELLS) {
            let block: Vec<Vec<Vec<f64>>> =
                (first..size[0].min(first + MOST_CELLS)).into_par_iter().map(rows).collect();
            for (i, of_heads) in block.iter().enumerate() {
                cells.iter_mut().zip(of_heads).for_each(|(cells, row)| cells.add(first + i, row));
            }
        }
        cells.into_iter().zip(heads).map(|(cells, h)| cells.panel(format!("head {}", h + 1))).collect()
    });
    let pooled = if size.iter().any(|length| *length > MOST_CELLS) { "; cells are means" } else { "" };
    let (tokens, label) = (size[1], attended.record().options.label());
    let map = HeatMap {
        title: format!("Attention, {name}"),
        subtitle: format!(
            "{label}, one sequence of {tokens} tokens; the scale ends at {END} times an even weight{pooled}"
        ),
        x: "key".into(),
        y: "query".into(),
        shade: Shade::Weights,
        end: Some(END / size[1] as f64),
        panels,
    };
    Picture { name: format!("attention {name}"), map }
}

/// The keys of some heads, one panel per head and component; none if there are no query-key scores.
pub(super) fn pooled_keys(attended: &Attended, heads: &[usize], name: &str) -> Option<Picture> {
    let mut panels = Vec::new();
    for &h in heads {
        let keys = attended.keys(h)?;
        let count = keys.components.len();
        for (r, component) in keys.components.iter().enumerate() {
            let mut cells = Cells::new([component.len(), attended.width()]);
            component.iter().enumerate().for_each(|(j, key)| cells.add(j, key));
            let title = match count {
                1 => format!("head {}", h + 1),
                _ => format!("head {}, component {}", h + 1, r + 1),
            };
            panels.push(cells.panel(title));
        }
    }
    let map = HeatMap {
        title: format!("Keys, {name}"),
        subtitle: format!("one sequence of {} tokens", attended.lengths()[1]),
        x: "channel".into(),
        y: "position".into(),
        shade: Shade::Signed,
        end: None,
        panels,
    };
    Some(Picture { name: format!("keys {name}"), map })
}

/// Key projections, one image per parameter.
pub(super) fn projections(all: &[KeyProjection]) -> Vec<Picture> {
    let one = |of_name: &[KeyProjection]| {
        let panel = |projection: &KeyProjection| {
            let mut cells = Cells::new([projection.rows, projection.columns]);
            let rows = projection.data.chunks_exact(projection.columns);
            rows.enumerate().for_each(|(i, row)| cells.add(i, row));
            cells.panel(projection.component.map_or_else(String::new, |r| format!("component {r}")))
        };
        let name = &of_name[0].name;
        let map = HeatMap {
            title: format!("Projection of keys, {name}"),
            subtitle: "heads side by side".into(),
            x: "channel of the keys".into(),
            y: "channel of the state".into(),
            shade: Shade::Signed,
            end: None,
            panels: of_name.iter().map(panel).collect(),
        };
        Picture { name: format!("projection {name}"), map }
    };
    all.chunk_by(|a, b| a.name == b.name).map(one).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cells_are_means() {
        let mut cells = Cells::new([2 * MOST_CELLS, 3]);
        for i in 0..2 * MOST_CELLS {
            cells.add(i, &[1.0, i as f64, 0.0]);
        }
        let panel = cells.panel("x".into());
        assert_eq!((panel.rows, panel.columns, panel.ends), (MOST_CELLS, 3, [2 * MOST_CELLS, 3]));
        assert_eq!(panel.values[..6], [1.0, 0.5, 0.0, 1.0, 2.5, 0.0]);
    }
}
