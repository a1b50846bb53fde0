//! A self-contained page, `report.html`: readable offline, without scripts, and in print.

use std::io;
use std::path::{Path, PathBuf};

use regard_files::write_whole;

use super::escape::escape;
use super::{Chart, HeatMap, Table, svg};

/// File name of the page.
pub const PAGE: &str = "report.html";
/// Folder of its images.
pub const PLOTS: &str = "plots";

/// One piece of a section.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub enum Block {
    /// A paragraph of plain text.
    Prose(String),
    /// Preformatted text: a configuration, a command.
    Code(String),
    /// A table.
    Table(Table),
    /// A chart, also written as `plots/NAME.svg`. Names hold letters, digits, `-` and `_`; others become `-`.
    Chart {
        /// Name of the file, without extension.
        name: String,
        /// The chart.
        chart: Chart,
    },
    /// A heat map, also written as `plots/NAME.svg`, and its panels as `plots/NAME-N.png`.
    HeatMap {
        /// Name of the files, without extension.
        name: String,
        /// The heat map.
        map: HeatMap,
    },
}

/// A section with a heading.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Section {
    /// Heading; also in the table of contents.
    pub title: String,
    /// Content, top to bottom.
    pub blocks: Vec<Block>,
}

/// The files written by [`Report::write`].
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Written {
    /// The page.
    pub page: PathBuf,
    /// The images, in order of appearance.
    pub plots: Vec<PathBuf>,
}

/// The whole report.
///
/// ```
/// use regard_report::{Axis, Block, Chart, Data, Report, Section, Series};
///
/// let line = Series::new("softmax", 0, [(0.0, 2.3), (100.0, 1.1)]);
/// let chart = Chart::new("Training loss", "1 run", Data::Lines(vec![line]))
///     .axes(Axis::new("step", ""), Axis::new("loss", "nats"));
/// let report = Report {
///     title: "A run".into(),
///     summary: "The loss falls.".into(),
///     sections: vec![Section { title: "Loss".into(), blocks: vec![Block::Chart { name: "loss".into(), chart }] }],
///     ..Report::default()
/// };
/// assert!(report.to_html().contains("<svg")); // `Report::write` also writes the charts as files.
/// ```
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Report {
    /// Title.
    pub title: String,
    /// One paragraph under the title: the answer, before the evidence.
    pub summary: String,
    /// Facts for reproducibility, as name and value: command, commit, processor, date.
    pub facts: Vec<(String, String)>,
    /// Content.
    pub sections: Vec<Section>,
}

impl Report {
    /// The page.
    pub fn to_html(&self) -> String {
        let title = escape(&self.title);
        let mut page = format!(
            "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\"/>\n\
             <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\"/>\n\
             <meta name=\"color-scheme\" content=\"light dark\"/>\n<title>{title}</title>\n\
             <style>\n{STYLE}@media screen and (prefers-color-scheme: dark) {{\n{DARK}{}}}\n</style>\n</head>\n\
             <body>\n<header>\n<h1>{title}</h1>\n",
            svg::dark_style()
        );
        if !self.summary.is_empty() {
            page += &format!("<p class=\"summary\">{}</p>\n", escape(&self.summary));
        }
        if !self.facts.is_empty() {
            let facts = self
                .facts
                .iter()
                .map(|(name, value)| format!("<div><dt>{}</dt><dd>{}</dd></div>\n", escape(name), escape(value)));
            page += &format!("<dl>\n{}</dl>\n", facts.collect::<String>());
        }
        page += "</header>\n";
        let titles = self.sections.iter().enumerate();
        if self.sections.len() > 1 {
            let entries = titles.map(|(number, section)| {
                format!("<li><a href=\"#section-{}\">{}</a></li>\n", number + 1, escape(&section.title))
            });
            page += &format!("<nav aria-label=\"Contents\">\n<ol>\n{}</ol>\n</nav>\n", entries.collect::<String>());
        }
        page += "<main>\n";
        for (number, section) in self.sections.iter().enumerate() {
            page += &format!("<section id=\"section-{}\">\n<h2>{}</h2>\n", number + 1, escape(&section.title));
            page.extend(section.blocks.iter().map(Block::to_html));
            page += "</section>\n";
        }
        page + "</main>\n</body>\n</html>\n"
    }

