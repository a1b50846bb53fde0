//! Names near to one that does not exist.

/// ", did you mean 'x'?" if there is a similar name.
pub fn nearest<'a>(seen: &str, names: impl Iterator<Item = &'a str>) -> String {
    // A key is often right except for its table, which decides only between equals; else the shallowest is meant.
    let (table, key) = parted(seen);
    let score = |name: &str| {
        let (other, last) = parted(name);
        let apart = if alike(table, other) > 0.8 { 0.0 } else { 0.01 + 1e-3 * other.len() as f64 };
        alike(key, last) - apart
    };
    let best = names.map(|name| (score(name), name)).max_by(|a, b| a.0.total_cmp(&b.0));
    match best {
        Some((score, name)) if score > 0.8 => format!(", did you mean '{name}'?"),
        _ => String::new(),
    }
}

/// How much a word seen is like a name, 0 to 1.
fn alike(seen: &str, name: &str) -> f64 {
    let similar = strsim::jaro_winkler(seen, name);
    // Initials are a common way to write a name: lr for learning_rate.
    let initials = name.contains('_') && name.split('_').map(|word| word.chars().next()).eq(seen.chars().map(Some));
    if initials {
        0.95
    } else if seen.len() > 2 && strsim::osa_distance(seen, name) == 1 {
        // One typo in a short name leaves too little similarity for the measure used for longer ones.
        0.96 + 0.03 * similar
    } else {
        similar
    }
}

/// [`nearest`] for a problem such as "unknown variant `smyfr`, expected one of `local`, `smyrf`".
pub(super) fn nearest_variant(problem: &str) -> String {
    let mut quoted = problem.split('`').skip(1).step_by(2);
    match quoted.next() {
        Some(seen) if problem.starts_with("unknown variant") => nearest(seen, quoted),
        _ => String::new(),
    }
}

/// The table and the name of a dotted path.
pub(super) fn parted(path: &str) -> (&str, &str) {
    path.rsplit_once('.').unwrap_or(("", path))
}
