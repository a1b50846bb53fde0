//! The results of a study in the shape of a paper's tables: a row for each model, a column for each task and setting.

use regard_report::{Cell, Column, Format, Table};
use regard_tasks::data::Objective;
use serde::{Deserialize, Serialize};

use super::{CellRecord, Finished, Outcome, Place, Reason, Study, page::Results, pairs, pairs::Standing};
use crate::compare::RunResult;

/// What is measured on the test split of a task.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Measure {
    /// Share of labels, or of tokens that are determined.
    Accuracy,
    /// `exp` of the mean loss.
    Perplexity,
    /// Mean loss in nats.
    Loss,
    /// BLEU of translations, 0 to 100.
    Bleu,
    /// ROUGE-1 of summaries, 0 to 100.
    #[serde(rename = "rouge-1")]
    Rouge1,
    /// ROUGE-2 of summaries, 0 to 100.
    #[serde(rename = "rouge-2")]
    Rouge2,
    /// ROUGE-L of summaries, 0 to 100.
    RougeL,
    /// Area under the ROC curve of rankings.
    Auc,
    /// Mean reciprocal rank.
    Mrr,
    /// Normalised discounted cumulative gain of five places.
    #[serde(rename = "ndcg-5")]
    Ndcg5,
    /// The same of ten places.
    #[serde(rename = "ndcg-10")]
    Ndcg10,
}

impl Measure {
    /// That of a result, if it is finite.
    pub fn of(self, result: &RunResult) -> Option<f64> {
        let ranking = result.test_ranking.map(|ranking| ranking.scores);
        let value = match self {
            Self::Accuracy => result.test_accuracy,
            Self::Perplexity => result.test_perplexity,
            Self::Loss => Some(result.test_loss),
            Self::Bleu => result.test_bleu,
            Self::Rouge1 => result.test_rouge.map(|scores| scores.model.rouge_1),
            Self::Rouge2 => result.test_rouge.map(|scores| scores.model.rouge_2),
            Self::RougeL => result.test_rouge.map(|scores| scores.model.rouge_l),
            Self::Auc => ranking.map(|scores| scores.auc),
            Self::Mrr => ranking.map(|scores| scores.mrr),
            Self::Ndcg5 => ranking.map(|scores| scores.ndcg_5),
            Self::Ndcg10 => ranking.map(|scores| scores.ndcg_10),
        };
        value.filter(|value| value.is_finite())
    }

    /// That of a task: the one its study names, else the first that its results have of BLEU, ROUGE-1, AUC, accuracy and
    /// perplexity.
    pub fn of_task(study: &Study, records: &[CellRecord], task: &str) -> Self {
        let named = study.tasks.iter().find(|own| own.label == task).and_then(|task| task.measure);
        let results = || records.iter().filter(|r| r.place.task == task).filter_map(|r| Some(&r.finished()?.result));
        let has = |measure: &Self| results().any(|result| measure.of(result).is_some());
        let mut usual = [Self::Bleu, Self::Rouge1, Self::Auc, Self::Accuracy, Self::Perplexity].into_iter();
        named.or_else(|| usual.find(has)).unwrap_or(Self::Loss)
    }

    /// Whether tasks with this objective can have it.
    pub fn is_of(self, objective: Objective) -> bool {
        match self {
            Self::Bleu => matches!(objective, Objective::Translate),
            Self::Rouge1 | Self::Rouge2 | Self::RougeL => matches!(objective, Objective::Summarize { .. }),
            Self::Auc | Self::Mrr | Self::Ndcg5 | Self::Ndcg10 => matches!(objective, Objective::Rank { .. }),
            Self::Accuracy | Self::Perplexity | Self::Loss => true,
        }
    }

    /// 1 where more is better, else -1.
    pub fn sign(self) -> f64 {
        match self {
            Self::Accuracy
            | Self::Bleu
            | Self::Rouge1
            | Self::Rouge2
            | Self::RougeL
            | Self::Auc
            | Self::Mrr
            | Self::Ndcg5
            | Self::Ndcg10 => 1.0,
            Self::Perplexity | Self::Loss => -1.0,
        }
    }

    /// How it is written.
    pub fn format(self) -> Format {
        match self {
            Self::Accuracy => Format::Percent(1),
            Self::Perplexity => Format::Significant(4),
            Self::Loss => Format::Fixed(3),
            Self::Bleu | Self::Rouge1 | Self::Rouge2 | Self::RougeL => Format::Fixed(1),
            Self::Auc | Self::Mrr | Self::Ndcg5 | Self::Ndcg10 => Format::Percent(2),
        }
    }

