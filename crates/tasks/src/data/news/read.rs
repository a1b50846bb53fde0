//! Reader of the format of MIND: `news.tsv` and `behaviors.tsv` (Wu et al. 2020).

use std::{
    collections::{HashMap, hash_map::Entry},
    io::BufRead,
    path::Path,
};

use super::log::ImpressionLog;
use crate::data::{DataError, file::Meter, plain_text::each_line};

/// Names of the files of a folder.
pub(super) const FILES: [&str; 2] = ["news.tsv", "behaviors.tsv"];

const NEWS_COLUMNS: usize = 8;
const NEWS_NAMES: &str =
    "id, category, subcategory, title, abstract, address, entities of the title, entities of the abstract";
const BEHAVIOR_COLUMNS: usize = 5;
const BEHAVIOR_NAMES: &str = "impression, user, time, history, what was offered";

/// Longest part of a line that an error shows.
const SHOWN: usize = 40;

/// A log whose titles are still text, and what of the files it leaves out.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct RawLog {
    pub titles: Vec<String>,
    /// Without titles.
    pub log: ImpressionLog,
    pub left: LeftOut,
}

/// What the reader left out.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct LeftOut {
    /// Ids of a history or an impression that are not in `news.tsv`.
    pub unknown: u64,
    /// Impressions in which nothing was clicked on.
    pub without_click: u64,
    /// Impressions in which everything was.
    pub without_other: u64,
}

impl LeftOut {
    /// Remarks for the user on the folder `name`.
    pub fn notes(&self, name: &str) -> Vec<String> {
        let Self { unknown, without_click, without_other } = self;
        let mut notes = Vec::new();
        if *unknown > 0 {
            notes.push(format!(
                "{name}: left out {unknown} ids of histories and impressions that are not in its news.tsv"
            ));
        }
        if without_click + without_other > 0 {
            notes.push(format!(
                "{name}: left out {without_click} impressions without a click and {without_other} in which everything was \
                 clicked on: there is nothing to rank"
            ));
        }
        notes
    }
}

/// Reads a folder; of a history the last `history` pieces of news are kept.
pub(super) fn folder(folder: &Path, history: usize, meter: &Meter) -> Result<RawLog, DataError> {
    let [news, behaviors] = FILES.map(|name| folder.join(name));
    parse([(meter.open(&news)?, &news), (meter.open(&behaviors)?, &behaviors)], history)
}

/// The same of any two sources with their names.
pub(super) fn parse<R: BufRead>(
    [(news, news_path), (behaviors, path)]: [(R, &Path); 2],
    history: usize,
) -> Result<RawLog, DataError> {
    let mut raw = RawLog::default();
    let mut ids: HashMap<String, u32> = HashMap::new();
    each_line(news, news_path, |_, row| {
        let [id, _, _, title, ..] = columns::<NEWS_COLUMNS>(row, NEWS_NAMES)?;
        if id.is_empty() {
            return Err("the id of the news is empty, expected one as N123".into());
        }
        match ids.entry(id.to_owned()) {
            Entry::Occupied(_) => {
                return Err(format!("the id {} occurs a second time; remove one of the lines", shown(id)));
            }
            Entry::Vacant(place) => place.insert(raw.titles.len() as u32),
        };
        raw.titles.push(title.to_owned());
        Ok(())
    })?;
    if raw.titles.is_empty() {
        let problem = format!("has no lines; a line is {NEWS_COLUMNS} tab-separated columns: {NEWS_NAMES}");
        return Err(DataError::Content { path: news_path.into(), problem });
    }

    // Number of each reader, with that of the last history.
    let mut readers: HashMap<String, (u32, u32)> = HashMap::new();
    let (log, left) = (&mut raw.log, &mut raw.left);
    each_line(behaviors, path, |_, row| {
        let [_, user, _, read, offered] = columns::<BEHAVIOR_COLUMNS>(row, BEHAVIOR_NAMES)?;
        if user.is_empty() {
            return Err("the user is empty, expected one as U123".into());
        }
        let mut known = |id: &str| {
            let number = ids.get(id).copied();
            left.unknown += u64::from(number.is_none());
            number
        };
        let mut read: Vec<u32> = read.split_whitespace().filter_map(&mut known).collect();
        read.drain(..read.len().saturating_sub(history));
        let mut candidates = Vec::new();
        for item in offered.split_whitespace() {
            let (id, clicked) = labelled(item)?;
            candidates.extend(known(id).map(|id| (id, clicked)));
        }
        if candidates.is_empty() && offered.trim().is_empty() {
            return Err("nothing was offered, expected news with labels as in N123-1 N456-0".into());
        }
        let clicks = candidates.iter().filter(|(_, clicked)| *clicked).count();
        if clicks == 0 || clicks == candidates.len() {
            *(if clicks == 0 { &mut left.without_click } else { &mut left.without_other }) += 1;
            return Ok(());
        }
        let next = readers.len() as u32;
        let (reader, last) = readers.entry(user.to_owned()).or_insert((next, u32::MAX));
        if *last == u32::MAX || log.histories.list(*last as usize) != read {
            *last = log.histories.len() as u32;
            log.histories.push(read);
        }
        log.readers.push(*reader);
        log.history_of.push(*last);
        log.offered.push(candidates.iter().map(|(id, _)| *id));
        log.clicked.extend(candidates.iter().map(|(_, clicked)| *clicked));
        Ok(())
    })?;
    if raw.log.is_empty() {
        let problem = "has no impression with a click and something that was not clicked on; check that it belongs to the \
                       news.tsv beside it";
        return Err(DataError::Content { path: path.into(), problem: problem.into() });
    }
    Ok(raw)
}

