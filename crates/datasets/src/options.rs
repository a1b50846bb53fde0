//! How a configuration names a set.

/// The key whose value is the folder of a set, for the first of the tasks that read it; none where it takes several files.
///
/// ```
/// assert_eq!(regard_datasets::option("glue-rte"), Some("task.text.path"));
/// assert_eq!(regard_datasets::option("mind"), None);
/// ```
pub fn option(name: &str) -> Option<&'static str> {
    Some(match name {
        "imdb" | "ag-news" => "task.text.path",
        _ if name.starts_with("glue-") => "task.text.path",
        "cifar10" | "mnist" => "task.image.path",
        "multi30k" => "task.translation.directory",
        _ if name.starts_with("wikitext-") => "task.lm.directory",
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::CATALOGUE;

    #[test]
    fn a_set_with_an_option_is_read_by_the_task_of_that_option() {
        for set in CATALOGUE {
            if let Some(option) = option(set.name) {
                let task = option.split('.').nth(1).unwrap();
                assert_eq!(set.tasks.first(), Some(&task), "{}", set.name);
            }
        }
    }
}