    /// Its name in tables.
    pub fn name(self) -> &'static str {
        match self {
            Self::Accuracy => "accuracy",
            Self::Perplexity => "perplexity",
            Self::Loss => "loss",
            Self::Bleu => "BLEU",
            Self::Rouge1 => "ROUGE-1",
            Self::Rouge2 => "ROUGE-2",
            Self::RougeL => "ROUGE-L",
            Self::Auc => "AUC",
            Self::Mrr => "MRR",
            Self::Ndcg5 => "nDCG@5",
            Self::Ndcg10 => "nDCG@10",
        }
    }
}

/// What a model costs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Figure {
    /// Number of parameters.
    Parameters,
    /// Peak bytes in training beyond the data.
    Memory,
    /// Median milliseconds of an update.
    Time,
    /// Multiply-adds of the forward pass over one sequence of the longest length.
    Operations,
}

impl Figure {
    /// All of them, by name.
    pub const ALL: [(&'static str, &'static str, Self); 4] = [
        ("parameters", "Number of parameters", Self::Parameters),
        ("memory", "Peak memory in training beyond the data", Self::Memory),
        ("time", "Median milliseconds of an update", Self::Time),
        ("operations", "Multiply-adds of a forward pass over the longest sequence", Self::Operations),
    ];

    fn of(self, result: &RunResult) -> f64 {
        match self {
            Self::Parameters => result.parameters as f64,
            Self::Memory => result.peak_bytes.map_or(f64::NAN, |bytes| bytes as f64),
            Self::Time => result.milliseconds_per_step,
            Self::Operations => result.multiply_adds.unwrap_or(f64::NAN),
        }
    }

    fn column(self, title: String) -> Column {
        match self {
            Self::Parameters => Column::number(title, Format::Plain),
            Self::Memory => Column::number(title, Format::Bytes),
            Self::Time => Column::number(title, Format::Significant(3)).unit("ms"),
            Self::Operations => Column::number(title, Format::Count),
        }
    }

    fn title(self) -> (&'static str, &'static str) {
        match self {
            Self::Parameters => ("parameters", "Parameters"),
            Self::Memory => ("memory", "Peak memory in training, beyond the data"),
            Self::Time => ("update", "Median time of an update"),
            Self::Operations => {
                ("multiply-adds", "Multiply-adds of a forward pass over one sequence of the longest length")
            }
        }
    }
}

/// `1 seed`, `3 seeds`.
pub fn counted(count: usize, what: &str) -> String {
    format!("{count} {what}{}", if count == 1 { "" } else { "s" })
}

impl Results {
    /// The finished runs at a place.
    pub(super) fn finished(&self, place: &Place) -> Vec<&Finished> {
        self.records.iter().filter(|record| record.place == *place).filter_map(CellRecord::finished).collect()
    }

    fn at(column: &Place, model: &str) -> Place {
        Place { model: model.into(), ..column.clone() }
    }