/// The columns of a line.
fn columns<'r, const N: usize>(row: &'r [u8], names: &str) -> Result<[&'r str; N], String> {
    let text = std::str::from_utf8(row)
        .map_err(|error| format!("is not UTF-8 from byte {} of the line on", error.valid_up_to()))?;
    let columns: Vec<&str> = text.split('\t').collect();
    columns.as_slice().try_into().map_err(|_| {
        let seen = columns.len();
        format!(
            "{seen} tab-separated column{}, expected {N}: {names}; is the file whole?",
            if seen == 1 { "" } else { "s" }
        )
    })
}

/// A piece of news and whether it was clicked on.
fn labelled(item: &str) -> Result<(&str, bool), String> {
    match item.rsplit_once('-') {
        Some((id, "1")) if !id.is_empty() => Ok((id, true)),
        Some((id, "0")) if !id.is_empty() => Ok((id, false)),
        _ => Err(format!(
            "offers {}, expected news with a label, as in N123-1 or N123-0; the test part of MIND has none: give its dev part",
            shown(item)
        )),
    }
}

fn shown(text: &str) -> String {
    let short: String = text.chars().take(SHOWN).collect();
    format!("`{}`", short.escape_debug())
}

#[cfg(test)]
mod tests {
    use super::*;

    const NEWS: &str = "N1\tsports\tgolf\tA putt that \"counts\"\tabout it\thttps://x\t[]\t[]\n\
                        N2\tnews\tworld\tRain again\t\t\t[]\t[]\n\
                        N3\tfood\trecipes\tSoup\t\t\t\t\n";
    const TIME: &str = "11/15/2019 8:55:22 AM";

    fn read(news: &str, behaviors: &str) -> Result<RawLog, DataError> {
        parse([(news.as_bytes(), Path::new("news.tsv")), (behaviors.as_bytes(), Path::new("behaviors.tsv"))], 2)
    }

    fn line(user: &str, history: &str, offered: &str) -> String {
        format!("1\t{user}\t{TIME}\t{history}\t{offered}\n")
    }

    #[test]
    fn impressions_keep_the_end_of_a_history_and_their_labels() {
        let behaviors = [
            line("U7", "N1 N2 N3", "N2-1 N1-0"),
            line("U8", "", "N1-0 N3-1 N2-1"),
            line("U7", "N1 N2 N3", "N3-0 N2-1"),
            line("U7", "N2", "N3-1 N2-0"),
        ];
        let RawLog { titles, log, left } = read(NEWS, &behaviors.concat()).unwrap();
        assert_eq!(titles, ["A putt that \"counts\"", "Rain again", "Soup"]);
        assert_eq!(left, LeftOut::default());
        assert_eq!((log.len(), &log.readers[..], log.histories.len()), (4, &[0, 1, 0, 0][..], 3));
        let first = log.impression(0);
        assert_eq!((first.history, first.offered, first.clicked), (&[1, 2][..], &[1, 0][..], &[true, false][..]));
        assert_eq!((log.impression(1).history.len(), log.impression(1).clicked), (0, &[false, true, true][..]));
        assert_eq!((log.history_of[0], log.history_of[2], log.impression(3).history), (0, 0, &[1][..]));
    }

