//! How good a model is, in lines for a person.

use regard_metrics::BLEU_SIGNATURE;
use regard_tasks::train::{
    ClassScores, Evaluation, LanguageFigures, RankingFigures, RankingScores, SummaryScores, ValueScores,
};

/// What was measured besides the loss; empty where there is nothing.
pub fn quality(result: &Evaluation) -> String {
    let lines = [
        predicted(result.accuracy, result.classes.as_ref(), result.values.as_ref()),
        result.perplexity.map(|perplexity| format!("perplexity  {perplexity:.4}")),
        result.language.as_ref().and_then(spelled),
        result.ranking.as_ref().map(ranked),
        result.bleu.map(|bleu| format!("BLEU        {bleu:.2}, {BLEU_SIGNATURE}")),
        result.rouge.as_ref().map(rouge),
    ];
    lines.into_iter().flatten().collect::<Vec<_>>().join("\n")
}

/// How predicted classes or scores go with those given; none where nothing was given.
pub fn predicted(accuracy: Option<f64>, classes: Option<&ClassScores>, values: Option<&ValueScores>) -> Option<String> {
    let lines = [
        accuracy.map(|accuracy| format!("accuracy    {:.2} %", 100.0 * accuracy)),
        classes.map(|scores| format!("macro F1    {:.4}", scores.macro_f1)),
        classes.and_then(|scores| scores.f1).map(|f1| format!("F1          {f1:.4} of the second class")),
        classes.map(|scores| format!("Matthews    {:.4}", scores.matthews)),
        values.map(correlations),
    ];
    let lines: Vec<String> = lines.into_iter().flatten().collect();
    (!lines.is_empty()).then(|| lines.join("\n"))
}

/// How predicted scores go with those given.
fn correlations(scores: &ValueScores) -> String {
    let shown = |value: Option<f64>| value.map_or("none: one side does not vary".into(), |value| format!("{value:.4}"));
    format!("Pearson     {}\nSpearman    {}", shown(scores.pearson), shown(scores.spearman))
}

/// Figures that models of other tokens can be held against.
fn spelled(figures: &LanguageFigures) -> Option<String> {
    let lines = [
        figures.perplexity_per_word.map(|perplexity| format!("per word    {perplexity:.4} perplexity")),
        figures.bits_per_character.map(|bits| format!("characters  {bits:.4} bits each")),
        figures.bits_per_byte.map(|bits| format!("bytes       {bits:.4} bits each")),
    ];
    let lines: Vec<String> = lines.into_iter().flatten().collect();
    (!lines.is_empty()).then(|| lines.join("\n"))
}

/// ROUGE of summaries, and of what takes no model.
fn rouge(SummaryScores { model, lead, lead_sentences }: &SummaryScores) -> String {
    let plural = if *lead_sentences == 1 { "sentence" } else { "sentences" };
    format!(
        "ROUGE       {model} (F1 of ROUGE-1, -2, -L)\nlead        {lead} (the first {lead_sentences} {plural} of a document)"
    )
}

/// Scores of a ranking beside those that they lie between.
fn ranked(figures: &RankingFigures) -> String {
    let RankingFigures { scores, chance, best } = figures;
    let known = if best.is_some() { "   by the true probabilities" } else { "" };
    let mut lines = vec![format!("ranking       model   random order{known}")];
    let best = best.map(|best| best.values());
    for (place, name) in RankingScores::NAMES.iter().enumerate() {
        let [own, random] = [scores, chance].map(|scores| 100.0 * scores.values()[place]);
        let best = best.map_or(String::new(), |best| format!("   {:>23.2} %", 100.0 * best[place]));
        lines.push(format!("{name:<10} {own:>6.2} %   {random:>10.2} %{best}"));
    }
    lines.join("\n")
}
