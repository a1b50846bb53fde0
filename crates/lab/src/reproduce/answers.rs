//! Answers of trained models to every test item, so that models are compared item by item.

use regard_nn::blocks::Context;
use regard_tasks::{
    Failure,
    data::{TaskData, split_batches},
    train::{Model, Split},
};

use super::{Compared, Workbench};

/// Items answered at once.
const ROWS: usize = 64;

/// 1 for each test item that is answered rightly, 0 for the others: `[candidate][seed][item]`, with candidates and seeds
/// in the order of the recipe and items in that of the split, which is the same for all.
///
/// # Errors
/// Files that cannot be read, an interrupt.
pub fn answers(bench: &Workbench, compared: &Compared) -> Result<Vec<Vec<Vec<f64>>>, Failure> {
    let mut all = Vec::new();
    for runs in compared.candidates() {
        let mut seeds = Vec::new();
        for run in runs {
            bench.note(&format!("answers of {}, seed {}", run.label, run.seed));
            let (model, data) = bench.open(compared, run)?;
            seeds.push(right(bench, &model, &data)?);
        }
        all.push(seeds);
    }
    Ok(all)
}

fn right(bench: &Workbench, model: &Model, data: &TaskData) -> Result<Vec<f64>, Failure> {
    let mut all = Vec::new();
    for batch in split_batches(data, Split::Test, ROWS, 0)? {
        if bench.stopped() {
            return Err(Failure::interrupted("stopped"));
        }
        let (logits, targets) = model.predictions(&batch, &Context::evaluation());
        let outputs = logits.dims()[1];
        let logits: Vec<f32> = logits.into_data_as::<f32>().try_into_vec().expect("f32, as asked");
        let rows = logits.chunks_exact(outputs).zip(targets.iter()).filter(|(_, target)| **target >= 0);
        all.extend(rows.map(|(row, target)| f64::from(u8::from(largest(row) == *target as usize))));
    }
    Ok(all)
}

/// The first place of the largest value.
fn largest(row: &[f32]) -> usize {
    (0..row.len()).rev().max_by(|&one, &other| row[one].total_cmp(&row[other])).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn of_equal_values_the_first_counts() {
        assert_eq!([largest(&[0.5, 2.0, 2.0]), largest(&[-1.0, -2.0]), largest(&[])], [1, 0, 0]);
    }
}