    #[test]
    fn what_cannot_be_ranked_is_left_out_and_counted() {
        let behaviors =
            [line("U1", "N1 N9", "N2-0 N1-0"), line("U1", "N1", "N2-1 N1-1 N9-0"), line("U2", "N8", "N2-1 N1-0 N9-0")];
        let RawLog { log, left, .. } = read(NEWS, &behaviors.concat()).unwrap();
        assert_eq!((log.len(), log.reader_count()), (1, 1));
        assert_eq!((log.impression(0).history.len(), log.impression(0).offered.len()), (0, 2));
        assert_eq!(left, LeftOut { unknown: 4, without_click: 1, without_other: 1 });
        let notes = left.notes("train").join(" ");
        assert!(notes.contains("left out 4 ids") && notes.contains("1 impressions without a click"), "{notes}");
    }

    #[test]
    fn damaged_lines_are_named() {
        let good = line("U1", "N1", "N2-1 N1-0");
        let cut = &good[..good.len() - 12];
        let cases = [
            (NEWS.replace("\tgolf", ""), good.clone(), "news.tsv:1: 7 tab-separated columns, expected 8: id, category"),
            (format!("{NEWS}N4"), good.clone(), "news.tsv:4: 1 tab-separated column, expected 8"),
            (format!("{NEWS}{NEWS}"), good.clone(), "news.tsv:4: the id `N1` occurs a second time"),
            (NEWS.replace("N2\t", "\t"), good.clone(), "news.tsv:2: the id of the news is empty"),
            (String::new(), good.clone(), "news.tsv: has no lines"),
            (NEWS.into(), format!("{good}{cut}"), "behaviors.tsv:2: 4 tab-separated columns, expected 5: impression"),
            (NEWS.into(), line("", "N1", "N2-1 N1-0"), "behaviors.tsv:1: the user is empty"),
            (NEWS.into(), line("U1", "N1", " "), "behaviors.tsv:1: nothing was offered"),
            (NEWS.into(), line("U1", "N1", "N2-1 N1"), "behaviors.tsv:1: offers `N1`, expected news with a label"),
            (NEWS.into(), line("U1", "N1", "N2-1 N1-2"), "offers `N1-2`"),
            (NEWS.into(), line("U1", "N1", "-1 N1-0"), "offers `-1`"),
            (NEWS.into(), line("U1", "N1", "N7-1 N8-0"), "behaviors.tsv: has no impression with a click"),
        ];
        for (news, behaviors, expected) in cases {
            let error = read(&news, &behaviors).unwrap_err();
            assert!(!error.is_config() && error.to_string().contains(expected), "{error}");
        }
        let bytes = [NEWS.as_bytes(), b"N5\xff"].concat();
        let empty: &[u8] = b"";
        let error = parse([(&bytes[..], Path::new("news.tsv")), (empty, Path::new("b"))], 2).unwrap_err().to_string();
        assert!(error.contains("news.tsv:4: is not UTF-8 from byte 2 of the line on"), "{error}");
    }

    #[test]
    fn any_bytes_are_a_log_or_an_error() {
        let pieces =
            ["\t", "\n", "N1", "U", "-1", "-0", " ", "é", "\r", "N1\t\t\tx\t\t\t\t\n", "1\tU1\t\t\tN1-1 N1-0\n"];
        let mut state = 3u64;
        for _ in 0..4000 {
            let mut text = [String::new(), String::new()];
            for half in &mut text {
                for _ in 0..10 {
                    state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
                    half.push_str(pieces[(state >> 33) as usize % pieces.len()]);
                }
            }
            let _ = read(&text[0], &text[1]);
        }
    }
}