    /// Writes `report.html`, `plots/NAME.svg` and, for heat maps, `plots/NAME-N.png` into `folder`, each file
    /// atomically, the page last.
    ///
    /// # Errors
    /// File system errors, with the path.
    pub fn write(&self, folder: &Path) -> io::Result<Written> {
        let blocks = self.sections.iter().flat_map(|section| &section.blocks);
        let mut plots: Vec<PathBuf> = Vec::new();
        for block in blocks {
            let (name, svg) = match block {
                Block::Chart { name, chart } => (file_name(name), chart.to_svg()),
                Block::HeatMap { name, map } => (file_name(name), map.to_svg()),
                _ => continue,
            };
            let numbered = |number: usize| if number == 1 { name.clone() } else { format!("{name}-{number}") };
            let path = |number| folder.join(PLOTS).join(numbered(number) + ".svg");
            // Two charts with one name would overwrite each other.
            let free = (1..=plots.len() + 1).map(path).find(|path| !plots.contains(path));
            let path = free.unwrap_or_else(|| path(plots.len() + 1));
            write_whole(&path, svg.as_bytes())?;
            plots.push(path.clone());
            let Block::HeatMap { map, .. } = block else { continue };
            let (stem, most) = (path.with_extension(""), map.most());
            for (number, panel) in map.panels.iter().enumerate().filter(|(_, panel)| !panel.values.is_empty()) {
                let mut path = stem.clone().into_os_string();
                path.push(format!("-{}.png", number + 1));
                write_whole(Path::new(&path), &panel.to_png(map.shade, most))?;
                plots.push(path.into());
            }
        }
        let page = folder.join(PAGE);
        write_whole(&page, self.to_html().as_bytes())?;
        Ok(Written { page, plots })
    }
}

impl Block {
    fn to_html(&self) -> String {
        match self {
            Self::Prose(text) => format!("<p>{}</p>\n", escape(text)),
            Self::Code(text) => format!("<pre><code>{}</code></pre>\n", escape(text)),
            Self::Table(table) => table.to_html(),
            Self::Chart { chart, .. } => format!("<figure>\n{}</figure>\n", chart.to_inline_svg()),
            Self::HeatMap { map, .. } => format!("<figure>\n{}</figure>\n", map.to_inline_svg()),
        }
    }
}

/// A name that is valid on every file system.
fn file_name(name: &str) -> String {
    let plain = |c: char| if c.is_ascii_alphanumeric() || c == '_' { c.to_ascii_lowercase() } else { '-' };
    let name: String = name.chars().map(plain).take(80).collect();
    if name.is_empty() { "chart".into() } else { name }
}

/// Light theme, and print.
const STYLE: &str = "\
:root{--ink:#1f2328;--muted:#59636e;--line:#dde1e6;--ground:#fff;--raised:#f6f8fa;--link:#0969da;--best:#e6f4ea}
*{box-sizing:border-box}
body{margin:0 auto;max-width:70rem;padding:2.5rem 1.5rem 4rem;background:var(--ground);color:var(--ink);
font:16px/1.55 system-ui,-apple-system,'Segoe UI','Helvetica Neue',Arial,'Liberation Sans',sans-serif}
h1{font-size:1.9rem;line-height:1.2;margin:0 0 .6rem;letter-spacing:-.01em}
h2{font-size:1.3rem;margin:2.6rem 0 .8rem;padding-top:1.2rem;border-top:1px solid var(--line)}
p{max-width:46rem;margin:.7rem 0}
.summary{font-size:1.1rem}
dl{display:grid;grid-template-columns:repeat(auto-fill,minmax(15rem,1fr));gap:.7rem 1.6rem;margin:1.4rem 0;padding:1rem 1.2rem;
background:var(--raised);border:1px solid var(--line);border-radius:8px}
dt{font-size:.78rem;color:var(--muted)}
dd{margin:0;font-size:.92rem;overflow-wrap:anywhere}
nav ol{columns:2;margin:1rem 0;padding-left:1.3rem}
a{color:var(--link);text-decoration:none}
a:hover{text-decoration:underline}
figure{margin:1.4rem 0;break-inside:avoid}
figcaption{font-weight:600;margin-bottom:.5rem}
svg.chart{display:block;width:100%;max-width:760px;height:auto}
.scroll{overflow-x:auto}
table{border-collapse:collapse;font-size:.875rem;font-variant-numeric:tabular-nums}
th,td{padding:.38rem .65rem;text-align:left;white-space:nowrap;border-bottom:1px solid var(--line)}
th{border-bottom:2px solid var(--muted);vertical-align:bottom}
td{vertical-align:top}
td.long{white-space:normal;min-width:18rem}
.number{text-align:right}
.group{text-align:center;border-bottom:1px solid var(--muted)}
.unit{color:var(--muted);font-weight:400}
td strong{background:var(--best);border-radius:4px;padding:.1rem .35rem;margin-right:-.35rem}
.note{font-size:.82rem;color:var(--muted);margin:.4rem 0}
pre{overflow-x:auto;padding:.8rem 1rem;background:var(--raised);border:1px solid var(--line);border-radius:8px;
font:.85rem/1.5 ui-monospace,SFMono-Regular,Menlo,Consolas,'Liberation Mono',monospace}
@media screen and (max-width:45rem){body{padding:1.5rem 1rem 3rem}nav ol{columns:auto}figure{overflow-x:auto}svg.chart{width:640px}}
@media print{body{max-width:none;padding:0;font-size:10.5pt}nav{display:none}h2{break-after:avoid}a{color:inherit}
table{font-size:8.5pt}th,td{padding:.25rem .4rem;white-space:normal}td.number{white-space:nowrap}tr{break-inside:avoid}
figure.table{break-inside:auto}figcaption{break-after:avoid}td strong{background:none;padding:0;margin:0}.scroll{overflow:visible}pre{white-space:pre-wrap}}
";