    /// Why cells at a place have no result, each reason once.
    fn reasons(&self, place: &Place) -> Vec<&'static str> {
        let mut words: Vec<&str> = Vec::new();
        for record in self.records.iter().filter(|record| record.place == *place) {
            if let Outcome::Failed { reason, .. } = &record.outcome
                && !words.contains(&reason.words())
            {
                words.push(reason.words());
            }
        }
        words
    }

    /// Rows are models, columns are tasks and settings, cells are measures on the test split, with the figures that the study
    /// asks for beside them.
    pub fn table(&self) -> Table {
        self.table_with(&self.study.columns)
    }

    /// The same with these figures.
    pub(super) fn table_with(&self, figures: &[Figure]) -> Table {
        let study = &self.study;
        let places = study.columns();
        let mut columns = vec![Column::text("model")];
        let mut standings = Vec::new();
        for place in &places {
            let measure = self.measure(place);
            let number = |title: String| Column::number(title, measure.format());
            if figures.is_empty() {
                let column = match &place.setting {
                    Some(setting) => number(setting.clone()).group(place.task.clone()),
                    None => number(place.task.clone()),
                };
                columns.push(column.unit(measure.name()));
            } else {
                columns.push(number(measure.name().into()).group(place.column()));
                let further = figures.iter();
                columns.extend(further.map(|f| f.column(f.title().0.into()).group(place.column())));
            }
            standings.push(pairs::best(study, &self.records, place));
        }
        let mut table = Table::new(study.title.clone(), columns);
        for model in &study.models {
            let mut row: Vec<Cell> = vec![model.as_str().into()];
            for (column, standing) in places.iter().zip(&standings) {
                let place = Self::at(column, model);
                row.push(self.measured(&place, standing.as_ref().filter(|(best, _)| best == model).map(|(_, s)| *s)));
                row.extend(figures.iter().map(|figure| self.cost(&place, *figure)));
            }
            table.push(row);
        }
        self.notes(standings.into_iter().flatten().map(|(_, standing)| standing).collect())
            .into_iter()
            .fold(table, Table::note)
    }

    fn measured(&self, place: &Place, standing: Option<Standing>) -> Cell {
        let values: Vec<f64> =
            pairs::values(&self.records, place, self.measure(place)).into_iter().map(|(_, value)| value).collect();
        let wanted = self.study.group(place).map_or(0, |group| group.seeds.len());
        let reasons = self.reasons(place);
        if values.is_empty() {
            return if reasons.is_empty() { Cell::Empty } else { format!("failed: {}", reasons.join(", ")).into() };
        }
        let mut marks = Vec::new();
        match standing {
            Some(Standing::NotSignificant) => marks.push("n.s.".to_owned()),
            Some(Standing::NotDecided) => marks.push("n.d.".to_owned()),
            Some(Standing::Significant) | None => {}
        }
        if values.len() < wanted {
            let failed = if reasons.is_empty() { String::new() } else { format!("; failed: {}", reasons.join(", ")) };
            marks.push(format!("({} of {wanted} seeds{failed})", values.len()));
        }
        Cell::estimate(&values).marked(marks.join(" "), standing == Some(Standing::Significant))
    }

    fn cost(&self, place: &Place, figure: Figure) -> Cell {
        let values: Vec<f64> = self.finished(place).iter().map(|finished| figure.of(&finished.result)).collect();
        match (figure, values.first()) {
            // The same for every seed.
            (Figure::Parameters, Some(first)) => Cell::Whole(*first as u128),
            (Figure::Operations, Some(first)) => Cell::Number(*first),
            (Figure::Memory, Some(_)) => Cell::Number(values.into_iter().fold(f64::NAN, f64::max)),
            _ => Cell::estimate(&values),
        }
    }

    fn notes(&self, standings: Vec<Standing>) -> Vec<String> {
        let mut notes = vec![format!(
            "Test split, best checkpoint by validation; mean and sample deviation over seeds ({}).",
            self.seeds()
        )];
        let has = |standing| standings.contains(&standing);
        let how = format!(
            "than every other model of its column (paired by seed, Student's t, Holm's correction over the comparisons of \
             the column, level {})",
            pairs::LEVEL
        );
        if has(Standing::Significant) {
            notes.push(format!("Bold or starred: significantly better {how}."));
        }
        if has(Standing::NotSignificant) {
            notes.push(format!("n.s.: the best mean, but not significantly better {how}."));
        }
        if has(Standing::NotDecided) {
            notes.push(format!(
                "n.d.: the best mean; whether it is better was not decided, for want of {} seeds with results of both models, \
                 or because all differences are equal.",
                pairs::SEEDS
            ));
        }
        let open = self.study.cells().count() - self.records.len();
        if open > 0 {
            notes.push(format!("{} not trained yet.", counted(open, "cell")));
        }
        notes
    }

    /// Number of seeds of the cells.
    pub(super) fn seeds(&self) -> String {
        let counts = || self.study.groups.iter().map(|group| group.seeds.len());
        match (counts().min().unwrap_or(0), counts().max().unwrap_or(0)) {
            (least, most) if least == most => most.to_string(),
            (least, most) => format!("{least} to {most}"),
        }
    }

    /// One table for each figure, in the shape of the table of results.
    pub(super) fn costs(&self) -> Vec<Table> {
        let places = self.study.columns();
        let machines = self.machines();
        let table = |(_, _, figure): (&str, &str, Figure)| {
            let column = |place: &&Place| match &place.setting {
                Some(setting) => figure.column(setting.clone()).group(place.task.clone()),
                None => figure.column(place.task.clone()),
            };
            let columns = [Column::text("model")].into_iter().chain(places.iter().map(column)).collect();
            let mut table = Table::new(figure.title().1, columns);
            for model in &self.study.models {
                let cells = places.iter().map(|place| self.cost(&Self::at(place, model), figure));
                table.push([Cell::from(model.as_str())].into_iter().chain(cells).collect());
            }
            match figure {
                Figure::Time if machines.len() > 1 => table.note(format!(
                    "The cells ran on {} machines or numbers of threads: only times of the same ones can be compared.",
                    machines.len()
                )),
                Figure::Memory => table.note("The largest of the seeds."),
                _ => table,
            }
        };
        Figure::ALL.into_iter().map(table).collect()
    }

    /// Processors with their numbers of threads, and how many cells ran on each.
    pub(super) fn machines(&self) -> Vec<(String, usize)> {
        let mut machines: Vec<(String, usize)> = Vec::new();
        for finished in self.records.iter().filter_map(CellRecord::finished) {
            let environment = &finished.environment;
            let name = environment.machine();
            match machines.iter_mut().find(|(machine, _)| *machine == name) {
                Some((_, count)) => *count += 1,
                None => machines.push((name, 1)),
            }
        }
        machines
    }

    /// The cells without a result, each with its reason; those that differ in their seed alone together.
    pub(super) fn failures(&self) -> Table {
        let columns = ["task", "model", "seeds", "kind", "reason"].map(Column::text).to_vec();
        let mut table = Table::new("Failed cells", columns);
        let mut rows: Vec<(&Place, Vec<String>, Reason, &str)> = Vec::new();
        for record in &self.records {
            if let Outcome::Failed { reason, sentence } = &record.outcome {
                let seed = record.seed.to_string();
                match rows.iter_mut().find(|(place, _, _, other)| **place == record.place && other == sentence) {
                    Some((_, seeds, ..)) => seeds.push(seed),
                    None => rows.push((&record.place, vec![seed], *reason, sentence)),
                }
            }
        }
        for (place, seeds, reason, sentence) in rows {
            let (column, model, seeds) = (place.column(), place.model.as_str(), seeds.join(", "));
            table.push(vec![column.into(), model.into(), seeds.into(), reason.words().into(), sentence.into()]);
        }
        table
    }

    /// The data of each column.
    pub(super) fn data(&self) -> Table {
        let columns = vec![
            Column::text("task"),
            Column::text("measure"),
            Column::text("data"),
            Column::number("most frequent class", Format::Percent(1)),
        ];
        let mut table = Table::new("Data", columns);
        for column in self.study.columns() {
            let Some(finished) = self.in_column(column).into_iter().next() else { continue };
            let measure = self.measure(column).name();
            let data = finished.data.as_str();
            table.push(vec![column.column().into(), measure.into(), data.into(), finished.majority.into()]);
        }
        table
    }

    /// All finished runs on a task in a setting.
    pub(super) fn in_column(&self, column: &Place) -> Vec<&Finished> {
        self.records.iter().filter(|record| record.place.beside(column)).filter_map(CellRecord::finished).collect()
    }

    /// One row for each cell that has ended.
    pub(super) fn long(&self) -> Table {
        let text = ["task", "setting", "model"].map(Column::text);
        let numbers = [
            "seed",
            "accuracy",
            "perplexity",
            "BLEU",
            "ROUGE-1",
            "ROUGE-2",
            "ROUGE-L",
            "AUC",
            "MRR",
            "nDCG@5",
            "nDCG@10",
            "loss",
            "parameters",
            "multiply-adds",
            "milliseconds per update",
            "peak bytes",
            "sequences per second",
            "training seconds",
        ];
        let numbers = numbers.map(|title| Column::number(title, Format::Plain));
        let columns = text.into_iter().chain(numbers).chain(["failed", "reason"].map(Column::text)).collect();
        let mut table = Table::new("Cells", columns);
        for record in &self.records {
            let Place { task, setting, model } = &record.place;
            let mut row: Vec<Cell> = vec![task.as_str().into(), setting.clone().unwrap_or_default().into()];
            row.extend([model.as_str().into(), record.seed.into()]);
            match &record.outcome {
                Outcome::Finished(finished) => {
                    let result = &finished.result;
                    let measured = |measure: Measure| Cell::from(measure.of(result));
                    row.extend([
                        result.test_accuracy.into(),
                        result.test_perplexity.into(),
                        result.test_bleu.into(),
                        measured(Measure::Rouge1),
                        measured(Measure::Rouge2),
                        measured(Measure::RougeL),
                        measured(Measure::Auc),
                        measured(Measure::Mrr),
                        measured(Measure::Ndcg5),
                        measured(Measure::Ndcg10),
                        result.test_loss.into(),
                        result.parameters.into(),
                        result.multiply_adds.into(),
                        result.milliseconds_per_step.into(),
                        result.peak_bytes.into(),
                        result.sequences_per_second.into(),
                        result.train_seconds.into(),
                    ]);
                }
                Outcome::Failed { reason, sentence } => {
                    row.resize(21, Cell::Empty);
                    row.extend([reason.words().into(), sentence.as_str().into()]);
                }
            }
            table.push(row);
        }
        table
    }
}