/// Dark theme: colours only.
const DARK: &str = "\
:root{--ink:#e6edf3;--muted:#9aa4af;--line:#30363d;--ground:#14181d;--raised:#1c2128;--link:#6cb6ff;--best:#1d3b2a}
";

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Axis, Cell, Column, Data, Format, Series};

    fn sample() -> Report {
        let chart = |title: &str| {
            let series = vec![Series::new("a", 0, [(0.0, 1.0), (1.0, 2.0)])];
            Chart::new(title, "1 run", Data::Lines(series)).axes(Axis::new("step", ""), Axis::new("loss", "nat"))
        };
        let mut table = Table::new("t", vec![Column::number("n", Format::Plain)]);
        table.push(vec![Cell::Whole(12)]);
        Report {
            title: "<script>alert(1)</script> & more".into(),
            summary: "a < b".into(),
            facts: vec![("command".into(), "regard compare --set a=\"b\"".into())],
            sections: vec![
                Section {
                    title: "One & two".into(),
                    blocks: vec![
                        Block::Prose("</p><img src=x>".into()),
                        Block::Chart { name: "../Loss".into(), chart: chart("Loss") },
                        Block::Chart { name: "../Loss".into(), chart: chart("Loss again") },
                    ],
                },
                Section { title: "Three".into(), blocks: vec![Block::Table(table), Block::Code("a\n<b>".into())] },
            ],
        }
    }

    #[test]
    fn page_is_well_formed_and_stands_alone() {
        let page = sample().to_html();
        let body = page.strip_prefix("<!DOCTYPE html>\n").expect("doctype");
        let document = roxmltree::Document::parse(body).unwrap_or_else(|error| panic!("{error}"));
        let nodes = || document.descendants().filter(|node| node.is_element());
        assert!(nodes().all(|node| !matches!(node.tag_name().name(), "script" | "img" | "link" | "iframe")));
        for node in nodes() {
            for attribute in node.attributes() {
                let outside = attribute.value().contains("//") && attribute.name() != "xmlns";
                assert!(!outside, "{attribute:?}");
                if attribute.name() == "href" {
                    let target = attribute.value().strip_prefix('#').expect("inside the page");
                    assert!(nodes().any(|node| node.attribute("id") == Some(target)), "{target}");
                }
            }
        }
        assert_eq!(nodes().filter(|node| node.has_tag_name(("http://www.w3.org/2000/svg", "svg"))).count(), 4);
        assert!(!page.contains("url(") && !page.contains("@import"));
    }

    #[test]
    fn files_are_written_whole() {
        let folder = std::env::temp_dir().join(format!("regard-report-{}", std::process::id()));
        let written = sample().write(&folder).expect("writable");
        let names: Vec<_> = written.plots.iter().map(|p| p.strip_prefix(&folder).expect("inside").to_owned()).collect();
        assert_eq!(names, [Path::new("plots/---loss.svg"), Path::new("plots/---loss-2.svg")]);
        assert_eq!(std::fs::read_to_string(&written.page).expect("page"), sample().to_html());
        let left: Vec<_> = std::fs::read_dir(&folder).expect("folder").flatten().map(|f| f.file_name()).collect();
        assert_eq!(left.len(), 2, "{left:?}");
        // A file where a folder is needed.
        let error = sample().write(&written.page).expect_err("not a folder").to_string();
        assert!(error.contains("report.html"), "{error}");
        std::fs::remove_dir_all(&folder).expect("removable");
    }
}
